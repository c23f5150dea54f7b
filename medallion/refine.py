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

from medallion.attempts import attempting
from medallion.digests import digest
from medallion.errors import (
    ConfigurationError,
    InputNotCommitted,
    MedallionError,
    RevisionRefused,
    SourceUnreadable,
    StorageFailed,
    TransformFailed,
)
from medallion.evidence import Evidence, EvidenceReader, drop_held, hold, read_held, write_evidence
from medallion.failpoints import reach
from medallion.gate import Split
from medallion.inputs import Connect, Pinned, attach_target, reference_values, transformed, used_digests
from medallion.lake import Lake, Snapshot
from medallion.outcomes import Blocked, Committed, Failed, Outcome, Report, Superseded, Unchanged
from medallion.partitions import Whole
from medallion.publication import Prepared, Publication, reconcile
from medallion.published import History
from medallion.sources import Landed, LandingZone, collect_sources, header, parse
from medallion.staging import as_stored, stage
from medallion.stale import contract_digest
from medallion.tables import Table
from medallion.verdict import Verdict

__all__ = ["Run", "pending", "refine", "watching"]

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
    """

    lake: Lake
    landing: LandingZone | None = None
    run_id: str = "manual"
    started_at: dt.datetime = field(default_factory=lambda: dt.datetime.now(dt.UTC))
    connect: Connect = duckdb.connect
    slice_bytes: int = 512 * 1024 * 1024
    downgrade: str | None = None


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

    A partition whose reference table has changed counts as pending; only its rows can tell whether the change matters.
    """
    attempt = _Attempt(table, run)
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
    """
    for key in keys:
        table.partition.check(key)
    ordered = [key for key in table.partition.keys() if key in set(keys)]  # noqa: SIM118 - not a dictionary
    attempt = _Attempt(table, run)
    settled = attempt.run(ordered)
    return Report(table.path, {key: settled[key] for key in ordered})


@dataclass(frozen=True)
class _Candidate:
    """A slice that was judged, and what its partitions' batches are made of."""

    split: Split
    evidence: Mapping[str, Evidence]


class _Attempt:
    """One attempt at some partitions of one table, on versions that are pinned when it starts."""

    def __init__(self, table: Table, run: Run) -> None:
        self.table, self.run_, self.lake = table, run, run.lake
        self.id = uuid.uuid4().hex
        self.target = self.lake.pin(table.path, table.partition)
        self.inputs = {
            name: Pinned(each, self.lake.pin(each.table.path, each.table.partition))
            for name, each in table.inputs.items()
        }
        self.references = {
            column: (reference, self.lake.pin(reference.table.path, reference.table.partition))
            for column, reference in table.references.items()
        }
        self.contract = contract_digest(table)
        self._evidence = EvidenceReader(self.target.folder)
        self.recoveries: dict[str, str] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.publication = Publication(table, self.target, self._metadata())

        self.steps = _Bronze(self) if table.layer == "bronze" else _Refined(self)

    def identify(self, keys: Sequence[str]) -> list[str]:
        """Settle what is certain without looking at rows; return the other partitions."""
        return self.steps.identify(keys)

    def run(self, keys: Sequence[str]) -> dict[str, Outcome]:
        """Settle all partitions, and what attempts that died have left of them."""
        reach("pinned")
        try:
            waiting = self.identify(keys)
            reach("identified")
            with attempting(self.target, self.id, self.run_.run_id, keys, waiting) as self.recoveries:
                self._settle_all(waiting)
                self._agree(keys)
                self.recoveries.update(self.publication.unacknowledged)
        except OSError as error:  # no room even for a record, or to keep the source files
            for key in keys:
                self.outcomes.setdefault(key, Failed(self._storage_failed(key, error)))
        return {
            key: replace(outcome, recovery=self.recoveries[key]) if key in self.recoveries else outcome
            for key, outcome in self.outcomes.items()
        }

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
        self, keys: Sequence[str], prepare: Callable[[Sequence[str]], _Candidate]
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
            return self._hold(Prepared({key: self.evidence(key, "", verdict)}, ()))
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

    def _commit(self, keys: Sequence[str], candidate: _Candidate) -> dict[str, Outcome]:
        """Prepare files, hold what is blocked, commit the rest: quarantine first, then the table."""
        outcomes: dict[str, Outcome] = {}
        publish: list[str] = []
        for key in keys:
            evidence = candidate.evidence[key]
            live = self.live_evidence(key)
            if self.target.batch_id(key) == evidence.batch_id:
                outcomes[key] = self.unchanged(key, live or self._write_again(key, evidence))
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

    def _write_again(self, key: str, evidence: Evidence) -> Evidence:
        """Restore the evidence of a live batch that has lost it. Its files stay: they say the same under that name."""
        restored = replace(evidence, content=self.target.content(key) or "")
        write_evidence(self.target.folder, [restored], durable=self.lake.durable)
        return restored

    def _among(self, rows: pl.DataFrame, keys: Sequence[str], judged: int) -> pl.DataFrame:
        column = self.table.partition.column
        if not column or not rows.width or len(keys) == judged:
            return rows
        return rows.filter(pl.col(column).is_in(self.table.partition.series(list(keys)).implode()))

    def _encode(self, keys: Sequence[str], candidate: _Candidate) -> Prepared:
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
        return Prepared(evidence, staged, kept, accepted.schema, refused.schema)

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
            "revision": table.revision,
            "transform": table.transform_digest,
            "contract": self.contract,
            "inputs": {name: [p.snapshot.path, p.snapshot.version] for name, p in self.inputs.items()},
            "packages": _versions(),
            **({"downgrade": self.run_.downgrade} if self.run_.downgrade else {}),
        }


