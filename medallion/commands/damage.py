"""Looking for damage in the lake, and repairing it when told."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from medallion.cli import Settings
from medallion.errors import ConfigurationError, MedallionError

if TYPE_CHECKING:
    from medallion.damage import Damage
    from medallion.project import Project
    from medallion.repair import Repairs
    from medallion.sources import LandingZone

__all__ = ["check_lake"]


@click.command()
@click.option("--repair", is_flag=True, help="Repair what can be repaired; without it, only say what is damaged.")
@click.option("--from", "source", metavar="BACKUP", help="Put bytes back from this backup.")
@click.option("--fast", is_flag=True, help="Do not read files back: only see that they are there and as large as told.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.pass_obj
def check_lake(settings: Settings, *, repair: bool, source: str | None, fast: bool, as_json: bool) -> None:
    """Find what is damaged in the lake, say how it is repaired and what is lost by that.

    Exit status 1 if anything is damaged, and after --repair, if the newest state still needs something that is.
    """
    from medallion.fsck import check_lake as look
    from medallion.repair import repair_lake
    from medallion.store import open_place

    if source is not None and not repair:
        raise click.UsageError("--from says from where to repair: give --repair as well.")
    lake, project = settings.lake(), _project(settings)
    if repair:
        backup = None if source is None else open_place(source)
        done = repair_lake(lake, project=project, backup=backup, landing=_landing(settings))
        _print_repairs(done, as_json=as_json)
        left = tuple(each for each in done.left if each.needed)
    else:
        left = tuple(look(lake, project, landing=_landing(settings), read_bytes=not fast))
        _print_damages(left, as_json=as_json)
    if left:
        raise SystemExit(1)


def _project(settings: Settings) -> Project | None:
    try:
        return settings.project()
    except MedallionError:  # no feeds here, or one that cannot be imported: the lake answers alone
        return None


def _landing(settings: Settings) -> LandingZone | None:
    try:
        return settings.landing()
    except ConfigurationError:
        return None


def _plain(damages: tuple[Damage, ...]) -> list[dict[str, object]]:
    from dataclasses import asdict

    return [{**asdict(each), "kind": str(each.kind)} for each in damages]


def _print_damages(damages: tuple[Damage, ...], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(_plain(damages), indent=2))
        return
    for each in damages:
        click.echo(f"{each.kind}: {each.path}\n  {each.found}\n  repair: {each.repair}")
        if each.loses:
            click.echo(f"  without a backup, lost is {each.loses}")
    click.echo(f"{len(damages)} damaged" if damages else "nothing is damaged")


def _print_repairs(done: Repairs, *, as_json: bool) -> None:
    if as_json:
        told = {
            "repaired": [
                {**_plain((each.damage,))[0], "did": each.did, "lost": each.lost, "replay": each.replay}
                for each in done.done
            ],
            "left": _plain(done.left),
            "replay": done.replay,
        }
        click.echo(json.dumps(told, indent=2))
        return
    for each in done.done:
        click.echo(f"{each.damage.kind}: {each.damage.path}\n  {each.did}")
        if each.lost:
            click.echo(f"  lost: {each.lost}")
    for table, keys in done.replay.items():
        click.echo(f"replay now: {table} {' '.join(keys)}")
    if done.left:
        click.echo("still damaged:")
    _print_damages(done.left, as_json=False)
