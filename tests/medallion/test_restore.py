"""Restoring: what is made current again, what is left alone, what is refused beforehand, and what is said of it."""

import datetime as dt
import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from deltalake import DeltaTable
from polars.testing import assert_frame_equal

from medallion import ledger, savepoints
from medallion.errors import RestoreRefused, RestoreUnfinished, SavepointRefused
from medallion.failpoints import Interrupted, armed
from medallion.held import approve
from medallion.lake import Lake
from medallion.past_states import at_time, at_version, of_savepoint
from medallion.project import Project
from medallion.rebuilding import contradictions, rebuild
from medallion.refine import Run, refine
from medallion.restore import INCOMPLETE, RECOVERED, ROLLED_BACK, Restored, restore, resume
from medallion.restore_intents import open_intent, settled
from medallion.restore_plan import plan
from tests.builders import (
    DAYS,
    FIRST,
    LAST,
    SECOND,
    THIRD,
    Shop,
    evidence_of,
    land_orders,
    land_products,
    make_shop,
    names_of,
    order,
    orders_of,
    pin,
    pin_quarantine,
    refine_all,
)

Contents = Mapping[str, Mapping[str, str | None]]


@pytest.fixture
def project(shop: Shop) -> Project:
    return Project(shop.tables)


def contents(project: Project, lake: Lake) -> Contents:
    """The content digest of every partition of every table and quarantine."""
    paths = [(p, t.partition) for t in project.tables for p in (t.quarantine_path, t.path) if p is not None]
    pins = {path: lake.pin(path, cut) for path, cut in paths}
    return {path: {key: each.content(key) for key in each.files} for path, each in pins.items()}


def spoil(run: Run, shop: Shop) -> None:
    """Wrong orders for the second day, some of them refused, and a wrong catalogue; everything is built from them."""
    land_orders(run, SECOND, [order(91, 1, 900), order(92, 1, -5), order(93, 2, 800)])
    land_products(run, {1: "WRONG", 2: "DAIRY", 3: "FUEL"})
    refine_all(shop, run)


def test_a_restore_makes_every_table_and_quarantine_what_the_savepoint_says(built: Run, project, shop):
    good = contents(project, built.lake)
    savepoints.create(project, built.lake, "good")
    spoil(built, shop)
    assert contents(project, built.lake) != good
    told = restore(project, built.lake, of_savepoint(project, built.lake, "good"), reason="wrong orders")
    assert told.outcome == RECOVERED
    assert contents(project, built.lake) == good
    assert told.overtaken == {}
    assert told.differences == ()
    assert settled(built.lake)[-1]["outcome"] == RECOVERED
    assert open_intent(built.lake) is None


def test_only_partitions_that_differ_are_replaced_and_their_epochs_go_up_by_one(built: Run, project, shop):
    savepoints.create(project, built.lake, "good")
    land_orders(built, SECOND, [order(91)])
    refine_all(shop, built)
    before, epochs = names_of(shop.orders, built), pin(shop.orders, built).epochs(DAYS)
    restore(project, built.lake, of_savepoint(project, built.lake, "good"), reason="test")
    after = names_of(shop.orders, built)
    assert {day for day in DAYS if before[day] != after[day]} == {SECOND}
    assert pin(shop.orders, built).epochs(DAYS) == {**epochs, SECOND: epochs[SECOND] + 1}
    assert pin(shop.raw_products, built).epoch("all") == 1


def test_a_restore_writes_no_data_file_and_removes_none(built: Run, project, shop):
    savepoints.create(project, built.lake, "good")
    spoil(built, shop)
    layers = [Path(str(built.lake.root)) / layer for layer in ("bronze", "silver", "quarantine", "gold")]
    before = {path: path.stat().st_mtime_ns for layer in layers for path in layer.rglob("part-*.parquet")}
    restore(project, built.lake, of_savepoint(project, built.lake, "good"), reason="test")
    assert {path: path.stat().st_mtime_ns for layer in layers for path in layer.rglob("part-*.parquet")} == before


