"""What a partition is built from: pinned versions, their content, and the frames that a transform is given.

A transform sees every partitioned input with the *target's* partition column. Where windows differ (days to a month, a
trailing week), a row appears once for each target partition whose window holds it, so that one grouping by the target's
column serves any number of partitions.
"""

from __future__ import annotations

import hashlib
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import duckdb
import polars as pl

from medallion.digests import digest
from medallion.errors import TransformFailed
from medallion.lake import Snapshot
from medallion.partitions import Partitioning, Whole
from medallion.recent import recall
from medallion.tables import Input, Sql, Table

__all__ = ["Connect", "Pinned", "attach_target", "reference_values", "transformed", "used_digests"]

Connect = Callable[[], AbstractContextManager[duckdb.DuckDBPyConnection]]


@dataclass(frozen=True)
class Pinned:
    """An input at one version."""

    input: Input
    snapshot: Snapshot

    def contents(self, target: Partitioning, key: str) -> dict[str, str | None]:
        """The content digest of each partition that ``key`` is built from; None where one is not committed."""
        return {each: self.snapshot.content(each) for each in self.input.keys_for(target, key)}

    @property
    def counts_whole(self) -> bool:
        """Whether all of its content counts for a partition's identity."""
        return self.input.by is None


def attach_target(
    pinned: Pinned, target: Partitioning, keys: Sequence[str], columns: Sequence[str] | None = None
) -> pl.LazyFrame:
    """The rows of an input that some target partitions are built from, with the target's partition column.

    In a trailing window the row's own day is kept in a column with an underscore before its name.
    """
    mine = pinned.input.table.partition
    if isinstance(mine, Whole):
        return _rows(pinned.snapshot, mine.keys(), columns)
    pairs = [(each, key) for key in keys for each in pinned.input.keys_for(target, key)]
    rows = _rows(pinned.snapshot, list(dict.fromkeys(each for each, _ in pairs)), columns)
    if mine == target and pinned.input.days == 1:
        return rows
    own = f"_{mine.column}" if mine.column == target.column else mine.column
    mapping = pl.DataFrame(
        [mine.series([each for each, _ in pairs], own), target.series([key for _, key in pairs])],
    )
    renamed = rows.rename({mine.column: own}) if own != mine.column else rows
    return renamed.join(mapping.lazy(), on=own, how="inner")


def _rows(snapshot: Snapshot, keys: Sequence[str], columns: Sequence[str] | None) -> pl.LazyFrame:
    kept = recall(snapshot, keys, columns)
    return snapshot.scan(keys, columns) if kept is None else kept


def transformed(
    table: Table,
    inputs: Mapping[str, Pinned],
    keys: Sequence[str],
    columns: Mapping[str, Sequence[str]],
    connect: Connect,
) -> pl.LazyFrame:
    """The rows that the table's transform gives for some partitions, with the partition column.

    Args:
        table: whose transform it is.
        inputs: pinned, by the transform's names.
        keys: the partitions; given all at once if the transform is partitionwise, else one after the other.
        columns: for some inputs, the columns that their files really have.
        connect: opens a DuckDB connection, for SQL transforms.

    Raises:
        TransformFailed: if the function itself raises; polars' own errors pass as they are.
    """
    if table.partitionwise or len(keys) == 1:
        return _call(table, inputs, list(keys), columns, connect)
    return pl.concat([_call(table, inputs, [key], columns, connect) for key in keys])


def _call(
    table: Table,
    inputs: Mapping[str, Pinned],
    keys: list[str],
    columns: Mapping[str, Sequence[str]],
    connect: Connect,
) -> pl.LazyFrame:
    frames = {name: attach_target(each, table.partition, keys, columns.get(name)) for name, each in inputs.items()}
    if isinstance(table.transform, Sql):
        try:
            rows = _run_sql(table.transform, frames, connect)
        except duckdb.Error as error:
            raise TransformFailed(table.path, keys[0], error) from error
    else:
        assert table.transform is not None
        try:
            rows = table.transform(**frames)
        except pl.exceptions.PolarsError:
            raise
        except Exception as error:
            raise TransformFailed(table.path, keys[0], error) from error
        if not isinstance(rows, pl.LazyFrame):
            wrong = TypeError(f"the transform returned {type(rows).__name__}, and a LazyFrame is expected")
            raise TransformFailed(table.path, keys[0], wrong)
    column = table.partition.column
    if column and column not in rows.collect_schema():
        if len(keys) > 1:
            lost = ValueError(f"partition column {column!r} is not in the result of a partitionwise transform")
            raise TransformFailed(table.path, keys[0], lost)
        rows = rows.with_columns(pl.lit(table.partition.value(keys[0]), table.partition.dtype()).alias(column))
    return rows


def _run_sql(sql: Sql, frames: Mapping[str, pl.LazyFrame], connect: Connect) -> pl.LazyFrame:
    with connect() as connection:
        for name, frame in frames.items():
            connection.register(name, frame)
        try:
            result: pl.DataFrame = connection.sql(sql.query).pl()
        finally:
            for name in frames:
                connection.unregister(name)
    return result.lazy()


