"""What can be returned to, for how long, who holds it longer, and what is said before it goes."""

import datetime as dt
import json
import os
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from medallion.cli import cli
from medallion.digests import digest
from medallion.errors import ConfigurationError, Irrecoverable, NotRecoverable, SavepointRefused, StorageFailed
from medallion.evidence import EvidenceReader
from medallion.gaps import close_gap, find_gaps, irrecoverable, record_gap
from medallion.horizon import DEFAULT, parse_duration, read_horizon, shown_duration
from medallion.lake import Lake
from medallion.log import list_log
from medallion.outcomes import Blocked, Committed, Failed, Unchanged
from medallion.past_states import of_savepoint
from medallion.project import Project
from medallion.publication import reconcile
from medallion.recoverable import last_vacuum, ranges
from medallion.refine import Run, refine
from medallion.restore import RECOVERED, restore
from medallion.retention import set_horizon
from medallion.savepoints import create
from medallion.store import relative, tables
from medallion.strays import find_strays, remove_strays
from medallion.vacuum import plan_vacuum, vacuum
from medallion.watch import horizon_report
from tests.builders import (
    DAYS,
    FIRST,
    LAST,
    SECOND,
    Shop,
    land_everything,
    land_orders,
    land_products,
    make_run,
    make_shop,
    order,
    orders_of,
    refine_all,
    rows_of,
)

MUCH_LATER = dt.timedelta(days=31)


def later(by: dt.timedelta = MUCH_LATER) -> dt.datetime:
    """So long after now that nothing that is there now is within the horizon, unless it is still current then."""
    return dt.datetime.now(dt.UTC) + by


def names(lake: Lake) -> list[str]:
    """The tables, without the ledger: that one only tells of them, and of every call."""
    found = [str(relative(folder, lake.root)) for folder in tables(lake.root)]
    return [each for each in found if not each.startswith("ops/")]


def digest_at(lake: Lake, table: str, version: int | None = None) -> str:
    """Names all rows of a table at a version, read from its files."""
    snapshot = lake.open(table, version)
    rows = snapshot.scan(list(snapshot.files)).collect()
    return digest(sorted(map(repr, rows.select(sorted(rows.columns)).iter_rows())))


def save(shop: Shop, lake: Lake, name: str) -> dict[str, int]:
    """A savepoint of everything as it is now; the version of every table."""
    made = create(Project(shop.tables), lake, name)
    return {table: saved.version or 0 for table, saved in made.tables.items() if saved.version is not None}


def correct(shop: Shop, run: Run, day: str, price: str) -> None:
    """A delivery of other prices, refined through all tables."""
    land_orders(run, day, [{**row, "price": price} for row in orders_of(day)] + [order(900, 99)])
    refine_all(shop, run)


@pytest.fixture
def aged(built: Run, shop: Shop) -> Run:
    """A lake in which the first day was delivered four times."""
    for price in ("3", "4", "5"):
        correct(shop, built, FIRST, price)
    return built


def test_savepoints_read_alike_after_a_vacuum_past_the_horizon_and_other_versions_are_refused_with_the_reason(
    built, shop
):
    lake = built.lake
    correct(shop, built, FIRST, "3")
    pinned = save(shop, lake, "before-the-release")
    before = {table: digest_at(lake, table, version) for table, version in pinned.items()}
    for price in ("4", "5"):
        correct(shop, built, FIRST, price)
    newest = {table: digest_at(lake, table) for table in pinned}
    now = later()
    plan = plan_vacuum(lake, now)
    orders = next(each for each in plan.tables if each.table == "silver/orders")
    assert orders.held == {pinned["silver/orders"]: ("savepoint before-the-release",)}
    assert orders.partitions == {FIRST: 2}
    unpinned = orders.versions
    assert pinned["silver/orders"] not in unpinned
    assert {pinned["silver/orders"] - 1, pinned["silver/orders"] + 1} <= set(unpinned)

    done = vacuum(lake, plan)

    assert len(done.files) == sum(len(each.files) for each in plan.tables) > 0
    fresh = Lake(lake.root)
    assert {table: digest_at(fresh, table, version) for table, version in pinned.items()} == before
    assert {table: digest_at(fresh, table) for table in pinned} == newest
    for version in unpinned:
        for refused in (
            lambda v: fresh.open("silver/orders", v),
            lambda v: fresh.pin("silver/orders", shop.orders.partition, v),
        ):
            with pytest.raises(NotRecoverable, match="older than the recovery horizon of 30d") as told:
                refused(version)
            there = ranges([pinned["silver/orders"], orders.latest])
            assert f"Recoverable are {there}" in str(told.value)
    with pytest.raises(NotRecoverable, match="there is no such version"):
        fresh.open("silver/orders", orders.latest + 1)


