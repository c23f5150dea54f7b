"""Makes a historical state current again, by new commits: nothing is rewritten, and nothing is forgotten.

A restore is planned against pinned versions, checked to be possible, written down (``restore_intents.py``), carried out
table by table, compared with what it was to be, and only then called recovered:

1. Only partitions whose live files differ are replaced, by the very files that they had; those that were not there are
   dropped. Their epochs go up by one, so that attempts from before are fenced off.
2. Each partition is restored only if it still stands where the plan saw it. What a live attempt has committed meanwhile
   stays, is named as overtaken, and the restore is not called complete.
3. A quarantine and its table are committed in the order of publication, by the same code.
4. Between the record and its settlement no other attempt starts. If the process dies, whoever comes next completes the
   restore or takes it back, from the record and the tables alone.
"""

from __future__ import annotations

import datetime as dt
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from medallion import ledger, savepoints
from medallion.cut import outdated, paths_of
from medallion.digests import digest_bytes, digest_file
from medallion.errors import RestoreRefused, SavepointRefused
from medallion.evidence import EvidenceReader
from medallion.failpoints import reach
from medallion.lake import Lake, Replacement, Snapshot
from medallion.past_states import Goal
from medallion.project import Project
from medallion.publication import Publication, reconcile
from medallion.restore_intents import BACK, FORWARD, Claim, Intent, Move, claimed, open_intent, record, settle
from medallion.staging import DataFile, Staged, in_parallel
from medallion.tables import Table
from medallion.telemetry import Row, commit_rows, recovery_rows
from medallion.verify import verify

__all__ = ["INCOMPLETE", "RECOVERED", "ROLLED_BACK", "Goal", "RestorePlan", "Restored", "plan", "restore", "resume"]

_log = logging.getLogger(__name__)

RECOVERED, INCOMPLETE, ROLLED_BACK = "recovered", "incomplete", "rolled back"
_MAX_DAMAGED = 5

Clock = Callable[[], dt.datetime]
Files = tuple[DataFile, ...]
Overtaken = dict[str, dict[str, str]]


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


@dataclass(frozen=True)
class RestorePlan:
    """What a restore would do; nothing has been done.

    Attributes:
        goal: the state that is to be current again.
        moves: the partitions that differ, by table; those of a quarantine under its own name.
        damaged: data files that the state needs and that are gone or altered, relative to the lake.
        stale: after it, the partitions that are not what their inputs and code would make of them, with the reason.
    """

    goal: Goal
    moves: Mapping[str, tuple[Move, ...]]
    damaged: tuple[str, ...]
    stale: Mapping[str, Mapping[str, str]]

    @property
    def replaced(self) -> dict[str, list[str]]:
        """The partitions that get the files they had, by table; no quarantine."""
        return self._of_tables(lambda move: bool(move.after))

    @property
    def dropped(self) -> dict[str, list[str]]:
        """The partitions that were not there in that state, by table; no quarantine."""
        return self._of_tables(lambda move: not move.after)

    def _of_tables(self, wanted: Callable[[Move], bool]) -> dict[str, list[str]]:
        found = {
            path: [move.key for move in moves if wanted(move)]
            for path, moves in self.moves.items()
            if not path.startswith("quarantine/")
        }
        return {path: keys for path, keys in found.items() if keys}

    @cached_property
    def volume(self) -> tuple[int, int]:
        """Partitions and rows that are put back."""
        files = [file for moves in self.moves.values() for move in moves for file in move.after]
        return len(files), sum(file.rows for file in files)


@dataclass(frozen=True)
class Restored:
    """How a restore has ended.

    Attributes:
        outcome: ``recovered``: everything is as it was to be, and verified. ``incomplete``: live attempts overtook some
            partitions, or something differs. ``rolled back``: everything is as it was before the restore, and verified.
        overtaken: partitions that somebody else committed meanwhile, by table, with what happened.
        differences: where a table holds something else than it was to, and what verification found.
        stale: partitions that are not what their inputs and code would make of them, by table, with the reason.
        replaced, dropped: how many partitions of each table.
        versions: of the tables that were committed.
        files, rows: that were put back.
        id: names the restore in its commits.
        scope, volume: of each table, which partitions, and how many rows were put back.
        decided_at, completed_at: by the clock of whoever ran it; the difference is the observed recovery time.
    """

    number: int
    target: str
    outcome: str
    savepoint: str | None
    savepoint_before: str | None
    reason: str
    run_id: str
    decided_at: str
    completed_at: str
    versions: Mapping[str, int | None] = field(default_factory=dict)
    replaced: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    files: int = 0
    rows: int = 0
    overtaken: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    differences: Sequence[str] = ()
    stale: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    id: str = ""
    scope: Mapping[str, str] = field(default_factory=dict)
    volume: Mapping[str, int] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """From the decision to the comparison that found everything in place: the observed recovery time."""
        return (
            dt.datetime.fromisoformat(self.completed_at) - dt.datetime.fromisoformat(self.decided_at)
        ).total_seconds()


