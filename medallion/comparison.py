"""What differs between two states of a table: partitions, rows by their key, and totals of numeric columns.

Partitions are told apart by the names of their files; rows are read only where those differ, some partitions at a time.
Where a row came from (the columns that bronze adds, the batch that refused it) is no difference.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from medallion.lake import Lake, Snapshot
from medallion.past_states import snapshot_of
from medallion.project import Project
from medallion.slicing import in_slices
from medallion.tables import SOURCE_COLUMNS, Table

__all__ = ["Comparison", "PartitionChange", "compare", "compare_snapshots", "table_at"]

ADDED, REMOVED, CHANGED = "added", "removed", "changed"
_ROW = SOURCE_COLUMNS[1]
_IGNORED = {*SOURCE_COLUMNS, "_batch_id"}
_ROWS_AT_ONCE = 2_000_000
_EXAMPLES = 20


@dataclass(frozen=True)
class PartitionChange:
    """One partition that differs.

    Attributes:
        kind: ``added``, ``removed`` or ``changed``.
        before, after: rows in the two states.
        added, removed, changed: rows by their key. All 0: other bytes, and the same rows.
    """

    key: str
    kind: str
    before: int
    after: int
    added: int = 0
    removed: int = 0
    changed: int = 0


@dataclass(frozen=True)
class Comparison:
    """Two states of one table.

    Attributes:
        key: the columns by which rows are matched, within their partition; empty if only whole rows can be.
        versions: the Delta versions of the two states; None if there was no table, or only a savepoint knows it.
        partitions: those that differ.
        same: how many partitions do not.
        columns: in how many matched rows each column differs.
        totals: of numeric columns over the partitions that differ, before and after; only those that differ.
        examples: the first rows that differ: partition, kind, and their key.
    """

    table: str
    names: tuple[str, str]
    versions: tuple[int | None, int | None]
    key: tuple[str, ...]
    partitions: Sequence[PartitionChange]
    same: int
    columns: Mapping[str, int] = field(default_factory=dict)
    totals: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    examples: Sequence[Mapping[str, Any]] = ()

    @property
    def rows(self) -> dict[str, int]:
        """Rows added, removed and changed in all partitions together."""
        return {kind: sum(getattr(each, kind) for each in self.partitions) for kind in (ADDED, REMOVED, CHANGED)}


def table_at(project: Project, path: str) -> Table:
    """The declared table whose rows lie at a path, its own or its quarantine's.

    Raises:
        UnknownTable: with the tables there are.
    """
    return next((table for table in project.tables if table.quarantine_path == path), None) or project.table(path)


def compare(project: Project, lake: Lake, path: str, before: str, after: str = "") -> Comparison:
    """What differs between two states of a table.

    Args:
        project: the declared tables.
        lake: where they lie.
        path: ``layer/name``, or ``quarantine/name``.
        before: a version, a savepoint or a moment (see :func:`medallion.past_states.snapshot_of`).
        after: likewise; what stands now if empty.

    Raises:
        UnknownTable: if the table is not declared.
        SavepointRefused: if a name is no savepoint, or it does not match the data.
        TableUnreadable: if a version is not there any more.
    """
    table = table_at(project, path)
    states = [snapshot_of(lake, table, path, name) for name in (before, after)]
    return compare_snapshots(table, states[0], states[1], (before, after or "now"))


def compare_snapshots(table: Table, before: Snapshot, after: Snapshot, names: tuple[str, str]) -> Comparison:
    """What differs between two snapshots of a table or of its quarantine."""
    differing = [
        key
        for key in table.partition.keys()  # noqa: SIM118 - not a dictionary
        if [file.path for file in before.files.get(key, ())] != [file.path for file in after.files.get(key, ())]
    ]
    matched = _key(table, before, after)
    counts: dict[str, Counter[str]] = {key: Counter() for key in differing}
    columns: Counter[str] = Counter()
    totals: dict[str, tuple[Any, Any]] = {}
    examples: list[dict[str, Any]] = []
    for keys in in_slices(differing, lambda key: before.rows(key) + after.rows(key), _ROWS_AT_ONCE):
        rows = _matched(table, before, after, keys, matched)
        for key, kind, count in rows.group_by("_partition", "_kind").len().iter_rows():
            if kind is not None:
                counts[key][kind] += count
        columns.update(_changed_columns(rows))
        examples += _examples(rows, matched)[: _EXAMPLES - len(examples)]
        for name, (old, new) in _totals(before, after, keys).items():
            was = totals.get(name, (0, 0))
            totals[name] = (was[0] + old, was[1] + new)
    return Comparison(
        after.path,
        names,
        (before.version, after.version),
        matched,
        [_change(key, before, after, counts[key]) for key in differing],
        len({**before.files, **after.files}) - len(differing),
        {name: count for name, count in columns.items() if count},
        {name: both for name, both in totals.items() if not _same(*both)},
        examples,
    )


def _change(key: str, before: Snapshot, after: Snapshot, counts: Mapping[str, int]) -> PartitionChange:
    kind = ADDED if key not in before.files else REMOVED if key not in after.files else CHANGED
    return PartitionChange(
        key, kind, before.rows(key), after.rows(key), counts[ADDED], counts[REMOVED], counts[CHANGED]
    )


def _same(before: Any, after: Any) -> bool:
    """Whether two totals are the same but for the order in which floats were added."""
    if isinstance(before, float) or isinstance(after, float):
        return math.isclose(before, after, rel_tol=1e-12) or (math.isnan(before) and math.isnan(after))
    return bool(before == after)


def _key(table: Table, before: Snapshot, after: Snapshot) -> tuple[str, ...]:
    """The columns that name a row within its partition."""
    if table.key and after.path == table.path:
        return tuple(each for each in table.key if each != table.partition.column)
    both = [each.schema for each in (before, after) if each.schema]
    return (_ROW,) if both and all(_ROW in schema for schema in both) else ()


def _matched(table: Table, before: Snapshot, after: Snapshot, keys: Sequence[str], key: Sequence[str]) -> pl.DataFrame:
    """One row for each key: its partition, what became of it, and for each column whether it differs."""
    column = table.partition.column
    schema = {**before.schema, **after.schema}
    compared = [name for name in schema if name not in _IGNORED and name not in key and name != column]
    by = [*([column] if column else []), *(key or compared)]
    sides = [_side(each, keys, by, compared if key else []) for each in (before, after)]
    if not key:  # whole rows: how often each is there
        return _counted(sides[0], sides[1], by, column)
    old, new = (side.with_columns(pl.lit(value=True).alias("_there")) for side in sides)
    rows = old.join(new, on=by, how="full", nulls_equal=True, coalesce=True, suffix="_after")
    differs = [pl.col(name).ne_missing(pl.col(f"{name}_after")).alias(f"_differs_{name}") for name in compared]
    both = pl.col("_there").is_not_null() & pl.col("_there_after").is_not_null()
    kind = (
        pl.when(pl.col("_there").is_null()).then(pl.lit(ADDED))
        .when(pl.col("_there_after").is_null()).then(pl.lit(REMOVED))
        .when(pl.any_horizontal([f"_differs_{name}" for name in compared]) if compared else pl.lit(value=False))
        .then(pl.lit(CHANGED))
    )  # fmt: skip
    return (
        rows.with_columns(differs)
        .with_columns(kind.alias("_kind"), *[pl.col(f"_differs_{name}") & both for name in compared])
        .select(
            _partition(column), "_kind", *[pl.col(name) for name in key], *[f"_differs_{name}" for name in compared]
        )
        .collect()
    )


def _partition(column: str) -> pl.Expr:
    return (pl.col(column).cast(pl.String) if column else pl.lit("all")).alias("_partition")


def _side(snapshot: Snapshot, keys: Sequence[str], by: Sequence[str], compared: Sequence[str]) -> pl.LazyFrame:
    """The rows of one state; a column that it does not have yet is null in it."""
    rows = snapshot.scan(keys)
    has = rows.collect_schema()
    return rows.select(
        pl.col(name) if name in has else pl.lit(None).alias(name) for name in dict.fromkeys([*by, *compared])
    )


def _counted(old: pl.LazyFrame, new: pl.LazyFrame, by: Sequence[str], column: str) -> pl.DataFrame:
    counted = [side.group_by(by).len(name) for side, name in ((old, "_old"), (new, "_new"))]
    more = pl.col("_new").fill_null(0).cast(pl.Int64) - pl.col("_old").fill_null(0).cast(pl.Int64)
    return (
        counted[0]
        .join(counted[1], on=by, how="full", nulls_equal=True, coalesce=True)
        .with_columns(more.alias("_more"))
        .filter(pl.col("_more") != 0)
        .select(
            _partition(column),
            pl.when(pl.col("_more") > 0).then(pl.lit(ADDED)).otherwise(pl.lit(REMOVED)).alias("_kind"),
            pl.col("_more").abs().alias("_times"),
        )
        .select(pl.all().repeat_by("_times").explode())
        .drop("_times")
        .collect()
    )


def _changed_columns(rows: pl.DataFrame) -> dict[str, int]:
    flags = [name for name in rows.columns if name.startswith("_differs_")]
    return {name.removeprefix("_differs_"): int(rows.get_column(name).sum()) for name in flags}


def _examples(rows: pl.DataFrame, key: Sequence[str]) -> list[dict[str, Any]]:
    found = rows.filter(pl.col("_kind").is_not_null()).sort("_partition", *key).head(_EXAMPLES)
    return [
        {"partition": row["_partition"], "kind": row["_kind"], "key": {name: row[name] for name in key}}
        for row in found.iter_rows(named=True)
    ]


def _totals(before: Snapshot, after: Snapshot, keys: Sequence[str]) -> dict[str, tuple[Any, Any]]:
    names = [
        name for name, dtype in {**before.schema, **after.schema}.items() if dtype.is_numeric() and name not in _IGNORED
    ]
    sums = []
    for each in (before, after):
        has = [name for name in names if name in each.schema]
        found = each.scan(keys, has).select(pl.col(has).sum()).collect() if has else pl.DataFrame()
        sums.append(found.row(0, named=True) if found.height else {})
    return {name: (sums[0].get(name) or 0, sums[1].get(name) or 0) for name in names}
