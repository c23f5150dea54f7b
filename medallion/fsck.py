"""Finds everything that is damaged in a lake. Looks only; ``repair.py`` acts.

A damage is told from the lake alone: from file names, which promise their bytes; from the log, whose entries follow
each other; from the evidence, savepoints and records, which name what they rest on. What is merely out of date is not
damage, and neither is what ``medallion vacuum`` has taken and recorded.
"""

from __future__ import annotations

from collections.abc import Iterator

from medallion.damage import Damage, Kind
from medallion.errors import MedallionError, SavepointRefused, TableUnreadable
from medallion.evidence import Evidence, EvidenceReader
from medallion.gaps import find_gaps, irrecoverable
from medallion.horizon import read_horizon
from medallion.isolation import isolation
from medallion.lake import Lake
from medallion.project import Project
from medallion.restore_intents import open_intent
from medallion.saved_state import Savepoint
from medallion.sources import LandingZone
from medallion.store import Place, relative, tables
from medallion.strays import Stray, find_strays
from medallion.table_damage import TableCheck

__all__ = ["check_lake", "table_folders"]


def check_lake(
    lake: Lake, project: Project | None = None, *, landing: LandingZone | None = None, read_bytes: bool = True
) -> list[Damage]:
    """Find everything that is damaged; changes nothing.

    Args:
        lake: the lake.
        project: the declared tables: with them, a table whose folder is gone altogether is missed.
        landing: where sources deliver: with it and ``project``, partitions that cannot be made again are found.
        read_bytes: read every data file and every source back and compare it with its name; without it only that it is
            there and as large as the log says.
    """
    found: list[Damage] = []
    for folder in table_folders(lake, project):
        found += TableCheck(lake, folder, read_bytes=read_bytes).damages()
    found += _of_lake(lake)
    if project is not None and landing is not None:
        found += _gaps(lake, project, landing)
    if not any(
        each.kind in {Kind.LOG_ENTRY_DAMAGED, Kind.CHECKPOINT_DAMAGED, Kind.SAVEPOINT_DAMAGED} for each in found
    ):
        found += _strays(lake)
    return found


def table_folders(lake: Lake, project: Project | None) -> list[Place]:
    """The folders of all tables that are there, or should be: declared, or named by what is built from them."""
    there = {str(relative(folder, lake.root)): folder for folder in tables(lake.root)}
    known = set(there)
    for folder in list(there.values()):
        for evidence in _documents(folder):
            known |= {each["table"] for each in (*evidence.inputs.values(), *evidence.references.values())}
    if project is not None:
        known |= {table.path for table in project.tables if (lake.root / table.path).exists()}
    return [lake.root / path for path in sorted(known)]


def _documents(folder: Place) -> Iterator[Evidence]:
    try:
        yield from EvidenceReader(folder).all()
    except TableUnreadable:
        return  # it is found to be damaged elsewhere


def _gaps(lake: Lake, project: Project, landing: LandingZone) -> Iterator[Damage]:
    """Partitions that were delivered once and cannot be made again, and are not recorded as such."""
    for table in project.tables:
        if table.layer == "bronze" and (lake.root / table.path / "_delta_log").exists():
            try:
                recorded, found = irrecoverable(lake, table.path), find_gaps(table, lake, landing)
            except MedallionError:
                continue  # what is damaged is named by itself
            for key in sorted(found.keys() - recorded.keys()):
                path, lost = f"{table.path}/_irrecoverable/{key}.json", f"{table.path} {key}, for good"
                repair = "record it, so that it is never made of other data"
                yield Damage(Kind.GAP, table.path, key, path, found[key], repair, lost, needed=False)


def _of_lake(lake: Lake) -> Iterator[Damage]:
    """What is the lake's as a whole."""
    copy = isolation(lake.root)
    if copy is not None and not copy.get("verified"):
        repair = f"go on with it: medallion recover --from {copy['backup']} --into {lake.root}"
        yield Damage(Kind.COPY_UNVERIFIED, "", "", "_isolated.json", "the copy was not restored to the end", repair)
    yield from _of_savepoints(lake)
    try:
        read_horizon(lake.root)
    except MedallionError as error:
        yield Damage(Kind.RECORD_DAMAGED, "", "", "_retention/horizon.json", str(error), "medallion retention set 30d")
    intent = open_intent(lake)
    if intent is not None and not intent.is_running:
        path, found = f"_restores/{intent.number:06}.json", f"the restore to {intent.target} was interrupted"
        yield Damage(Kind.RESTORE_UNFINISHED, "", "", path, found, "complete it: medallion restore --resume")


def _of_savepoints(lake: Lake) -> Iterator[Damage]:
    places: list[Place] = [*(lake.root / "_savepoints").glob("*.json")]
    for place in sorted(places, key=str):
        if place.name.startswith("."):
            continue
        path = f"_savepoints/{place.name}"
        try:
            savepoint = Savepoint.from_json(place.read_bytes(), place)
        except SavepointRefused as error:
            repair = "put it back from a backup, or move it away"
            yield Damage(Kind.SAVEPOINT_DAMAGED, "", "", path, str(error), repair, "the way back to it", needed=False)
            continue
        except FileNotFoundError:
            continue
        lost = [
            f"{table}/{file.path}"
            for table, saved in savepoint.tables.items()
            for files in saved.files.values()
            for file in files
            if not _stands(lake.root / table / file.path, file.size)
        ]
        if lost:
            more = f" and {len(lost) - 2} more" if len(lost) > 2 else ""
            found = f"files that it names are not there: {', '.join(lost[:2])}{more}"
            repair = f"put them back from a backup, or drop it: medallion savepoint drop {savepoint.name}"
            yield Damage(Kind.SAVEPOINT_DANGLING, "", "", path, found, repair, "the way back to it", needed=False)


def _stands(place: Place, size: int) -> bool:
    try:
        return place.stat().st_size == size
    except OSError:
        return False


def _strays(lake: Lake) -> list[Damage]:
    """What attempts that died have left."""
    try:
        return [
            Damage(
                Kind.STRAY, each.table, "", each.path, _told(each), "remove it: medallion clean --apply", needed=False
            )
            for each in find_strays(lake)
        ]
    except MedallionError:
        return []  # what is damaged is named by itself, and nothing is removed before that is repaired


def _told(stray: Stray) -> str:
    return f"a {stray.kind} of {stray.size:,} bytes that nobody needs, untouched for {stray.hours:.0f} hours"
