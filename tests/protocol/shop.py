"""A small shop for the tests of the commit protocol: orders by day, judged, and totals by day.

What belongs here: declarations, source files as a function of plain values, and what the tables must hold for them.
What does not: assertions, processes, Dagster.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from medallion.contract import CRITICAL, Contract, field, rule
from medallion.lake import Lake
from medallion.outcomes import Report
from medallion.partitions import Daily
from medallion.refine import Run, refine
from medallion.sources import LandingZone
from medallion.store import Place
from medallion.tables import Table, bronze, gold, silver

DAY = Daily("day", start="2017-03-01", end="2017-03-07")
DAYS = DAY.keys()
STARTED = dt.datetime(2017, 4, 1, tzinfo=dt.UTC)
TABLES = ("bronze/orders", "silver/orders", "quarantine/orders", "gold/totals")

Day = Sequence[int]
"""A delivery: the quantities of its orders. One below 0 is quarantined; more than half of them block the day."""


class Order(Contract):
    """One order."""

    order_id: int = field(gt=0)
    quantity: int = field(ge=0)

    @rule(CRITICAL, table=True)
    def few_are_refused(rows):
        return rows.quantity.max() < 1000


class Total(Contract):
    """One day's orders."""

    shop: str = field()
    orders: int = field(ge=0)
    units: int = field(ge=0)


class Shop:
    """The declared tables; shops that are declared alike do the same logical work."""

    def __init__(self, revision: int = 1) -> None:
        self.raw = raw_orders = bronze("orders", source="orders/{day}.csv", partition=DAY)

        @silver(
            raw=raw_orders, contract=Order, key=["order_id"], partition=DAY, partitionwise=True, max_quarantined=0.9,
            revision=revision,
        )  # fmt: skip
        def orders(raw: pl.LazyFrame) -> pl.LazyFrame:
            """Typed orders."""
            return raw

        self.orders = orders

        @gold(lines=orders, contract=Total, key=["shop"], partition=DAY, partitionwise=True)
        def totals(lines: pl.LazyFrame) -> pl.LazyFrame:
            """Orders by day."""
            return lines.group_by("day").agg(
                shop=pl.lit("one"), orders=pl.len().cast(pl.Int64), units=pl.col("quantity").sum()
            )

        self.totals = totals

    @property
    def tables(self) -> tuple[Table, ...]:
        """In the order in which they are built."""
        return (self.raw, self.orders, self.totals)


def land(landing: Path, day: str, quantities: Day) -> None:
    """Deliver a day's file."""
    folder = landing / "orders"
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["order_id,quantity", *(f"{number},{quantity}" for number, quantity in enumerate(quantities, 1))]
    (folder / f"{day}.csv").write_text("\n".join(lines) + "\n")


def make_run(lake: Place | str, landing: Path, **more: Any) -> Run:
    """A run over a lake and a landing zone."""
    durable = more.pop("durable", False)
    return Run(Lake(lake, durable=durable), LandingZone(landing), started_at=STARTED, **{"run_id": "test", **more})


def build(shop: Shop, keys: Sequence[str], run: Run) -> list[Report]:
    """Bring all tables up to date, in order."""
    return [refine(table, keys, run) for table in shop.tables]


def expected(accepted: Mapping[str, Day]) -> dict[str, dict[str, list[tuple[Any, ...]]]]:
    """What each table must hold, as a function of the delivered days that were accepted."""
    numbered = {day: list(enumerate(quantities, 1)) for day, quantities in accepted.items()}
    good = {day: [(n, q) for n, q in rows if q >= 0] for day, rows in numbered.items()}
    return {
        "silver/orders": good,
        "quarantine/orders": {
            day: [(str(n), str(q)) for n, q in rows if q < 0]
            for day, rows in numbered.items()
            if min(q for _, q in rows) < 0
        },
        "gold/totals": {day: [(len(rows), sum(q for _, q in rows))] for day, rows in good.items() if rows},
    }


_COLUMNS = {
    "bronze/orders": ("order_id", "quantity"),
    "silver/orders": ("order_id", "quantity"),
    "quarantine/orders": ("order_id", "quantity"),
    "gold/totals": ("orders", "units"),
}


def held_by(lake: Place | str) -> dict[str, dict[str, list[tuple[Any, ...]]]]:
    """What each table holds, by partition."""
    opened = Lake(lake, durable=False)
    found: dict[str, dict[str, list[tuple[Any, ...]]]] = {}
    for path in TABLES:
        snapshot = opened.pin(path, DAY)
        columns = _COLUMNS[path]
        found[path] = {
            day: sorted(snapshot.scan([day], columns).select(columns).collect().rows()) for day in snapshot.files
        }
    return found


def contents(lake: Place | str) -> dict[str, dict[str, str | None]]:
    """The content digest of every partition of every table."""
    opened = Lake(lake, durable=False)
    return {
        path: {day: snapshot.content(day) for day in snapshot.files}
        for path in TABLES
        for snapshot in [opened.pin(path, DAY)]
    }
