"""What lies in the lake is plain Delta, and what a commit promises holds when several attempts meet."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandera.polars as pa
import polars as pl
import pytest
from deltalake import DeltaTable, write_deltalake
from polars.testing import assert_frame_equal

from medallion.errors import ConfigurationError, Superseded, TableUnreadable
from medallion.evidence import EvidenceReader, read_held
from medallion.lake import FORMAT, Lake
from medallion.outcomes import Blocked, Committed, Failed, Report, Unchanged
from medallion.refine import Run, refine
from medallion.sources import LandingZone
from medallion.tables import Table, bronze, silver
from tests.builders import (
    DAY,
    DAYS,
    FIRST,
    SECOND,
    THIRD,
    Shop,
    evidence_of,
    land,
    land_orders,
    land_products,
    make_run,
    make_shop,
    names_of,
    order,
    orders_of,
    pin,
    pin_quarantine,
    refine_all,
    rows_of,
    text_schema,
)


def only(report: Report) -> Any:
    """The outcome of the one partition that was asked for."""
    (outcome,) = report.outcomes.values()
    return outcome


def racing(shop: Shop, meanwhile: Callable[[], object], keep: pl.Expr) -> Table:
    """Silver orders whose transform, when it first runs, lets something else happen: two attempts meet for certain."""
    happened: list[object] = []

    def orders(raw: pl.LazyFrame) -> pl.LazyFrame:
        if not happened:
            happened.append(True)
            happened.append(meanwhile())
        return raw.filter(keep)

    return silver(
        raw=shop.raw_orders, contract=shop.orders.contract, key=["order_id"], partition=DAY, partitionwise=True,
        max_quarantined=0.5,
    )(orders)  # fmt: skip


def prepare(run: Run, shop: Shop) -> None:
    """Everything that silver orders need."""
    for table in (shop.raw_products, shop.products, shop.raw_orders):
        refine(table, table.partition.keys(), run)


# Plain Delta


@pytest.mark.parametrize("name", ["raw_products", "products", "raw_orders", "orders", "daily", "monthly"])
def test_other_readers_of_delta_see_what_a_snapshot_scans(built: Run, shop: Shop, name):
    table = getattr(shop, name)
    snapshot = pin(table, built)
    rows = rows_of(snapshot)
    assert rows.height > 0
    by = sorted(rows.select(pl.exclude(pl.List)).columns)
    scanned = pl.scan_delta(str(snapshot.folder)).collect()
    arrow = pl.DataFrame(DeltaTable(str(snapshot.folder)).to_pyarrow_table())
    for other in (scanned, arrow):
        assert_frame_equal(other.sort(by), rows.sort(by), check_column_order=False)


def test_other_readers_of_delta_see_the_quarantine(landed: Run, shop: Shop):
    land_orders(landed, SECOND, [*orders_of(SECOND), order(99, 9)])
    refine_all(shop, landed)
    snapshot = pin_quarantine(shop.orders, landed)
    refused = rows_of(snapshot)
    assert refused["order_id"].to_list() == ["99"]
    assert refused["_batch_id"].to_list() == [pin(shop.orders, landed).batch_id(SECOND)]
    assert_frame_equal(pl.scan_delta(str(snapshot.folder)).collect(), refused, check_column_order=False)


def test_rows_counted_from_the_log_are_the_rows_of_the_files(built: Run, shop: Shop):
    snapshot = pin(shop.orders, built)
    assert [snapshot.rows(key) for key in DAYS] == [rows_of(snapshot, key).height for key in DAYS] == [3] * 5
    assert DeltaTable(str(snapshot.folder)).count() == 15


def test_a_snapshot_keeps_reading_its_version_after_later_commits(built: Run, shop: Shop):
    pinned, rows = pin(shop.orders, built), rows_of(pin(shop.orders, built))
    land_orders(built, SECOND, orders_of(SECOND)[:1])
    refine_all(shop, built)
    assert rows_of(pinned).equals(rows)
    assert rows_of(pin(shop.orders, built)).height == 13
    assert pinned.version is not None
    again = built.lake.pin(shop.orders.path, DAY, version=pinned.version)
    assert rows_of(again).equals(rows)


def test_a_commit_carries_its_provenance_its_fence_and_its_files_in_one_entry(built: Run, shop: Shop):
    folder = pin(shop.orders, built).folder
    entry = (folder / "_delta_log" / f"{1:020}.json").read_text().splitlines()
    actions = [json.loads(line) for line in entry]
    provenance = json.loads(next(each["commitInfo"] for each in actions if "commitInfo" in each)["medallion"])
    assert provenance["format"] == FORMAT
    assert provenance["run_id"] == "manual"
    assert provenance["batches"] == {key: pin(shop.orders, built).batch_id(key) for key in DAYS}
    fences = {each["txn"]["appId"]: each["txn"]["version"] for each in actions if "txn" in each}
    assert fences == {f"medallion:{key}": 1 for key in DAYS}
    assert sum("add" in each for each in actions) == 5


def test_no_commit_names_a_file_twice(built: Run, shop: Shop):
    """Delta's protocol leaves open what a file is that one commit both adds and removes."""
    land_orders(built, SECOND, orders_of(SECOND)[:1])
    refine_all(shop, built)
    land_orders(built, SECOND, orders_of(SECOND))
    shutil.rmtree(str(pin(shop.orders, built).folder / "_evidence"))
    refine_all(shop, built)
    for entry in built.lake.root.glob("*/*/_delta_log/*.json"):
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        paths = [each[kind]["path"] for each in actions for kind in ("add", "remove") if kind in each]
        assert len(paths) == len(set(paths)), entry


