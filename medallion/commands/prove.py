"""Proving that the lake is what it says it is."""

from __future__ import annotations

import json
import sys

import click

from medallion.cli import Settings

__all__ = ["verify"]


@click.command()
@click.argument("table", required=False)
@click.argument("partitions", required=False, metavar="[FROM..TO]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with every difference.")
@click.pass_obj
def verify(settings: Settings, table: str | None, partitions: str | None, *, as_json: bool) -> None:
    """Recompute what the lake says of itself, and name every difference. Changes no table.

    TABLE is written as layer/name, FROM..TO as two of its partitions, or one partition alone; without them everything
    is verified. Files are read back and hashed, rows counted, and both are held against file names, log, evidence,
    quarantine, fence, kept source bytes and the layer below. The exit status is 0 if all agree, and 1 if not.
    """
    from rich.console import Console

    from medallion.differences import render
    from medallion.partitions import keys_between
    from medallion.verify import verify as recompute

    project, lake = settings.project(), settings.lake()
    keys = None
    if table is not None and partitions is not None:
        keys = keys_between(project.table(table).partition, partitions)
    found = recompute(project, lake, None if table is None else [table], keys)
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=2))
    else:
        console = Console(highlight=False)
        for each in render(found):
            console.print(each)
    sys.exit(0 if found.reconciled else 1)
