"""Prepared files: written where no reader looks, named by what they are, made durable before anything refers to them.

A data file's name is its evidence: ``part-<batch id>-<content digest>.parquet``. Files are prepared under the table's
``_staging/<attempt>`` folder, which Delta readers and vacuum leave alone, and are moved to their hive folder just
before the commit. A file that is moved and never committed is invisible, since no log entry names it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import polars as pl

from medallion.digests import digest_file
from medallion.partitions import Partitioning, Whole

__all__ = ["DataFile", "Staged", "parse_name", "stage", "sync_folder"]

_NAME = re.compile(r"(?:.*/)?part-([0-9a-f]{32})-([0-9a-f]{32})\.parquet")
_COMPRESSION: Literal["zstd"] = "zstd"
_LEVEL = 1
"""zstd at level 1 writes as fast as snappy here and takes two thirds of the space."""


@dataclass(frozen=True)
class DataFile:
    """One data file of a partition, as its name and the log describe it.

    Attributes:
        path: relative to the table.
        batch_id: of the logical work that made it.
        digest: of its bytes; equal rows give equal bytes.
        rows: in the file.
        size: in bytes.
    """

    partition: str
    path: str
    batch_id: str
    digest: str
    rows: int
    size: int


@dataclass(frozen=True)
class Staged:
    """A prepared file of a partition: where it lies, and what is known of it before it has a batch id."""

    partition: str
    temporary: Path
    digest: str
    rows: int
    size: int

    def named(self, batch_id: str, folder: str) -> DataFile:
        """The file under its final name."""
        name = f"part-{batch_id}-{self.digest}.parquet"
        path = f"{folder}/{name}" if folder else name
        return DataFile(self.partition, path, batch_id, self.digest, self.rows, self.size)


def parse_name(path: str) -> tuple[str, str] | None:
    """Batch id and content digest from a data file's path; None if the engine did not name it."""
    match = _NAME.fullmatch(path)
    return (match[1], match[2]) if match else None


def stage(
    rows: pl.DataFrame, partition: Partitioning, keys: Sequence[str], folder: Path, *, empty: bool
) -> list[Staged]:
    """Write the rows of some partitions, one file each, below ``folder``.

    Args:
        rows: in the order they are to be stored, each partition's together; with the partition column, which is not
            written into the files.
        partition: how the table is cut.
        keys: the partitions.
        folder: made if it is not there.
        empty: whether a partition without rows gets a file without rows. In a table it does, so that its committed
            state can be read from the name of a file; in a quarantine it does not.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(partition, Whole):
        if rows.height == 0 and not empty:
            return []
        return [_write(rows, Whole.KEY, folder / "all.parquet")]
    # Rows come in the order of partitions, so the runs of the partition column are the partitions.
    counts = {value: length for length, value in rows.get_column(partition.column).rle().struct.unnest().iter_rows()}
    held = [key for key in keys if counts.get(partition.value(key), 0)]
    staged: dict[str, Staged] = {}
    if len(held) == 1:
        staged[held[0]] = _write(rows.drop(partition.column), held[0], folder / f"{held[0]}.parquet")
    elif held:
        target = pl.PartitionBy(folder, key=[partition.column], include_key=False)
        rows.lazy().sink_parquet(target, compression=_COMPRESSION, compression_level=_LEVEL, mkdir=True)
        for key in held:
            (path,) = (folder / f"{partition.column}={key}").iterdir()
            staged[key] = Staged(key, path, digest_file(path), counts[partition.value(key)], path.stat().st_size)
    if empty and len(staged) < len(keys):
        nothing = rows.clear().drop(partition.column)
        for key in keys:
            if key not in staged:
                staged[key] = _write(nothing, key, folder / f"{key}.parquet")
    return list(staged.values())


def _write(rows: pl.DataFrame, key: str, path: Path) -> Staged:
    rows.write_parquet(path, compression=_COMPRESSION, compression_level=_LEVEL)
    return Staged(key, path, digest_file(path), rows.height, path.stat().st_size)


def publish_files(staged: Iterable[tuple[Staged, DataFile]], table: Path, *, durable: bool) -> None:
    """Move prepared files to their final names, still unreferenced; with ``durable``, flush them and their folders."""
    folders = set()
    for source, target in staged:
        path = table / target.path
        if path.parent not in folders:
            path.parent.mkdir(parents=True, exist_ok=True)
            folders.add(path.parent)
        if not source.temporary.exists() and path.exists():
            continue  # an earlier try of the same commit has moved it
        if durable:
            _sync_file(source.temporary)
        source.temporary.replace(path)
    if durable:
        for folder in folders:
            sync_folder(folder)
        sync_folder(table)


def write_durably(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Write a small file so that a reader sees all of it or none, and it survives a crash; its folder is there."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(data)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries, so that a renamed file survives a power cut."""
    _sync_file(folder)


def discard_folder(folder: Path) -> None:
    """Remove a staging folder; what is already gone is no error."""
    shutil.rmtree(folder, ignore_errors=True)
