"""How a range is cut into slices: by the bytes that its partitions are expected to take in memory.

A slice is one commit, so it bounds the memory that is needed and is the most that is done again after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from medallion.identity import Basis
from medallion.partitions import Whole
from medallion.store import Place, parquet_shape
from medallion.tables import Table

__all__ = ["bytes_of_file", "bytes_of_rows", "in_slices", "rows_read"]

_TEXT = 3
"""How many times a file of text grows in memory."""
_ADDED = 4
"""Columns that bronze adds: where a row comes from, and its partition."""
_VALUE = 16
"""Bytes of a value in memory, with the working copies of a query."""


def in_slices(keys: Sequence[str], weigh: Callable[[str], int], limit: int) -> Iterator[list[str]]:
    """Cut keys so that each slice weighs no more than the limit; one that weighs more is alone."""
    piece: list[str] = []
    weight = 0
    for key in keys:
        mine = weigh(key)
        if piece and weight + mine > limit:
            yield piece
            piece, weight = [], 0
        piece.append(key)
        weight += mine
    if piece:
        yield piece


def bytes_of_file(table: Table, place: Place, size: int) -> int:
    """What a bronze table's source file takes in memory.

    Parquet may hold a thousand rows in as many bytes as one, so its footer is asked.

    Args:
        table: whose source it is.
        place: where the file lies.
        size: in bytes.
    """
    if not str(table.source).endswith(".parquet"):
        return size * _TEXT
    try:
        rows, columns = parquet_shape(place)
    except (OSError, ValueError):  # reading it will say what is wrong
        return size
    return rows * (columns + _ADDED) * _VALUE


def bytes_of_rows(basis: Basis, rows: int) -> int:
    """What a partition that is made of that many rows of its inputs takes in memory."""
    declared = len(basis.table.schema.columns) if basis.table.schema is not None else 1
    columns = max((len(p.snapshot.schema) for p in basis.inputs.values()), default=0)
    return rows * (columns or declared) * _VALUE


def rows_read(table: Table, key: str, rows: Callable[[Table, str], int]) -> int:
    """How many rows of its inputs a partition is made of; a reference is read once for all and does not count.

    Args:
        table: whose partition it is.
        key: the partition.
        rows: how many rows a partition of an input has.
    """
    return sum(
        rows(each.table, one)
        for each in table.inputs.values()
        if not isinstance(each.table.partition, Whole) or isinstance(table.partition, Whole)
        for one in each.keys_for(table.partition, key)
    )
