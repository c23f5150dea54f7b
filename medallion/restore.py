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
from typing import Any

from medallion import ledger, savepoints
from medallion.cut import outdated, paths_of
from medallion.evidence import EvidenceReader
from medallion.failpoints import reach
from medallion.lake import Lake, Replacement, Snapshot
from medallion.past_states import Goal
from medallion.project import Project
from medallion.publication import Publication, reconcile
from medallion.restore_intents import BACK, FORWARD, Claim, Intent, Move, claimed, open_intent, record, settle
from medallion.restore_plan import check_files, damaged_files, moves_to, paths_in, refused
from medallion.staging import DataFile, Staged
from medallion.tables import Table
from medallion.telemetry import Row, commit_rows, recovery_rows
from medallion.verify import verify

__all__ = ["INCOMPLETE", "RECOVERED", "ROLLED_BACK", "Restored", "restore", "resume"]

_log = logging.getLogger(__name__)

RECOVERED, INCOMPLETE, ROLLED_BACK = "recovered", "incomplete", "rolled back"

Clock = Callable[[], dt.datetime]
Files = tuple[DataFile, ...]
Overtaken = dict[str, dict[str, str]]


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


@dataclass(frozen=True)
class Restored:
    """How a restore has ended.

    Attributes:
        outcome: ``recovered``: everything is as it was to be, and verified. ``incomplete``: live attempts overtook some
            partitions, or something differs. ``rolled back``: everything is as it was before the restore, and verified.
        overtaken: partitions that somebody else committed meanwhile, by table, with what happened.
        differences: where a table holds something else than it was to, and what verification found.
        stale: partitions that are not what their inputs and code would make of them, by table, with the reason.
        replaced, dropped: the partitions that got other files, and those that were emptied, by table; without
            quarantines.
        versions: of the tables that were committed.
        files, rows: that were put back.
        id: names the restore in its commits.
        scope, volume: of each table, which partitions, and how many rows were put back.
        as_of: when the restored state was current, as far as that is known.
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
    replaced: Mapping[str, Sequence[str]] = field(default_factory=dict)
    dropped: Mapping[str, Sequence[str]] = field(default_factory=dict)
    files: int = 0
    rows: int = 0
    overtaken: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    differences: Sequence[str] = ()
    stale: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    id: str = ""
    scope: Mapping[str, str] = field(default_factory=dict)
    volume: Mapping[str, int] = field(default_factory=dict)
    as_of: str | None = None

    @property
    def given_up(self) -> float | None:
        """Seconds of committed work that is not current any more: from the restored state to the decision (RPO)."""
        if self.as_of is None:
            return None
        return (dt.datetime.fromisoformat(self.decided_at) - dt.datetime.fromisoformat(self.as_of)).total_seconds()

    @property
    def to_replay(self) -> dict[str, list[str]]:
        """The bronze partitions that lost a later delivery; its bytes are kept, and replay takes them in again."""
        lost = {path: [*self.replaced[path], *self.dropped[path]] for path in self.replaced}
        return {path: keys for path, keys in lost.items() if keys and path.startswith("bronze/")}

    @property
    def seconds(self) -> float:
        """From the decision to the comparison that found everything in place: the observed recovery time."""
        return (
            dt.datetime.fromisoformat(self.completed_at) - dt.datetime.fromisoformat(self.decided_at)
        ).total_seconds()


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
    check_files(lake, goal, moves_to(project, lake, goal))
    before = savepoints.before(project, lake, f"the restore to {goal.target}", run_id=run_id, now=clock())
    moves = moves_to(project, lake, goal)
    contents = {path: _contents(snapshot) for path, snapshot in goal.snapshots.items()}
    intent = Intent(
        0, uuid.uuid4().hex, goal.target, goal.savepoint, before, reason, run_id, decided, moves, contents,
        Claim(None, 0), goal.as_of.isoformat() if goal.as_of is not None else None,
    )  # fmt: skip
    with record(lake, intent) as numbered:
        reach("restore recorded")
        return _carry_out(project, lake, numbered, clock)


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
    if direction == FORWARD and (damaged := damaged_files(lake, _wanted(intent, FORWARD))):
        _log.warning("the restore %s cannot be completed, and is taken back: %s", intent.number, damaged[0])
        direction = BACK
    if direction == BACK and (damaged := damaged_files(lake, _wanted(intent, BACK))):
        raise refused(Goal(f"the state before the restore {intent.number}", {}), damaged)
    with claimed(lake, intent, direction) as mine:
        return _carry_out(project, lake, mine, clock)


def _wanted(intent: Intent, direction: str) -> dict[str, list[DataFile]]:
    return {
        path: [file for move in moves for file in _goal(move, direction)[1]] for path, moves in intent.moves.items()
    }


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
        replaced={path: [m.key for m in some if _goal(m, way)[1]] for path, some in moves.items()},
        dropped={path: [m.key for m in some if not _goal(m, way)[1]] for path, some in moves.items()},
        files=sum(map(len, wanted.values())),
        rows=sum(file.rows for files in wanted.values() for file in files),
        overtaken=overtaken,
        differences=tuple(differences),
        stale=outdated(project, pins),
        id=intent.id,
        scope={path: _scope(some) for path, some in moves.items()},
        volume={path: sum(file.rows for file in wanted.get(path, ())) for path in moves},
        as_of=intent.as_of,
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
        stands = paths_in(target.files.get(key, ()))
        if stands == paths_in(wanted):
            continue
        expected = move.epoch + (intent.claim.direction == BACK)
        if epochs[key] == expected and stands == paths_in(origin):
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
