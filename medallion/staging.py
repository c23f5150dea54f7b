"""Prepared files: encoded in memory, named by what they are, written durably before anything refers to them.

A data file's name is its evidence: ``part-<batch id>-<content digest>.parquet``. The digest is that of the bytes, so a
file is encoded before it can be named; it is then written once, under its final name, and an object store is served
the same way as a disk. A file that is written and never committed is invisible, since no log entry names it. Memory
holds the encoded files of one slice, a fraction of the slice's rows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from medallion.digests import digest_bytes
from medallion.partitions import Partitioning, Whole
from medallion.store import Place, sync, write_durably, write_named

__all__ = [
    "DataFile",
    "Staged",
    "as_stored",
    "in_parallel",
    "parse_name",
    "partition_of",
    "publish_files",
    "spans_of",
    "stage",
    "stored_type",
    "sync",
    "write_durably",
]

Item = TypeVar("Item")
Result = TypeVar("Result")

_NAME = re.compile(r"(?:.*/)?part-([0-9a-f]{32})-([0-9a-f]{32})\.parquet")
_ROW_GROUP = 1 << 18
_ENCODERS = max(2, os.cpu_count() or 2)
_THREADS = 8
_FEW = 4
"""Disk operations wait more than they compute; for fewer than these a pool costs more than it saves."""


@dataclass(frozen=True)
class DataFile:
    """One data file of a partition, as its name and the log describe it.

    Attributes:
        path: relative to the table.
        batch_id: of the logical work that made it.
        digest: of its bytes; equal rows give equal bytes.
        rows: in the file.
        size: in bytes.
        modified: when it was added, in milliseconds since 1970, as the log says; 0 before it is.
    """

    partition: str
    path: str
    batch_id: str
    digest: str
    rows: int
    size: int
    modified: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Staged:
    """An encoded file of a partition, before it has a batch id."""

    partition: str
    data: bytes = field(repr=False)
    digest: str
    rows: int

    def named(self, batch_id: str, folder: str) -> DataFile:
        """The file under its final name."""
        name = f"part-{batch_id}-{self.digest}.parquet"
        path = f"{folder}/{name}" if folder else name
        return DataFile(self.partition, path, batch_id, self.digest, self.rows, len(self.data))


def parse_name(path: str) -> tuple[str, str] | None:
    """Batch id and content digest from a data file's path; None if the engine did not name it."""
    match = _NAME.fullmatch(path)
    return (match[1], match[2]) if match else None


def partition_of(path: str) -> str:
    """The partition of a data file, from its path relative to the table."""
    return PurePosixPath(path).parent.name.partition("=")[2] or Whole.KEY


_WIDER: dict[pl.DataType, pl.DataType] = {
    pl.UInt8(): pl.Int16(),
    pl.UInt16(): pl.Int32(),
    pl.UInt32(): pl.Int64(),
    pl.UInt64(): pl.Decimal(20, 0),
}
_NEVER = (pl.Time, pl.Duration, pl.Int128, pl.UInt128, pl.Float16, pl.Object)


def stored_type(dtype: pl.DataType) -> pl.DataType | None:
    """The type in which a Delta table keeps every value of ``dtype`` exactly; None if there is none.

    Delta has no unsigned numbers, no categories, no milliseconds, and no time zone but UTC. deltalake would take some
    of these and store them as something narrower (deltalake 1.6: UInt8 as byte).
    """
    if dtype in _NEVER:
        return None
    if isinstance(dtype, pl.List | pl.Array):
        inner = stored_type(dtype.inner)  # type: ignore[arg-type]
        return None if inner is None else pl.List(inner)
    if isinstance(dtype, pl.Struct):
        fields = {each.name: stored_type(each.dtype) for each in dtype.fields}  # type: ignore[arg-type]
        return None if None in fields.values() else pl.Struct(fields)  # type: ignore[arg-type]
    if isinstance(dtype, pl.Categorical | pl.Enum):
        return pl.String()
    if isinstance(dtype, pl.Datetime):
        return pl.Datetime("us" if dtype.time_unit == "ms" else dtype.time_unit, dtype.time_zone and "UTC")
    return _WIDER.get(dtype, dtype)


