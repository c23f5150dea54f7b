"""What an attempt says of itself when it has settled its partitions: rows for the ledger.

The same rows are made from an attempt's outcomes when it ends, and from the log and the evidence when the ledger is
made anew: so both are made here. What does not belong here: where the rows are kept (``ledger.py``).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from medallion import ledger
from medallion.attempts import COMMITTED, AttemptRecord, Recoveries
from medallion.differences import DIFFERS, RECONCILED
from medallion.evidence import Evidence, EvidenceReader
from medallion.lake import Lake
from medallion.log import Commit
from medallion.outcomes import Blocked, Committed, Failed, Outcome, Superseded, Unchanged
from medallion.partitions import Partitioning, TimePartitioning
from medallion.released import released, why_released
from medallion.tables import Table

__all__ = [
    "CONSERVED",
    "Row",
    "Teller",
    "commit_rows",
    "discarded_row",
    "held_row",
    "live_row",
    "recovered_rows",
    "recovery_rows",
    "settled_rows",
    "source_position",
    "tell",
    "window_of",
]

Row = dict[str, Any]

CONSERVED = "conserved"
"""Reconciliation of an attempt that judged its rows: read = accepted + quarantined + collapsed."""

_LONGEST = 2000


@dataclass(frozen=True)
class Teller:
    """Who settled partitions, and when.

    Attributes:
        attempt: names the attempt.
        run_id: of the run that it belongs to.
        started_at: when the attempt started.
        completed_at: when it had settled them; a commit says itself when it was made.
        plan_id: of the plan that asked for it; None if there was none.
    """

    attempt: str
    run_id: str
    started_at: dt.datetime
    completed_at: dt.datetime
    plan_id: str | None = None


def tell(
    lake: Lake, table: Table, outcomes: Mapping[str, Outcome], teller: Teller, recoveries: Recoveries, *,
    status: str = "committed",
) -> None:  # fmt: skip
    """Keep a row for each partition that was settled, and for what earlier attempts had left. Never raises.

    Args:
        lake: where the ledger lies.
        table: whose partitions they are.
        outcomes: of the partitions.
        teller: who settled them.
        recoveries: what earlier attempts had left.
        status: what a commit of this attempt is called.
    """
    recoveries.at = teller.completed_at.timestamp()
    rows = settled_rows(table, outcomes, teller, status=status)
    dead = list(recoveries.by_attempt())
    finder = replace(teller, started_at=dt.datetime.fromtimestamp(recoveries.since, dt.UTC))
    recovered = recovered_rows(table, dead, finder, rows)
    ledger.record(lake, [*_untold(lake, table, dead, teller.attempt), *rows, *recovered])


def _untold(
    lake: Lake, table: Table, dead: Iterable[tuple[AttemptRecord, Mapping[str, str]]], attempt: str
) -> list[Row]:
    """The commits that attempts made before they died and told nobody of."""
    rows: list[Row] = []
    for record, found in dead:
        keys = {key for key, what in found.items() if what == COMMITTED}
        if not keys or record.attempt == attempt:
            continue
        snapshot = lake.pin(table.path, table.partition)
        commits = snapshot.commits(None, partial=True) or []
        told = commit_rows(table, commits, EvidenceReader(snapshot.folder), keys)
        rows += [row for row in told if row["attempt"] == record.attempt]
    return rows


def settled_rows(
    table: Table, outcomes: Mapping[str, Outcome], teller: Teller, *, status: str = "committed"
) -> list[Row]:
    """A row for each outcome."""
    return [_settled(table, key, outcome, teller, status) for key, outcome in outcomes.items()]


def _settled(table: Table, key: str, outcome: Outcome, teller: Teller, status: str) -> Row:
    row = _who(table.partition, table.path, key, teller)
    match outcome:
        case Committed(evidence, version, at=at, before=before):
            row |= _judged(evidence, version) | {"status": status}
            row |= {"completed_at": at or teller.completed_at} | _released(before, evidence)
        case Unchanged(evidence, version):
            row |= _judged(evidence, version) | {"status": "unchanged", "reason": None}
        case Blocked(evidence):
            row |= _blocked(evidence)
        case Failed(error):
            row |= {
                "status": "superseded" if isinstance(outcome, Superseded) else "failed",
                "error_code": error.code,
                "error": str(error)[:_LONGEST],
                "failure_class": error.failure_class,
            }
    return row


def _who(partition: Partitioning, path: str, key: str, teller: Teller) -> Row:
    start, end = window_of(partition, key)
    return {
        "pipeline_name": path,
        "partition": key,
        "attempt": teller.attempt,
        "watermark_start": start,
        "watermark_end": end,
        "started_at": teller.started_at,
        "completed_at": teller.completed_at,
        "pipeline_run_id": teller.run_id,
        "plan_id": teller.plan_id,
    }


def window_of(partition: Partitioning, key: str) -> tuple[dt.datetime | None, dt.datetime | None]:
    """The half-open window of time that a partition covers, in UTC; None and None if it is not cut by time."""
    if not isinstance(partition, TimePartitioning):
        return None, None
    zone = ZoneInfo(partition.timezone)
    start, end = (each.replace(tzinfo=zone).astimezone(dt.UTC) for each in partition.window(key))
    return start, end


def _judged(evidence: Evidence, version: int | None) -> Row:
    verdict = evidence.verdict
    return {
        "batch_id": evidence.batch_id,
        "source_rows": verdict.read,
        "target_rows": verdict.accepted,
        "quarantine_count": verdict.quarantined,
        "source_position": source_position(evidence),
        "reconciliation_status": CONSERVED,
        "content": evidence.content or None,
        "reason": _reason(evidence),
        **_at(evidence.table, version),
    }


def _at(path: str, version: int | None) -> Row:
    return {"checkpoint_id": None if version is None else f"{path}@{version}", "target_version": version}


def _blocked(evidence: Evidence) -> Row:
    error = Blocked(evidence, Path(evidence.table)).error  # where it is held is not told
    return _judged(evidence, None) | {
        "status": "blocked",
        "target_rows": 0,
        "error_code": error.code,
        "error": str(error)[:_LONGEST],
        "failure_class": error.failure_class,
        "reconciliation_status": None,
    }


def _reason(evidence: Evidence) -> str | None:
    """Why it was published although something spoke against it."""
    for told in (evidence.approval, evidence.downgrade):
        if told is not None:
            return str(told["reason"])
    return None


def _released(before: Evidence | None, now: Evidence) -> Row:
    """Rows that left the quarantine because the partition was replayed, and why that was done."""
    count = 0 if before is None else released(before.verdict, now.verdict).total()
    return {"released_count": count, "reason": _reason(now) or why_released(before, now)}


def source_position(evidence: Evidence) -> str:
    """What a batch was made from: source files with their SHA-256, or tables with their pinned versions."""
    if evidence.closed is not None:
        return f"closed: {evidence.closed}"
    if evidence.sources:
        return "; ".join(f"{each.name}#{each.sha256}" for each in evidence.sources)
    read = {**evidence.inputs, **evidence.references}.values()
    return "; ".join(sorted({f"{each['table']}@{each['version']}" for each in read}))


def commit_rows(
    table: Table,
    commits: Sequence[Commit],
    evidence_of: Callable[[str], Evidence | None],
    keys: Collection[str] | None = None,
) -> list[Row]:
    """A row for each partition of each commit of a table, oldest first.

    Args:
        table: the table.
        commits: newest first, as the log gives them.
        evidence_of: gives the evidence of a batch; a batch without evidence has a row with what the commit says.
        keys: only these partitions; all if not given.
    """
    rows: list[Row] = []
    was: dict[str, Evidence | None] = {}
    # The commit that made the table is version 0; if the log begins later, what stood before is not known.
    whole = not commits or commits[-1].version <= 1
    for commit in reversed(commits):
        teller = _teller_of(commit)
        for key, batch_id in commit.batches.items():
            if keys is not None and key not in keys:
                continue
            evidence = evidence_of(batch_id) if batch_id else None
            row = _who(table.partition, table.path, key, teller)
            row |= {"status": _status_of(commit), "batch_id": batch_id} | _at(table.path, commit.version)
            if evidence is not None:
                row = dict.fromkeys(ledger.STORED) | row | _judged(evidence, commit.version)
                before = was.get(key)
                if before is not None or (whole and key not in was):
                    row |= _released(before, evidence)
                else:
                    row = _without_release(row)
                if evidence.attempt != commit.attempt:  # the same batch was made again later, from other versions
                    row = {name: value for name, value in row.items() if name not in {"source_position", "reason"}}
            if restored := commit.metadata.get("restore"):
                row["reason"] = restored["reason"] or None
            was[key] = evidence
            rows.append(row)
    return rows


def _without_release(row: Row) -> Row:
    """A row of a batch of which it is not known what it has replaced."""
    return {name: value for name, value in row.items() if name != "released_count" and (name != "reason" or value)}


def live_row(table: Table, evidence: Evidence, at: dt.datetime) -> Row:
    """The row of a live batch whose commit the log has forgotten, with what is still known; ``at`` is when it was."""
    teller = Teller(evidence.attempt, evidence.run_id, dt.datetime.fromisoformat(evidence.started_at), at)
    row = _who(table.partition, table.path, evidence.partition, teller) | _judged(evidence, None)
    row = _without_release(row | {"status": "approved" if evidence.approval else "committed"})
    # The log told when the attempt started, and which version it made.
    return {name: value for name, value in row.items() if name not in {"plan_id", "checkpoint_id", "target_version"}}


def _status_of(commit: Commit) -> str:
    if commit.metadata.get("restore"):
        return "restored"
    return "approved" if commit.metadata.get("approval") else "committed"


def _teller_of(commit: Commit) -> Teller:
    told = commit.metadata
    at = dt.datetime.fromtimestamp(told.get("at", 0) / 1000, dt.UTC)
    started = told.get("started_at")
    return Teller(
        commit.attempt,
        told.get("run_id", ""),
        dt.datetime.fromisoformat(started) if started else at,
        at,
        told.get("plan_id"),
    )


def held_row(table: Table, evidence: Evidence, held_at: dt.datetime) -> Row:
    """The row of an attempt whose candidate is held; ``held_at`` is when it was."""
    teller = Teller(evidence.attempt, evidence.run_id, dt.datetime.fromisoformat(evidence.started_at), held_at)
    return _who(table.partition, table.path, evidence.partition, teller) | _blocked(evidence)


def discarded_row(table: Table, evidence: Evidence, teller: Teller, reason: str) -> Row:
    """The row of a candidate that somebody has discarded."""
    told = {"status": "discarded", "reason": reason or None, "target_rows": 0, "reconciliation_status": None}
    return _who(table.partition, table.path, evidence.partition, teller) | _judged(evidence, None) | told


def recovered_rows(
    table: Table, dead: Iterable[tuple[AttemptRecord, Mapping[str, str]]], finder: Teller, rows: Iterable[Row]
) -> list[Row]:
    """A row for each partition that an attempt left when it died.

    Args:
        table: whose partitions they are.
        dead: the attempts, with what had become of their partitions.
        finder: the attempt that came after them, and when it had put everything in place.
        rows: of that attempt; they say what was read again.
    """
    again = {row["partition"]: row for row in rows if row["attempt"] == finder.attempt and row["status"] != "unchanged"}
    found: list[Row] = []
    for record, mine in dead:
        began = dt.datetime.fromtimestamp(record.started_at, dt.UTC)
        keys = sorted(mine)
        scope = keys[0] if len(keys) == 1 else f"{keys[0]}..{keys[-1]} ({len(keys)} partitions)"
        own = record.attempt == finder.attempt
        for key, what in mine.items():
            who = _who(
                table.partition, table.path, key, Teller(record.attempt, record.run_id, began, finder.completed_at)
            )
            found.append(
                who
                | {
                    "status": "recovered",
                    "reason": what,
                    "failure_class": "crash",
                    "recovered_by": finder.attempt,
                    "recovery_scope": scope,
                    "replay_volume": 0 if own else again.get(key, {}).get("source_rows") or 0,
                    "recovery_started_at": finder.started_at,
                    "recovery_completed_at": finder.completed_at,
                    # From its start on, which is the most that it can have been: nobody writes down when he dies.
                    "rto_observed": (finder.completed_at - began).total_seconds(),
                }
            )
    return found


def recovery_rows(told: Mapping[str, Any]) -> list[Row]:
    """A row for each table that a restore was about, when it has ended.

    Args:
        told: how it has ended, as the log of restores keeps it.
    """
    decided, completed = (dt.datetime.fromisoformat(told[name]) for name in ("decided_at", "completed_at"))
    return [
        {
            "pipeline_name": path,
            "partition": scope,
            "attempt": told["id"],
            "status": "recovered",
            "recovered_by": f"restore {told['number']}",
            "reason": f"{told['outcome']}: {told['target']}: {told['reason']}".rstrip(": "),
            "started_at": decided,
            "completed_at": completed,
            "pipeline_run_id": told["run_id"],
            "target_version": told["versions"].get(path),
            "recovery_scope": scope,
            "replay_volume": told["volume"][path],
            "recovery_started_at": decided,
            "recovery_completed_at": completed,
            "rto_observed": (completed - decided).total_seconds(),
            "reconciliation_status": DIFFERS if told["differences"] or told["overtaken"] else RECONCILED,
        }
        for path, scope in told["scope"].items()
        if scope
    ]