def used_digests(table: Table, inputs: Mapping[str, Pinned], keys: Sequence[str]) -> dict[str, dict[str, str]]:
    """For each input that counts by key, and each partition, a digest of the reference rows that the partition uses.

    The used rows are those whose key occurs in one of the partition's other inputs. Rows are hashed one by one
    (BLAKE2b, 64 bits) and the hashes of the used ones are added up, so that equal use gives an equal digest.
    """
    found: dict[str, dict[str, str]] = {}
    column = table.partition.column
    for name, pinned in inputs.items():
        if pinned.input.by is None:
            continue
        by = pinned.input.by
        used = [
            attach_target(each, table.partition, keys).select(*([column] if column else []), by).unique()
            for other, each in inputs.items()
            if other != name and not isinstance(each.input.table.partition, Whole) and by in each.snapshot.schema
        ]
        if not used:  # no input has the column, as bronze may turn out not to have: then all of the reference counts
            found[name] = dict.fromkeys(keys, digest(pinned.snapshot.content(Whole.KEY)))
            continue
        ids = (pl.concat(used).unique() if len(used) > 1 else used[0]).collect()
        rows = ids.join(_hashes(_Version.of(pinned.snapshot), by).of(ids.get_column(by)), on=by, how="inner")
        # A sum names a set whatever its order (AdHash). Halves of 32 bits do not overflow below four billion rows.
        half = pl.col("_hash")
        sums = [pl.len().alias("n"), (half & 0xFFFFFFFF).sum().alias("low"), (half // 2**32).sum().alias("high")]
        digests: dict[str, str] = defaultdict(lambda: digest("none used"))
        if column:
            digests.update((str(value), digest(used)) for value, *used in rows.group_by(column).agg(sums).iter_rows())
        else:
            digests[Whole.KEY] = digest(list(rows.select(sums).row(0)))
        found[name] = {key: digests[key] for key in keys}
    return found


@dataclass(frozen=True)
class _Version:
    """A reference table by what it holds."""

    folder: str
    content: str | None
    snapshot: Snapshot = field(compare=False)

    @classmethod
    def of(cls, snapshot: Snapshot) -> _Version:
        return cls(str(snapshot.folder), snapshot.content(Whole.KEY), snapshot)


class _Hashes:
    """The hashes of the rows of one version of a reference table, each row hashed when it is first asked for."""

    def __init__(self, version: _Version, by: str) -> None:
        self._snapshot, self._by, self._lock = version.snapshot, by, threading.Lock()
        self._known: pl.DataFrame | None = None
        self._asked = pl.Series(by, [], dtype=version.snapshot.schema[by])

    def of(self, values: pl.Series) -> pl.DataFrame:
        """The key and hash of each row whose key is among ``values``."""
        with self._lock:
            new = values.unique()
            new = new.filter(~new.is_in(self._asked.implode()))
            if self._known is None or new.len():
                rows = self._snapshot.scan(self._snapshot.partition.keys())
                found = _hash_rows(rows.join(pl.LazyFrame([new]), on=self._by, how="semi").collect(), self._by)
                self._known = found if self._known is None else pl.concat([self._known, found])
                self._asked = self._asked.append(new)
            return self._known


@lru_cache(maxsize=8)
def _hashes(version: _Version, by: str) -> _Hashes:
    """Slices of a range, and the tables of a run, use the same rows of a reference over and over."""
    return _Hashes(version, by)


def _hash_rows(rows: pl.DataFrame, by: str) -> pl.DataFrame:
    # Each value as text with its length before it, so that only equal rows give equal text.
    texts = [_as_text(column).alias(f"{at}") for at, column in enumerate(rows.get_columns())]
    parts = [pl.concat_str(pl.col(each.name).str.len_bytes(), pl.lit(":"), pl.col(each.name)) for each in texts]
    lines = pl.DataFrame(texts).select(pl.concat_str([part.fill_null("-") for part in parts])).to_series()
    hashes = [int.from_bytes(hashlib.blake2b(line.encode(), digest_size=8).digest(), "little") for line in lines]
    return pl.DataFrame([rows.get_column(by), pl.Series("_hash", hashes, dtype=pl.UInt64)])


def _as_text(column: pl.Series) -> pl.Series:
    if column.dtype.is_nested() or column.dtype in (pl.Binary, pl.Object):
        return pl.Series([None if value is None else repr(value) for value in column.to_list()], dtype=pl.String)
    return column.cast(pl.String)


def reference_values(snapshot: Snapshot, table: Table, column: str) -> pl.Series:
    """The values of a reference table's column at a pinned version, sorted, each once."""
    rows: Any = snapshot.scan(table.partition.keys(), [column]).select(column).unique().sort(column).collect()
    values: pl.Series = rows.get_column(column)
    return values