def test_after_vacuum_the_lake_returns_to_a_savepoint_and_to_nothing_else(built, shop, folder):
    project = Project(shop.tables)
    save(shop, built.lake, "good")
    want = {table: digest_at(built.lake, table) for table in names(built.lake)}
    for price in ("3", "4"):
        correct(shop, built, FIRST, price)
    vacuum(built.lake, plan_vacuum(built.lake, later()))
    stands = {table: digest_at(built.lake, table) for table in want}
    words = ["--lake", str(built.lake.root), "restore", "--table", "silver/orders", "--to-version", "2"]
    refused = CliRunner().invoke(cli, words)
    assert isinstance(refused.exception, NotRecoverable)
    assert "older than the recovery horizon of 30d" in str(refused.exception)
    assert {table: digest_at(built.lake, table) for table in want} == stands
    done = restore(project, built.lake, of_savepoint(project, built.lake, "good"), reason="a test")
    assert done.outcome == RECOVERED, done.differences
    assert {table: digest_at(built.lake, table) for table in want} == want


def test_what_vacuum_announces_is_what_it_takes_and_it_keeps_a_record(aged):
    plan = plan_vacuum(aged.lake, later())
    done = vacuum(aged.lake, plan)
    assert set(done.files) == {f"{each.table}/{path}" for each in plan.tables for path in each.files}
    assert set(done.entries) == {f"{each.table}/_delta_log/{name}" for each in plan.tables for name in each.entries}
    assert not [name for name in (*done.files, *done.entries) if (aged.lake.root / name).exists()]
    assert last_vacuum(aged.lake.root) == json.loads(json.dumps(plan.to_dict()))
    again = plan_vacuum(aged.lake, later())
    assert not any(each.takes_something for each in again.tables)


def test_nothing_within_the_horizon_is_taken(aged):
    before = {
        table: {v: digest_at(aged.lake, table, v) for v in range(1, 3)} for table in ("bronze/orders", "gold/daily")
    }
    plan = plan_vacuum(aged.lake, later(dt.timedelta(days=29)))
    assert not any(each.takes_something for each in plan.tables)
    assert vacuum(aged.lake, plan).record == ""
    assert before == {table: {v: digest_at(aged.lake, table, v) for v in range(1, 3)} for table in before}


def test_everything_that_the_log_still_names_as_live_has_its_evidence_after_vacuum_and_clean(aged, shop):
    save(shop, aged.lake, "kept")
    correct(shop, aged, FIRST, "6")
    vacuum(aged.lake, plan_vacuum(aged.lake, later()))
    then = time.time() - 90 * 86400
    for path in Path(str(aged.lake.root)).rglob("*"):
        os.utime(path, (then, then))
    remove_strays(aged.lake, find_strays(aged.lake))
    for table in names(aged.lake):
        if table.startswith("quarantine/"):
            continue
        read = EvidenceReader(aged.lake.root / table)
        for version in list_log(aged.lake.root / table / "_delta_log").readable():
            snapshot = aged.lake.open(table, version)
            assert all(read(snapshot.batch_id(key) or "") is not None for key in snapshot.files)


def test_refused_rows_stay_as_long_as_their_batch_may_be_put_back(built, shop):
    """A blocked candidate holds a version of the table; the refused rows that belong to it are in another one."""
    large = 2**63 - 1
    land_orders(built, FIRST, [order(1, 1, large), order(2, 1, large), order(3, 99), order(4, 2)])
    reports = refine_all(shop, built)  # the sum of both is below zero, and gold refuses it
    assert isinstance(reports["gold/daily"].outcomes[FIRST], Blocked)
    version = built.lake.open("silver/orders").version
    refused = rows_of(built.lake.open("quarantine/orders"), FIRST)
    assert refused.height == 1
    land_orders(built, FIRST, [order(1, 1, large), order(2, 2)])  # nothing to refuse
    refine(shop.raw_orders, [FIRST], built)
    refine(shop.orders, [FIRST], built)
    assert built.lake.open("quarantine/orders").batch_id(FIRST) is None
    vacuum(built.lake, plan_vacuum(built.lake, later()))
    DeltaTable(str(built.lake.root / "silver/orders")).restore(version)
    assert reconcile(shop.orders, Lake(built.lake.root, durable=False), [FIRST], {"attempt": "test"}) == [FIRST]
    assert rows_of(built.lake.open("quarantine/orders"), FIRST).equals(refused)


