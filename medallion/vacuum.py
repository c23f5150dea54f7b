"""Takes what the recovery horizon no longer asks for: first said in advance, then done, and recorded.

Needed is what any version names as live that was current within the horizon, that a savepoint or a held candidate
holds, or that an attempt may read. The other files that the log names are taken, and the log entries that led to them.
deltalake's own vacuum is not used: it does not know of refused rows that belong to a live batch, it misses files whose
removal the log has forgotten, and log entries that a savepoint needs go with its next checkpoint (1.6).

Order: checkpoints of what stays, the record, log entries, data files. So whatever is interrupted, every version that
was announced to stay can be read, and what lies there unnamed is found by the next ``medallion clean``.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from medallion.attempts import records
from medallion.errors import TableUnreadable
from medallion.evidence import EvidenceReader
from medallion.failpoints import reach
from medallion.horizon import read_horizon, shown_duration, table_properties
from medallion.lake import Lake
from medallion.log import FORMAT, Listing, list_log, named_files, read_entry
from medallion.recoverable import RECORDS
from medallion.retention import Cutoff, Pins, cutoff_at, oldest_kept, pins
from medallion.savepoints import pinned_files
from medallion.staging import parse_name, partition_of
from medallion.store import Place, relative, sync, tables, write_durably
from medallion.strays import take

__all__ = ["TableVacuum", "Vacuum", "Vacuumed", "plan_vacuum", "vacuum"]


@dataclass(frozen=True)
class TableVacuum:
    """What vacuum does to one table.

    Attributes:
        table: ``layer/name``.
        latest: the newest version.
        oldest: the oldest version that stays for the horizon's sake.
        oldest_at: since when it was current.
        held: older versions that stay, and for whom.
        versions: that stop being recoverable.
        partitions: by key, how many earlier states of the partition stop being recoverable.
        sources: of bronze: the deliveries whose rows go; their bytes stay.
        files: data files that are taken, relative to the table, with their size in bytes.
        entries: files of the log that are taken.
    """

    table: str
    latest: int
    oldest: int
    oldest_at: str
    held: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    versions: tuple[int, ...] = ()
    partitions: Mapping[str, int] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    files: Mapping[str, int] = field(default_factory=dict)
    entries: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of the data files that are taken."""
        return sum(self.files.values())

    @property
    def takes_something(self) -> bool:
        """Whether anything of the table is taken."""
        return bool(self.files or self.entries)


@dataclass(frozen=True)
class Vacuum:
    """What vacuum would do to a lake, decided before anything is done.

    Attributes:
        horizon: the recovery horizon.
        cutoff: what was current at it or later stays.
        why: what decides the cutoff, if it is not the horizon alone.
        tables: each table of the lake.
    """

    at: dt.datetime
    horizon: dt.timedelta
    cutoff: dt.datetime
    why: str
    tables: tuple[TableVacuum, ...]

    @property
    def size(self) -> int:
        """Bytes of all data files that are taken."""
        return sum(each.size for each in self.tables)

    def to_dict(self) -> dict[str, Any]:
        """As plain values; files are counted."""
        return {
            "format": FORMAT,
            "at": self.at.isoformat(timespec="seconds"),
            "horizon": shown_duration(self.horizon),
            "cutoff": self.cutoff.isoformat(timespec="seconds"),
            "why": self.why,
            "bytes": self.size,
            "tables": {
                each.table: {
                    **asdict(each),
                    "files": len(each.files),
                    "entries": len(each.entries),
                    "bytes": each.size,
                }
                for each in self.tables
            },
        }


@dataclass(frozen=True)
class Vacuumed:
    """What vacuum has done.

    Attributes:
        record: where it is kept, relative to the lake; empty if there was nothing to take.
        files: data files that were taken, relative to the lake.
        entries: log entries and checkpoints that were taken, likewise.
    """

    record: str
    files: tuple[str, ...]
    entries: tuple[str, ...]