def test_a_table_that_is_not_there_reads_as_empty(lake: Lake):
    snapshot = lake.pin("silver/nothing", DAY)
    assert (snapshot.version, snapshot.files, snapshot.content(FIRST), snapshot.epoch(FIRST)) == (None, {}, None, 0)
    assert rows_of(snapshot).schema == {"day": pl.Date}


def test_a_partition_that_is_not_committed_reads_as_empty_with_the_columns_of_the_table(landed: Run, shop: Shop):
    refine(shop.raw_orders, [FIRST], landed)
    rows = rows_of(pin(shop.raw_orders, landed), SECOND)
    assert rows.height == 0
    assert set(rows.columns) == set(rows_of(pin(shop.raw_orders, landed), FIRST).columns)


def test_a_lake_that_is_flushed_to_the_disk_holds_the_same(built: Run, shop: Shop, tmp_path: Path):
    durable = Run(Lake(tmp_path / "durable"), built.landing, started_at=built.started_at)
    refine_all(shop, durable)
    assert [names_of(table, durable) for table in shop.tables] == [names_of(table, built) for table in shop.tables]


# Attempts that meet


def test_of_two_attempts_at_one_day_exactly_one_wins_and_the_other_is_superseded(landed: Run, shop: Shop):
    prepare(landed, shop)
    refine(shop.orders, DAYS, landed)
    land_orders(landed, SECOND, orders_of(SECOND)[:2])
    refine(shop.raw_orders, [SECOND], landed)
    winner: list[Report] = []
    loser = racing(shop, lambda: winner.append(refine(shop.orders, [SECOND], landed)), pl.col("order_id") != "11")
    outcome = only(refine(loser, [SECOND], landed))
    assert isinstance(only(winner[0]), Committed)
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, Superseded)
    assert (outcome.error.seen, outcome.error.live) == (1, 2)
    assert "This attempt committed nothing" in str(outcome.error)
    assert rows_of(pin(shop.orders, landed), SECOND)["order_id"].to_list() == [11, 12]
    assert pin(shop.orders, landed).epoch(SECOND) == 2
    assert evidence_of(shop.orders, landed, SECOND) == only(winner[0]).evidence


