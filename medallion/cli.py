"""The operator's words: what a table holds, from the lake alone. Works where Dagster is down."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from medallion.errors import MedallionError

if TYPE_CHECKING:
    from medallion.lake import Lake
    from medallion.project import Project


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--lake",
    envvar="MEDALLION_LAKE",
    default="lake",
    show_default=True,
    help="Folder of the lake; MEDALLION_LAKE in the environment.",
)
@click.pass_context
def cli(context: click.Context, lake: str) -> None:
    """Look at a medallion lake. Run it in the project's folder, where pyproject.toml names the feeds."""
    context.obj = lake


def _open(root: str) -> tuple[Project, Lake]:
    from medallion.lake import Lake
    from medallion.project import feeds_of, load_project

    folder = Path.cwd()
    feeds = feeds_of(folder)
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))  # feeds are modules of the project's folder, which is not installed
    project = load_project(feeds)
    if not Path(root).is_dir():
        raise click.ClickException(
            f"there is no lake at {Path(root).absolute()}. Build one with `make run UI=0`, or set MEDALLION_LAKE."
        )
    return project, Lake(root)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.pass_obj
def summary(root: str, *, as_json: bool) -> None:
    """Rows read, accepted, quarantined by reason and blocked, for each table."""
    from dataclasses import asdict

    from rich.console import Console

    from medallion.summary import render, summarize

    project, lake = _open(root)
    found = summarize(project.tables, lake)
    if as_json:
        click.echo(json.dumps([asdict(each) for each in found], indent=2))
    else:
        Console().print(*render(found))


@cli.command()
@click.argument("table")
@click.argument("partition", default="all")
@click.pass_obj
def inspect(root: str, table: str, partition: str) -> None:
    """What a partition was made of and how it was judged; its blocked candidate, if there is one.

    TABLE is written as layer/name, PARTITION as its key (not needed for an unpartitioned table).
    """
    from medallion.evidence import EvidenceReader, read_held

    project, lake = _open(root)
    declared = project.table(table)
    declared.partition.check(partition)
    snapshot = lake.pin(declared.path, declared.partition)
    batch_id = snapshot.batch_id(partition)
    live = EvidenceReader(snapshot.folder)(batch_id) if batch_id else None
    held = read_held(snapshot.folder, partition)
    found = {
        "table": table,
        "partition": partition,
        "live": json.loads(live.to_json()) if live else None,
        "live batch": batch_id,
        "held": json.loads(held.to_json()) if held else None,
    }
    click.echo(json.dumps(found, indent=2))


def main() -> None:
    """Run the command; an error of the engine is one message and exit status 2."""
    try:
        cli(prog_name="medallion", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except click.Abort:
        sys.exit(130)
    except MedallionError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
