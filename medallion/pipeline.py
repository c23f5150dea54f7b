"""Several tables in one go: a part of a table is refined as soon as what it is built from has been settled.

One table waits for the disk where another one computes. Nothing else differs from refining the tables one after the
other: each piece goes the path of ``refine`` with commits of its own, the pieces of one table follow each other in the
order of its partitions, since rules look at the past, and none starts before every partition that it reads, and that is
asked for, has its outcome.
"""

from __future__ import annotations

import contextvars
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

from medallion.outcomes import Outcome, Report
from medallion.partitions import Whole
from medallion.recent import Recent, keeping
from medallion.refine import Run, refine
from medallion.tables import Table

__all__ = ["AT_ONCE", "Pieces", "refine_all", "refine_in_order", "refine_pieces"]

AT_ONCE = 3
"""Tables that do not depend on each other are few; more share the memory, and it is cut into more commits."""

Pieces = Mapping[Table, Sequence[Sequence[str]]]
"""The pieces of each table, in the order in which they are to be made."""


@dataclass(frozen=True)
class _Piece:
    table: Table
    keys: tuple[str, ...]
    needs: frozenset[tuple[str, str]]
    """Table and partition of what it reads, as far as that is asked for too."""


def refine_all(wanted: Mapping[Table, Sequence[str]], run: Run, *, at_once: int = AT_ONCE) -> dict[Table, Report]:
    """Refine partitions of several tables: a report for each, in the order of ``wanted``.

    Args, errors: as of :func:`refine_in_order`.
    """
    return dict(zip(wanted, refine_in_order(wanted, run, at_once=at_once), strict=True))


def refine_in_order(
    wanted: Mapping[Table, Sequence[str]], run: Run, *, at_once: int = AT_ONCE, recent: Recent | None = None
) -> Iterator[Report]:
    """Refine partitions of several tables, and give each table's report as soon as it and those before it are settled.

    A table is one piece. Cutting a range further, so that one half of bronze is read while the other half of silver is
    judged, was measured and is slower: each piece has its own attempt, commits and record in the ledger.

    Args:
        wanted: the partitions of each table, the tables in an order in which each comes after those that it is built
            from.
        run: as for :func:`~medallion.refine.refine`; ``slice_bytes`` holds for all that run at once together,
            and once more for rows that were just committed and are read next.
        at_once: tables that run at the same time.
        recent: where rows that were just committed are kept, if others read and fill it too; its limit is its own.

    Returns:
        the reports, as they are asked for; outcomes in the order of the table's partitions.

    Raises:
        UnknownPartition: before anything is read or written, if a table does not have one of its partitions.
    """
    whole = {table: table.partition.in_order(keys) for table, keys in wanted.items()}
    pieces = {table: [keys] if keys else [] for table, keys in whole.items()}
    return refine_pieces(pieces, run, at_once=at_once, recent=recent)


def refine_pieces(pieces: Pieces, run: Run, *, at_once: int, recent: Recent | None = None) -> Iterator[Report]:
    """Refine partitions of several tables, piece by piece as they are given.

    Args:
        pieces: of each table, the tables in an order in which each comes after those that it is built from.
        run: as for :func:`~medallion.refine.refine`; ``slice_bytes`` holds for all that run at once together,
            and once more for rows that were just committed and are read next.
        at_once: pieces that run at the same time, at least one.
        recent: where rows that were just committed are kept, if others read and fill it too; its limit is its own.

    Yields:
        a report for each table as soon as all its pieces have been settled, in the order of ``pieces``. What does not
        depend on whoever takes it runs on meanwhile.
    """
    at_once = max(1, at_once)
    share = replace(run, slice_bytes=max(1, run.slice_bytes // at_once))
    chosen = {table.path: frozenset(key for piece in those for key in piece) for table, those in pieces.items()}
    waiting = [
        _Piece(table, tuple(piece), _needs(table, piece, chosen)) for table, those in pieces.items() for piece in those
    ]
    unsettled = {(piece.table.path, key) for piece in waiting for key in piece.keys}
    settled: dict[Table, dict[str, Outcome]] = {table: {} for table in pieces}
    untold = list(pieces)
    running: dict[Future[Report], _Piece] = {}
    kept = recent or Recent(run.slice_bytes)
    with ThreadPoolExecutor(at_once, thread_name_prefix="refine") as pool:

        def start() -> None:
            for piece in _ready(waiting, running.values(), unsettled)[: at_once - len(running)]:
                waiting.remove(piece)
                # Whoever watches the run watches its threads, too.
                context = contextvars.copy_context()
                running[pool.submit(context.run, _refine, piece, share, kept)] = piece

        start()
        while untold:
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                piece = running.pop(done)
                settled[piece.table].update(done.result().outcomes)
                unsettled.difference_update((piece.table.path, key) for key in piece.keys)
            start()
            while untold and len(settled[untold[0]]) == len(chosen[untold[0].path]):
                table = untold.pop(0)
                ordered = (key for piece in pieces[table] for key in piece)
                yield Report(table.path, {key: settled[table][key] for key in ordered})


def _refine(piece: _Piece, run: Run, recent: Recent) -> Report:
    with keeping(recent):
        return refine(piece.table, piece.keys, run)


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