def test_of_two_attempts_that_both_make_the_table_exactly_one_wins(landed: Run, shop: Shop):
    prepare(landed, shop)
    winner: list[Report] = []
    loser = racing(shop, lambda: winner.append(refine(shop.orders, [FIRST], landed)), pl.col("order_id") != "1")
    assert pin(shop.orders, landed).version is None
    outcome = only(refine(loser, [FIRST], landed))
    assert isinstance(only(winner[0]), Committed)
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, Superseded)
    assert (pin(shop.orders, landed).version, pin(shop.orders, landed).epoch(FIRST)) == (1, 1)
    assert rows_of(pin(shop.orders, landed), FIRST)["order_id"].to_list() == [1, 2, 3]


def test_two_attempts_at_the_same_work_have_one_effect(landed: Run, shop: Shop):
    """K8: both have the same batch and the same files, so whoever is second finds its own work done."""
    prepare(landed, shop)
    happened: list[Report] = []

    def orders(raw: pl.LazyFrame) -> pl.LazyFrame:
        if not happened:
            happened.append(Report("", {}))
            happened.append(refine(table, DAYS, landed))
        return raw

    table = silver(
        raw=shop.raw_orders, contract=shop.orders.contract, key=["order_id"], partition=DAY, partitionwise=True
    )(orders)
    report = refine(table, DAYS, landed)
    assert happened[1].name == report.name == "COMPLETE"
    assert pin(table, landed).version == 1
    assert [pin(table, landed).epoch(key) for key in DAYS] == [1] * 5
    assert rows_of(pin(table, landed)).height == 15


def test_attempts_at_different_days_both_commit(landed: Run, shop: Shop):
    prepare(landed, shop)
    refine(shop.orders, [THIRD], landed)
    other: list[Report] = []
    mine = racing(shop, lambda: other.append(refine(shop.orders, [SECOND], landed)), pl.lit(True))
    report = refine(mine, [FIRST], landed)
    assert isinstance(only(other[0]), Committed)
    assert isinstance(only(report), Committed)
    assert rows_of(pin(shop.orders, landed))["order_id"].to_list() == [1, 2, 3, 11, 12, 13, 21, 22, 23]
    assert [pin(shop.orders, landed).epoch(key) for key in DAYS[:3]] == [1, 1, 1]


def test_attempts_at_different_days_both_commit_even_if_neither_found_the_table(landed: Run, shop: Shop):
    prepare(landed, shop)
    mine = racing(shop, lambda: refine(shop.orders, [SECOND], landed), pl.lit(True))
    assert isinstance(only(refine(mine, [FIRST], landed)), Committed)
    assert set(names_of(shop.orders, landed)) == {FIRST, SECOND}


def test_of_several_days_only_the_one_that_another_attempt_took_is_superseded(landed: Run, shop: Shop):
    land_orders(landed, THIRD, [*orders_of(THIRD), order(99, 9)])  # so that the quarantine has something to lose
    prepare(landed, shop)
    mine = racing(shop, lambda: refine(shop.orders, [SECOND], landed), pl.col("order_id") != "12")
    report = refine(mine, DAYS, landed)
    assert list(report.refused) == [SECOND]
    assert isinstance(report.errors[SECOND], Superseded)
    assert rows_of(pin(shop.orders, landed)).height == 15
    assert [pin(shop.orders, landed).epoch(key) for key in DAYS] == [1] * 5
    assert rows_of(pin_quarantine(shop.orders, landed))["order_id"].to_list() == ["99"]


def test_a_column_that_another_attempt_added_stays(landed: Run, shop: Shop):
    wider = text_schema({"order_id": pa.Column(int), "quantity": pa.Column(int)})
    narrow = text_schema({"order_id": pa.Column(int)})
    refine(shop.raw_orders, DAYS, landed)

    def declare(contract: pa.DataFrameSchema, meanwhile: Callable[[], object]) -> Table:
        def lines(raw: pl.LazyFrame) -> pl.LazyFrame:
            meanwhile()
            return raw

        return silver(raw=shop.raw_orders, contract=contract, key=["order_id"], partition=DAY)(lines)

    refine(declare(narrow, lambda: None), [FIRST], landed)
    other = declare(wider, lambda: None)
    mine = declare(narrow, lambda: refine(other, [SECOND], landed))
    assert isinstance(only(refine(mine, [THIRD], landed)), Committed)
    assert rows_of(pin(mine, landed), SECOND)["quantity"].to_list() == [1, 2, 3]
    assert rows_of(pin(mine, landed), THIRD)["quantity"].to_list() == [None] * 3


