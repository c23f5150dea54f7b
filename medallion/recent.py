"""Rows that were committed a moment ago, so that what is built from them in the same run need not read them again.

They are found by the path of their file. Its name carries the batch and the digest of its bytes, and a committed file
never changes, so that what is recalled is what reading it would give. Nothing outlives the run.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import polars as pl

from medallion.lake import Snapshot
from medallion.staging import DataFile, spans_of

__all__ = ["Recent", "keeping", "recall", "remember"]


@dataclass(eq=False)
class _Kept:
    rows: pl.DataFrame
    spans: Mapping[str, tuple[int, int]]
    size: int
    unread: set[str]


class Recent:
    """What one run keeps, up to a limit."""

    def __init__(self, limit: int) -> None:
        """Keep up to ``limit`` estimated bytes."""
        self._limit, self._kept = limit, list[_Kept]()
        self._lock = threading.Lock()

    def keep(self, rows: pl.DataFrame, spans: Mapping[str, tuple[int, int]]) -> None:
        """Keep rows by path, if there is room. What was read already makes room, what nobody has read yet does not."""
        size = int(rows.estimated_size())
        with self._lock:
            there = sum(each.size for each in self._kept)
            for each in [each for each in self._kept if not each.unread]:
                if there + size <= self._limit:
                    break
                self._kept.remove(each)
                there -= each.size
            if there + size <= self._limit:
                self._kept.append(_Kept(rows, spans, size, set(spans)))

    def find(self, paths: Sequence[str]) -> list[pl.DataFrame] | None:
        """The rows of some files, in their order, with neighbours in one piece; None if one of them is not kept."""
        with self._lock:
            where = {path: each for each in self._kept for path in each.spans}
            if any(path not in where for path in paths):
                return None
            pieces: list[tuple[_Kept, int, int]] = []
            for path in paths:
                kept = where[path]
                start, length = kept.spans[path]
                kept.unread.discard(path)
                if pieces and pieces[-1][0] is kept and sum(pieces[-1][1:]) == start:
                    pieces[-1] = (kept, pieces[-1][1], pieces[-1][2] + length)
                else:
                    pieces.append((kept, start, length))
            return [kept.rows.slice(start, length) for kept, start, length in pieces]


_recent: ContextVar[Recent | None] = ContextVar("recent", default=None)


@contextmanager
def keeping(recent: Recent) -> Iterator[None]:
    """Within, what is committed is kept there for whoever reads it next."""
    token = _recent.set(recent)
    try:
        yield
    finally:
        _recent.reset(token)


def remember(table: Snapshot, rows: pl.DataFrame, files: Iterable[DataFile]) -> None:
    """Keep the rows that were committed as some files, if this run keeps any.

    Args:
        table: to which they were committed.
        rows: in the types in which they are stored, each partition's together; rows of other partitions may be among
            them.
        files: that hold them, one for each partition.
    """
    recent = _recent.get()
    if recent is None:
        return
    cut, spans = table.partition, spans_of(rows, table.partition)
    held = {each: spans.get(cut.value(each.partition), (0, 0)) for each in files}
    recent.keep(rows, {str(table.folder / each.path): span for each, span in held.items() if span[1] == each.rows})


def recall(table: Snapshot, keys: Iterable[str], columns: Iterable[str] | None = None) -> pl.LazyFrame | None:
    """What ``table.scan(keys, columns)`` gives, from what this run has kept; None if something of it is not kept."""
    recent = _recent.get()
    paths = [str(table.folder / file.path) for key in keys for file in table.files.get(key, ())]
    pieces = recent.find(paths) if recent is not None and paths else None
    if not pieces:
        return None
    cut = table.partition.column
    wanted = set(table.schema if columns is None else columns)
    types: dict[str, Any] = {name: dtype for name, dtype in table.schema.items() if name in wanted and name != cut}
    if any(piece.schema.get(name, dtype) != dtype for piece in pieces for name, dtype in types.items()):
        return None
    if cut:
        types[cut] = table.partition.dtype  # last, as a scan has it
    return pl.concat(
        [
            piece.lazy().select(
                pl.col(name) if name in piece.columns else pl.lit(None, dtype).alias(name)
                for name, dtype in types.items()
            )
            for piece in pieces
        ]
    )