@lru_cache(maxsize=1)
def _versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in _PACKAGES}


def _in_slices(keys: Sequence[str], weigh: Callable[[str], int], limit: int) -> Iterator[list[str]]:
    piece: list[str] = []
    weight = 0
    for key in keys:
        mine = weigh(key)
        if piece and weight + mine > limit:
            yield piece
            piece, weight = [], 0
        piece.append(key)
        weight += mine
    if piece:
        yield piece


class _Bronze:
    """The steps of a table that takes what a source delivers."""

    def __init__(self, attempt: _Attempt) -> None:
        self.attempt, self.table = attempt, attempt.table
        self.landed: dict[str, Landed] = {}

    def identify(self, keys: Sequence[str]) -> list[str]:
        """Keep the source files; settle what has none and what is live already; return the rest."""
        run = self.attempt.run_
        if run.landing is None:
            raise ConfigurationError(f"{self.table.path} reads a landing zone, and the run has none")
        landed, missing = collect_sources(self.table, keys, run.landing, run.lake.root, durable=run.lake.durable)
        self.attempt.outcomes.update({key: Failed(error) for key, error in missing.items()})
        waiting = []
        for each in landed:
            live = self.attempt.target.batch_id(each.key)
            evidence = self.attempt.live_evidence(each.key) if live == self._batch_id(each) else None
            if evidence is not None:
                self.attempt.outcomes[each.key] = self.attempt.unchanged(each.key, evidence)
            else:
                self.landed[each.key] = each
                waiting.append(each.key)
        return waiting

    def _batch_id(self, landed: Landed) -> str:
        # The file's name counts, since it is stored in every row.
        content = [landed.file.name, landed.file.sha256] if landed.file else ["closed", landed.closed]
        return digest(self.table.path, landed.key, self.table.revision, self.table.transform_digest, content)

    def slices(self, keys: Sequence[str]) -> Iterator[list[str]]:
        """Cut by estimated bytes in memory, and so that the files of a slice have the same columns.

        A stored file has the columns that were delivered, whatever was delivered for other partitions: so a column that
        is missing is seen to be missing, and how a run is sliced does not show. Text grows about threefold in memory,
        Parquet about twentyfold.
        """
        growth = 20 if str(self.table.source).endswith(".parquet") else 3

        def weigh(key: str) -> int:
            file = self.landed[key].file
            return file.size * growth if file else 0

        groups: dict[tuple[str, ...], list[str]] = {}
        for key in keys:
            groups.setdefault(self._header(key), []).append(key)
        for group in groups.values():
            yield from _in_slices(group, weigh, self.attempt.run_.slice_bytes)

    def _header(self, key: str) -> tuple[str, ...]:
        try:
            return header(self.table, self.landed[key], self.attempt.lake.root)
        except SourceUnreadable:
            return ("",)  # no column is called so; parsing will say what is wrong

    def prepare(self, keys: Sequence[str]) -> _Candidate:
        """Parse the kept files; bronze refuses nothing but what cannot be parsed."""
        landed = [self.landed[key] for key in keys]
        rows = parse(self.table, landed, self.attempt.lake.root)
        reach("transformed")
        column = self.table.partition.column
        runs = rows.get_column(column).rle().struct.unnest().iter_rows() if column else []
        counts = {value: length for length, value in runs}
        evidence = {}
        for each in landed:
            count = counts.get(self.table.partition.value(each.key), 0) if column else rows.height
            verdict = Verdict(self.table.path, each.key, count, count)
            sources = (each.file,) if each.file else ()
            evidence[each.key] = self.attempt.evidence(
                each.key, self._batch_id(each), verdict, sources=sources, closed=each.closed
            )
        return _Candidate(Split(rows, pl.DataFrame(), {}, {}), evidence)


