"""What is damaged in one table: its log, its files and fences, its evidence, candidates and sources."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from medallion import ledger
from medallion.damage import Damage, Kind
from medallion.digests import digest_bytes, digest_file
from medallion.errors import MedallionError, TableUnreadable
from medallion.evidence import Evidence, EvidenceReader, held_file
from medallion.lake import Lake, Snapshot
from medallion.log import Commit, checkpointed_files, read_entry
from medallion.log_state import log_state
from medallion.objects import ObjectPath
from medallion.recoverable import ranges
from medallion.staging import in_parallel, parse_name, partition_of
from medallion.store import Place, relative
from medallion.tables import LAYERS

__all__ = ["TableCheck"]


class TableCheck:
    """Looks at one table."""

    def __init__(self, lake: Lake, folder: Place, *, read_bytes: bool) -> None:
        self.lake, self.folder, self.read_bytes = lake, folder, read_bytes
        self.path = str(relative(folder, lake.root))
        self.layer = self.path.partition("/")[0]
        self.log = log_state(lake, self.path)

    def _damage(self, kind: Kind, path: str, found: str, repair: str, **more: Any) -> Damage:
        return Damage(kind, self.path, more.pop("partition", ""), f"{self.path}/{path}", found, repair, **more)

    def damages(self) -> list[Damage]:
        """Everything that is damaged in it."""
        if self.log.listing.latest < 0:
            repair = "put the table's folder back from a backup, or replay it"
            lost = "its history; what it held is made again from the layer below"
            return [self._damage(Kind.TABLE_GONE, "_delta_log", "there is no log", repair, loses=lost)]
        hint = [*self._of_hint()]
        found = [*self._of_log(), *hint]
        if not self.log.leads_to_the_end:
            return found
        try:
            newest = self.lake.open(self.path)
            live = dict(newest.files)
            needed = {file.path for files in live.values() for file in files}
            found += self._of_files(newest, needed)
            if self.layer in {*LAYERS, "quarantine"}:  # the ledger is appended to: it has neither fences nor evidence
                found += self._of_fences(newest)
            if self.layer in LAYERS:
                found += self._of_evidence(newest)
                found += self._of_held()
            if self.layer == "bronze":
                found += self._of_sources(newest)
        except MedallionError as error:
            # A wrong hint may be why: deltalake (1.6) relies on it where there is no checkpoint at all.
            if not hint:
                found.append(self._damage(Kind.TABLE_UNREADABLE, "", str(error), "see what it says"))
        return found

    def _of_log(self) -> Iterator[Damage]:
        log = self.log
        for name, reason in sorted(log.damaged.items()):
            version = int(name.partition(".")[0])
            if name.endswith(".json"):
                repair, lost = self._log_repair(version)
                yield self._damage(
                    Kind.LOG_ENTRY_DAMAGED,
                    f"_delta_log/{name}",
                    reason,
                    repair,
                    loses=lost,
                    needed=not log.leads_to_the_end,
                )
            else:
                rest = version in log.sound.readable()
                repair = "remove it; the entries lead there without it" if rest else self._log_repair(version)[0]
                lost = "" if rest else self._log_repair(version)[1]
                yield self._damage(Kind.CHECKPOINT_DAMAGED, f"_delta_log/{name}", reason, repair, loses=lost)
        for version in log.missing:
            repair, lost = self._log_repair(version)
            yield self._damage(
                Kind.LOG_ENTRY_MISSING, f"_delta_log/{version:020}.json", "it is not there", repair, loses=lost,
                needed=not log.leads_to_the_end,
            )  # fmt: skip

    def _log_repair(self, version: int) -> tuple[str, str]:
        """How the log is mended where a version's entry or checkpoint is damaged, and what is lost without a backup."""
        log = self.log
        if log.leads_to_the_end:
            after = min((each for each in log.sound.checkpoints if each >= version), default=version)
            unreadable = sorted({*range(version, after)} - set(log.sound.readable())) or [version]
            return (
                "put it back from a backup",
                f"the way back to versions {ranges(unreadable)}; the newest is not touched",
            )
        if log.newest < 0:
            return "put it back from a backup, or move the table away and replay it", "the table's history"
        changed = sorted(
            {
                partition_of(path)
                for each, place in log.sound.entries.items()
                if each > log.newest
                for path in read_entry(place).adds
            }
        )
        some = f" (among them {', '.join(changed[:5])})" if changed else ""
        return (
            f"put it back from a backup, or take the table back to version {log.newest} and replay what came after",
            f"versions {ranges(range(log.newest + 1, log.listing.latest + 1))}, and with them the partitions that they "
            f"committed{some} until these are replayed",
        )

    def _of_hint(self) -> Iterator[Damage]:
        try:
            version = json.loads((self.folder / "_delta_log" / "_last_checkpoint").read_bytes())["version"]
            if version in self.log.sound.checkpoints:
                return
            found = f"it names the checkpoint {version}, which is not there or damaged"
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError) as error:
            found = f"it cannot be read ({error})"
        repair = "remove it; the log is listed instead"
        yield self._damage(Kind.CHECKPOINT_HINT, "_delta_log/_last_checkpoint", found, repair)

    def _of_files(self, newest: Snapshot, needed: Collection[str]) -> list[Damage]:
        """Every file that a version names to which the log leads."""
        named: dict[str, int] = {file.path: file.size for files in newest.files.values() for file in files}
        for version in self.log.sound.readable():
            if version in self.log.sound.entries:
                named.update(read_entry(self.log.sound.entries[version]).adds)
            if version in self.log.sound.checkpoints:
                named.update(checkpointed_files(self.log.sound.checkpoints[version], "add"))
        looked = in_parallel(lambda item: (item[0], self._wrong(*item)), sorted(named.items()))
        return [self._of_file(path, *wrong, needed=path in needed) for path, wrong in looked if wrong is not None]

    def _of_file(self, path: str, kind: Kind, found: str, *, needed: bool) -> Damage:
        key = partition_of(path)
        if needed and self.path == ledger.PATH:
            repair, lost = "put it back from a backup, or rebuild the ledger", "what no table can tell"
            return self._damage(kind, path, found, repair, partition=key, loses=lost)
        if needed:
            repair = f"put it back from a backup, or take the partition out and replay {self.path} {key}"
            return self._damage(kind, path, found, repair, partition=key, loses="the partition, until it is replayed")
        lost = "the way back to the versions that hold it"
        return self._damage(kind, path, found, "put it back from a backup", partition=key, loses=lost, needed=False)

    def _wrong(self, path: str, size: int) -> tuple[Kind, str] | None:
        place = self.folder / path
        named = parse_name(path)
        try:
            there = place.stat().st_size
            if size and there != size:
                return Kind.FILE_ALTERED, f"it has {there} bytes, and the log says {size}"
            if self.read_bytes and named is not None:
                read = digest_file(place) if isinstance(place, Path) else digest_bytes(place.read_bytes())
                if read != named[1]:
                    return Kind.FILE_ALTERED, "its bytes are not those that its name promises"
        except FileNotFoundError:
            return Kind.FILE_MISSING, "it is not there"
        except OSError as error:
            return Kind.FILE_ALTERED, f"it cannot be read: {error.strerror or error}"
        return None

    def _of_fences(self, newest: Snapshot) -> Iterator[Damage]:
        """A partition that was committed has a file, unless its last commit emptied it; one that has a file was."""
        fences = self.log.fences()
        commits: Sequence[Commit] = newest.commits(None, partial=True) or ()
        for key in sorted(fences.keys() - newest.files.keys() if self.layer != "quarantine" else ()):
            last = next((each.batches[key] for each in commits if key in each.batches), None)
            if last != "":
                yield self._damage(
                    Kind.FENCE_WITHOUT_FILE, "_delta_log",
                    f"partition {key} was committed {fences[key]} times and has no file", f"replay {self.path} {key}",
                    partition=key, loses="the partition, until it is replayed",
                )  # fmt: skip
        for key in sorted(newest.files.keys() - fences.keys()):
            yield self._damage(
                Kind.FILE_WITHOUT_FENCE, newest.files[key][0].path,
                f"partition {key} has a file and was never committed by this engine",
                "commit the file again, so that it has a fence", partition=key,
            )  # fmt: skip

    def _of_evidence(self, newest: Snapshot) -> list[Damage]:
        found: list[Damage] = []
        places: list[Place] = [*(self.folder / "_evidence").glob("*.json*")]
        told: set[str] = set()
        for place in places:
            if place.name.startswith("."):
                continue
            try:
                lines = place.read_bytes().split(b"\n") if place.suffix == ".jsonl" else [place.read_bytes()]
                told |= {Evidence.from_json(line, place).batch_id for line in lines}
            except (TableUnreadable, OSError) as error:
                repair = "put it back from a backup, or move it away and replay its partitions"
                found.append(self._damage(Kind.EVIDENCE_DAMAGED, f"_evidence/{place.name}", str(error), repair))
        for key, files in newest.files.items():
            if files[0].batch_id not in told:
                repair = f"put it back from a backup, or replay {self.path} {key}, which works it out again"
                path = f"_evidence/{files[0].batch_id}.json"
                found.append(
                    self._damage(Kind.EVIDENCE_MISSING, path, f"the batch of {key} has none", repair, partition=key)
                )
        return found

    def _of_held(self) -> Iterator[Damage]:
        held = self.folder / "_held"
        if isinstance(held, ObjectPath):
            keys = {PurePosixPath(relative(each, held)).parts[0] for each in held.rglob("*")}
        else:
            keys = {each.name for each in held.glob("*") if each.is_dir()}
        for key in sorted(each for each in keys if not each.startswith(".")):
            reason = self._held_wrong(held / key)
            if reason:
                repair, lost = (
                    f"forget it and replay {self.path} {key}",
                    "the candidate, until the replay makes it again",
                )
                yield self._damage(Kind.HELD_INCOMPLETE, f"_held/{key}", reason, repair, partition=key, loses=lost)

    def _held_wrong(self, folder: Place) -> str:
        path = folder / "evidence.json"
        try:
            held = Evidence.from_json(path.read_bytes(), path)
        except FileNotFoundError:
            return "it has no evidence"
        except TableUnreadable as error:
            return str(error)
        for name, digest in (("accepted", held.content), ("quarantined", held.refused or "")):
            if digest:
                try:
                    if digest_bytes(held_file(self.folder, held, name).read_bytes()) != digest:
                        return f"its {name} rows are not those that were judged"
                except OSError:
                    return f"its {name} rows are not there"
        return ""

    def _of_sources(self, newest: Snapshot) -> list[Damage]:
        read = EvidenceReader(self.folder)
        wanted: dict[str, tuple[str, str]] = {}
        for key, files in newest.files.items():
            try:
                told = read(files[0].batch_id)
            except TableUnreadable:
                continue
            for source in told.sources if told is not None else ():
                wanted[source.kept] = (key, source.name)
        looked = in_parallel(
            lambda kept: (kept, _source_wrong(self.lake.root / kept, read_bytes=self.read_bytes)), sorted(wanted)
        )
        return [
            Damage(
                kind, self.path, wanted[kept][0], kept, f"the bytes of {wanted[kept][1]} {reason}",
                "put them back from a backup or from the landing zone",
                f"what {wanted[kept][0]} could be made of again; its rows are in the table", needed=False,
            )
            for kept, wrong in looked if wrong is not None
            for kind, reason in [wrong]
        ]  # fmt: skip


def _source_wrong(place: Place, *, read_bytes: bool) -> tuple[Kind, str] | None:
    try:
        if not read_bytes:
            place.stat()
        elif hashlib.sha256(place.read_bytes()).hexdigest() != place.name:
            return Kind.SOURCE_ALTERED, "are not those that its name promises"
    except FileNotFoundError:
        return Kind.SOURCE_MISSING, "are not there"
    return None
