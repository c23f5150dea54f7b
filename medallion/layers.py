"""Whether a partition still follows from the layers below it: the rows that it read, and what has changed since.

What belongs here: comparing evidence with the live versions of its inputs, and counting rows again. What does not:
reading files back (``readback.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import polars as pl

from medallion.differences import Difference, Kind
from medallion.errors import MedallionError
from medallion.evidence import Evidence
from medallion.identity import Basis
from medallion.inputs import Connect, transformed
from medallion.lake import Snapshot
from medallion.rekeying import changed_uses
from medallion.tables import Table

__all__ = ["Layers"]


class Layers:
    """A table and what it is built from, at pinned versions."""

    def __init__(self, table: Table, target: Snapshot, pin: Callable[[Table], Snapshot], connect: Connect) -> None:
        """Pin what a table is built from.

        Args:
            table: a declared table.
            target: it, pinned.
            pin: gives the pinned version of another one.
            connect: opens a DuckDB connection, for tables written in SQL.
        """
        self.table, self.target, self._connect = table, target, connect
        self.basis = Basis.pin(table, pin)

    def outdated(self, evidence: Mapping[str, Evidence]) -> dict[str, str]:
        """By partition, what has changed since its batch was made; those that a replay leaves alone are not there."""
        changes = {key: self.basis.changes(key, each) for key, each in evidence.items()}
        asked = {key: each.references for key, each in changes.items() if each.references}
        used = changed_uses(self.basis, self.target, evidence, asked) if asked else {}
        tables = {name: each["table"] for name, each in self.basis.whole_references().items()}
        found: dict[str, str] = {}
        for key, each in changes.items():
            rekeyed = dict.fromkeys(f"{tables.get(name, name)} changed" for name in used.get(key, ()))
            inputs = [f"{each.inputs[0]} changed"] if each.inputs else []
            if reasons := [*([each.code] if each.code else []), *inputs, *rekeyed]:
                found[key] = ", ".join(reasons)
        return found

    def differences(self, evidence: Mapping[str, Evidence]) -> list[Difference]:
        """Partitions whose verdict says that another number of rows was read than the layer below gives.

        The transform is asked again, since it may leave rows out. Only where the partition is built from the same
        partition below; whoever asks has seen to it that nothing has changed since (see :meth:`outdated`).
        """
        first = next(iter(self.basis.inputs.values()), None)
        if self.table.layer != "silver" or first is None:
            return []
        if first.input.table.partition != self.table.partition or first.input.days != 1:
            return []
        # Where the source was closed there are no rows, and no columns that a transform could be asked for.
        closed = {key: first.snapshot.rows(key) for key, each in evidence.items() if each.closed is not None}
        given = {**closed, **self._rows_given([key for key in evidence if key not in closed])}
        return [
            self._difference(key, each.verdict.read, given[key], first.snapshot)
            for key, each in evidence.items()
            if given[key] != each.verdict.read
        ]

    def _rows_given(self, keys: Sequence[str]) -> dict[str, int | str]:
        """How many rows the transform gives; text says why it gives none."""
        name, first = next(iter(self.basis.inputs.items()))
        groups: dict[tuple[str, ...], list[str]] = {}
        found: dict[str, int | str] = {}
        for key in keys:
            try:
                groups.setdefault(first.snapshot.columns(key), []).append(key)
            except _UNREADABLE as error:
                found[key] = _said(error)
        for columns, some in groups.items():
            chosen = {name: columns} if first.input.table.layer == "bronze" else {}
            try:
                found |= self._count(some, chosen)
            except _UNREADABLE as error:
                found |= dict.fromkeys(some, _said(error))
        return found

    def _count(self, keys: Sequence[str], columns: Mapping[str, Sequence[str]]) -> dict[str, int]:
        rows = transformed(self.table, self.basis.inputs, keys, columns, self._connect)
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


_UNREADABLE = (MedallionError, pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
"""What reading a damaged file may end with."""


def _said(error: BaseException) -> str:
    return f"an error: {(str(error).splitlines() or [''])[0]}"