def test_a_partition_that_was_not_there_is_dropped_and_can_be_built_again(landed: Run, project, shop):
    refine_all(shop, landed, [FIRST])
    savepoints.create(project, landed.lake, "one-day")
    refine_all(shop, landed, [FIRST, SECOND])
    told = restore(project, landed.lake, of_savepoint(project, landed.lake, "one-day"), reason="test")
    assert (told.outcome, told.dropped["silver/orders"], told.replaced["silver/orders"]) == (RECOVERED, [SECOND], [])
    assert list(pin(shop.orders, landed).files) == [FIRST]
    assert pin(shop.orders, landed).epoch(SECOND) == 2
    report = refine_all(shop, landed, [FIRST, SECOND])["silver/orders"]
    assert [type(each).__name__ for each in report.outcomes.values()] == ["Unchanged", "Committed"]


def test_after_a_restore_replay_finds_nothing_to_do_if_the_sources_are_what_they_were(built: Run, project, shop):
    savepoints.create(project, built.lake, "good")
    spoil(built, shop)
    restore(project, built.lake, of_savepoint(project, built.lake, "good"), reason="test")
    land_orders(built, SECOND, orders_of(SECOND))
    land_products(built, {1: "BAKERY", 2: "DAIRY", 3: "FUEL"})
    outcomes = {type(each).__name__ for report in refine_all(shop, built).values() for each in report.outcomes.values()}
    assert outcomes == {"Unchanged"}


def test_the_quarantine_tells_of_the_batches_that_are_live_after_a_restore(landed: Run, project, shop):
    land_orders(landed, FIRST, [*orders_of(FIRST), order(8, quantity=-1)])
    refine_all(shop, landed)
    savepoints.create(project, landed.lake, "one-refused")
    land_orders(landed, FIRST, orders_of(FIRST))
    refine_all(shop, landed)
    assert FIRST not in pin_quarantine(shop.orders, landed).files
    restore(project, landed.lake, of_savepoint(project, landed.lake, "one-refused"), reason="test")
    live = evidence_of(shop.orders, landed, FIRST)
    assert pin_quarantine(shop.orders, landed).batch_id(FIRST) == live.batch_id
    assert live.verdict.quarantined == 1


def test_one_table_goes_back_to_a_version_with_its_quarantine_and_says_what_is_stale(landed: Run, project, shop):
    land_orders(landed, FIRST, [*orders_of(FIRST), order(8, quantity=-1)])
    refine_all(shop, landed)
    version = pin(shop.orders, landed).version
    assert version is not None
    refused = pin_quarantine(shop.orders, landed).content(FIRST)
    land_orders(landed, FIRST, [order(9)])
    refine_all(shop, landed)
    told = restore(project, landed.lake, at_version(project, landed.lake, "silver/orders", version), reason="test")
    assert told.outcome == RECOVERED
    assert pin_quarantine(shop.orders, landed).content(FIRST) == refused
    assert sorted(told.stale) == ["gold/daily", "gold/monthly", "silver/orders"]
    assert list(told.stale["gold/daily"]) == [FIRST]
    assert told.stale["silver/orders"][FIRST] == f"bronze/orders {FIRST} changed"


def test_all_tables_go_back_to_a_moment(built: Run, project, shop):
    good = contents(project, built.lake)
    time.sleep(0.01)
    moment = dt.datetime.now(dt.UTC)
    time.sleep(0.01)
    spoil(built, shop)
    told = restore(project, built.lake, at_time(project, built.lake, moment), reason="test")
    assert told.outcome == RECOVERED
    assert contents(project, built.lake) == good


def test_a_moment_before_a_table_was_made_empties_it(landed: Run, project, shop):
    refine(shop.raw_orders, DAYS, landed)
    time.sleep(0.01)
    moment = dt.datetime.now(dt.UTC)
    time.sleep(0.01)
    refine_all(shop, landed)
    told = restore(project, landed.lake, at_time(project, landed.lake, moment), reason="test")
    assert told.outcome == RECOVERED
    assert list(pin(shop.raw_orders, landed).files) == list(DAYS)
    assert not pin(shop.orders, landed).files