def plan_vacuum(lake: Lake, now: dt.datetime, horizon: dt.timedelta | None = None) -> Vacuum:
    """What vacuum would take from the lake, and what stops being recoverable by it; changes nothing.

    Args:
        lake: the lake.
        now: the time from which the horizon reaches back.
        horizon: a recovery horizon to try; the lake's own if not given.

    Raises:
        SavepointRefused, TableUnreadable: if a log, a savepoint or a held candidate is damaged: then nothing is taken
            from anything.
    """
    horizon = read_horizon(lake.root) if horizon is None else horizon
    cutoff = cutoff_at(lake, now, horizon)
    held, saved = pins(lake), pinned_files(lake)
    # A quarantine is put back from the files of refused rows of whatever batch its table returns to: tables first.
    folders = sorted(tables(lake.root), key=lambda folder: (folder.parent.name == "quarantine", str(folder)))
    needed: dict[str, set[str]] = {}
    found = []
    for folder in folders:
        each = _Table(lake, folder, cutoff, held, saved.get(str(relative(folder, lake.root)), set()))
        refusing = set().union(*(needed.get(f"{layer}/{each.name}", set()) for layer in ("silver", "gold")))
        found.append(each.plan(refusing if each.layer == "quarantine" else set()))
        needed[each.path] = each.batches
    return Vacuum(now, horizon, cutoff.at, cutoff.why, tuple(sorted(found, key=lambda each: each.table)))


class _Table:
    """One table, and what is needed of it."""

    def __init__(self, lake: Lake, folder: Place, cutoff: Cutoff, held: Pins, pinned: set[str]) -> None:
        self.lake, self.folder, self.cutoff = lake, folder, cutoff
        self.path = str(relative(folder, lake.root))
        self.layer, _, self.name = self.path.partition("/")
        self.listing = list_log(folder / "_delta_log")
        try:
            self.oldest, self.since = oldest_kept(folder / "_delta_log", self.listing, cutoff.at)
        except (ValueError, FileNotFoundError) as error:
            raise _damaged(self.path, str(error)) from error
        self.readable = self.listing.readable()
        # A savepoint names its files itself, should the log have lost its version.
        self.held = {
            version: who
            for version, who in held.get(self.path, {}).items()
            if version < self.oldest and version in self.readable
        }
        self.needed = pinned | self._live(self.oldest, *self.held)
        for version in range(self.oldest + 1, self.listing.latest + 1):
            self.needed |= read_entry(self.listing.entries[version]).adds.keys()

    @property
    def batches(self) -> set[str]:
        """The batches of all states that stay."""
        return {named[0] for path in self.needed if (named := parse_name(path)) is not None}

    def _live(self, *versions: int) -> set[str]:
        found: set[str] = set()
        for version in versions:
            actions = self.lake.open(self.path, version).actions
            found |= set(actions.get_column("path").to_list() if actions.height else ())
        return found

    def plan(self, refusing: set[str]) -> TableVacuum:
        """What is taken from the table.

        Args:
            refusing: batches whose refused rows must stay.
        """
        stays = {self.oldest, *self.held}
        files = self._files(refusing)
        states = {(partition_of(path), named[0]) for path in files if (named := parse_name(path)) is not None}
        partitions: dict[str, int] = {}
        for key, _ in sorted(states):
            partitions[key] = partitions.get(key, 0) + 1
        entries = [
            place.name
            for places in (self.listing.entries, self.listing.checkpoints)
            for version, place in sorted(places.items())
            if version < self.oldest and version not in stays
        ]
        return TableVacuum(
            self.path,
            self.listing.latest,
            self.oldest,
            self.since.isoformat(timespec="seconds"),
            self.held,
            tuple(version for version in self.readable if version < self.oldest and version not in stays),
            partitions,
            self._sources({batch for _, batch in states}),
            files,
            tuple(entries),
        )

    def _files(self, refusing: set[str]) -> dict[str, int]:
        owners = [f"{layer}/{self.name}" for layer in ("silver", "gold")] if self.layer == "quarantine" else [self.path]
        alive = [each for owner in owners for each in records(self.lake.root / owner) if each.is_alive]
        busy = {key for each in alive for key in each.partitions}
        found: dict[str, int] = {}
        for path, size in named_files(self.folder / "_delta_log").items():
            named = parse_name(path)
            if named is None or path in self.needed or named[0] in refusing or partition_of(path) in busy:
                continue
            place = self.folder / path
            if place.is_file():
                stat = place.stat()
                if stat.st_mtime < self.cutoff.at.timestamp():  # younger: written again, and not committed yet
                    found[path] = size or stat.st_size
        return found

    def _sources(self, batches: set[str]) -> tuple[str, ...]:
        if self.layer != "bronze" or not batches:
            return ()
        evidence_of = EvidenceReader(self.folder)
        told = [evidence for batch in batches if (evidence := evidence_of(batch)) is not None]
        return tuple(sorted({f"{file.name} sha256 {file.sha256}" for each in told for file in each.sources}))