def plan(project: Project, lake: Lake, goal: Goal) -> RestorePlan:
    """What it takes to make a state current again. Changes nothing.

    Raises:
        RestoreRefused: if a table is not there at all: then there is nothing to commit to.
        RestoreUnfinished: if a restore is open.
    """
    live = {path: lake.pin(path, table.partition) for table in project.tables for path in paths_of(table)}
    for path, wanted in goal.snapshots.items():
        if live[path].version is None and wanted.files:
            raise RestoreRefused(goal.target, f"{path} is not in the lake.", "Restore a backup.")
    moves: dict[str, tuple[Move, ...]] = {}
    for table in project.tables:
        if table.path in goal.snapshots:
            moves |= _moves(table, live, goal.snapshots)
    needed = {path: [file for move in some for file in move.after] for path, some in moves.items()}
    after = {**live, **goal.snapshots}
    return RestorePlan(goal, moves, tuple(_damaged(lake, needed)), outdated(project, after))


def _moves(table: Table, live: Mapping[str, Snapshot], goal: Mapping[str, Snapshot]) -> dict[str, tuple[Move, ...]]:
    differing = {path: _differing(live[path], goal[path]) for path in paths_of(table)}
    mine = set(differing[table.path])
    found = {}
    for path in paths_of(table):
        # A quarantine is committed with its table, so that what belongs there is told for the same partitions.
        keys = [key for key in table.partition.keys() if key in mine | set(differing[path])]  # noqa: SIM118
        epochs = live[path].epochs(keys)
        moves = [Move(key, epochs[key], live[path].files.get(key, ()), goal[path].files.get(key, ())) for key in keys]
        if moves:
            found[path] = tuple(moves)
    return found


def _differing(live: Snapshot, goal: Snapshot) -> list[str]:
    return [
        key
        for key in {**goal.files, **live.files}
        if _paths(live.files.get(key, ())) != _paths(goal.files.get(key, ()))
    ]


def _paths(files: Files) -> list[str]:
    return sorted(file.path for file in files)


def _damaged(lake: Lake, needed: Mapping[str, Sequence[DataFile]]) -> list[str]:
    """The data files that are not there, or are not what their names promise."""

    def look(each: tuple[str, DataFile]) -> str | None:
        path, file = each
        place = lake.root / path / file.path
        try:
            same = place.stat().st_size == file.size and file.digest == (
                digest_file(place) if isinstance(place, Path) else digest_bytes(place.read_bytes())
            )
        except OSError:
            return f"{path}/{file.path} is gone"
        return None if same else f"{path}/{file.path} was altered"

    looked = in_parallel(look, [(path, file) for path, files in needed.items() for file in files])
    return [each for each in looked if each is not None]


def restore(
    project: Project, lake: Lake, goal: Goal, *, reason: str, run_id: str = "manual",
    decided_at: dt.datetime | None = None, clock: Clock = _now,
) -> Restored:  # fmt: skip
    """Make a state current again; a restore that died before is completed first.

    Args:
        project: the declared tables.
        lake: where they lie.
        goal: the state.
        reason: why; it is kept.
        run_id: on whose behalf.
        decided_at: when somebody decided it, from which the recovery time counts; when it is called, if not given.
        clock: tells the time.

    Raises:
        RestoreRefused: before the first commit: data files are gone or altered, or a table is not there.
        RestoreUnfinished: if another restore is running.
        StorageFailed: the store does not take a commit; the restore stays open, to be completed or taken back.
    """
    decided = (decided_at or clock()).isoformat()
    if open_intent(lake) is not None:
        resume(project, lake, clock=clock)
    planned = plan(project, lake, goal)
    if planned.damaged:
        raise _refused(goal, planned.damaged)
    before = _savepoint_before(project, lake, goal, run_id, clock())
    planned = plan(project, lake, goal)
    contents = {path: _contents(snapshot) for path, snapshot in goal.snapshots.items()}
    intent = Intent(
        0, uuid.uuid4().hex, goal.target, goal.savepoint, before, reason, run_id, decided, planned.moves, contents,
        Claim(None, 0),
    )  # fmt: skip
    with record(lake, intent) as numbered:
        reach("restore recorded")
        return _carry_out(project, lake, numbered, clock)


