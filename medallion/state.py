"""What every partition is, folded from the lake: current, stale, missing, blocked, failed or irrecoverable.

The live files, their evidence and what is held decide. With a landing zone at hand, what sources have delivered since
counts too. The ledger is asked for one thing only, the failures that leave no trace in a table.

A partition's state tells of its own inputs as they are committed now. Whether those are stale themselves is told by
*their* state; what follows from it is a plan's business (``planning.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

import polars as pl

from medallion import ledger
from medallion.errors import SourceError, SourceMissing, TableUnreadable
from medallion.evidence import Evidence, EvidenceReader, held_candidates
from medallion.gaps import irrecoverable
from medallion.identity import Basis, Changes, source_batch_id
from medallion.lake import Lake, Snapshot
from medallion.project import Project
from medallion.rekeying import changed_uses
from medallion.sources import Landed, LandingZone, look_for_sources
from medallion.stale import code_change
from medallion.tables import Table

__all__ = ["Cause", "PartitionState", "Reason", "Standing", "Survey", "fold"]

_log = logging.getLogger(__name__)


class Standing(StrEnum):
    """Where a partition stands."""

    CURRENT = "current"
    """What is live is what the inputs and the declared code make."""
    STALE = "stale"
    """What is live was made of something else than what is there now."""
    MISSING = "missing"
    """Nothing is live."""
    BLOCKED = "blocked"
    """The gate refused what the inputs and the code make; the version before stands, if there was one."""
    FAILED = "failed"
    """The last attempt failed, and nothing was committed since."""
    IRRECOVERABLE = "irrecoverable"
    """Nothing is live, and what it was made of is known to be gone."""


class Cause(StrEnum):
    """Why a partition is to be made again."""

    ASKED_FOR = "asked for"
    MISSING = "missing"
    FAILED = "failed"
    BLOCKED = "blocked"
    SOURCE = "source changed"
    CODE = "code or contract changed"
    INPUT = "stale input"
    REKEY = "dimension rekey"
    UPSTREAM = "upstream"
    """A partition that it is built from is made again; it is only if that one's content changes."""


@dataclass(frozen=True)
class Reason:
    """A cause, and what caused it."""

    cause: Cause
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.cause}: {self.detail}" if self.detail else str(self.cause)


@dataclass(frozen=True)
class PartitionState:
    """What one partition is.

    Attributes:
        reasons: why it is not current; none if it is.
        batch_id: of its live version; None if there is none. A blocked or failed partition may well have one.
        rows: of its live version.
        undelivered: why a bronze partition cannot be made from the landing zone as it is; None if it can, or if no
            landing zone was looked at.
    """

    table: str
    key: str
    standing: Standing
    reasons: tuple[Reason, ...] = ()
    batch_id: str | None = None
    rows: int = 0
    undelivered: str | None = None

    @property
    def reason(self) -> str:
        """The reasons as one line; empty if it is current."""
        return "; ".join(map(str, self.reasons))


def fold(
    project: Project, lake: Lake, landing: LandingZone | None = None, tables: Collection[str] | None = None
) -> Mapping[str, Mapping[str, PartitionState]]:
    """The state of every partition, by table and key, both in order.

    Args:
        project: the declared tables.
        lake: where they lie.
        landing: compared with what bronze was made of, byte by byte; if not given, bronze is only told by its code.
        tables: paths of the tables to tell of; all if not given.

    Raises:
        TableUnreadable: if a newer engine wrote a table or its evidence.
        UnknownTable: if one of ``tables`` is not declared.
    """
    return Survey(project, lake, landing, tables).states


