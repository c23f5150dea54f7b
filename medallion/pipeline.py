"""Several tables in one go: a part of a table is refined as soon as what it is built from has been settled.

Bronze waits for the disk where silver computes, so that a range is cut into pieces and a piece of one table runs beside
a piece of another. Nothing else differs from refining the tables one after the other: each piece goes the path of
``refine`` with a commit of its own, the pieces of one table follow each other in the order of its partitions, since
rules look at the past, and none starts before every partition that it reads, and that is asked for, has its outcome.
"""

from __future__ import annotations

import contextvars
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

from medallion.outcomes import Outcome, Report
from medallion.partitions import Whole
from medallion.refine import Run, refine
from medallion.tables import Table

__all__ = ["refine_all"]

_PIECES = 4
"""More would overlap better, and each costs a commit."""


@dataclass(frozen=True)
class _Piece:
    table: Table
    keys: tuple[str, ...]
    needs: frozenset[tuple[str, str]]
    """Table and partition of what it reads, as far as that is asked for too."""


def refine_all(
    wanted: Mapping[Table, Sequence[str]], run: Run, *, at_once: int = 2, least: int = 20
) -> dict[Table, Report]:
    """Refine partitions of several tables.

    Args:
        wanted: the partitions of each table, the tables in an order in which each comes after those that it is built
            from.
        run: as for :func:`~medallion.refine.refine`; ``slice_bytes`` holds for all that run at once together.
        at_once: pieces that run at the same time; 1 refines whole tables one after the other.
        least: partitions of a piece; for fewer, the commit costs more than the overlap saves.

    Returns:
        a report for each table, in the order of ``wanted``; outcomes in the order of the table's partitions.

    Raises:
        UnknownPartition: before anything is read or written, if a table does not have one of its partitions.
    """
    for table, keys in wanted.items():
        for key in keys:
            table.partition.check(key)
    least = least if at_once > 1 else max(map(len, wanted.values()), default=1)
    waiting = [piece for table, keys in wanted.items() for piece in _pieces(table, keys, wanted, least)]
    unsettled = {(piece.table.path, key) for piece in waiting for key in piece.keys}
    share = replace(run, slice_bytes=max(1, run.slice_bytes // at_once))
    settled: dict[Table, dict[str, Outcome]] = {table: {} for table in wanted}
    running: dict[Future[Report], _Piece] = {}
    with ThreadPoolExecutor(at_once, thread_name_prefix="refine") as pool:
        try:
            while waiting or running:
                for piece in _ready(waiting, running.values(), unsettled)[: at_once - len(running)]:
                    waiting.remove(piece)
                    # Whoever watches the run watches its threads, too.
                    context = contextvars.copy_context()
                    running[pool.submit(context.run, refine, piece.table, piece.keys, share)] = piece
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    piece = running.pop(done)
                    settled[piece.table].update(done.result().outcomes)
                    unsettled.difference_update((piece.table.path, key) for key in piece.keys)
        finally:
            wait(running)
    return {
        table: Report(table.path, {key: outcomes[key] for key in table.partition.keys() if key in outcomes})  # noqa: SIM118 - not a dictionary
        for table, outcomes in settled.items()
    }


def _pieces(table: Table, keys: Sequence[str], wanted: Mapping[Table, Sequence[str]], least: int) -> list[_Piece]:
    asked = set(keys)
    ordered = [key for key in table.partition.keys() if key in asked]  # noqa: SIM118 - not a dictionary
    count = max(1, min(_PIECES, len(ordered) // max(1, least)))
    size = max(1, -(-len(ordered) // count))
    chosen = {each.path: frozenset(those) for each, those in wanted.items()}
    return [
        _Piece(table, piece, _needs(table, piece, chosen))
        for start in range(0, len(ordered), size)
        if (piece := tuple(ordered[start : start + size]))
    ]


def _needs(table: Table, keys: Sequence[str], chosen: Mapping[str, frozenset[str]]) -> frozenset[tuple[str, str]]:
    read = {
        (each.table.path, key)
        for each in table.inputs.values()
        if each.table.path in chosen
        for mine in keys
        for key in each.keys_for(table.partition, mine)
    }
    read |= {(each.table.path, Whole.KEY) for each in table.references.values()}
    return frozenset((path, key) for path, key in read if key in chosen.get(path, ()))


def _ready(
    waiting: Sequence[_Piece], running: Collection[_Piece], unsettled: Collection[tuple[str, str]]
) -> list[_Piece]:
    """What may start: the piece of each table that is its next one, if all that it reads is settled; last tables first.

    What is furthest from the source goes first, so that the tables end together and not one after the other.
    """
    busy = {piece.table.path for piece in running}
    found: dict[str, _Piece] = {}
    for piece in waiting:
        found.setdefault(piece.table.path, piece)
    free = [piece for path, piece in found.items() if path not in busy and piece.needs.isdisjoint(unsettled)]
    return free[::-1]
