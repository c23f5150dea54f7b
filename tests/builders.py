"""A small shop for tests: five days over the end of a month, from CSV files to daily, trailing and monthly totals.

What belongs here: building declarations, source files and runs. What does not: assertions, and anything of Dagster.
"""

import csv
import datetime as dt
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandera.polars as pa
import polars as pl

from medallion.contract import INFO, WARNING, Contract, field
from medallion.evidence import Evidence, EvidenceReader
from medallion.lake import Lake, Snapshot
from medallion.outcomes import Report
from medallion.partitions import Daily, Monthly
from medallion.refine import Run, refine
from medallion.sources import LandingZone
from medallion.tables import Table, bronze, gold, gold_sql, silver

ZONE = "America/New_York"
DAY = Daily("day", start="2017-01-30", end="2017-02-04", timezone=ZONE)
MONTH = Monthly("month", start="2017-01-01", end="2017-03-01", timezone=ZONE)
DAYS = DAY.keys()
FIRST, SECOND, THIRD, FOURTH, LAST = DAYS
STARTED = dt.datetime(2017, 3, 1, 6, tzinfo=dt.UTC)
ORDER_COLUMNS = ("order_id", "product_id", "quantity", "price")

Rows = Sequence[Mapping[str, Any]]


class Product(Contract):
    """One product of the catalogue."""

    product_id: int = field(gt=0)
    department: str = field()
    shelf: str = field(nullable=True, severity=INFO)


class Total(Contract):
    """One department's orders."""

    department: str = field()
    orders: int = field(gt=0)
    units: int = field(gt=0)


class Monthly_(Contract):  # noqa: N801 - a partitioning has the better claim to the name
    """One product's orders in one month."""

    product_id: int = field()
    orders: int = field(gt=0)


@dataclass(frozen=True)
class Shop:
    """The declared tables, in the order in which they are built."""

    raw_products: Table
    products: Table
    raw_orders: Table
    orders: Table
    daily: Table
    trailing: Table
    monthly: Table

    @property
    def tables(self) -> tuple[Table, ...]:
        """All of them; each comes after those that it is built from."""
        return (
            self.raw_products, self.products, self.raw_orders, self.orders, self.daily, self.trailing, self.monthly,
        )  # fmt: skip


def make_shop(
    *,
    closed: Mapping[str, str] | None = None,
    max_quarantined: float = 0.5,
    revision: int = 1,
) -> Shop:
    """Declare the shop. Two shops that are made alike are the same logical work under different objects."""
    raw_products = bronze("products", source="products.csv")

    @silver(raw=raw_products, contract=Product, key=["product_id"])
    def products(raw: pl.LazyFrame) -> pl.LazyFrame:
        """The catalogue."""
        return raw

    class Order(Contract):
        """One order of one product."""

        order_id: int = field(gt=0)
        product_id: int = field(known_in=products)
        quantity: int = field(gt=0, le=1000, severity={"le": WARNING})
        price: float = field(ge=0)

    raw_orders = bronze("orders", source="orders/{day}.csv", partition=DAY, closed=closed)

    @silver(
        raw=raw_orders,
        contract=Order,
        key=["order_id"],
        partition=DAY,
        partitionwise=True,
        max_quarantined=max_quarantined,
        revision=revision,
    )
    def orders(raw: pl.LazyFrame) -> pl.LazyFrame:
        """Typed orders."""
        return raw

    @gold(
        lines=orders,
        products=products.by("product_id"),
        contract=Total,
        key=["department"],
        partition=DAY,
        partitionwise=True,
    )
    def daily(lines: pl.LazyFrame, products: pl.LazyFrame) -> pl.LazyFrame:
        """Orders by day and department."""
        return (
            lines.join(products.select("product_id", "department"), on="product_id")
            .group_by("day", "department")
            .agg(orders=pl.len().cast(pl.Int64), units=pl.col("quantity").sum())
        )

    @gold(window=daily.trailing(days=3), contract=Total, key=["department"], partition=DAY, partitionwise=True)
    def trailing(window: pl.LazyFrame) -> pl.LazyFrame:
        """Orders by department over the three days that end with the day."""
        return window.group_by("day", "department").agg(pl.col("orders").sum(), pl.col("units").sum())

    monthly = gold_sql(
        "monthly",
        "SELECT month, product_id, count(*) AS orders FROM lines GROUP BY month, product_id",
        lines=orders,
        contract=Monthly_,
        key=["product_id"],
        description="Orders by month and product.",
        partition=MONTH,
        partitionwise=True,
    )
    return Shop(raw_products, products, raw_orders, orders, daily, trailing, monthly)