def _savepoint_before(project: Project, lake: Lake, goal: Goal, run_id: str, now: dt.datetime) -> str | None:
    """The name of a savepoint of what is replaced; None if what stands is too broken for one."""
    try:
        return savepoints.automatic(project, lake, f"before the restore to {goal.target}", run_id=run_id, now=now).name
    except SavepointRefused as error:  # the record of the restore still says what it replaces
        _log.warning("no savepoint was made before the restore: %s", error)
        return None


def resume(project: Project, lake: Lake, *, rollback: bool = False, clock: Clock = _now) -> Restored | None:
    """Complete a restore whose process has died, or take it back. One that was begun to be taken back is taken back.

    It is also taken back where files that it needs to be completed are gone meanwhile.

    Args:
        project: the declared tables.
        lake: where they lie.
        rollback: take it back.
        clock: tells the time.

    Returns:
        how it has ended; None if no restore is open.

    Raises:
        RestoreUnfinished: if its process may still live, or somebody else takes it over.
        RestoreRefused: if files are gone that it needs in either direction.
    """
    intent = open_intent(lake)
    if intent is None:
        return None
    direction = BACK if rollback else intent.claim.direction
    if direction == FORWARD and (damaged := _damaged(lake, _wanted(intent, FORWARD))):
        _log.warning("the restore %s cannot be completed, and is taken back: %s", intent.number, damaged[0])
        direction = BACK
    if direction == BACK and (damaged := _damaged(lake, _wanted(intent, BACK))):
        raise _refused(Goal(f"the state before the restore {intent.number}", {}), damaged)
    with claimed(lake, intent, direction) as mine:
        return _carry_out(project, lake, mine, clock)


def _wanted(intent: Intent, direction: str) -> dict[str, list[DataFile]]:
    return {
        path: [file for move in moves for file in _goal(move, direction)[1]] for path, moves in intent.moves.items()
    }


def _refused(goal: Goal, damaged: Sequence[str]) -> RestoreRefused:
    more = f" and {len(damaged) - _MAX_DAMAGED} more" if len(damaged) > _MAX_DAMAGED else ""
    return RestoreRefused(
        goal.target,
        f"{len(damaged)} data files that it needs are not there as they were: "
        f"{'; '.join(damaged[:_MAX_DAMAGED])}{more}.",
        "They were vacuumed or damaged: choose a later state, restore a backup, or replay from the layer below.",
        tuple(damaged),
    )


def _goal(move: Move, direction: str) -> tuple[Files, Files]:
    """What a partition is to be moved from, and to."""
    return (move.before, move.after) if direction == FORWARD else (move.after, move.before)


def _carry_out(project: Project, lake: Lake, intent: Intent, clock: Clock) -> Restored:
    overtaken: Overtaken = {}
    tables = [table for table in project.tables if any(path in intent.moves for path in paths_of(table))]
    for table in tables:
        if lost := _restore_table(table, lake, intent):
            overtaken[table.path] = lost
        reach("restore table done")
    ledger.record(lake, [row for table in tables for row in _rows(lake, table, intent)])
    pins = {path: lake.pin(path, t.partition) for t in project.tables for path in paths_of(t)}
    versions = {path: pins[path].version for path in intent.moves}
    differences = [each for path in intent.contents for each in _differences(pins[path], intent)]
    verified = verify(project, lake, [table.path for table in tables], run_id=intent.run_id, clock=clock)
    differences += map(str, verified.differences)
    reach("restore verified")
    way = intent.claim.direction
    wanted = _wanted(intent, way)
    done = ROLLED_BACK if way == BACK else RECOVERED
    moves = {table.path: intent.moves.get(table.path, ()) for table in tables}
    told = Restored(
        number=intent.number,
        target=intent.target,
        outcome=INCOMPLETE if overtaken or differences else done,
        savepoint=intent.savepoint,
        savepoint_before=intent.savepoint_before,
        reason=intent.reason,
        run_id=intent.run_id,
        decided_at=intent.decided_at,
        completed_at=clock().isoformat(),
        versions=versions,
        replaced={path: sum(bool(_goal(m, way)[1]) for m in some) for path, some in moves.items()},
        dropped={path: sum(not _goal(m, way)[1] for m in some) for path, some in moves.items()},
        files=sum(map(len, wanted.values())),
        rows=sum(file.rows for files in wanted.values() for file in files),
        overtaken=overtaken,
        differences=tuple(differences),
        stale=outdated(project, pins),
        id=intent.id,
        scope={path: _scope(some) for path, some in moves.items()},
        volume={path: sum(file.rows for file in wanted.get(path, ())) for path in moves},
    )
    settle(lake, intent, asdict(told))
    ledger.record(lake, recovery_rows(asdict(told)))
    reach("restore settled")
    return told


