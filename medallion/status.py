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
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from medallion import ledger
from medallion.attempts import AttemptRecord, records
from medallion.differences import RECONCILED
from medallion.errors import TableUnreadable
from medallion.lake import Lake, Snapshot
from medallion.log import oldest_version
from medallion.partitions import Whole
from medallion.project import Project
from medallion.savepoints import newest
from medallion.sources import LandingZone
from medallion.state import PartitionState, Standing, Survey
from medallion.tables import Table
from medallion.telemetry import window_of
from medallion.watermarks import Lag, Watermark, Watermarks, watermarks

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

_BAD = (Standing.BLOCKED, Standing.FAILED, Standing.IRRECOVERABLE)


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
class Concern:
    """Something that is not as it should be, and stays here until it is resolved.

    Attributes:
        kind: ``stale``, ``missing``, ``blocked``, ``failed``, ``irrecoverable``, ``interrupted`` or ``unreadable``.
        partitions: that it is about, in order.
        reason: why, for the first of them.
        since: when it began, as far as is known.
        needs_person: whether it stays as it is until somebody does something.
        then: what to do next.
    """

    table: str
    kind: str
    partitions: tuple[str, ...]
    reason: str
    since: dt.datetime | None
    needs_person: bool
    then: str


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


@dataclass(frozen=True)
class _Past:
    """What the ledger adds: since when things are bad, and what was verified and recovered."""

    since: Mapping[tuple[str, str], dt.datetime] = field(default_factory=dict)
    rows: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=ledger.SCHEMA))
    note: str | None = None


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
    past = _past(lake)
    look = _Look(survey, watermarks(project, lake, landing, survey.snapshots), past, now, patience)
    tables: list[TableStatus] = []
    concerns: list[Concern] = []
    for table in project.tables:
        attempts = records(survey.snapshots[table.path].folder)
        tables.append(_table(table, look, [_running(each, now) for each in attempts if each.is_alive]))
        concerns += _concerns(table, look)
        concerns += _interrupted(table, [each for each in attempts if not each.is_alive])
    return Status(
        now,
        str(lake.root),
        tuple(tables),
        tuple(sorted(concerns, key=lambda each: (not each.needs_person, _ORDER.index(each.kind)))),
        _proof(past.rows),
        _savepoint(lake, survey.snapshots),
        _recovery(past.rows),
        (past.note,) if past.note else (),
    )


_ORDER = ("irrecoverable", "blocked", "failed", "interrupted", "missing", "stale")


def _table(table: Table, look: _Look, running: Sequence[Running]) -> TableStatus:
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


def _concerns(table: Table, look: _Look) -> list[Concern]:
    """What is wrong with the partitions of a table, those with the same trouble together."""
    states = look.survey.states[table.path]
    newest = look.marks.of(table.path).newest
    reached = list(states).index(newest) if newest is not None else -1
    ready = {key for lag in look.marks.behind(table.path) for key in lag.partitions}
    grouped: dict[tuple[str, bool, str], list[PartitionState]] = {}
    for number, (key, state) in enumerate(states.items()):
        if state.standing == Standing.CURRENT:
            continue
        if state.standing == Standing.MISSING:
            if number > reached and key not in ready:
                continue  # nothing has come for it yet, and nothing after it has
            asks = look.is_left(table, state, gap=number < reached) if key in ready else table.layer == "bronze"
            detail = _causes(state)
        else:
            asks, detail = True, state.reason if state.standing in _BAD else _causes(state)
        grouped.setdefault((state.standing, asks, detail), []).append(state)
    return [look.concern(table, some, asks=asks) for (_, asks, _), some in grouped.items()]


def _causes(state: PartitionState) -> str:
    return "; ".join(str(reason.cause) for reason in state.reasons)


