"""The document of a savepoint: what every table held, and how that is read back, from the log or from itself.

What belongs here: the values and their form. What does not: making, listing and dropping savepoints
(``savepoints.py``).
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from medallion.digests import digest
from medallion.errors import SavepointRefused, TableUnreadable
from medallion.lake import Lake, Snapshot
from medallion.log import FORMAT, check_format
from medallion.partitions import Partitioning
from medallion.snapshot import named_snapshot
from medallion.staging import DataFile, parse_name
from medallion.store import Place

__all__ = ["SavedTable", "Savepoint", "SourcePosition", "content_of"]

Files = Mapping[str, tuple[DataFile, ...]]


@dataclass(frozen=True)
class SourcePosition:
    """How far a source had been taken in.

    Attributes:
        newest: the last partition that is committed; None if none is.
        contiguous: the last one before which none is missing; None if the first one is.
        sources: names the delivered files of all partitions by their bytes.
    """

    newest: str | None
    contiguous: str | None
    sources: str


@dataclass(frozen=True)
class SavedTable:
    """One table of a savepoint.

    Attributes:
        version: of the Delta table; None if there was no table.
        content: names what all partitions held: a digest of the sorted pairs of partition and content digest.
        files: the data files by partition.
        revision, transform, contract: of the declared code at that time; 0 and empty for a quarantine.
        made_by: how many partitions each revision of the code had made.
        position: of the source; of bronze only.
    """

    version: int | None
    content: str
    rows: int
    files: Files = field(repr=False)
    revision: int = 0
    transform: str = ""
    contract: str = ""
    made_by: Mapping[str, int] = field(default_factory=dict)
    position: SourcePosition | None = None


@dataclass(frozen=True)
class Savepoint:
    """What every table held at one consistent cut.

    Attributes:
        name: never used for another state as long as it is there.
        kind: ``manual`` or ``automatic``; the latter are dropped when they are old.
        stale: partitions that were not what their inputs and code would have made of them, by table, with the reason.
    """

    name: str
    kind: str
    created_at: str
    reason: str
    run_id: str
    tables: Mapping[str, SavedTable]
    stale: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    format: int = FORMAT

    @cached_property
    def moment(self) -> dt.datetime:
        """When it was made."""
        return dt.datetime.fromisoformat(self.created_at)

    @property
    def rows(self) -> int:
        """Rows of all tables."""
        return sum(each.rows for each in self.tables.values())

    def snapshot(self, lake: Lake, path: str, partition: Partitioning) -> Snapshot:
        """A table as the savepoint names it, from the log or, where that has forgotten the version, from the savepoint.

        Raises:
            SavepointRefused: if the version holds something else than the savepoint says.
        """
        saved = self.tables[path]
        try:
            snapshot = lake.pin(path, partition, saved.version)
        except TableUnreadable:  # its log entries have expired; the columns only ever become more
            newest = lake.pin(path, partition)
            return named_snapshot(newest, saved.version, saved.files)
        if saved.version is None:
            return Snapshot(lake, path, partition, None, snapshot.schema)
        if content_of(snapshot.files) != saved.content:
            raise SavepointRefused(
                self.name,
                f"and the data do not match: version {saved.version} of {path} holds {content_of(snapshot.files)[:12]} "
                f"and the savepoint says {saved.content[:12]}; the table was made anew, or its log was altered. "
                "Nothing was read or changed.",
                "Choose another savepoint, or restore a backup.",
            )
        return snapshot

    def to_json(self) -> bytes:
        """The document; it names itself by a digest, so that a damaged one is told from a whole one."""
        plain: dict[str, Any] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        plain["tables"] = {path: _to_plain(table) for path, table in self.tables.items()}
        return json.dumps({**plain, "digest": digest(plain)}).encode()  # tables stay in the order of lineage

    @classmethod
    def from_json(cls, data: bytes, where: Place) -> Savepoint:
        """Read a document.

        Raises:
            SavepointRefused: if it is damaged.
            TableUnreadable: if a newer engine wrote it.
        """
        try:
            plain = json.loads(data)
            check_format(plain["format"], f"the savepoint at {where}")
            if plain.pop("digest") != digest(plain):
                raise ValueError("it is not what its own digest says")
            plain["tables"] = {path: _from_plain(table) for path, table in plain["tables"].items()}
            return cls(**plain)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SavepointRefused(
                where.stem,
                f"at {where} is damaged ({error}).",
                "Move that file away; the tables are not touched by it.",
            ) from error


def content_of(files: Files) -> str:
    """Names what a table holds: a digest of the sorted pairs of partition and content digest."""
    return digest(sorted((key, "+".join(sorted(file.digest for file in some))) for key, some in files.items()))


def _to_plain(table: SavedTable) -> dict[str, Any]:
    plain: dict[str, Any] = {name: getattr(table, name) for name in table.__dataclass_fields__}
    plain["files"] = {key: [[f.path, f.rows, f.size] for f in some] for key, some in table.files.items()}
    plain["position"] = vars(table.position) if table.position is not None else None
    return plain


def _from_plain(plain: dict[str, Any]) -> SavedTable:
    files = {key: tuple(_file(key, *each) for each in some) for key, some in plain.pop("files").items()}
    position = plain.pop("position")
    return SavedTable(**plain, files=files, position=SourcePosition(**position) if position else None)


def _file(key: str, path: str, rows: int, size: int) -> DataFile:
    named = parse_name(path)
    if named is None:
        raise ValueError(f"{path} is no data file of this engine")
    return DataFile(key, path, *named, rows, size)
