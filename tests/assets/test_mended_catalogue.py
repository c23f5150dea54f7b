"""Sales of unknown products stand refused until the catalogue knows the product; then exactly its days are replayed."""

from pathlib import Path

import polars as pl
import pytest

from medallion import ledger
from medallion.lake import Lake
from medallion.project import Project, load_project
from medallion.quarantine import outstanding, refused_rows
from medallion.refine import Run, refine
from medallion.release import plan_release, release
from medallion.sources import LandingZone
from medallion.verify import verify

RULE = "product_id.known_in"
ADDED = 1093587
"""One of the 17 products that the year's sales name and the catalogue does not; its lines have no other fault."""
TABLES = (
    "bronze/households", "bronze/products", "bronze/transactions", "silver/households", "silver/products",
    "silver/transactions", "gold/daily_sales", "gold/sales_7d",
)  # fmt: skip


def _build(project: Project, run: Run, days: tuple[str, ...]) -> None:
    for path in TABLES:
        table = project.table(path)
        report = refine(table, [key for key in table.partition.keys() if key in days or key == "all"], run)  # noqa: SIM118
        assert report.name == "COMPLETE", report.errors


def _names(lake: Lake, project: Project, path: str) -> dict[str, str]:
    snapshot = lake.pin(path, project.table("silver/transactions").partition)
    return {key: files[0].path for key, files in snapshot.files.items()}


@pytest.mark.parametrize(
    ("asked", "unknown", "days_of_it"),
    [
        pytest.param("2017-01-01..2017-01-31", 280, 3, id="January"),
        pytest.param("2017-01-01..2017-12-31", 4836, 25, id="the year", marks=pytest.mark.slow),
    ],
)
def test_a_product_that_is_added_to_the_catalogue_releases_its_sales_and_no_others(
    retail_landing: Path, tmp_path: Path, asked: str, unknown: int, days_of_it: int
):
    landing = tmp_path / "landing"
    landing.mkdir()
    for name in ("transactions", "households.csv"):
        (landing / name).symlink_to(retail_landing / name)
    catalogue = pl.read_parquet(retail_landing / "products.parquet")
    catalogue.write_parquet(landing / "products.parquet")

    project, run = load_project("assets.feeds"), Run(Lake(tmp_path / "lake", durable=False), LandingZone(landing))
    transactions = project.table("silver/transactions")
    days = transactions.partition.select([asked])
    _build(project, run, days)
    refused = refused_rows(run.lake, transactions, rule=RULE).collect()
    assert refused.height == unknown
    assert sum(each.rows for each in outstanding(project, run.lake, rule=RULE)) == unknown
    of_it = refused.filter(pl.col("product_id") == str(ADDED))
    its_days = sorted(map(str, of_it.get_column("day")))
    assert len(its_days) == days_of_it
    before, gold = _names(run.lake, project, "silver/transactions"), _names(run.lake, project, "gold/daily_sales")

    # Mended in the reference file, as whoever keeps the catalogue would do it.
    known = catalogue.filter(pl.col("department") == "GROCERY").head(1)
    added = known.with_columns(product_id=pl.lit(ADDED).cast(catalogue.schema["product_id"]))
    pl.concat([catalogue, added]).write_parquet(landing / "products.parquet")
    made = plan_release(project, run, transactions, rule=RULE)
    assert made is not None
    found = release(made, project, run)

    assert found.complete
    assert found.released == dict.fromkeys(its_days, 1)
    after = _names(run.lake, project, "silver/transactions")
    assert [key for key in days if after[key] != before[key]] == its_days
    gold_after = _names(run.lake, project, "gold/daily_sales")
    assert [key for key in days if gold_after[key] != gold[key]] == its_days
    rows = run.lake.pin("silver/transactions", transactions.partition).scan(days)
    assert rows.filter(pl.col("product_id") == ADDED).collect().height == days_of_it
    left = refused_rows(run.lake, transactions, rule=RULE).collect()
    assert left.height == unknown - days_of_it
    assert str(ADDED) not in left.get_column("product_id")

    told = ledger.latest(run.lake).filter(pl.col("pipeline_name") == "silver/transactions")
    released = told.filter(pl.col("released_count") > 0).sort("partition")
    assert released.get_column("partition").to_list() == its_days
    assert released.get_column("released_count").to_list() == [1] * days_of_it
    assert set(released.get_column("reason")) == {f"released 1 row ({RULE} 1): silver/products changed"}
    assert verify(project, run.lake).reconciled
