"""How far each table has come moves with commits, and with nothing else."""

import datetime as dt

import pytest

from medallion.failpoints import Interrupted, armed
from medallion.project import Project
from medallion.refine import Run, refine
from medallion.watermarks import Watermarks, watermarks
from tests.builders import (
    DAYS,
    FIRST,
    FOURTH,
    LAST,
    SECOND,
    THIRD,
    Shop,
    land_everything,
    land_orders,
    land_products,
    make_run,
    make_shop,
    orders_of,
    refine_all,
)


def marks(shop: Shop, run: Run) -> Watermarks:
    return watermarks(Project(shop.tables), run.lake, run.landing)


def positions(shop: Shop, run: Run) -> dict[str, tuple[str | None, str | None]]:
    """Contiguous and newest, from the landing zone to gold."""
    found = marks(shop, run)
    named = {
        "delivered": ("bronze/orders", "delivered"),
        "ingested": ("bronze/orders", None),
        "accepted": ("silver/orders", None),
        "published": ("gold/daily", None),
    }
    return {
        name: (found.of(*which).contiguous, found.of(*which).newest) for name, which in named.items()
    }  # fmt: skip


def test_the_four_positions_are_kept_apart(run: Run, shop: Shop):
    land_products(run, {1: "BAKERY", 2: "DAIRY"})
    for day in (FIRST, SECOND, THIRD):
        land_orders(run, day, orders_of(day))
    for table in (shop.raw_products, shop.products):
        refine(table, ["all"], run)
    refine(shop.raw_orders, [FIRST, SECOND, THIRD], run)
    refine(shop.orders, [FIRST, SECOND], run)
    refine(shop.daily, [FIRST], run)
    assert positions(shop, run) == {
        "delivered": (THIRD, THIRD), "ingested": (THIRD, THIRD), "accepted": (SECOND, SECOND),
        "published": (FIRST, FIRST),
    }  # fmt: skip
    assert [each.stage for each in marks(shop, run).marks if "orders" in each.table or each.table == "gold/daily"] == [
        "delivered", "ingested", "accepted", "published",
    ]  # fmt: skip


def test_a_gap_holds_back_the_contiguous_watermark_and_not_the_newest(landed: Run, shop: Shop):
    refine_all(shop, landed, [FIRST, SECOND, FOURTH])
    assert positions(shop, landed)["accepted"] == (SECOND, FOURTH)
    refine_all(shop, landed, [THIRD])
    assert positions(shop, landed)["accepted"] == (FOURTH, FOURTH)


def test_a_day_without_the_first_has_no_contiguous_watermark(landed: Run, shop: Shop):
    refine_all(shop, landed, [SECOND])
    assert positions(shop, landed)["ingested"] == (None, SECOND)


def test_the_lag_is_what_could_be_committed_and_is_not(landed: Run, shop: Shop):
    refine_all(shop, landed, [FIRST])
    refine(shop.raw_orders, [SECOND, THIRD], landed)
    found = marks(shop, landed)
    (to_source,) = found.behind("bronze/orders")
    assert (to_source.behind, to_source.partitions, to_source.rows) == ("source", (FOURTH, LAST), None)
    assert to_source.seconds == 2 * 86400
    (to_bronze,) = found.behind("silver/orders")
    assert (to_bronze.partitions, to_bronze.rows, to_bronze.seconds) == ((SECOND, THIRD), 6, 2 * 86400)
    assert [each.partitions for each in found.behind("gold/daily")] == [(), ()]


def test_nothing_is_behind_in_a_lake_that_is_built(built: Run, shop: Shop):
    assert {(each.partitions, each.rows, each.seconds or 0) for each in marks(shop, built).lags} == {((), 0, 0.0)}


def test_a_closed_day_is_delivered_and_is_passed(tmp_path):
    run, shop = make_run(tmp_path), make_shop(closed={SECOND: "a holiday"})
    land_everything(run)
    (tmp_path / f"landing/orders/{SECOND}.csv").unlink()
    refine_all(shop, run)
    assert positions(shop, run) == dict.fromkeys(("delivered", "ingested", "accepted", "published"), (LAST, LAST))


@pytest.mark.parametrize("point", ["judged", "staged", "evidence written", "table files written"])
def test_an_attempt_that_has_not_committed_moves_nothing(landed: Run, shop: Shop, point: str):
    refine_all(shop, landed, [FIRST])
    before = positions(shop, landed)
    refine(shop.raw_orders, [SECOND], landed)
    with armed(f"{point}=raise"), pytest.raises(Interrupted):
        refine(shop.orders, [SECOND], landed)
    after = positions(shop, landed)
    assert (after["accepted"], after["published"]) == (before["accepted"], before["published"])


def test_a_watermark_covers_time_to_the_end_of_its_window(built: Run, shop: Shop):
    until = marks(shop, built).of("silver/orders").until
    assert until == dt.datetime(2017, 2, 4, 5, tzinfo=dt.UTC), "midnight in New York"
    assert marks(shop, built).of("silver/products").until is None
    assert marks(shop, built).of("silver/orders").partitions == len(DAYS)
