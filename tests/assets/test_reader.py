"""Assets of a user's own that take tables of the lake as arguments, through the reader."""

import datetime as dt
import gc
from pathlib import Path

import dagster as dg
import duckdb
import polars as pl
import pytest
from dagster_duckdb import DuckDBResource

from medallion.errors import InputNotCommitted
from resources.lake import LakeReader, LakeResource
from tests.assets.conftest import DAYS
from tests.assets.deployment import Deployment, causes, cut_short, metadata

# Merged with a user's own assets, the project's jobs are resolved once more; see assets/definitions.py.
pytestmark = pytest.mark.filterwarnings("ignore:Asset job")

BY_DAY = dg.DailyPartitionsDefinition("2017-01-01", end_date="2018-01-01", timezone="America/New_York")
LAST_DAY = dt.date(2017, 1, 5)


@dg.asset(partitions_def=BY_DAY, ins={"lines": dg.AssetIn(key=["silver", "transactions"])})
def busiest_store(lines: pl.LazyFrame):
    assert isinstance(lines, pl.LazyFrame)
    return lines.group_by("day", "store_id").len().sort("len", "store_id").tail(1).collect().rows()


@dg.asset(partitions_def=BY_DAY, ins={"sales": dg.AssetIn(key=["gold", "daily_sales"])})
def departments(sales: pl.DataFrame):
    assert isinstance(sales, pl.DataFrame)
    return sales.select("day", "department").rows()


@dg.asset(partitions_def=BY_DAY, ins={"week": dg.AssetIn(key=["gold", "sales_7d"])})
def total(week: duckdb.DuckDBPyRelation):
    assert isinstance(week, duckdb.DuckDBPyRelation)
    gc.collect()  # the relation alone has to keep what it reads from
    return week.aggregate("min(day), max(day), round(sum(sales), 2)").fetchall()


@dg.asset(
    partitions_def=BY_DAY,
    ins={
        "window": dg.AssetIn(
            key=["silver", "transactions"],
            partition_mapping=dg.TimeWindowPartitionMapping(
                start_offset=-2, allow_nonexistent_upstream_partitions=True
            ),
        )
    },
)
def three_days(window: pl.LazyFrame):
    return window.select(pl.col("day").unique().sort()).collect().to_series().to_list()


@dg.asset(
    ins={
        "chosen": dg.AssetIn(
            key=["gold", "daily_sales"],
            partition_mapping=dg.SpecificPartitionsPartitionMapping(["2017-01-02", "2017-01-04"]),
        ),
        "products": dg.AssetIn(key=["silver", "products"]),
    }
)
def chosen_days(chosen: pl.DataFrame, products):
    assert isinstance(products, pl.LazyFrame)  # what an argument without an annotation gets
    return chosen.get_column("day").unique().sort().to_list(), products.select(pl.len()).collect().item()


@dg.asset(
    partitions_def=BY_DAY,
    backfill_policy=dg.BackfillPolicy.single_run(),
    ins={"lines": dg.AssetIn(key=["silver", "transactions"])},
)
def noted(lines: pl.LazyFrame):
    days = lines.select(pl.col("day").unique().sort().cast(pl.String)).collect().to_series().to_list()
    return dg.MaterializeResult(metadata={"days": days})


@dg.asset(ins={"sales": dg.AssetIn(key=["gold", "daily_sales"])})
def whole_year(sales: pl.DataFrame):
    return sales.height


@dg.asset(partitions_def=BY_DAY, ins={"lines": dg.AssetIn(key=["silver", "transactions"])}, io_manager_key="kept")
def kept_elsewhere(lines: pl.LazyFrame):
    return lines.select(pl.len()).collect().item()


@dg.asset(ins={"products": dg.AssetIn(key=["silver", "products"])}, io_manager_key="lake_reader")
def returns_rows(products: pl.DataFrame):
    return products


@dg.asset(ins={"products": dg.AssetIn(key=["silver", "products"])}, io_manager_key="lake_reader")
def returns_nothing(products: pl.DataFrame):
    assert products.height


MINE = (
    busiest_store, departments, total, three_days, chosen_days, noted, whole_year, kept_elsewhere, returns_rows,
    returns_nothing,
)  # fmt: skip


