"""Recomputes what the lake says of itself and holds it against what is there; changes no table.

The files are read back and hashed, their rows counted, and both are held against the file names, the log, the evidence,
the quarantine and the layer below. What is merely out of date is told apart from what is damaged.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import duckdb

from medallion import ledger
from medallion.agreement import disagreements
from medallion.attempts import records
from medallion.differences import DIFFERS, RECONCILED, Difference, Kind, Outdated, Verification, Verified
from medallion.errors import TableUnreadable
from medallion.inputs import Connect
from medallion.lake import Lake, Snapshot
from medallion.layers import Layers
from medallion.project import Project
from medallion.readback import PartitionRead, Readback, live_files
from medallion.rebuilding import Contradiction, contradictions
from medallion.tables import Table

__all__ = ["verify"]

_AGAIN = 3
"""Times that a partition is looked at again because it was committed while it was looked at."""
_LONGEST = 2000
_FOLLOW = "The tables are right: medallion ledger rebuild follows them."
_AT_ONCE = 256
"""Partitions whose evidence is held in memory at a time."""


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def verify(
    project: Project,
    lake: Lake,
    tables: Collection[str] | None = None,
    keys: Collection[str] | None = None,
    *,
    run_id: str = "manual",
    connect: Connect = duckdb.connect,
    clock: Callable[[], dt.datetime] = _now,
) -> Verification:
    """Recompute everything that the lake says of some tables, and name each difference. The ledger keeps the result.

    Live work may go on meanwhile: a partition that is committed while it is looked at is looked at again.

    Args:
        project: the declared tables.
        lake: where they lie.
        tables: which of them; all if not given.
        keys: only these partitions; a table that has none of them is passed over.
        run_id: names the run in the ledger.
        connect: opens a DuckDB connection, for tables written in SQL.
        clock: says when it was begun and ended.

    Raises:
        UnknownTable: if one of ``tables`` is not declared.
    """
    started = clock()
    chosen = project.tables if tables is None else tuple(project.table(path) for path in tables)
    # Downstream is pinned first: what is newer upstream is news for it then, not the other way round.
    pins = _Pins(lake)
    found = [_table(table, lake, pins, keys, connect) for table in reversed(chosen)]
    found.reverse()
    differences = [difference for each in found for difference in each.differences]
    differences += _ledger(project, lake, {table.path for table in chosen}, keys, differences)
    result = Verification(
        tuple(each.verified for each in found),
        tuple(differences),
        tuple(outdated for each in found for outdated in each.outdated),
        started,
        clock(),
    )
    ledger.record(lake, [_row(each, result, run_id) for each in result.tables])
    return result


def _ledger(
    project: Project, lake: Lake, tables: Collection[str], keys: Collection[str] | None, named: Sequence[Difference]
) -> list[Difference]:
    """What the ledger says against the tables, where these agree among themselves."""
    at_odds = {(each.table, each.partition) for each in named}

    def asked(each: Contradiction) -> bool:
        mine = each.table in tables and (keys is None or each.partition is None or each.partition in keys)
        return (mine or each.table == ledger.PATH) and (each.table, each.partition) not in at_odds

    try:
        about = Project(tuple(each for each in project.tables if each.path in tables))
        found = [each for each in contradictions(lake, about) if asked(each)]
        if found:  # an attempt that has just committed tells the ledger next
            busy = {each.attempt for path in tables for each in records(lake.root / path) if each.is_alive}
            again = set(contradictions(lake, about))
            found = [each for each in found if each in again and each.attempt not in busy]
    except TableUnreadable as error:
        if any(each.kind in {Kind.TABLE_UNREADABLE, Kind.EVIDENCE_ALTERED, Kind.FILE_FOREIGN} for each in named):
            return []  # it cannot be held against tables that cannot be read themselves
        return [Difference(Kind.LEDGER, ledger.PATH, "", None, "a table that can be opened", str(error), _FOLLOW)]
    told = "what the tables tell"
    return [
        Difference(Kind.LEDGER, each.table, each.partition or "", None, told, each.message, _FOLLOW) for each in found
    ]


def _row(table: Verified, result: Verification, run_id: str) -> dict[str, Any]:
    """What the ledger keeps of a table's verification."""
    differences = result.of(table.table)
    return {
        "pipeline_name": table.table,
        "partition": table.first if table.first == table.last else f"{table.first}..{table.last}",
        "attempt": result.id,
        "status": "verified",
        "started_at": result.started_at,
        "completed_at": result.completed_at,
        "source_rows": table.read,
        "target_rows": table.rows,
        "quarantine_count": table.quarantined,
        "target_version": table.version,
        "checkpoint_id": None if table.version is None else f"{table.table}@{table.version}",
        "pipeline_run_id": run_id,
        "reconciliation_status": DIFFERS if differences else RECONCILED,
        "error_code": differences[0].kind if differences else None,
        "error": "\n".join(map(str, differences))[:_LONGEST] or None,
    }


