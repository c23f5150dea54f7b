"""What is not as it should be: told with its reason, its age and what to do next, until it is resolved.

What belongs here: which partitions need somebody, and which only wait. What does not: how they stand (``state.py``).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from medallion import ledger
from medallion.attempts import AttemptRecord
from medallion.errors import TableUnreadable
from medallion.evidence import Evidence, held_candidates
from medallion.lake import Lake
from medallion.state import Cause, PartitionState, Reason, Standing, Survey
from medallion.tables import Table
from medallion.telemetry import window_of
from medallion.watermarks import Watermarks

__all__ = ["Concern", "Look", "Past", "concerns_of", "interrupted", "past", "worst_first"]

_BAD = (Standing.BLOCKED, Standing.FAILED, Standing.IRRECOVERABLE)
_ORDER = ("irrecoverable", "blocked", "failed", "interrupted", "missing", "stale")


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
class Past:
    """What the ledger adds: since when things are bad, and what was verified and recovered."""

    since: Mapping[tuple[str, str], dt.datetime] = field(default_factory=dict)
    rows: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=ledger.SCHEMA))
    note: str | None = None


def concerns_of(table: Table, look: Look) -> list[Concern]:
    """What is wrong with the partitions of a table, those with the same trouble together."""
    states = look.survey.states[table.path]
    newest = look.marks.of(table.path).newest
    reached = list(states).index(newest) if newest is not None else -1
    ready = {key for lag in look.marks.behind(table.path) for key in lag.partitions}
    held = held_candidates(look.survey.snapshots[table.path].folder)
    grouped: dict[tuple[str, bool, str], list[PartitionState]] = {}
    for number, (key, state) in enumerate(states.items()):
        if state.standing == Standing.CURRENT:
            continue
        if state.standing == Standing.MISSING:
            if number > reached and key not in ready:
                continue  # nothing has come for it yet, and nothing after it has
            asks = look.is_left(table, state, gap=number < reached) if key in ready else table.layer == "bronze"
            detail = "ready" if key in ready else "lacks an input"
        else:
            asks, detail = True, state.reason if state.standing in _BAD else _causes(state)
        shown = _refused(state, held[key]) if key in held and state.standing != Standing.BLOCKED else state
        alike = (state.standing, asks, shown.reason if shown is not state else detail)
        grouped.setdefault(alike, []).append(shown)
    return [look.concern(table, some, asks=asks) for (_, asks, _), some in grouped.items()]


def _refused(state: PartitionState, held: Evidence) -> PartitionState:
    """A partition whose candidate was blocked, and might not be any more: something that it is made of has changed."""
    rules = ", ".join(finding.rule for finding in held.verdict.blocking)
    return replace(state, reasons=(*state.reasons, Reason(Cause.BLOCKED, f"by {rules} when it was tried last")))


def _plain(state: PartitionState) -> str:
    """Why a partition does not stand well, without saying again which it is and how it stands."""
    if state.reason == state.standing:
        return ""
    return state.reason.removeprefix(f"{state.standing}: ").removeprefix(f"{state.table} {state.key} ")


def _causes(state: PartitionState) -> str:
    return "; ".join(str(reason.cause) for reason in state.reasons)


@dataclass(frozen=True)
class Look:
    """What is known when concerns are told: the tables, and what the ledger adds."""

    survey: Survey
    marks: Watermarks
    past: Past
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
        ready = any(first.key in lag.partitions for lag in self.marks.behind(table.path))
        then = _then(table, first, keys, ready=ready)
        return Concern(table.path, str(first.standing), keys, _plain(first), since, asks, then)

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
        return dt.datetime.fromtimestamp(max(added) / 1000, dt.UTC) if added else None

    def delivered(self, table: Table, key: str) -> dt.datetime | None:
        """When the file of a partition was delivered; None if it was not."""
        if self.survey.landing is None:
            return None
        try:
            return dt.datetime.fromtimestamp(self.survey.landing.path(table, key).stat().st_mtime, dt.UTC)
        except OSError:
            return None


def _then(table: Table, state: PartitionState, keys: Sequence[str], *, ready: bool) -> str:
    which = _range(keys)
    match state.standing:
        case Standing.BLOCKED:
            return f"medallion inspect {table.path} {keys[0]}"
        case Standing.FAILED:
            return f"mend what it says; medallion replay {table.path} {which}"
        case Standing.MISSING if table.layer != "bronze" and not ready:
            return "can be built when that is there"
        case Standing.MISSING if state.undelivered:
            return f"have the file delivered, or declare {which} closed; medallion replay {table.path} {which}"
        case _:
            return f"medallion replay {table.path} {which}"


def _range(keys: Sequence[str]) -> str:
    return keys[0] if len(keys) == 1 else f"{keys[0]}..{keys[-1]}"


def interrupted(table: Table, dead: Sequence[AttemptRecord]) -> list[Concern]:
    """The attempts that died and that no other has followed."""
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


def worst_first(found: Iterable[Concern]) -> tuple[Concern, ...]:
    """What needs somebody, then what waits; each by how bad it is, then in the order in which tables are built."""
    return tuple(sorted(found, key=lambda each: (not each.needs_person, _ORDER.index(each.kind))))


def past(lake: Lake) -> Past:
    """What the ledger tells; nothing of it is needed to say how the tables stand."""
    try:
        rows = ledger.read(lake)
    except TableUnreadable as error:
        return Past(note=f"The ledger cannot be read, so ages and verifications are not known: {error}")
    told = rows.filter(pl.col("status").is_in(list(ledger.OUTCOMES)))
    each = ["pipeline_name", "partition"]
    bad = ~pl.col("status").is_in(list(ledger.SETTLED_WELL))
    # The rows after the last good one: their first says since when.
    streak = told.with_columns(_left=(~bad).cast(pl.Int64).reverse().cum_sum().reverse().over(each)).filter(
        bad & (pl.col("_left") == 0)
    )
    begun = streak.group_by(each).agg(pl.col("completed_at").min())
    return Past({(table, key): at for table, key, at in begun.iter_rows()}, rows)
