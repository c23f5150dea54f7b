"""Whatever has happened to a lake: what vacuum announced to keep can be read as it was, and the rest is refused."""

import datetime as dt
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from medallion.errors import NotRecoverable
from medallion.fsck import check_lake
from medallion.horizon import DEFAULT
from medallion.lake import Lake
from medallion.log import list_log, read_entry
from medallion.project import Project
from medallion.savepoints import create
from medallion.strays import find_strays, remove_strays
from medallion.vacuum import plan_vacuum, vacuum
from tests.protocol.shop import DAY, DAYS, TABLES, Shop, build, contents, held_by, land, make_run
from tests.protocol.workers import Nursery, until

FIRST, SECOND, THIRD, *_ = DAYS
SHOP = Shop()
PROJECT = Project(SHOP.tables)

History = list[tuple[str, list[int], bool]]
"""Deliveries in turn: of which day, the quantities, and whether a savepoint was made after it."""

_delivery = st.tuples(
    st.sampled_from([FIRST, SECOND]), st.lists(st.integers(-3, 9), min_size=1, max_size=3), st.booleans()
)


def _states(lake: Lake) -> dict[tuple[str, int], dict[str, str | None]]:
    """What every version of every table holds, as far as the log leads to it."""
    found = {}
    for table in TABLES:
        for version in list_log(lake.root / table / "_delta_log").readable():
            snapshot = lake.open(table, version)
            assert all((snapshot.folder / file.path).is_file() for files in snapshot.files.values() for file in files)
            found[table, version] = {key: snapshot.content(key) for key in snapshot.files}
    return found


def _committed(lake: Lake) -> dt.datetime:
    """The moment of the newest commit, as the log tells it. Every later commit tells of a later moment."""
    logs = [list_log(lake.root / table / "_delta_log").entries for table in TABLES]  # empty before the first commit
    newest = max(read_entry(entries[max(entries)]).at for entries in logs if entries)
    while time.time_ns() // 1_000_000 <= newest:  # commits tell milliseconds; two of one moment cannot be told apart
        time.sleep(0.0005)
    return dt.datetime.fromtimestamp(newest / 1000, dt.UTC)


def _law(history: History, when: int, again: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "landing").mkdir()
        run = make_run(folder / "lake", folder / "landing")
        moments, current, saved = [], [], set()
        judged: dict[str, tuple[str, int]] = {}
        for number, (day, quantities, save) in enumerate(history):
            land(folder / "landing", day, quantities)
            build(SHOP, [day], run)
            if save:
                held = create(PROJECT, run.lake, f"after-{number}")
                saved |= {(path, each.version) for path, each in held.tables.items() if each.version is not None}
            moments.append(_committed(run.lake))
            current.append({table: run.lake.pin(table, DAY).version or 0 for table in TABLES})
            judged.pop(day, None)
            if max(quantities) < 0:  # all are refused: silver blocks, and its candidate was made of this bronze
                judged[day] = ("bronze/orders", current[-1]["bronze/orders"])
        before = _states(run.lake)
        last = min(when, len(history) - 1)
        oldest = current[last]
        for _ in range(1 + again):
            vacuum(run.lake, plan_vacuum(run.lake, moments[last] + DEFAULT))
        kept = {(table, version) for table, version in before if version >= oldest[table]} | saved | {*judged.values()}
        fresh = Lake(folder / "lake", durable=False)
        after = _states(fresh)
        assert after == {state: before[state] for state in kept}
        for table, version in before.keys() - kept:
            with pytest.raises(NotRecoverable, match="older than the recovery horizon"):
                fresh.open(table, version)
        remove_strays(fresh, find_strays(fresh, older_than=0), older_than=0)
        assert _states(fresh) == after
        assert check_lake(fresh, PROJECT) == []


