"""How long planning takes with 10,000 partitions in one table, and what is built from it.

    python -m benchmarks.plan [--quick]

A table of days from files to a trailing week and months, with a reference, built for real. Timed is the whole answer,
from opening the tables to the plan with its id, as the least of three runs, which other work on the machine disturbs
least. The last line is one JSON object; ``plan_10k_s`` is a plan of one table's 10,000 partitions with all that is
built from them (30,000 partitions in four tables), in seconds. The other plans are about all seven tables (40,000
partitions): nothing built yet, nothing to do, and a corrected product whose days have to be found.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl

from medallion.contract import Contract, field
from medallion.lake import Lake
from medallion.partitions import Daily, Monthly
from medallion.plan import Plan
from medallion.planning import plan
from medallion.project import Project
from medallion.refine import Run, refine
from medallion.sources import LandingZone
from medallion.tables import Table, bronze, gold, silver

PARTITIONS = 10_000
_START = "1990-01-01"
_CORRECTED = 7
"""The product that is corrected; it was sold on one day of fifty."""


class Product(Contract):
    """A product."""

    product_id: int = field(gt=0)
    department: str = field()


class Total(Contract):
    """A department's sales."""

    department: str = field()
    units: int = field(ge=0)


def make_tables(partitions: int) -> tuple[Table, ...]:
    """Days of sales, judged against a catalogue, by department, by trailing week and by month."""
    first = pl.Series([_START]).str.to_date()
    end = first.dt.offset_by(f"{partitions}d").dt.strftime("%Y-%m-%d").item()
    last_month = first.dt.offset_by(f"{partitions}d").dt.month_end().dt.offset_by("1d").dt.strftime("%Y-%m-%d").item()
    day, month = Daily("day", start=_START, end=end), Monthly("month", start=_START, end=last_month)
    raw_products = bronze("products", source="products.csv")

    @silver(raw=raw_products, contract=Product, key=["product_id"])
    def products(raw: pl.LazyFrame) -> pl.LazyFrame:
        """The catalogue."""
        return raw

    class Sale(Contract):
        """A sale."""

        sale_id: int = field(gt=0)
        product_id: int = field(known_in=products)
        units: int = field(ge=0)

    raw = bronze("sales", source="sales/{day}.csv", partition=day)

    @silver(raw=raw, contract=Sale, key=["sale_id"], partition=day, partitionwise=True)
    def sales(raw: pl.LazyFrame) -> pl.LazyFrame:
        """Typed sales."""
        return raw

    @gold(
        rows=sales, products=products.by("product_id"), contract=Total, key=["department"], partition=day,
        partitionwise=True,
    )  # fmt: skip
    def by_day(rows: pl.LazyFrame, products: pl.LazyFrame) -> pl.LazyFrame:
        """Units by department."""
        known = rows.join(products.select("product_id", "department"), on="product_id")
        return known.group_by("day", "department").agg(pl.col("units").sum())

    @gold(rows=by_day.trailing(days=7), contract=Total, key=["department"], partition=day, partitionwise=True)
    def by_week(rows: pl.LazyFrame) -> pl.LazyFrame:
        """Units by department over seven days."""
        return rows.group_by("day", "department").agg(pl.col("units").sum())

    @gold(rows=by_day, contract=Total, key=["department"], partition=month, partitionwise=True)
    def by_month(rows: pl.LazyFrame) -> pl.LazyFrame:
        """Units by department and month."""
        return rows.group_by("month", "department").agg(pl.col("units").sum())

    return (raw_products, products, raw, sales, by_day, by_month, by_week)


def land(landing: Path, tables: tuple[Table, ...], department: str = "FOOD") -> None:
    """Deliver two sales a day, and a catalogue of ten products."""
    (landing / "sales").mkdir(parents=True, exist_ok=True)
    for number, day in enumerate(tables[2].partition.keys()):
        product = _CORRECTED if number % 50 == 0 else 1 + number % 5
        (landing / "sales" / f"{day}.csv").write_text(f"sale_id,product_id,units\n1,{product},1\n2,1,2\n")
    correct(landing, department)


def correct(landing: Path, department: str) -> None:
    """Deliver the catalogue, with one product in a department of its own."""
    rows = [f"{product},{department if product == _CORRECTED else 'FOOD'}" for product in range(1, 11)]
    (landing / "products.csv").write_text("\n".join(["product_id,department", *rows]) + "\n")


def measure_plan_10k(partitions: int = PARTITIONS, told: Callable[[str], None] = lambda line: None) -> float:
    """Seconds of a plan of one table of so many partitions and of what is built from it; ``told`` hears of others."""
    with tempfile.TemporaryDirectory() as folder:
        landing, root = Path(folder) / "landing", Path(folder) / "lake"
        tables = make_tables(partitions)
        project = Project(tables)
        land(landing, tables)

        def once(table: str | None, **settings: object) -> tuple[float, Plan]:
            # Each time with a lake of its own, so that every table is opened anew as by a process that has just begun.
            lake, zone, began = Lake(root, durable=False), LandingZone(landing), time.perf_counter()
            made: Plan = plan(project, lake, zone, table, **settings)  # type: ignore[arg-type]
            made.id  # noqa: B018 - is worked out from the whole content, as printing or saving it does
            return time.perf_counter() - began, made

        def timed(what: str, table: str | None = None, **settings: object) -> float:
            runs = [once(table, **settings) for _ in range(3)]
            spent = min(seconds for seconds, _ in runs)
            told(f"{what:32} {runs[0][1].partitions:7,} partitions {spent:6.2f} s")
            return spent

        timed("all: nothing is built")
        run = Run(Lake(root, durable=False), LandingZone(landing))
        for table in tables:
            report = refine(table, table.partition.keys(), run)
            assert report.name == "COMPLETE", report.errors
        timed("all: nothing is to be done")
        found = timed("one table and its downstream", "silver/sales", select={"all"})
        correct(landing, "GARDEN")
        timed("all: a catalogue was delivered")
        for table in tables[:2]:
            refine(table, ["all"], run)
        timed("all: a product was corrected")
    return found


def main() -> None:
    """Measure, print a line for each plan, and JSON as the last line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="1,000 partitions instead of 10,000")
    quick = parser.parse_args().quick
    partitions = PARTITIONS // 10 if quick else PARTITIONS
    seconds = measure_plan_10k(partitions, print)
    print(json.dumps({"plan_1k_s" if quick else "plan_10k_s": round(seconds, 3)}))


if __name__ == "__main__":
    main()
