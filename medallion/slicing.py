"""How a range is cut into slices: by the bytes that its partitions are expected to take in memory.

A slice is one commit, so it bounds the memory that is needed and is the most that is done again after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from medallion.identity import Basis
from medallion.partitions import Whole
from medallion.tables import Table

__all__ = ["bytes_of_file", "bytes_of_rows", "in_slices", "rows_read"]

_TEXT, _PARQUET = 3, 20
"""How many times a file grows in memory."""
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


def bytes_of_file(table: Table, size: int) -> int:
    """What a bronze table's source file of ``size`` bytes takes in memory."""
    return size * (_PARQUET if str(table.source).endswith(".parquet") else _TEXT)


def bytes_of_rows(basis: Basis, rows: int) -> int:
    """What a partition that is made of that many rows of its inputs takes in memory."""
    columns = max((len(p.snapshot.schema) for p in basis.inputs.values()), default=1)
    return rows * max(columns, 1) * _VALUE


def rows_read(basis: Basis, key: str, rows: Callable[[str, str], int]) -> int:
    """How many rows of its inputs a partition is made of; a reference is read once for all and does not count.

    Args:
        basis: what the table is built from.
        key: the partition.
        rows: how many rows a partition of an input has, by the input's table and key.
    """
    cut = basis.table.partition
    return sum(
        rows(pinned.snapshot.path, each)
        for pinned in basis.inputs.values()
        if not isinstance(pinned.input.table.partition, Whole) or isinstance(cut, Whole)
        for each in pinned.input.keys_for(cut, key)
    )
