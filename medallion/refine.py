"""The one path that every table takes: pin, identify, transform, prepare, judge, commit, acknowledge.

A run is cut into slices; a slice is one commit. A slice that cannot be processed as a whole is halved until the
partition at fault is alone, so that one bad partition never fails its neighbours.
"""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import duckdb
import polars as pl

from medallion.attempts import Recoveries, attempting
from medallion.errors import (
    ConfigurationError,
    Irrecoverable,
    MedallionError,
    RevisionRefused,
    StorageFailed,
    TransformFailed,
)
from medallion.evidence import Evidence, EvidenceReader, drop_held, hold, write_evidence
from medallion.failpoints import reach
from medallion.gaps import irrecoverable
from medallion.identity import Basis
from medallion.inputs import Connect
from medallion.isolation import check_publishes
from medallion.lake import Lake
from medallion.outcomes import Blocked, Committed, Failed, Outcome, Report, Superseded, Unchanged
from medallion.partitions import Whole
from medallion.publication import Prepared, Publication, reconcile
from medallion.restore_intents import check_none_open
from medallion.sources import LandingZone
from medallion.staging import as_stored, stage
from medallion.stale import contract_digest
from medallion.steps import BronzeSteps, Candidate, RefinedSteps
from medallion.tables import Table
from medallion.telemetry import Teller, tell
from medallion.verdict import Verdict

__all__ = ["Attempt", "Run", "pending", "refine", "watching"]

_log = logging.getLogger(__name__)
_PACKAGES = ("polars", "pandera", "deltalake", "duckdb")


@dataclass(frozen=True)
class Run:
    """What a run needs besides the table.

    Attributes:
        lake: where tables lie.
        landing: where sources deliver; only bronze needs it.
        run_id: names the run in the evidence, as Dagster's run id.
        started_at: the run's time; the clock is read by whoever makes the run.
        connect: opens a DuckDB connection, for tables written in SQL.
        slice_bytes: estimated bytes of a slice in memory; a slice is one commit and the most that is redone after a
            crash.
        downgrade: why a lower revision may replace a higher one; None refuses it. The reason is recorded.
        plan_id: of the plan that asks for it; recorded with every commit. None if there is none.
    """

    lake: Lake
    landing: LandingZone | None = None
    run_id: str = "manual"
    started_at: dt.datetime = field(default_factory=lambda: dt.datetime.now(dt.UTC))
    connect: Connect = duckdb.connect
    slice_bytes: int = 512 * 1024 * 1024
    downgrade: str | None = None
    plan_id: str | None = None


_watcher: ContextVar[Callable[[str, int], None]] = ContextVar("watcher", default=lambda table, settled: None)


