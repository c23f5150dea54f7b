"""Savepoints: what every table held at one consistent cut, written down once so that it can be made current again.

A savepoint is one JSON document, ``<lake>/_savepoints/<name>.json``. It copies no rows: it names the data files of
every partition, with the digests of their bytes, so that it can be relied on even when the log has forgotten the
version. It protects its files from this engine's own cleaning, and not from a disk that is lost: that is what a backup
is for.
"""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import logging
import re
import uuid
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress

from medallion.cut import live_evidence, outdated, paths_of, take_cut
from medallion.digests import digest
from medallion.errors import SavepointRefused
from medallion.evidence import Evidence
from medallion.lake import Lake, Snapshot
from medallion.project import Project
from medallion.restore_intents import check_none_open, open_intent
from medallion.saved_state import SavedTable, Savepoint, SourcePosition, content_of
from medallion.stale import contract_digest
from medallion.store import Place, write_once
from medallion.tables import Table

_log = logging.getLogger(__name__)

__all__ = [
    "AUTOMATIC",
    "MANUAL",
    "automatic",
    "before",
    "create",
    "drop",
    "pinned_files",
    "pinned_versions",
    "read",
    "safest",
    "savepoints",
]

MANUAL, AUTOMATIC = "manual", "automatic"
KEEP = 10
"""Automatic savepoints that are always kept, the newest."""
KEEP_DAYS = 7.0
"""Days for which an automatic savepoint is kept in any case."""

_FOLDER = "_savepoints"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,99}")
_PACKAGES = ("polars", "pandera", "deltalake", "duckdb")


def create(
    project: Project, lake: Lake, name: str, *, reason: str = "", run_id: str = "manual", kind: str = MANUAL,
    now: dt.datetime | None = None,
) -> Savepoint:  # fmt: skip
    """Write down what every declared table holds, at one consistent cut.

    Args:
        project: the declared tables.
        lake: where they lie. Its writers need not stop.
        name: letters, digits, ``_``, ``.`` and ``-``; one that is there already is never overwritten.
        reason: why, for people.
        run_id: on whose behalf.
        kind: ``manual`` or ``automatic``.
        now: the time to write down.

    Raises:
        SavepointRefused: if the name is taken or unusable, or a table and its quarantine do not come to agree.
        RestoreUnfinished: if a restore is open: there is no consistent cut before it has ended.
    """
    _check_name(name)
    where = _path(lake, name)
    if where.exists():
        raise _taken(name)
    cut = take_cut(project, lake)
    check_none_open(lake)  # after pinning: what a restore commits later is not in the cut
    told = {table.path: live_evidence(cut.snapshots[table.path]) for table in project.tables}
    savepoint = Savepoint(
        name=name,
        kind=kind,
        created_at=(now or dt.datetime.now(dt.UTC)).isoformat(),
        reason=reason,
        run_id=run_id,
        tables={
            path: _saved(cut.snapshots[path], table if path == table.path else None, told[table.path])
            for table in project.tables
            for path in paths_of(table)
        },
        stale=outdated(project, cut.snapshots, told),
        packages={each: importlib.metadata.version(each) for each in _PACKAGES},
    )
    where.parent.mkdir(parents=True, exist_ok=True)
    try:
        write_once(where, savepoint.to_json(), durable=lake.durable)
    except FileExistsError as error:
        raise _taken(name) from error
    return savepoint


def automatic(
    project: Project, lake: Lake, reason: str, *, run_id: str = "manual", keep: int = KEEP, days: float = KEEP_DAYS,
    now: dt.datetime | None = None,
) -> Savepoint:  # fmt: skip
    """Make a savepoint before something that may have to be taken back, and drop old ones that were made like this.

    An automatic savepoint is dropped when it is neither among the newest ``keep`` nor younger than ``days``. Those that
    people made, and those that an open restore rests on, are never dropped here.

    Args:
        project: the declared tables.
        lake: where they lie.
        reason: what is about to happen.
        run_id: on whose behalf.
        keep: how many are kept in any case.
        days: for how long one is kept in any case.
        now: the time.

    Raises:
        SavepointRefused, RestoreUnfinished: see :func:`create`.
    """
    moment = now or dt.datetime.now(dt.UTC)
    name = f"auto-{moment:%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:8]}"
    made = create(project, lake, name, reason=reason, run_id=run_id, kind=AUTOMATIC, now=moment)
    known = [each for each in savepoints(lake) if each.kind == AUTOMATIC]
    before = moment - dt.timedelta(days=days)
    for each in known[: max(len(known) - keep, 0)]:
        if each.moment < before and each.name != made.name:
            _path(lake, each.name).unlink(missing_ok=True)
    return made