def test_the_inputs_of_a_blocked_candidate_stay(built, shop):
    rows = [order(n, 99) for n in range(1, 9)] + [order(9, 1)]
    land_orders(built, SECOND, rows)
    reports = refine_all(shop, built)
    assert isinstance(reports["silver/orders"].outcomes[SECOND], Blocked)
    read = built.lake.open("bronze/orders").version
    land_orders(built, FIRST, [order(1, 2)])
    refine(shop.raw_orders, [FIRST], built)
    plan = plan_vacuum(built.lake, later())
    bronze = next(each for each in plan.tables if each.table == "bronze/orders")
    assert bronze.held == {read: (f"blocked candidate silver/orders {SECOND}",)}
    vacuum(built.lake, plan)
    assert rows_of(Lake(built.lake.root).open("bronze/orders", read), SECOND).height == 9


def test_what_a_running_attempt_may_read_stays(aged, shop):
    from medallion.attempts import attempting

    target = aged.lake.pin("gold/daily", shop.daily.partition)
    with attempting(target, "a" * 32, "run", [FIRST], [FIRST]):
        plan = plan_vacuum(aged.lake, later())
        assert "attempt " + "a" * 32 in plan.why
        correct(shop, aged, FIRST, "7")
        assert not any(
            each.partitions.get(FIRST)
            for each in plan_vacuum(aged.lake, later()).tables
            if each.table.startswith("gold/daily")
        )
    assert plan_vacuum(aged.lake, later()).why == ""


def test_the_bytes_of_sources_are_never_taken(aged):
    kept = {path.name for path in (aged.lake.root / "bronze/orders/_sources").iterdir()}
    plan = plan_vacuum(aged.lake, later())
    told = next(each for each in plan.tables if each.table == "bronze/orders").sources
    assert all(name.startswith(f"orders/{FIRST}.csv sha256 ") for name in told)
    vacuum(aged.lake, plan)
    assert {path.name for path in (aged.lake.root / "bronze/orders/_sources").iterdir()} == kept
    assert {name.rpartition(" ")[2] for name in told} <= kept


def test_a_file_that_was_written_again_meanwhile_stays(aged):
    plan = plan_vacuum(aged.lake, later())
    orders = next(each for each in plan.tables if each.table == "silver/orders")
    path = aged.lake.root / "silver/orders" / next(iter(orders.files))
    os.utime(path, (later().timestamp(), later().timestamp()))
    vacuum(aged.lake, plan)
    assert path.exists()


def test_a_savepoint_that_cannot_be_read_stops_vacuum(aged, shop):
    save(shop, aged.lake, "kept")
    (path,) = (aged.lake.root / "_savepoints").glob("*.json")
    path.write_text('{"versions": ')
    with pytest.raises(SavepointRefused, match="is damaged"):
        plan_vacuum(aged.lake, later())


def test_a_commit_after_the_log_was_cleaned_goes_on_as_if_nothing_had_been(aged, shop):
    vacuum(aged.lake, plan_vacuum(aged.lake, later()))
    for run in (aged, make_run(Path(str(aged.lake.root)).parent)):  # a handle from before, and a new one
        land_orders(
            run, FIRST, [order(1, 1), order(2, 2, 1 + len(list((aged.lake.root / "bronze/orders/_sources").iterdir())))]
        )
        outcomes = refine_all(shop, run)["silver/orders"].outcomes
        assert isinstance(outcomes[FIRST], Committed)
        assert {type(outcomes[day]) for day in DAYS[1:]} == {Unchanged}


def test_a_checkpoint_takes_no_entry_of_the_log_away(built, shop):
    """deltalake would, with the default properties: then no older savepoint could be read."""
    log = built.lake.root / "bronze/orders/_delta_log"
    then = time.time() - 90 * 86400
    for number in range(52):
        land_orders(built, FIRST, [order(1, 1, number + 1)])
        refine(shop.raw_orders, [FIRST], built)
        for path in log.iterdir():
            os.utime(path, (then, then))
    listing = list_log(log)
    assert listing.checkpoints
    assert listing.readable() == list(range(54))


