"""Which partitions follow from others: downstream those that may change, upstream those that are needed.

Windows are the inputs' own: a corrected day reaches the days of a trailing window behind it, clipped at the table's
edges, its week and its month. A reference table reaches every partition that is there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial

from medallion.identity import Basis
from medallion.partitions import Whole
from medallion.state import PartitionState, Standing
from medallion.tables import Table

__all__ = ["Built", "affected", "needed"]

Built = Mapping[str, Collection[str]]
"""Partitions by table."""


def affected(basis: Basis, changing: Built, states: Mapping[str, PartitionState]) -> dict[str, list[str]]:
    """The partitions of a table that are built from partitions which may change, each with what it is built from.

    Args:
        basis: of the table.
        changing: the partitions that may change.
        states: of the table's partitions. A reference that changes is no reason to build one that is not there.
    """
    cut = basis.table.partition
    found: dict[str, list[str]] = {}
    for source, keys_of in _sources(basis):
        moved = changing.get(source.path)
        if not moved:
            continue
        if isinstance(source.partition, Whole) and not isinstance(cut, Whole):
            for key, state in states.items():
                if state.batch_id is not None or state.standing is Standing.BLOCKED:
                    found.setdefault(key, []).append(source.path)
            continue
        for key in cut.keys():  # noqa: SIM118 - a method of partitionings, not of a dictionary
            if hits := [f"{source.path} {each}" for each in keys_of(key) if each in moved]:
                found.setdefault(key, []).extend(hits)
    return {key: list(dict.fromkeys(hits)) for key, hits in found.items()}


def needed(basis: Basis, keys: Collection[str]) -> dict[str, set[str]]:
    """The partitions of other tables that some partitions are built from, by table."""
    found: dict[str, set[str]] = {}
    for source, keys_of in _sources(basis):
        found.setdefault(source.path, set()).update(each for key in keys for each in keys_of(key))
    return found


def _sources(basis: Basis) -> Iterator[tuple[Table, Callable[[str], tuple[str, ...]]]]:
    """What a table is built from, and which partitions of it one of the table's is."""
    cut = basis.table.partition
    for pinned in basis.inputs.values():
        yield pinned.input.table, partial(pinned.input.keys_for, cut)
    for reference, _ in basis.references.values():
        yield reference.table, lambda key: (Whole.KEY,)
