"""What this engine finds in a table's log beyond what deltalake tells: its own commits, the fences, and their format.

What belongs here: reading log entries and checkpoints, and flushing them. What does not: writing them (``lake.py``).
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from medallion.errors import TableUnreadable
from medallion.objects import ObjectPath
from medallion.store import Place, readable, relative, sync

__all__ = [
    "CHECKPOINT_INTERVAL",
    "FENCE",
    "FORMAT",
    "Commit",
    "Entry",
    "Listing",
    "check_format",
    "check_note",
    "checkpointed_fences",
    "checkpointed_files",
    "find",
    "has_entries_after",
    "list_log",
    "mark",
    "named_files",
    "note",
    "oldest_version",
    "read_commits",
    "read_entry",
    "read_fences",
    "sync_log",
    "version_at",
]

FORMAT = 1
"""Version of what this engine writes into file names, fences, evidence and commits. A higher one is refused."""

CHECKPOINT_INTERVAL = 50
"""Commits between two checkpoints of a table."""

FENCE = "medallion:"
"""Stands before a partition in the application id of its fence."""

_ENTRY = re.compile(r"([0-9]{20})(\.checkpoint(?:\..+)?\.parquet)?(?(2)|\.json)")
_COMMIT_INFO = '{"commitInfo"'
_TXN = '{"txn"'
_REMOVE = '{"remove"'
_NOTE = "medallion format "


def mark(log: Place, version: int) -> tuple[int, int] | None:
    """Tells a log entry from one of the same number in a table that was made anew."""
    try:
        stat = (log / f"{version:020}.json").stat()
    except FileNotFoundError:
        return None
    return stat.st_ino, stat.st_mtime_ns


def note() -> str:
    """What stands in the description of a table: its format, known before any file is read."""
    return f"{_NOTE}{FORMAT}"


def check_note(description: str | None, what: str) -> None:
    """Refuse a table whose description says that a newer engine has written it."""
    if description is not None and description.startswith(_NOTE):
        check_format(int(description.removeprefix(_NOTE)), what)


def check_format(written: int, what: str) -> None:
    """Refuse what a newer engine has written.

    Raises:
        TableUnreadable: with both formats.
    """
    if written > FORMAT:
        raise TableUnreadable(
            f"{what} has format {written}, and this version of medallion knows up to {FORMAT}. Nothing was "
            "read or written. Use the version that wrote it, or a newer one."
        )


@dataclass(frozen=True)
class Commit:
    """A commit of this engine, as the log tells it: by which attempt, and the batch of each of its partitions."""

    version: int
    attempt: str
    batches: Mapping[str, str]
    metadata: Mapping[str, Any]


def read_commits(log: Place, since: int, version: int, *, partial: bool) -> list[Commit] | None:
    """The engine's commits after one version and up to another, newest first.

    Read entry by entry: deltalake's history numbers them wrongly if the table has moved on from its handle (1.6).

    Returns:
        None if an entry is gone, unless ``partial``.

    Raises:
        TableUnreadable: if a newer engine wrote one of them.
    """
    found: list[Commit] = []
    for each in range(version, since, -1):
        path = log / f"{each:020}.json"
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            if partial:
                break
            return None
        info: dict[str, Any] = next(
            (json.loads(line)["commitInfo"] for line in lines if line.startswith(_COMMIT_INFO)), {}
        )
        told = json.loads(info.get("medallion") or "{}")
        if told:
            check_format(told.get("format", 0), f"the log entry {path}")
            told.setdefault("at", info.get("timestamp", 0))  # an older engine leaves it to deltalake to say when
            found.append(Commit(each, told.get("attempt", ""), told.get("batches", {}), told))
    return found


def has_entries_after(log: Place, version: int) -> bool:
    """Whether a log has moved on from a version: one look at the disk, where an update reads all that is live.

    The next entry is there, or it has expired already because a checkpoint stands in for it. A version is one request
    to an object store either way, so there the answer is yes.
    """
    if isinstance(log, ObjectPath) or (log / f"{version + 1:020}.json").exists():
        return True
    try:
        return bool(json.loads((log / "_last_checkpoint").read_bytes())["version"] > version)
    except FileNotFoundError:
        return False
    except (OSError, ValueError, KeyError, TypeError):
        return True


def version_at(log: Place, version: int, moment: dt.datetime) -> int | None:
    """The last version that was committed by a moment, as the clocks of those who committed tell it.

    Args:
        log: of the table.
        version: its newest one.
        moment: with its time zone.

    Returns:
        -1 if there was no table yet; None if the log does not reach back so far.
    """
    for each in range(version, -1, -1):
        try:
            lines = (log / f"{each:020}.json").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return None
        found = (json.loads(line)["commitInfo"] for line in lines if line.startswith(_COMMIT_INFO))
        info: dict[str, int] = next(found, {})
        if info.get("timestamp", 0) <= moment.timestamp() * 1000:
            return each
    return -1


def find(commits: Sequence[Commit] | None, attempt: str, batches: Mapping[str, str]) -> int | None:
    """The version in which an attempt committed these batches; None if it did not, as far as the log tells."""
    return next((each.version for each in commits or () if each.attempt == attempt and each.batches == batches), None)


@dataclass(frozen=True)
class Listing:
    """What lies in a table's log.

    Attributes:
        entries: the file of each version's entry.
        checkpoints: the file of each version's checkpoint.
    """

    entries: Mapping[int, Place]
    checkpoints: Mapping[int, Place]

    @property
    def latest(self) -> int:
        """The newest version; -1 if there is none."""
        return max((*self.entries, *self.checkpoints), default=-1)

    def readable(self) -> list[int]:
        """The versions to which a checkpoint and the entries after it lead, in order."""
        found: list[int] = []
        for version in sorted({*self.entries, *self.checkpoints}):
            follows = version == 0 or (bool(found) and found[-1] == version - 1)
            if version in self.checkpoints or (follows and version in self.entries):
                found.append(version)
        return found

    def lost(self) -> list[int]:
        """The versions that have no entry and should: a table cannot be read across them."""
        start = max(self.checkpoints, default=-1)
        return [version for version in range(start + 1, self.latest) if version not in self.entries]


def list_log(log: Place) -> Listing:
    """Look into a log; empty if there is none."""
    entries: dict[int, Place] = {}
    checkpoints: dict[int, Place] = {}
    for path in log.glob("*"):
        if match := _ENTRY.fullmatch(path.name):
            (checkpoints if match[2] else entries)[int(match[1])] = path
    return Listing(entries, checkpoints)


@dataclass(frozen=True)
class Entry:
    """One version's entry in the log.

    Attributes:
        at: when it was committed, in milliseconds since 1970, by the clock of who did.
        adds: the size in bytes of each file that it adds.
        removes: the files that it removes.
        fences: the transaction versions that it sets, by application id.
    """

    at: int
    adds: Mapping[str, int]
    removes: frozenset[str]
    fences: Mapping[str, int]


def read_entry(place: Place) -> Entry:
    """Read an entry of the log.

    Raises:
        ValueError: if it is damaged.
        OSError: if it cannot be read.
    """
    at, adds, removes, fences = 0, {}, set(), {}
    for line in place.read_text(encoding="utf-8").splitlines():
        try:
            ((kind, told),) = json.loads(line).items()
            if kind == "commitInfo":
                at = int(told.get("timestamp", 0))
            elif kind == "add":
                adds[told["path"]] = int(told["size"])
            elif kind == "remove":
                removes.add(told["path"])
            elif kind == "txn":
                fences[told["appId"]] = int(told["version"])
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"a line is no action: {line[:40]!r}") from error
    if not at:
        raise ValueError("it tells of no commit")
    return Entry(at, adds, frozenset(removes), fences)


def named_files(log: Place) -> dict[str, int]:
    """Every data file that the log still names, as added or as removed, with its size in bytes; 0 if it is not told.

    Raises:
        TableUnreadable: if an entry or a checkpoint is damaged, so that it cannot be said what is needed.
    """
    named: dict[str, int] = {}
    listing = list_log(log)
    for path in (*listing.entries.values(), *listing.checkpoints.values()):
        try:
            if path.name.endswith(".json"):
                entry = read_entry(path)
                named.update(dict.fromkeys(entry.removes - named.keys(), 0))
                named.update(entry.adds)
            else:
                for kind in ("remove", "add"):
                    named |= checkpointed_files(path, kind)
        except (ValueError, pl.exceptions.PolarsError) as error:
            raise TableUnreadable(
                f"{path} is damaged ({error}), so that it cannot be said which files are needed. Nothing was removed. "
                "See what is damaged and how it is repaired: medallion check-lake"
            ) from error
    return named


def checkpointed_files(checkpoint: Place, kind: str) -> dict[str, int]:
    """The data files that a checkpoint names, as ``add`` or as ``remove``, with their sizes in bytes."""
    if kind not in pl.read_parquet_schema(readable(checkpoint)):
        return {}
    told = pl.read_parquet(readable(checkpoint), columns=[kind]).get_column(kind).struct.unnest()
    return {path: size or 0 for path, size in told.drop_nulls("path").select("path", "size").iter_rows()}


def sync_log(table: Place, since: int | None, version: int) -> None:
    """Flush the log up to ``version``.

    All entries since the one that the attempt started from: a commit rests on those below it, and whoever wrote them
    may have died before flushing. A checkpoint that came with one of them as well, since the log is read from it on.
    """
    if isinstance(table, ObjectPath):
        return  # what the store has answered is durable
    log = table / "_delta_log"
    first = 0 if since is None else since + 1
    for each in range(max(first, version - CHECKPOINT_INTERVAL), version + 1):
        for path in (log / f"{each:020}.json", log / f"{each:020}.checkpoint.parquet"):
            if path.exists():
                sync(path)
    if (log / "_last_checkpoint").exists():
        sync(log / "_last_checkpoint")
    sync(log)


def oldest_version(table: Place, version: int | None) -> int | None:
    """The oldest version of a table that can still be read whole: its log reaches back so far, and its files are there.

    Args:
        table: the folder of the table.
        version: its newest one; None if there is no table.
    """
    if version is None:
        return None
    listing = list_log(table / "_delta_log")
    readable, stands = set(listing.readable()), _listing(table)
    # A version can be read if the one after it can, and if what that one took away is still there.
    while version - 1 in readable and version in listing.entries:
        lines = listing.entries[version].read_text(encoding="utf-8").splitlines()
        if not all(stands(json.loads(line)["remove"]["path"]) for line in lines if line.startswith(_REMOVE)):
            break
        version -= 1
    return version


def _listing(table: Place) -> Callable[[str], bool]:
    """Whether a file of a table is there; a bucket is listed once instead of being asked for each."""
    if isinstance(table, ObjectPath):
        there = {str(relative(path, table)) for path in table.rglob("*")}
        return there.__contains__
    return lambda path: (table / path).exists()


def read_fences(log: Place, version: int, prefix: str) -> dict[str, int] | None:
    """The transaction versions of all application ids that start with ``prefix``, as of a version of the table.

    deltalake tells one at a time and reads the log again for each (1.6: 0.8 ms), which for a range of a year costs
    more than its commit. What is read here is the same by the protocol ("Transaction Identifiers" in PROTOCOL.md).

    Returns:
        by what follows the prefix; None if the log is laid out in a way that is not known here.
    """
    try:
        start, found = _from_checkpoint(log, version)
        for each in range(start + 1, version + 1):
            for line in (log / f"{each:020}.json").read_text(encoding="utf-8").splitlines():
                if line.startswith(_TXN):
                    txn = json.loads(line)["txn"]
                    found[txn["appId"]] = txn["version"]
    except (OSError, ValueError, KeyError, pl.exceptions.PolarsError):
        return None
    return {name.removeprefix(prefix): epoch for name, epoch in found.items() if name.startswith(prefix)}


def _from_checkpoint(log: Place, version: int) -> tuple[int, dict[str, int]]:
    try:
        hint = json.loads((log / "_last_checkpoint").read_bytes())
    except FileNotFoundError:
        return -1, {}
    if hint["version"] > version or hint.get("parts") or hint.get("v2Checkpoint"):
        raise ValueError("a checkpoint of another time or kind")
    return hint["version"], checkpointed_fences(log / f"{hint['version']:020}.checkpoint.parquet")


def checkpointed_fences(checkpoint: Place) -> dict[str, int]:
    """The transaction versions that a checkpoint holds, by application id."""
    if "txn" not in pl.read_parquet_schema(readable(checkpoint)):
        return {}
    txns = pl.read_parquet(readable(checkpoint), columns=["txn"]).get_column("txn").struct.unnest().drop_nulls("appId")
    return dict(txns.select("appId", "version").iter_rows())