class Survey:
    """A look at the lake at one moment: every table pinned once, and what follows from that."""

    def __init__(
        self,
        project: Project,
        lake: Lake,
        landing: LandingZone | None = None,
        tables: Collection[str] | None = None,
    ) -> None:
        """Pin the tables; see :func:`fold`."""
        wanted = set(project.by_path if tables is None else [project.table(path).path for path in tables])
        self.lake, self.landing = lake, landing
        self.tables = tuple(table for table in project.tables if table.path in wanted)
        self.snapshots: dict[str, Snapshot] = {}
        for table in reversed(self.tables):
            # Before what it is built from: a commit in between then makes it look stale, which it is, and not newer
            # than its inputs, which it cannot be.
            self._pin(table)
        self.bases = {table.path: Basis.pin(table, self._pin) for table in self.tables}

    def _pin(self, table: Table) -> Snapshot:
        if table.path not in self.snapshots:
            self.snapshots[table.path] = self.lake.pin(table.path, table.partition)
        return self.snapshots[table.path]

    @cached_property
    def states(self) -> dict[str, dict[str, PartitionState]]:
        """By table and key, both in order."""
        failures = _failures(self.lake)
        return {table.path: self._fold(table, failures.get(table.path, {})) for table in self.tables}

    def _fold(self, table: Table, failures: Mapping[str, Reason]) -> dict[str, PartitionState]:
        look = _Look(self.bases[table.path], self.snapshots[table.path])
        if table.layer == "bronze":
            keys = table.partition.keys()
            found = dict(
                _bronze(look, look_for_sources(table, keys, self.landing, self.lake.root) if self.landing else {})
            )
        else:
            found = dict(_refined(look))
        looked = table.layer != "bronze" or self.landing is not None
        gaps = irrecoverable(self.lake, table.path)
        return {
            key: _lost(state, gaps[key])
            if key in gaps
            else _failed(state, failures[key], looked=looked)
            if key in failures
            else state
            for key, state in found.items()
        }


@dataclass(frozen=True, eq=False)
class _Look:
    """What is needed to tell of one table's partitions."""

    basis: Basis
    snapshot: Snapshot

    @property
    def table(self) -> Table:
        return self.basis.table

    @cached_property
    def live(self) -> dict[str, str]:
        """The live batch of each partition that has one."""
        return {key: files[0].batch_id for key, files in self.snapshot.files.items()}

    @cached_property
    def _read(self) -> EvidenceReader:
        return EvidenceReader(self.snapshot.folder)

    def evidence(self, keys: Collection[str]) -> dict[str, Evidence | None]:
        """Of the live batches of some partitions."""
        found = self._read.several(self.live[key] for key in keys)
        return {key: found.get(self.live[key]) for key in keys}

    def settled(self, key: str, batch_id: str) -> bool:
        """Whether a batch is what is live, and its evidence is there."""
        return self.live.get(key) == batch_id and batch_id in self._read.known()

    @cached_property
    def blocked(self) -> dict[str, Evidence]:
        """The held candidates of partitions that were not committed since."""
        held = held_candidates(self.snapshot.folder)
        epochs = self.snapshot.epochs(held) if held else {}
        return {key: each for key, each in held.items() if each.epoch == epochs[key]}

    def state(self, key: str, standing: Standing, *reasons: Reason, undelivered: str | None = None) -> PartitionState:
        """A partition's state, with what is live."""
        files = self.snapshot.files.get(key, ())
        rows = sum(file.rows for file in files)
        return PartitionState(self.table.path, key, standing, reasons, self.live.get(key), rows, undelivered)


def _bronze(look: _Look, landed: Mapping[str, Landed | SourceError]) -> Iterator[tuple[str, PartitionState]]:
    """The partitions of a bronze table, held against what was delivered, if that was looked at."""
    batches = {key: source_batch_id(look.table, each) for key, each in landed.items() if isinstance(each, Landed)}
    same = {key for key, batch_id in batches.items() if look.settled(key, batch_id)}
    evidence = look.evidence([key for key in look.live if key not in same])
    for key in look.table.partition.keys():  # noqa: SIM118 - a method of partitionings, not of a dictionary
        if key in same:
            yield key, look.state(key, Standing.CURRENT)
        else:
            yield key, _ingested(look, key, landed.get(key), evidence.get(key))


def _ingested(look: _Look, key: str, landed: Landed | SourceError | None, made: Evidence | None) -> PartitionState:
    undelivered = str(landed) if isinstance(landed, SourceError) else None
    if key not in look.live:
        detail = f"{landed.source} is not delivered" if isinstance(landed, SourceMissing) else undelivered or ""
        return look.state(key, Standing.MISSING, Reason(Cause.MISSING, detail), undelivered=undelivered)
    code = "its evidence is gone" if made is None else code_change(look.table, made)
    if code is not None:
        return look.state(key, Standing.STALE, Reason(Cause.CODE, code), undelivered=undelivered)
    if landed is None or isinstance(landed, SourceMissing):
        return look.state(key, Standing.CURRENT, undelivered=undelivered)  # what was read from it is kept
    if isinstance(landed, SourceError):
        return look.state(key, Standing.STALE, Reason(Cause.SOURCE, str(landed)), undelivered=undelivered)
    detail = landed.file.name if landed.file else f"closed: {landed.closed}"
    return look.state(key, Standing.STALE, Reason(Cause.SOURCE, detail))


