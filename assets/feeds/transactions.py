"""Grocery transactions: one row per product in a basket, as the stores export them each night."""

import datetime as dt
from typing import Annotated

import polars as pl

from assets.feeds.calendar import DAY, ZONE
from assets.feeds.households import households
from assets.feeds.products import products
from medallion.contract import ERROR, INFO, WARNING, Contract, field, rule
from medallion.rules import at_least, belongs_to_partition, distribution, fresh, kpi, volume
from medallion.tables import bronze, silver


class Transaction(Contract):
    """One product line of one basket.

    The rules are those of a grocery analyst. Fuel is sold by volume, in thousandths of a gallon, so its quantities of
    many thousands are no fault; what gives it away is a price below one cent a unit. Anything else of which one basket
    holds more than a hundred deserves a look, and stays in the sales.
    """

    day: dt.date = field(description="the store-local day of the sale")
    household_id: int = field(
        gt=0,
        known_in=households,
        severity={"known_in": INFO},
        description="only one household in three answered the survey, so an unknown one is counted, not refused",
    )
    store_id: int = field(gt=0)
    basket_id: int = field(gt=0)
    product_id: int = field(
        known_in=products, description="a sale of an unknown product would be missing from every department's total"
    )
    quantity: int = field(gt=0, description="a line that sold nothing is a void or an adjustment, not a sale")
    sales_value: float = field(
        ge=0,
        gt=0,
        severity={"gt": WARNING},
        description="dollars received; below zero is a till error, zero is a giveaway that somebody should know of",
    )
    retail_disc: float = field(ge=0, description="dollars taken off by the loyalty card")
    coupon_disc: float = field(ge=0, description="dollars taken off by a manufacturer's coupon")
    coupon_match_disc: float = field(ge=0, description="dollars by which the retailer matched the coupon")
    week: int = field(in_range=(1, 53), description="the retailer's week of the year")
    sold_at: Annotated[pl.Datetime, "us", "UTC"] = field(description="the moment of the sale")

    @rule(WARNING)
    def few_unless_by_volume(rows):
        """More than 100 of something in one basket, unless it costs less than a cent a unit, as fuel does."""
        return (rows.quantity <= 100) | (rows.sales_value < rows.quantity * 0.01)

    @rule(INFO)
    def sold_by_piece(rows):
        """Lines sold by volume are counted, since unit totals that include them mean nothing."""
        return (rows.quantity <= 100) | (rows.sales_value >= rows.quantity * 0.01)

    @rule(WARNING)
    def coupon_within_price(rows):
        """A coupon worth more than the product it was redeemed for: allowed at the till, often a wrong coupon."""
        return rows.coupon_disc <= rows.sales_value

    @rule(ERROR)
    def match_within_coupon(rows):
        """The retailer matches a coupon at most once; more is a booking error that finance has to correct."""
        return rows.coupon_match_disc <= rows.coupon_disc

    # A row elsewhere would be counted on the wrong day.
    on_its_day = belongs_to_partition("sold_at", timezone=ZONE)
    # The quietest day of the year, Thanksgiving, has 1,994 lines; below 1,000 an export was cut short.
    a_whole_day = at_least(1000)
    # Weekends sell half as much again as weekdays; Thanksgiving is worth a look, and is no fault.
    usual_volume = volume(warning=0.4, critical=0.7)
    # Prices and what is bought change slowly; a till that exports cents instead of dollars shows here at once.
    usual_prices = distribution("sales_value", warning=0.08, critical=0.3, window=28, least=7)
    usual_line = kpi("dollars a line", pl.col("sales_value").mean(), minimum=2, maximum=5, severity=WARNING)
    # The stores close at midnight; an export that ends in the afternoon is not the day's last.
    until_closing = fresh("sold_at", within=dt.timedelta(hours=3), timezone=ZONE)


raw_transactions = bronze(
    "transactions",
    source="transactions/{day}.csv",
    partition=DAY,
    closed={"2017-12-25": "the stores are closed on Christmas Day"},
    description="Purchase lines exactly as the stores export them each night, every column as text.",
    owners=["team:store-systems"],
)


@silver(
    raw=raw_transactions,
    contract=Transaction,
    key=["basket_id", "product_id"],
    partition=DAY,
    partitionwise=True,
    max_quarantined={"*": 0.05, "product_id.known_in": 0.02},
    owners=["team:store-systems"],
)
def transactions(raw: pl.LazyFrame) -> pl.LazyFrame:
    """Purchase lines, typed, by store-local day.

    The export writes times in UTC without saying so.
    """
    return raw.rename({"transaction_timestamp": "sold_at"})
