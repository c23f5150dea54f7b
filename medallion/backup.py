"""A copy of a lake elsewhere, against the loss of the root itself: incremental, verified before it is trusted.

The cut is consistent (``cut.py``): nothing in it is built from what it does not hold, and a table's files and log are
those up to its pinned version. Every file is kept once, under its SHA-256, and the manifest is written last
(``manifests.py``): a backup that was interrupted has none, and the next one goes on with the bytes that are there.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from medallion.cut import paths_of, take_cut
from medallion.errors import BackupRefused
from medallion.failpoints import reach
from medallion.lake import Lake, Snapshot
from medallion.log import named_files
from medallion.manifests import OBJECT, Manifest, manifests, measure_table, object_place, read_manifest
from medallion.project import Project
from medallion.restore_intents import check_none_open
from medallion.retention import pins
from medallion.staging import in_parallel, parse_name
from medallion.store import Place, open_place, relative, sync, tables, write_durably

__all__ = ["BackedUp", "backup"]

_LARGE = 32 * 1024 * 1024
"""Bytes of a file from which on files are copied one at a time, so that memory holds few of them."""
_LOG_FILE = re.compile(r"([0-9]{20})\..+")
_NEVER = frozenset({"_isolated.json", "_promoted.json"})
_TRIES = 3
_LOOKS = 20


@dataclass(frozen=True)
class BackedUp:
    """What a backup has done.

    Attributes:
        manifest: what it holds.
        copied: files that were not there before.
        copied_bytes: of them.
    """

    manifest: Manifest
    copied: int
    copied_bytes: int


def backup(
    lake: Lake,
    to: str | os.PathLike[str] | Place,
    *,
    project: Project | None = None,
    now: dt.datetime | None = None,
) -> BackedUp:
    """Copy what is new of a lake to a backup, and write a manifest of the whole.

    Args:
        lake: the lake; it may be written to meanwhile.
        to: a folder outside of it, or ``s3://bucket/prefix``; made if it is not there.
        project: the declared tables, by whose lineage the cut is made; without it, the lake has to stand still.
        now: the time; that of the clock if not given.

    Raises:
        BackupRefused: if the backup would lie in the lake, or a file that the lake needs is missing or altered.
        TableUnreadable: if a table cannot be read.
        SavepointRefused: if a table and its quarantine do not come to agree.
        RestoreUnfinished: if a restore is open.
        ConfigurationError: if the place cannot be used.
    """
    place = open_place(to)
    _check_apart(lake.root, place)
    known = manifests(place)
    before = read_manifest(place, known[-1]).files if known else {}
    at, cut, copied = _copy(lake, place, project, before, now)
    reach("backup copied")
    manifest = Manifest("", at.isoformat(timespec="microseconds"), str(lake.root), cut.tables, copied.files)
    data = manifest.to_json()
    name = f"{at.astimezone(dt.UTC):%Y%m%dT%H%M%S%f}Z-{hashlib.sha256(data).hexdigest()[:32]}.json"
    folder = place / "manifests"
    folder.mkdir(parents=True, exist_ok=True)
    write_durably(folder / name, data)
    sync(folder)
    return BackedUp(Manifest(name, manifest.at, manifest.lake, cut.tables, copied.files), copied.count, copied.bytes)


def _copy(
    lake: Lake,
    place: Place,
    project: Project | None,
    before: Mapping[str, tuple[str, int, int]],
    now: dt.datetime | None,
) -> tuple[dt.datetime, _Cut, _Copying]:
    """Make a cut and copy its files; again if a vacuum takes some of them meanwhile."""
    there = _objects(place)
    left = _TRIES
    while True:
        at = dt.datetime.now(dt.UTC) if now is None else now
        cut = _Cut(lake, project)
        try:
            return at, cut, _Copying(lake, place, before, there).copy(cut.files())
        except FileNotFoundError as error:
            left -= 1
            if not left or cut.needs(error):
                raise BackupRefused(
                    f"{error.filename} is missing, and a version of its table needs it. No manifest was written; the "
                    "backups before stand. See what is damaged: medallion check-lake"
                ) from error


def _check_apart(root: Place, place: Place) -> None:
    one, other = f"{root}/", f"{place}/"
    if one.startswith(other) or other.startswith(one):
        raise BackupRefused(
            f"the backup {place} and the lake {root} lie in one another: what takes the one takes the other. Nothing "
            "was written. Choose a place on another disk or in another store."
        )


def _objects(place: Place) -> dict[str, int]:
    """The sizes of the bytes that a backup holds."""
    found = (place / "objects").rglob("*")
    return {path.name: path.stat().st_size for path in found if OBJECT.fullmatch(path.name)}


class _Cut:
    """The tables of a lake at versions that belong together, and the files that make them up."""

    def __init__(self, lake: Lake, project: Project | None) -> None:
        self.lake = lake
        # In this order: what a savepoint or a candidate holds was committed before it, so the pinned versions reach it.
        self.documents = [*_documents(lake.root)]
        self.held = pins(lake)
        self.pinned = _pin(lake, project)
        check_none_open(lake)  # after pinning: what a restore commits later is not in the cut
        self.tables = {path: measure_table(snapshot) for path, snapshot in sorted(self.pinned.items())}
        self._needed: dict[str, Place] = {}

    def needs(self, error: FileNotFoundError) -> bool:
        """Whether the file that is missing belongs to a version that no vacuum takes."""
        return str(error.filename) in self._needed

    def files(self) -> Iterator[tuple[str, Place]]:
        """The files of the cut, by their path below the lake."""
        for place in self.documents:
            yield str(relative(place, self.lake.root)), place
        for path, snapshot in self.pinned.items():
            yield from self._of_table(path, snapshot)

    def _of_table(self, path: str, snapshot: Snapshot) -> Iterator[tuple[str, Place]]:
        folder = snapshot.folder
        assert snapshot.version is not None
        lives = [snapshot, *(self.lake.open(path, version) for version in self.held.get(path, {}))]
        needed = {file.path for each in lives for files in each.files.values() for file in files}
        self._needed |= {str(folder / name): folder / name for name in needed}
        named = named_files(folder / "_delta_log").keys() | needed
        seen = set()
        for inside in _walk(folder):
            if self._belongs(inside, named, snapshot.version):
                seen.add(inside)
                yield f"{path}/{inside}", folder / inside
        for missing in sorted(needed - seen):
            raise FileNotFoundError(2, "there is no such file", str(folder / missing))

    def _belongs(self, inside: str, named: Collection[str], version: int) -> bool:
        parts = inside.split("/")
        if parts[0] == "_delta_log":
            match = _LOG_FILE.fullmatch(parts[-1])
            return match is not None and int(match[1]) <= version and parts[-1].endswith((".json", ".parquet"))
        if parts[0] == "_attempts":
            return parts[1] == "settled"  # an attempt belongs to the lake in which it runs
        if parse_name(inside) is not None and not parts[0].startswith("_"):
            return inside in named
        return not any(part.startswith(".") and part != ".discarded" for part in parts)


def _walk(folder: Place) -> Iterator[str]:
    """The files below a folder, by their path in it."""
    if isinstance(folder, Path):
        skipped = len(str(folder)) + 1
        for at, _, names in os.walk(folder):
            inside = f"{at[skipped:]}/" if len(at) > skipped else ""
            yield from (inside + name for name in names)
    else:
        yield from (str(relative(each, folder)) for each in folder.rglob("*"))


def _documents(root: Place) -> Iterator[Place]:
    """What lies in the lake besides its tables: savepoints, the horizon, records."""
    folders = [each.name for each in _below(root) if each.name.startswith("_")]
    for name in folders:
        place = root / name
        for path in [place] if place.is_file() else place.rglob("*"):
            if path.is_file() and not path.name.startswith(".") and name not in _NEVER:
                yield path


def _below(root: Place) -> list[Place]:
    found: list[Place] = [*root.iterdir()]
    return found if isinstance(root, Path) else [*found, *root.folders()]


def _pin(lake: Lake, project: Project | None) -> dict[str, Snapshot]:
    """Every table of the lake, at versions of which none is built from what the others lack.

    Without declarations lineage is not known: then all tables are looked at until none moves between two looks.
    """
    paths = [str(relative(folder, lake.root)) for folder in tables(lake.root)]
    if project is not None:
        declared = {path for table in project.tables for path in paths_of(table)}
        found = {path: lake.open(path) for path in paths if path not in declared}
        cut = take_cut(project, lake).snapshots
        return found | {path: snapshot for path, snapshot in cut.items() if snapshot.version is not None}
    found = {path: lake.open(path) for path in paths}
    for _ in range(_LOOKS):
        again = {path: lake.open(path) for path in paths}
        if all(found[path].version == again[path].version for path in paths):
            return found
        found = again
    raise BackupRefused(
        f"the lake {lake.root} is being written to, and which of its tables is built from which is not known here. "
        "Nothing was written. Run medallion backup in the project's folder, where pyproject.toml names the feeds."
    )


@dataclass
class _Copying:
    """Copies files that a backup does not hold.

    Attributes:
        before: the files of the last manifest: one that has not changed since is not read again.
        there: the bytes that the backup holds, with their sizes.
        files: of the cut, as the manifest lists them.
        folders: in which something was written.
    """

    lake: Lake
    place: Place
    before: Mapping[str, tuple[str, int, int]]
    there: dict[str, int]
    files: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    folders: set[Place] = field(default_factory=set)
    count: int = 0
    bytes: int = 0

    def copy(self, wanted: Iterator[tuple[str, Place]]) -> _Copying:
        """Copy what is new, and note every file."""
        new: list[tuple[str, Place, int, int]] = []
        for path, place in wanted:
            stat = place.stat()
            known = self.before.get(path)
            same = known is not None and known[1] == stat.st_size and (known[2] == stat.st_mtime_ns or _is_named(path))
            if known is not None and same and self.there.get(known[0]) == stat.st_size:
                self.files[path] = (known[0], stat.st_size, stat.st_mtime_ns)
            else:
                new.append((path, place, stat.st_size, stat.st_mtime_ns))
        reach("backup listed")
        for large in (each for each in new if each[2] >= _LARGE):
            self._note(self._keep(*large))
        for done in in_parallel(lambda each: self._keep(*each), [each for each in new if each[2] < _LARGE]):
            self._note(done)
        if isinstance(self.place, Path) and self.folders:
            in_parallel(sync, [*self.folders, self.place / "objects", self.place])
        return self

    def _keep(self, path: str, source: Place, size: int, changed: int) -> tuple[str, str, int, int]:
        data = source.read_bytes()
        sha256 = hashlib.sha256(data).hexdigest()
        if not _keeps_its_word(path, sha256):
            raise BackupRefused(
                f"{path} is not what its name promises, and what is damaged is not backed up as if it were whole. No "
                "manifest was written; the backups before stand. See: medallion check-lake"
            )
        if self.there.get(sha256) != len(data):
            place = object_place(self.place, sha256)
            if place.parent not in self.folders:
                place.parent.mkdir(parents=True, exist_ok=True)
                self.folders.add(place.parent)
            write_durably(place, data)
        return path, sha256, len(data), changed

    def _note(self, done: tuple[str, str, int, int]) -> None:
        path, sha256, size, changed = done
        self.files[path] = (sha256, size, changed)
        if self.there.get(sha256) != size:  # equal files are kept once
            self.there[sha256] = size
            self.count += 1
            self.bytes += size


def _is_named(path: str) -> bool:
    """Whether the name of a file promises its bytes."""
    return parse_name(path) is not None or ("/_sources/" in path and bool(OBJECT.fullmatch(PurePosixPath(path).name)))


def _keeps_its_word(path: str, sha256: str) -> bool:
    """Whether bytes are those that the name of their file promises; a name that promises nothing is not held to it."""
    named = parse_name(path)
    if named is not None:
        return sha256.startswith(named[1])  # digests.digest_bytes: the first half of the same
    return not _is_named(path) or PurePosixPath(path).name == sha256
