"""How far the data has come: delivered, ingested, accepted, published. Kept apart for each table, never ahead of it.

A watermark is read from the names of live files, so it moves with a commit and with nothing else. The contiguous one is
the partition up to which nothing is missing; the newest one may have gaps below it. What does not belong here: whether
a partition is out of date (``state.py``).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import takewhile

from medallion.lake import Lake, Snapshot
from medallion.partitions import Whole
from medallion.project import Project
from medallion.sources import LandingZone
from medallion.tables import Table
from medallion.telemetry import window_of

__all__ = ["STAGES", "Lag", "Watermark", "Watermarks", "watermarks"]

STAGES = {"source": "delivered", "bronze": "ingested", "silver": "accepted", "gold": "published"}
"""What a watermark of each layer stands for; ``source`` is the landing zone."""


@dataclass(frozen=True)
class Watermark:
    """How far one table, or what is delivered for it, has come.

    Attributes:
        table: ``layer/name``; for what is delivered, that of the bronze table.
        stage: ``delivered``, ``ingested``, ``accepted`` or ``published``.
        contiguous: the last partition before which none is missing; None if the first one is.
        newest: the last partition that is there.
        partitions: how many are there.
        until: the moment up to which time is covered without a gap; None if nothing is, or the table is not cut by
            time.
    """

    table: str
    stage: str
    contiguous: str | None
    newest: str | None
    partitions: int
    until: dt.datetime | None


@dataclass(frozen=True)
class Lag:
    """How far a table is behind what it is built from.

    Attributes:
        table: ``layer/name``.
        behind: what it is held against: ``source`` or ``layer/name``.
        partitions: those that could be committed from what is there, and are not.
        rows: that wait in those of the input; None if they have not been counted yet, in the landing zone.
        seconds: of the time that the one covers without a gap and the other does not, as far as partitions wait for it;
            None if not cut by time.
    """

    table: str
    behind: str
    partitions: tuple[str, ...]
    rows: int | None
    seconds: float | None


@dataclass(frozen=True)
class Watermarks:
    """All watermarks, and the lag between each table and what it is built from."""

    marks: tuple[Watermark, ...]
    lags: tuple[Lag, ...]

    def of(self, table: str, stage: str | None = None) -> Watermark:
        """A table's own watermark, or that of what is delivered for it.

        Raises:
            KeyError: if there is none.
        """
        for each in self.marks:
            if each.table == table and (stage == each.stage if stage else each.stage != "delivered"):
                return each
        raise KeyError(f"{table} has no watermark {stage or ''}")

    def behind(self, table: str) -> tuple[Lag, ...]:
        """How far a table is behind each of the things that it is built from."""
        return tuple(each for each in self.lags if each.table == table)


def watermarks(
    project: Project,
    lake: Lake,
    landing: LandingZone | None = None,
    snapshots: Mapping[str, Snapshot] | None = None,
) -> Watermarks:
    """How far every declared table has come.

    Args:
        project: the declared tables.
        lake: where they lie.
        landing: where sources deliver; without it nothing is known of what is delivered.
        snapshots: the tables by path, where they have been pinned already.

    Raises:
        TableUnreadable: if a table cannot be read.
    """
    known = dict(snapshots or {})
    for table in reversed(project.tables):  # before what it is built from: it is never seen ahead of it
        if table.path not in known:
            known[table.path] = lake.pin(table.path, table.partition)
    marks: list[Watermark] = []
    lags: list[Lag] = []
    covered: dict[str, Watermark] = {}
    for table in project.tables:
        snapshot = known[table.path]
        committed = set(snapshot.files)
        mine = covered[table.path] = _mark(table, STAGES[table.layer], committed)
        if table.layer == "bronze" and landing is not None:
            delivered = _delivered(table, landing)
            source = _mark(table, STAGES["source"], delivered)
            marks.append(source)
            late = delivered - committed
            waiting = tuple(key for key in table.partition.keys() if key in late)  # noqa: SIM118 - not a dictionary
            lags.append(
                Lag(table.path, "source", waiting, 0 if not waiting else None, _seconds(source, mine, table, waiting))
            )
        marks.append(mine)
        lags += _lags(table, snapshot, known, covered)
    return Watermarks(tuple(marks), tuple(lags))


def _delivered(table: Table, landing: LandingZone) -> set[str]:
    """What has a file, and what will have none and has been passed by one that has."""
    keys, present = table.partition.keys(), landing.present(table)
    passed = max((keys.index(key) for key in present), default=-1)
    return {*present, *(key for key in table.closed if keys.index(key) < passed)}


def _mark(table: Table, stage: str, there: Set[str]) -> Watermark:
    keys = table.partition.keys()
    contiguous = list(takewhile(lambda key: key in there, keys))
    last = contiguous[-1] if contiguous else None
    newest = next((key for key in reversed(keys) if key in there), None)
    until = None if last is None else window_of(table.partition, last)[1]
    return Watermark(table.path, stage, last, newest, len(there), until)


def _lags(
    table: Table, snapshot: Snapshot, known: Mapping[str, Snapshot], covered: Mapping[str, Watermark]
) -> list[Lag]:
    inputs = {each.table.path: each for each in table.inputs.values()}
    references = {each.table.path for each in table.references.values()}
    keys = [key for key in table.partition.keys() if key not in snapshot.files]  # noqa: SIM118 - not a dictionary
    needed = {path: {key: each.keys_for(table.partition, key) for key in keys} for path, each in inputs.items()}
    ready = [
        key
        for key in keys
        if all(each in known[path].files for path, mine in needed.items() for each in mine[key])
        and all(Whole.KEY in known[path].files for path in references)
    ]
    found: list[Lag] = []
    for path, mine in needed.items():
        read = dict.fromkeys(each for key in ready for each in mine[key])
        rows = sum(known[path].rows(each) for each in read)
        comparable = not isinstance(inputs[path].table.partition, Whole)
        seconds = _seconds(covered[path], covered[table.path], table, ready) if comparable else None
        found.append(Lag(table.path, path, tuple(ready), rows, seconds))
    return found


def _seconds(ahead: Watermark, mine: Watermark, table: Table, waiting: Sequence[str]) -> float | None:
    """Seconds of time that one covers without a gap and the other does not, as far as partitions wait for it."""
    if ahead.until is None:
        return None
    reached = mine.until or window_of(table.partition, table.partition.keys()[0])[0]
    if reached is None:
        return None
    return max(0.0, (ahead.until - reached).total_seconds()) if waiting else 0.0
