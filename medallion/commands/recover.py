"""Savepoints, what differs between two states, and making one of the past current again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from medallion.cli import Settings

if TYPE_CHECKING:
    from medallion.comparison import Comparison
    from medallion.lake import Lake
    from medallion.past_states import Goal
    from medallion.project import Project
    from medallion.restore import Restored
    from medallion.restore_plan import RestorePlan
    from medallion.saved_state import Savepoint

__all__ = ["diff", "restore", "savepoint"]

_AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
_SHOWN = 20
RUN_ID = "command line"


@click.group()
def savepoint() -> None:
    """States to which one can return: every table at one consistent cut."""


@savepoint.command()
@click.argument("name")
@click.option("--reason", default="", help="Why; for people.")
@_AS_JSON
@click.pass_obj
def create(settings: Settings, name: str, reason: str, *, as_json: bool) -> None:
    """Write down what every table holds; nothing is copied, and nobody has to stop."""
    from medallion import savepoints

    made = savepoints.create(settings.project(), settings.lake(), name, reason=reason, run_id=RUN_ID)
    _print_savepoint(made, as_json=as_json)


@savepoint.command(name="list")
@_AS_JSON
@click.pass_obj
def list_(settings: Settings, *, as_json: bool) -> None:
    """All savepoints, oldest first."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from medallion import savepoints

    found = savepoints.savepoints(settings.lake())
    if as_json:
        click.echo(json.dumps([_brief(each) for each in found], indent=2))
        return
    shown = Table(box=SIMPLE_HEAD)
    for title in ("savepoint", "kind", "made at", "tables", "rows", "stale", "reason"):
        shown.add_column(title, justify="right" if title in {"tables", "rows", "stale"} else "left")
    for each in found:
        told = _brief(each)
        shown.add_row(
            each.name, each.kind, f"{each.moment:%Y-%m-%d %H:%M:%S}", str(told["tables"]), f"{each.rows:,}",
            str(told["stale"]), each.reason,
        )  # fmt: skip
    Console().print(shown)


@savepoint.command()
@click.argument("name")
@_AS_JSON
@click.pass_obj
def show(settings: Settings, name: str, *, as_json: bool) -> None:
    """What a savepoint holds."""
    from medallion import savepoints

    _print_savepoint(savepoints.read(settings.lake(), name), as_json=as_json)


@savepoint.command()
@click.argument("name")
@click.pass_obj
def drop(settings: Settings, name: str) -> None:
    """Forget a savepoint. Its files then stay no longer than the history of their tables."""
    from medallion import savepoints

    savepoints.drop(settings.lake(), name)
    click.echo(f"savepoint {name} is forgotten; no table was touched")


def _brief(each: Savepoint) -> dict[str, Any]:
    return {
        "name": each.name,
        "kind": each.kind,
        "created_at": each.created_at,
        "reason": each.reason,
        "tables": sum(table.version is not None for table in each.tables.values()),
        "rows": each.rows,
        "stale": sum(map(len, each.stale.values())),
    }


def _print_savepoint(each: Savepoint, *, as_json: bool) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    if as_json:
        click.echo(json.dumps(json.loads(each.to_json()), indent=2))
        return
    shown = Table(
        box=SIMPLE_HEAD, title=f"savepoint {each.name} ({each.kind}), {each.created_at}", title_justify="left"
    )
    for title in ("table", "version", "partitions", "rows", "stale", "revisions", "source until", "content"):
        shown.add_column(title, justify="right" if title in {"version", "partitions", "rows", "stale"} else "left")
    for path, table in each.tables.items():
        position = table.position.contiguous if table.position is not None else None
        shown.add_row(
            path, "none" if table.version is None else str(table.version), f"{len(table.files):,}", f"{table.rows:,}",
            str(len(each.stale.get(path, ()))), ", ".join(sorted(table.made_by)), position or "", table.content[:12],
        )  # fmt: skip
    Console().print(shown)
    if each.reason:
        click.echo(f"reason: {each.reason}")


