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
    help="Folder of the lake, or s3://bucket/prefix; MEDALLION_LAKE in the environment.",
)
@click.pass_context
def cli(context: click.Context, lake: str) -> None:
    """Look at a medallion lake. Run it in the project's folder, where pyproject.toml names the feeds."""
    context.obj = lake


def _open(root: str) -> tuple[Project, Lake]:
    return _project(), _lake(root)


def _project() -> Project:
    from medallion.project import feeds_of, load_project

    folder = Path.cwd()
    feeds = feeds_of(folder)
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))  # feeds are modules of the project's folder, which is not installed
    return load_project(feeds)


def _lake(root: str) -> Lake:
    from medallion.lake import Lake
    from medallion.store import is_address

    if not is_address(root) and not Path(root).is_dir():
        raise click.ClickException(
            f"there is no lake at {Path(root).absolute()}. Build one with `make run UI=0`, or set MEDALLION_LAKE."
        )
    return Lake(root)


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
@click.option("--version", type=int, help="Of the table; the newest if not given.")
@click.pass_obj
def inspect(root: str, table: str, partition: str, version: int | None) -> None:
    """What a partition was made of and how it was judged, from the lake alone.

    TABLE is written as layer/name, PARTITION as its key (not needed for an unpartitioned table). Shown are the pinned
    context of the batch that is live in that version, the commit that put it there, what became of earlier attempts
    that died, and the blocked candidate, if there is one.
    """
    from medallion.inspection import inspect as look

    lake = _lake(root)
    try:
        project = _project()
    except MedallionError:  # no feeds here, or one that cannot be imported: the lake answers alone
        declared = None
    else:
        declared = project.table(table).partition
        declared.check(partition)
    click.echo(json.dumps(look(lake, table, partition, version, partition=declared), indent=2))


@cli.command()
@click.option("--apply/--dry-run", default=False, help="Remove what is found; without it, only list it.")
@click.option("--older-than", type=click.FloatRange(min=0), default=24.0, show_default=True, metavar="HOURS")
@click.pass_obj
def clean(root: str, *, apply: bool, older_than: float) -> None:
    """Find what attempts that died have left: files that no version names, and that no live attempt needs.

    Rows that a version of a table still names, held candidates and the bytes of sources are never touched.
    """
    from medallion.strays import find_strays, remove_strays

    lake = _lake(root)
    found = find_strays(lake, older_than=older_than)
    shown = remove_strays(lake, found, older_than=older_than) if apply else found
    for each in shown:
        click.echo(f"{each.kind:15} {each.size:>10,} bytes  {each.hours:8.1f} h  {each.path}")
    verb = "removed" if apply else "found; --apply removes them"
    click.echo(f"{len(shown)} strays, {sum(each.size for each in shown):,} bytes {verb}")


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
