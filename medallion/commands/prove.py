"""Proving that the lake is what it says it is."""

from __future__ import annotations

import json
import sys

import click

from medallion.cli import Settings

__all__ = ["verify"]


@click.command()
@click.argument("table", required=False)
@click.argument("partitions", nargs=-1, metavar="[FROM..TO | KEY...]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with every difference.")
@click.pass_obj
def verify(settings: Settings, table: str | None, partitions: tuple[str, ...], *, as_json: bool) -> None:
    """Recompute what the lake says of itself, and name every difference. Changes no table.

    TABLE is written as layer/name. Partitions are keys, or ranges of which both ends count and either may be left out;
    without them everything is verified. Files are read back and hashed, rows counted, and both are held against file
    names, log, evidence, quarantine, fence, kept source bytes and the layer below. The exit status is 0 if all agree,
    and 1 if not.
    """
    from rich.console import Console

    from medallion.differences import render
    from medallion.verify import verify as recompute

    project, lake = settings.project(), settings.lake()
    keys = project.table(table).partition.select(partitions) if table is not None and partitions else None
    found = recompute(project, lake, None if table is None else [table], keys)
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=2))
    else:
        console = Console(highlight=False)
        for each in render(found):
            console.print(each)
    sys.exit(0 if found.reconciled else 1)