@click.command()
@click.argument("table")
@click.argument("before")
@click.argument("after", default="")
@_AS_JSON
@click.pass_obj
def diff(settings: Settings, table: str, before: str, after: str, *, as_json: bool) -> None:
    """What differs between two states of a TABLE (layer/name, or quarantine/name).

    BEFORE and AFTER are a version, the name of a savepoint, or a time (ISO 8601; UTC if it names no zone). Without
    AFTER it is what stands now.
    """
    from dataclasses import asdict

    from medallion.comparison import compare

    found = compare(settings.project(), settings.lake(), table, before, after)
    if as_json:
        click.echo(json.dumps({**asdict(found), "rows": found.rows}, indent=2, default=str))
    else:
        _print_comparison(found)


def _print_comparison(found: Comparison) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console()
    rows = found.rows
    console.print(
        f"[bold]{found.table}[/] from {found.names[0]} (version {found.versions[0]}) to {found.names[1]} (version "
        f"{found.versions[1]}): {len(found.partitions):,} partitions differ, {found.same:,} are the same; "
        f"{rows['added']:,} rows added, {rows['removed']:,} removed, {rows['changed']:,} changed, matched by "
        f"{', '.join(found.key) or 'the whole row'}.",
        highlight=False,
    )
    partitions = Table(box=SIMPLE_HEAD)
    for title in ("partition", "is", "rows before", "rows after", "added", "removed", "changed"):
        partitions.add_column(title, justify="left" if title in {"partition", "is"} else "right")
    for each in found.partitions[:_SHOWN]:
        numbers = (each.before, each.after, each.added, each.removed, each.changed)
        partitions.add_row(each.key, each.kind, *[f"{number:,}" for number in numbers])
    if found.partitions:
        console.print(partitions)
    if len(found.partitions) > _SHOWN:
        console.print(f"... and {len(found.partitions) - _SHOWN:,} more partitions; --json lists all.")
    if found.totals or found.columns:
        columns = Table(box=SIMPLE_HEAD)
        for title in ("column", "rows that differ", "total before", "total after"):
            columns.add_column(title, justify="left" if title == "column" else "right")
        for name in dict.fromkeys([*found.columns, *found.totals]):
            both = found.totals.get(name)
            totals = [f"{each:,.2f}" if isinstance(each, float) else f"{each:,}" for each in both] if both else ["", ""]
            columns.add_row(name, f"{found.columns.get(name, 0):,}", *totals)
        console.print(columns)