class _Refined:
    """The steps of a table that is built from other tables and judged by a contract."""

    def __init__(self, attempt: _Attempt) -> None:
        self.attempt, self.table = attempt, attempt.table
        self.closed: dict[str, str] = {}
        self.values: dict[str, pl.Series] = {}
        self.history = History(self.table.partition.keys(), self._past)
        self._first_evidence = EvidenceReader(next(iter(attempt.inputs.values())).snapshot.folder)

    def identify(self, keys: Sequence[str]) -> list[str]:
        """Settle what lacks an input and what is certainly live already; return the rest."""
        waiting = []
        for key in keys:
            missing = self._missing(key)
            if missing:
                self.attempt.outcomes[key] = Failed(InputNotCommitted(self.table.path, key, missing))
                continue
            live = self.attempt.live_evidence(key)
            if live is not None and self._certainly_live(key, live):
                self.attempt.outcomes[key] = self.attempt.unchanged(key, live)
                continue
            waiting.append(key)
        return waiting

    def _past(self, key: str) -> Verdict | None:
        """The verdict of a committed partition, for rules that look back."""
        evidence = self.attempt.live_evidence(key)
        return None if evidence is None else evidence.verdict

    def _missing(self, key: str) -> tuple[tuple[str, str, str], ...]:
        wanted = [
            (pinned.snapshot, each)
            for pinned in self.attempt.inputs.values()
            for each in pinned.input.keys_for(self.table.partition, key)
        ]
        wanted += [(snapshot, Whole.KEY) for _, snapshot in self.attempt.references.values()]
        lacking = [(snapshot, each) for snapshot, each in wanted if snapshot.content(each) is None]
        return tuple((snapshot.path, each, self._why(snapshot, each)) for snapshot, each in lacking)

    def _why(self, snapshot: Snapshot, key: str) -> str:
        held = read_held(snapshot.folder, key)
        if held is None:
            return "not committed"
        return "blocked by its gate: " + ", ".join(finding.rule for finding in held.verdict.blocking)

    def _inputs_of(self, key: str) -> dict[str, dict[str, Any]]:
        return {
            name: {
                "table": pinned.snapshot.path,
                "version": pinned.snapshot.version,
                "partitions": pinned.contents(self.table.partition, key),
            }
            for name, pinned in self.attempt.inputs.items()
            if pinned.counts_whole
        }

    def _whole_references(self) -> dict[str, dict[str, Any]]:
        by_key = {name: p.snapshot for name, p in self.attempt.inputs.items() if not p.counts_whole}
        known_in = {f"{column}.known_in": snapshot for column, (_, snapshot) in self.attempt.references.items()}
        return {
            name: {"table": s.path, "version": s.version, "content": s.content(Whole.KEY)}
            for name, s in {**by_key, **known_in}.items()
        }

    def _certainly_live(self, key: str, live: Evidence) -> bool:
        """Whether nothing at all changed since the live batch. If a reference did, only the rows can tell."""
        mine = self._inputs_of(key)
        same_inputs = {name: each["partitions"] for name, each in mine.items()} == {
            name: each["partitions"] for name, each in live.inputs.items()
        }
        same_references = {name: each["content"] for name, each in self._whole_references().items()} == {
            name: each["content"] for name, each in live.references.items()
        }
        same_code = (live.revision, live.transform, live.contract) == (
            self.table.revision, self.table.transform_digest, self._contract,
        )  # fmt: skip
        return same_inputs and same_references and same_code

    @property
    def _contract(self) -> str:
        return self.attempt.contract

    def slices(self, keys: Sequence[str]) -> Iterator[list[str]]:
        """Cut by estimated bytes in memory, and so that the raw files of a slice have the same columns."""
        column_count = max((len(p.snapshot.schema) for p in self.attempt.inputs.values()), default=1)

        def weigh(key: str) -> int:
            rows = sum(
                pinned.snapshot.rows(each)
                for pinned in self.attempt.inputs.values()
                if not isinstance(pinned.input.table.partition, Whole) or isinstance(self.table.partition, Whole)
                for each in pinned.input.keys_for(self.table.partition, key)
            )
            return rows * column_count * 16

        groups: dict[tuple[str, ...], list[str]] = {}
        closed = [key for key in keys if self._closed(key) is not None]
        for key in keys:
            if key not in closed:
                groups.setdefault(self._raw_columns(key), []).append(key)
        if closed:  # nothing is read for them, so they go with any group
            groups.setdefault(next(iter(groups), ()), []).extend(closed)
        for group in groups.values():
            yield from _in_slices(group, weigh, self.attempt.run_.slice_bytes)

    @property
    def _raw(self) -> tuple[str, Pinned] | None:
        """The first input if it is bronze: its files have the columns that the source delivered."""
        name, pinned = next(iter(self.attempt.inputs.items()))
        return (name, pinned) if pinned.input.table.layer == "bronze" else None

    def _raw_columns(self, key: str) -> tuple[str, ...]:
        if self._raw is None:
            return ()
        _, pinned = self._raw
        return tuple(
            dict.fromkeys(
                name
                for each in pinned.input.keys_for(self.table.partition, key)
                for name in pinned.snapshot.columns(each)
            )
        )

    def _closed(self, key: str) -> str | None:
        """Why a partition has nothing to hold: its one first input has nothing, because the source was closed."""
        pinned = next(iter(self.attempt.inputs.values()))
        (*needed,) = pinned.input.keys_for(self.table.partition, key)
        if len(needed) != 1 or pinned.snapshot.rows(needed[0]) > 0:
            return None
        batch_id = pinned.snapshot.batch_id(needed[0])
        evidence = self._first_evidence(batch_id) if batch_id else None
        return evidence.closed if evidence else None

    def prepare(self, keys: Sequence[str]) -> _Candidate:
        """Transform and judge."""
        closed = {key: why for key in keys if (why := self._closed(key)) is not None}
        open_keys = [key for key in keys if key not in closed]
        columns: dict[str, Sequence[str]] = {}
        if self._raw is not None and open_keys:
            columns[self._raw[0]] = self._raw_columns(open_keys[0])
        split = self._judge(open_keys, columns) if open_keys else self._nothing()
        used = used_digests(self.table, self.attempt.inputs, open_keys) if open_keys else {}
        evidence = {}
        for key in keys:
            verdict = split.verdicts.get(key) or Verdict(self.table.path, key, 0, 0)
            references = self._whole_references()
            for name, each in references.items():
                column = name.removesuffix(".known_in")
                each["used"] = (
                    used[name].get(key) if name in used else digest(split.unknown.get(column, {}).get(key, []))
                )
            inputs = self._inputs_of(key)
            batch_id = digest(
                self.table.path, key, self.table.revision, self.table.transform_digest, self._contract,
                {name: each["partitions"] for name, each in inputs.items()},
                {name: each["used"] for name, each in references.items()},
            )  # fmt: skip
            evidence[key] = replace(
                self.attempt.evidence(
                    key, batch_id, verdict, inputs=inputs, references=references, closed=closed.get(key)
                ),
                contract=self._contract,
            )
        return _Candidate(split, evidence)

    def _judge(self, keys: Sequence[str], columns: Mapping[str, Sequence[str]]) -> Split:
        rows = transformed(self.table, self.attempt.inputs, keys, columns, self.attempt.run_.connect)
        reach("transformed")
        if not self.values:
            self.values = {
                column: reference_values(snapshot, reference.table, reference.column)
                for column, (reference, snapshot) in self.attempt.references.items()
            }
        split = self.table.gate.judge(
            rows,
            keys,
            references=self.values,
            inputs={
                name: attach_target(each, self.table.partition, keys, columns.get(name))
                for name, each in self.attempt.inputs.items()
                if name in self.table.gate.reconciled
            },
            history=self.history,
        )
        self._check_conserved(split, keys)
        return split

    def _check_conserved(self, split: Split, keys: Sequence[str]) -> None:
        """Refuse rows that belong to none of the partitions: no verdict counts them, so they would be lost."""
        column = self.table.partition.column
        for rows, counted in (
            (split.accepted, sum(verdict.accepted for verdict in split.verdicts.values())),
            (split.quarantined, sum(verdict.quarantined for verdict in split.verdicts.values())),
        ):
            if not column or not rows.width or rows.height == counted:
                continue
            asked = [self.table.partition.value(key) for key in keys]
            found = [value for value in rows.get_column(column).unique() if value not in asked]
            stray = ValueError(
                f"{rows.height - counted} rows have {column} {', '.join(map(repr, found[:3]))}, which is not a "
                f"partition that was asked for; keep the {column} that the input gives its rows"
            )
            raise TransformFailed(self.table.path, keys[0], stray)

    def _nothing(self) -> Split:
        return self.table.gate.nothing()
