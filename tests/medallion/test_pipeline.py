"""Refining several tables at once gives what refining them one after the other gives."""

import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medallion.errors import UnknownPartition
from medallion.outcomes import Report
from medallion.pipeline import refine_all, refine_pieces
from medallion.refine import Run, refine, watching
from tests.builders import (
    DAYS,
    FIRST,
    Shop,
    land,
    land_everything,
    land_orders,
    land_products,
    make_run,
    make_shop,
    names_of,
    order,
    orders_of,
)

DELIVERIES = st.sampled_from(["good", "garbage", "missing", "blocked", "unknown product", "refused row"])


def deliver(run: Run, days: Mapping[str, str]) -> None:
    """Deliver a catalogue, and for each day what its word says."""
    land_products(run, {1: "BAKERY", 2: "DAIRY", 3: "FUEL"})
    for day, kind in days.items():
        if kind == "garbage":
            land(run, f"orders/{day}.csv", b"\x00\xff\x00\xff")
        elif kind == "blocked":
            land_orders(run, day, [order(1, quantity=0)])
        elif kind == "unknown product":
            land_orders(run, day, [*orders_of(day), order(99, product_id=77)])
        elif kind == "refused row":
            land_orders(run, day, [*orders_of(day), order(98, quantity=0)])
        elif kind == "good":
            land_orders(run, day, orders_of(day))


def told(reports: Mapping[str, Report]) -> dict[str, dict[str, tuple[str, str | None]]]:
    """Kind and content of every outcome."""
    return {
        path: {
            key: (type(each).__name__, each.evidence.content if hasattr(each, "evidence") else str(each.error))
            for key, each in report.outcomes.items()
        }
        for path, report in reports.items()
    }


def at_once(shop: Shop, run: Run, workers: int = 2) -> dict[str, Report]:
    """All tables in one go, each partition a piece of its own."""
    pieces = {table: [[key] for key in (*table.partition.keys(),)] for table in shop.tables}
    return {report.table: report for report in refine_pieces(pieces, run, at_once=workers)}


@settings(max_examples=10, deadline=None)
@given(kinds=st.lists(DELIVERIES, min_size=len(DAYS), max_size=len(DAYS)), workers=st.integers(1, 4))
def test_whatever_is_delivered_all_at_once_gives_the_outcomes_and_files_of_one_after_the_other(
    kinds: list[str], workers: int
) -> None:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        shop, days = make_shop(), dict(zip(DAYS, kinds, strict=True))
        alone, together = make_run(Path(one)), make_run(Path(other))
        deliver(alone, days)
        deliver(together, days)
        expected = {table.path: refine(table, table.partition.keys(), alone) for table in shop.tables}
        found = at_once(shop, together, workers)
        strip = str(Path(other)), str(Path(one))
        assert str(told(found)).replace(*strip) == str(told(expected))
        for table in shop.tables:
            assert names_of(table, together) == names_of(table, alone)


def test_a_second_time_everything_is_unchanged(tmp_path: Path) -> None:
    shop, run = make_shop(), make_run(tmp_path)
    land_everything(run)
    at_once(shop, run)
    again = at_once(shop, run)
    assert {type(each).__name__ for report in again.values() for each in report.outcomes.values()} == {"Unchanged"}


def test_pieces_of_two_tables_run_at_the_same_time(tmp_path: Path) -> None:
    shop, run = make_shop(), make_run(tmp_path)
    land_everything(run)
    threads: dict[str, set[str]] = {}
    with watching(lambda path, settled: threads.setdefault(path, set()).add(threading.current_thread().name)):
        at_once(shop, run)
    assert len(set.union(*threads.values())) == 2
    assert set(threads) == {table.path for table in shop.tables}


def test_an_unknown_partition_is_refused_before_anything_is_read_or_written(tmp_path: Path) -> None:
    shop, run = make_shop(), make_run(tmp_path)
    land_everything(run)
    with pytest.raises(UnknownPartition):
        refine_all({shop.raw_orders: [FIRST], shop.orders: [FIRST, "2031-01-01"]}, run)
    assert names_of(shop.raw_orders, run) == {}


def test_whole_tables_are_told_in_the_order_that_was_asked_for_and_their_partitions_in_that_of_the_table(
    tmp_path: Path,
) -> None:
    shop, run = make_shop(), make_run(tmp_path)
    land_everything(run)
    reports = refine_all({table: table.partition.keys()[::-1] for table in shop.tables}, run)
    assert list(reports) == list(shop.tables)
    assert {table: tuple(report.outcomes) for table, report in reports.items()} == {
        table: tuple(table.partition.keys()) for table in shop.tables
    }
    assert {report.name for report in reports.values()} == {"COMPLETE"}