@click.command()
@click.option("--to", "name", metavar="SAVEPOINT", help="A savepoint; with --table, only those tables of it.")
@click.option("--table", "tables", multiple=True, metavar="LAYER/NAME", help="Only this table; may be repeated.")
@click.option("--to-version", type=click.IntRange(min=0), help="A version of the one --table.")
@click.option("--to-time", metavar="TIME", help="A moment, ISO 8601; UTC if it names no zone.")
@click.option("--reason", default="", help="Why; it is recorded.")
@click.option("--decided-at", metavar="TIME", help="When it was decided; the recovery time counts from then.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@click.option("--from", "source", metavar="BACKUP", help="Restore a whole lake from a backup, --into a new root.")
@click.option("--into", metavar="NEW_ROOT", help="An empty or missing folder, or s3://bucket/prefix; with --from.")
@click.option("--resume", "resuming", is_flag=True, help="Complete a restore that was interrupted.")
@click.option("--rollback", is_flag=True, help="Take back a restore that was interrupted.")
@_AS_JSON
@click.pass_obj
def restore(
    settings: Settings, /, *, resuming: bool, rollback: bool, dry_run: bool, as_json: bool, **words: Any
) -> None:
    """Make a state of the past current again, by new commits, and prove that it is.

    Nothing is forgotten: what stood before is a savepoint afterwards. The exit status is 1 if the state was not reached
    in full.
    """
    from medallion import restore as restoring
    from medallion.restore_plan import plan

    if words["source"] is not None or words["into"] is not None:
        _from_backup(words, as_json=as_json)
        return
    project, lake = settings.project(), settings.lake()
    if resuming or rollback:
        told = restoring.resume(project, lake, rollback=rollback)
        if told is None:
            click.echo("no restore is open")
            return
    else:
        goal = _goal(project, lake, words)
        if dry_run:
            _print_plan(plan(project, lake, goal), as_json=as_json)
            return
        told = restoring.restore(
            project, lake, goal, reason=words["reason"], run_id=RUN_ID, decided_at=_moment(words["decided_at"])
        )
    _print_restored(told, as_json=as_json)
    if told.outcome == restoring.INCOMPLETE:
        raise click.exceptions.Exit(1)


def _from_backup(words: Mapping[str, Any], *, as_json: bool) -> None:
    from medallion.commands.backup import restore_copy

    others = [name for name in ("name", "to_version", "to_time") if words[name] is not None]
    if words["source"] is None or words["into"] is None or others or words["tables"]:
        raise click.UsageError("a backup is restored as a whole: say --from BACKUP and --into NEW_ROOT, no more")
    restore_copy(words["source"], words["into"], None, as_json=as_json)


def _moment(text: str | None) -> Any:
    from medallion.past_states import parse_moment

    if text is None:
        return None
    moment = parse_moment(text)
    if moment is None:
        raise click.UsageError(f"{text!r} is no time; write it as 2017-03-04T12:00:00+00:00")
    return moment


def _goal(project: Project, lake: Lake, words: Mapping[str, Any]) -> Goal:
    from medallion.past_states import at_time, at_version, of_savepoint

    tables: Sequence[str] = words["tables"]
    given = [name for name in ("name", "to_version", "to_time") if words[name] is not None]
    if len(given) != 1:
        raise click.UsageError("say one of --to SAVEPOINT, --to-version N or --to-time TIME")
    if given == ["name"]:
        return of_savepoint(project, lake, words["name"], tables)
    if given == ["to_time"]:
        return at_time(project, lake, _moment(words["to_time"]), tables)
    if len(tables) != 1:
        raise click.UsageError("--to-version is of one table: say --table LAYER/NAME once")
    return at_version(project, lake, tables[0], words["to_version"])


def _print_plan(planned: RestorePlan, *, as_json: bool) -> None:
    files, rows = planned.volume
    told = {
        "target": planned.goal.target,
        "replaced": planned.replaced,
        "dropped": planned.dropped,
        "files": files,
        "rows": rows,
        "damaged": planned.damaged,
        "stale": planned.stale,
    }
    if as_json:
        click.echo(json.dumps(told, indent=2))
        return
    _print_moves(
        f"A restore to {planned.goal.target} would put back {files:,} files, {rows:,} rows.",
        planned.replaced,
        planned.dropped,
        planned.stale,
    )
    for each in planned.damaged:
        click.echo(f"not possible: {each}")
    click.echo("Nothing was changed.")


def _print_restored(told: Restored, *, as_json: bool) -> None:
    from dataclasses import asdict

    if as_json:
        measured = {"rto_seconds": told.seconds, "rpo_seconds": told.given_up, "to_replay": told.to_replay}
        click.echo(json.dumps({**asdict(told), **measured}, indent=2))
        return
    title = (
        f"Restore {told.number} to {told.target}: {told.outcome}. {told.files:,} files, {told.rows:,} rows put back; "
        f"{told.seconds:.1f} s from the decision to the proof."
    )
    _print_moves(title, told.replaced, told.dropped, told.stale)
    for path, lost in told.overtaken.items():
        for key, what in lost.items():
            click.echo(f"not restored: {path} {key} {what}")
    for each in told.differences:
        click.echo(f"differs: {each}")
    if told.given_up is not None:
        click.echo(f"Commits of the {told.given_up:,.0f} s before the decision are no longer current.")
    for path, keys in told.to_replay.items():
        click.echo(f"Delivered since, kept, and to be replayed: {path}, {len(keys):,} partitions from {min(keys)} on")
    if told.savepoint_before:
        click.echo(f"What stood before: medallion restore --to {told.savepoint_before}")


def _print_moves(
    title: str,
    replaced: Mapping[str, Sequence[str]],
    dropped: Mapping[str, Sequence[str]],
    stale: Mapping[str, Mapping[str, str]],
) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(title, highlight=False)
    shown = Table(box=SIMPLE_HEAD)
    for name in ("table", "replaced", "dropped", "stale", "because"):
        shown.add_column(name, justify="left" if name in {"table", "because"} else "right")
    for path in dict.fromkeys([*replaced, *dropped, *stale]):
        reasons = stale.get(path, {})
        first = next(iter(reasons.values()), "")
        counts = [f"{len(each):,}" for each in (replaced.get(path, ()), dropped.get(path, ()), reasons)]
        shown.add_row(path, *counts, first)
    if shown.row_count:
        console.print(shown)
