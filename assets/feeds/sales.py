"""Sales: what the business reads, by day, week and month."""

import polars as pl

from assets.feeds.calendar import DAY, MONTH, WEEK
from assets.feeds.products import products
from assets.feeds.promotions import promotions
from assets.feeds.transactions import transactions
from medallion.contract import CRITICAL, WARNING, Contract, field, rule
from medallion.rules import reconciles
from medallion.tables import gold, gold_sql


class SalesOfDay(Contract):
    """One department's sales on one day."""

    department: str = field()
    lines: int = field(gt=0)
    baskets: int = field(gt=0)
    sales: float = field(ge=0, description="dollars received")
    discounts: float = field(ge=0, description="dollars taken off by card and coupons")

    @rule(CRITICAL)
    def no_more_baskets_than_lines(rows):
        """Every basket has at least one line."""
        return rows.baskets <= rows.lines

    # Department totals are rounded to cents, so that a day of thirty departments may be off by fifteen.
    as_sold = reconciles("lines", count="lines", sums={"sales": "sales_value"}, tolerance=0.25)

    @rule(WARNING, table=True)
    def groceries_were_sold(rows):
        """A day without groceries is a day whose product references broke."""
        return (rows.department == "GROCERY").any()


@gold(
    lines=transactions,
    products=products.by("product_id"),
    contract=SalesOfDay,
    key=["department"],
    partition=DAY,
    partitionwise=True,
    chart="sales",
    owners=["team:finance"],
)
def daily_sales(lines: pl.LazyFrame, products: pl.LazyFrame) -> pl.LazyFrame:
    """Sales by day and department."""
    return (
        lines.join(products.select("product_id", "department"), on="product_id")
        .group_by("day", "department")
        .agg(
            lines=pl.len().cast(pl.Int64),
            baskets=pl.col("basket_id").n_unique().cast(pl.Int64),
            sales=pl.col("sales_value").sum().round(2),
            discounts=pl.sum_horizontal(pl.col("retail_disc", "coupon_disc", "coupon_match_disc").sum()).round(2),
        )
    )


class SalesOfWeek(Contract):
    """One department's sales over seven days."""

    department: str = field()
    days: int = field(in_range=(1, 7), description="days of the window on which the department sold anything")
    lines: int = field(gt=0)
    sales: float = field(ge=0, description="dollars received")


@gold(
    week=daily_sales.trailing(days=7),
    contract=SalesOfWeek,
    key=["department"],
    partition=DAY,
    partitionwise=True,
    chart="sales",
    owners=["team:finance"],
)
def sales_7d(week: pl.LazyFrame) -> pl.LazyFrame:
    """Sales by department over the seven days that end with the day; fewer at the start of the year."""
    return week.group_by("day", "department").agg(
        days=pl.len().cast(pl.Int64), lines=pl.col("lines").sum(), sales=pl.col("sales").sum().round(2)
    )


class PromotedSales(Contract):
    """One week's sales under one kind of promotion."""

    display_location: str = field(description="'none' if the product was not promoted in that store and week")
    mailer_location: str = field()
    lines: int = field(gt=0)
    products: int = field(gt=0)
    sales: float = field(ge=0, description="dollars received")


@gold(
    lines=transactions,
    promotions=promotions,
    contract=PromotedSales,
    key=["display_location", "mailer_location"],
    partition=WEEK,
    chart="sales",
    owners=["team:marketing"],
)
def weekly_promotion_sales(lines: pl.LazyFrame, promotions: pl.LazyFrame) -> pl.LazyFrame:
    """Sales by week and by how the product was promoted in that store."""
    promoted = promotions.select("product_id", "store_id", "display_location", "mailer_location")
    return (
        lines.select("week_start", "product_id", "store_id", "sales_value")
        .join(promoted, on=["product_id", "store_id"], how="left")
        .with_columns(pl.col("display_location", "mailer_location").fill_null("none"))
        .group_by("week_start", "display_location", "mailer_location")
        .agg(
            lines=pl.len().cast(pl.Int64),
            products=pl.col("product_id").n_unique().cast(pl.Int64),
            sales=pl.col("sales_value").sum().round(2),
        )
    )


class HouseholdMonth(Contract):
    """What one household bought in one month."""

    household_id: int = field(gt=0)
    baskets: int = field(gt=0)
    lines: int = field(gt=0)
    shopping_days: int = field(in_range=(1, 31))
    sales: float = field(ge=0, description="dollars received")

    # Some 2,000 households a month, each rounded to a cent.
    as_sold = reconciles("lines", count="lines", sums={"sales": "sales_value"}, tolerance=10)

    @rule(CRITICAL)
    def no_more_days_than_baskets(rows):
        """Every shopping day has a basket."""
        return rows.shopping_days <= rows.baskets


household_months = gold_sql(
    "household_months",
    """
    SELECT month, household_id,
           count(DISTINCT basket_id) AS baskets,
           count(*)                  AS lines,
           count(DISTINCT day)       AS shopping_days,
           round(sum(sales_value)::DECIMAL(18, 4), 2)::DOUBLE AS sales
    FROM lines
    GROUP BY month, household_id
    """,
    lines=transactions,
    contract=HouseholdMonth,
    key=["household_id"],
    description="What each household bought in each month. Written in SQL, run by DuckDB.",
    partition=MONTH,
    partitionwise=True,
    chart="sales",
    owners=["team:loyalty"],
)