def order(order_id: object, product_id: object = 1, quantity: object = 1, price: object = "2.5") -> dict[str, object]:
    """One row of an export, as text or anything that prints."""
    return {"order_id": order_id, "product_id": product_id, "quantity": quantity, "price": price}


def as_csv(rows: Rows, columns: Sequence[str] | None = None) -> str:
    """Rows as a CSV text with a header; the columns are those of the first row if not given."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns or rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def make_run(folder: Path, **settings: Any) -> Run:
    """A run on a landing zone and a lake below ``folder``; nothing is flushed to the disk, which tests need not."""
    landing = folder / "landing"
    landing.mkdir(parents=True, exist_ok=True)
    return Run(Lake(folder / "lake", durable=False), LandingZone(landing), started_at=STARTED, **settings)


def land(run: Run, name: str, content: str | bytes) -> Path:
    """Deliver a file."""
    assert run.landing is not None
    path = run.landing.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def land_orders(run: Run, day: str, rows: Rows) -> Path:
    """Deliver a day's orders."""
    return land(run, f"orders/{day}.csv", as_csv(rows, ORDER_COLUMNS if not rows else None))


def land_products(run: Run, departments: Mapping[int, str]) -> Path:
    """Deliver the catalogue, given as the department of each product."""
    rows = [{"product_id": product, "department": name, "shelf": "A1"} for product, name in departments.items()]
    return land(run, "products.csv", as_csv(rows))


def orders_of(day: str) -> list[dict[str, object]]:
    """Three orders of two products, which differ from day to day."""
    first = DAYS.index(day) * 10 + 1
    return [order(first, 1, 1), order(first + 1, 1, 2), order(first + 2, 2, 3)]


def land_everything(run: Run) -> None:
    """Deliver the catalogue and five good days."""
    land_products(run, {1: "BAKERY", 2: "DAIRY", 3: "FUEL"})
    for day in DAYS:
        land_orders(run, day, orders_of(day))


def refine_all(shop: Shop, run: Run, keys: Iterable[str] | None = None) -> dict[str, Report]:
    """Refine every table, the daily ones for ``keys`` alone if they are given; the reports by ``layer/name``."""
    wanted = None if keys is None else list(keys)
    return {
        table.path: refine(table, wanted if wanted and table.partition == DAY else table.partition.keys(), run)
        for table in shop.tables
    }


def pin(table: Table, run: Run) -> Snapshot:
    """The latest version of a table."""
    return run.lake.pin(table.path, table.partition)


def pin_quarantine(table: Table, run: Run) -> Snapshot:
    """The latest version of a table's quarantine."""
    assert table.quarantine_path is not None
    return run.lake.pin(table.quarantine_path, table.partition)


def rows_of(snapshot: Snapshot, *keys: str) -> pl.DataFrame:
    """The rows of some partitions, all if none is named, as they are stored."""
    return snapshot.scan(keys or snapshot.partition.keys()).collect()


def names_of(table: Table, run: Run) -> dict[str, tuple[str, ...]]:
    """The names of a table's live files by partition."""
    return {key: tuple(file.path for file in files) for key, files in pin(table, run).files.items()}


def evidence_of(table: Table, run: Run, key: str) -> Evidence:
    """The evidence of a partition's live batch."""
    snapshot = pin(table, run)
    batch_id = snapshot.batch_id(key)
    assert batch_id is not None, f"{table.path} {key} is not committed"
    evidence = EvidenceReader(snapshot.folder)(batch_id)
    assert evidence is not None
    return evidence


def committed_keys(report: Report) -> list[str]:
    """The partitions that a refinement wrote."""
    return [key for key, outcome in report.outcomes.items() if type(outcome).__name__ == "Committed"]


def text_schema(columns: Any, **more: Any) -> pa.DataFrameSchema:
    """A pandera schema for rows that come as text, as those of a CSV file do: values are read as the declared types."""
    return pa.DataFrameSchema(columns, coerce=True, **more)
