"""What a backup says of itself: a manifest for each time that it was made, and bytes under their SHA-256.

    <backup>/objects/<first two>/<sha256>           bytes, written once
    <backup>/manifests/<time>-<its own digest>.json the files of one cut, and what its tables held

What belongs here: reading, checking and forgetting manifests. What does not: making them (``backup.py``).
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from medallion.digests import digest
from medallion.errors import BackupRefused
from medallion.lake import Snapshot
from medallion.log import FORMAT, check_format
from medallion.staging import in_parallel
from medallion.store import Place

__all__ = [
    "OBJECT",
    "Manifest",
    "TableCut",
    "check_backup",
    "manifests",
    "measure_table",
    "object_place",
    "prune",
    "read_manifest",
]

OBJECT = re.compile(r"[0-9a-f]{64}")
"""How bytes are named."""
_MANIFEST = re.compile(r"[0-9]{8}T[0-9]{12}Z-([0-9a-f]{32})\.json")
_SETTLED = 24 * 3600.0
"""Seconds after which a backup that has written bytes has written its manifest as well, or died."""


@dataclass(frozen=True)
class TableCut:
    """What a table held at the version of the cut.

    Attributes:
        digest: names the content of all its partitions.
    """

    version: int
    rows: int
    partitions: int
    digest: str


@dataclass(frozen=True)
class Manifest:
    """One backup of a lake.

    Attributes:
        name: of its file.
        at: when the cut was made, as ISO 8601: what was committed later is not in it.
        lake: where the lake lay.
        tables: by ``layer/name``.
        files: by path below the lake: SHA-256, size in bytes, and time of change in nanoseconds since 1970.
    """

    name: str
    at: str
    lake: str
    tables: Mapping[str, TableCut]
    files: Mapping[str, tuple[str, int, int]]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(size for _, size, _ in self.files.values())

    def to_json(self) -> bytes:
        """The document, without its name, which tells its digest."""
        tables = {table: asdict(cut) for table, cut in self.tables.items()}
        told = {"format": FORMAT, "at": self.at, "lake": self.lake, "tables": tables, "files": dict(self.files)}
        return json.dumps(told, sort_keys=True).encode()


def manifests(place: Place) -> list[str]:
    """The names of a backup's manifests, oldest first."""
    return sorted(path.name for path in (place / "manifests").glob("*.json") if _MANIFEST.fullmatch(path.name))


def read_manifest(place: Place, name: str | None = None) -> Manifest:
    """A manifest of a backup; the newest if not named.

    Raises:
        BackupRefused: if there is none, or it is not what its name says.
        TableUnreadable: if a newer engine wrote it.
    """
    known = manifests(place)
    if not known or (name is not None and name not in known):
        there = f"There are: {', '.join(known)}." if known else "There is none: make one with medallion backup."
        raise BackupRefused(f"the backup {place} has no manifest{'' if name is None else f' {name}'}. {there}")
    name = known[-1] if name is None else name
    data = (place / "manifests" / name).read_bytes()
    match = _MANIFEST.fullmatch(name)
    if match is None or hashlib.sha256(data).hexdigest()[:32] != match[1]:
        raise BackupRefused(
            f"the manifest {name} of the backup {place} is damaged: it is not what its name says. Nothing was written. "
            f"Take another: --manifest, of {', '.join(each for each in known if each != name) or 'which there is none'}"
        )
    told = json.loads(data)
    check_format(told["format"], f"the manifest {name}")
    return Manifest(
        name,
        told["at"],
        told["lake"],
        {table: TableCut(**cut) for table, cut in told["tables"].items()},
        {path: (sha256, size, changed) for path, (sha256, size, changed) in told["files"].items()},
    )


def object_place(place: Place, sha256: str) -> Place:
    """Where a backup keeps the bytes of that name."""
    return place / "objects" / sha256[:2] / sha256


def measure_table(snapshot: Snapshot) -> TableCut:
    """What a table holds, as its log names it."""
    assert snapshot.version is not None
    keys = list(snapshot.files)
    contents = {key: snapshot.content(key) for key in sorted(keys)}
    return TableCut(snapshot.version, sum(map(snapshot.rows, keys)), len(keys), digest(contents))


def check_backup(place: Place, manifest: Manifest) -> list[str]:
    """Read every byte that a manifest names; what is missing or altered, a sentence each."""

    def look(sha256: str) -> str:
        try:
            data = object_place(place, sha256).read_bytes()
        except OSError as error:
            return f"its bytes {sha256} cannot be read: {error.strerror or error}"
        return "" if hashlib.sha256(data).hexdigest() == sha256 else f"its bytes {sha256} have been altered"

    wanted = sorted({sha256 for sha256, _, _ in manifest.files.values()})
    wrong = dict(zip(wanted, in_parallel(look, wanted), strict=True))
    return [f"{path}: {wrong[sha256]}" for path, (sha256, _, _) in sorted(manifest.files.items()) if wrong[sha256]]


def prune(place: Place, keep: int) -> tuple[str, ...]:
    """Forget all manifests of a backup but the newest, and the bytes that no other names.

    Bytes that were written within the last day stay: another backup may be under way, whose manifest comes last.

    Args:
        place: the backup.
        keep: how many manifests stay, at least one.

    Returns:
        the names of the manifests that were forgotten.

    Raises:
        BackupRefused: if a manifest that stays is damaged: then it cannot be said which bytes it needs.
    """
    known = manifests(place)
    gone, stay = known[: -max(keep, 1)], known[-max(keep, 1) :]
    named = {sha256 for name in stay for sha256, _, _ in read_manifest(place, name).files.values()}
    for name in gone:
        (place / "manifests" / name).unlink(missing_ok=True)
    before = time.time() - _SETTLED
    for path in (place / "objects").rglob("*"):
        if OBJECT.fullmatch(path.name) and path.name not in named and path.stat().st_mtime < before:
            path.unlink(missing_ok=True)
    return tuple(gone)