def test_a_moment_that_a_log_no_longer_reaches_is_refused(built: Run, project):
    table = Path(str(built.lake.root)) / "silver/orders"
    DeltaTable(table).create_checkpoint()
    (table / "_delta_log" / f"{0:020}.json").unlink()
    with pytest.raises(RestoreRefused, match="does not reach back so far"):
        at_time(project, built.lake, dt.datetime(2017, 1, 1, tzinfo=dt.UTC))


def test_a_moment_at_which_clocks_contradict_lineage_is_refused(built: Run, project, shop):
    log = Path(str(built.lake.root)) / "silver/orders/_delta_log"
    for entry in log.glob("*.json"):  # as if the host that wrote silver had its clock a year ahead
        text = entry.read_text()
        stamp = text.split('"timestamp":')[1].split(",")[0].split("}")[0]
        entry.write_text(text.replace(f'"timestamp":{stamp}', f'"timestamp":{int(stamp) + 365 * 86400 * 1000}'))
    with pytest.raises(RestoreRefused, match="which was not there yet"):
        at_time(project, Lake(built.lake.root, durable=False), dt.datetime.now(dt.UTC))


def test_a_file_that_is_gone_is_named_before_anything_is_changed(built: Run, project, shop):
    made = savepoints.create(project, built.lake, "good")
    spoil(built, shop)
    (file,) = made.tables["silver/orders"].files[SECOND]
    (Path(str(built.lake.root)) / "silver/orders" / file.path).unlink()
    before = contents(project, built.lake)
    goal = of_savepoint(project, built.lake, "good")
    assert plan(project, built.lake, goal).damaged == (f"silver/orders/{file.path} is gone",)
    with pytest.raises(RestoreRefused, match=f"{file.path} is gone") as caught:
        restore(project, built.lake, goal, reason="test")
    assert len(caught.value.missing) == 1
    assert contents(project, built.lake) == before
    assert open_intent(built.lake) is None


def test_a_file_that_was_altered_is_named_before_anything_is_changed(built: Run, project, shop):
    made = savepoints.create(project, built.lake, "good")
    spoil(built, shop)
    (file,) = made.tables["silver/orders"].files[SECOND]
    path = Path(str(built.lake.root)) / "silver/orders" / file.path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(RestoreRefused, match="was altered"):
        restore(project, built.lake, of_savepoint(project, built.lake, "good"), reason="test")


def test_a_savepoint_that_does_not_match_its_versions_is_named(built: Run, project, shop):
    savepoints.create(project, built.lake, "good")
    root = Path(str(built.lake.root))
    (root / "silver/orders").rename(root / "moved")  # made anew: the version is another one
    land_orders(built, FIRST, [order(9)])
    lake = Lake(root, durable=False)
    refine_all(shop, Run(lake, built.landing, started_at=built.started_at))
    with pytest.raises(SavepointRefused, match=r"do not match: version 1 of silver/orders"):
        of_savepoint(project, lake, "good")


def test_while_a_restore_is_open_nothing_is_refined_approved_or_saved(built: Run, project, shop):
    savepoints.create(project, built.lake, "good")
    spoil(built, shop)
    with armed("restore table done=raise"), pytest.raises(Interrupted):
        restore(project, built.lake, of_savepoint(project, built.lake, "good"), reason="test")
    for work in (
        lambda: refine(shop.orders, DAYS, built),
        lambda: approve(shop.orders, FIRST, built, reason="test"),
        lambda: savepoints.create(project, built.lake, "torn"),
    ):
        with pytest.raises(RestoreUnfinished, match="medallion restore --resume"):
            work()
    with pytest.raises(SavepointRefused, match="is needed by the restore 1"):
        savepoints.drop(built.lake, "good")


@pytest.mark.parametrize("rollback", [False, True], ids=["completed", "taken back"])
def test_an_interrupted_restore_is_completed_or_taken_back(built: Run, project, shop, rollback):
    good = contents(project, built.lake)
    savepoints.create(project, built.lake, "good")
    spoil(built, shop)
    bad = contents(project, built.lake)
    with armed("restore table done:3=raise"), pytest.raises(Interrupted):
        restore(project, built.lake, of_savepoint(project, built.lake, "good"), reason="test")
    assert contents(project, built.lake) not in (good, bad)
    told = resume(project, built.lake, rollback=rollback)
    assert told is not None
    assert told.outcome == (ROLLED_BACK if rollback else RECOVERED)
    assert contents(project, built.lake) == (bad if rollback else good)
    assert resume(project, built.lake) is None


