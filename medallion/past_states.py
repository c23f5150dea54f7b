"""States of the past, as people name them: a savepoint, a version of a table, a moment.

What belongs here: from a name to the files that every table held. What does not: making them current (``restore.py``),
or comparing them (``comparison.py``).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from medallion import savepoints
from medallion.cut import paths_of, unclosed
from medallion.errors import RestoreRefused, SavepointRefused, TableUnreadable
from medallion.evidence import EvidenceReader
from medallion.lake import Lake, Snapshot
from medallion.log import version_at
from medallion.project import Project
from medallion.snapshot import named_snapshot
from medallion.staging import DataFile, Staged
from medallion.tables import Table

__all__ = ["Goal", "at_time", "at_version", "of_savepoint", "parse_moment", "snapshot_of"]


@dataclass(frozen=True)
class Goal:
    """A state of some tables.

    Attributes:
        target: for people.
        snapshots: what each table, and its quarantine, held.
        savepoint: by that name; None if it is a version or a time.
        as_of: when it was current, as far as that is known.
    """

    target: str
    snapshots: Mapping[str, Snapshot]
    savepoint: str | None = None
    as_of: dt.datetime | None = None


def of_savepoint(project: Project, lake: Lake, name: str, tables: Collection[str] = ()) -> Goal:
    """The state that a savepoint names.

    Args:
        project: the declared tables.
        lake: where they lie.
        name: of the savepoint.
        tables: only these, ``layer/name``, each with its quarantine; all if none is named.

    Raises:
        SavepointRefused: if there is no such savepoint, it does not match the data, or it knows a table not.
        UnknownTable: if a table is not declared.
    """
    savepoint = savepoints.read(lake, name)
    found: dict[str, Snapshot] = {}
    for table in _chosen(project, tables):
        for path in paths_of(table):
            if path not in savepoint.tables:
                if tables:
                    raise SavepointRefused(name, f"does not know {path}.", "It was declared later.")
                continue  # declared later: it stays as it is
            found[path] = savepoint.snapshot(lake, path, table.partition)
    only = f" of {', '.join(tables)}" if tables else ""
    return Goal(f"savepoint {name}{only}", found, name, savepoint.moment)


def at_version(project: Project, lake: Lake, path: str, version: int) -> Goal:
    """What a table held at a version, and what its quarantine held for it.

    Raises:
        UnknownTable: if the table is not declared.
        TableUnreadable: if there is no such version, or it cannot be read any more.
        RestoreRefused: if it cannot be told what was quarantined.
    """
    table = project.table(path)
    target = f"{path} at version {version}"
    return Goal(target, _with_quarantine(table, lake, lake.pin(path, table.partition, version), target))


def at_time(project: Project, lake: Lake, moment: dt.datetime, tables: Collection[str] = ()) -> Goal:
    """What the tables held at a moment, as the clocks of those who committed tell it.

    Clocks are no coordination: the state is refused where a table was built from something that was not there yet.

    Args:
        project: the declared tables.
        lake: where they lie.
        moment: with its time zone.
        tables: only these, each with its quarantine; all if none is named.

    Raises:
        RestoreRefused: if a log does not reach back so far, or the state is not closed under lineage.
    """
    target = f"{', '.join(tables) or 'all tables'} at {moment.isoformat()}"
    found: dict[str, Snapshot] = {}
    for table in _chosen(project, tables):
        now = {path: lake.pin(path, table.partition) for path in paths_of(table)}
        version = _version_at(now[table.path], moment)
        if version is None:
            raise RestoreRefused(target, f"the log of {table.path} does not reach back so far.", "Use a savepoint.")
        if version < 0:  # it was made later
            found |= {path: named_snapshot(each, None, {}) for path, each in now.items()}
        else:
            found |= _with_quarantine(table, lake, lake.pin(table.path, table.partition, version), target)
    if not tables and (broken := unclosed(project, found)):
        raise RestoreRefused(target, f"{broken[0]}, which was not there yet.", "Use a savepoint, or another time.")
    return Goal(target, found, as_of=moment)


def snapshot_of(lake: Lake, table: Table, path: str, name: str) -> Snapshot:
    """A table at a version, a savepoint or a moment, whichever ``name`` is.

    Args:
        lake: where it lies.
        table: whose rows they are.
        path: its own, or its quarantine's.
        name: a number is a version, ISO 8601 a moment, anything else a savepoint; empty is what stands now.

    Raises:
        SavepointRefused: if it is none of them.
        TableUnreadable: if there is no such version.
    """
    if not name:
        return lake.pin(path, table.partition)
    if name.isdecimal():
        return lake.pin(path, table.partition, int(name))
    moment = parse_moment(name)
    if moment is None:
        saved = savepoints.read(lake, name)
        if path not in saved.tables:
            raise SavepointRefused(name, f"does not know {path}.", "It was declared later.")
        return saved.snapshot(lake, path, table.partition)
    now = lake.pin(path, table.partition)
    version = _version_at(now, moment)
    if version is None:
        raise TableUnreadable(f"the log of {path} does not reach back to {name}. Nothing was read. Use a savepoint.")
    if version < 0:
        return named_snapshot(now, None, {})
    return lake.pin(path, table.partition, version)


def _version_at(now: Snapshot, moment: dt.datetime) -> int | None:
    """-1 if there was no table yet; None if its log does not reach back so far."""
    return -1 if now.version is None else version_at(now.folder / "_delta_log", now.version, moment)


def parse_moment(text: str) -> dt.datetime | None:
    """A moment written as ISO 8601; one without a time zone is UTC. None if it is none."""
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)


def _chosen(project: Project, tables: Collection[str]) -> Sequence[Table]:
    wanted = [project.table(path) for path in tables]
    return [table for table in project.tables if not wanted or table in wanted]


def _with_quarantine(table: Table, lake: Lake, target: Snapshot, named: str) -> dict[str, Snapshot]:
    """A table's version, and what its quarantine held for the batches that were live: their evidence names the files.

    The quarantine's own versions do not tell: it is another table, with a history of its own.
    """
    if table.quarantine_path is None:
        return {table.path: target}
    evidence_of = EvidenceReader(target.folder)
    now = lake.pin(table.quarantine_path, table.partition)
    files: dict[str, tuple[DataFile, ...]] = {}
    for key in target.files:
        evidence = evidence_of(target.batch_id(key) or "")
        if evidence is None:
            raise RestoreRefused(
                named,
                f"the evidence of {table.path} {key} is gone, so that nobody knows which rows it had refused.",
                "Use a savepoint, or replay the partition.",
            )
        if evidence.refused is None:
            continue
        rows = evidence.verdict.quarantined
        file = Staged(key, b"", evidence.refused, rows).named(evidence.batch_id, table.partition.folder(key))
        files[key] = (_sized(file, now),)
    return {
        table.quarantine_path: named_snapshot(now, now.version, files),
        table.path: target,
    }


def _sized(file: DataFile, quarantine: Snapshot) -> DataFile:
    """The file with its size, as it lies there; one that is gone is found out when the restore is planned."""
    try:
        size = (quarantine.folder / file.path).stat().st_size
    except OSError:
        size = -1
    return DataFile(file.partition, file.path, file.batch_id, file.digest, file.rows, size)
