"""The peer: the year as Dagster's own Delta IO manager for polars, pandera and an asset check would have it.

``PEER_POLICY=single`` is the tuned one: a single run for the whole backfill. Anything else is Dagster's default, a run
for each partition. Loaded by `benchmarks.daemon`, in an environment that has ``dagster-deltalake-polars``.
"""

import os
from pathlib import Path

import dagster as dg
import pandera.polars as pa
import polars as pl
from dagster_deltalake import LocalConfig
from dagster_deltalake_polars import DeltaLakePolarsIOManager

LANDING = Path(os.environ["PEER_LANDING"])
DAILY = dg.DailyPartitionsDefinition("2017-01-01", end_date=os.environ["PEER_END"])
POLICY = dg.BackfillPolicy.single_run() if os.environ.get("PEER_POLICY") == "single" else None
META = {"partition_expr": "day"}
PRODUCTS = pl.read_parquet(LANDING / "products.parquet").get_column("product_id")
INTEGERS = ["household_id", "store_id", "basket_id", "product_id", "quantity", "week"]
FLOATS = ["sales_value", "retail_disc", "coupon_disc", "coupon_match_disc"]

RULES = pa.DataFrameSchema(
    {
        "quantity": pa.Column(pl.Int64, pa.Check.gt(0)),
        "sales_value": pa.Column(pl.Float64, pa.Check.ge(0)),
        "product_id": pa.Column(pl.Int64, pa.Check.isin(PRODUCTS.to_list())),
    }
)


@dg.asset(partitions_def=DAILY, metadata=META, backfill_policy=POLICY)
def bronze(context: dg.AssetExecutionContext) -> pl.DataFrame:
    files = [LANDING / f"transactions/{day}.csv" for day in context.partition_keys]
    raw = pl.scan_csv([each for each in files if each.exists()], infer_schema=False, include_file_paths="source")
    return raw.with_columns(day=pl.col("source").str.extract(r"(\d{4}-\d\d-\d\d)\.csv$").str.to_date()).collect()


def _failing(frame: pl.DataFrame) -> list[int]:
    try:
        RULES.validate(frame, lazy=True)
    except pa.errors.SchemaErrors as error:
        return error.failure_cases.get_column("index").drop_nulls().unique().to_list()
    return []


@dg.multi_asset(
    outs={"silver": dg.AssetOut(metadata=META), "quarantine": dg.AssetOut(metadata=META)},
    partitions_def=DAILY,
    backfill_policy=POLICY,
)
def refine(bronze: pl.DataFrame):
    rows = bronze.with_columns(
        pl.col(INTEGERS).cast(pl.Int64),
        pl.col(FLOATS).cast(pl.Float64),
        pl.col("transaction_timestamp").str.to_datetime(),
    )
    frame = rows.with_row_index("i")
    bad = pl.col("i").is_in(_failing(rows))
    return frame.filter(~bad).drop("i"), frame.filter(bad).drop("i")


@dg.asset_check(asset="silver")
def silver_not_empty() -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=True)


@dg.asset(partitions_def=DAILY, metadata=META, backfill_policy=POLICY)
def gold(silver: pl.DataFrame) -> pl.DataFrame:
    return silver.group_by("day", "store_id").agg(
        sales=pl.col("sales_value").sum(), baskets=pl.col("basket_id").n_unique()
    )


defs = dg.Definitions(
    assets=[bronze, refine, gold],
    asset_checks=[silver_not_empty],
    resources={"io_manager": DeltaLakePolarsIOManager(root_uri=os.environ["PEER_LAKE"], storage_options=LocalConfig())},
    executor=dg.in_process_executor if os.environ.get("PEER_POLICY") == "single" else dg.multiprocess_executor,
)
