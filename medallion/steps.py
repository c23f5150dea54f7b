"""What an attempt does before it commits: tell partitions by their inputs, cut the work, make rows and judge them.

One set of steps for tables that take what a source delivers, one for tables that are built from others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from medallion.digests import digest
from medallion.errors import (
    ConfigurationError,
    InputNotCommitted,
    SourceUnreadable,
    TransformFailed,
)
from medallion.evidence import Evidence, EvidenceReader
from medallion.failpoints import reach
from medallion.gate import Split
from medallion.identity import refined_batch_id, source_batch_id
from medallion.inputs import Pinned, attach_target, reference_values, transformed, used_digests
from medallion.outcomes import Failed
from medallion.published import History
from medallion.rekeying import changed_uses
from medallion.slicing import bytes_of_file, bytes_of_rows, in_slices, rows_read
from medallion.sources import Landed, collect_sources, header, parse
from medallion.verdict import Verdict

if TYPE_CHECKING:
    from medallion.refine import Attempt

__all__ = ["BronzeSteps", "Candidate", "RefinedSteps"]


@dataclass(frozen=True)
class Candidate:
    """A slice that was judged, and what its partitions' batches are made of."""

    split: Split
    evidence: Mapping[str, Evidence]


class BronzeSteps:
    """The steps of a table that takes what a source delivers."""

    def __init__(self, attempt: Attempt) -> None:
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
            evidence = self.attempt.live_evidence(each.key) if live == source_batch_id(self.table, each) else None
            if evidence is not None:
                self.attempt.outcomes[each.key] = self.attempt.unchanged(each.key, evidence)
            else:
                self.landed[each.key] = each
                waiting.append(each.key)
        return waiting

    def slices(self, keys: Sequence[str]) -> Iterator[list[str]]:
        """Cut by estimated bytes in memory, and so that the files of a slice have the same columns.

        A stored file has the columns that were delivered, whatever was delivered for other partitions: so a column that
        is missing is seen to be missing, and how a run is sliced does not show.
        """

        def weigh(key: str) -> int:
            file = self.landed[key].file
            return bytes_of_file(self.table, self.attempt.lake.root / file.kept, file.size) if file else 0

        groups: dict[tuple[str, ...], list[str]] = {}
        for key in keys:
            groups.setdefault(self._header(key), []).append(key)
        for group in groups.values():
            yield from in_slices(group, weigh, self.attempt.run_.slice_bytes)

    def _header(self, key: str) -> tuple[str, ...]:
        try:
            return header(self.table, self.landed[key], self.attempt.lake.root)
        except SourceUnreadable:
            return ("",)  # no column is called so; parsing will say what is wrong

    def prepare(self, keys: Sequence[str]) -> Candidate:
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
                each.key, source_batch_id(self.table, each), verdict, sources=sources, closed=each.closed
            )
        return Candidate(Split(rows, pl.DataFrame(), {}, {}), evidence)


class RefinedSteps:
    """The steps of a table that is built from other tables and judged by a contract."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt, self.table, self.basis = attempt, attempt.table, attempt.basis
        self.values: dict[str, pl.Series] = {}
        self.history = History(self.table.partition.keys(), self._past)
        self._first_evidence = EvidenceReader(next(iter(attempt.inputs.values())).snapshot.folder)

    def identify(self, keys: Sequence[str]) -> list[str]:
        """Settle what lacks an input and what is certainly live already; return the rest."""
        waiting = []
        rekeyed: dict[str, tuple[str, ...]] = {}
        made: dict[str, Evidence] = {}
        for key in keys:
            missing = self.basis.missing(key)
            if missing:
                self.attempt.outcomes[key] = Failed(InputNotCommitted(self.table.path, key, missing))
                continue
            live = self.attempt.live_evidence(key)
            changes = self.basis.changes(key, live) if live is not None else None
            if live is not None and changes is not None and (not changes or changes.only_references):
                made[key] = live
                if changes:
                    rekeyed[key] = changes.references
                    waiting.append(key)
                continue
            waiting.append(key)
        matters = changed_uses(self.basis, self.attempt.target, made, rekeyed) if rekeyed else {}
        for key, live in made.items():
            if not matters.get(key):
                self.attempt.outcomes[key] = self.attempt.unchanged(key, live)
        return [key for key in waiting if key not in made or matters.get(key)]

    def _past(self, key: str) -> Verdict | None:
        """The verdict of a committed partition, for rules that look back."""
        evidence = self.attempt.live_evidence(key)
        return None if evidence is None else evidence.verdict

    def slices(self, keys: Sequence[str]) -> Iterator[list[str]]:
        """Cut by estimated bytes in memory, and so that the raw files of a slice have the same columns."""
        snapshots = {pinned.input.table.path: pinned.snapshot for pinned in self.basis.inputs.values()}

        def weigh(key: str) -> int:
            rows = rows_read(self.table, key, lambda source, each: snapshots[source.path].rows(each))
            return bytes_of_rows(self.basis, rows)

        groups: dict[tuple[str, ...], list[str]] = {}
        closed = [key for key in keys if self._closed(key) is not None]
        for key in keys:
            if key not in closed:
                groups.setdefault(self._raw_columns(key), []).append(key)
        if closed:  # nothing is read for them, so they go with any group
            groups.setdefault(next(iter(groups), ()), []).extend(closed)
        for group in groups.values():
            yield from in_slices(group, weigh, self.attempt.run_.slice_bytes)

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

    def prepare(self, keys: Sequence[str]) -> Candidate:
        """Transform and judge."""
        closed = {key: why for key in keys if (why := self._closed(key)) is not None}
        open_keys = [key for key in keys if key not in closed]
        columns: dict[str, Sequence[str]] = {}
        if self._raw is not None and open_keys:
            columns[self._raw[0]] = self._raw_columns(open_keys[0])
        split = self._judge(open_keys, columns) if open_keys else self.table.gate.nothing()
        used = used_digests(self.table, self.attempt.inputs, open_keys) if open_keys else {}
        evidence = {}
        for key in keys:
            verdict = split.verdicts.get(key) or Verdict(self.table.path, key, 0, 0)
            references = self.basis.whole_references()
            for name, each in references.items():
                column = name.removesuffix(".known_in")
                each["used"] = (
                    used[name].get(key) if name in used else digest(split.unknown.get(column, {}).get(key, []))
                )
            inputs = self.basis.inputs_of(key)
            batch_id = refined_batch_id(self.table, key, self.attempt.contract, inputs, references)
            evidence[key] = self.attempt.evidence(
                key, batch_id, verdict, inputs=inputs, references=references, closed=closed.get(key)
            )
        return Candidate(split, evidence)

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
