"""How near the recovery horizon is: what can still be returned to, what lags behind, and a warning before they cross.

Per table: the oldest version that can be read and since when it was current; the oldest partition from which on
everything can be made again from kept source bytes; and the lag, the age of the oldest change or delivery that the
table has not taken in. A lag that reaches the horizon means that the state it was built from goes before it catches up.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from medallion.evidence import Evidence, EvidenceReader
from medallion.gaps import irrecoverable
from medallion.horizon import read_horizon, shown_duration
from medallion.lake import Lake, Snapshot
from medallion.log import list_log, read_entry
from medallion.project import Project
from medallion.retention import Pins, oldest_kept, pins
from medallion.sources import LandingZone
from medallion.staging import partition_of
from medallion.store import Place, relative, tables
from medallion.tables import Table

__all__ = ["WARN_AT", "HorizonReport", "Reach", "horizon_report"]

WARN_AT = 0.8
"""The share of the horizon from which a lag is warned of: 6 days before the end of 30."""


@dataclass(frozen=True)
class Reach:
    """How far back one table can be taken.

    Attributes:
        table: ``layer/name``.
        version: the newest version.
        oldest_version: the oldest that can be read without a savepoint's help.
        oldest_at: since when that one was current.
        held: older versions that can be read because something holds them, and who does.
        source_position: the oldest partition from which on all committed ones can be made again from kept source
            bytes; None if not even the newest can, or the table is not declared.
        sources_gone: committed partitions that can not.
        lag: age of the oldest change or delivery that is not taken in; None if there is none.
        waiting: what that is.
        warnings: what is about to be lost, or is.
    """

    table: str
    version: int
    oldest_version: int
    oldest_at: dt.datetime
    held: Mapping[int, tuple[str, ...]]
    source_position: str | None = None
    sources_gone: tuple[str, ...] = ()
    lag: dt.timedelta | None = None
    waiting: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class HorizonReport:
    """The reach of every table of a lake against its recovery horizon."""

    at: dt.datetime
    horizon: dt.timedelta
    tables: tuple[Reach, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        """All tables' warnings."""
        return tuple(warning for each in self.tables for warning in each.warnings)

    def to_dict(self) -> dict[str, Any]:
        """As plain values; durations in seconds."""
        return {
            "at": self.at.isoformat(timespec="seconds"),
            "horizon": shown_duration(self.horizon),
            "warnings": list(self.warnings),
            "tables": {
                each.table: {
                    "version": each.version,
                    "oldest_version": each.oldest_version,
                    "oldest_at": each.oldest_at.isoformat(timespec="seconds"),
                    "held": {str(version): list(who) for version, who in each.held.items()},
                    "source_position": each.source_position,
                    "sources_gone": list(each.sources_gone),
                    "lag_seconds": None if each.lag is None else each.lag.total_seconds(),
                    "waiting": each.waiting,
                    "warnings": list(each.warnings),
                }
                for each in self.tables
            },
        }


def horizon_report(
    project: Project, lake: Lake, *, landing: LandingZone | None = None, now: dt.datetime | None = None
) -> HorizonReport:
    """What can still be returned to, per table, and what is about to be lost; changes nothing.

    Args:
        project: the declared tables.
        lake: the lake.
        landing: where sources deliver; without it, deliveries that wait are not seen.
        now: the time; that of the clock if not given.

    Raises:
        TableUnreadable: if a log, a savepoint or a held candidate is damaged.
    """
    now = dt.datetime.now(dt.UTC) if now is None else now
    horizon = read_horizon(lake.root)
    held = pins(lake)
    watched = {table.path: _Watched(table, lake, landing, {}) for table in project.tables}
    for each in watched.values():
        each.others = watched
    found = []
    for folder in tables(lake.root):
        path = str(relative(folder, lake.root))
        reach = _reach(path, folder / "_delta_log", held, now - horizon)
        found.append(watched[path].add_to(reach, now, horizon) if path in watched else reach)
    return HorizonReport(now, horizon, tuple(found))


def _reach(path: str, log: Place, held: Pins, cutoff: dt.datetime) -> Reach:
    listing = list_log(log)
    oldest, since = oldest_kept(log, listing, dt.datetime.fromtimestamp(0, dt.UTC))
    mine = {version: who for version, who in held.get(path, {}).items() if version < oldest}
    warnings: tuple[str, ...] = ()
    if oldest > 0 and since > cutoff:
        warnings = (
            f"{path} can be returned to {since:%Y-%m-%d %H:%M} at the earliest (version {oldest}), and the recovery "
            f"horizon asks for {cutoff:%Y-%m-%d %H:%M}: it was shorter at the last vacuum.",
        )
    return Reach(path, listing.latest, oldest, since, mine, warnings=warnings)