def test_an_interrupted_restore_that_cannot_be_completed_any_more_is_taken_back(built: Run, project, shop):
    made = savepoints.create(project, built.lake, "good")
    spoil(built, shop)
    bad = contents(project, built.lake)
    with armed("restore table done:2=raise"), pytest.raises(Interrupted):
        restore(project, built.lake, of_savepoint(project, built.lake, "good"), reason="test")
    (file,) = made.tables["gold/daily"].files[SECOND]
    (Path(str(built.lake.root)) / "gold/daily" / file.path).unlink()
    told = resume(project, built.lake)
    assert told is not None
    assert told.outcome == ROLLED_BACK
    assert contents(project, built.lake) == bad


def test_a_restore_that_was_begun_to_be_taken_back_is_not_completed_by_the_next_one(built: Run, project, shop):
    savepoints.create(project, built.lake, "good")
    spoil(built, shop)
    bad = contents(project, built.lake)
    goal = of_savepoint(project, built.lake, "good")
    with armed("restore table done:3=raise"), pytest.raises(Interrupted):
        restore(project, built.lake, goal, reason="test")
    with armed("restore table done:1=raise"), pytest.raises(Interrupted):
        resume(project, built.lake, rollback=True)
    told = resume(project, built.lake)
    assert told is not None
    assert told.outcome == ROLLED_BACK
    assert contents(project, built.lake) == bad


def test_the_next_restore_completes_the_one_that_died(built: Run, project, shop):
    good = contents(project, built.lake)
    savepoints.create(project, built.lake, "good")
    spoil(built, shop)
    goal = of_savepoint(project, built.lake, "good")
    with armed("table committed:2=raise"), pytest.raises(Interrupted):
        restore(project, built.lake, goal, reason="test")
    told = restore(project, built.lake, goal, reason="again")
    assert [each["outcome"] for each in settled(built.lake)] == [RECOVERED, RECOVERED]
    assert (told.number, told.files) == (2, 0)
    assert contents(project, built.lake) == good


def test_a_full_disk_leaves_a_restore_that_the_same_process_can_resume(built: Run, project, shop):
    good = contents(project, built.lake)
    savepoints.create(project, built.lake, "good")
    spoil(built, shop)
    with armed("restore table done:2=full"), pytest.raises(OSError, match="No space left"):
        restore(project, built.lake, of_savepoint(project, built.lake, "good"), reason="test")
    intent = open_intent(built.lake)
    assert intent is not None
    assert not intent.is_running
    resume(project, built.lake)
    assert contents(project, built.lake) == good


def test_a_restore_can_itself_be_taken_back_by_its_automatic_savepoint(built: Run, project, shop):
    savepoints.create(project, built.lake, "good")
    spoil(built, shop)
    bad = contents(project, built.lake)
    told = restore(project, built.lake, of_savepoint(project, built.lake, "good"), reason="test")
    assert told.savepoint_before is not None
    again = restore(project, built.lake, of_savepoint(project, built.lake, told.savepoint_before), reason="undo")
    assert again.outcome == RECOVERED
    assert contents(project, built.lake) == bad


def test_an_attempt_from_before_a_restore_commits_nothing_after_it(built: Run, project, shop):
    savepoints.create(project, built.lake, "good")
    spoil(built, shop)
    good = of_savepoint(project, built.lake, "good")
    land_orders(built, SECOND, [order(777)])
    refine(shop.raw_orders, [SECOND], built)
    go = Path(str(built.lake.root)) / "go"

    reports = []
    thread = threading.Thread(target=lambda: reports.append(refine(shop.orders, [SECOND, THIRD], built)))
    with armed(f"table files written=pause({go})"):
        thread.start()
        while not go.with_name("go.reached").exists():
            time.sleep(0.002)
    told = restore(project, Lake(built.lake.root, durable=False), good, reason="test")
    after = contents(project, built.lake)
    go.touch()
    thread.join()
    assert told.outcome == RECOVERED
    assert type(reports[0].outcomes[SECOND]).__name__ == "Superseded"
    assert contents(project, built.lake) == after


