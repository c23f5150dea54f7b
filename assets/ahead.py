"""Tables that are made before the runs that tell of them.

The engine hardly holds Python's lock, and Dagster hardly lets it go: while the one makes tables, the other is imported
and told of what has been made. A chain of tables is made as soon as the chains that it is built from are; the run that
tells of it finds the reports here. Its events, its evidence and its failures are those of a run that makes everything
itself. A process that is killed in between leaves tables of which Dagster knows nothing, under the id of a run that it
never saw; the next one tells of them.
"""

import contextlib
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Self

from assets.chains import Chain, chains, neighbours
from medallion.outcomes import Report
from medallion.pipeline import AT_ONCE, refine_in_order
from medallion.recent import Recent
from medallion.refine import Run, pending, watching
from medallion.tables import Table


@dataclass(frozen=True)
class Piece:
    """Neighbouring partitions of a chain, made for one run.

    Attributes:
        run_id: of the run that is to tell of them, which the evidence names.
        keys: the partitions.
        versions: of the tables that they are built from, before they were read; None of one that has none.
        reports: of each table of the chain, as soon as it is made.
    """

    run_id: str
    keys: Sequence[str]
    versions: Mapping[str, int | None]
    reports: Mapping[Table, "Future[Report]"]


class Ahead:
    """Makes what is pending of some tables in the background, from entering the block on.

    Args:
        tables: each after those that it is built from.
        run: for all of them; each piece has a ``run_id`` of its own. ``slice_bytes`` holds for all that run at once.
        watcher: called with a table's path and a number of partitions whenever so many have been settled.
    """

    def __init__(self, tables: Collection[Table], run: Run, watcher: Callable[[str, int], None]) -> None:
        """Begin nothing yet."""
        self._run, self._watcher = run, watcher
        self._recent, self._turn = Recent(run.slice_bytes), threading.Semaphore(AT_ONCE)
        self._stopped = threading.Event()
        self._pieces: dict[Chain, Future[list[Piece]]] = {chain: Future() for chain in chains(tables)}
        self._made: dict[Chain, Future[None]] = {}
        self._pool = ThreadPoolExecutor(max(1, len(self._pieces)), thread_name_prefix="ahead")

    def __enter__(self) -> Self:
        """Begin."""
        for chain in self._pieces:
            self._made[chain] = self._pool.submit(self._make, chain, self._upstream(chain))
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for what is being made; what has not begun is left, if the block was left early."""
        self._stopped.set()
        self._pool.shutdown()

    def pieces(self, chain: Chain) -> list[Piece]:
        """What is pending of a chain, as soon as that is known; whatever keeps it from being known is raised."""
        return self._pieces[chain].result()

    def _upstream(self, chain: Chain) -> list["Future[None]"]:
        return [made for other, made in self._made.items() if not _read_by(chain).isdisjoint(other)]

    def _make(self, chain: Chain, upstream: Collection["Future[None]"]) -> None:
        wait(upstream)  # that one of them could not be made is no reason: the version that it had stands
        with self._turn:
            if self._stopped.is_set():
                self._pieces[chain].cancel()
                return
            try:
                pieces = self._pending(chain)
            except BaseException as error:  # noqa: BLE001 - whoever asks for them gets it
                self._pieces[chain].set_exception(error)
                return
            self._pieces[chain].set_result(pieces)
            for piece in pieces:
                if not self._stopped.is_set():
                    self._refine(piece)

    def _pending(self, chain: Chain) -> list[Piece]:
        cut, run = chain[0].partition, self._run
        versions = versions_of(chain, run)
        keys = {key for table in chain for key in pending(table, cut.keys(), run)}
        return [
            Piece(str(uuid.uuid4()), piece, versions, {table: Future() for table in chain})
            for piece in neighbours(cut, keys)
        ]

    def _refine(self, piece: Piece) -> None:
        run = replace(self._run, run_id=piece.run_id)
        try:
            with watching(self._watcher):
                wanted = dict.fromkeys(piece.reports, piece.keys)
                for table, report in zip(wanted, refine_in_order(wanted, run, recent=self._recent), strict=True):
                    piece.reports[table].set_result(report)
        except BaseException as error:  # noqa: BLE001 - the run that is to tell of it fails with it
            for waited in piece.reports.values():
                if not waited.done():
                    waited.set_exception(error)


def versions_of(chain: Chain, run: Run) -> dict[str, int | None]:
    """The live versions of what a chain is built from and refers to, itself left out."""
    return {table.path: run.lake.pin(table.path, table.partition).version for table in _read_by(chain) - set(chain)}


def _read_by(chain: Chain) -> set[Table]:
    """What the tables of a chain are built from and refer to."""
    return {given.table for table in chain for given in (*table.inputs.values(), *table.references.values())}


_telling: ContextVar[Piece | None] = ContextVar("telling", default=None)


@contextlib.contextmanager
def telling(piece: Piece | None) -> Iterator[None]:
    """Within, the run of a piece takes the piece's reports and makes nothing itself."""
    token = _telling.set(piece)
    try:
        yield
    finally:
        _telling.reset(token)


def made_ahead(run_id: str) -> Piece | None:
    """What was made for a run before it began; None if it has to make everything itself."""
    piece = _telling.get()
    return piece if piece is not None and piece.run_id == run_id else None
