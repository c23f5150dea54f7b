"""Prepared files: encoded in memory, named by what they are, written durably before anything refers to them.

A data file's name is its evidence: ``part-<batch id>-<content digest>.parquet``. The digest is that of the bytes, so a
file is encoded before it can be named; it is then written once, under its final name, and an object store is served
the same way as a disk. A file that is written and never committed is invisible, since no log entry names it. Memory
holds the encoded files of one slice, a fraction of the slice's rows.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import polars as pl

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
    "stage",
    "stored_type",
    "sync",
    "write_durably",
]

Item = TypeVar("Item")
Result = TypeVar("Result")

_NAME = re.compile(r"(?:.*/)?part-([0-9a-f]{32})-([0-9a-f]{32})\.parquet")
ENCODING: dict[str, Any] = {"compression": "zstd", "compression_level": 1}
"""zstd at level 1 writes as fast as snappy here and takes two thirds of the space."""
_NO_LIMIT = 2**62
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
        return [_encode(rows, Whole.KEY)] if rows.height or empty else []
    # Rows come in the order of partitions, so the runs of the partition column are the partitions.
    runs = rows.get_column(partition.column).rle().struct.unnest()
    counts = {value: length for length, value in runs.iter_rows()}
    held = [key for key in keys if counts.get(partition.value(key), 0)]
    if len(held) == 1 or rows.n_chunks() >= len(held):
        staged = _each_by_itself(rows.drop(partition.column), counts, {partition.value(key): key for key in held})
    else:
        staged = _all_at_once(rows, partition, held, counts) if held else []
    if empty and len(held) < len(keys):
        nothing = rows.clear().drop(partition.column)
        staged += [_encode(nothing, key) for key in keys if key not in set(held)]
    return staged


def _each_by_itself(rows: pl.DataFrame, counts: Mapping[Any, int], keys: Mapping[Any, str]) -> list[Staged]:
    """For rows that lie in memory in as many pieces, as those of many source files do: a piece is encoded as it lies.

    Cutting them all at once would first put every piece's text together: half as long again (polars 2.1).
    """
    staged: list[Staged] = []
    at = 0
    for value, length in counts.items():
        staged.append(_encode(rows.slice(at, length).rechunk(), keys[value]))
        at += length
    return staged


def _all_at_once(
    rows: pl.DataFrame, partition: Partitioning, held: Sequence[str], counts: Mapping[Any, int]
) -> list[Staged]:
    """For small partitions the cheaper way by far: one query writes all files."""
    buffers: dict[str, io.BytesIO] = {}

    def buffer(given: Any) -> io.BytesIO:
        return buffers.setdefault(str(given.partition_keys.item()), io.BytesIO())

    target = pl.PartitionBy(
        "unused",
        key=[partition.column],
        include_key=False,
        file_path_provider=buffer,
        approximate_bytes_per_file=_NO_LIMIT,
    )
    rows.lazy().sink_parquet(target, **ENCODING)
    staged: list[Staged] = []
    for key in held:
        data = buffers[str(partition.value(key))].getvalue()
        staged.append(Staged(key, data, digest_bytes(data), counts[partition.value(key)]))
    return staged


def _encode(rows: pl.DataFrame, key: str) -> Staged:
    buffer = io.BytesIO()
    rows.write_parquet(buffer, **ENCODING)
    data = buffer.getvalue()
    return Staged(key, data, digest_bytes(data), rows.height)


def publish_files(staged: Iterable[tuple[Staged, DataFile]], table: Place, *, durable: bool) -> None:
    """Write prepared files under their names, still unreferenced; with ``durable``, flush them and their folders."""
    pairs = list(staged)
    folders = {(table / target.path).parent for _, target in pairs} if isinstance(table, Path) else set()
    in_parallel(lambda folder: folder.mkdir(parents=True, exist_ok=True), [f for f in folders if not f.exists()])
    in_parallel(lambda pair: write_named(table / pair[1].path, pair[0].data, durable=durable), pairs)
    if durable:
        in_parallel(sync, [*folders, table])


def in_parallel(function: Callable[[Item], Result], items: Collection[Item]) -> list[Result]:
    """Apply a function that waits for the disk to many items; an error is raised when all have ended."""
    if len(items) < _FEW:
        return [function(item) for item in items]
    each = -(-len(items) // _THREADS)
    shares = [list(items)[start : start + each] for start in range(0, len(items), each)]
    with ThreadPoolExecutor(_THREADS) as pool:
        return [
            result for share in pool.map(lambda share: [function(item) for item in share], shares) for result in share
        ]