def _scope(moves: Sequence[Move]) -> str:
    keys = [move.key for move in moves]
    return keys[0] if len(keys) == 1 else f"{keys[0]}..{keys[-1]} ({len(keys)} partitions)" if keys else ""


def _restore_table(table: Table, lake: Lake, intent: Intent) -> dict[str, str]:
    """Commit a quarantine and its table; the partitions that somebody else has committed, with what happened."""
    target = lake.pin(table.path, table.partition)
    moves = {move.key: move for move in intent.moves.get(table.path, ())}
    refused = {move.key: move for move in intent.moves.get(table.quarantine_path or "", ())}
    epochs = target.epochs(list(moves))
    waiting, overtaken = [], {}
    for key, move in moves.items():
        origin, wanted = _goal(move, intent.claim.direction)
        stands = _paths(target.files.get(key, ()))
        if stands == _paths(wanted):
            continue
        expected = move.epoch + (intent.claim.direction == BACK)
        if epochs[key] == expected and stands == _paths(origin):
            waiting.append(move)
        else:
            overtaken[key] = f"was committed by another attempt meanwhile (epoch {epochs[key]}, planned {move.epoch})"
    metadata = _metadata(table, intent)
    if waiting:
        publication = Publication(table, target, metadata)
        direction = intent.claim.direction
        accepted = {move.key: _goal(move, direction)[1] for move in waiting}
        kept = {move.key: _goal(refused[move.key], direction)[1] for move in waiting if move.key in refused}
        batches = {key: files[0].batch_id if files else "" for key, files in accepted.items()}
        replaced = publication.replace(
            _standing(accepted, batches, target), _standing(kept, batches, _quarantine(table, lake, target))
        )
        overtaken |= {key: str(error) for key, error in replaced.superseded.items()}
    if table.quarantine_path is not None:
        reconcile(table, lake, [*{**moves, **refused}], metadata)
    return overtaken


def _quarantine(table: Table, lake: Lake, target: Snapshot) -> Snapshot:
    return target if table.quarantine_path is None else lake.pin(table.quarantine_path, table.partition)


def _standing(files: Mapping[str, Files], batches: Mapping[str, str], onto: Snapshot) -> Replacement:
    """Files that lie there already, in the place of what stands now."""
    pairs = [(Staged(key, b"", file.digest, file.rows), file) for key, some in files.items() for file in some]
    return Replacement(pairs, {key: batches[key] for key in files}, onto.schema, standing=True)


def _attempt(intent: Intent) -> str:
    return intent.id if intent.claim.direction == FORWARD else f"{intent.id}-back"


def _metadata(table: Table, intent: Intent) -> dict[str, Any]:
    return {
        "table": table.path,
        "run_id": intent.run_id,
        "attempt": _attempt(intent),
        "started_at": intent.decided_at,
        "restore": {
            "number": intent.number,
            "target": intent.target,
            "direction": intent.claim.direction,
            "reason": intent.reason,
        },
    }


def _rows(lake: Lake, table: Table, intent: Intent) -> list[Row]:
    """A row of the ledger for each partition of a table that a restore has committed, as its commits tell it."""
    snapshot = lake.pin(table.path, table.partition)
    keys = {move.key for move in intent.moves.get(table.path, ())}
    commits = snapshot.commits(None, partial=True) or []
    rows = commit_rows(table, commits, EvidenceReader(snapshot.folder), keys)
    return [row for row in rows if row["attempt"] in {intent.id, f"{intent.id}-back"}]


def _contents(snapshot: Snapshot) -> dict[str, str]:
    return {key: snapshot.content(key) or "" for key in snapshot.files}


def _differences(live: Snapshot, intent: Intent) -> list[str]:
    """Where a table holds something else than it was to."""
    wanted = dict(intent.contents[live.path])
    if intent.claim.direction == BACK:
        for move in intent.moves.get(live.path, ()):
            wanted.pop(move.key, None)
            if move.before:
                wanted[move.key] = "+".join(sorted(file.digest for file in move.before))
    return [
        f"{live.path} {key} holds {(live.content(key) or 'nothing')[:12]}, not {wanted.get(key, 'nothing')[:12]}"
        for key in {**wanted, **live.files}
        if live.content(key) != wanted.get(key)
    ]