@pytest.fixture(scope="module")
def reader(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """The project with a user's own assets beside it; nothing here writes to the lake."""
    kept = dg.FilesystemIOManager(base_dir=str(tmp_path_factory.mktemp("kept")))
    return Deployment(built, dg.DagsterInstance.ephemeral(), assets=MINE, resources={"kept": kept})


def test_an_argument_annotated_as_a_lazy_frame_holds_the_partition_of_the_run(reader):
    result = reader.run("busiest_store", first="2017-01-05")
    assert result.success, causes(result)
    ((day, _, lines),) = result.asset_value("busiest_store")
    assert day == LAST_DAY
    assert lines > 0


def test_an_argument_annotated_as_a_data_frame_is_collected(reader):
    result = reader.run("departments", first="2017-01-05")
    assert result.success, causes(result)
    assert (LAST_DAY, "GROCERY") in result.asset_value("departments")
    assert {day for day, _ in result.asset_value("departments")} == {LAST_DAY}


def test_an_argument_annotated_as_a_duckdb_relation_can_be_queried(reader):
    result = reader.run("total", first="2017-01-05")
    assert result.success, causes(result)
    ((first, last, sales),) = result.asset_value("total")
    exported = sum(pl.concat(pl.read_csv(reader.file(day)) for day in DAYS)["sales_value"].to_list())
    assert (first, last) == (LAST_DAY, LAST_DAY)
    assert 0.9 * exported < sales < exported  # all but what quarantine holds


def test_an_argument_with_a_trailing_mapping_holds_the_window(reader):
    result = reader.run("three_days", first="2017-01-05")
    assert result.success, causes(result)
    assert result.asset_value("three_days") == [dt.date(2017, 1, day) for day in (3, 4, 5)]


def test_a_trailing_window_is_clipped_where_the_table_begins(reader):
    result = reader.run("three_days", first="2017-01-02")
    assert result.success, causes(result)
    assert result.asset_value("three_days") == [dt.date(2017, 1, day) for day in (1, 2)]


def test_a_range_run_gets_all_partitions_of_its_range(reader):
    result = reader.run("noted", first="2017-01-02", last="2017-01-04")
    assert result.success, causes(result)
    assert metadata(result, "noted")["2017-01-04"]["days"] == ["2017-01-02", "2017-01-03", "2017-01-04"]


def test_an_asset_without_partitions_reads_chosen_partitions_and_an_unpartitioned_reference(reader):
    result = reader.run("chosen_days")
    assert result.success, causes(result)
    days, products = result.asset_value("chosen_days")
    assert days == [dt.date(2017, 1, 2), dt.date(2017, 1, 4)]
    assert products == 92_331


def test_what_the_asset_itself_returns_goes_to_its_own_io_manager(reader):
    result = reader.run("kept_elsewhere", first="2017-01-05")
    assert result.success, causes(result)
    lines = reader.defs.load_asset_value("kept_elsewhere", instance=reader.instance, partition_key="2017-01-05")
    assert lines == result.asset_value("kept_elsewhere") > 1000


def test_a_partition_that_is_not_committed_gives_one_error_that_names_it_and_who_asked(reader):
    result = reader.run("three_days", first="2017-01-07")
    assert not result.success
    assert (
        "three_days 2017-01-07 was not built, because it needs silver/transactions 2017-01-06 (not committed); "
        "silver/transactions 2017-01-07 (not committed)."
    ) in causes(result)
    assert "Repair and materialize silver/transactions 2017-01-06 first." in causes(result)


def test_an_asset_over_the_whole_year_is_told_how_much_of_it_is_missing(reader):
    result = reader.run("whole_year")
    assert not result.success
    assert "whole_year all was not built, because it needs gold/daily_sales 2017-01-06 (not committed);" in causes(
        result
    )
    assert "and 357 more." in causes(result)


def test_a_partition_that_its_gate_refused_is_said_to_be_blocked(finished):
    mine = Deployment(finished.landing.parent, finished.instance, assets=MINE, resources={"kept": dg.fs_io_manager})
    (finished.lake / "gold").rename(finished.lake / "gone")  # only silver is asked
    deliver_short_day(mine)
    result = mine.run("busiest_store", first="2017-01-06")
    assert not result.success
    assert "it needs silver/transactions 2017-01-06 (blocked by its gate)." in causes(result)


def deliver_short_day(deployment: Deployment) -> None:
    deployment.file("2017-01-06").write_bytes(deployment.file("2017-01-05").read_bytes())
    cut_short(deployment.file("2017-01-06"), rows=900)
    assert not deployment.run("bronze/transactions", "silver/transactions", first="2017-01-06").success


def test_returning_a_value_to_the_reader_is_refused_with_what_to_do(reader):
    result = reader.run("returns_rows")
    assert not result.success
    assert "returns_rows returned a value to the lake reader, which only reads." in causes(result)
    assert "give your own asset another io_manager_key, or return None" in causes(result)


def test_an_asset_that_reads_through_the_reader_may_return_nothing(reader):
    assert reader.run("returns_nothing").success


def test_a_table_can_be_loaded_at_a_prompt(reader, monkeypatch):
    for name, value in reader.environment().items():
        monkeypatch.setenv(name, value)
    rows = reader.defs.load_asset_value(
        ["gold", "daily_sales"], python_type=pl.DataFrame, partition_key="2017-01-05", instance=reader.instance
    )
    assert rows.get_column("day").unique().to_list() == [LAST_DAY]


def test_whoever_asks_outside_a_run_is_told_what_is_missing(reader):
    io = LakeReader(
        lake=LakeResource(root=str(reader.lake)), database=DuckDBResource(database=":memory:"), feeds="assets.feeds"
    )
    key = dg.AssetKey(["gold", "daily_sales"])
    asked = dg.build_input_context(
        asset_key=key, asset_partitions_def=BY_DAY, asset_partition_key_range=dg.PartitionKeyRange(*["2017-01-06"] * 2)
    )
    with asked as context, pytest.raises(InputNotCommitted, match="the value of gold/daily_sales all") as caught:
        io.load_input(context)
    assert caught.value.missing == (("gold/daily_sales", "2017-01-06", "not committed"),)
