"""Attempts that are under way, and what became of those that died: small records beside the table.

An attempt writes ``<table>/_attempts/<attempt>.json`` before it prepares anything and removes it when it has settled
its partitions. A record that is found while its process is gone is the trace of an interruption. What had happened is
read from the lake alone, from the commits since the version that the attempt had pinned, and kept under
``_attempts/settled``. Nobody is ever asked.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace

from medallion.errors import MedallionError
from medallion.failpoints import reach
from medallion.lake import Lake, Snapshot
from medallion.log import FORMAT, Commit, check_format, sync_log
from medallion.processes import Process
from medallion.store import Place, write_durably

__all__ = [
    "CLEANED",
    "COMMITTED",
    "INTERRUPTED",
    "SUPERSEDED",
    "AttemptRecord",
    "Recoveries",
    "attempting",
    "records",
    "settle_dead",
]

_log = logging.getLogger(__name__)

COMMITTED = "committed without acknowledgement"
INTERRUPTED = "interrupted before commit"
SUPERSEDED = "superseded"
CLEANED = "medallion clean"
"""Stands for the attempt that came after, where none did, and the record was only cleared away."""

_TELLING = (COMMITTED, SUPERSEDED, INTERRUPTED)
_FOLDER = "_attempts"
_SETTLED = "settled"

_live: set[str] = set()
"""The attempts that run in this process."""


@dataclass(frozen=True)
class AttemptRecord:
    """An attempt at some partitions of a table.

    Attributes:
        version: of the table, pinned by the attempt; None if there was no table.
        boot, born: of the host and the process, so that a process number that was given again is recognised.
        started_at: seconds since 1970, by the clock of the host.
    """

    attempt: str
    run_id: str
    table: str
    partitions: tuple[str, ...]
    version: int | None
    host: str
    boot: str
    pid: int
    born: str
    started_at: float

    @property
    def is_alive(self) -> bool:
        """Whether the attempt may still be running."""
        process = Process(self.host, self.boot, self.pid, self.born)
        if process == Process.here():
            return self.attempt in _live
        return process.may_live(self.started_at)


class Recoveries(dict[str, str]):
    """By partition, what had become of attempts whose end nobody had been told of.

    Attributes:
        since: when the attempt that found it started, in seconds since 1970.
        at: when all was well again, likewise.
    """

    def __init__(
        self,
        found: Mapping[str, str] | None = None,
        dead: Sequence[AttemptRecord] = (),
        own: AttemptRecord | None = None,
    ) -> None:
        super().__init__(found or {})
        self._found, self._dead, self._own = dict(self), dead, own
        self.since = self.at = time.time() if own is None else own.started_at

    def own(self) -> dict[str, str]:
        """The partitions whose commit the attempt itself had to look for."""
        return {key: what for key, what in self.items() if self._found.get(key) != what}

    def by_attempt(self) -> Iterator[tuple[AttemptRecord, dict[str, str]]]:
        """Each attempt that has left something, with its partitions."""
        for record in self._dead:
            if mine := _of(record, self._found):
                yield record, mine
        if self._own is not None and (own := self.own()):
            yield self._own, own


def _of(record: AttemptRecord, recoveries: Mapping[str, str]) -> dict[str, str]:
    return {key: recoveries[key] for key in record.partitions if key in recoveries}


@contextmanager
def attempting(
    target: Snapshot, attempt: str, run_id: str, keys: Sequence[str], waiting: Sequence[str]
) -> Iterator[Recoveries]:
    """Keep a record of an attempt while the block runs; it stays behind if the block is left by an exception.

    Args:
        target: the table, as the attempt has pinned it.
        attempt: names the attempt.
        run_id: names the run that it belongs to.
        keys: the partitions that are asked for.
        waiting: those that it is to prepare; without any, nothing is recorded.

    Yields:
        for partitions that earlier attempts left when they died: what had happened to them. The block adds those whose
        own commit it had to look for, since its acknowledgement was lost; that is kept as well, with the time at
        which the block says that all is well again.
    """
    path = target.folder / _FOLDER / f"{attempt}.json"
    mine = _record(target, attempt, run_id, waiting)
    _live.add(attempt)
    try:
        if waiting:
            _write(target.folder, mine)
            reach("recorded")
        dead = _dead_attempts(target.folder, keys)
        found = _recover(target, dead, keys) if dead else {}
        recoveries = Recoveries(found, dead, mine)
        yield recoveries
        reach("settled")
        if dead:
            _settle(target.folder, dead, found, attempt=attempt, since=recoveries.since, at=recoveries.at)
        if own := recoveries.own():
            _keep(target.folder, mine, own, attempt=attempt, since=recoveries.since, at=recoveries.at)
        path.unlink(missing_ok=True)
        reach("acknowledged")
    except MedallionError:
        path.unlink(missing_ok=True)  # refused in good order: nothing was left halfway
        raise
    finally:
        _live.discard(attempt)


def _record(target: Snapshot, attempt: str, run_id: str, keys: Sequence[str]) -> AttemptRecord:
    me = Process.here()
    return AttemptRecord(
        attempt, run_id, target.path, tuple(keys), target.version, me.host, me.boot, me.pid, me.born, time.time()
    )


def _recover(target: Snapshot, dead: Sequence[AttemptRecord], keys: Collection[str]) -> dict[str, str]:
    """What had become of the partitions when earlier attempts died; their commits are made to last."""
    lake = target.lake
    now = lake.pin(target.path, target.partition)  # the dead may have committed after this attempt had pinned
    if now.version is not None and lake.durable:
        pinned = [each.version for each in dead]
        sync_log(now.folder, None if None in pinned else min(each for each in pinned if each is not None), now.version)
    found = _find_recoveries(now, dead, keys)
    for key, what in found.items():
        _log.warning("%s %s: an earlier attempt was %s", target.path, key, what)
    return found


def records(table: Place) -> list[AttemptRecord]:
    """The records that lie beside a table, oldest first.

    Raises:
        TableUnreadable: if a newer engine wrote one.
    """
    found = []
    for path in (table / _FOLDER).glob("*.json"):
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError):  # gone meanwhile, or cut off by a power cut
            plain = json.loads(path.read_bytes())
            check_format(plain.pop("format"), f"the attempt record {path}")
            found.append(AttemptRecord(**{**plain, "partitions": tuple(plain["partitions"])}))
    return sorted(found, key=lambda each: each.started_at)


def _dead_attempts(table: Place, keys: Collection[str]) -> list[AttemptRecord]:
    """The attempts at some of these partitions that died without settling them."""
    wanted = set(keys)
    return [each for each in records(table) if not wanted.isdisjoint(each.partitions) and not each.is_alive]


def _find_recoveries(snapshot: Snapshot, dead: Sequence[AttemptRecord], keys: Collection[str]) -> dict[str, str]:
    """What had happened to the partitions that dead attempts left, as the lake tells."""
    found: dict[str, set[str]] = {}
    for record in dead:
        commits = snapshot.commits(record.version)
        for key in set(record.partitions) & set(keys):
            found.setdefault(key, set()).add(_what_happened(snapshot, record, key, commits))
    return {key: next(each for each in _TELLING if each in kinds) for key, kinds in found.items()}


def _what_happened(snapshot: Snapshot, record: AttemptRecord, key: str, commits: Sequence[Commit] | None) -> str:
    if commits is None:
        return INTERRUPTED if snapshot.epoch(key) == 0 else SUPERSEDED  # so long ago that the log has forgotten it
    whose = {each.attempt for each in commits if key in each.batches}
    if record.attempt in whose:
        return COMMITTED
    return SUPERSEDED if whose else INTERRUPTED


def _settle(
    table: Place, dead: Sequence[AttemptRecord], recoveries: dict[str, str], *, attempt: str, since: float, at: float
) -> None:
    """Take the partitions whose fate is known off the records of dead attempts, and keep what was found."""
    for record in dead:
        mine = _of(record, recoveries)
        _keep(table, record, mine, attempt=attempt, since=since, at=at)
        left = tuple(key for key in record.partitions if key not in mine)
        if left:
            _write(table, replace(record, partitions=left))
        else:
            (table / _FOLDER / f"{record.attempt}.json").unlink(missing_ok=True)


def _keep(
    table: Place, record: AttemptRecord, recoveries: dict[str, str], *, attempt: str, since: float, at: float
) -> None:
    folder = table / _FOLDER / _SETTLED
    folder.mkdir(parents=True, exist_ok=True)
    told = {
        "format": FORMAT, "found_by": attempt, "since": since, "at": at, "recoveries": recoveries,
        "record": asdict(record),
    }  # fmt: skip
    write_durably(folder / f"{record.attempt}.{uuid.uuid4().hex[:8]}.json", json.dumps(told).encode(), durable=False)


def settle_dead(lake: Lake, table: str, attempts: Collection[str]) -> None:
    """Work out what became of dead attempts that nobody has followed, and keep that in place of their records.

    Args:
        lake: the lake.
        table: ``layer/name``.
        attempts: whose; one that turns out to live is left alone.
    """
    snapshot = lake.open(table)
    for record in records(snapshot.folder):
        if record.attempt in attempts and not record.is_alive:
            found = _find_recoveries(snapshot, [record], record.partitions)
            now = time.time()
            _settle(snapshot.folder, [record], found, attempt=CLEANED, since=now, at=now)


def _write(table: Place, record: AttemptRecord) -> None:
    folder = table / _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{record.attempt}.json"
    # Not flushed: after a power cut no attempt lives, and none needs a record to be told from a live one.
    write_durably(path, json.dumps({"format": FORMAT, **asdict(record)}).encode(), durable=False)
