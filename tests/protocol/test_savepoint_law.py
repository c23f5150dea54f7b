"""Every savepoint, taken at any moment of any history with several writers, is closed under lineage and not torn."""

import shutil
import tempfile
import threading
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from medallion import savepoints
from medallion.cut import take_cut, unclosed
from medallion.errors import SavepointRefused
from medallion.evidence import EvidenceReader
from medallion.failpoints import Interrupted, armed
from medallion.lake import Lake
from medallion.past_states import of_savepoint
from medallion.project import Project
from medallion.publication import disagreeing
from medallion.refine import Run, refine
from medallion.restore import RECOVERED, restore
from medallion.saved_state import Savepoint, content_of
from tests.protocol.shop import DAY, DAYS, TABLES, Shop, build, contents, expected, held_by, land, make_run
from tests.protocol.workers import until

SOME = DAYS[:3]
SHOP = Shop()
PROJECT = Project(SHOP.tables)
_BETWEEN = ["quarantine files written", "quarantine committed", "evidence written", "table committed", "settled"]


def check(lake: Lake, savepoint: Savepoint) -> None:
    """The law, told from the versions and the evidence alone."""
    snapshots = {path: savepoint.snapshot(lake, path, DAY) for path in TABLES}
    assert unclosed(PROJECT, snapshots) == []
    for table in SHOP.tables:
        target = snapshots[table.path]
        evidence_of = EvidenceReader(target.folder)
        for key in target.files:
            evidence = evidence_of(target.batch_id(key) or "")
            assert evidence is not None
            for read in evidence.inputs.values():
                inside = snapshots[read["table"]]
                assert inside.version is not None
                assert read["version"] <= inside.version, f"{table.path} {key} depends on what the cut does not hold"
                then = lake.pin(read["table"], DAY, read["version"])
                assert {each: then.content(each) for each in read["partitions"]} == read["partitions"]
                moved = any(inside.content(each) != content for each, content in read["partitions"].items())
                assert moved == (key in savepoint.stale.get(table.path, {})), f"{table.path} {key}"
    silver, quarantine = snapshots["silver/orders"], snapshots["quarantine/orders"]
    keys = {**silver.files, **quarantine.files}
    assert not disagreeing(quarantine, silver, keys, EvidenceReader(silver.folder)), "a torn pair"


class _Writers:
    """Some threads that deliver and build, until they have done their share."""

    def __init__(self, folder: Path, shares: list[list[tuple[str, list[int]]]]) -> None:
        self.folder, self.errors = folder, list[BaseException]()
        self.numbers = count(1)
        self.threads = [threading.Thread(target=self._work, args=(share,)) for share in shares]

    def _work(self, share: list[tuple[str, list[int]]]) -> None:
        try:
            run = make_run(self.folder / "lake", self.folder / "landing", slice_bytes=1)
            for day, quantities in share:
                land(self.folder / "landing", day, [100 + next(self.numbers), *quantities])
                build(SHOP, [day], run)
        except BaseException as error:  # noqa: BLE001 - looked at when the thread is joined
            self.errors.append(error)

    @property
    def busy(self) -> bool:
        return any(thread.is_alive() for thread in self.threads)


work = st.lists(
    st.tuples(st.sampled_from(SOME), st.lists(st.sampled_from([-5, 2, 7]), max_size=2)), min_size=1, max_size=4
)


def _law(shares: list[list[tuple[str, list[int]]]], crash: str | None) -> None:
    folder = Path(tempfile.mkdtemp(prefix="savepoint-"))
    try:
        for day in SOME:
            land(folder / "landing", day, [3, -1])
        build(SHOP, SOME, make_run(folder / "lake", folder / "landing"))
        if crash is not None:  # somebody has died between two commits; nobody has followed him
            land(folder / "landing", SOME[0], [50, -51])
            with armed(f"{crash}:1=raise"), suppress(Interrupted):
                build(SHOP, [SOME[0]], make_run(folder / "lake", folder / "landing"))
        writers = _Writers(folder, shares)
        lake = Lake(folder / "lake", durable=False)
        made: list[Savepoint] = []
        for thread in writers.threads:
            thread.start()
        while writers.busy or len(made) < 2:
            with suppress(SavepointRefused):  # of two that are very busy a pair need not come to rest
                made.append(savepoints.create(PROJECT, lake, f"number-{len(made)}"))
        for thread in writers.threads:
            thread.join()
        assert not writers.errors, writers.errors
        for each in made:
            check(lake, each)
        told = restore(PROJECT, lake, of_savepoint(PROJECT, lake, made[0].name), reason="a test")
        assert told.outcome == RECOVERED, told.differences
        for path in TABLES:
            assert content_of(lake.pin(path, DAY).files) == made[0].tables[path].content
    finally:
        shutil.rmtree(folder, ignore_errors=True)


