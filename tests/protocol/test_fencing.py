"""Attempts that meet: the same batch twice, a stopped worker, a slice of which one partition is lost, two tables."""

import os
import signal
from pathlib import Path

import pytest

from medallion.errors import Superseded
from medallion.evidence import read_held
from medallion.failpoints import Interrupted, armed
from medallion.lake import Lake
from medallion.outcomes import Committed, Failed, Unchanged
from medallion.refine import refine
from tests.protocol.shop import DAY, DAYS, Shop, build, contents, expected, held_by, land, make_run
from tests.protocol.workers import Nursery, until

FIRST, SECOND, THIRD, *_ = DAYS
LOADED = {FIRST: [1, 2, -3], SECOND: [4, -5], THIRD: [6]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A landing zone with three days, and no lake yet."""
    for day, quantities in LOADED.items():
        land(tmp_path / "landing", day, quantities)
    return tmp_path


def _load(folder: Path, *keys: str, **more: object) -> Shop:
    shop = Shop()
    build(shop, keys or tuple(LOADED), make_run(folder / "lake", folder / "landing", **more))
    return shop


def _stop_at(workers: Nursery, folder: Path, point: str, name: str, operation: str = "build", **arguments: object):
    go = folder / name
    worker = workers.start(operation, folder, points=f"{point}=pause({go})", **arguments)
    until(go.with_name(go.name + ".reached").exists)
    return worker, go


def test_k8_the_same_batch_committed_by_two_processes_at_once_has_one_effect(folder, workers):
    _load(folder, SECOND)
    stopped = [_stop_at(workers, folder, "staged", f"go-{number}", keys=[FIRST]) for number in range(2)]
    for _, go in stopped:
        go.touch()
    assert [worker.wait() for worker, _ in stopped] == [0, 0]
    said = sorted(worker.report()["bronze/orders"][FIRST][0] for worker, _ in stopped)
    assert said in (["Committed", "Unchanged"], ["Committed", "Superseded"])
    assert Lake(folder / "lake").pin("bronze/orders", DAY).epoch(FIRST) == 1
    assert held_by(folder / "lake")["silver/orders"][FIRST] == [(1, 1), (2, 2)]


def test_k8_the_same_batch_resumed_after_the_other_finished_is_unchanged(folder, workers):
    _load(folder, SECOND)
    worker, go = _stop_at(workers, folder, "table files written", "go", keys=[FIRST])
    _load(folder, FIRST)
    before, versions = contents(folder / "lake"), _versions(folder)
    go.touch()
    assert worker.wait() == 0
    assert {outcome for days in worker.report().values() for outcome, _ in days.values()} == {"Unchanged"}
    assert contents(folder / "lake") == before
    assert _versions(folder) == versions


def _versions(folder: Path) -> dict[str, int | None]:
    lake = Lake(folder / "lake")
    return {path: lake.pin(path, DAY).version for path in ("bronze/orders", "silver/orders", "gold/totals")}


def test_k9_an_exception_right_after_the_commit_is_recorded_by_the_retry_which_writes_nothing(folder):
    shop = Shop()
    run = make_run(folder / "lake", folder / "landing")
    refine(shop.raw, [FIRST], run)
    with armed("table committed=raise"), pytest.raises(Interrupted):
        refine(shop.orders, [FIRST], run)
    version = Lake(folder / "lake").pin("silver/orders", DAY).version
    outcome = refine(shop.orders, [FIRST], run).outcomes[FIRST]
    assert isinstance(outcome, Unchanged)
    assert (outcome.recovery, outcome.version) == ("committed without acknowledgement", version)
    assert Lake(folder / "lake").pin("silver/orders", DAY).version == version
    assert refine(shop.orders, [FIRST], run).outcomes[FIRST].recovery is None  # once is enough


def test_k13_a_full_disk_after_the_files_and_before_the_commit_leaves_the_old_version(folder):
    shop = _load(folder)
    before = contents(folder / "lake")
    land(folder / "landing", FIRST, [7, 8])
    run = make_run(folder / "lake", folder / "landing")
    with armed("table files written=full"):
        outcome = refine(shop.raw, [FIRST], run).outcomes[FIRST]
    assert isinstance(outcome, Failed)
    assert "No space left on device" in str(outcome.error)
    assert contents(folder / "lake") == before
    assert isinstance(refine(shop.raw, [FIRST], run).outcomes[FIRST], Committed)


def test_a_full_disk_between_the_two_commits_puts_the_quarantine_back(folder):
    shop = _load(folder)
    before = contents(folder / "lake")
    land(folder / "landing", FIRST, [7, -8])
    run = make_run(folder / "lake", folder / "landing")
    refine(shop.raw, [FIRST], run)
    with armed("evidence written=full"):
        assert isinstance(refine(shop.orders, [FIRST], run).outcomes[FIRST], Failed)
    after = contents(folder / "lake")
    assert (after["silver/orders"], after["quarantine/orders"]) == (
        before["silver/orders"],
        before["quarantine/orders"],
    )


def test_a_worker_stopped_by_sigstop_and_replaced_commits_nothing_when_it_goes_on(folder, workers):
    _load(folder)
    land(folder / "landing", FIRST, [7])
    worker, go = _stop_at(workers, folder, "quarantine files written", "go", keys=[FIRST])
    os.kill(worker.pid, signal.SIGSTOP)
    go.touch()
    land(folder / "landing", FIRST, [8, -9])
    _load(folder, FIRST)
    stands = contents(folder / "lake")
    os.kill(worker.pid, signal.SIGCONT)
    assert worker.wait() == 0
    assert worker.report()["silver/orders"][FIRST][0] == "Superseded"
    assert contents(folder / "lake") == stands
    assert held_by(folder / "lake")["quarantine/orders"][FIRST] == [("2", "-9")]


def test_a_slice_of_which_one_partition_is_overtaken_commits_the_others_without_transforming_again(folder, workers):
    _load(folder)
    for day in LOADED:
        land(folder / "landing", day, [70, -80])
    refine(Shop().raw, list(LOADED), make_run(folder / "lake", folder / "landing"))
    trace = folder / "trace"
    go = folder / "go"
    worker = workers.start(
        "one table", folder, points=f"table files written=pause({go});any=trace({trace})", keys=list(LOADED)
    )
    until((folder / "go.reached").exists)
    land(folder / "landing", SECOND, [90])
    _load(folder, SECOND)
    go.touch()
    assert worker.wait() == 0
    said = {day: outcome for day, (outcome, _) in worker.report()["silver/orders"].items()}
    assert said == {FIRST: "Committed", SECOND: "Superseded", THIRD: "Committed"}
    assert trace.read_text().splitlines().count("transformed") == 1
    rows = held_by(folder / "lake")
    want = expected({FIRST: [70, -80], SECOND: [90], THIRD: [70, -80]})
    assert rows["silver/orders"] == want["silver/orders"]
    assert rows["quarantine/orders"] == want["quarantine/orders"]


@pytest.mark.parametrize("end", ["resumed", "killed"])
def test_two_attempts_between_their_two_commits_end_with_both_tables_telling_of_one_batch(folder, workers, end):
    """The one interleaving that no order of the two commits prevents: both have written the quarantine."""
    _load(folder)
    land(folder / "landing", FIRST, [10, -11])
    refine(Shop().raw, [FIRST], make_run(folder / "lake", folder / "landing"))
    early, early_go = _stop_at(workers, folder, "quarantine committed", "early", "one table", keys=[FIRST])
    land(folder / "landing", FIRST, [20, -21])
    refine(Shop().raw, [FIRST], make_run(folder / "lake", folder / "landing"))
    late, late_go = _stop_at(workers, folder, "quarantine committed", "late", "one table", keys=[FIRST])
    early_go.touch()
    assert early.wait() == 0
    assert early.report()["silver/orders"][FIRST][0] == "Committed"
    if end == "killed":
        assert late.kill() == -9
    else:
        late_go.touch()
        assert late.wait() == 0
        assert late.report()["silver/orders"][FIRST][0] == "Superseded"
    rows = held_by(folder / "lake")
    assert rows["silver/orders"][FIRST] == [(1, 10)]
    assert rows["quarantine/orders"][FIRST] == [("2", "-11")]


def test_a_death_between_the_two_commits_is_made_good_even_if_the_source_has_gone_back(folder, workers):
    _load(folder)
    before = contents(folder / "lake")
    land(folder / "landing", FIRST, [10, -11])
    refine(Shop().raw, [FIRST], make_run(folder / "lake", folder / "landing"))
    worker = workers.start("one table", folder, points="quarantine committed=kill", keys=[FIRST])
    assert worker.wait() == -9
    assert contents(folder / "lake")["quarantine/orders"] != before["quarantine/orders"]
    land(folder / "landing", FIRST, LOADED[FIRST])
    shop = _load(folder, FIRST)
    assert contents(folder / "lake") == before
    assert refine(shop.orders, [FIRST], make_run(folder / "lake", folder / "landing")).name == "COMPLETE"


def test_a_quarantined_row_names_its_batch_so_that_rows_of_a_batch_that_is_not_live_can_be_told(folder, workers):
    shop = _load(folder)
    land(folder / "landing", FIRST, [10, -11])
    refine(shop.raw, [FIRST], make_run(folder / "lake", folder / "landing"))
    assert workers.start("one table", folder, points="quarantine log synced=kill", keys=[FIRST]).wait() == -9
    lake = Lake(folder / "lake")
    live = lake.pin("silver/orders", DAY).batch_id(FIRST)
    rows = lake.pin("quarantine/orders", DAY).scan([FIRST], ["_batch_id"]).collect()
    assert live not in rows["_batch_id"].to_list()


def test_an_attempt_that_is_overtaken_holds_no_candidate(folder, workers):
    _load(folder)
    land(folder / "landing", FIRST, [5000])
    worker, go = _stop_at(workers, folder, "judged:2", "go", keys=[FIRST])
    land(folder / "landing", FIRST, [8])
    _load(folder, FIRST)
    go.touch()
    assert worker.wait() == 0
    assert worker.report()["silver/orders"][FIRST][0] == "Superseded"
    assert read_held(folder / "lake" / "silver/orders", FIRST) is None


def test_an_attempt_that_saw_no_table_does_not_overwrite_the_partition_that_was_made_with_it(folder, workers):
    worker, go = _stop_at(workers, folder, "pinned", "go", keys=[FIRST])
    _load(folder, FIRST)
    land(folder / "landing", FIRST, [9])
    _load(folder, FIRST)
    stands = contents(folder / "lake")
    land(folder / "landing", FIRST, LOADED[FIRST])
    go.touch()
    assert worker.wait() == 0
    assert worker.report()["bronze/orders"][FIRST][0] == "Superseded"
    assert contents(folder / "lake")["bronze/orders"] == stands["bronze/orders"]


def test_a_superseded_outcome_says_both_epochs_and_that_nothing_is_to_be_done():
    error = Superseded("silver/orders", FIRST, 1, 2)
    assert "started at epoch 1, the table is at 2" in str(error)
    assert "nothing to do" in str(error)