@dataclass(frozen=True)
class _Look:
    """What is known when concerns are told: the tables, and what the ledger adds."""

    survey: Survey
    marks: Watermarks
    past: _Past
    now: dt.datetime
    patience: dt.timedelta

    def is_left(self, table: Table, state: PartitionState, *, gap: bool) -> bool:
        """Whether a partition that could be built has been left: later ones are there, or it has waited too long."""
        since = self.since(table, state)
        return gap or (since is not None and self.now - since > self.patience)

    def concern(self, table: Table, some: Sequence[PartitionState], *, asks: bool) -> Concern:
        """What is told of partitions with the same trouble."""
        keys = tuple(state.key for state in some)
        begun = [since for key in keys if (since := self.past.since.get((table.path, key))) is not None]
        since = min(begun, default=None) or self.since(table, some[0])
        first = some[0]
        return Concern(table.path, str(first.standing), keys, first.reason, since, asks, _then(table, first, keys))

    def since(self, table: Table, state: PartitionState) -> dt.datetime | None:
        """When what a partition is built from was last committed or delivered.

        Of a file that is missed, when its window had passed.
        """
        if table.layer == "bronze":
            return self.delivered(table, state.key) or window_of(table.partition, state.key)[1]
        added = [
            file.modified
            for each in table.inputs.values()
            for key in each.keys_for(table.partition, state.key)
            for file in self.survey.snapshots[each.table.path].files.get(key, ())
        ]
        return _milliseconds(max(added)) if added else None

    def delivered(self, table: Table, key: str) -> dt.datetime | None:
        """When the file of a partition was delivered; None if it was not."""
        if self.survey.landing is None:
            return None
        try:
            return dt.datetime.fromtimestamp(self.survey.landing.path(table, key).stat().st_mtime, dt.UTC)
        except OSError:
            return None


def _then(table: Table, state: PartitionState, keys: Sequence[str]) -> str:
    which = _range(keys)
    match state.standing:
        case Standing.BLOCKED:
            return f"medallion inspect {table.path} {keys[0]}"
        case Standing.FAILED:
            return f"mend what it says; medallion replay {table.path} {which}"
        case Standing.MISSING if table.layer == "bronze" and state.undelivered:
            return f"have the file delivered, or declare {which} closed; medallion replay {table.path} {which}"
        case _:
            return f"medallion replay {table.path} {which}"


def _range(keys: Sequence[str]) -> str:
    return keys[0] if len(keys) == 1 else f"{keys[0]}..{keys[-1]}"


def _interrupted(table: Table, dead: Sequence[AttemptRecord]) -> list[Concern]:
    return [
        Concern(
            table.path,
            "interrupted",
            record.partitions,
            f"attempt {record.attempt[:8]} of run {record.run_id} died (process {record.pid} on {record.host}); "
            "the next one at it finds out what had happened",
            dt.datetime.fromtimestamp(record.started_at, dt.UTC),
            True,
            f"medallion replay {table.path} {_range(record.partitions)}",
        )
        for record in dead
    ]


def _past(lake: Lake) -> _Past:
    """What the ledger tells; nothing of it is needed to say how the tables stand."""
    try:
        rows = ledger.read(lake)
    except TableUnreadable as error:
        return _Past(note=f"The ledger cannot be read, so ages and verifications are not known: {error}")
    told = rows.filter(pl.col("status").is_in(list(ledger.OUTCOMES)))
    each = ["pipeline_name", "partition"]
    bad = ~pl.col("status").is_in(list(ledger.SETTLED_WELL))
    # The rows after the last good one: their first says since when.
    streak = told.with_columns(_left=(~bad).cast(pl.Int64).reverse().cum_sum().reverse().over(each)).filter(
        bad & (pl.col("_left") == 0)
    )
    begun = streak.group_by(each).agg(pl.col("completed_at").min())
    return _Past({(table, key): at for table, key, at in begun.iter_rows()}, rows)


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
    found = newest(lake)
    if found is None:
        return None
    moved = tuple(
        path
        for path, snapshot in snapshots.items()
        if path in found.tables and found.tables[path].version != snapshot.version
    )
    return SafePoint(found.name, found.kind, found.moment, found.reason, moved, sum(map(len, found.stale.values())))
