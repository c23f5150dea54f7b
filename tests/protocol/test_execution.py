"""A plan whose execution is killed goes on, when it is executed again, with the first slice that was not committed."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from medallion.execution import execute, remaining
from medallion.lake import Lake
from medallion.outcomes import Committed
from medallion.plan import Plan
from medallion.planning import plan
from medallion.project import Project
from tests.protocol.shop import DAY, DAYS, Shop, build, contents, expected, held_by, land, make_run
from tests.protocol.workers import Nursery

DELIVERED = {day: [number, -number - 1, number + 2] for number, day in enumerate(DAYS[:4], 1)}
TABLES = ("bronze/orders", "silver/orders", "gold/totals")
POINTS = (
    "pinned", "identified", "recorded", "transformed", "judged", "staged", "quarantine files written",
    "quarantine committed", "evidence written", "table files written", "table committed", "table log synced",
    "ledger written", "settled", "acknowledged",
)  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake in which the first day is live, four are delivered, and a plan for what is missing, a day a slice."""
    folder = tmp_path_factory.mktemp("base")
    for day, quantities in DELIVERED.items():
        land(folder / "landing", day, quantities)
    run = make_run(folder / "lake", folder / "landing")
    build(Shop(), DAYS[:1], run)
    made = plan(Project(Shop().tables), run.lake, run.landing, slice_bytes=1)
    assert {each.table: (each.keys, len(each.slices)) for each in made.tables} == dict.fromkeys(TABLES, (DAYS[1:4], 3))
    (folder / "plan.json").write_text(made.to_json())
    return folder


def commits_of(lake: Path) -> dict[str, Counter[str]]:
    """How often each partition of each table was committed."""
    opened = Lake(lake, durable=False)
    return {
        path: Counter(key for commit in opened.pin(path, DAY).commits(None) or [] for key in commit.batches)
        for path in TABLES
    }


def rows_of(lake: Path) -> dict[str, dict[str, list[tuple[Any, ...]]]]:
    """What the judged tables hold."""
    return {path: days for path, days in held_by(lake).items() if not path.startswith("bronze")}


def check(base: Path, folder: Path, workers: Nursery, point: str) -> None:
    shutil.copytree(base, folder)
    assert workers.start("execute", folder, points=f"{point}=kill").wait() == -9, point
    made = Plan.from_json((folder / "plan.json").read_text())
    project, run = Project(Shop().tables), make_run(folder / "lake", folder / "landing")
    before = commits_of(folder / "lake")
    left = remaining(made, project, run)
    for path in TABLES:  # whole slices were committed, from the first one on
        done = [key for key in DAYS[1:4] if key not in left[path]]
        assert done == list(DAYS[1:4][: len(done)])
        assert done == [key for key in DAYS[1:4] if before[path][key]]
    reports = execute(made, project, run)
    assert {report.name for report in reports} == {"COMPLETE"}
    for report in reports:
        written = [key for key, outcome in report.outcomes.items() if isinstance(outcome, Committed)]
        assert written == left[report.table], point
    assert commits_of(folder / "lake") == {path: Counter(DAYS[:4]) for path in TABLES}, point
    assert rows_of(folder / "lake") == expected(DELIVERED)
    shutil.rmtree(folder)


@pytest.mark.parametrize("point", POINTS)
def test_an_execution_killed_in_the_middle_is_resumed_without_repeats_or_losses(base, workers, tmp_path, point):
    nth = 2 if point.startswith("quarantine") else 4  # only silver has one
    check(base, tmp_path / "lake", workers, f"{point}:{nth}")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("point", POINTS)
def test_an_execution_killed_anywhere_is_resumed_without_repeats_or_losses(base, workers, tmp_path, point):
    reached = 9 if not point.startswith("quarantine") else 3
    for nth in range(1, reached + 1):
        check(base, tmp_path / str(nth), workers, f"{point}:{nth}")


def test_an_execution_that_is_killed_again_and_again_comes_to_its_end(base, workers, tmp_path):
    folder = tmp_path / "lake"
    shutil.copytree(base, folder)
    kills = 0
    while workers.start("execute", folder, points="table committed=kill").wait() == -9:
        kills += 1
    assert kills == 9  # one commit an execution: three slices of three tables
    assert commits_of(folder / "lake") == {path: Counter(DAYS[:4]) for path in TABLES}
    assert rows_of(folder / "lake") == expected(DELIVERED)
    run = make_run(tmp_path / "other", folder / "landing")
    build(Shop(), DAYS[:4], run)
    assert contents(folder / "lake") == contents(tmp_path / "other")