def _refined(look: _Look) -> Iterator[tuple[str, PartitionState]]:
    """The partitions of a table that is built from others."""
    same: set[str] = set()
    if not look.basis.whole_references():  # then a batch is named by what is pinned, and no evidence need be read
        same = {key for key in look.live if look.settled(key, look.basis.batch_id(key))}
    evidence = look.evidence([key for key in look.live if key not in same])
    changes = {
        key: look.basis.changes(key, made) if made is not None else Changes("its evidence is gone")
        for key, made in evidence.items()
    }
    asked = {key: each.references for key, each in changes.items() if each.only_references}
    made = {key: each for key, each in evidence.items() if each is not None and key in asked}
    rekeyed = changed_uses(look.basis, look.snapshot, made, asked) if asked else {}
    for key in look.table.partition.keys():  # noqa: SIM118 - a method of partitionings, not of a dictionary
        held = look.blocked.get(key)
        if held is not None and not look.basis.changes(key, held):
            rules = ", ".join(finding.rule for finding in held.verdict.blocking)
            yield key, look.state(key, Standing.BLOCKED, Reason(Cause.BLOCKED, rules))
        elif key not in look.live:
            yield key, look.state(key, Standing.MISSING, *_lacking(look, key))
        elif key in same or not (reasons := _stale(look, changes[key], rekeyed.get(key, ()))):
            yield key, look.state(key, Standing.CURRENT)
        else:
            yield key, look.state(key, Standing.STALE, *reasons)


def _lacking(look: _Look, key: str) -> tuple[Reason, ...]:
    missing = look.basis.missing(key)
    if not missing:
        return (Reason(Cause.MISSING),)
    table, first, why = missing[0]
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return (Reason(Cause.MISSING, f"needs {table} {first} ({why}){more}"),)


def _stale(look: _Look, changes: Changes, rekeyed: tuple[str, ...]) -> tuple[Reason, ...]:
    if not changes:
        return ()
    reasons = [Reason(Cause.CODE, changes.code)] if changes.code else []
    if changes.inputs:
        more = f" and {len(changes.inputs) - 1} more" if len(changes.inputs) > 1 else ""
        reasons.append(Reason(Cause.INPUT, changes.inputs[0] + more))
    tables = {name: each["table"] for name, each in look.basis.whole_references().items()}
    named = dict.fromkeys(tables.get(name, name) for name in rekeyed)
    return (*reasons, *(Reason(Cause.REKEY, name) for name in named))


def _failures(lake: Lake) -> dict[str, dict[str, Reason]]:
    """By table and partition, the failures that are the newest thing the ledger tells."""
    try:
        newest = ledger.latest(lake).filter(pl.col("status") == "failed")
    except TableUnreadable as unreadable:  # evidence, not authority: the tables tell the rest
        _log.warning("failures that leave no trace in a table are not known: %s", unreadable)
        return {}
    found: dict[str, dict[str, Reason]] = {}
    for table, key, code, error in newest.select("pipeline_name", "partition", "error_code", "error").iter_rows():
        if code not in _WAITING:
            found.setdefault(table, {})[key] = Reason(Cause.FAILED, error or code or "")
    return found


_WAITING = ("INPUT_NOT_COMMITTED", "SUPERSEDED")
"""What is no failure of the partition's own: there was nothing to build it from, or another attempt built it."""


def _lost(state: PartitionState, reason: str) -> PartitionState:
    """The state of a partition that is recorded as a gap: what is live stays as it is, and nothing else is made."""
    if state.batch_id is not None:
        return replace(state, standing=Standing.CURRENT, reasons=())
    return replace(state, standing=Standing.IRRECOVERABLE, reasons=(Reason(Cause.MISSING, reason),), undelivered=reason)


def _failed(state: PartitionState, failure: Reason, *, looked: bool) -> PartitionState:
    """The state of a partition whose last attempt failed.

    A failure counts as long as there is something to be done. Where nothing has changed, what is live is right whatever
    happened; only of a source that was not looked at this is not known.
    """
    if state.standing is Standing.BLOCKED or (state.standing is Standing.CURRENT and looked):
        return state
    reasons = [reason for reason in state.reasons if reason.cause is not Cause.MISSING]
    return replace(state, standing=Standing.FAILED, reasons=(failure, *reasons))
