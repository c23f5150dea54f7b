"""What holds the past: the recovery horizon, savepoints, held candidates and attempts that are under way.

What belongs here: saying which versions of which tables must stay, and for whom. What does not: removing the others
(``vacuum.py``), and watching how near the horizon is (``watch.py``).
"""

from __future__ import annotations

import datetime as dt
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from medallion.attempts import records
from medallion.errors import TableUnreadable
from medallion.evidence import Evidence
from medallion.horizon import table_properties, write_horizon
from medallion.lake import Lake
from medallion.log import Listing, read_entry
from medallion.objects import ObjectPath
from medallion.store import Place, relative, tables

__all__ = ["Cutoff", "Pins", "cutoff_at", "held_candidates", "pins", "set_horizon", "version_at"]

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


def version_at(listing: Listing, moment: dt.datetime) -> tuple[int, dt.datetime]:
    """The version of a table that was current at a moment, or its oldest, and since when it was.

    Raises:
        ValueError: if an entry is damaged.
        FileNotFoundError: if there is no log.
    """
    readable = listing.readable()
    if not readable or readable[-1] != listing.latest:
        raise FileNotFoundError("the log does not lead to its newest entry")
    since = dt.datetime.fromtimestamp(0, dt.UTC)
    version = listing.latest
    for each in reversed(readable):
        if each not in listing.entries or each < version - 1:
            break
        since = dt.datetime.fromtimestamp(read_entry(listing.entries[each]).at / 1000, dt.UTC)
        version = each
        if since <= moment:
            break
    return version, since


def pins(lake: Lake) -> Pins:
    """The versions that must stay however old they are.

    Raises:
        TableUnreadable: if a savepoint or a held candidate cannot be read: then nobody can say what it holds.
    """
    found: dict[str, dict[int, tuple[str, ...]]] = defaultdict(dict)

    def hold(table: str, version: int | None, who: str) -> None:
        if version is not None:
            found[table][version] = (*found[table].get(version, ()), who)

    for name, versions in _savepoints(lake.root):
        for table, version in versions.items():
            hold(table, version, f"savepoint {name}")
    for evidence in held_candidates(lake):
        who = f"blocked candidate {evidence.table} {evidence.partition}"
        for each in (*evidence.inputs.values(), *evidence.references.values()):
            hold(each["table"], each.get("version"), who)
    return found


def _savepoints(root: Place) -> Iterator[tuple[str, Mapping[str, int | None]]]:
    found: list[Place] = [*(root / "_savepoints").glob("*.json")]
    for path in sorted(found, key=str):
        if path.name.startswith("."):
            continue
        try:
            yield (
                path.stem,
                {str(table): version for table, version in json.loads(path.read_bytes())["versions"].items()},
            )
        except FileNotFoundError:  # dropped meanwhile
            continue
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TableUnreadable(
                f"the savepoint {path} is damaged ({type(error).__name__}: {error}), so that it cannot be said what it "
                "holds. Nothing was removed. Restore the file from a backup, or drop the savepoint."
            ) from error


def held_candidates(lake: Lake) -> Iterator[Evidence]:
    """The evidence of all blocked candidates of the lake."""
    for folder in tables(lake.root):
        held = folder / "_held"
        pattern = "evidence.json" if isinstance(held, ObjectPath) else "[!.]*/evidence.json"
        found: list[Place] = [*(held.rglob(pattern) if isinstance(held, ObjectPath) else held.glob(pattern))]
        for path in sorted(found, key=str):
            try:
                yield Evidence.from_json(path.read_bytes(), path)
            except FileNotFoundError:  # approved or discarded meanwhile
                continue
