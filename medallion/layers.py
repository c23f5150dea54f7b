"""Whether a partition still follows from the layers below it: the rows that it read, and what has changed since.

What belongs here: comparing evidence with the live versions of its inputs, and counting rows again. What does not:
reading files back (``readback.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

import polars as pl

from medallion.differences import Difference, Kind
from medallion.errors import MedallionError
from medallion.evidence import Evidence
from medallion.inputs import Connect, Pinned, transformed
from medallion.lake import Snapshot
from medallion.partitions import Whole
from medallion.stale import code_change
from medallion.tables import Table

__all__ = ["Layers"]


class Layers:
    """A table and what it is built from, at pinned versions."""

    def __init__(self, table: Table, pin: Callable[[Table], Snapshot], connect: Connect) -> None:
        """Look at a table's inputs when first asked.

        Args:
            table: a declared table.
            pin: gives the pinned version of another one.
            connect: opens a DuckDB connection, for tables written in SQL.
        """
        self.table, self._pin, self._connect = table, pin, connect

    @cached_property
    def _inputs(self) -> dict[str, Pinned]:
        return {name: Pinned(each, self._pin(each.table)) for name, each in self.table.inputs.items()}

    @cached_property
    def _references(self) -> dict[str, Snapshot]:
        by_key = {name: each.snapshot for name, each in self._inputs.items() if not each.counts_whole}
        known_in = {f"{column}.known_in": self._pin(each.table) for column, each in self.table.references.items()}
        return {**by_key, **known_in}

    def news(self, key: str, evidence: Evidence) -> Iterator[tuple[str, bool]]:
        """What has changed since a batch was made, and whether a replay certainly makes it anew."""
        changed = code_change(self.table, evidence)
        if changed is not None:
            yield changed, True
        for name, pinned in self._inputs.items():
            if not pinned.counts_whole:
                continue
            was = evidence.inputs.get(name, {}).get("partitions", {})
            now = pinned.contents(self.table.partition, key)
            if now != was:
                lost = [each for each, content in now.items() if content is None and was.get(each) is not None]
                what = f"{lost[0]} is no longer committed" if lost else "it holds other rows now"
                yield f"made of {pinned.snapshot.path}, and {what}", True
        for snapshot in dict.fromkeys(self._changed_references(evidence)):
            yield f"judged by an earlier {snapshot}", False

    def _changed_references(self, evidence: Evidence) -> Iterator[str]:
        for name, snapshot in self._references.items():
            if evidence.references.get(name, {}).get("content") != snapshot.content(Whole.KEY):
                yield snapshot.path

    def differences(self, evidence: Mapping[str, Evidence]) -> list[Difference]:
        """Partitions whose verdict says that another number of rows was read than the layer below gives.

        The transform is asked again, since it may leave rows out. Only where the partition is built from the same
        partition below, of the content that is live, by the code that is declared.
        """
        if not self._counts_rows:
            return []
        first = next(iter(self._inputs.values())).snapshot
        asked = [key for key, each in evidence.items() if next(self.news(key, each), None) is None]
        # Where the source was closed there are no rows, and no columns that a transform could be asked for.
        closed = {key: first.rows(key) for key in asked if evidence[key].closed is not None}
        given = {**closed, **self._rows_given([key for key in asked if key not in closed])}
        return [
            self._difference(key, evidence[key].verdict.read, given[key], first)
            for key in asked
            if given[key] != evidence[key].verdict.read
        ]

    @property
    def _counts_rows(self) -> bool:
        first = next(iter(self._inputs.values()), None)
        if self.table.layer != "silver" or first is None:
            return False
        return first.input.table.partition == self.table.partition and first.input.days == 1

    def _rows_given(self, keys: Sequence[str]) -> dict[str, int | str]:
        """How many rows the transform gives; text says why it gives none."""
        name, first = next(iter(self._inputs.items()))
        groups: dict[tuple[str, ...], list[str]] = {}
        for key in keys:
            groups.setdefault(first.snapshot.columns(key), []).append(key)
        found: dict[str, int | str] = {}
        for columns, some in groups.items():
            chosen = {name: columns} if first.input.table.layer == "bronze" else {}
            try:
                found |= self._count(some, chosen)
            except (MedallionError, pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
                found |= dict.fromkeys(some, f"an error: {(str(error).splitlines() or [''])[0]}")
        return found

    def _count(self, keys: Sequence[str], columns: Mapping[str, Sequence[str]]) -> dict[str, int]:
        rows = transformed(self.table, self._inputs, keys, columns, self._connect)
        column = self.table.partition.column
        if not column:
            return {keys[0]: rows.select(pl.len()).collect().item()}
        counted = dict(rows.group_by(column).len().collect().iter_rows())
        return {key: counted.get(self.table.partition.value(key), 0) for key in keys}

    def _difference(self, key: str, read: int, given: int | str, below: Snapshot) -> Difference:
        gives = f"{given:,} rows" if isinstance(given, int) else given
        return Difference(
            Kind.LAYERS,
            self.table.path,
            key,
            None,
            f"{read:,} rows read, by the verdict",
            f"{gives} from {below.path} {key}, which holds {below.rows(key):,}",
            f"Look at both: medallion inspect {self.table.path} {key}.",
        )