def as_stored(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows in the types in which they are stored."""
    return rows.with_columns(
        pl.col(name).cast(wide)
        for name, dtype in rows.schema.items()
        if (wide := stored_type(dtype)) is not None and wide != dtype
    )


def stage(rows: pl.DataFrame, partition: Partitioning, keys: Sequence[str], *, empty: bool) -> list[Staged]:
    """Encode the rows of some partitions, one file each.

    Args:
        rows: in the order they are to be stored, each partition's together; with the partition column, which is not
            written into the files.
        partition: how the table is cut.
        keys: the partitions.
        empty: whether a partition without rows gets a file without rows. In a table it does, so that its committed
            state can be read from the name of a file; in a quarantine it does not.
    """
    if isinstance(partition, Whole):
        return _encode(rows, [(Whole.KEY, 0, rows.height)]) if rows.height or empty else []
    spans = spans_of(rows, partition)
    found = [(key, *spans.get(partition.value(key), (0, 0))) for key in keys]
    return _encode(rows.drop(partition.column), [each for each in found if empty or each[2]])


def spans_of(rows: pl.DataFrame, partition: Partitioning) -> dict[Any, tuple[int, int]]:
    """Where each partition's rows start, and how many there are, by its value; each partition's lie together."""
    if isinstance(partition, Whole):
        return {Whole.KEY: (0, rows.height)}
    runs = rows.get_column(partition.column).rle().struct.unnest()
    ends = runs.select("value", "len", end=pl.col("len").cum_sum())
    return {value: (end - length, length) for value, length, end in ends.iter_rows()}


def _as_arrow(rows: pl.DataFrame) -> pa.Table:
    """The same memory as Arrow sees it; nested text, which it cannot cut as polars holds it (pyarrow 26), is copied."""
    parts = {
        name: rows.select(name).to_arrow(
            compat_level=pl.CompatLevel.oldest() if dtype.is_nested() else pl.CompatLevel.newest()
        )
        for name, dtype in rows.schema.items()
    }
    return pa.table({name: part.column(0) for name, part in parts.items()})


def _encode(rows: pl.DataFrame, cut: Sequence[tuple[str, int, int]]) -> list[Staged]:
    """A file of each partition, given as its key and where its rows start and how many there are.

    Numbers are stored as differences (DELTA_BINARY_PACKED), text by dictionary, and both are compressed with snappy. It
    takes half the processor's time of dictionaries for everything with zstd, and a twelfth more space.
    """
    whole = _as_arrow(rows)
    options: dict[str, Any] = {
        "compression": "snappy",
        "use_dictionary": [name for name, dtype in rows.schema.items() if dtype == pl.String] or False,
        "column_encoding": {
            name: "DELTA_BINARY_PACKED"
            for name, dtype in rows.schema.items()
            if dtype.is_integer() or dtype.is_temporal()
        },
        "store_schema": False,
    }

    def one(each: tuple[str, int, int]) -> Staged:
        key, start, length = each
        # A file's bytes are those of its rows alone: they must not show how the rows lie in memory.
        part = whole.slice(start, length).combine_chunks()
        buffer = pa.BufferOutputStream()
        with pq.ParquetWriter(buffer, whole.schema, **options) as writer:
            writer.write_table(part, row_group_size=_ROW_GROUP)
        data = buffer.getvalue().to_pybytes()
        return Staged(key, data, digest_bytes(data), length)

    return in_parallel(one, cut, threads=_ENCODERS)


def publish_files(staged: Iterable[tuple[Staged, DataFile]], table: Place, *, durable: bool) -> None:
    """Write prepared files under their names, still unreferenced; with ``durable``, flush them and their folders."""
    pairs = list(staged)
    folders = {(table / target.path).parent for _, target in pairs} if isinstance(table, Path) else set()
    in_parallel(lambda folder: folder.mkdir(parents=True, exist_ok=True), [f for f in folders if not f.exists()])
    in_parallel(lambda pair: write_named(table / pair[1].path, pair[0].data, durable=durable), pairs)
    if durable:
        in_parallel(sync, [*folders, table])


def in_parallel(
    function: Callable[[Item], Result], items: Collection[Item], *, threads: int = _THREADS
) -> list[Result]:
    """Apply a function that waits for the disk, or computes outside of Python, to many items.

    An error is raised when all have ended.
    """
    if len(items) < _FEW:
        return [function(item) for item in items]
    each = -(-len(items) // threads)
    shares = [list(items)[start : start + each] for start in range(0, len(items), each)]
    with ThreadPoolExecutor(threads) as pool:
        return [
            result for share in pool.map(lambda share: [function(item) for item in share], shares) for result in share
        ]
