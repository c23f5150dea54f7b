"""What attempts that died have left on the disk, and how it is removed without touching what anybody needs.

Needed, and never found here: files that any version in the log names, as live or as removed (those are for vacuum);
those that a savepoint or an open restore names;
refused rows of a live batch; everything of a partition at which a live attempt works; held candidates; the exact bytes
of sources. All else is a stray once it has not been touched for a safe age.
"""

from __future__ import annotations

import os
import re
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath

from medallion.attempts import AttemptRecord, records, settle_dead
from medallion.evidence import read_held
from medallion.lake import Lake
from medallion.log import named_files
from medallion.objects import ObjectPath
from medallion.savepoints import pinned_files
from medallion.staging import parse_name, partition_of
from medallion.store import Place, relative, tables

__all__ = ["SAFE_HOURS", "Stray", "find_strays", "remove_strays", "take"]

SAFE_HOURS = 24.0
"""Hours without a touch after which something that nobody needs counts as left behind."""

_BATCH_ID = re.compile(r'"batch_id": "([0-9a-f]{32})"')
_TEMPORARY = re.compile(r"\..+|.+[#.]\d+|.*\.tmp|_commit_.*")
_SETTLED_HOURS = 30 * 24.0


@dataclass(frozen=True)
class Stray:
    """Something that is left over.

    Attributes:
        table: ``layer/name`` of the folder in which it lies.
        path: relative to the lake.
        kind: ``data file``, ``temporary file``, ``evidence``, ``attempt record`` or ``settled record``.
        size: in bytes.
        hours: since it was last touched.
    """

    table: str
    path: str
    kind: str
    size: int
    hours: float


def find_strays(lake: Lake, *, older_than: float = SAFE_HOURS) -> list[Stray]:
    """What is left over in the lake; changes nothing.

    Args:
        lake: the lake.
        older_than: hours for which it must not have been touched.
    """
    found: list[Stray] = []
    pinned = pinned_files(lake)
    for folder in tables(lake.root):
        found += _Folder(lake, folder, pinned).strays(older_than)
    return found


def remove_strays(lake: Lake, strays: list[Stray], *, older_than: float = SAFE_HOURS) -> list[Stray]:
    """Remove what was found, unless somebody has touched it since; what has been removed."""
    before = time.time() - older_than * 3600
    dead = [each for each in strays if each.kind == "attempt record"]
    for table in sorted({each.table for each in dead}):
        settle_dead(lake, table, {Path(each.path).stem for each in dead})
    return [each for each in strays if each in dead or take(lake.root / each.path, before)]


def take(path: Place, before: float) -> bool:
    """Take a file out of sight first and look at what was taken: an attempt may have just written it anew.

    An object cannot be taken out of sight; it is looked at once more just before.
    """
    if isinstance(path, ObjectPath):
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < before:
                path.unlink()
                return True
        return False
    taken = path.with_name(f".{uuid.uuid4().hex}")
    try:
        path.rename(taken)
    except FileNotFoundError:
        return False
    if taken.stat().st_mtime >= before:
        with suppress(FileExistsError):
            os.link(taken, path)
        taken.unlink()
        return False
    if taken.is_dir():
        shutil.rmtree(taken)
    else:
        taken.unlink()
    return True


class _Folder:
    """The folder of one table."""

    def __init__(self, lake: Lake, folder: Place, pinned: Mapping[str, set[str]]) -> None:
        self.lake, self.folder = lake, folder
        self.table = str(relative(folder, lake.root))
        # Listed before the log and the records are read, so that what is committed meanwhile is known to them.
        self.files = [path for path in folder.rglob("*") if path.is_file()]
        known = self._records()
        self.dead = [each for each in known if not each.is_alive]
        self.busy = {key for each in known if each.is_alive for key in each.partitions}
        self.named = named_files(folder / "_delta_log").keys() | pinned.get(self.table, set())
        self.batches = _batches(self.named)
        # A quarantine is put back from the files of refused rows of the batches that are live in its table.
        layer, _, name = self.table.partition("/")
        theirs = self.lake.root / "silver" / name / "_delta_log"
        self.refusing = _batches(named_files(theirs)) if layer == "quarantine" else set()

    def _records(self) -> list[AttemptRecord]:
        # A quarantine is written by attempts at the table whose rows it refuses.
        layer, _, name = self.table.partition("/")
        owners = [f"{each}/{name}" for each in ("silver", "gold")] if layer == "quarantine" else [self.table]
        return [record for owner in owners for record in records(self.lake.root / owner)]

    def strays(self, older_than: float) -> list[Stray]:
        now = time.time()
        found = []
        for path, kind in self._candidates():
            with suppress(FileNotFoundError):
                stat = path.stat()
                hours = (now - stat.st_mtime) / 3600
                if hours >= (max(older_than, _SETTLED_HOURS) if kind == "settled record" else older_than):
                    found.append(Stray(self.table, str(relative(path, self.lake.root)), kind, stat.st_size, hours))
        return found

    def _candidates(self) -> Iterator[tuple[Place, str]]:
        kinds = {
            "_attempts": self._of_attempt,
            "_evidence": self._of_evidence,
            "_held": self._of_held,
            "_sources": self._of_source,
        }
        for path in self.files:
            inside = relative(path, self.folder)
            kind = kinds.get(inside.parts[0], self._of_data)(path, inside)
            if kind is not None:
                yield path, kind

    def _of_attempt(self, path: Place, inside: PurePath) -> str | None:
        if inside.parts[1] == "settled":
            return "settled record"
        return "attempt record" if path.stem in {each.attempt for each in self.dead} else self._of_source(path, inside)

    def _of_evidence(self, path: Place, inside: PurePath) -> str | None:
        if path.name.startswith("."):
            return "temporary file"
        return None if self._tells_of_known(path) else "evidence"

    def _of_held(self, path: Place, inside: PurePath) -> str | None:
        if isinstance(path, ObjectPath):
            return None if self._is_held(path, inside.parts[1]) else "temporary file"
        made_or_dropped = inside.parts[1].startswith(".") and inside.parts[1] != ".discarded"
        return "temporary file" if made_or_dropped else None

    def _is_held(self, path: ObjectPath, key: str) -> bool:
        if path.suffix != ".parquet" or key in self.busy:
            return True
        held = read_held(self.folder, key)
        return held is not None and path.name.startswith(held.attempt)

    def _of_source(self, path: Place, inside: PurePath) -> str | None:
        return "temporary file" if path.name.startswith(".") else None

    def _of_data(self, path: Place, inside: PurePath) -> str | None:
        if parse_name(str(inside)) is not None:
            return None if self._is_needed(str(inside)) else "data file"
        return "temporary file" if _TEMPORARY.fullmatch(path.name) else None

    def _is_needed(self, relative: str) -> bool:
        return (
            relative in self.named or partition_of(relative) in self.busy or bool(_batches([relative]) & self.refusing)
        )

    def _tells_of_known(self, path: Place) -> bool:
        with suppress(FileNotFoundError):
            told = set(_BATCH_ID.findall(path.read_text()))
            return bool(told & self.batches or self.busy)
        return True


def _batches(paths: Iterable[str]) -> set[str]:
    return {named[0] for path in paths if (named := parse_name(path)) is not None}
