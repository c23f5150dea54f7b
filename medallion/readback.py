"""Partitions read back: their files' bytes and rows, their evidence, their fence, and the kept bytes of their sources.

What belongs here: reading. What does not: saying whether it agrees (``agreement.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from medallion.errors import TableUnreadable
from medallion.evidence import Evidence, EvidenceReader, SourceFile
from medallion.fingerprints import Fingerprint, fingerprint
from medallion.lake import Snapshot
from medallion.staging import DataFile, in_parallel
from medallion.store import Place
from medallion.tables import Table

__all__ = ["PartitionRead", "ReadFile", "ReadSource", "Readback", "live_files"]


@dataclass(frozen=True)
class ReadFile:
    """A live file, and what stands under its name.

    Attributes:
        path: relative to the lake.
        file: as the log and its own name describe it.
        found: None if it is not there, or cannot be read.
        error: why it cannot be read.
    """

    path: str
    file: DataFile
    found: Fingerprint | None
    error: str | None = None


@dataclass(frozen=True)
class ReadSource:
    """The kept bytes of a source file, likewise."""

    source: SourceFile
    found: Fingerprint | None
    error: str | None = None


@dataclass(frozen=True)
class PartitionRead:
    """What was read back of one partition.

    Attributes:
        accepted: its live files.
        refused: those of its quarantine.
        foreign: why the files of the table or of the quarantine cannot be told, by ``layer/name``.
        evidence: of the live batch; None if it is gone or cannot be read.
        unreadable: why the evidence cannot be read.
        epochs: of the table and of the quarantine.
    """

    key: str
    accepted: tuple[ReadFile, ...] = ()
    refused: tuple[ReadFile, ...] = ()
    foreign: Mapping[str, str] = field(default_factory=dict)
    evidence: Evidence | None = None
    unreadable: str | None = None
    sources: tuple[ReadSource, ...] = ()
    epochs: tuple[int, int] = (0, 0)

    @property
    def bytes(self) -> int:
        """How many were read."""
        found = [each.found for each in (*self.accepted, *self.refused)] + [each.found for each in self.sources]
        return sum(each.size for each in found if each is not None)


def live_files(snapshot: Snapshot, key: str) -> tuple[DataFile, ...] | str:
    """The live files of a partition; text says why they cannot be told."""
    try:
        return snapshot.files.get(key, ())
    except TableUnreadable as error:
        return str(error)


class Readback:
    """A table and its quarantine at pinned versions."""

    def __init__(self, table: Table, target: Snapshot, quarantine: Snapshot | None) -> None:
        """Read nothing yet.

        Args:
            table: a declared table.
            target: it, pinned after its quarantine.
            quarantine: pinned; None if the table has none.
        """
        self.table, self.target, self.quarantine = table, target, quarantine
        self._evidence_of = EvidenceReader(target.folder)

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The partitions that are live in the table, or have refused rows, in order."""
        refused = () if self.quarantine is None else tuple(self.quarantine.files)
        return tuple(sorted({*self.target.files, *refused}))

    @cached_property
    def _epochs(self) -> tuple[dict[str, int], dict[str, int]]:
        return self.target.epochs(self.keys), {} if self.quarantine is None else self.quarantine.epochs(self.keys)

    def partitions(self, keys: Sequence[str]) -> dict[str, PartitionRead]:
        """Read some partitions back."""
        foreign: dict[str, dict[str, str]] = {key: {} for key in keys}
        accepted = self._read(self.target, keys, foreign)
        refused = {} if self.quarantine is None else self._read(self.quarantine, keys, foreign)
        told = self._told({key: files[0].file.batch_id for key, files in accepted.items() if files})
        evidence = {key: each for key, each in told.items() if isinstance(each, Evidence)}
        sources = self._read_sources(evidence.values())
        mine, theirs = self._epochs
        return {
            key: PartitionRead(
                key,
                accepted.get(key, ()),
                refused.get(key, ()),
                foreign[key],
                evidence.get(key),
                each if isinstance(each := told.get(key), str) else None,
                tuple(sources[source.kept] for source in evidence[key].sources) if key in evidence else (),
                (mine[key], theirs.get(key, 0)),
            )
            for key in keys
        }

    def _told(self, batches: Mapping[str, str]) -> dict[str, Evidence | str | None]:
        def look(batch_id: str) -> Evidence | str | None:
            try:
                return self._evidence_of(batch_id)
            except (TableUnreadable, OSError) as error:
                return str(error)

        ids = list(batches.values())
        # The first alone: it reads the packs, once for all.
        return dict(zip(batches, [*map(look, ids[:1]), *in_parallel(look, ids[1:])], strict=True))

    def _read(
        self, snapshot: Snapshot, keys: Iterable[str], foreign: Mapping[str, dict[str, str]]
    ) -> dict[str, tuple[ReadFile, ...]]:
        named: dict[str, tuple[DataFile, ...]] = {}
        for key in keys:
            files = live_files(snapshot, key)
            if isinstance(files, str):
                foreign[key][snapshot.path] = files
            else:
                named[key] = files
        wanted = [file for files in named.values() for file in files]

        def look(file: DataFile) -> ReadFile:
            found, error = _look(snapshot.folder / file.path, rows=True)
            return ReadFile(f"{snapshot.path}/{file.path}", file, found, error)

        read = iter(in_parallel(look, wanted))
        return {key: tuple(next(read) for _ in files) for key, files in named.items()}

    def _read_sources(self, evidence: Iterable[Evidence]) -> dict[str, ReadSource]:
        sources = list({source.kept: source for each in evidence for source in each.sources}.values())
        root = self.target.lake.root

        def look(source: SourceFile) -> ReadSource:
            return ReadSource(source, *_look(root / source.kept, rows=False))

        return {each.source.kept: each for each in in_parallel(look, sources)}


def _look(place: Place, *, rows: bool) -> tuple[Fingerprint | None, str | None]:
    try:
        return fingerprint(place, rows=rows), None
    except OSError as error:
        return None, error.strerror or str(error)