def test_what_a_live_attempt_commits_during_a_restore_stays_and_the_restore_is_incomplete(built: Run, project, shop):
    savepoints.create(project, built.lake, "good")
    spoil(built, shop)
    good = of_savepoint(project, built.lake, "good")
    land_orders(built, SECOND, [order(777)])
    refine(shop.raw_orders, [SECOND], built)

    root = Path(str(built.lake.root))
    attempt, restoring = root / "attempt", root / "restoring"
    other = Lake(root, durable=False)
    threads = [
        threading.Thread(target=lambda: refine(shop.orders, [SECOND], built)),
        threading.Thread(target=lambda: told.append(restore(project, other, good, reason="test"))),
    ]
    told: list[Restored] = []
    with armed(f"staged=pause({attempt});restore recorded=pause({restoring})"):
        for thread, file in zip(threads, (attempt, restoring), strict=True):
            thread.start()
            while not file.with_name(f"{file.name}.reached").exists():
                time.sleep(0.002)
    attempt.touch()
    threads[0].join()
    live = pin(shop.orders, built).content(SECOND)
    restoring.touch()
    threads[1].join()
    assert told[0].outcome == INCOMPLETE
    assert list(told[0].overtaken["silver/orders"]) == [SECOND]
    assert pin(shop.orders, built).content(SECOND) == live
    assert pin_quarantine(shop.orders, built).batch_id(SECOND) is None
    again = restore(project, other, of_savepoint(project, other, "good"), reason="again")
    assert again.outcome == RECOVERED


def test_a_part_of_a_savepoint_is_restored_alone(built: Run, project, shop):
    savepoints.create(project, built.lake, "good")
    good = contents(project, built.lake)
    spoil(built, shop)
    bad = contents(project, built.lake)
    goal = of_savepoint(project, built.lake, "good", ["gold/daily"])
    told = restore(project, built.lake, goal, reason="test")
    after = contents(project, built.lake)
    assert after["gold/daily"] == good["gold/daily"]
    assert after["silver/orders"] == bad["silver/orders"]
    assert "gold/trailing" in told.stale


def test_a_dry_run_changes_nothing_and_says_what_would_happen(built: Run, project, shop):
    savepoints.create(project, built.lake, "good")
    spoil(built, shop)
    root = Path(str(built.lake.root))
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    planned = plan(project, built.lake, of_savepoint(project, built.lake, "good"))
    assert planned.replaced["silver/orders"] == [SECOND]
    assert planned.replaced["bronze/products"] == ["all"]
    assert planned.dropped == {}
    assert planned.damaged == ()
    assert planned.stale == {}
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def test_after_a_restore_the_wrong_revision_may_run_again_and_a_higher_one_is_the_fix(built: Run, project, shop):
    savepoints.create(project, built.lake, "good")
    second, third = make_shop(revision=2), make_shop(revision=3)
    refine(second.orders, DAYS, built)
    assert refine(shop.orders, [FIRST], built).name == "FAILED"  # the guard: revision 2 is live
    restore(project, built.lake, of_savepoint(project, built.lake, "good"), reason="revision 2 was wrong")
    assert evidence_of(shop.orders, built, FIRST).revision == 1
    assert refine(second.orders, [LAST], built).name == "COMPLETE"
    assert refine(third.orders, DAYS, built).name == "COMPLETE"
    assert refine(second.orders, [LAST], built).name == "FAILED"


def test_a_restore_completes_when_the_clock_of_the_decision_is_given(built: Run, project, shop):
    savepoints.create(project, built.lake, "good")
    spoil(built, shop)
    decided = dt.datetime.now(dt.UTC) - dt.timedelta(minutes=10)
    told = restore(project, built.lake, of_savepoint(project, built.lake, "good"), reason="test", decided_at=decided)
    assert 600 < told.seconds < 700
    made = savepoints.read(built.lake, "good")
    assert told.given_up == (decided - made.moment).total_seconds()
    assert told.to_replay == {"bronze/products": ["all"], "bronze/orders": [SECOND]}


