"""Promotions: where each product was displayed and advertised, by store and week."""

import datetime as dt

import polars as pl

from assets.feeds.calendar import WEEK
from assets.feeds.products import products
from medallion.contract import CRITICAL, Contract, field, rule
from medallion.tables import bronze, silver

FIRST_WEEK = dt.date(2016, 12, 26)


class Promotion(Contract):
    """How one product was promoted in one store in one week.

    A product has one display code and one mailer code a week. Rows that give two are contradictory, and joining sales
    to both would count the sales twice: they are refused as ``conflicting_content`` until the stores say which holds.
    """

    product_id: int = field(known_in=products)
    store_id: int = field(gt=0)
    display_location: str = field(isin=list("01234579A6"), description="0 is not on display, A is in the aisle")
    mailer_location: str = field(isin=list("0ACDFHJLPXZ"), description="0 is not advertised, A is an inside page")
    week: int = field(in_range=(1, 53))

    @rule(CRITICAL)
    def in_its_week(rows):
        """The retailer's week number is that of the delivery."""
        return rows.week == (rows.week_start - FIRST_WEEK).dt.total_days() // 7 + 1


raw_promotions = bronze(
    "promotions",
    source="promotions/{week_start}.parquet",
    partition=WEEK,
    description="Displays and mailers by product, store and week, as delivered.",
)


@silver(
    raw=raw_promotions,
    contract=Promotion,
    key=["product_id", "store_id"],
    partition=WEEK,
    partitionwise=True,
    owners=["team:marketing"],
)
def promotions(raw: pl.LazyFrame) -> pl.LazyFrame:
    """Displays and mailers: one row a product, store and week."""
    return raw