def before(
    project: Project, lake: Lake, what: str, *, run_id: str = "manual", now: dt.datetime | None = None
) -> str | None:
    """Make an automatic savepoint before something that must not fail for want of one.

    Returns:
        its name; None, with a warning in the log, if what stands is too broken for a savepoint.

    Raises:
        RestoreUnfinished: if a restore is open.
    """
    try:
        return automatic(project, lake, f"before {what}", run_id=run_id, now=now).name
    except SavepointRefused as error:
        _log.warning("no savepoint was made before %s: %s", what, error)
        return None


def savepoints(lake: Lake) -> list[Savepoint]:
    """All savepoints, oldest first.

    Raises:
        SavepointRefused: if one is damaged.
    """
    found = []
    for path in (lake.root / _FOLDER).glob("*.json"):
        if path.name.startswith("."):
            continue
        with suppress(FileNotFoundError):  # dropped meanwhile
            found.append(Savepoint.from_json(path.read_bytes(), path))
    return sorted(found, key=lambda each: (each.moment, each.name))


def safest(lake: Lake) -> Savepoint | None:
    """The savepoint to return to: the newest in which nothing was out of date, and if there is none, the newest.

    The one that a restore makes of what it replaces is newer than what was gone back to, and is what was wrong. At most
    ten are read.

    Raises:
        SavepointRefused: if one of them is damaged.
    """
    written: list[tuple[int, Place]] = []
    for path in (lake.root / _FOLDER).glob("*.json"):
        if not path.name.startswith("."):
            with suppress(FileNotFoundError):  # dropped meanwhile
                written.append((path.stat().st_mtime_ns, path))
    newest: Savepoint | None = None
    for _, path in sorted(written, key=lambda each: each[0], reverse=True)[:KEEP]:
        with suppress(FileNotFoundError):
            found = Savepoint.from_json(path.read_bytes(), path)
            if not found.stale:
                return found
            newest = newest or found
    return newest


def read(lake: Lake, name: str) -> Savepoint:
    """One savepoint.

    Raises:
        SavepointRefused: if there is none of that name, with those that there are, or it is damaged.
    """
    _check_name(name)
    path = _path(lake, name)
    try:
        return Savepoint.from_json(path.read_bytes(), path)
    except FileNotFoundError as error:
        known = ", ".join(each.name for each in savepoints(lake)) or "none"
        raise SavepointRefused(name, "is not there.", f"There are: {known}.") from error


def drop(lake: Lake, name: str) -> Savepoint:
    """Forget a savepoint. Its files are then kept no longer than the tables' own history.

    Raises:
        SavepointRefused: if there is none, or an open restore rests on it.
    """
    found = read(lake, name)
    intent = open_intent(lake)
    if intent is not None and name in {intent.savepoint, intent.savepoint_before}:
        raise SavepointRefused(
            name,
            f"is needed by the restore {intent.number}, which has not ended.",
            "Complete that first: medallion restore --resume.",
        )
    _path(lake, name).unlink(missing_ok=True)
    return found


def pinned_versions(lake: Lake) -> dict[str, set[int]]:
    """The versions of each table that savepoints name."""
    found: dict[str, set[int]] = {}
    for each in savepoints(lake):
        for path, table in each.tables.items():
            if table.version is not None:
                found.setdefault(path, set()).add(table.version)
    return found


def pinned_files(lake: Lake) -> dict[str, set[str]]:
    """The data files that savepoints and an open restore need: by table, relative to it."""
    found: dict[str, set[str]] = {}
    for each in savepoints(lake):
        for path, table in each.tables.items():
            found.setdefault(path, set()).update(file.path for files in table.files.values() for file in files)
    intent = open_intent(lake)
    for path, files in intent.files().items() if intent is not None else ():
        found.setdefault(path, set()).update(file.path for file in files)
    return found


def _saved(snapshot: Snapshot, table: Table | None, told: Mapping[str, Evidence]) -> SavedTable:
    files = dict(snapshot.files)
    rows = sum(file.rows for some in files.values() for file in some)
    if table is None:
        return SavedTable(snapshot.version, content_of(files), rows, files)
    made_by = Counter(str(told[key].revision) if key in told else "unknown" for key in files)
    position = None
    if table.layer == "bronze":
        keys = table.partition.keys()
        missing = next((number for number, key in enumerate(keys) if key not in files), len(keys))
        delivered = sorted((key, [s.sha256 for s in each.sources]) for key, each in told.items())
        newest = max((key for key in keys if key in files), key=keys.index, default=None)
        position = SourcePosition(newest, keys[missing - 1] if missing else None, digest(delivered))
    return SavedTable(
        snapshot.version, content_of(files), rows, files, table.revision, table.transform_digest,
        contract_digest(table), dict(made_by), position,
    )  # fmt: skip


def _path(lake: Lake, name: str) -> Place:
    return lake.root / _FOLDER / f"{name}.json"


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise SavepointRefused(
            name, "cannot be called that.", "Use letters, digits, '_', '.' and '-', beginning with a letter or a digit."
        )


def _taken(name: str) -> SavepointRefused:
    return SavepointRefused(
        name, "is there already, and is never overwritten.", "Choose another name, or drop it first."
    )
