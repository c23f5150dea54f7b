"""Which tables share an operation, and which partitions a run. Without Dagster, so that work can begin before it."""

from collections.abc import Iterable
from itertools import groupby

from medallion.partitions import Partitioning
from medallion.tables import Table

Chain = tuple[Table, ...]
"""A source and what is refined from it, or a single table."""


def chains(tables: Iterable[Table]) -> list[Chain]:
    """The tables that share an operation, in order.

    A source that fails for one day must not keep the other days out of silver. Dagster skips a whole step whose parent
    step failed, so a source and what is refined from it are one step, which reports each partition of each table by
    itself.
    """
    tables = list(tables)
    found: list[Chain] = []
    taken: set[str] = set()
    for table in tables:
        if table.path not in taken:
            chain = (table, *_refinements(table, tables))
            taken.update(each.path for each in chain)
            found.append(chain)
    return found


def _refinements(source: Table, tables: Iterable[Table]) -> list[Table]:
    if source.layer != "bronze":
        return []
    return [
        table
        for table in tables
        if table.layer == "silver"
        and next(iter(table.inputs.values())).table is source
        and table.partition == source.partition
    ]


def neighbours(cut: Partitioning, keys: Iterable[str]) -> list[list[str]]:
    """Some partitions as runs of neighbours, in order."""
    wanted = set(keys)
    places = [(place, key) for place, key in enumerate(cut.keys()) if key in wanted]
    runs = groupby(enumerate(places), key=lambda item: item[1][0] - item[0])
    return [[key for _, (_, key) in run] for _, run in runs]