class _Pins:
    """The newest versions of the tables, each as it was when it was first asked for."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self._pinned: dict[str, Snapshot] = {}

    def __call__(self, table: Table, path: str | None = None) -> Snapshot:
        """The snapshot of a table, or of what lies at another path and is cut alike."""
        where = path or table.path
        if where not in self._pinned:
            self._pinned[where] = self.lake.pin(where, table.partition)
        return self._pinned[where]


@dataclass
class _Partition:
    """What was found of one partition."""

    counts: Verified
    differences: list[Difference] = field(default_factory=list)
    outdated: list[Outdated] = field(default_factory=list)


@dataclass
class _Table:
    """What was found of one table, by partition; ``general`` belongs to none."""

    path: str
    partitions: dict[str, _Partition] = field(default_factory=dict)
    general: list[Difference] = field(default_factory=list)
    version: int | None = None
    under_way: tuple[str, ...] = ()

    @property
    def verified(self) -> Verified:
        """The counts, added up."""
        each = [partition.counts for partition in self.partitions.values()]
        names = ("partitions", "files", "rows", "quarantined", "read", "collapsed", "bytes")
        totals = {name: sum(getattr(counts, name) for counts in each) for name in names}
        first, last = (min(self.partitions), max(self.partitions)) if self.partitions else ("", "")
        return Verified(self.path, **totals, version=self.version, first=first, last=last, under_way=self.under_way)

    @property
    def differences(self) -> Iterator[Difference]:
        """All of them, in the order of the partitions."""
        yield from self.general
        for _, partition in sorted(self.partitions.items()):
            yield from partition.differences

    @property
    def outdated(self) -> Iterator[Outdated]:
        """All of them, in the order of the partitions."""
        for _, partition in sorted(self.partitions.items()):
            yield from partition.outdated


def _table(table: Table, lake: Lake, pins: _Pins, keys: Collection[str] | None, connect: Connect) -> _Table:
    """Check a table; what moved meanwhile is checked again."""
    try:
        found = _Table(table.path, _Check(table, pins, connect).partitions(keys))
        for _ in range(_AGAIN):
            suspects = [key for key, each in found.partitions.items() if each.differences]
            fresh = _Pins(lake)
            moved = [key for key in suspects if _stands(table, pins, key) != _stands(table, fresh, key)]
            if not moved:
                break
            pins = fresh
            found.partitions.update(_Check(table, pins, connect).partitions(moved))
    except TableUnreadable as error:
        then = "medallion check-lake names the damage and how to repair it."
        return _Table(table.path, general=[
            Difference(Kind.TABLE_UNREADABLE, table.path, "", None, "a table that can be opened", str(error), then)
        ])  # fmt: skip
    return replace(_excuse(table, lake, found), version=pins(table).version)


def _stands(table: Table, pins: _Pins, key: str) -> tuple[object, ...]:
    paths = [path for path in (table.quarantine_path, table.path) if path is not None]
    return tuple(live_files(pins(table, path), key) for path in paths)


def _excuse(table: Table, lake: Lake, found: _Table) -> _Table:
    """A live attempt has perhaps committed a quarantine and not yet its table; that is no difference."""
    busy = {key for each in records(lake.root / table.path) if each.is_alive for key in each.partitions}
    excused = []
    for key in sorted(busy & found.partitions.keys()):
        mine = found.partitions[key]
        left = [each for each in mine.differences if each.kind is not Kind.QUARANTINE]
        if len(left) < len(mine.differences):
            mine.differences = left
            excused.append(key)
    return replace(found, under_way=tuple(excused))


class _Check:
    """One look at some partitions of a table, at pinned versions."""

    def __init__(self, table: Table, pins: _Pins, connect: Connect) -> None:
        self.table = table
        # In this order, as whoever reconciles the two: a publication commits the quarantine first.
        quarantine = None if table.quarantine_path is None else pins(table, table.quarantine_path)
        self.readback = Readback(table, pins(table), quarantine)
        self.layers = Layers(table, pins(table), pins, connect)

    def partitions(self, keys: Collection[str] | None) -> dict[str, _Partition]:
        """What is found of those partitions that are live in the table or in its quarantine."""
        found: dict[str, _Partition] = {}
        wanted = None if keys is None else set(keys)
        live = [key for key in self.readback.keys if wanted is None or key in wanted]
        for start in range(0, len(live), _AT_ONCE):
            found |= self._some(live[start : start + _AT_ONCE])
        return found

    def _some(self, keys: Sequence[str]) -> dict[str, _Partition]:
        read = self.readback.partitions(keys)
        evidence = {key: each.evidence for key, each in read.items() if each.evidence is not None}
        found = {
            key: _Partition(_counts(self.table, each), disagreements(self.table, each)) for key, each in read.items()
        }
        outdated = self.layers.outdated(evidence)
        for key, reason in outdated.items():
            found[key].outdated.append(Outdated(self.table.path, key, reason))
        sound = {key: each for key, each in evidence.items() if not found[key].differences and key not in outdated}
        for difference in self.layers.differences(sound):
            found[difference.partition].differences.append(difference)
        return found


def _counts(table: Table, read: PartitionRead) -> Verified:
    accepted, refused = (
        sum(each.found.rows or 0 for each in files if each.found) for files in (read.accepted, read.refused)
    )
    verdict = None if read.evidence is None else read.evidence.verdict
    return Verified(
        table.path,
        partitions=int(bool(read.accepted)),
        files=len(read.accepted) + len(read.refused) + len(read.sources),
        rows=accepted,
        quarantined=refused,
        read=0 if verdict is None else verdict.read,
        collapsed=0 if verdict is None else verdict.collapsed,
        bytes=read.bytes,
    )
