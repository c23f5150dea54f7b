"""Repairs what ``fsck.py`` finds: from a backup if there is one, else so far as the lake itself allows it.

Nothing is deleted: what is damaged is moved to ``_damaged`` beside the table, from where ``medallion clean`` takes it
when it is old. A repair never guesses rows. Where bytes are gone, a partition is taken out of its table, so that
readers find it missing instead of failing, and a replay makes it again; where the log is broken, the table goes back to
the last version that it leads to.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from medallion import ledger
from medallion.attempts import records
from medallion.damage import Damage, Kind
from medallion.errors import MedallionError
from medallion.evidence import EvidenceReader, drop_held
from medallion.fsck import check_lake
from medallion.gaps import record_gap
from medallion.lake import Lake, Replacement, Snapshot
from medallion.log import named_files
from medallion.log_state import log_state
from medallion.manifests import Manifest, object_place, read_manifest
from medallion.project import Project
from medallion.rebuilding import contradictions, rebuild
from medallion.restore import resume
from medallion.sources import LandingZone
from medallion.staging import Staged, parse_name, partition_of
from medallion.store import Place, relative, write_durably
from medallion.strays import find_strays, remove_strays

__all__ = ["Repaired", "Repairs", "repair_lake"]

_FOLDER = "_damaged"
_ROUNDS = (
    # The log first: what else is damaged can only be told when it can be read.
    {Kind.TABLE_GONE, Kind.CHECKPOINT_HINT, Kind.LOG_ENTRY_DAMAGED, Kind.LOG_ENTRY_MISSING, Kind.CHECKPOINT_DAMAGED},
    {Kind.EVIDENCE_DAMAGED, Kind.SAVEPOINT_DAMAGED, Kind.RECORD_DAMAGED, Kind.SOURCE_MISSING, Kind.SOURCE_ALTERED},
    {Kind.FILE_MISSING, Kind.FILE_ALTERED, Kind.FILE_WITHOUT_FENCE, Kind.EVIDENCE_MISSING, Kind.HELD_INCOMPLETE},
    {Kind.SAVEPOINT_DANGLING, Kind.RESTORE_UNFINISHED, Kind.GAP, Kind.STRAY},
)


@dataclass(frozen=True)
class Repaired:
    """One thing that was repaired.

    Attributes:
        did: what was done.
        lost: what could not be kept; empty if nothing was lost.
        replay: the partitions that have to be replayed now, as ``(table, partition)``.
    """

    damage: Damage
    did: str
    lost: str = ""
    replay: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Repairs:
    """What was repaired, and what is left."""

    done: tuple[Repaired, ...]
    left: tuple[Damage, ...]

    @property
    def replay(self) -> Mapping[str, tuple[str, ...]]:
        """The partitions that have to be replayed, by table."""
        found: dict[str, dict[str, None]] = {}
        for each in self.done:
            for table, key in each.replay:
                found.setdefault(table, {})[key] = None
        return {table: tuple(keys) for table, keys in sorted(found.items())}


def repair_lake(
    lake: Lake,
    *,
    project: Project | None = None,
    backup: Place | None = None,
    landing: LandingZone | None = None,
) -> Repairs:
    """Repair what can be repaired.

    Args:
        lake: the lake; no attempt may be running in it.
        project: the declared tables: needed to complete a restore, to miss a table that is gone altogether, and to let
            the ledger follow what was repaired.
        backup: from which bytes are put back; its newest manifest counts.
        landing: where the bytes of a source may be found again.

    Raises:
        MedallionError: if an attempt is running: a repair may take a table back, which no fence would show to it.
        BackupRefused: if there is no such backup.
    """
    found = check_lake(lake, project, landing=landing)
    if not found:
        return Repairs((), ())
    alive = [
        each
        for table in {each.table for each in found if each.table}
        for each in records(lake.root / table)
        if each.is_alive
    ]
    if alive:
        raise MedallionError(
            f"attempt {alive[0].attempt} at {alive[0].table} is running. Nothing was repaired. Wait until it has "
            "ended, or end it, and ask again."
        )
    work = _Repair(lake, project, backup, landing)
    for kinds in _ROUNDS:
        work.round([each for each in found if each.kind in kinds])
        found = check_lake(lake, project, landing=landing)
    if project is not None and work.done and contradictions(lake, project):
        rebuild(lake, project)  # it told of commits that are gone; the tables are right
        found = check_lake(lake, project, landing=landing)
    return Repairs(tuple(work.done), tuple(found))


@dataclass
class _Repair:
    """Carries repairs out."""

    lake: Lake
    project: Project | None
    backup: Place | None
    landing: LandingZone | None
    done: list[Repaired] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.manifest: Manifest | None = None if self.backup is None else read_manifest(self.backup)
        self.by_kind: dict[Kind, Callable[[Damage], Repaired | None]] = {
            Kind.TABLE_GONE: self._table_gone,
            Kind.CHECKPOINT_HINT: self._set_aside,
            Kind.CHECKPOINT_DAMAGED: self._checkpoint,
            Kind.LOG_ENTRY_DAMAGED: self._log,
            Kind.LOG_ENTRY_MISSING: self._log,
            Kind.EVIDENCE_DAMAGED: self._document,
            Kind.SAVEPOINT_DAMAGED: self._document,
            Kind.SOURCE_MISSING: self._source,
            Kind.SOURCE_ALTERED: self._source,
            Kind.FILE_MISSING: self._file,
            Kind.FILE_ALTERED: self._file,
            Kind.FILE_WITHOUT_FENCE: self._fence,
            Kind.EVIDENCE_MISSING: self._evidence,
            Kind.HELD_INCOMPLETE: self._held,
            Kind.RESTORE_UNFINISHED: self._restore,
            Kind.GAP: self._gap,
            Kind.STRAY: self._stray,
        }

    def round(self, damages: Sequence[Damage]) -> None:
        """Repair what was found at one look; one table's log is taken back once for all that is damaged in it."""
        for damage in damages:
            act = self.by_kind.get(damage.kind)
            repaired = act(damage) if act is not None else None
            if repaired is not None:
                self.done.append(repaired)

    # --- bytes

    def _saved(self, path: str) -> bytes | None:
        """The bytes of a file, as the backup has them, if they are what it says."""
        if self.manifest is None or self.backup is None or path not in self.manifest.files:
            return None
        sha256 = self.manifest.files[path][0]
        with suppress(OSError):
            data = object_place(self.backup, sha256).read_bytes()
            if hashlib.sha256(data).hexdigest() == sha256:
                return data
        return None

    def _put_back(self, damage: Damage) -> Repaired | None:
        """From the backup; None if it does not have the file."""
        data = self._saved(damage.path)
        if data is None:
            return None
        place = self.lake.root / damage.path
        self._move_away(place, damage.table)
        place.parent.mkdir(parents=True, exist_ok=True)
        write_durably(place, data, durable=self.lake.durable)
        return Repaired(damage, f"put back from the backup {self.backup}")

    def _move_away(self, place: Place, table: str) -> str:
        """Keep what is damaged beside the table, out of everybody's way; where it lies, relative to the lake."""
        if not place.is_file():
            return ""
        folder = self.lake.root / table / _FOLDER if table else self.lake.root / _FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        kept = folder / f"{place.name}.{uuid.uuid4().hex[:8]}"
        if isinstance(place, Path) and isinstance(kept, Path):
            place.rename(kept)
        else:
            write_durably(kept, place.read_bytes())
            place.unlink(missing_ok=True)
        return f"{table}/{_FOLDER}/{kept.name}".lstrip("/")

    def _set_aside(self, damage: Damage, lost: str = "") -> Repaired:
        kept = self._move_away(self.lake.root / damage.path, damage.table)
        return Repaired(damage, f"moved to {kept}" if kept else "it is not there any more", lost)

    # --- the log

    def _table_gone(self, damage: Damage) -> Repaired | None:
        if self.manifest is None:
            return self._ledger(damage) if damage.table == ledger.PATH else None
        paths = [path for path in self.manifest.files if path.startswith(f"{damage.table}/")]
        there = {path: data for path in paths if (data := self._saved(path)) is not None}
        if not paths or len(there) < len(paths):
            return None
        # The log last: before it is there, nobody takes the folder for a table.
        for path in sorted(there, key=lambda path: "/_delta_log/" in path):
            place = self.lake.root / path
            if not place.is_file():
                place.parent.mkdir(parents=True, exist_ok=True)
                write_durably(place, there[path], durable=self.lake.durable)
        lost = f"what was committed to it after {self.manifest.at}; replay it"
        return Repaired(damage, f"{len(there)} files were put back from the backup {self.backup}", lost)

    def _checkpoint(self, damage: Damage) -> Repaired | None:
        version = int(PurePosixPath(damage.path).name.partition(".")[0])
        if version in log_state(self.lake, damage.table).sound.readable():
            return self._set_aside(damage)
        return self._log(damage)

    def _log(self, damage: Damage) -> Repaired | None:
        if self._same_history(damage.table) and (repaired := self._put_back(damage)) is not None:
            return repaired
        state = log_state(self.lake, damage.table)
        if state.leads_to_the_end:
            if damage.kind == Kind.LOG_ENTRY_MISSING or not (self.lake.root / damage.path).is_file():
                return None  # nothing that could be done, and the newest state does not need it
            return self._set_aside(damage, damage.loses)
        return self._take_back(damage) if state.newest >= 0 else None

    def _same_history(self, table: str) -> bool:
        """Whether the backup's log of a table is the same one: an entry in it stands here byte for byte."""
        if self.manifest is None:
            return False
        sound = log_state(self.lake, table).sound.entries.values()
        names = [f"{table}/_delta_log/{place.name}" for place in sound]
        known = [name for name in names if name in self.manifest.files]
        return all(
            hashlib.sha256((self.lake.root / name).read_bytes()).hexdigest() == self.manifest.files[name][0]
            for name in known
        )

    def _take_back(self, damage: Damage) -> Repaired:
        """Let the table end with the newest version to which its log leads."""
        state = log_state(self.lake, damage.table)
        log = self.lake.root / damage.table / "_delta_log"
        later = [*state.listing.checkpoints.items(), *state.listing.entries.items()]
        # Newest first, so that at no moment the log leads to something that it never led to.
        for version, place in sorted(later, key=lambda each: -each[0]):
            if version > state.newest:
                self._move_away(place, damage.table)
        (log / "_last_checkpoint").unlink(missing_ok=True)
        named = named_files(log)
        folder = self.lake.root / damage.table
        inside = [str(relative(each, folder)) for each in folder.rglob("*.parquet")]
        unnamed = [path for path in inside if parse_name(path) is not None and not path.startswith("_")]
        replay = {(damage.table, partition_of(path)) for path in unnamed if path not in named}
        did = f"the table was taken back to version {state.newest}; later entries of its log were moved to {_FOLDER}"
        return Repaired(damage, did, damage.loses, tuple(sorted(replay)))

    # --- documents, sources, files

    def _document(self, damage: Damage) -> Repaired:
        return self._put_back(damage) or self._set_aside(damage, damage.loses)

    def _source(self, damage: Damage) -> Repaired | None:
        if (repaired := self._put_back(damage)) is not None:
            return repaired
        place = self.lake.root / damage.path
        if self.landing is not None:
            for path in self.landing.root.rglob("*"):
                if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == place.name:
                    self._move_away(place, damage.table)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    write_durably(place, path.read_bytes(), durable=self.lake.durable)
                    return Repaired(damage, f"put back from {path.relative_to(self.landing.root)} in the landing zone")
        return self._set_aside(damage, damage.loses) if damage.kind == Kind.SOURCE_ALTERED else None

    def _file(self, damage: Damage) -> Repaired | None:
        if (repaired := self._put_back(damage)) is not None:
            return repaired
        if not damage.needed:
            return self._set_aside(damage, damage.loses) if damage.kind == Kind.FILE_ALTERED else None
        if damage.table == ledger.PATH:
            return self._ledger(damage)
        self._move_away(self.lake.root / damage.path, damage.table)
        replay = []
        for path in _together(damage.table):
            if (self.lake.root / path / "_delta_log").exists():
                self._take_out(path, damage.partition, damage)
                replay.append((path, damage.partition))
        owner = next(each for each in replay if not each[0].startswith("quarantine/"))
        did = f"{damage.partition} was taken out of {' and '.join(path for path, _ in replay)}"
        return Repaired(damage, did, damage.loses, (owner,))

    def _ledger(self, damage: Damage) -> Repaired | None:
        if self.project is None:
            return None
        self._move_away(self.lake.root / damage.path, damage.table)
        rebuilt = rebuild(self.lake, self.project)
        return Repaired(damage, f"the ledger was made anew from the tables: {rebuilt.rows} rows", damage.loses)

    def _take_out(self, table: str, key: str, damage: Damage) -> None:
        snapshot = self.lake.open(table)
        if snapshot.files.get(key):
            why = {"kind": str(damage.kind), "path": damage.path}
            metadata = {"table": table, "attempt": uuid.uuid4().hex, "run_id": "medallion check-lake", "repair": why}
            self.lake.replace(snapshot, Replacement([], {key: ""}, snapshot.schema), metadata=metadata)

    def _fence(self, damage: Damage) -> Repaired:
        snapshot: Snapshot = self.lake.open(damage.table)
        files = snapshot.files[damage.partition]
        pairs = [(Staged(each.partition, b"", each.digest, each.rows), each) for each in files]
        replacement = Replacement(pairs, {damage.partition: files[0].batch_id}, snapshot.schema, standing=True)
        metadata = {
            "table": damage.table, "attempt": uuid.uuid4().hex, "run_id": "medallion check-lake",
            "repair": {"kind": str(damage.kind), "path": damage.path},
        }  # fmt: skip
        self.lake.replace(snapshot, replacement, metadata=metadata)
        return Repaired(damage, "the file was committed again, with a fence")

    def _evidence(self, damage: Damage) -> Repaired:
        for path in self.manifest.files if self.manifest is not None else ():
            if path.startswith(f"{damage.table}/_evidence/") and not (self.lake.root / path).is_file():
                data = self._saved(path)
                if data is not None:
                    write_durably(self.lake.root / path, data, durable=self.lake.durable)
        batch = PurePosixPath(damage.path).stem
        if EvidenceReader(self.lake.root / damage.table)(batch) is not None:
            return Repaired(damage, f"put back from the backup {self.backup}")
        return Repaired(damage, "the replay works it out again", "", ((damage.table, damage.partition),))

    def _held(self, damage: Damage) -> Repaired:
        folder = self.lake.root / damage.path
        if (folder / "evidence.json").is_file():
            self._move_away(folder / "evidence.json", damage.table)
        drop_held(self.lake.root / damage.table, damage.partition)
        return Repaired(damage, "the candidate was forgotten", damage.loses, ((damage.table, damage.partition),))

    def _restore(self, damage: Damage) -> Repaired | None:
        if self.project is None:
            return None
        ended = resume(self.project, self.lake)
        return None if ended is None else Repaired(damage, f"the restore to {ended.target} is {ended.outcome}")

    def _gap(self, damage: Damage) -> Repaired:
        at = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        record_gap(self.lake, damage.table, damage.partition, damage.found, at)
        return Repaired(damage, "recorded as an irrecoverable gap", damage.loses)

    def _stray(self, damage: Damage) -> Repaired | None:
        mine = [each for each in find_strays(self.lake) if each.path == damage.path]
        return Repaired(damage, "removed") if remove_strays(self.lake, mine) else None


def _together(table: str) -> Sequence[str]:
    """A table and its quarantine, of which a partition is made at once; the table first, so that both are replayed."""
    layer, _, name = table.partition("/")
    return {
        "quarantine": (f"silver/{name}", table),
        "silver": (table, f"quarantine/{name}"),
    }.get(layer, (table,))
