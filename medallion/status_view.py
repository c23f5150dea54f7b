"""The status of a lake as a person reads it, and as a machine does. Nothing is found out here."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from medallion.concerns import Concern
from medallion.differences import RECONCILED
from medallion.status import Status, TableStatus

__all__ = ["answers", "render", "to_dict"]

_WIDE = 110
"""Columns of a terminal from which the tables are told with everything."""
_NAMED = 6
"""Concerns of one kind that are shown with all that is known; the rest is counted."""


def render(status: Status, width: int = 80) -> RenderableType:
    """For a terminal of some width: the four questions, every table, what needs somebody, and what is under way."""
    parts: list[RenderableType] = []
    for question, answer in answers(status).items():
        parts += [Text(question, style="bold"), *(_indented(Text(line), 2) for line in answer)]
    parts += [Text(""), _tables(status, wide=width >= _WIDE)]
    parts += _section("Needs somebody", [each for each in status.concerns if each.needs_person], status, "red")
    parts += _section("Waits", [each for each in status.concerns if not each.needs_person], status, "yellow")
    running = [each for table in status.tables for each in table.running]
    if running:
        parts.append(Text(f"\nUnder way ({len(running)})", style="bold"))
        for each in running:
            line = (
                f"{each.table} {_keys(each.partitions)} for {_age(each.seconds)}, run {each.run_id}, process {each.pid}"
            )
            parts.append(_indented(Text(line), 2))
    parts += [Text(f"\n{note}", style="yellow") for note in status.notes]
    return Group(*parts)


def answers(status: Status) -> dict[str, list[str]]:
    """The four questions, each with the lines that answer it."""
    return {
        "Where am I?": _where(status),
        "What have I committed?": _committed(status),
        "Where can I safely return?": _return(status),
        "Can I prove that the result is correct?": _proof(status),
    }


def _indented(text: Text, by: int) -> Padding:
    return Padding(text, (0, 0, 0, by), expand=False)


def _where(status: Status) -> list[str]:
    trouble = [each for each in status.concerns if each.needs_person]
    lines = []
    if trouble:
        count = sum(len(each.partitions) for each in trouble)
        lines.append(f"{_count(count, 'partition')} in {_count(len({each.table for each in trouble}), 'table')} "
                     "need somebody.")  # fmt: skip
    else:
        lines.append("Healthy: nothing needs anybody.")
    ends = [each for each in status.tables if not _is_read(each, status)]
    for stage in dict.fromkeys(each.watermark.stage for each in ends):
        mine = [each for each in ends if each.watermark.stage == stage and each.partitions > 1]
        if mine:
            lines.append(f"{stage.capitalize()} without a gap: " + ", ".join(
                f"{each.table} to {each.watermark.contiguous or 'nothing yet'}" for each in mine) + ".")  # fmt: skip
    lag = max((each.seconds or 0 for table in status.tables for each in table.lags), default=0)
    waiting = sum(len(each.partitions) for table in status.tables for each in table.lags)
    if waiting or lag:
        time = f", {_age(lag)} of data" if lag else ""
        lines.append(f"Behind what is there: {_count(waiting, 'partition')}, {status.records_to_replay:,} rows{time}.")
    running = sum(len(table.running) for table in status.tables)
    lines.append(f"{_count(running, 'attempt')} under way." if running else "Nothing is running.")
    return lines


def _is_read(table: TableStatus, status: Status) -> bool:
    return any(lag.behind == table.table for each in status.tables for lag in each.lags)


def _committed(status: Status) -> list[str]:
    there = sum(each.watermark.partitions for each in status.tables)
    rows = sum(each.rows for each in status.tables)
    lines = [f"{there:,} of {sum(each.partitions for each in status.tables):,} partitions in "
             f"{_count(len(status.tables), 'table')}, {rows:,} rows."]  # fmt: skip
    if (last := status.last) is not None:
        table, _, _ = last.checkpoint_id.partition("@")
        lines.append(f"Last: {table} {last.partition}, batch {last.batch_id[:8]}, {_ago(status, last.at)} "
                     f"({last.checkpoint_id}).")  # fmt: skip
    quarantined = [each for each in status.tables if each.quarantined]
    if quarantined:
        since = min(each.quarantined_since for each in quarantined if each.quarantined_since is not None)
        count = sum(each.quarantined for each in quarantined)
        lines.append(f"{_count(count, 'row')} refused and outstanding, the oldest {_ago(status, since)}.")
    return lines


def _return(status: Status) -> list[str]:
    lines = []
    found = status.savepoint
    if found is None:
        lines.append("There is no savepoint. Make one: medallion savepoint create NAME")
    else:
        moved = (
            f"; {_count(len(found.moved), 'table')} committed to since" if found.moved else "; nothing committed since"
        )
        lines.append(f"Savepoint {found.name} ({found.kind}), {_ago(status, found.at)}{moved}.")
    shorter = [each for each in status.tables if each.oldest_version]
    if any(each.oldest_version is not None for each in status.tables):
        rest = ": " if not shorter else ", but of " + ", ".join(
            f"{each.table} from {each.oldest_version} of {each.version}" for each in shorter) + ": "  # fmt: skip
        lines.append(f"Every version of every table can still be read{rest}medallion inspect TABLE KEY --version N")
    return lines


def _proof(status: Status) -> list[str]:
    proof = status.proof
    if proof is None:
        return ["Nothing was ever verified. Run: medallion verify"]
    what = RECONCILED if proof.status == RECONCILED else f"{proof.table} {proof.status}"
    lines = [f"Verified {_ago(status, proof.at)}, {_count(proof.tables, 'table')}: {what}."]
    if proof.commits_since:
        verb = "was" if proof.commits_since == 1 else "were"
        lines.append(f"Since then {_count(proof.commits_since, 'partition')} {verb} committed. Run: medallion verify")
    return lines


def _tables(status: Status, *, wide: bool) -> RichTable:
    shown = RichTable(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    shown.add_column("table", no_wrap=True)
    shown.add_column("there", justify="right", no_wrap=True)
    shown.add_column("not current", overflow="fold")
    shown.add_column("no gap to", no_wrap=True)
    for name in ("lag", "refused"):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("last commit" if wide else "last", no_wrap=True)
    if wide:
        shown.add_column("batch", no_wrap=True)
        shown.add_column("version", justify="right", no_wrap=True)
    for each in status.tables:
        there, last = each.watermark.partitions, each.last
        age = "" if last is None else _age((status.at - last.at).total_seconds())
        row: list[str | Text] = [
            each.table,
            f"{there:,}" if there == each.partitions else f"{there:,}/{each.partitions:,}",
            _troubles(each, status),
            each.watermark.contiguous or "-",
            str(max((len(lag.partitions) for lag in each.lags), default=0) or "-"),
            f"{each.quarantined:,}" if each.quarantined else "-",
            "-" if last is None else f"{last.partition}, {age}" if wide else age,
        ]
        if wide:
            row += ["-" if last is None else last.batch_id[:8], "-" if each.version is None else str(each.version)]
        shown.add_row(*row)
    return shown


def _troubles(table: TableStatus, status: Status) -> Text:
    """How many partitions do not stand well, and how; those for which nothing has come yet do not count."""
    counts: Counter[str] = Counter()
    for concern in status.concerns:
        if concern.table == table.table and concern.kind != "interrupted":
            counts[concern.kind] += len(concern.partitions)
    shown = [(f"{count:,} {kind}", "red" if kind in _RED else "yellow") for kind, count in counts.items()]
    return Text(", ").join(Text(text, style=style) for text, style in shown) if shown else Text("-", style="dim")


_RED = ("blocked", "failed", "irrecoverable")


def _section(title: str, concerns: Sequence[Concern], status: Status, style: str) -> list[RenderableType]:
    if not concerns:
        return []
    parts: list[RenderableType] = [Text(f"\n{title} ({len(concerns)})", style=f"bold {style}")]
    for each in concerns[: 2 * _NAMED]:
        since = f" since {_ago(status, each.since)}" if each.since is not None and each.kind != "missing" else ""
        why = f": {each.reason}" if each.reason else ""
        head = Text.assemble((each.table, "bold"), f" {_keys(each.partitions)} ", (each.kind, style), since, why)
        parts += [_indented(head, 2), _indented(Text(f"-> {each.then}", style="dim"), 4)]
    if len(concerns) > 2 * _NAMED:
        parts.append(_indented(Text(f"and {len(concerns) - 2 * _NAMED} more: --json shows them all"), 2))
    return parts


def _keys(keys: Sequence[str]) -> str:
    if len(keys) <= 3:
        return ", ".join(keys)
    return f"{keys[0]} ... {keys[-1]} ({len(keys):,})"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _ago(status: Status, moment: dt.datetime) -> str:
    return f"{_age((status.at - moment).total_seconds())} ago"


def _age(seconds: float) -> str:
    """A span of time in its greatest unit."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if abs(seconds) >= 2 * length:
            return f"{seconds / length:,.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def to_dict(status: Status) -> dict[str, Any]:
    """For a machine: everything, and an answer to each of the questions that a recovery is watched by.

    Times are ISO 8601 in UTC, spans are seconds.
    """
    plain: dict[str, Any] = _plain(asdict(status))
    plain["needs_person"] = status.needs_person
    plain["answers"] = _plain(_answers(status))
    return plain