@given(st.integers(24, 24 * 365))
def test_a_duration_is_read_as_it_is_shown(hours):
    assert parse_duration(shown_duration(dt.timedelta(hours=hours))) == dt.timedelta(hours=hours)


@pytest.mark.parametrize("text", ["", "30", "d", "-3d", "0d", "1.5d", "30 days", "23h", "9999999h"])
def test_what_is_no_horizon_is_refused(text):
    with pytest.raises(ConfigurationError):
        parse_duration(text)


def test_every_tables_retention_follows_from_the_horizon_now_and_for_tables_to_come(built, shop, tmp_path):
    assert read_horizon(built.lake.root) == DEFAULT
    changed = set_horizon(built.lake, parse_duration("60d"))
    assert sorted(changed) == sorted([*names(built.lake), "ops/ledger"])
    assert set_horizon(built.lake, parse_duration("60d")) == []
    empty = make_run(tmp_path / "other")
    set_horizon(empty.lake, parse_duration("60d"))
    land_products(empty, {1: "BAKERY"})
    refine(shop.raw_products, ["all"], empty)
    for lake in (built.lake, empty.lake):
        for table in names(lake):
            told = DeltaTable(str(lake.root / table)).metadata().configuration
            assert (
                told["delta.logRetentionDuration"]
                == told["delta.deletedFileRetentionDuration"]
                == "interval 1440 hours"
            )
            assert told["delta.enableExpiredLogCleanup"] == "false"
    land_orders(built, FIRST, [order(1, 1)])
    assert isinstance(refine_all(shop, built)["silver/orders"].outcomes[FIRST], Committed)


def test_a_lag_is_warned_of_before_the_horizon_crosses_it(built, shop):
    project = Project(shop.tables)
    land_orders(built, FIRST, [order(1, 2, 7)])
    refine(shop.raw_orders, [FIRST], built)  # silver is behind from here on
    reports = {
        days: horizon_report(project, built.lake, landing=built.landing, now=later(dt.timedelta(days=days)))
        for days in (1, 23, 25, 31)
    }
    assert [bool(each.warnings) for each in reports.values()] == [False, False, True, True]
    assert "silver/orders has not taken in bronze/orders 2017-01-30" in reports[25].warnings[0]
    assert "may be gone from" in reports[25].warnings[0]
    assert "with the next vacuum" in reports[31].warnings[0]
    refine_all(shop, built)
    assert not horizon_report(project, built.lake, landing=built.landing, now=later()).warnings


def test_a_delivery_that_nobody_takes_in_is_a_lag_of_bronze(run, shop):
    land_products(run, {1: "BAKERY"})
    refine_all(shop, run)
    path = land_orders(run, LAST, orders_of(LAST))
    os.utime(path, (time.time() - 28 * 86400,) * 2)
    land_orders(run, FIRST, orders_of(FIRST))
    refine(shop.raw_orders, [FIRST], run)
    report = horizon_report(Project(shop.tables), run.lake, landing=run.landing)
    orders = next(each for each in report.tables if each.table == "bronze/orders")
    assert orders.lag is not None
    assert shown_duration(orders.lag) == "28d"
    assert orders.waiting == f"the delivery of {LAST}"
    assert len(orders.warnings) == 1


def test_the_oldest_recoverable_source_position_is_told_for_every_layer(built, shop):
    report = {each.table: each for each in horizon_report(Project(shop.tables), built.lake).tables}
    assert report["bronze/orders"].source_position == report["gold/trailing"].source_position == FIRST
    assert report["gold/monthly"].source_position == "2017-01-01"
    told = next(iter(EvidenceReader(built.lake.root / "bronze/orders").all()))
    first = next(each for each in EvidenceReader(built.lake.root / "bronze/orders").all() if each.partition == FIRST)
    assert told.sources
    (built.lake.root / first.sources[0].kept).unlink()
    report = {each.table: each for each in horizon_report(Project(shop.tables), built.lake).tables}
    assert report["bronze/orders"].source_position == report["silver/orders"].source_position == SECOND
    assert report["bronze/orders"].sources_gone == (FIRST,)
    assert report["gold/trailing"].source_position == DAYS[3]  # whose window of three days lies after it
    assert report["gold/monthly"].source_position == "2017-02-01"


