"""What a restore is about to do, written down before its first commit, so that it never ends halfway.

``<lake>/_restores`` is a log of restores: ``000001.json`` says what the first one replaces by what, and
``000001.settled.json`` how it ended. A number is given once, and only when the one before has been settled, so that two
restores never run at once. Nothing here is ever overwritten. Whoever takes over a restore whose process has died writes
``000001.claim-001.json`` first, and says in it whether he completes it or takes it back.

What belongs here: the records, and whether one is open. What does not: carrying them out (``restore.py``).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from medallion.errors import RestoreUnfinished
from medallion.lake import Lake
from medallion.log import FORMAT, check_format
from medallion.processes import Process
from medallion.staging import DataFile
from medallion.store import Place, write_once

__all__ = [
    "BACK",
    "FORWARD",
    "Claim",
    "Intent",
    "Move",
    "check_none_open",
    "claimed",
    "open_intent",
    "record",
    "settle",
    "settled",
]

FORWARD, BACK = "forward", "back"

_FOLDER = "_restores"
_INTENT = re.compile(r"(\d{6})\.json")
_SETTLED = re.compile(r"(\d{6})\.settled\.json")
_CLAIM = re.compile(r"(\d{6})\.claim-(\d{3})\.json")

_live: set[str] = set()
"""The restores that run in this process, by their id."""

Files = tuple[DataFile, ...]


@dataclass(frozen=True)
class Move:
    """One partition of one table.

    Attributes:
        epoch: at which the partition stood when the restore was planned: the fence.
        before: its files then; empty if it was not committed.
        after: its files in the state that is restored; empty if it is to be dropped.
    """

    key: str
    epoch: int
    before: Files
    after: Files


@dataclass(frozen=True)
class Claim:
    """Who carries a restore out (None if he has let go of it), since when (seconds since 1970), and which way."""

    process: Process | None
    since: float
    direction: str = FORWARD


@dataclass(frozen=True)
class Intent:
    """One restore.

    Attributes:
        number: in the log of restores.
        id: names the restore in the commits that it makes, as their attempt.
        target: for people: what is made current again.
        savepoint: by that name; None if it is a version or a time.
        savepoint_before: names the state that is replaced.
        decided_at: when somebody decided it, by his clock.
        moves: the partitions that differ, by table; those of a quarantine under its own name.
        contents: what each whole table is to hold: the content digests of its partitions.
        claim: whose it is now.
        as_of: when the state was current that is restored, as far as that is known.
    """

    number: int
    id: str
    target: str
    savepoint: str | None
    savepoint_before: str | None
    reason: str
    run_id: str
    decided_at: str
    moves: Mapping[str, tuple[Move, ...]]
    contents: Mapping[str, Mapping[str, str]]
    claim: Claim
    as_of: str | None = None

    @property
    def is_running(self) -> bool:
        """Whether the process that carries it out may still live."""
        if self.claim.process is None:
            return False
        if self.claim.process == Process.here():
            return self.id in _live
        return self.claim.process.may_live(self.claim.since)

    def files(self) -> dict[str, list[DataFile]]:
        """What it needs, to be completed or taken back, by table."""
        return {
            path: [file for move in moves for file in (*move.before, *move.after)] for path, moves in self.moves.items()
        }

    def to_json(self) -> bytes:
        """The record."""
        return json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: bytes, where: Place) -> Intent:
        """Read a record.

        Raises:
            TableUnreadable: if a newer engine wrote it.
        """
        plain = json.loads(data)
        check_format(plain.pop("format"), f"the record of a restore at {where}")
        plain["moves"] = {path: tuple(map(_move, moves)) for path, moves in plain["moves"].items()}
        return cls(**{**plain, "claim": _claim(plain["claim"])})


def _move(plain: dict[str, Any]) -> Move:
    files = {name: tuple(DataFile(**each) for each in plain[name]) for name in ("before", "after")}
    return Move(plain["key"], plain["epoch"], **files)


def _claim(plain: dict[str, Any]) -> Claim:
    process = plain["process"]
    return Claim(Process(**process) if process else None, plain["since"], plain["direction"])


def open_intent(lake: Lake) -> Intent | None:
    """The restore that has begun and has not ended; None if there is none.

    Raises:
        TableUnreadable: if a newer engine has begun it.
    """
    names = [path.name for path in (lake.root / _FOLDER).glob("*.json")]
    done = {int(match[1]) for match in _matches(_SETTLED, names)}
    begun = [int(match[1]) for match in _matches(_INTENT, names) if int(match[1]) not in done]
    if not begun:
        return None
    number = max(begun)
    path = _path(lake, number)
    intent = Intent.from_json(path.read_bytes(), path)
    claims = [int(match[2]) for match in _matches(_CLAIM, names) if int(match[1]) == number]
    if not claims:
        return intent
    return replace(intent, claim=_claim(json.loads(_claim_path(lake, number, max(claims)).read_bytes())))


def _matches(pattern: re.Pattern[str], names: Iterable[str]) -> list[re.Match[str]]:
    return [match for name in names if (match := pattern.fullmatch(name)) is not None]


def check_none_open(lake: Lake) -> None:
    """Refuse to go on while a restore is open.

    Asked after tables have been pinned, it also says that what was pinned holds nothing that an open restore has done:
    a restore commits only after its record is there.

    Raises:
        RestoreUnfinished: saying whether it still runs, and how it is ended.
    """
    intent = open_intent(lake)
    if intent is not None:
        raise RestoreUnfinished(intent.number, intent.target, running=intent.is_running)


@contextmanager
def record(lake: Lake, intent: Intent) -> Iterator[Intent]:
    """Write a restore down under the next number, and count it as running while the block runs.

    Raises:
        RestoreUnfinished: if another one is open.
    """
    check_none_open(lake)
    folder = lake.root / _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    last = max((int(match[1]) for match in _matches(_INTENT, [path.name for path in folder.glob("*.json")])), default=0)
    numbered = replace(intent, number=last + 1, claim=_mine(FORWARD))
    with _at_work(lake, numbered):
        try:
            write_once(_path(lake, numbered.number), numbered.to_json(), durable=lake.durable)
        except FileExistsError as error:
            raise RestoreUnfinished(numbered.number, "another state", running=True) from error
        yield numbered


@contextmanager
def claimed(lake: Lake, intent: Intent, direction: str) -> Iterator[Intent]:
    """Take over a restore whose process has died, for as long as the block runs.

    Raises:
        RestoreUnfinished: if its process may still live, or somebody else takes it over.
    """
    if intent.is_running:
        raise RestoreUnfinished(intent.number, intent.target, running=True)
    mine = _mine(direction)
    with _at_work(lake, intent):
        try:
            _write_claim(lake, intent.number, mine)
        except FileExistsError as error:
            raise RestoreUnfinished(intent.number, intent.target, running=True) from error
        yield replace(intent, claim=mine)


@contextmanager
def _at_work(lake: Lake, intent: Intent) -> Iterator[None]:
    """Count a restore as running in this process; after an error, say that somebody else may take it over."""
    _live.add(intent.id)
    try:
        yield
    except RestoreUnfinished:
        raise  # it is somebody else's
    except (Exception, KeyboardInterrupt, SystemExit):
        with suppress(Exception):  # the store may be what failed; then it is free when this process has ended
            _write_claim(lake, intent.number, Claim(None, time.time(), intent.claim.direction))
        raise
    finally:
        _live.discard(intent.id)


def _write_claim(lake: Lake, number: int, claim: Claim) -> None:
    names = [path.name for path in (lake.root / _FOLDER).glob("*.json")]
    last = max((int(match[2]) for match in _matches(_CLAIM, names) if int(match[1]) == number), default=0)
    told = json.dumps({"format": FORMAT, **asdict(claim)}).encode()
    write_once(_claim_path(lake, number, last + 1), told, durable=lake.durable)


def settle(lake: Lake, intent: Intent, told: Mapping[str, Any]) -> None:
    """Write down how a restore has ended; with that it is over."""
    path = lake.root / _FOLDER / f"{intent.number:06}.settled.json"
    write_once(path, json.dumps({"format": FORMAT, **told}, sort_keys=True).encode(), durable=lake.durable)


def settled(lake: Lake) -> list[dict[str, Any]]:
    """How restores have ended, oldest first."""
    paths: list[Place] = [*(lake.root / _FOLDER).glob("*.settled.json")]
    paths.sort(key=lambda path: path.name)
    return [json.loads(path.read_bytes()) for path in paths]


def _mine(direction: str) -> Claim:
    return Claim(Process.here(), time.time(), direction)


def _path(lake: Lake, number: int) -> Place:
    return lake.root / _FOLDER / f"{number:06}.json"


def _claim_path(lake: Lake, number: int, claim: int) -> Place:
    return lake.root / _FOLDER / f"{number:06}.claim-{claim:03}.json"
