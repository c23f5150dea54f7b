"""Thirty days of sales for tests: a day's file, silver, and gold by trailing week, calendar week and month."""

import polars as pl

from medallion.contract import Contract, field
from medallion.partitions import Daily, Monthly, Weekly
from medallion.refine import Run
from medallion.tables import Table, bronze, gold, silver
from tests.builders import land

DAY = Daily("day", start="2017-04-01", end="2017-05-01")
WEEK = Weekly("week", start="2017-04-03", end="2017-05-01")
MONTH = Monthly("month", start="2017-04-01", end="2017-05-01")


class Sale(Contract):
    """One sale."""

    sale_id: int = field(gt=0)
    units: int = field(ge=0)


class Sold(Contract):
    """Sales of some days."""

    shop: str = field()
    units: int = field(ge=0)


def deliver(run: Run, day: str, units: int) -> None:
    """A day's two sales."""
    land(run, f"sales/{day}.csv", f"sale_id,units\n1,{units}\n2,{units + 1}\n")


def _sum(rows: pl.LazyFrame, column: str) -> pl.LazyFrame:
    return rows.group_by(column).agg(pl.col("units").sum()).with_columns(shop=pl.lit("one"))


def make_tables() -> tuple[Table, ...]:
    """The declared tables, each after those that it is built from."""
    raw = bronze("sales", source="sales/{day}.csv", partition=DAY)

    @silver(raw=raw, contract=Sale, key=["sale_id"], partition=DAY, partitionwise=True)
    def sales(raw: pl.LazyFrame) -> pl.LazyFrame:
        """Typed sales."""
        return raw

    @gold(rows=sales.trailing(days=7), contract=Sold, key=["shop"], partition=DAY, partitionwise=True)
    def sales_7d(rows: pl.LazyFrame) -> pl.LazyFrame:
        """Units of seven days."""
        return _sum(rows, "day")

    @gold(rows=sales, contract=Sold, key=["shop"], partition=WEEK, partitionwise=True)
    def sales_of_week(rows: pl.LazyFrame) -> pl.LazyFrame:
        """Units of a week."""
        return _sum(rows, "week")

    @gold(rows=sales, contract=Sold, key=["shop"], partition=MONTH, partitionwise=True)
    def sales_of_month(rows: pl.LazyFrame) -> pl.LazyFrame:
        """Units of a month."""
        return _sum(rows, "month")

    return (raw, sales, sales_7d, sales_of_month, sales_of_week)
