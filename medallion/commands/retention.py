"""How far back the lake can be taken: the recovery horizon, and what vacuum takes beyond it."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING

import click

from medallion.cli import Settings

if TYPE_CHECKING:
    from medallion.vacuum import TableVacuum, Vacuum

__all__ = ["retention", "vacuum"]


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


@click.command()
@click.option("--apply/--dry-run", default=False, help="Take what is announced; without it, only announce it.")
@click.option("--horizon", metavar="DURATION", help="Set the lake's recovery horizon first, as 36h, 30d or 4w.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.pass_obj
def vacuum(settings: Settings, *, apply: bool, horizon: str | None, as_json: bool) -> None:
    """Announce, or take, the states of tables that lie beyond the recovery horizon.

    What a savepoint, a blocked candidate or a running attempt needs stays, however old it is, and so do the bytes of
    sources. With --dry-run, --horizon is only tried.
    """
    from medallion.horizon import parse_duration
    from medallion.retention import set_horizon
    from medallion.vacuum import plan_vacuum
    from medallion.vacuum import vacuum as take

    lake = settings.lake()
    tried = None if horizon is None else parse_duration(horizon)
    if tried is not None and apply:
        set_horizon(lake, tried)
    plan = plan_vacuum(lake, _now(), tried)
    done = take(lake, plan) if apply else None
    if as_json:
        told = plan.to_dict()
        if done is not None:
            told["taken"] = {"record": done.record, "files": len(done.files), "entries": len(done.entries)}
        click.echo(json.dumps(told, indent=2))
        return
    _print_plan(plan)
    if done is None:
        click.echo(
            "Nothing was taken; --apply takes it."
            if any(each.takes_something for each in plan.tables)
            else "There is nothing to take."
        )
    else:
        click.echo(
            f"{len(done.files)} data files and {len(done.entries)} log entries were taken. {done.record}".strip()
        )


def _print_plan(plan: Vacuum) -> None:
    from medallion.horizon import shown_duration

    stays = f"what was current at {plan.cutoff:%Y-%m-%d %H:%M} UTC or later stays"
    click.echo(f"Recovery horizon {shown_duration(plan.horizon)}: {stays}.")
    if plan.why:
        click.echo(f"It reaches further back than that: {plan.why}.")
    for each in plan.tables:
        _print_table(each)


def _print_table(each: TableVacuum) -> None:
    from medallion.recoverable import ranges

    click.echo(f"\n{each.table}: stays from version {each.oldest} on, which was current since {each.oldest_at}")
    for version, who in each.held.items():
        click.echo(f"  stays: version {version}, held by {', '.join(who)}")
    if each.versions:
        click.echo(f"  stops being recoverable: versions {ranges(each.versions)}")
    if each.partitions:
        some = [f"{key} ({count} earlier state{'s' if count > 1 else ''})" for key, count in each.partitions.items()]
        more = f" and {len(some) - 5} more" if len(some) > 5 else ""
        click.echo(f"  of partitions: {', '.join(some[:5])}{more}")
    if each.sources:
        more = f" and {len(each.sources) - 3} more" if len(each.sources) > 3 else ""
        click.echo(f"  with the rows of deliveries, whose bytes stay: {'; '.join(each.sources[:3])}{more}")
    if each.takes_something:
        click.echo(
            f"  {len(each.files)} data files, {each.size:,} bytes; {len(each.entries)} log entries and checkpoints"
        )


@click.group()
def retention() -> None:
    """The recovery horizon: how far back every table of the lake can be taken."""


@retention.command("set")
@click.argument("horizon")
@click.pass_obj
def set_(settings: Settings, horizon: str) -> None:
    """Set the recovery horizon, as 36h, 30d or 4w; every table's own retention properties follow from it."""
    from medallion.horizon import parse_duration, shown_duration
    from medallion.retention import set_horizon

    duration = parse_duration(horizon)
    changed = set_horizon(settings.lake(), duration)
    click.echo(
        f"The recovery horizon is {shown_duration(duration)}; {len(changed)} tables follow. Nothing was removed."
    )


@retention.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.pass_obj
def show(settings: Settings, *, as_json: bool) -> None:
    """What can still be returned to, per table, and what is about to be lost. Exit status 1 if something is."""
    from medallion.errors import ConfigurationError
    from medallion.watch import horizon_report

    try:
        landing = settings.landing()
    except ConfigurationError:  # the lake answers alone; only waiting deliveries are not seen
        landing = None
    report = horizon_report(settings.project(), settings.lake(), landing=landing, now=_now())
    if as_json:
        click.echo(json.dumps(report.to_dict(), indent=2))
    else:
        _print_report(report)
    if report.warnings:
        raise SystemExit(1)


def _print_report(report: object) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from medallion.horizon import shown_duration
    from medallion.recoverable import ranges
    from medallion.watch import HorizonReport

    assert isinstance(report, HorizonReport)
    table = Table(box=SIMPLE_HEAD, title=f"Recovery horizon {shown_duration(report.horizon)}", title_justify="left")
    for name in ("table", "back to", "version", "held", "sources from", "lag"):
        table.add_column(name, no_wrap=name in {"table", "back to"})
    for each in report.tables:
        table.add_row(
            each.table,
            f"{each.oldest_at:%Y-%m-%d %H:%M}",
            f"{each.oldest_version} of {each.version}",
            ranges(each.held) or "-",
            each.source_position or "-",
            "-" if each.lag is None else shown_duration(each.lag),
        )
    console = Console()
    console.print(table)
    for warning in report.warnings:
        console.print(f"warning: {warning}", highlight=False)


@retention.command()
@click.argument("table")
@click.argument("partition", default="all")
@click.option("--reason", required=True, help="What is gone and how that is known; or what has been found.")
@click.option("--close", is_flag=True, help="The source has been found again: the partition may be computed.")
@click.pass_obj
def gap(settings: Settings, table: str, partition: str, reason: str, *, close: bool) -> None:
    """Record that a partition cannot be made again, so that it is never computed from today's data.

    TABLE is written as layer/name, PARTITION as its key (not needed for an unpartitioned table).
    """
    from medallion.gaps import close_gap, record_gap

    declared = settings.project().table(table)
    declared.partition.check(partition)
    at = _now().isoformat(timespec="seconds")
    if close:
        close_gap(settings.lake(), table, partition, reason, at)
        click.echo(f"{table} {partition} is no gap any more. Replay it.")
    else:
        record_gap(settings.lake(), table, partition, reason, at)
        click.echo(f"{table} {partition} is recorded as an irrecoverable gap. It is not computed until that is closed.")