# What is refused


def test_a_file_that_the_engine_did_not_write_is_refused_and_named(built: Run, shop: Shop):
    folder = pin(shop.orders, built).folder
    write_deltalake(str(folder), rows_of(pin(shop.orders, built), FIRST).to_arrow(), mode="append")
    with pytest.raises(TableUnreadable, match=r"silver/orders at .* which this engine did not write"):
        refine(shop.orders, DAYS, built)
    with pytest.raises(TableUnreadable, match="move the file's rows through the landing zone, or point the feed"):
        refine(shop.daily, DAYS, built)


@pytest.mark.parametrize(("layer", "name"), [("bronze", "orders"), ("bronze", "products")])
def test_a_table_that_was_cut_in_another_way_is_refused_and_never_overwritten(built: Run, shop: Shop, layer, name):
    """K1: an unpartitioned commit would replace all days."""
    before = {table.path: names_of(table, built) for table in shop.tables}
    if name == "orders":
        recut = bronze(name, source="products.csv")
    else:
        recut = bronze(name, source="orders/{day}.csv", partition=DAY)
    with pytest.raises(
        TableUnreadable, match=rf"{layer}/{name} lies in the lake partitioned by .* Give the table anot"
    ):
        refine(recut, recut.partition.keys(), built)
    assert {table.path: names_of(table, built) for table in shop.tables} == before


def test_rows_of_another_type_than_the_tables_are_refused_naming_both(built: Run, shop: Shop):
    as_float = text_schema({"order_id": pa.Column(float), "product_id": pa.Column(int)})

    @silver(raw=shop.raw_orders, contract=as_float, key=["order_id"], partition=DAY)
    def orders(raw: pl.LazyFrame) -> pl.LazyFrame:
        return raw

    before = names_of(shop.orders, built)
    error = only(refine(orders, [FIRST], built)).error
    assert isinstance(error, TableUnreadable)
    assert "column 'order_id' is Float64 in what is to be committed, and Int64 in the table" in str(error)
    assert "give the table another name, or rebuild it from the layer below" in str(error)
    assert names_of(shop.orders, built) == before


# Folders


@pytest.mark.parametrize("below", ["lake", "lake/deeper"])
def test_a_lake_that_cannot_be_a_folder_says_what_to_set(tmp_path: Path, below):
    (tmp_path / "lake").write_text("a file")
    with pytest.raises(ConfigurationError, match=r"the lake folder .* cannot be made: .* Set MEDALLION_LAKE"):
        Lake(tmp_path / below)


def test_a_lake_makes_its_folder(tmp_path: Path):
    assert Lake(tmp_path / "a" / "b").root.is_dir()


