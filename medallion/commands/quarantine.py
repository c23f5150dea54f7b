"""Refused rows: looking at them, taking them elsewhere to be mended, and replaying the partitions that hold them."""

from __future__ import annotations

import datetime as dt
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from medallion.cli import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from medallion.quarantine import Group
    from medallion.tables import Table

__all__ = ["quarantine"]

_partitions = click.argument("partitions", nargs=-1, metavar="[FROM..TO | KEY...]")


@click.group()
def quarantine() -> None:
    """Rows that were refused: list, show and export them, and replay what holds them.

    A row leaves the quarantine because its partition was replayed: mend the source, the reference table or the rule,
    then `medallion quarantine replay`. Nothing is ever taken out by hand.
    """


@quarantine.command("list")
@click.argument("table", required=False)
@_partitions
@click.option("--rule", help="Only rows that this rule refuses.")
@click.option(
    "--by", type=click.Choice(["rule", "table", "day", "age"]), default="rule", show_default=True,
    help="How rows are added up, besides by table.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.pass_obj
def list_(
    settings: Settings, table: str | None, partitions: tuple[str, ...], rule: str | None, by: str, *, as_json: bool
) -> None:
    """Outstanding rows by rule, table, day or age, with their owners, and the command that replays them."""
    from medallion.quarantine import Grouping, grouped, outstanding

    project, lake = settings.project(), settings.lake()
    keys = project.table(table).partition.select(partitions) if table and partitions else None
    now = dt.datetime.now(dt.UTC)
    found = outstanding(project, lake, [table] if table else None, rule=rule, keys=keys)
    groups = grouped(found, Grouping(by), now)
    if as_json:
        click.echo(json.dumps([_plain(each, by, now) for each in groups], indent=2))
        return
    if not groups:
        click.echo("No rows are quarantined.")
        return
    _print(groups, by, now, rule)


def _plain(group: Group, by: str, now: dt.datetime) -> dict[str, object]:
    return {
        "table": group.table,
        **({by: group.label} if group.label else {}),
        "rows": group.rows,
        "partitions": group.partitions,
        "since": group.since.isoformat(),
        "age_seconds": (now - group.since).total_seconds(),
        "owners": group.owners,
    }


def _print(groups: Sequence[Group], by: str, now: dt.datetime, rule: str | None) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as RichTable

    shown = RichTable(
        title="Quarantined rows", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False
    )
    shown.add_column("table", no_wrap=True)
    if by != "table":
        shown.add_column("partition" if by == "day" else by, overflow="fold")
    for name in ("rows", "parts", "oldest"):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("owner", overflow="fold")
    for each in groups:
        label = [] if by == "table" else [each.label]
        counts = (f"{each.rows:,}", f"{len(each.partitions):,}", _age(now - each.since))
        shown.add_row(each.table, *label, *counts, ", ".join(each.owners) or "nobody")
    console = Console(highlight=False)
    console.print(shown)
    console.print("Mend the source, the reference table or the rule, then replay the partitions that hold the rows:")
    for command in _replays(groups, by, rule):
        console.print(f"  {command}", soft_wrap=True)


def _replays(groups: Sequence[Group], by: str, rule: str | None) -> list[str]:
    """The commands that replay what was listed: one for each rule, or for each table and the days listed of it."""
    spans: dict[str, list[str]] = {}
    for each in groups:
        command = f"medallion quarantine replay {each.table}"
        named = each.label if by == "rule" else rule
        spans.setdefault(f"{command}|{named or ''}", []).extend(each.partitions)
    found = []
    for span, keys in spans.items():
        command, _, named = span.partition("|")
        where = "" if by == "rule" else f" {min(keys)}..{max(keys)}" if len(set(keys)) > 1 else f" {keys[0]}"
        found.append(command + where + (f" --rule {named}" if named else ""))
    return found


def _age(age: dt.timedelta) -> str:
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if age.total_seconds() >= size:
            return f"{age.total_seconds() // size:.0f} {name}"
    return "now"


@quarantine.command()
@click.argument("table")
@_partitions
@click.option("--rule", help="Only rows that this rule refuses.")
@click.option("--limit", type=click.IntRange(min=1), default=10, show_default=True, help="Rows to show.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a row.")
@click.pass_obj
def show(
    settings: Settings, table: str, partitions: tuple[str, ...], rule: str | None, limit: int, *, as_json: bool
) -> None:
    """The refused rows themselves: source file and row, every reason, and the values as they came.

    TABLE is the silver table that refused them; FROM..TO two of its partitions, or one alone.
    """
    import polars as pl
    from rich.console import Console
    from rich.text import Text

    from medallion.quarantine import described, refused_rows

    rows = refused_rows(settings.lake(), *_where(settings, table, partitions), rule=rule)
    count, some = pl.collect_all([rows.select(pl.len()), rows.head(limit)])
    if as_json:
        click.echo(some.write_ndjson().rstrip("\n"))
        return
    console = Console(highlight=False)
    for head, values in described(some):
        console.print(Text(head, style="bold"))
        console.print(Text("  " + "  ".join(f"{name} {value}" for name, value in values.items())))
    left = count.item() - some.height
    more = f"{left:,} more: --limit, or medallion quarantine export." if left else ""
    console.print(f"{count.item():,} rows. {more}".rstrip())


def _where(settings: Settings, table: str, partitions: tuple[str, ...]) -> tuple[Table, tuple[str, ...] | None]:
    declared = settings.project().table(table)
    return declared, declared.partition.select(partitions) if partitions else None


@quarantine.command()
@click.argument("table")
@_partitions
@click.option("--rule", help="Only rows that this rule refuses.")
@click.option(
    "--to",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="FILE.csv, FILE.parquet or FILE.ndjson.",
)
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@click.pass_obj
def export(
    settings: Settings, table: str, partitions: tuple[str, ...], rule: str | None, file: Path, *, force: bool
) -> None:
    """Write refused rows to a file, for whoever mends them. They stay in the quarantine."""
    from medallion.quarantine import export_rows, refused_rows

    rows = refused_rows(settings.lake(), *_where(settings, table, partitions), rule=rule)
    count = export_rows(rows, file, force=force)
    click.echo(f"{count:,} rows of {table} written to {file}. They stay in the quarantine until they are replayed.")


@quarantine.command()
@click.argument("table")
@_partitions
@click.option("--rule", help="Only partitions in which this rule refuses rows.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.pass_obj
def replay(
    settings: Settings, table: str, partitions: tuple[str, ...], rule: str | None, *, dry_run: bool, as_json: bool
) -> None:
    """Replay just the partitions that hold refused rows, with what they are made of and what is made of them.

    Sources and reference tables that were mended are taken in first. Partitions for which nothing has changed are left
    as they are, and their rows stay refused. The exit status is 1 if a partition could not be put in place.
    """
    from rich.console import Console

    from medallion.reading import plan_as_text, ranges, report_as_dict, report_as_text
    from medallion.refine import Run
    from medallion.release import plan_release, release

    declared, keys = _where(settings, table, partitions)
    run = Run(settings.lake(), settings.landing(), run_id="medallion quarantine replay")
    project, console = settings.project(), Console(highlight=False)
    made = plan_release(project, run, declared, rule=rule, keys=keys)
    if made is None:
        click.echo("null" if as_json else f"{table} has no such rows; nothing was done.")
        return
    if dry_run:
        if as_json:
            click.echo(made.to_json())
        else:
            console.print(plan_as_text(made, project))
            console.print("Then what is built from the partitions that change.")
        return
    found = release(made, project, run)
    if as_json:
        tables = [report_as_dict(each) for each in found.reports]
        click.echo(json.dumps({"plan": made.id, "released": found.released, "tables": tables}, indent=2))
    else:
        for each in found.reports:
            console.print(report_as_text(each))
        at = ", ".join(ranges(found.released, declared.partition.keys())[:3]) or "none"
        more = ", ..." if len(found.released) > 3 else ""
        console.print(f"Rows released from the quarantine of {table}: {sum(found.released.values()):,}; at {at}{more}")
    sys.exit(0 if found.complete else 1)
