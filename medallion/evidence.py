"""What a commit was made of and how it was judged: a small JSON document for each batch, beside the table.

The document is written before the commit and becomes true when a live file carries its batch id; a document whose batch
is not live says nothing. It is found from the name of a live file alone, so it answers for any version that can still
be read, and after log entries have expired. Held candidates (blocked partitions) lie under ``_held`` in the same form.
"""

from __future__ import annotations

import json
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from medallion.digests import digest
from medallion.errors import TableUnreadable
from medallion.log import FORMAT, check_format
from medallion.objects import ObjectPath
from medallion.store import Place, sync, write_durably
from medallion.verdict import Verdict

__all__ = [
    "Evidence",
    "EvidenceReader",
    "SourceFile",
    "drop_held",
    "held_candidates",
    "held_file",
    "hold",
    "read_held",
    "write_evidence",
]

_FOLDER = "_evidence"
_PACK = ".jsonl"
_TOLD = "evidence.json"
_BATCH_ID = re.compile(rb'"batch_id": "([0-9a-f]{32})"')


@dataclass(frozen=True)
class SourceFile:
    """A file of the landing zone, as it was read."""

    name: str
    sha256: str
    size: int
    kept: str
    """Where its exact bytes lie, relative to the lake."""


@dataclass(frozen=True)
class Evidence:
    """The pinned context of one partition's batch.

    Attributes:
        inputs: by input name: the table, its pinned version, and the content digest of each partition that was read.
        references: by input or contract column: the table, its version, its content digest, and the digest of what
            this partition uses of it.
        closed: why there was no source file to read; None if there was one.
        refused: digest of the file of its quarantined rows; None if none were refused.
        epoch: of the partition when it was judged: a held candidate is out of date when the table has moved on.
        recovery: what became of an earlier attempt at it that died; None if there was none.
        downgrade: the higher revision that it replaced on purpose, and why.
        approval: who published it although its gate had blocked it, when, and why.
    """

    table: str
    partition: str
    batch_id: str
    content: str
    revision: int
    transform: str
    contract: str
    run_id: str
    attempt: str
    started_at: str
    verdict: Verdict
    inputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    references: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sources: tuple[SourceFile, ...] = ()
    closed: str | None = None
    packages: Mapping[str, str] = field(default_factory=dict)
    refused: str | None = None
    epoch: int = 0
    recovery: str | None = None
    downgrade: Mapping[str, Any] | None = None
    approval: Mapping[str, Any] | None = None

    def to_json(self) -> bytes:
        """The document."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        plain.update(verdict=self.verdict.to_dict(), sources=[asdict(source) for source in self.sources], format=FORMAT)
        return json.dumps(plain, sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: bytes, where: Place) -> Evidence:
        """Read a document.

        Raises:
            TableUnreadable: if a newer engine wrote it, or it is damaged.
        """
        try:
            plain = json.loads(data)
            if (written := plain.pop("format")) != FORMAT:  # what is said then costs more than reading
                check_format(written, f"the evidence at {where}")
            plain["verdict"] = Verdict.from_dict(plain["verdict"])
            plain["sources"] = tuple(SourceFile(**source) for source in plain["sources"])
            return cls(**plain)
        except (ValueError, KeyError, TypeError, AttributeError, AssertionError) as error:
            raise _damaged(where, f"{type(error).__name__}: {error}") from error


def _damaged(where: Place, reason: str) -> TableUnreadable:
    return TableUnreadable(
        f"the evidence at {where} is damaged ({reason}). Move that file away and replay the partitions of the table: "
        "the evidence is worked out again, and the rows stay as they are."
    )


def write_evidence(table: Place, documents: Sequence[Evidence], *, durable: bool) -> None:
    """Keep the documents of a slice, before the commit that makes them true.

    One partition's document is found by its name. Those of a range lie in one pack, since making a file costs more
    than what is in it.
    """
    folder = table / _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    if len(documents) == 1:
        write_durably(folder / f"{documents[0].batch_id}.json", documents[0].to_json(), durable=durable)
    else:
        pack = folder / f"{digest([each.batch_id for each in documents])}{_PACK}"
        write_durably(pack, b"\n".join(each.to_json() for each in documents), durable=durable)
        for each in documents:  # of an attempt that died alone: the reader would find it first
            (folder / f"{each.batch_id}.json").unlink(missing_ok=True)
    if durable:
        sync(folder)


class EvidenceReader:
    """Finds the documents of a table's batches; each pack is read once."""

    def __init__(self, table: Place) -> None:
        """Look into the table's folder when first asked."""
        self._folder: Place = table / _FOLDER
        self._packed: dict[str, tuple[bytes, Place]] | None = None
        self._alone: frozenset[str] = frozenset()
        self._known: frozenset[str] | None = None

    def __call__(self, batch_id: str) -> Evidence | None:
        """The document of a batch; None if it is gone."""
        if self._packed is not None and batch_id in self._packed and batch_id not in self._alone:
            return Evidence.from_json(*self._packed[batch_id])
        path = self._folder / f"{batch_id}.json"
        try:
            return Evidence.from_json(path.read_bytes(), path)
        except FileNotFoundError:
            if self._packed is None:
                self._packed = self._unpack()
            line, pack = self._packed.get(batch_id, (None, path))
            return None if line is None else Evidence.from_json(line, pack)

    def known(self) -> frozenset[str]:
        """The batches of which there is a document. Looks at every name once, as :meth:`several` does."""
        if self._known is None:
            if self._packed is None:
                self._packed = self._unpack()
            self._known = self._alone | self._packed.keys()
        return self._known

    def several(self, batch_ids: Iterable[str]) -> dict[str, Evidence]:
        """The documents of many batches; those that are gone are not among them."""
        known = self.known()
        found = {batch_id: self(batch_id) for batch_id in batch_ids if batch_id in known}
        return {batch_id: each for batch_id, each in found.items() if each is not None}

    def all(self) -> Iterator[Evidence]:
        """Every document there is, of live batches and of others.

        Raises:
            TableUnreadable: if one is damaged.
        """
        for path in self._folder.glob("*.json"):
            if not path.name.startswith("."):
                with suppress(FileNotFoundError):
                    yield Evidence.from_json(path.read_bytes(), path)
        if self._packed is None:
            self._packed = self._unpack()
        for line, pack in self._packed.values():
            yield Evidence.from_json(line, pack)

    def _unpack(self) -> dict[str, tuple[bytes, Place]]:
        # A batch that lies alone and in a pack is told by the former.
        self._alone = frozenset(path.stem for path in self._folder.glob("*.json"))
        # Oldest first, so that a batch that was prepared twice is told by the later attempt.
        packs: list[Place] = [*self._folder.glob(f"*{_PACK}")]
        packs.sort(key=lambda path: path.stat().st_mtime_ns)
        found: dict[str, tuple[bytes, Place]] = {}
        for pack in packs:
            for line in pack.read_bytes().split(b"\n"):
                match = _BATCH_ID.search(line)
                if match is None:
                    raise _damaged(pack, "a line names no batch")
                found[match[1].decode()] = (line, pack)
        return found


