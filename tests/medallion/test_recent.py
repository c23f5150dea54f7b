"""What a run recalls is what reading the files would give, and it keeps no more than it may."""

import tempfile
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from medallion.outcomes import Committed
from medallion.recent import Recent, keeping, recall
from medallion.refine import refine
from tests.builders import (
    DAYS,
    FIRST,
    SECOND,
    land,
    land_everything,
    land_orders,
    make_run,
    make_shop,
    order,
    orders_of,
)

PLENTY = 1 << 30
ROWS = pl.DataFrame({"number": range(1000)})


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from(DAYS), unique=True), st.sets(st.sampled_from(["order_id", "quantity", "day"])))
def test_recalled_rows_are_those_that_a_scan_reads(keys: list[str], columns: set[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shop, run = make_shop(), make_run(Path(folder))
        land_everything(run)
        recent = Recent(PLENTY)
        with keeping(recent):
            refine(shop.raw_orders, DAYS[:3], run)
            refine(shop.raw_orders, DAYS[3:], run)
            table = run.lake.pin(shop.raw_orders.path, shop.raw_orders.partition)
            for wanted in (columns or None, None):
                kept = recall(table, keys, wanted)
                assert (kept is None) == (not keys)
                if kept is not None:
                    assert_frame_equal(kept.collect(), table.scan(keys, wanted).collect())


def test_a_column_that_only_other_partitions_have_is_recalled_as_a_scan_reads_it(tmp_path: Path) -> None:
    shop, run = make_shop(), make_run(tmp_path)
    land_orders(run, FIRST, orders_of(FIRST))
    lines = (run.landing.root / f"orders/{FIRST}.csv").read_text().splitlines()  # type: ignore[union-attr]
    wider = [lines[0] + ",note", *(line + ",hello" for line in lines[1:])]
    land(run, f"orders/{SECOND}.csv", "\n".join(wider).encode())
    with keeping(Recent(PLENTY)):
        refine(shop.raw_orders, [FIRST, SECOND], run)
        table = run.lake.pin(shop.raw_orders.path, shop.raw_orders.partition)
        for keys in ([FIRST], [SECOND], [FIRST, SECOND]):
            kept = recall(table, keys)
            assert kept is not None
            assert_frame_equal(kept.collect(), table.scan(keys).collect())


def test_what_another_run_has_replaced_meanwhile_is_read_and_not_recalled(tmp_path: Path) -> None:
    shop, run = make_shop(), make_run(tmp_path)
    land_everything(run)
    with keeping(Recent(PLENTY)):
        refine(shop.raw_orders, DAYS, run)
        land_orders(run, FIRST, [order(7)])
        with keeping(Recent(PLENTY)):  # another run, with a memory of its own
            assert isinstance(refine(shop.raw_orders, [FIRST], run).outcomes[FIRST], Committed)
        table = run.lake.pin(shop.raw_orders.path, shop.raw_orders.partition)
        assert recall(table, [FIRST]) is None
        assert recall(table, [SECOND]) is not None


def test_nothing_is_kept_outside_of_a_run_or_after_it(tmp_path: Path) -> None:
    shop, run = make_shop(), make_run(tmp_path)
    land_everything(run)
    refine(shop.raw_orders, [FIRST], run)
    with keeping(Recent(PLENTY)):
        table = run.lake.pin(shop.raw_orders.path, shop.raw_orders.partition)
        assert recall(table, [FIRST]) is None
        refine(shop.raw_orders, [SECOND], run)
        table = run.lake.pin(shop.raw_orders.path, shop.raw_orders.partition)
        assert recall(table, [SECOND]) is not None
        assert recall(table, [FIRST, SECOND]) is None
    assert recall(table, [SECOND]) is None


def test_what_was_read_makes_room_and_what_nobody_has_read_yet_does_not() -> None:
    recent = Recent(2 * int(ROWS.estimated_size()))
    for name in ("a", "b", "c"):
        recent.keep(ROWS, {f"{name}1": (0, 400), f"{name}2": (400, 600)})
    assert recent.find(["c1"]) is None, "there was room for two"
    assert recent.find(["a1"]) is not None
    recent.keep(ROWS, {"d1": (0, 1000)})
    assert recent.find(["d1"]) is None, "a2 is still to be read"
    assert recent.find(["a2"]) is not None
    recent.keep(ROWS, {"e1": (0, 1000)})
    assert recent.find(["e1"]) is not None
    assert recent.find(["a1"]) is None
    assert recent.find(["b1"]) is not None


def test_neighbours_come_in_one_piece_and_others_in_the_order_asked_for() -> None:
    recent = Recent(PLENTY)
    recent.keep(ROWS, {"a": (0, 100), "b": (100, 0), "c": (100, 300), "d": (400, 600)})
    assert [piece.height for piece in recent.find(["a", "b", "c"]) or []] == [400]
    pieces = recent.find(["d", "a"]) or []
    assert [piece.get_column("number").to_list()[0] for piece in pieces] == [400, 0]


@pytest.mark.parametrize("limit", [0, 1])
def test_rows_that_are_larger_than_the_limit_are_not_kept(limit: int) -> None:
    recent = Recent(limit)
    recent.keep(ROWS, {"a": (0, 1000)})
    assert recent.find(["a"]) is None
