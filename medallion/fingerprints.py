"""What a file is by its bytes: its SHA-256, its size and, of a Parquet file, its rows. Read back, never remembered."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from medallion.objects import ObjectPath
from medallion.store import Place

__all__ = ["Fingerprint", "fingerprint"]


@dataclass(frozen=True)
class Fingerprint:
    """A file as it was read back.

    Attributes:
        sha256: of its bytes.
        size: in bytes.
        rows: by the Parquet footer; None if it was not asked for, or there is none that can be read.
    """

    sha256: str
    size: int
    rows: int | None = None


def fingerprint(place: Place, *, rows: bool) -> Fingerprint | None:
    """Read a file back; None if it is not there.

    A local file is hashed as it streams by; an object is fetched whole.

    Args:
        place: the file.
        rows: count the rows of a Parquet file as well.

    Raises:
        OSError: if it is there and cannot be read.
    """
    try:
        if isinstance(place, ObjectPath):
            data = place.read_bytes()
            counted = _rows(io.BytesIO(data)) if rows else None
            return Fingerprint(hashlib.sha256(data).hexdigest(), len(data), counted)
        with place.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.tell()
    except FileNotFoundError:
        return None
    return Fingerprint(sha256, size, _rows(place) if rows else None)


def _rows(source: Path | io.BytesIO) -> int | None:
    try:
        return int(pl.scan_parquet(source, glob=False, hive_partitioning=False).select(pl.len()).collect().item())
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError):
        return None
