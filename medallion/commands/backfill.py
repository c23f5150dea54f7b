"""Backfills: what is to be made again, and making it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from medallion.cli import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from medallion.outcomes import Report
    from medallion.plan import Plan

__all__ = ["execute", "plan", "replay"]

_SELECTABLE = ("missing", "failed", "stale", "source", "blocked", "all")

_only = click.option(
    "--only",
    metavar="KINDS",
    help=f"Which partitions, separated by commas: {', '.join(_SELECTABLE)}.",
)
_no_downstream = click.option("--no-downstream", is_flag=True, help="Leave alone what is built from them.")
_upstream = click.option("--upstream", is_flag=True, help="First make what they need, where it is missing or stale.")
_newest_first = click.option("--newest-first", is_flag=True, help="Newest partitions first; oldest first if not.")
_slice_mib = click.option(
    "--slice-mib",
    type=click.IntRange(min=1),
    help="Estimated memory of a slice, which is one commit, in MiB.  [default: 512]",
)
_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
_parallel = click.option(
    "--parallel", type=click.IntRange(min=1), default=1, show_default=True,
    help="How many slices, of different tables, are made at once.",
)  # fmt: skip


@click.command()
@click.argument("table", required=False)
@click.argument("partitions", nargs=-1, metavar="[FROM..TO | KEY...]")
@_only
@_no_downstream
@_upstream
@_newest_first
@_slice_mib
@click.option(
    "--save", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Keep the plan in a file."
)
@click.option("--execute", "go", is_flag=True, help="Execute it at once.")
@_parallel
@_as_json
@click.pass_context
def plan(
    context: click.Context, table: str | None, partitions: tuple[str, ...], *, only: str | None, no_downstream: bool,
    upstream: bool, newest_first: bool, slice_mib: int | None, save: Path | None, go: bool, parallel: int,
    as_json: bool,
) -> None:  # fmt: skip
    """What is to be made again, in which order and why; nothing is changed.

    TABLE is written as layer/name. Without it, every gap and everything that is out of date is found, in all tables.
    Partitions are keys, or ranges of which both ends count and either may be left out. If nothing else is said, the
    plan takes the missing, the failed and the stale ones, and whatever is built from them.
    """
    settings: Settings = context.obj
    made = _plan(
        settings, table, partitions, only=only, downstream=not no_downstream, upstream=upstream,
        newest_first=newest_first, slice_mib=slice_mib,
    )  # fmt: skip
    if save is not None:
        save.write_text(made.to_json())
    if as_json and not go:
        click.echo(made.to_json())
    elif not as_json:
        _show(settings, made)
        if save is not None and not go:
            click.echo(f"Saved. To execute it: medallion execute {save}")
    if go:
        _execute(context, made, accept=False, parallel=parallel, as_json=as_json)


@click.command()
@click.argument("planfile", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--dry-run", is_flag=True, help="Say what would be visited and whether the plan still holds; do nothing.")
@click.option("--replan", is_flag=True, help="If the lake has moved, make the plan again and execute that.")
@click.option("--accept", is_flag=True, help="If the lake has moved, execute the plan as it stands.")
@_parallel
@_as_json
@click.pass_context
def execute(
    context: click.Context, planfile: Path, *, dry_run: bool, replan: bool, accept: bool, parallel: int, as_json: bool
) -> None:
    """Do what a saved plan says. Executing it again goes on where it was interrupted.

    The exit status is 1 if a partition was blocked or failed.
    """
    from medallion.execution import moved, remaining
    from medallion.plan import Plan
    from medallion.planning import plan_again

    settings: Settings = context.obj
    made = Plan.from_json(planfile.read_text(), str(planfile))
    project, run = settings.project(), _run(settings)
    if dry_run:
        outdated, left = moved(made, project, run), remaining(made, project, run)
        if as_json:
            click.echo(json.dumps({"plan": made.id, "outdated": outdated, "remaining": left}))
            return
        _show(settings, made)
        click.echo(f"{sum(map(len, left.values())):,} of {made.partitions:,} partitions are left.")
        for each in outdated:
            click.echo(f"outdated: {each}")
        return
    if replan and moved(made, project, run):
        made = plan_again(made, project, run.lake, run.landing)
        planfile.write_text(made.to_json())
        if not as_json:
            _show(settings, made)
    _execute(context, made, accept=accept, parallel=parallel, as_json=as_json)


@click.command()
@click.argument("table")
@click.argument("partitions", nargs=-1, metavar="[FROM..TO | KEY...]")
@_only
@_no_downstream
@_upstream
@_newest_first
@_slice_mib
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@_parallel
@_as_json
@click.pass_context
def replay(
    context: click.Context, table: str, partitions: tuple[str, ...], *, only: str | None, no_downstream: bool,
    upstream: bool, newest_first: bool, slice_mib: int | None, dry_run: bool, parallel: int, as_json: bool,
) -> None:  # fmt: skip
    """Bring partitions to where their inputs and the code say they should be, and what is built from them.

    This is `medallion plan --only all` with its execution. A partition that already stands there is left as it is.
    The exit status is 1 if a partition was blocked or failed.
    """
    settings: Settings = context.obj
    made = _plan(
        settings, table, partitions, only=only or "all", downstream=not no_downstream, upstream=upstream,
        newest_first=newest_first, slice_mib=slice_mib,
    )  # fmt: skip
    if dry_run:
        if as_json:
            click.echo(made.to_json())
        else:
            _show(settings, made)
        return
    _execute(context, made, accept=True, parallel=parallel, as_json=as_json)


def _plan(
    settings: Settings, table: str | None, partitions: Sequence[str], *, only: str | None, downstream: bool,
    upstream: bool, newest_first: bool, slice_mib: int | None,
) -> Plan:  # fmt: skip
    from medallion.plan import DEFAULT, Select
    from medallion.planning import plan as make
    from medallion.refine import Run

    project, run = settings.project(), _run(settings)
    kinds = [each.strip() for each in only.split(",")] if only is not None else []
    for kind in kinds:
        if kind not in _SELECTABLE:
            raise click.BadParameter(f"{kind!r} is none of {', '.join(_SELECTABLE)}.", param_hint="--only")
    keys = project.table(table).partition.select(partitions) if table is not None and partitions else None
    return make(
        project, run.lake, run.landing, table, keys,
        select={Select(kind) for kind in kinds} or DEFAULT, downstream=downstream, upstream=upstream,
        newest_first=newest_first, slice_bytes=slice_mib * 1024 * 1024 if slice_mib else Run.slice_bytes,
    )  # fmt: skip


def _run(settings: Settings) -> Any:
    from medallion.refine import Run
    from medallion.sources import LandingZone

    landing = LandingZone(settings.landing_root) if Path(settings.landing_root).is_dir() else None
    return Run(settings.lake(), landing, run_id="medallion")


def _show(settings: Settings, made: Plan) -> None:
    from rich.console import Console

    from medallion.reading import plan_as_text

    Console(highlight=False).print(plan_as_text(made, settings.project()))


def _execute(context: click.Context, made: Plan, *, accept: bool, parallel: int, as_json: bool) -> None:
    from rich.console import Console

    from medallion.execution import execute as carry_out
    from medallion.reading import report_as_dict, report_as_text

    settings: Settings = context.obj
    console = Console(highlight=False)

    def told(report: Report) -> None:
        if not as_json:
            console.print(report_as_text(report))

    reports = carry_out(made, settings.project(), _run(settings), accept=accept, parallel=parallel, told=told)
    if as_json:
        click.echo(json.dumps({"plan": made.id, "tables": [report_as_dict(each) for each in reports]}))
    if any(report.refused for report in reports):
        context.exit(1)
