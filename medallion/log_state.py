"""What a table's log leads to, when some of it is damaged or gone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from medallion.lake import Lake
from medallion.log import FENCE, Listing, checkpointed_fences, checkpointed_files, list_log, read_entry
from medallion.recoverable import last_vacuum
from medallion.store import readable

__all__ = ["LogState", "log_state"]


@dataclass(frozen=True)
class LogState:
    """What a table's log leads to.

    Attributes:
        listing: what lies there.
        damaged: entries and checkpoints that cannot be read, with the reason.
        missing: versions of which there should be an entry.
        sound: what lies there without what is damaged.
    """

    listing: Listing
    damaged: Mapping[str, str]
    missing: tuple[int, ...]
    sound: Listing

    @property
    def newest(self) -> int:
        """The newest version to which the sound part leads; -1 if to none."""
        return max(self.sound.readable(), default=-1)

    def fences(self) -> dict[str, int]:
        """How often each partition has been committed, as the newest sound version tells."""
        start = max((each for each in self.sound.checkpoints if each <= self.newest), default=-1)
        found = checkpointed_fences(self.sound.checkpoints[start]) if start >= 0 else {}
        for version in range(start + 1, self.newest + 1):
            found.update(read_entry(self.sound.entries[version]).fences)
        return {name.removeprefix(FENCE): epoch for name, epoch in found.items() if name.startswith(FENCE)}

    @property
    def leads_to_the_end(self) -> bool:
        """Whether the newest version can be read as it lies there."""
        last = max(self.listing.checkpoints, default=-1)
        if last >= 0 and self.listing.checkpoints[last].name in self.damaged:
            return False
        entries = range(last + 1, self.listing.latest + 1)
        return self.listing.latest >= 0 and all(version in self.sound.entries for version in entries)


def log_state(lake: Lake, table: str) -> LogState:
    """Read a table's log entry by entry."""
    listing = list_log(lake.root / table / "_delta_log")
    damaged: dict[str, str] = {}
    for place in (*listing.entries.values(), *listing.checkpoints.values()):
        try:
            if place.name.endswith(".json"):
                read_entry(place)
            else:
                checkpointed_files(place, "add")
                pl.read_parquet(readable(place))
        except (ValueError, OSError, pl.exceptions.PolarsError) as error:
            damaged[place.name] = str(error).splitlines()[0] if str(error) else type(error).__name__
    sound = Listing(
        {version: place for version, place in listing.entries.items() if place.name not in damaged},
        {version: place for version, place in listing.checkpoints.items() if place.name not in damaged},
    )
    return LogState(listing, damaged, _missing_entries(lake, table, listing), sound)


def _missing_entries(lake: Lake, table: str, listing: Listing) -> tuple[int, ...]:
    """Entries that nobody has taken: not vacuum, which keeps a record, nor an expiry of all before a checkpoint."""
    told = (last_vacuum(lake.root) or {}).get("tables", {}).get(table)
    first = min(listing.entries, default=0)
    expired = first if told is None and any(version <= first for version in listing.checkpoints) else 0
    start = told["oldest"] if told is not None else expired
    return tuple(version for version in range(start, listing.latest) if version not in listing.entries)