def hold(
    table: Place, evidence: Evidence, accepted: bytes | None, quarantined: bytes | None, *, durable: bool
) -> Place:
    """Keep a blocked candidate: the files that would have been committed, and why they were not.

    A reader sees the whole candidate, the one before, or none. In a folder it is made under another name and put in
    place. Objects cannot be renamed: there the files lie under names that only this attempt's evidence leads to, and
    the evidence is written last, over the one before.

    Args:
        table: the table's folder.
        evidence: with the digests of the two files.
        accepted: the encoded rows that would have been published; None if it did not come to that.
        quarantined: those that would have been refused; None if there are none.
        durable: flush them to the disk.
    """
    folder = table / "_held" / evidence.partition
    files = {name: data for name, data in (("accepted", accepted), ("quarantined", quarantined)) if data is not None}
    if isinstance(table, ObjectPath):
        before = read_held(table, evidence.partition)
        for name, data in files.items():
            write_durably(held_file(table, evidence, name), data, durable=durable)
        write_durably(folder / _TOLD, evidence.to_json(), durable=durable)
        if before is not None and before.attempt != evidence.attempt:
            _drop_files(table, before)
        return folder
    held = table / "_held"
    held.mkdir(parents=True, exist_ok=True)
    made = held / f".{uuid.uuid4().hex}"
    made.mkdir()
    for name, data in files.items():
        write_durably(made / f"{name}.parquet", data, durable=durable)
    write_durably(made / _TOLD, evidence.to_json(), durable=durable)
    while True:
        drop_held(table, evidence.partition)
        with suppress(OSError):  # another attempt put its own there in this moment
            made.rename(str(folder))
            break
    if durable:
        sync(held)
    return folder


def held_file(table: Place, evidence: Evidence, name: str) -> Place:
    """Where a blocked candidate's ``accepted`` or ``quarantined`` rows lie."""
    owner = f"{evidence.attempt}-" if isinstance(table, ObjectPath) else ""
    return table / "_held" / evidence.partition / f"{owner}{name}.parquet"


def _drop_files(table: Place, evidence: Evidence) -> None:
    for name in ("accepted", "quarantined"):
        held_file(table, evidence, name).unlink(missing_ok=True)


def read_held(table: Place, key: str) -> Evidence | None:
    """The evidence of a partition's blocked candidate; None if there is none."""
    path = table / "_held" / key / _TOLD
    try:
        return Evidence.from_json(path.read_bytes(), path)
    except FileNotFoundError:
        return None


def held_candidates(table: Place) -> dict[str, Evidence]:
    """The evidence of all blocked candidates of a table, by partition."""
    found: dict[str, Evidence] = {}
    for path in (table / "_held").rglob(_TOLD):
        key = path.parent.name
        held = None if key.startswith(".") else read_held(table, key)
        if held is not None:
            found[key] = held
    return found


def drop_held(table: Place, key: str) -> None:
    """Forget a partition's blocked candidate, because a later one was committed or took its place."""
    folder = table / "_held" / key
    if isinstance(folder, ObjectPath):
        before = read_held(table, key)
        if before is not None:
            (folder / _TOLD).unlink(missing_ok=True)  # first, so that nobody finds half a candidate
            _drop_files(table, before)
        return
    gone = folder.with_name(f".{uuid.uuid4().hex}")
    with suppress(FileNotFoundError):
        folder.rename(gone)  # in one step, so that nobody finds half a candidate
        shutil.rmtree(gone, ignore_errors=True)