_A_BLOCKED_DAY = [(FIRST, [0, 0], False), (SECOND, [-1], False), (FIRST, [0], False)]
_BLOCKED_AGAIN = [(SECOND, [-1], False), (FIRST, [4], True), (SECOND, [-1], False), (FIRST, [5], False)]
_BLOCKED_NO_MORE = [(SECOND, [-1], False), (SECOND, [2, -1], False), (SECOND, [3], False)]


@settings(max_examples=2, deadline=None)
@given(history=st.lists(_delivery, min_size=2, max_size=4), when=st.integers(0, 3), again=st.booleans())
@example(history=_A_BLOCKED_DAY, when=2, again=False)
@example(history=_BLOCKED_AGAIN, when=3, again=True)
@example(history=_BLOCKED_NO_MORE, when=2, again=False)
def test_vacuum_keeps_what_horizon_savepoints_and_blocked_candidates_ask_for_and_nothing_else_is_readable(
    history, when, again
):
    _law(history, when, again)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@settings(max_examples=40, deadline=None)
@given(history=st.lists(_delivery, min_size=2, max_size=7), when=st.integers(0, 6), again=st.booleans())
def test_vacuum_keeps_of_many_histories_what_they_ask_for_and_nothing_else_is_readable(history, when, again):
    _law(history, when, again)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A lake in which one day was delivered three times, with a savepoint of the second."""
    for number, quantities in enumerate(([1, -2], [3, -4], [5, -6])):
        land(tmp_path / "landing", FIRST, quantities)
        land(tmp_path / "landing", SECOND, [5])
        run = make_run(tmp_path / "lake", tmp_path / "landing")
        build(Shop(), [FIRST, SECOND], run)
        if number == 1:
            create(PROJECT, run.lake, "second")
    return tmp_path


@pytest.mark.parametrize("point", ["vacuum checkpoints written", "vacuum recorded", "vacuum entries taken"])
def test_a_vacuum_killed_anywhere_has_kept_what_it_announced_and_the_next_ends_it(
    folder: Path, workers: Nursery, point
):
    lake = Lake(folder / "lake", durable=False)
    now = dt.datetime.now(dt.UTC) + dt.timedelta(days=31)
    planned = [each for each in plan_vacuum(lake, now).tables if each.table in TABLES]
    kept = {(each.table, version) for each in planned for version in (each.oldest, *each.held)}
    before = _states(lake)
    assert workers.start("vacuum", folder, points=f"{point}=kill").wait() == -9
    fresh = Lake(folder / "lake", durable=False)
    for table, version in kept:
        snapshot = fresh.open(table, version)
        assert {key: snapshot.content(key) for key in snapshot.files} == before[table, version]
    assert workers.start("vacuum", folder).wait() == 0
    remove_strays(fresh, find_strays(fresh, older_than=0), older_than=0)
    assert _states(Lake(folder / "lake")) == {state: before[state] for state in kept}
    left = {path.name for path in (folder / "lake").rglob("part-*.parquet") if "ops" not in path.parts}
    opened = [fresh.open(table, version) for table, version in kept if table in TABLES]
    assert left == {Path(file.path).name for each in opened for some in each.files.values() for file in some}


@pytest.mark.parametrize("point", ["table files written", "quarantine files written", "evidence written"])
def test_an_attempt_that_is_under_way_commits_what_vacuum_has_left_alone(folder: Path, workers: Nursery, point):
    """Its files are those of an old delivery, which the log still names and nobody else needs."""
    land(folder / "landing", FIRST, [1, -2])  # as the first time
    attempt = workers.start("build", folder, points=f"{point}:1=pause({folder / 'go'})", keys=[FIRST])
    until((folder / "go.reached").exists)
    assert workers.start("vacuum", folder).wait() == 0
    (folder / "go").touch()
    assert attempt.wait() == 0
    assert held_by(folder / "lake")["silver/orders"][FIRST] == [(1, 1)]
    assert held_by(folder / "lake")["quarantine/orders"][FIRST] == [("2", "-2")]
    assert check_lake(Lake(folder / "lake"), PROJECT) == []
    assert contents(folder / "lake")["gold/totals"][FIRST] is not None
