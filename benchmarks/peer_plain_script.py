"""The limit: the year as one plain polars + deltalake script; no gate, no record, no provenance, no recovery.

Usage: python -m benchmarks.peer_plain_script LANDING LAKE
"""

import shutil
import sys
import time
from pathlib import Path

import polars as pl
from deltalake import write_deltalake

_INTEGERS = ["household_id", "store_id", "basket_id", "product_id", "quantity", "week"]
_FLOATS = ["sales_value", "retail_disc", "coupon_disc", "coupon_match_disc"]


def main(landing: Path, lake: Path) -> float:
    """Build bronze, silver, quarantine and gold; returns the seconds that it took."""
    shutil.rmtree(lake, ignore_errors=True)
    started = time.perf_counter()
    files = str(landing / "transactions/*.csv")
    raw = pl.scan_csv(files, infer_schema=False, include_file_paths="source").with_columns(
        day=pl.col("source").str.extract(r"(\d{4}-\d\d-\d\d)\.csv$").str.to_date()
    )
    write_deltalake(lake / "bronze", raw.collect(), partition_by=["day"], mode="overwrite")
    products = pl.scan_parquet(landing / "products.parquet").select("product_id", "department")
    silver = (
        pl.scan_delta(lake / "bronze")
        .with_columns(
            pl.col(_INTEGERS).cast(pl.Int64),
            pl.col(_FLOATS).cast(pl.Float64),
            pl.col("transaction_timestamp").str.to_datetime(),
        )
        .join(products, on="product_id", how="left")
        .with_columns(bad=(pl.col("quantity") <= 0) | (pl.col("sales_value") < 0) | pl.col("department").is_null())
        .collect()
    )
    good, bad = silver.filter(~pl.col("bad")).drop("bad"), silver.filter("bad").drop("bad")
    write_deltalake(lake / "silver", good, partition_by=["day"], mode="overwrite")
    write_deltalake(lake / "quarantine", bad, partition_by=["day"], mode="overwrite")
    gold = (
        pl.scan_delta(lake / "silver")
        .group_by("day", "department")
        .agg(sales=pl.col("sales_value").sum(), baskets=pl.col("basket_id").n_unique())
    )
    write_deltalake(lake / "gold", gold.collect(), partition_by=["day"], mode="overwrite")
    return time.perf_counter() - started


if __name__ == "__main__":
    print(main(Path(sys.argv[1]), Path(sys.argv[2])))
