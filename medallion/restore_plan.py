"""What it takes to make a state current again, and whether it can be done; nothing is changed here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from medallion.cut import outdated, paths_of
from medallion.digests import digest_bytes, digest_file
from medallion.errors import RestoreRefused
from medallion.lake import Lake, Snapshot
from medallion.past_states import Goal
from medallion.project import Project
from medallion.restore_intents import Move
from medallion.staging import DataFile, in_parallel
from medallion.tables import Table

__all__ = ["RestorePlan", "check_files", "damaged_files", "moves_to", "paths_in", "plan", "refused"]

_MAX_DAMAGED = 5

Files = tuple[DataFile, ...]
Moves = Mapping[str, tuple[Move, ...]]


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


def plan(project: Project, lake: Lake, goal: Goal) -> RestorePlan:
    """What it takes to make a state current again. Changes nothing.

    Raises:
        RestoreRefused: if a table is not there at all: then there is nothing to commit to.
        RestoreUnfinished: if a restore is open.
    """
    live = _live(project, lake)
    moves = _moves_from(live, project, goal)
    damaged = damaged_files(lake, _needed(moves))
    return RestorePlan(goal, moves, tuple(damaged), outdated(project, {**live, **goal.snapshots}))


def _live(project: Project, lake: Lake) -> dict[str, Snapshot]:
    return {path: lake.pin(path, table.partition) for table in project.tables for path in paths_of(table)}


def _needed(moves: Mapping[str, tuple[Move, ...]]) -> dict[str, list[DataFile]]:
    return {path: [file for move in some for file in move.after] for path, some in moves.items()}


def moves_to(project: Project, lake: Lake, goal: Goal) -> dict[str, tuple[Move, ...]]:
    """The partitions that differ from a state, as they stand now; by table.

    Raises:
        RestoreRefused: see :func:`plan`.
    """
    return _moves_from(_live(project, lake), project, goal)


def _moves_from(live: Mapping[str, Snapshot], project: Project, goal: Goal) -> dict[str, tuple[Move, ...]]:
    for path, wanted in goal.snapshots.items():
        if live[path].version is None and wanted.files:
            raise RestoreRefused(goal.target, f"{path} is not in the lake.", "Restore a backup.")
    moves: dict[str, tuple[Move, ...]] = {}
    for table in project.tables:
        if table.path in goal.snapshots:
            moves |= _moves(table, live, goal.snapshots)
    return moves


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
        if paths_in(live.files.get(key, ())) != paths_in(goal.files.get(key, ()))
    ]


def paths_in(files: Files) -> list[str]:
    """By which it is told whether two sets of files are the same ones."""
    return sorted(file.path for file in files)


def damaged_files(lake: Lake, needed: Mapping[str, Sequence[DataFile]]) -> list[str]:
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


def check_files(lake: Lake, goal: Goal, moves: Mapping[str, tuple[Move, ...]]) -> None:
    """Look at every file before anything is changed."""
    if damaged := damaged_files(lake, _needed(moves)):
        raise refused(goal, damaged)


def refused(goal: Goal, damaged: Sequence[str]) -> RestoreRefused:
    """Why a state cannot be restored whose data files are not there as they were."""
    more = f" and {len(damaged) - _MAX_DAMAGED} more" if len(damaged) > _MAX_DAMAGED else ""
    return RestoreRefused(
        goal.target,
        f"{len(damaged)} data files that it needs are not there as they were: "
        f"{'; '.join(damaged[:_MAX_DAMAGED])}{more}.",
        "They were vacuumed or damaged: choose a later state, restore a backup, or replay from the layer below.",
        tuple(damaged),
    )