@dataclass
class _Watched:
    """A declared table."""

    table: Table
    lake: Lake
    landing: LandingZone | None
    others: Mapping[str, _Watched]

    @cached_property
    def snapshot(self) -> Snapshot:
        return self.lake.pin(self.table.path, self.table.partition)

    @cached_property
    def evidence(self) -> Mapping[str, Evidence]:
        """Of every committed partition that has some."""
        read = EvidenceReader(self.snapshot.folder)
        batches = {key: self.snapshot.batch_id(key) for key in self.snapshot.files}
        return {key: told for key, batch in batches.items() if batch is not None and (told := read(batch)) is not None}

    @cached_property
    def changes(self) -> Mapping[str, tuple[tuple[int, int], ...]]:
        """By partition: the versions that changed it, oldest first, and when, in milliseconds since 1970."""
        found: dict[str, dict[int, int]] = {}
        for version, place in sorted(list_log(self.snapshot.folder / "_delta_log").entries.items()):
            entry = read_entry(place)
            for path in (*entry.adds, *entry.removes):
                found.setdefault(partition_of(path), {})[version] = entry.at
        return {key: tuple(each.items()) for key, each in found.items()}

    @cached_property
    def makeable(self) -> frozenset[str]:
        """The committed partitions that can be made again from kept source bytes."""
        gaps = irrecoverable(self.lake, self.table.path)
        if self.table.layer == "bronze":
            folder = self.lake.root / self.table.path / "_sources"
            kept = {path.name for path in folder.glob("*")}
            return frozenset(
                key
                for key in self.snapshot.files
                if key not in gaps
                and (told := self.evidence.get(key)) is not None
                and all(PurePosixPath(file.kept).name in kept for file in told.sources)
            )
        whole = [self.others[each.table.path].makeable for each in self.table.references.values()]
        if not all(whole):
            return frozenset()
        return frozenset(key for key in self.snapshot.files if key not in gaps and self._has_inputs(key))

    def _has_inputs(self, key: str) -> bool:
        return all(
            each in self.others[given.table.path].makeable
            for given in self.table.inputs.values()
            for each in given.keys_for(self.table.partition, key)
        )

    def waiting(self) -> Iterator[tuple[dt.datetime, str]]:
        """What the table has not taken in, and since when it could."""
        if self.table.layer == "bronze":
            present = self.landing.present(self.table) if self.landing is not None else {}
            for key, (_, changed) in present.items():
                if not self.snapshot.files.get(key):
                    yield dt.datetime.fromtimestamp(changed / 1e9, dt.UTC), f"the delivery of {key}"
            return
        for key, told in self.evidence.items():
            for name, given in self.table.inputs.items():
                read = told.inputs.get(name)
                if read is None:  # a reference by key: only the rows can tell whether a change matters
                    continue
                other = self.others[given.table.path]
                for each in given.keys_for(self.table.partition, key):
                    if read["partitions"].get(each) != other.snapshot.content(each):
                        later = [at for version, at in other.changes.get(each, ()) if version > (read["version"] or 0)]
                        if later:
                            since = dt.datetime.fromtimestamp(later[0] / 1000, dt.UTC)
                            yield since, f"{given.table.path} {each}, of which {key} is made"

    def add_to(self, reach: Reach, now: dt.datetime, horizon: dt.timedelta) -> Reach:
        """The same with what the declaration lets one see."""
        committed = [key for key in self.table.partition.keys() if key in self.snapshot.files]  # noqa: SIM118 - not a dictionary
        gone = tuple(key for key in committed if key not in self.makeable)
        after = committed[committed.index(gone[-1]) + 1 :] if gone else committed
        since, what = min(self.waiting(), default=(None, ""))
        lag = None if since is None else now - since
        warnings = list(reach.warnings)
        if lag is not None and since is not None and lag >= WARN_AT * horizon:
            crossed = lag >= horizon
            warnings.append(
                f"{self.table.path} has not taken in {what}, for {shown_duration(lag)}; the recovery horizon is "
                f"{shown_duration(horizon)}. The state that it was built from "
                + (
                    "may be gone with the next vacuum"
                    if crossed
                    else f"may be gone from {since + horizon:%Y-%m-%d %H:%M} on"
                )
                + ". Replay it, or set a longer horizon: medallion retention set."
            )
        return Reach(
            reach.table, reach.version, reach.oldest_version, reach.oldest_at, reach.held,
            after[0] if after else None, gone, lag, what, tuple(warnings),
        )  # fmt: skip