def _answers(status: Status) -> dict[str, Any]:
    """The eleven questions of recovery observability, each a field."""
    last, recovery = status.last, status.recovery
    open_since = [each.since for each in status.concerns if each.needs_person and each.since is not None]
    return {
        "last_safe_checkpoint": status.savepoint.name if status.savepoint else last and last.checkpoint_id,
        "committed_batch": None if last is None else asdict(last),
        "lag": {
            "partitions": sum(len(lag.partitions) for each in status.tables for lag in each.lags),
            "rows": status.records_to_replay,
            "seconds": max((lag.seconds or 0 for each in status.tables for lag in each.lags), default=0),
        },
        "records_to_replay": status.records_to_replay,
        "running_attempts": [asdict(each) for table in status.tables for each in table.running],
        "recovery_scope": {
            table: sorted({key for each in status.concerns if each.table == table for key in each.partitions})
            for table in dict.fromkeys(each.table for each in status.concerns)
        },
        "reconciled": None if status.proof is None else status.proof.status == RECONCILED,
        "watermarks": {
            each.table: {
                "contiguous": each.watermark.contiguous,
                "newest": each.watermark.newest,
                "advanced_at": each.last and each.last.at,
            }
            for each in status.tables
        },
        "quarantined": {
            each.table: {"rows": each.quarantined, "since": each.quarantined_since, "owners": each.owners}
            for each in status.tables
            if each.quarantined
        },
        "current_version": {each.table: each.version for each in status.tables},
        "how_long": {
            "open_seconds": max(((status.at - since).total_seconds() for since in open_since), default=0.0),
            "last_recovery_seconds": recovery["rto_observed"] if recovery else None,
        },
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value
