"""Looking at what a table holds, and cleaning up after attempts that died."""

from __future__ import annotations

import json

import click

from medallion.cli import Settings, only_partition
from medallion.errors import MedallionError

__all__ = ["clean", "inspect", "summary"]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.pass_obj
def summary(settings: Settings, *, as_json: bool) -> None:
    """Rows read, accepted, quarantined by reason and blocked, for each table."""
    from dataclasses import asdict

    from rich.console import Console

    from medallion.summary import render, summarize

    project, lake = settings.project(), settings.lake()
    found = summarize(project.tables, lake)
    if as_json:
        click.echo(json.dumps([asdict(each) for each in found], indent=2))
    else:
        Console().print(*render(found))


@click.command()
@click.argument("table")
@click.argument("partition", required=False)
@click.option("--version", type=int, help="Of the table; the newest if not given.")
@click.pass_obj
def inspect(settings: Settings, table: str, partition: str | None, version: int | None) -> None:
    """What a partition was made of and how it was judged, from the lake alone.

    TABLE is written as layer/name, PARTITION as its key (not needed for an unpartitioned table). Shown are the pinned
    context of the batch that is live in that version, the commit that put it there, what became of earlier attempts
    that died, and the blocked candidate, if there is one, with some of its rows and what can be done with it.
    """
    from medallion.inspection import inspect as look

    lake = settings.lake()
    try:
        project = settings.project()
    except MedallionError:  # no feeds here, or one that cannot be imported: the lake answers alone
        declared = None
    else:
        declared = project.table(table).partition
    if partition is None:
        partition = only_partition(table, declared.keys() if declared else sorted(lake.open(table, version).files))
    elif declared is not None:
        declared.check(partition)
    click.echo(json.dumps(look(lake, table, partition, version, partition=declared), indent=2))


@click.command()
@click.option("--apply/--dry-run", default=False, help="Remove what is found; without it, only list it.")
@click.option("--older-than", type=click.FloatRange(min=0), default=24.0, show_default=True, metavar="HOURS")
@click.pass_obj
def clean(settings: Settings, *, apply: bool, older_than: float) -> None:
    """Find what attempts that died have left: files that no version names, and that no live attempt needs.

    Rows that a version of a table still names, held candidates and the bytes of sources are never touched.
    """
    from medallion.strays import find_strays, remove_strays

    lake = settings.lake()
    found = find_strays(lake, older_than=older_than)
    shown = remove_strays(lake, found, older_than=older_than) if apply else found
    for each in shown:
        click.echo(f"{each.kind:15} {each.size:>10,} bytes  {each.hours:8.1f} h  {each.path}")
    verb = "removed" if apply else "found; --apply removes them"
    click.echo(f"{len(shown)} strays, {sum(each.size for each in shown):,} bytes {verb}")
