"""What holds the past: the recovery horizon, savepoints, held candidates and attempts that are under way.

What belongs here: saying which versions of which tables must stay, and for whom. What does not: removing the others
(``vacuum.py``), and watching how near the horizon is (``watch.py``).
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from medallion.attempts import records
from medallion.evidence import held_candidates
from medallion.horizon import table_properties, write_horizon
from medallion.lake import Lake
from medallion.log import Listing, read_entry, version_at
from medallion.savepoints import savepoints
from medallion.store import Place, relative, tables

__all__ = ["Cutoff", "Pins", "cutoff_at", "oldest_kept", "pins", "set_horizon"]

Pins = Mapping[str, Mapping[int, tuple[str, ...]]]
"""By table: the versions that must stay however old they are, and who holds each."""


def set_horizon(lake: Lake, horizon: dt.timedelta) -> list[str]:
    """Keep a recovery horizon, and let every table's own retention properties follow from it.

    Nothing is removed by it. A shorter one takes effect with the next vacuum.

    Returns:
        the tables whose properties differed.

    Raises:
        StorageFailed: if a table does not take them; asking again goes on where it stopped.
    """
    write_horizon(lake.root, horizon, durable=lake.durable)
    found = [str(relative(folder, lake.root)) for folder in tables(lake.root)]
    return [table for table in found if lake.configure(table, table_properties(horizon))]


@dataclass(frozen=True)
class Cutoff:
    """The moment before which states are no longer kept for the horizon's sake.

    Attributes:
        at: what was current at it or later stays.
        why: what decides it, if it is not the horizon alone.
    """

    at: dt.datetime
    why: str = ""


def cutoff_at(lake: Lake, now: dt.datetime, horizon: dt.timedelta) -> Cutoff:
    """Where the horizon lies; no later than the start of the oldest attempt that may be alive.

    An attempt reads its inputs at the versions that were current when it started.
    """
    cutoff = Cutoff(now - horizon)
    for folder in tables(lake.root):
        for each in records(folder):
            started = dt.datetime.fromtimestamp(each.started_at, dt.UTC)
            if each.is_alive and started < cutoff.at:
                cutoff = Cutoff(started, f"attempt {each.attempt} at {each.table} has been running since then")
    return cutoff


def oldest_kept(log: Place, listing: Listing, moment: dt.datetime) -> tuple[int, dt.datetime]:
    """The version of a table that was current at a moment, or the oldest that its log leads to, and since when it was.

    Raises:
        ValueError: if an entry is damaged.
        FileNotFoundError: if the log does not lead to its newest entry.
    """
    readable = listing.readable()
    if not readable or readable[-1] != listing.latest:
        raise FileNotFoundError(2, "the log does not lead to its newest entry", str(log))
    version = version_at(log, listing.latest, moment)
    if version is None or version < 0:
        version = listing.latest
        while version - 1 in listing.entries and version - 1 in readable:
            version -= 1
    return version, dt.datetime.fromtimestamp(read_entry(listing.entries[version]).at / 1000, dt.UTC)


def pins(lake: Lake) -> Pins:
    """The versions that must stay however old they are.

    Raises:
        SavepointRefused, TableUnreadable: if a savepoint or a held candidate is damaged: then nobody can say what it
            holds.
    """
    found: dict[str, dict[int, tuple[str, ...]]] = defaultdict(dict)

    def hold(table: str, version: int | None, who: str) -> None:
        if version is not None:
            found[table][version] = (*found[table].get(version, ()), who)

    for each in savepoints(lake):
        for table, saved in each.tables.items():
            hold(table, saved.version, f"savepoint {each.name}")
    for evidence in (each for folder in tables(lake.root) for each in held_candidates(folder).values()):
        who = f"blocked candidate {evidence.table} {evidence.partition}"
        for read in (*evidence.inputs.values(), *evidence.references.values()):
            hold(read["table"], read.get("version"), who)
    return found