def test_a_landing_zone_that_is_not_there_says_what_to_do(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for missing in (tmp_path / "nowhere", tmp_path / "file"):
        with pytest.raises(ConfigurationError, match=r"is not there\. Build the example's with `make landing`, or set"):
            LandingZone(missing)


@pytest.mark.parametrize("path", ["silver", "silver/orders", "quarantine"])
def test_a_file_where_a_folder_of_the_lake_should_be_is_named(landed: Run, shop: Shop, path):
    refine(shop.raw_orders, DAYS, landed)
    file = landed.lake.root / path
    file.parent.mkdir(exist_ok=True)
    file.write_text("a file")
    with pytest.raises(ConfigurationError, match=rf"{file} is a file, and .* needs a folder there\. Move it away"):
        refine(shop.orders, DAYS, landed)


@pytest.mark.parametrize("damage", ["garbage", "file"])
def test_a_damaged_log_is_one_clear_error(built: Run, shop: Shop, damage):
    log = Path(str(pin(shop.orders, built).folder), "_delta_log")
    if damage == "file":
        shutil.rmtree(log)
        log.write_text("a file")
    else:
        for entry in log.glob("*.json"):
            entry.write_text("{garbage")
    for table in (shop.orders, shop.daily):
        with pytest.raises(
            TableUnreadable, match=r"silver/orders at .* cannot be opened: .* replay the table from the"
        ):
            refine(table, DAYS, built)


# Evidence


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"null", b"{}", b'{"format": 1}', b"\xff"])
def test_damaged_evidence_says_how_to_repair_it_and_that_repairs_it(run: Run, shop: Shop, damage):
    land_products(run, {1: "BAKERY", 2: "DAIRY"})
    refine_all(shop, run)
    before, snapshot = names_of(shop.products, run), pin(shop.products, run)
    (path,) = Path(str(snapshot.folder), "_evidence").iterdir()
    path.write_bytes(damage)
    with pytest.raises(TableUnreadable, match=r"the evidence at .* is damaged \(.*\)\. Move that file away and replay"):
        refine(shop.products, ["all"], run)
    path.rename(path.with_suffix(".damaged"))
    assert isinstance(only(refine(shop.products, ["all"], run)), Unchanged)
    assert isinstance(only(refine(shop.products, ["all"], run)), Unchanged)
    assert names_of(shop.products, run) == before
    assert evidence_of(shop.products, run, "all").verdict.accepted == 2


def test_damaged_evidence_of_a_range_says_how_to_repair_it_and_that_repairs_it(built: Run, shop: Shop):
    before = names_of(shop.orders, built)
    (path,) = (pin(shop.orders, built).folder / "_evidence").iterdir()
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(TableUnreadable, match=r"the evidence at .* is damaged"):
        refine(shop.orders, DAYS, built)
    path.unlink()
    assert {type(outcome) for outcome in refine(shop.orders, DAYS, built).outcomes.values()} == {Unchanged}
    assert names_of(shop.orders, built) == before


def test_evidence_of_a_newer_format_is_refused_and_asks_for_the_version_that_wrote_it(run: Run, shop: Shop):
    land_products(run, {1: "BAKERY"})
    refine_all(shop, run)
    (path,) = Path(str(pin(shop.products, run).folder), "_evidence").iterdir()
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": FORMAT + 1}))
    with pytest.raises(
        TableUnreadable, match=f"has format {FORMAT + 1}, and this version of medallion knows up to {FORMAT}"
    ):
        refine(shop.products, ["all"], run)


def test_evidence_reads_back_as_it_was_written(built: Run, shop: Shop):
    snapshot = pin(shop.orders, built)
    read = EvidenceReader(snapshot.folder)
    for key in DAYS:
        batch_id = snapshot.batch_id(key)
        assert batch_id is not None
        evidence = read(batch_id)
        assert evidence is not None
        assert (evidence.partition, evidence.batch_id, evidence.content) == (key, batch_id, snapshot.content(key))
        assert type(evidence).from_json(evidence.to_json(), snapshot.folder) == evidence
    assert read("0" * 32) is None


def test_a_held_candidate_is_beside_the_table_and_invisible_to_readers(built: Run, shop: Shop):
    land_orders(built, SECOND, [order(99, quantity=0)])
    refine(shop.raw_orders, [SECOND], built)
    assert isinstance(only(refine(shop.orders, [SECOND], built)), Blocked)
    snapshot = pin(shop.orders, built)
    assert read_held(snapshot.folder, SECOND) is not None
    assert pl.scan_delta(str(snapshot.folder)).collect().height == 15


def test_making_a_run_twice_on_one_folder_finds_the_same_lake(built: Run, tmp_path: Path):
    again = make_run(tmp_path)
    assert {report.name for report in refine_all(make_shop(), again).values()} == {"COMPLETE"}
    land(again, "elsewhere.csv", "a\n")
    assert names_of(make_shop().orders, again) == names_of(make_shop().orders, built)
