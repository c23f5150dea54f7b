"""Deciding what becomes of a blocked candidate."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING

import click

from medallion.cli import Settings, only_partition

if TYPE_CHECKING:
    from medallion.refine import Run

__all__ = ["approve", "discard"]


@click.command()
@click.argument("table")
@click.argument("partition", required=False)
@click.option("--reason", required=True, help="Why it is published although its gate refused it; kept for good.")
@click.pass_obj
def approve(settings: Settings, table: str, partition: str | None, reason: str) -> None:
    """Publish a blocked candidate as it was judged; look at it first with `medallion inspect`.

    The very files that were judged are committed, refused rows into the quarantine. It is refused if the partition was
    committed since, or if an input or the feed has changed: then replay, and look at what is held then.
    """
    from medallion.held import approve as publish
    from medallion.outcomes import Committed

    declared = settings.project().table(table)
    partition = partition or only_partition(table, declared.partition.keys())
    outcome = publish(declared, partition, _run(settings, "approve"), reason=reason)
    if isinstance(outcome, Committed):
        click.echo(f"{table} {partition} is published as version {outcome.version}: {outcome.verdict.summary}.")
        click.echo(f"What is built from it is made again by: medallion replay {table} {partition}")
    else:
        click.echo(f"{table} {partition}: {type(outcome).__name__}; its candidate was live already.")


@click.command()
@click.argument("table")
@click.argument("partition", required=False)
@click.option("--reason", default="", help="Why; kept for good.")
@click.pass_obj
def discard(settings: Settings, table: str, partition: str | None, reason: str) -> None:
    """Forget a blocked candidate; the version before stands, if there was one.

    It comes back with the next replay, unless the source, an input or the feed has changed.
    """
    from medallion.held import discard as forget

    declared = settings.project().table(table)
    partition = partition or only_partition(table, declared.partition.keys())
    gone = forget(declared, partition, _run(settings, "discard"), reason=reason)
    rules = ", ".join(finding.rule for finding in gone.verdict.blocking)
    click.echo(f"{table} {partition}: the candidate that {rules} had blocked is gone.")
    click.echo(f"Mend the source or the feed, and then: medallion replay {table} {partition}")


def _run(settings: Settings, what: str) -> Run:
    from medallion.refine import Run

    return Run(settings.lake(), run_id=f"medallion {what} by {getpass.getuser()}")
