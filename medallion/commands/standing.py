"""How the lake stands, and what the ledger says of how it came to that."""

from __future__ import annotations

import json
import sys

import click

from medallion.cli import Settings
from medallion.errors import ConfigurationError

__all__ = ["ledger", "status"]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.option("--watch", is_flag=True, help="Show it again and again, until interrupted.")
@click.option("--every", type=click.FloatRange(min=0.1), default=2.0, show_default=True, metavar="SECONDS")
@click.option(
    "--patience",
    type=click.FloatRange(min=0),
    default=24.0,
    show_default=True,
    metavar="HOURS",
    help="How long something may wait that could be built, before it needs somebody.",
)
@click.pass_obj
def status(settings: Settings, *, as_json: bool, watch: bool, every: float, patience: float) -> None:
    """Where am I, what is committed, where can I return to, and is it proven: from the lake alone.

    Exit status: 0 if nothing needs anybody, 1 if something stays as it is until somebody does something, 2 if the lake
    cannot be read.
    """
    import datetime as dt
    import gc
    import time

    # A large lake is tens of thousands of small documents, none of them garbage: looking for some among them is a fifth
    # of the time that it takes to ask 10,000 partitions.
    gc.disable()
    from rich.console import Console

    from medallion.status import status as look
    from medallion.status_view import render, to_dict

    project, lake = settings.project(), settings.lake()
    try:
        landing = settings.landing()
    except ConfigurationError:  # the lake answers alone; what is delivered is then not known
        landing = None
    console = Console()
    while True:
        found = look(project, lake, landing, now=dt.datetime.now(dt.UTC), patience=dt.timedelta(hours=patience))
        if watch and not as_json:
            console.clear()
        if as_json:
            click.echo(json.dumps(to_dict(found), indent=None if watch else 2))
        else:
            console.print(render(found, console.width))
        if not watch:
            sys.exit(1 if found.needs_person else 0)
        del found
        gc.collect()
        time.sleep(every)


@click.group()
def ledger() -> None:
    """What was attempted and what came of it: evidence beside the tables, which know better."""


@ledger.command()
@click.argument("table", required=False)
@click.argument("partition", required=False)
@click.option("--status", "statuses", multiple=True, help="Only rows of this status; may be given several times.")
@click.option("--last", type=click.IntRange(min=1), default=20, show_default=True, help="How many, the newest.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line, with all columns.")
@click.pass_obj
def show(
    settings: Settings, table: str | None, partition: str | None, statuses: tuple[str, ...], last: int, *, as_json: bool
) -> None:
    """The newest rows, of all tables or of one; oldest first."""
    from rich.console import Console

    from medallion.ledger import STATUSES, read
    from medallion.ledger_view import render

    if unknown := set(statuses) - STATUSES:
        raise click.ClickException(
            f"no status is called {sorted(unknown)[0]!r}. There are: {', '.join(sorted(STATUSES))}."
        )
    rows = read(settings.lake(), statuses or None)
    for column, value in (("pipeline_name", table), ("partition", partition)):
        rows = rows if value is None else rows.filter(**{column: value})
    rows = rows.tail(last)
    if as_json:
        click.echo(rows.write_ndjson(), nl=False)
    else:
        Console().print(render(rows))


@ledger.command()
@click.pass_obj
def rebuild(settings: Settings) -> None:
    """Make the ledger anew from the tables, and keep from the old one what no table can tell."""
    from medallion.rebuilding import rebuild as make

    made = make(settings.lake(), settings.project())
    told = sum(made.from_tables.values())
    click.echo(f"{made.rows:,} rows: {told:,} that the tables tell, {made.rows - told:,} kept from the ledger before")
    for each in made.dropped:
        click.echo(f"the tables have won: {each}")
    click.echo("Not to be had from the tables, so gone if the ledger before had it no more:")
    for what in made.unknown:
        click.echo(f"  {what}")


@ledger.command()
@click.pass_obj
def check(settings: Settings) -> None:
    """Where the ledger and the tables disagree; exit status 1 if they do. The tables are right."""
    from medallion.rebuilding import contradictions

    found = contradictions(settings.lake(), settings.project())
    for each in found:
        click.echo(str(each))
    if found:
        count = "1 contradiction" if len(found) == 1 else f"{len(found)} contradictions"
        click.echo(f"{count}. The tables are right: medallion ledger rebuild follows them.")
        sys.exit(1)
    click.echo("The ledger says nothing that the tables do not.")
