"""Where a lake lies: one set of words for a local folder and for a bucket of an object store.

A place is a ``pathlib.Path``, or an :class:`~medallion.objects.ObjectPath`, which knows the words of it that the engine
uses: read, exists, list, delete, size and time. What differs between the two is here: how something is written so that
a reader sees all of it or none, and what makes it last.

==================  =====================================================  ===================================
word                a local folder                                         an object store
==================  =====================================================  ===================================
write_durably       a temporary file, flushed, renamed over the old one     one PUT, which is whole or nothing
write_named         ``O_EXCL``; what stands is replaced as above            one PUT: the name promises the bytes
write_once          a temporary file, flushed, linked if there is none      a PUT with ``If-None-Match``
sync                ``fsync`` of a file or of a folder's entries            nothing: an answered PUT is durable
commit a version    an atomic link (deltalake)                              a PUT with ``If-None-Match`` (deltalake)
==================  =====================================================  ===================================
"""

from __future__ import annotations

import io
import os
import uuid
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import polars as pl
import pyarrow.parquet as pq

from medallion.objects import ObjectPath, check_answers, is_address, open_address, options_for_scans, options_for_tables

__all__ = [
    "Place",
    "check_reachable",
    "is_address",
    "open_place",
    "parquet_columns",
    "parquet_shape",
    "readable",
    "relative",
    "scan_options",
    "sync",
    "table_options",
    "tables",
    "write_durably",
    "write_named",
    "write_once",
]

Place = Path | ObjectPath
"""A file or folder of a lake."""


def open_place(root: str | os.PathLike[str] | ObjectPath) -> Place:
    """The place that a setting names: a folder, or ``s3://bucket/prefix``.

    Raises:
        ConfigurationError: if it is an object store that cannot be used.
    """
    if isinstance(root, ObjectPath):
        return root
    return open_address(str(root)) if is_address(str(root)) else Path(root).absolute()


def check_reachable(root: Place, error: Exception) -> None:
    """Tell a store that refuses or does not answer from a table that cannot be read.

    Args:
        root: of the lake.
        error: by which a table could not be opened; of an object store, an ``OSError`` is the store's.

    Raises:
        ConfigurationError: if it is the store; says what to set.
    """
    if isinstance(root, ObjectPath):
        check_answers(root, error if isinstance(error, OSError) else None)


def write_durably(place: Place, data: bytes, *, durable: bool = True) -> None:
    """Write a file so that a reader sees all of it or none, and it survives a crash; its folder is there."""
    if isinstance(place, ObjectPath):
        place.write_bytes(data)
        return
    temporary = place.with_name(f".{place.name}.{uuid.uuid4().hex}")
    with temporary.open("wb") as file:
        _fill(file, data, durable=durable)
    temporary.replace(place)


def write_named(place: Place, data: bytes, *, durable: bool) -> None:
    """Write a file whose name promises what is in it; the folder's entry is flushed by the caller."""
    if isinstance(place, ObjectPath):
        place.write_bytes(data)
        return
    try:
        with place.open("xb") as file:
            _fill(file, data, durable=durable)
    except FileExistsError:
        # Left by an attempt that died, perhaps in the middle of writing; or live already, and then a reader may
        # have it open. The name promises the content, so a whole file is put in its place in one step.
        write_durably(place, data, durable=durable)


def write_once(place: Place, data: bytes, *, durable: bool) -> None:
    """Write a file that is never overwritten; a reader sees all of it or none. Its folder is there.

    Raises:
        FileExistsError: if something else stands there.
    """
    if isinstance(place, ObjectPath):
        try:
            place.create_bytes(data)
        except FileExistsError:
            # The store may have taken it and its answer was lost; what makes a file unique stands in it.
            if place.read_bytes() != data:
                raise
        return
    temporary = place.with_name(f".{place.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            _fill(file, data, durable=durable)
        os.link(temporary, place)
    finally:
        temporary.unlink(missing_ok=True)
    if durable:
        sync(place.parent)


def _fill(file: io.BufferedWriter, data: bytes, *, durable: bool) -> None:
    file.write(data)
    if durable:
        file.flush()
        os.fsync(file.fileno())


def sync(place: Place) -> None:
    """Flush a file, or a folder's entries, to the disk; an object store has done so when it answered."""
    if isinstance(place, ObjectPath):
        return
    descriptor = os.open(place, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def relative(place: Place, root: Place) -> PurePosixPath:
    """The name of a place below another."""
    if isinstance(place, ObjectPath):
        return place.relative_to(root)
    return PurePosixPath(place.relative_to(str(root)))


def readable(place: Place) -> Path | io.BytesIO:
    """What a reader of one whole file takes."""
    return io.BytesIO(place.read_bytes()) if isinstance(place, ObjectPath) else place


def tables(root: Place) -> list[Place]:
    """The folders of the tables in a lake, in order."""
    found: list[Place] = []
    if isinstance(root, ObjectPath):
        found += [table for layer in root.folders() for table in layer.folders() if (table / "_delta_log").exists()]
    else:
        found += [log.parent for log in root.glob("*/*/_delta_log")]
    return sorted(found, key=str)


def table_options(place: Place) -> dict[str, str] | None:
    """What deltalake is told of the store besides what it finds in the environment; never a credential."""
    return options_for_tables() if isinstance(place, ObjectPath) else None


def scan_options(place: Place) -> Mapping[str, Any]:
    """What a polars scan is told of the store besides what it finds in the environment; never a credential."""
    return options_for_scans() if isinstance(place, ObjectPath) else {}


def parquet_columns(place: Place) -> list[str]:
    """The columns of a Parquet file, from its footer."""
    if isinstance(place, ObjectPath):
        scan = pl.scan_parquet(str(place), glob=False, hive_partitioning=False, **options_for_scans())
        return scan.collect_schema().names()
    return list(pl.read_parquet_schema(place))


def parquet_shape(place: Place) -> tuple[int, int]:
    """How many rows and columns a Parquet file has, from its footer.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is no Parquet file.
    """
    footer = pq.read_metadata(readable(place))
    return footer.num_rows, footer.num_columns