def test_a_gap_is_recorded_refused_and_only_closed_by_somebody(built, shop):
    record_gap(built.lake, "bronze/orders", FIRST, "the till of that day was wiped", "2017-03-01T00:00:00+00:00")
    land_orders(built, FIRST, [order(1, 1, 5)])  # today's data under that day's name
    outcome = refine(shop.raw_orders, [FIRST], built).outcomes[FIRST]
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, Irrecoverable)
    assert "the till of that day was wiped" in str(outcome.error)
    assert irrecoverable(built.lake, "bronze/orders") == {FIRST: "the till of that day was wiped"}
    with pytest.raises(ConfigurationError, match="without a reason"):
        close_gap(built.lake, "bronze/orders", FIRST, " ", "2017-03-02T00:00:00+00:00")
    close_gap(built.lake, "bronze/orders", FIRST, "a copy was found", "2017-03-02T00:00:00+00:00")
    assert isinstance(refine(shop.raw_orders, [FIRST], built).outcomes[FIRST], Committed)
    assert irrecoverable(built.lake, "bronze/orders") == {}


def test_a_lost_partition_whose_source_bytes_are_gone_everywhere_is_found_as_a_gap(built, shop):
    assert find_gaps(shop.raw_orders, built.lake, built.landing) == {}
    DeltaTable(str(built.lake.root / "bronze/orders")).delete(f"day = '{FIRST}'")
    assert find_gaps(shop.raw_orders, built.lake, built.landing) == {}  # the landing zone has it
    (built.landing.root / f"orders/{FIRST}.csv").unlink()
    assert find_gaps(shop.raw_orders, built.lake, built.landing) == {}  # the lake has kept its bytes
    first = next(each for each in EvidenceReader(built.lake.root / "bronze/orders").all() if each.partition == FIRST)
    (built.lake.root / first.sources[0].kept).unlink()
    ((key, reason),) = find_gaps(shop.raw_orders, built.lake, built.landing).items()
    assert key == FIRST
    assert first.sources[0].sha256 in reason


def test_the_command_announces_before_it_takes(aged, monkeypatch):
    monkeypatch.setattr("medallion.commands.retention._now", later)
    call = ["--lake", str(aged.lake.root)]
    told = CliRunner().invoke(cli, [*call, "vacuum"])
    assert told.exit_code == 0, told.output
    assert "stops being recoverable: versions" in told.output
    assert f"{FIRST} (3 earlier states)" in told.output
    assert "Nothing was taken" in told.output
    assert aged.lake.open("silver/orders", 1).version == 1
    done = CliRunner().invoke(cli, [*call, "vacuum", "--apply", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["taken"]["files"] > 0
    with pytest.raises(NotRecoverable):
        Lake(aged.lake.root).open("silver/orders", 1)


def test_a_table_that_does_not_take_its_properties_is_named(built):
    (built.lake.root / "gold/daily/_delta_log/00000000000000000001.json").write_text("{")
    with pytest.raises(StorageFailed, match="gold/daily"):
        set_horizon(Lake(built.lake.root), parse_duration("60d"))


def test_the_keys_of_gaps_may_not_leave_their_folder(built):
    from medallion.errors import UnknownPartition

    with pytest.raises(UnknownPartition):
        record_gap(built.lake, "bronze/orders", "../../x", "why", "2017-03-01T00:00:00+00:00")


def test_the_words_for_the_horizon_and_for_gaps(folder, monkeypatch):
    run = make_run(folder)
    land_everything(run)
    refine_all(make_shop(), run)

    def said(*words: str, status: int = 0) -> str:
        done = CliRunner().invoke(cli, list(words), env={"COLUMNS": "140"})
        assert done.exit_code == status, done.output
        return done.output

    assert "The recovery horizon is 60d" in said("retention", "set", "60d")
    assert read_horizon(run.lake.root) == dt.timedelta(days=60)
    assert "bronze/orders" in said("retention", "show")
    assert json.loads(said("retention", "show", "--json"))["horizon"] == "60d"
    monkeypatch.setattr("medallion.commands.retention._now", lambda: later(dt.timedelta(days=59)))
    land_orders(run, FIRST, [order(1, 1, 5)])
    refine(make_shop().raw_orders, [FIRST], run)
    assert "has not taken in bronze/orders 2017-01-30" in said("retention", "show", status=1).replace("\n", " ")
    gap = ("retention", "gap", "bronze/orders", FIRST, "--reason")
    assert "is recorded as an irrecoverable gap" in said(*gap, "the till was wiped")
    assert irrecoverable(run.lake, "bronze/orders") == {FIRST: "the till was wiped"}
    assert "is no gap any more" in said(*gap, "it was found", "--close")
    assert irrecoverable(run.lake, "bronze/orders") == {}