def _damaged(table: str, reason: str) -> TableUnreadable:
    return TableUnreadable(
        f"the log of {table} is damaged ({reason}), so that it cannot be said what is needed. Nothing was removed. See "
        "what is damaged and how it is repaired: medallion check-lake"
    )


def vacuum(lake: Lake, plan: Vacuum) -> Vacuumed:
    """Do what was announced, except for what has come to be needed since.

    Raises:
        SavepointRefused, TableUnreadable: as :func:`plan_vacuum`.
        StorageFailed: if a table does not take its retention properties.
    """
    for each in plan.tables:
        lake.configure(each.table, table_properties(read_horizon(lake.root)))
    fresh = {each.table: each for each in plan_vacuum(lake, plan.at, plan.horizon).tables}
    work = [(each, fresh[each.table]) for each in plan.tables if each.takes_something and each.table in fresh]
    if not work:
        return Vacuumed("", (), ())
    for _, now in work:
        _make_readable(lake, now)
    reach("vacuum checkpoints written")
    record = _record(lake, plan)
    reach("vacuum recorded")
    entries = [name for planned, now in work for name in _take_entries(lake, planned, now)]
    reach("vacuum entries taken")
    files = [
        f"{planned.table}/{path}"
        for planned, now in work
        for path in sorted(planned.files.keys() & now.files.keys())
        if take(lake.root / planned.table / path, plan.cutoff.timestamp())
    ]
    return Vacuumed(record, tuple(files), tuple(entries))


def _make_readable(lake: Lake, now: TableVacuum) -> None:
    """Give each version that stays and whose predecessors go a checkpoint of its own, and see that it leads there."""
    listing = list_log(lake.root / now.table / "_delta_log")
    for version in (now.oldest, *now.held):
        if version and version not in listing.checkpoints:
            lake.checkpoint(now.table, version)
    after = list_log(lake.root / now.table / "_delta_log")
    kept = Listing(
        {version: place for version, place in after.entries.items() if place.name not in now.entries},
        {version: place for version, place in after.checkpoints.items() if place.name not in now.entries},
    )
    lost = {now.oldest, now.latest, *now.held} - set(kept.readable())
    if lost:
        raise _damaged(now.table, f"nothing would lead to version {min(lost)} any more")


def _take_entries(lake: Lake, planned: TableVacuum, now: TableVacuum) -> list[str]:
    log = lake.root / planned.table / "_delta_log"
    taken = []
    for name in planned.entries:
        if name in now.entries:
            (log / name).unlink(missing_ok=True)
            taken.append(f"{planned.table}/_delta_log/{name}")
    if taken and lake.durable:
        sync(log)
    return taken


def _record(lake: Lake, plan: Vacuum) -> str:
    folder = lake.root / RECORDS
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{plan.at:%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:8]}.json"
    write_durably(folder / name, json.dumps(plan.to_dict()).encode(), durable=lake.durable)
    return f"{RECORDS}/{name}"