@contextmanager
def watching(watcher: Callable[[str, int], None]) -> Iterator[None]:
    """Call ``watcher`` with a table's path and a number of partitions whenever so many of them have been settled."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def pending(table: Table, keys: Sequence[str], run: Run) -> list[str]:
    """The partitions that :func:`refine` would not find unchanged at first sight, in order. Commits nothing.

    A partition whose reference table has changed counts as pending if it uses a row that did.
    """
    attempt = Attempt(table, run)
    waiting = set(attempt.identify(keys))
    failing = {key for key, outcome in attempt.outcomes.items() if isinstance(outcome, Failed)}
    return [key for key in table.partition.keys() if key in waiting | failing]  # noqa: SIM118 - not a dictionary


def refine(table: Table, keys: Sequence[str], run: Run) -> Report:
    """Bring some partitions of a table to where their inputs and the table's code say they should be.

    Re-running is replay: a partition whose batch is live already is left alone.

    Args:
        table: a declared table.
        keys: partitions, in any order; each once.
        run: the lake and everything else that a run needs.

    Returns:
        an outcome for each partition. One partition's failure never stops another's.

    Raises:
        UnknownPartition: before anything is read or written, if the table does not have one of ``keys``.
        ConfigurationError: if bronze is asked for without a landing zone.
        IsolatedCopy: if the lake is a copy from a backup that has not been promoted.
        RestoreUnfinished: if a restore is open: nothing is built on what it has half done.
    """
    ordered = table.partition.in_order(keys)
    check_publishes(run.lake.root)
    attempt = Attempt(table, run)
    check_none_open(run.lake)  # after pinning: so nothing that is pinned was written by a restore that is open
    settled = attempt.run(ordered)
    return Report(table.path, {key: settled[key] for key in ordered})


class Attempt:
    """One attempt at some partitions of one table, on versions that are pinned when it starts."""

    def __init__(self, table: Table, run: Run) -> None:
        self.table, self.run_, self.lake = table, run, run.lake
        self.id = uuid.uuid4().hex
        self.began = dt.datetime.now(dt.UTC)
        self.target = self.lake.pin(table.path, table.partition)
        self.basis = Basis.pin(table, lambda each: self.lake.pin(each.path, each.partition))
        self.inputs, self.references = self.basis.inputs, self.basis.references
        self.contract = contract_digest(table)
        self._evidence = EvidenceReader(self.target.folder)
        self.recoveries = Recoveries()
        self.outcomes: dict[str, Outcome] = {}
        self.publication = Publication(table, self.target, self._metadata())

        self.steps = BronzeSteps(self) if table.layer == "bronze" else RefinedSteps(self)

    def identify(self, keys: Sequence[str]) -> list[str]:
        """Settle what is certain without looking at rows; return the other partitions."""
        gaps = irrecoverable(self.lake, self.table.path)
        lost = {key: Irrecoverable(self.table.path, key, gaps[key]) for key in keys if key in gaps}
        self.outcomes.update({key: Failed(error) for key, error in lost.items()})
        return self.steps.identify([key for key in keys if key not in lost])

    def run(self, keys: Sequence[str]) -> dict[str, Outcome]:
        """Settle all partitions, and what attempts that died have left of them."""
        reach("pinned")
        told = False
        try:
            waiting = self.identify(keys)
            reach("identified")
            with attempting(self.target, self.id, self.run_.run_id, keys, waiting) as self.recoveries:
                self._settle_all(waiting)
                self._agree(keys)
                self.recoveries.update(self.publication.unacknowledged)
                self._tell(keys)
                told = True
        except OSError as error:  # no room even for a record, or to keep the source files
            for key in keys:
                self.outcomes.setdefault(key, Failed(self._storage_failed(key, error)))
            if not told:
                self._tell(keys)
        return {
            key: replace(outcome, recovery=self.recoveries[key]) if key in self.recoveries else outcome
            for key, outcome in self.outcomes.items()
        }

    def _tell(self, keys: Sequence[str]) -> None:
        """Keep in the ledger what became of the partitions."""
        teller = Teller(self.id, self.run_.run_id, self.began, dt.datetime.now(dt.UTC), self.run_.plan_id)
        tell(self.lake, self.table, {key: self.outcomes[key] for key in keys}, teller, self.recoveries)

    def _agree(self, keys: Sequence[str]) -> None:
        """See to it that the quarantine holds what belongs to the live versions, where an earlier attempt died."""
        left = [key for key in keys if not isinstance(self.outcomes.get(key), Committed)]
        if self.table.quarantine_path is not None and left:
            try:
                reconcile(self.table, self.lake, left, self._metadata(), self._evidence)
            except (StorageFailed, OSError) as error:  # the next attempt at one of them looks again
                _log.warning("%s: %s", self.table.quarantine_path, error)

    def _storage_failed(self, key: str, error: OSError) -> StorageFailed:
        return StorageFailed(self.table.path, key, error.strerror or str(error))

    def _settle_all(self, waiting: Sequence[str]) -> None:
        _watcher.get()(self.table.path, len(self.outcomes))
        for piece in self.steps.slices(waiting):
            for settled in self._settle(piece, self.steps.prepare):
                self.outcomes.update(settled)
                _watcher.get()(self.table.path, len(settled))

    def _settle(
        self, keys: Sequence[str], prepare: Callable[[Sequence[str]], Candidate]
    ) -> Iterator[dict[str, Outcome]]:
        """Process a slice; if it fails as a whole, halve it until the partition at fault is alone."""
        try:
            candidate = prepare(keys)
            reach("judged")
            yield self._commit(keys, candidate)
        except (StorageFailed, ConfigurationError, OSError) as error:
            # Not the fault of one partition, so looking for it in halves would only try the store again and again.
            yield {
                key: Failed(error if isinstance(error, MedallionError) else self._storage_failed(key, error))
                for key in keys
            }
        except (MedallionError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            if len(keys) > 1:
                middle = len(keys) // 2
                yield from self._settle(keys[:middle], prepare)
                yield from self._settle(keys[middle:], prepare)
            else:
                yield {keys[0]: self._alone(keys[0], error)}

    def _alone(self, key: str, error: BaseException) -> Outcome:
        _log.warning("%s %s: %s", self.table.path, key, error)
        if isinstance(error, pl.exceptions.ColumnNotFoundError):
            name = str(error).partition('"')[2].partition('"')[0] or str(error).split()[-1].strip("'\"")
            had = next(iter(self.inputs.values())).snapshot.columns(key)
            verdict = self.table.gate.missing_column(key, name, had)
            made_of = {"inputs": self.basis.inputs_of(key), "references": self.basis.whole_references()}
            return self._hold(Prepared({key: self.evidence(key, "", verdict, **made_of)}, ()))
        if isinstance(error, MedallionError):
            return Failed(error)
        return Failed(TransformFailed(self.table.path, key, error))

    def evidence(self, key: str, batch_id: str, verdict: Verdict, **more: Any) -> Evidence:
        """The pinned context of a partition's batch; the content digest is filled in when the file is prepared."""
        return Evidence(
            table=self.table.path,
            partition=key,
            batch_id=batch_id,
            content="",
            revision=self.table.revision,
            transform=self.table.transform_digest,
            contract=self.contract,
            run_id=self.run_.run_id,
            attempt=self.id,
            started_at=self.run_.started_at.isoformat(),
            verdict=verdict,
            packages=_versions(),
            recovery=self.recoveries.get(key),
            downgrade=self._downgrade(key),
            **more,
        )

    def _downgrade(self, key: str) -> dict[str, Any] | None:
        """What is replaced on purpose, and why."""
        live = self.live_evidence(key) if self.run_.downgrade is not None else None
        if live is None or live.revision <= self.table.revision:
            return None
        return {"from": live.revision, "reason": self.run_.downgrade}

    def live_evidence(self, key: str) -> Evidence | None:
        """The evidence of the live batch of a partition."""
        batch_id = self.target.batch_id(key)
        return None if batch_id is None else self._evidence(batch_id)

    def unchanged(self, key: str, evidence: Evidence) -> Unchanged:
        """The outcome of a partition whose batch is live; a candidate that was held for it is out of date."""
        drop_held(self.target.folder, key)
        assert self.target.version is not None
        return Unchanged(evidence, self.target.version)

    def _commit(self, keys: Sequence[str], candidate: Candidate) -> dict[str, Outcome]:
        """Prepare files, hold what is blocked, commit the rest: quarantine first, then the table."""
        outcomes: dict[str, Outcome] = {}
        publish: list[str] = []
        for key in keys:
            evidence = candidate.evidence[key]
            live = self.live_evidence(key)
            if self.target.batch_id(key) == evidence.batch_id:
                outcomes[key] = self.unchanged(key, live or self._write_again(key, candidate))
            elif live is not None and live.revision > self.table.revision and self.run_.downgrade is None:
                outcomes[key] = Failed(RevisionRefused(self.table.path, key, self.table.revision, live.revision))
            elif evidence.verdict.blocked:
                outcomes[key] = self._hold(self._encode([key], candidate))
            else:
                publish.append(key)
        if publish:
            prepared = self._encode(publish, candidate)
            reach("staged")
            outcomes.update(self.publication.publish(prepared, self.live_evidence))
        return outcomes

    def _write_again(self, key: str, candidate: Candidate) -> Evidence:
        """Restore the evidence of a live batch that has lost it. Its files stay: they say the same under that name."""
        evidence = self._encode([key], candidate).evidence[key]
        refused = evidence.refused
        if refused is not None and self.table.quarantine_path is not None:
            quarantine = self.lake.pin(self.table.quarantine_path, self.table.partition)
            if quarantine.batch_id(key) == evidence.batch_id:
                refused = quarantine.content(key)
        restored = replace(evidence, content=self.target.content(key) or "", refused=refused)
        write_evidence(self.target.folder, [restored], durable=self.lake.durable)
        return restored

    def _among(self, rows: pl.DataFrame, keys: Sequence[str], judged: int) -> pl.DataFrame:
        column = self.table.partition.column
        if not column or not rows.width or len(keys) == judged:
            return rows
        return rows.filter(pl.col(column).is_in(self.table.partition.series(list(keys)).implode()))

    def _encode(self, keys: Sequence[str], candidate: Candidate) -> Prepared:
        """The files of some partitions of a slice, and their evidence with the files' digests."""
        cut, split, judged = self.table.partition, candidate.split, len(candidate.evidence)
        accepted = as_stored(self._among(split.accepted, keys, judged))
        staged = stage(accepted, cut, keys, empty=True) if accepted.width else []
        refused = pl.DataFrame()
        if self.table.quarantine_path is not None and split.quarantined.width:
            batches = {key: candidate.evidence[key].batch_id for key in keys}
            refused = self._with_batch_ids(self._among(split.quarantined, keys, judged), batches)
        kept = stage(refused, cut, keys, empty=False) if refused.width else []
        content = {each.partition: each.digest for each in staged}
        refusals = {each.partition: each.digest for each in kept}
        evidence = {
            key: replace(candidate.evidence[key], content=content.get(key, ""), refused=refusals.get(key))
            for key in keys
        }
        return Prepared(evidence, staged, kept, accepted.schema, refused.schema, accepted)

    def _with_batch_ids(self, rows: pl.DataFrame, batches: Mapping[str, str]) -> pl.DataFrame:
        cut = self.table.partition
        if not cut.column:
            return rows.with_columns(pl.lit(batches[Whole.KEY]).alias("_batch_id"))
        ids = pl.DataFrame([cut.series(list(batches)), pl.Series("_batch_id", list(batches.values()))])
        return rows.join(ids, on=cut.column, how="left", maintain_order="left")

    def _hold(self, prepared: Prepared) -> Outcome:
        """Keep a blocked candidate, unless another attempt has committed the partition since."""
        (key,) = prepared.evidence
        if lost := self.publication.moved([key]):
            return Superseded(lost[key])
        evidence = replace(prepared.evidence[key], epoch=self.target.epoch(key))
        files = [next((each.data for each in some), None) for some in (prepared.accepted, prepared.quarantined)]
        folder = hold(self.target.folder, evidence, *files, durable=self.lake.durable)
        reach("held")
        return Blocked(evidence, folder)

    def _metadata(self) -> dict[str, Any]:
        """What every commit of the attempt says; the rest of the pinned context stands in the batches' evidence."""
        table = self.table
        return {
            "table": table.path,
            "run_id": self.run_.run_id,
            "attempt": self.id,
            "started_at": self.began.isoformat(),
            "revision": table.revision,
            "transform": table.transform_digest,
            "contract": self.contract,
            "inputs": {name: [p.snapshot.path, p.snapshot.version] for name, p in self.inputs.items()},
            "packages": _versions(),
            **({"downgrade": self.run_.downgrade} if self.run_.downgrade else {}),
            **({"plan_id": self.run_.plan_id} if self.run_.plan_id else {}),
        }


@lru_cache(maxsize=1)
def _versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in _PACKAGES}
