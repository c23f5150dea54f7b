"""How the lake stands, for somebody who was not there: four questions, and then every table.

Where am I? What have I committed? Where can I safely return? Can I prove that the result is correct? The answers are
folded from the tables at the moment of asking; the ledger adds when something failed and what was verified. What does
not belong here: what a partition is (``state.py``), how far tables have come (``watermarks.py``), and how all of it is
shown (``status_view.py``).
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from medallion.attempts import AttemptRecord, records
from medallion.concerns import Concern, Look, concerns_of, interrupted, past, worst_first
from medallion.differences import RECONCILED
from medallion.lake import Lake, Snapshot
from medallion.log import oldest_version
from medallion.partitions import Whole
from medallion.project import Project
from medallion.savepoints import safest
from medallion.sources import LandingZone
from medallion.state import Standing, Survey
from medallion.tables import Table
from medallion.watermarks import Lag, Watermark, watermarks

__all__ = [
    "Checkpoint",
    "Concern",
    "Proof",
    "Running",
    "SafePoint",
    "Status",
    "TableStatus",
    "status",
]


@dataclass(frozen=True)
class Checkpoint:
    """The newest commit of a table.

    Attributes:
        checkpoint_id: names the commit, ``layer/name@version``.
        partition: that was committed; the last one in order if there were several.
        batch_id: of that partition.
        at: when, as the log says.
    """

    checkpoint_id: str
    partition: str
    batch_id: str
    at: dt.datetime


@dataclass(frozen=True)
class Running:
    """An attempt that is under way, or that died and has not been followed by another one.

    Attributes:
        partitions: that it is at, in order.
        seconds: since it started.
    """

    table: str
    attempt: str
    run_id: str
    partitions: tuple[str, ...]
    started_at: dt.datetime
    seconds: float
    host: str
    pid: int


@dataclass(frozen=True)
class Proof:
    """What the newest verification has found.

    Attributes:
        table: that was verified; the least well one if there were several.
        status: ``reconciled``, or what it was not.
        at: when.
        tables: how many were verified at once.
        commits_since: how many partitions were committed since, and so have not been verified.
    """

    table: str
    status: str
    at: dt.datetime
    tables: int
    commits_since: int


@dataclass(frozen=True)
class SafePoint:
    """The newest savepoint.

    Attributes:
        kind: ``manual`` or ``automatic``.
        at: when it was made.
        moved: the tables that have been committed to since.
        stale: partitions that were out of date in it.
    """

    name: str
    kind: str
    at: dt.datetime
    reason: str
    moved: tuple[str, ...]
    stale: int


@dataclass(frozen=True)
class TableStatus:
    """How one table stands.

    Attributes:
        version: of the Delta table; None if there is none yet.
        partitions: how many are declared.
        standings: how many of them stand how.
        rows: in the live version.
        last: the newest commit; None if there is none.
        watermark: how far it has come.
        delivered: how far its source has delivered; of bronze only.
        lags: behind each thing that it is built from.
        quarantined: rows that are refused and outstanding.
        quarantined_since: when the oldest of them were refused.
        owners: who answers for the table and what it refuses.
        running: attempts under way.
        oldest_version: the oldest version that can still be read whole; None if there is none.
    """

    table: str
    version: int | None
    partitions: int
    standings: Mapping[str, int]
    rows: int
    last: Checkpoint | None
    watermark: Watermark
    delivered: Watermark | None
    lags: tuple[Lag, ...]
    quarantined: int
    quarantined_since: dt.datetime | None
    owners: tuple[str, ...]
    running: tuple[Running, ...]
    oldest_version: int | None


@dataclass(frozen=True)
class Status:
    """How the lake stands at one moment.

    Attributes:
        at: the moment.
        lake: where it lies.
        tables: in the order in which they are built.
        concerns: worst first.
        savepoint: the newest one; None if there is none.
        proof: None if nothing was ever verified.
        recovery: the newest recovery, as the ledger has it; None if there was none.
        notes: what could not be told, and why.
    """

    at: dt.datetime
    lake: str
    tables: tuple[TableStatus, ...]
    concerns: tuple[Concern, ...]
    proof: Proof | None
    savepoint: SafePoint | None
    recovery: Mapping[str, Any] | None
    notes: tuple[str, ...] = ()

    @property
    def needs_person(self) -> bool:
        """Whether anything stays as it is until somebody does something."""
        return any(each.needs_person for each in self.concerns)

    @property
    def last(self) -> Checkpoint | None:
        """The newest commit of all."""
        return max((each.last for each in self.tables if each.last), key=lambda each: each.at, default=None)

    @property
    def records_to_replay(self) -> int:
        """Rows that wait in inputs for partitions which are not in place."""
        return sum(lag.rows or 0 for each in self.tables for lag in each.lags)


def status(
    project: Project,
    lake: Lake,
    landing: LandingZone | None = None,
    *,
    now: dt.datetime,
    patience: dt.timedelta = dt.timedelta(hours=24),
) -> Status:
    """How the lake stands.

    Args:
        project: the declared tables.
        lake: where they lie.
        landing: where sources deliver; without it nothing is told of what is delivered.
        now: the moment, for ages.
        patience: for how long something may wait that could be built, before it needs somebody.

    Raises:
        TableUnreadable: if a table, or its evidence, cannot be read. A ledger that cannot is a note.
    """
    survey = Survey(project, lake, landing)
    told = past(lake)
    look = Look(survey, watermarks(project, lake, landing, survey.snapshots), told, now, patience)
    tables: list[TableStatus] = []
    found: list[Concern] = []
    for table in project.tables:
        attempts = records(survey.snapshots[table.path].folder)
        tables.append(_table(table, look, [_running(each, now) for each in attempts if each.is_alive]))
        found += concerns_of(table, look)
        found += interrupted(table, [each for each in attempts if not each.is_alive])
    return Status(
        now,
        str(lake.root),
        tuple(tables),
        worst_first(found),
        _proof(told.rows),
        _savepoint(lake, survey.snapshots),
        _recovery(told.rows),
        (told.note,) if told.note else (),
    )


def _table(table: Table, look: Look, running: Sequence[Running]) -> TableStatus:
    snapshot, states, marks = look.survey.snapshots[table.path], look.survey.states[table.path], look.marks
    counts = Counter(state.standing for state in states.values())
    delivered = [each for each in marks.marks if each.table == table.path and each.stage == "delivered"]
    quarantined, since = _quarantined(table, snapshot.lake)
    return TableStatus(
        table.path,
        snapshot.version,
        len(states),
        {str(standing): counts[standing] for standing in Standing},
        int(snapshot.actions.get_column("num_records").sum()) if snapshot.actions.height else 0,
        _last(snapshot),
        marks.of(table.path),
        delivered[0] if delivered else None,
        marks.behind(table.path),
        quarantined,
        since,
        table.owners,
        tuple(running),
        oldest_version(snapshot.folder, snapshot.version),
    )


def _last(snapshot: Snapshot) -> Checkpoint | None:
    if snapshot.version is None or snapshot.actions.is_empty():
        return None
    newest = snapshot.actions.get_column("modification_time").max()
    column = snapshot.partition.column
    files = snapshot.actions.filter(pl.col("modification_time") == newest)
    key = str(files.get_column(f"partition.{column}").max()) if column else Whole.KEY
    file = snapshot.files[key][0]
    return Checkpoint(f"{snapshot.path}@{snapshot.version}", key, file.batch_id, _milliseconds(file.modified))


def _milliseconds(since_1970: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(since_1970 / 1000, dt.UTC)


def _quarantined(table: Table, lake: Lake) -> tuple[int, dt.datetime | None]:
    """Refused rows, and since when the oldest of them are."""
    if table.quarantine_path is None:
        return 0, None
    actions = lake.pin(table.quarantine_path, table.partition).actions
    held = actions.filter(pl.col("num_records") > 0) if actions.height else actions
    if held.is_empty():
        return 0, None
    oldest = held.get_column("modification_time").min()
    return int(held.get_column("num_records").sum()), _milliseconds(int(oldest))  # type: ignore[arg-type]


def _running(record: AttemptRecord, now: dt.datetime) -> Running:
    started = dt.datetime.fromtimestamp(record.started_at, dt.UTC)
    seconds = max(0.0, (now - started).total_seconds())
    return Running(
        record.table, record.attempt, record.run_id, record.partitions, started, seconds, record.host, record.pid
    )


def _proof(rows: pl.DataFrame) -> Proof | None:
    verified = rows.filter(status="verified")
    if verified.is_empty():
        return None
    at = verified.get_column("completed_at").max()
    newest = verified.filter(pl.col("completed_at") == at)
    bad = newest.filter(pl.col("reconciliation_status") != RECONCILED)
    worst = (bad if bad.height else newest).row(0, named=True)
    since = rows.filter(pl.col("status").is_in(["committed", "approved", "restored"]) & (pl.col("completed_at") > at))
    return Proof(
        worst["pipeline_name"], worst["reconciliation_status"] or "unknown", worst["completed_at"], newest.height,
        since.height,
    )  # fmt: skip


def _recovery(rows: pl.DataFrame) -> Mapping[str, Any] | None:
    found = rows.filter(status="recovered")
    if found.is_empty():
        return None
    told = (
        "pipeline_name", "partition", "reason", "recovery_scope", "replay_volume", "recovery_started_at",
        "recovery_completed_at", "rto_observed",
    )  # fmt: skip
    return {name: value for name, value in found.tail(1).row(0, named=True).items() if name in told}


def _savepoint(lake: Lake, snapshots: Mapping[str, Snapshot]) -> SafePoint | None:
    found = safest(lake)
    if found is None:
        return None
    moved = tuple(
        path
        for path, snapshot in snapshots.items()
        if path in found.tables and found.tables[path].version != snapshot.version
    )
    return SafePoint(found.name, found.kind, found.moment, found.reason, moved, sum(map(len, found.stale.values())))