def test_the_ledger_tells_of_restored_partitions_and_of_the_recovery_and_agrees_with_the_tables(
    built: Run, project, shop
):
    savepoints.create(project, built.lake, "good")
    spoil(built, shop)
    told = restore(project, built.lake, of_savepoint(project, built.lake, "good"), reason="wrong orders")
    rows = ledger.read(built.lake)
    silver = rows.filter(pipeline_name="silver/orders")
    (restored,) = silver.filter(status="restored").to_dicts()
    assert (restored["partition"], restored["reason"], restored["attempt"]) == (SECOND, "wrong orders", told.id)
    assert restored["batch_id"] == pin(shop.orders, built).batch_id(SECOND)
    (recovery,) = silver.filter(status="recovered").to_dicts()
    assert (recovery["recovery_scope"], recovery["replay_volume"]) == (SECOND, 3)
    assert recovery["rto_observed"] == told.seconds
    assert recovery["reconciliation_status"] == "reconciled"
    assert contradictions(built.lake, project) == []


def test_a_ledger_that_was_deleted_is_rebuilt_with_its_restores(built: Run, project, shop):
    savepoints.create(project, built.lake, "good")
    spoil(built, shop)
    restore(project, built.lake, of_savepoint(project, built.lake, "good"), reason="wrong orders")
    before = ledger.read(built.lake, ["restored", "recovered"]).sort("pipeline_name", "status")
    shutil.rmtree(Path(str(built.lake.root)) / "ops")
    rebuild(built.lake, project)
    after = ledger.read(built.lake, ["restored", "recovered"]).sort("pipeline_name", "status")
    assert_frame_equal(before, after)
    assert before.height > 0


def test_a_restore_that_verification_does_not_confirm_is_not_called_recovered(built: Run, project, shop):
    savepoints.create(project, built.lake, "good")
    spoil(built, shop)
    (file,) = pin(shop.orders, built).files[FIRST]  # not to be replaced, and altered at rest
    path = Path(str(built.lake.root)) / "silver/orders" / file.path
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    told = restore(project, built.lake, of_savepoint(project, built.lake, "good"), reason="test")
    assert told.outcome == INCOMPLETE
    assert any(file.path in each or FIRST in each for each in told.differences)


def test_a_batch_that_is_made_again_after_another_one_contradicts_no_row_of_its_first_attempt(
    built: Run, project, shop
):
    spoil(built, shop)
    land_orders(built, SECOND, orders_of(SECOND))
    land_products(built, {1: "BAKERY", 2: "DAIRY", 3: "FUEL"})
    refine_all(shop, built)  # the source took its correction back: the same batches, from later versions
    assert contradictions(built.lake, project) == []


def test_a_partition_that_arrives_during_a_restore_stays_and_is_named(landed: Run, project, shop):
    refine_all(shop, landed, [FIRST, SECOND])
    savepoints.create(project, landed.lake, "two-days")
    land_orders(landed, FIRST, [order(70)])
    refine_all(shop, landed, [FIRST])
    refine(shop.raw_orders, [THIRD], landed)
    goal = of_savepoint(project, landed.lake, "two-days")
    root = Path(str(landed.lake.root))
    attempt, restoring = root / "attempt", root / "restoring"
    other = Lake(root, durable=False)
    told: list[Restored] = []
    threads = [
        threading.Thread(target=lambda: refine(shop.orders, [THIRD], landed)),
        threading.Thread(target=lambda: told.append(restore(project, other, goal, reason="test"))),
    ]
    with armed(f"staged=pause({attempt});restore recorded=pause({restoring})"):
        for thread, file in zip(threads, (attempt, restoring), strict=True):
            thread.start()
            while not file.with_name(f"{file.name}.reached").exists():
                time.sleep(0.002)
    for thread, file in zip(threads, (attempt, restoring), strict=True):
        file.touch()
        thread.join()
    assert told[0].outcome == INCOMPLETE
    assert any(each.startswith(f"silver/orders {THIRD} holds") for each in told[0].differences)
    assert THIRD in pin(shop.orders, landed).files
