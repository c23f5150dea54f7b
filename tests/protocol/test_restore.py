"""A restore in a process of its own, killed anywhere, or meeting live work: completed or taken back, never half."""

import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from medallion import savepoints
from medallion.attempts import records
from medallion.errors import RestoreUnfinished
from medallion.lake import Lake
from medallion.project import Project
from medallion.refine import refine
from medallion.restore import RECOVERED, ROLLED_BACK, resume
from medallion.restore_intents import open_intent, settled
from medallion.verify import verify
from tests.protocol.counts import MATRIX
from tests.protocol.scenarios import FIRST, FOURTH, LOADED, SECOND, THIRD, Reader, check_log, epochs
from tests.protocol.shop import TABLES, Shop, build, contents, expected, held_by, land, make_run
from tests.protocol.workers import Nursery, until

WRONG = {FIRST: [900, -901, 902], SECOND: [903], FOURTH: [904, -905]}
"""Two days are replaced, one is new: a restore puts two back and drops one."""
PROJECT = Project(Shop().tables)

Contents = dict[str, dict[str, str | None]]


@dataclass
class Case:
    """A lake with a savepoint of a good state, in which a bad one is live."""

    base: Path
    good: Contents
    bad: Contents
    points: Counter[str]


@pytest.fixture(scope="module")
def case(workers: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("restore")
    base, whole = folder / "base", folder / "whole"
    good = _deliver(base, LOADED)
    savepoints.create(PROJECT, Lake(base / "lake", durable=False), "good")
    bad = _deliver(base, WRONG)
    shutil.copytree(base, whole)
    worker = workers.start("restore", whole, points=f"any=trace({folder / 'points'})", to="good")
    assert worker.wait() == 0
    assert contents(whole / "lake") == good
    points = Counter((folder / "points").read_text().splitlines())
    return Case(base, good, bad, points)


def _deliver(folder: Path, deliveries: dict[str, list[int]]) -> Contents:
    for day, quantities in deliveries.items():
        land(folder / "landing", day, quantities)
    build(Shop(), list(deliveries), make_run(folder / "lake", folder / "landing"))
    return contents(folder / "lake")


def _killed(case: Case, workers: Nursery, folder: Path, point: str, nth: int, *, rollback: bool) -> None:
    where = f"{point}:{nth}, {'taken back' if rollback else 'completed'}"
    shutil.copytree(case.base, folder)
    before = epochs(folder / "lake")
    with Reader(folder / "lake") as reader:
        assert workers.start("restore", folder, points=f"{point}:{nth}=kill", to="good").wait() == -9, where
    MATRIX.interruptions["restore", point] += 1
    for path, day, content in reader.seen:
        assert content in (case.good[path].get(day), case.bad[path].get(day)), (
            f"{where}: a reader saw {path} {day} half"
        )
    run = make_run(folder / "lake", folder / "landing")
    if open_intent(run.lake) is None:
        assert point in {"restore settled", "ledger written"}, where
        assert contents(folder / "lake") == case.good
    else:
        assert point != "restore settled", where
        with pytest.raises(RestoreUnfinished):
            refine(Shop().orders, [FIRST], run)
        told = resume(PROJECT, run.lake, rollback=rollback)
        assert told is not None
        assert told.outcome == (ROLLED_BACK if rollback else RECOVERED), f"{where}: {told}"
        assert contents(folder / "lake") == (case.bad if rollback else case.good), where
    assert len(settled(run.lake)) == 1
    assert verify(PROJECT, run.lake).differences == (), where
    after = epochs(folder / "lake")
    for path in TABLES:
        assert all(after[path][day] >= before[path][day] for day in after[path]), f"{where}: an epoch fell in {path}"
        assert records(folder / "lake" / path) == []
    check_log(folder / "lake")
    shutil.rmtree(folder)


@pytest.mark.parametrize("rollback", [False, True], ids=["completed", "taken back"])
def test_a_restore_killed_at_any_boundary_is_completed_or_taken_back(case, workers, tmp_path, rollback):
    for turn, (point, count) in enumerate(sorted(case.points.items())):
        _killed(case, workers, tmp_path / f"{turn}", point, 1 + (turn + rollback) % count, rollback=rollback)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("rollback", [False, True], ids=["completed", "taken back"])
def test_a_restore_killed_each_time_it_reaches_a_boundary_is_completed_or_taken_back(case, workers, tmp_path, rollback):
    for point, count in sorted(case.points.items()):
        for nth in range(1, count + 1):
            _killed(case, workers, tmp_path / f"{point}-{nth}", point, nth, rollback=rollback)


def test_every_boundary_of_a_restore_is_reached(case):
    wanted = {
        "restore recorded", "quarantine committed", "quarantine log synced", "table committed", "table log synced",
        "restore table done", "restore verified", "restore settled",
    }  # fmt: skip
    assert wanted - {"quarantine log synced", "table log synced"} <= case.points.keys()


@pytest.mark.parametrize("point", ["restore table done:2", "table committed:1", "quarantine committed:1"])
def test_a_completion_that_is_killed_is_completed_by_the_next_one(case, workers, tmp_path, point):
    folder = tmp_path / "folder"
    shutil.copytree(case.base, folder)
    assert workers.start("restore", folder, points="restore recorded=kill", to="good").wait() == -9
    assert workers.start("resume", folder, points=f"{point}=kill").wait() == -9
    worker = workers.start("resume", folder)
    assert worker.wait() == 0
    assert worker.report()[""][""][0] == RECOVERED
    assert contents(folder / "lake") == case.good


def test_of_two_restores_at_once_one_runs_and_the_other_is_told_so(case, workers, tmp_path):
    folder = tmp_path / "folder"
    shutil.copytree(case.base, folder)
    go = folder / "go"
    first = workers.start("restore", folder, points=f"restore recorded=pause({go})", to="good")
    until((folder / "go.reached").exists)
    lake = Lake(folder / "lake", durable=False)
    intent = open_intent(lake)
    assert intent is not None
    assert intent.is_running
    with pytest.raises(RestoreUnfinished, match="is running"):
        resume(PROJECT, lake)
    assert workers.start("restore", folder, to="good").wait() == 1
    assert contents(folder / "lake") == case.bad
    go.touch()
    assert first.wait() == 0
    assert contents(folder / "lake") == case.good
    assert [each["outcome"] for each in settled(lake)] == [RECOVERED]


@pytest.mark.parametrize("point", ["staged", "quarantine committed", "evidence written", "table files written"])
def test_a_live_commit_that_a_restore_overtakes_writes_nothing_afterwards(case, workers, tmp_path, point):
    folder = tmp_path / "folder"
    shutil.copytree(case.base, folder)
    go = folder / "go"
    land(folder / "landing", FIRST, [77, -78])
    build(Shop(), [FIRST], make_run(folder / "lake", folder / "landing"))
    land(folder / "landing", FIRST, [79, -80, 81])
    refine(Shop().raw, [FIRST], make_run(folder / "lake", folder / "landing"))
    live = workers.start("one table", folder, points=f"{point}=pause({go})", keys=[FIRST])
    until((folder / "go.reached").exists)
    restoring = workers.start("restore", folder, to="good")
    assert restoring.wait() == 0
    assert restoring.report()[""][""] == [RECOVERED, {}]
    go.touch()
    assert live.wait() == 0
    assert live.report()["silver/orders"][FIRST][0] == "Superseded"
    assert contents(folder / "lake") == case.good
    assert verify(PROJECT, Lake(folder / "lake", durable=False)).differences == ()


def test_what_a_live_commit_did_before_a_restore_reached_it_stays_and_is_named(case, workers, tmp_path):
    folder = tmp_path / "folder"
    shutil.copytree(case.base, folder)
    land(folder / "landing", FIRST, [79, -80, 81])
    refine(Shop().raw, [FIRST], make_run(folder / "lake", folder / "landing"))
    live = workers.start("one table", folder, points=f"staged=pause({folder / 'live'})", keys=[FIRST])
    until((folder / "live.reached").exists)
    restoring = workers.start("restore", folder, points=f"restore recorded=pause({folder / 'restore'})", to="good")
    until((folder / "restore.reached").exists)
    (folder / "live").touch()
    assert live.wait() == 0
    (folder / "restore").touch()
    assert restoring.wait() == 0
    outcome, overtaken = restoring.report()[""][""]
    assert outcome == "incomplete"
    assert list(overtaken) == ["silver/orders"]
    assert list(overtaken["silver/orders"]) == [FIRST]
    rows = held_by(folder / "lake")
    told = expected({FIRST: [79, -80, 81]})
    assert rows["silver/orders"][FIRST] == told["silver/orders"][FIRST]
    assert rows["quarantine/orders"][FIRST] == told["quarantine/orders"][FIRST]
    assert rows["silver/orders"][THIRD] == expected(LOADED)["silver/orders"][THIRD]
    again = workers.start("restore", folder, to="good")
    assert again.wait() == 0
    assert again.report()[""][""] == [RECOVERED, {}]
    assert contents(folder / "lake") == case.good