_SETTINGS = settings(deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)


@settings(_SETTINGS, max_examples=4)
@given(shares=st.lists(work, min_size=1, max_size=3), crash=st.sampled_from([None, *_BETWEEN]))
def test_every_savepoint_of_a_history_with_concurrent_writers_is_closed_under_lineage(shares, crash):
    _law(shares, crash)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@settings(_SETTINGS, max_examples=80)
@given(shares=st.lists(work, min_size=2, max_size=4), crash=st.sampled_from([None, *_BETWEEN]))
def test_every_savepoint_of_many_histories_with_concurrent_writers_is_closed_under_lineage(shares, crash):
    _law(shares, crash)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    for day in SOME:
        land(tmp_path / "landing", day, [3, -1])
    made = make_run(tmp_path / "lake", tmp_path / "landing")
    build(SHOP, SOME, made)
    return made


def _paused(folder: Path, run: Run, point: str) -> tuple[threading.Thread, Path]:
    go = folder / "go"
    thread = threading.Thread(target=lambda: refine(SHOP.orders, [SOME[0]], run))
    with armed(f"{point}=pause({go})"):
        thread.start()
        until((folder / "go.reached").exists)
    return thread, go


@pytest.mark.parametrize("point", ["quarantine committed", "evidence written", "table files written"])
def test_a_savepoint_taken_between_the_two_commits_of_a_writer_is_not_torn_and_the_writer_still_ends_well(
    run, tmp_path, point
):
    land(tmp_path / "landing", SOME[0], [9, -8, -7])
    refine(SHOP.raw, [SOME[0]], run)
    thread, go = _paused(tmp_path, run, point)
    lake = Lake(tmp_path / "lake", durable=False)
    savepoint = savepoints.create(PROJECT, lake, "between")
    check(lake, savepoint)
    go.touch()
    thread.join()
    told = expected({SOME[0]: [9, -8, -7]})
    rows = held_by(tmp_path / "lake")
    for path in ("silver/orders", "quarantine/orders"):
        assert rows[path][SOME[0]] == told[path][SOME[0]]
    check(lake, savepoints.create(PROJECT, lake, "after"))


def test_pinning_in_the_order_of_lineage_would_not_be_closed(run, tmp_path):
    """The law has teeth: the other order lets a writer in between make a cut that is not closed."""
    before = {path: run.lake.pin(path, DAY) for path in ("bronze/orders", "quarantine/orders", "silver/orders")}
    land(tmp_path / "landing", SOME[0], [50])
    build(SHOP, [SOME[0]], run)
    assert unclosed(PROJECT, {**before, "gold/totals": run.lake.pin("gold/totals", DAY)})
    assert unclosed(PROJECT, take_cut(PROJECT, run.lake).snapshots) == []


def test_a_cut_of_a_lake_in_which_a_writer_died_between_its_two_commits_puts_the_quarantine_right(run, tmp_path):
    land(tmp_path / "landing", SOME[0], [9, -8, -7])
    refine(SHOP.raw, [SOME[0]], run)
    before = contents(tmp_path / "lake")
    with armed("quarantine committed=raise"), suppress(Interrupted):
        refine(SHOP.orders, [SOME[0]], run)
    assert contents(tmp_path / "lake")["quarantine/orders"] != before["quarantine/orders"]
    savepoints.create(PROJECT, run.lake, "after-a-death")
    assert contents(tmp_path / "lake")["quarantine/orders"] == before["quarantine/orders"]
