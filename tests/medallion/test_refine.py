"""The laws of the one path that every table takes, and the cases from the field (K…) that it has to survive."""

import datetime as dt
import hashlib
import resource
import shutil
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandera.polars as pa
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from medallion.contract import CRITICAL, WARNING, Contract, field, rule
from medallion.errors import (
    ConfigurationError,
    InputNotCommitted,
    RevisionRefused,
    SourceMissing,
    SourceUnreadable,
    StorageFailed,
    TransformFailed,
    UnknownPartition,
)
from medallion.evidence import read_held
from medallion.gate import FAILURES, WARNINGS
from medallion.outcomes import Blocked, Committed, Failed, Report, Unchanged
from medallion.partitions import Daily
from medallion.refine import Run, pending, refine, watching
from medallion.tables import Table, bronze, gold, gold_sql, silver
from tests.builders import (
    DAY,
    DAYS,
    FIRST,
    FOURTH,
    LAST,
    MONTH,
    ORDER_COLUMNS,
    SECOND,
    THIRD,
    Shop,
    as_csv,
    committed_keys,
    evidence_of,
    land,
    land_everything,
    land_orders,
    land_products,
    make_run,
    make_shop,
    names_of,
    order,
    orders_of,
    pin,
    pin_quarantine,
    refine_all,
    rows_of,
    text_schema,
)

MIDNIGHT = dt.datetime.fromisoformat("2017-01-01")

few = settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
delivered = st.lists(
    st.builds(
        order,
        st.sampled_from(["1", "2", "3", "0", "x", "", "4.0"]),
        st.sampled_from(["1", "2", "9", "", "?"]),
        st.sampled_from(["1", "2", "2000", "0", "1.5", ""]),
        st.sampled_from(["2.5", "-", "-1", "", "1e3"]),
    ),
    max_size=12,
)


def only(report: Report) -> Any:
    """The outcome of the one partition that was asked for."""
    (outcome,) = report.outcomes.values()
    return outcome


def kinds(report: Report) -> dict[str, str]:
    return {key: type(outcome).__name__ for key, outcome in report.outcomes.items()}


def reasons_of(rows: pl.DataFrame) -> list[list[str]]:
    return [[failure["rule"] for failure in failures] for failures in rows[FAILURES]]


def state_of(shop: Shop, run: Run) -> dict[str, Any]:
    """Version and file names of every table."""
    return {table.path: (pin(table, run).version, names_of(table, run)) for table in shop.tables}


def build_orders(shop: Shop, run: Run, keys: Any = DAYS) -> Report:
    """Refine up to silver orders, and give the report of that."""
    for table in (shop.raw_products, shop.products):
        refine(table, table.partition.keys(), run)
    refine(shop.raw_orders, keys, run)
    return refine(shop.orders, keys, run)


def bad_orders(count: int = 3) -> list[dict[str, object]]:
    """Orders that break an ERROR rule."""
    return [order(900 + number, quantity=0) for number in range(count)]


# Law 1: read = accepted + quarantined + collapsed


@few
@given(st.lists(delivered, min_size=1, max_size=3))
def test_every_row_that_is_read_is_published_or_quarantined_or_collapsed(days):
    with tempfile.TemporaryDirectory() as folder:
        run, shop, keys = make_run(Path(folder)), make_shop(max_quarantined=1.0), DAYS[: len(days)]
        land_products(run, {1: "BAKERY", 2: "DAIRY"})
        for key, rows in zip(keys, days, strict=True):
            land_orders(run, key, rows)
        report = build_orders(shop, run, keys)
        for key, rows in zip(keys, days, strict=True):
            outcome = report.outcomes[key]
            assert isinstance(outcome, Committed)
            verdict = outcome.verdict
            published, refused = rows_of(pin(shop.orders, run), key), rows_of(pin_quarantine(shop.orders, run), key)
            assert verdict.read == len(rows) == verdict.accepted + verdict.quarantined + verdict.collapsed
            assert (published.height, refused.height) == (verdict.accepted, verdict.quarantined)
            assert published["order_id"].is_unique().all()
            assert all(reasons_of(refused))
            # What is refused is kept as it came, and told apart by the row of the file that it came from.
            assert refused.height == 0 or refused["_source_row"].is_unique().all()
            for row in refused.iter_rows(named=True):
                came = {name: value or None for name, value in rows[row["_source_row"] - 1].items()}
                assert {name: row[name] for name in ORDER_COLUMNS} == came


def test_six_rows_with_one_bad_one_are_five_published_and_one_quarantined_with_every_reason(run: Run, shop: Shop):
    """K12."""
    land_products(run, {1: "BAKERY"})
    land_orders(run, FIRST, [*(order(number) for number in range(1, 6)), order(6, 99, 0, -1)])
    verdict = only(build_orders(shop, run, [FIRST])).verdict
    assert (verdict.read, verdict.accepted, verdict.quarantined) == (6, 5, 1)
    assert rows_of(pin(shop.orders, run), FIRST)["order_id"].to_list() == [1, 2, 3, 4, 5]
    refused = rows_of(pin_quarantine(shop.orders, run), FIRST)
    assert refused.select(ORDER_COLUMNS).rows() == [("6", "99", "0", "-1")]
    assert sorted(reasons_of(refused)[0]) == ["price.ge", "product_id.known_in", "quantity.gt"]
    assert refused.select("_source_file", "_source_row").rows() == [(f"orders/{FIRST}.csv", 6)]
    assert verdict.quarantined_by_rule == {"price.ge": 1, "product_id.known_in": 1, "quantity.gt": 1}


# Law 2: running a batch twice equals running it once


def test_what_is_built_a_second_time_is_unchanged_with_the_same_versions_and_file_names(built: Run, shop: Shop):
    before = state_of(shop, built)
    for report in refine_all(shop, built).values():
        assert report.name == "COMPLETE"
        assert set(kinds(report).values()) == {"Unchanged"}
    assert state_of(shop, built) == before


def test_an_unchanged_partition_keeps_the_evidence_of_the_run_that_made_it(built: Run, shop: Shop):
    outcome = only(refine(shop.orders, [FIRST], replace(built, run_id="later")))
    assert isinstance(outcome, Unchanged)
    assert outcome.evidence.run_id == "manual"
    assert outcome.verdict.accepted == 3


def test_the_same_work_has_the_same_names_in_another_lake(built: Run, shop: Shop, tmp_path: Path):
    elsewhere = make_run(tmp_path / "elsewhere", run_id="other")
    land_everything(elsewhere)
    refine_all(make_shop(), elsewhere)
    assert [names_of(table, elsewhere) for table in shop.tables] == [names_of(table, built) for table in shop.tables]


def test_how_a_run_is_sliced_does_not_show_in_what_is_written(built: Run, shop: Shop, tmp_path: Path):
    sliced = make_run(tmp_path / "sliced", slice_bytes=1)
    land_everything(sliced)
    refine_all(shop, sliced)
    assert pin(shop.orders, sliced).version == len(DAYS)
    assert [names_of(table, sliced) for table in shop.tables] == [names_of(table, built) for table in shop.tables]


def test_what_a_day_holds_does_not_depend_on_what_was_delivered_for_other_days(landed: Run, shop: Shop, tmp_path: Path):
    alone = make_run(tmp_path / "alone")
    for run in (landed, alone):
        land_products(run, {1: "BAKERY", 2: "DAIRY"})
        for day in DAYS:
            land_orders(run, day, orders_of(day))
        land(run, f"orders/{SECOND}.csv", as_csv([{**row, "coupon": "X"} for row in orders_of(SECOND)]))
        land(run, f"orders/{THIRD}.csv", "order_id\n1\n")
    refine(shop.raw_orders, DAYS, landed)
    for day in reversed(DAYS):
        refine(shop.raw_orders, [day], alone)
    assert names_of(shop.raw_orders, alone) == names_of(shop.raw_orders, landed)


def test_a_shuffled_and_duplicated_source_gives_the_same_silver_and_leaves_gold_unchanged(built: Run, shop: Shop):
    """K7."""
    content, gold_state = pin(shop.orders, built).content(SECOND), state_of(shop, built)["gold/daily"]
    one, two, three = orders_of(SECOND)
    land_orders(built, SECOND, [three, one, two, one, three, one])
    reports = refine_all(shop, built)
    assert committed_keys(reports["bronze/orders"]) == committed_keys(reports["silver/orders"]) == [SECOND]
    assert pin(shop.orders, built).content(SECOND) == content
    assert evidence_of(shop.orders, built, SECOND).verdict.collapsed == 3
    assert set(kinds(reports["gold/daily"]).values()) == {"Unchanged"}
    assert state_of(shop, built)["gold/daily"] == gold_state


@few
@given(delivered, st.randoms(use_true_random=False))
def test_the_order_of_a_delivery_and_copies_in_it_never_change_what_is_published(rows, random):
    again = [*rows, *(random.choice(rows) for _ in range(3) if rows)]
    random.shuffle(again)
    with tempfile.TemporaryDirectory() as folder:
        run, shop = make_run(Path(folder)), make_shop(max_quarantined=1.0)
        land_products(run, {1: "BAKERY", 2: "DAIRY"})
        contents = []
        for delivery in (rows, again):
            land_orders(run, FIRST, delivery)
            assert only(build_orders(shop, run, [FIRST])).verdict.read == len(delivery)
            contents.append(pin(shop.orders, run).content(FIRST))
    assert contents[0] == contents[1]


def test_a_source_that_is_corrected_and_put_back_leads_back_to_the_first_batch(built: Run, shop: Shop):
    before = {table.path: names_of(table, built) for table in shop.tables}
    land_orders(built, SECOND, orders_of(SECOND)[:1])
    refine_all(shop, built)
    assert names_of(shop.orders, built) != before["silver/orders"]
    land_everything(built)
    reports = refine_all(shop, built)
    assert committed_keys(reports["silver/orders"]) == [SECOND]
    assert {table.path: names_of(table, built) for table in shop.tables} == before
    assert rows_of(pin(shop.orders, built)).height == 15


def test_evidence_that_was_lost_is_written_again_and_the_files_stay(built: Run, shop: Shop):
    before, evidence = state_of(shop, built), evidence_of(shop.orders, built, FIRST)
    for table in (shop.raw_orders, shop.orders):
        shutil.rmtree(str(pin(table, built).folder / "_evidence"))
        assert set(kinds(refine(table, DAYS, built)).values()) == {"Unchanged"}
    assert state_of(shop, built) == before
    again = evidence_of(shop.orders, built, FIRST)
    assert replace(again, attempt=evidence.attempt) == evidence


# Only what has to change changes


@pytest.mark.parametrize(
    ("day", "months", "windows"),
    [
        (FIRST, ["2017-01-01"], [FIRST, SECOND, THIRD]),
        (SECOND, ["2017-01-01"], [SECOND, THIRD, FOURTH]),
        (LAST, ["2017-02-01"], [LAST]),
    ],
)
def test_a_corrected_row_changes_its_day_and_what_is_built_from_it(built: Run, shop: Shop, day, months, windows):
    """K6."""
    before = {table.path: names_of(table, built) for table in shop.tables}
    rows = orders_of(day)
    land_orders(built, day, [{**rows[0], "quantity": 7}, *rows[1:]])
    reports = refine_all(shop, built)
    changed = {
        "bronze/products": [], "silver/products": [], "bronze/orders": [day], "silver/orders": [day],
        "gold/daily": [day], "gold/trailing": windows, "gold/monthly": months,
    }  # fmt: skip
    if day == SECOND:  # months count orders, so the corrected quantity does not show, and the batch is still another
        assert reports["gold/monthly"].name == "COMPLETE"
    assert {path: committed_keys(report) for path, report in reports.items()} == changed
    for table in shop.tables:
        after = names_of(table, built)
        assert [key for key in after if after[key] != before[table.path][key]] == changed[table.path]


def test_a_corrected_product_makes_stale_exactly_the_days_that_sold_it(landed: Run, shop: Shop):
    land_orders(landed, THIRD, [*orders_of(THIRD), order(99, 3)])
    refine_all(shop, landed)
    land_products(landed, {1: "BAKERY", 2: "DAIRY", 3: "GARDEN"})
    reports = refine_all(shop, landed)
    assert committed_keys(reports["silver/orders"]) == []
    assert committed_keys(reports["gold/daily"]) == [THIRD]
    assert committed_keys(reports["gold/trailing"]) == [THIRD, FOURTH, LAST]
    assert "GARDEN" in rows_of(pin(shop.daily, landed), THIRD)["department"].to_list()


def test_a_product_that_nobody_sold_makes_nothing_stale(built: Run, shop: Shop):
    land_products(built, {1: "BAKERY", 2: "DAIRY", 3: "GARDEN", 4: "TOYS"})
    reports = refine_all(shop, built)
    assert committed_keys(reports["silver/products"]) == ["all"]
    assert [committed_keys(reports[table.path]) for table in shop.tables[3:]] == [[], [], [], []]


def test_a_correction_that_changes_no_result_ends_where_it_makes_no_difference(built: Run, shop: Shop):
    """The shelf of a product is in no total: the days are built again, to the same content, and nothing follows."""
    rows = [
        {"product_id": product, "department": name, "shelf": "B2"} for product, name in ((1, "BAKERY"), (2, "DAIRY"))
    ]
    land(built, "products.csv", as_csv(rows))
    reports = refine_all(shop, built)
    assert committed_keys(reports["gold/daily"]) == list(DAYS)
    assert committed_keys(reports["gold/trailing"]) == []


def test_a_newly_known_product_makes_stale_exactly_the_silver_days_that_held_it(landed: Run, shop: Shop):
    land_orders(landed, SECOND, [*orders_of(SECOND), order(99, 9)])
    refine_all(shop, landed)
    assert evidence_of(shop.orders, landed, SECOND).verdict.quarantined == 1
    land_products(landed, {1: "BAKERY", 2: "DAIRY", 3: "FUEL", 9: "NEW"})
    reports = refine_all(shop, landed)
    assert committed_keys(reports["silver/orders"]) == committed_keys(reports["gold/daily"]) == [SECOND]
    assert evidence_of(shop.orders, landed, SECOND).verdict.quarantined == 0
    assert pin_quarantine(shop.orders, landed).rows(SECOND) == 0


def test_a_product_that_is_no_longer_known_makes_stale_exactly_the_days_that_sold_it(landed: Run, shop: Shop):
    land_orders(landed, SECOND, [*orders_of(SECOND), order(99, 3)])
    refine_all(shop, landed)
    land_products(landed, {1: "BAKERY", 2: "DAIRY"})
    reports = refine_all(shop, landed)
    assert committed_keys(reports["silver/orders"]) == [SECOND]
    assert reasons_of(rows_of(pin_quarantine(shop.orders, landed), SECOND)) == [["product_id.known_in"]]


def test_a_changed_contract_makes_every_day_stale_and_a_made_alike_one_none(built: Run, shop: Shop):
    alike, stricter = make_shop(), make_shop(max_quarantined=0.4)
    assert committed_keys(refine(alike.orders, DAYS, built)) == []
    assert committed_keys(refine(stricter.orders, DAYS, built)) == list(DAYS)


def test_a_repaired_day_is_recomputed_and_the_others_keep_names_and_fence(landed: Run, shop: Shop):
    """K4."""
    land(landed, f"orders/{THIRD}.csv", b"\x89\xff\x00")
    assert kinds(build_orders(shop, landed))[THIRD] == "Failed"
    before = names_of(shop.orders, landed)
    land_orders(landed, THIRD, orders_of(THIRD))
    report = build_orders(shop, landed)
    assert committed_keys(report) == [THIRD]
    after = names_of(shop.orders, landed)
    assert {key: after[key] for key in before} == before
    assert [pin(shop.orders, landed).epoch(key) for key in DAYS] == [1] * 5


# Outcomes


def test_a_blocked_day_leaves_the_previous_version_in_place(built: Run, shop: Shop):
    before, rows = state_of(shop, built), rows_of(pin(shop.orders, built), SECOND)
    land_orders(built, SECOND, bad_orders())
    outcome = only(build_orders(shop, built, [SECOND]))
    assert isinstance(outcome, Blocked)
    assert "blocked by table.quarantined_share" in str(outcome.error)
    assert "the previous version stands" in str(outcome.error)
    assert state_of(shop, built)["silver/orders"] == before["silver/orders"]
    assert rows_of(pin(shop.orders, built), SECOND).equals(rows)
    assert set(kinds(refine(shop.daily, DAYS, built)).values()) == {"Unchanged"}


def test_gold_refuses_a_day_whose_silver_is_blocked_and_names_the_gate_and_the_day(landed: Run, shop: Shop):
    """K3."""
    land_orders(landed, SECOND, bad_orders())
    assert kinds(build_orders(shop, landed)) == {**dict.fromkeys(DAYS, "Committed"), SECOND: "Blocked"}
    outcome = only(refine(shop.daily, [SECOND], replace(landed, run_id="gold alone")))
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, InputNotCommitted)
    assert outcome.error.missing == (("silver/orders", SECOND, "blocked by its gate: table.quarantined_share"),)
    assert f"silver/orders {SECOND} (blocked by its gate: table.quarantined_share)" in str(outcome.error)
    assert not [path for path in (landed.lake.root / "gold").rglob("*") if path.is_file()], "nothing is written"


def test_a_blocked_day_stays_blocked_when_the_next_one_passes(landed: Run, shop: Shop):
    """K2."""
    land_orders(landed, THIRD, bad_orders())
    assert kinds(build_orders(shop, landed, [THIRD])) == {THIRD: "Blocked"}
    assert kinds(build_orders(shop, landed, [FOURTH])) == {FOURTH: "Committed"}
    held = read_held(pin(shop.orders, landed).folder, THIRD)
    assert held is not None
    assert held.verdict.blocked
    assert pending(shop.orders, DAYS[2:4], landed) == [THIRD]


def test_a_blocked_candidate_is_held_and_vanishes_when_a_later_one_is_committed(landed: Run, shop: Shop):
    land_orders(landed, SECOND, [*bad_orders(), *orders_of(SECOND)[:2]])
    outcome = only(build_orders(shop, landed, [SECOND]))
    assert isinstance(outcome, Blocked)
    assert pl.read_parquet(str(outcome.held / "accepted.parquet"))["order_id"].to_list() == [11, 12]
    refused = pl.read_parquet(str(outcome.held / "quarantined.parquet"))
    assert reasons_of(refused) == [["quantity.gt"]] * 3
    held = read_held(pin(shop.orders, landed).folder, SECOND)
    assert held is not None
    assert held.verdict == outcome.verdict
    land_orders(landed, SECOND, orders_of(SECOND))
    assert isinstance(only(build_orders(shop, landed, [SECOND])), Committed)
    assert read_held(pin(shop.orders, landed).folder, SECOND) is None
    assert not outcome.held.exists()


def test_a_held_candidate_vanishes_when_the_source_is_put_back(built: Run, shop: Shop):
    land_orders(built, SECOND, bad_orders())
    assert isinstance(only(build_orders(shop, built, [SECOND])), Blocked)
    land_orders(built, SECOND, orders_of(SECOND))
    assert isinstance(only(build_orders(shop, built, [SECOND])), Unchanged)
    assert read_held(pin(shop.orders, built).folder, SECOND) is None


def test_a_range_with_one_failing_day_is_partial_and_names_it(landed: Run, shop: Shop):
    """K15."""
    (landed.landing.root / f"orders/{SECOND}.csv").unlink()  # type: ignore[union-attr]
    report = refine(shop.raw_orders, DAYS[:3], landed)
    assert report.name == "PARTIAL"
    assert list(report.refused) == [SECOND]
    assert SECOND in str(report.errors[SECOND])
    assert list(report.published) == [FIRST, THIRD]


def test_a_run_in_which_nothing_is_published_failed_and_one_in_which_all_is_there_is_complete(run: Run, shop: Shop):
    assert refine(shop.raw_orders, DAYS, run).name == "FAILED"
    land_everything(run)
    assert refine(shop.raw_orders, DAYS, run).name == "COMPLETE"
    assert refine(shop.raw_orders, DAYS, run).name == "COMPLETE"


def test_outcomes_come_in_the_order_of_partitions_whatever_order_was_asked_for(landed: Run, shop: Shop):
    assert list(refine(shop.raw_orders, [THIRD, FIRST, SECOND], landed).outcomes) == [FIRST, SECOND, THIRD]


def test_a_table_without_a_landing_zone_says_so(run: Run, shop: Shop):
    with pytest.raises(ConfigurationError, match="bronze/orders reads a landing zone, and the run has none"):
        refine(shop.raw_orders, [FIRST], replace(run, landing=None))


def test_an_unknown_day_is_refused_before_anything_is_read(landed: Run, shop: Shop):
    with pytest.raises(UnknownPartition, match="2017-02-04"):
        refine(shop.orders, [FIRST, "2017-02-04"], landed)
    assert list(landed.lake.root.iterdir()) == []


# No rows, no file, closed, as in K5


def test_a_file_with_a_header_and_no_rows_is_committed_empty_with_a_warning_all_the_way(landed: Run, shop: Shop):
    land_orders(landed, SECOND, [])
    reports = refine_all(shop, landed)
    assert {report.name for report in reports.values()} == {"COMPLETE"}
    for path in ("silver/orders", "gold/daily"):
        outcome = reports[path].outcomes[SECOND]
        assert isinstance(outcome, Committed)
        assert outcome.verdict.read == 0
        assert [(finding.rule, finding.severity) for finding in outcome.verdict.findings] == [
            ("table.no_rows", WARNING)
        ]
        assert outcome.evidence.closed is None
    assert pin(shop.daily, landed).rows(SECOND) == 0
    assert rows_of(pin(shop.trailing, landed), SECOND)["orders"].sum() == 3
    assert rows_of(pin(shop.monthly, landed), "2017-01-01")["orders"].sum() == 3


def test_a_day_without_a_file_fails_and_so_does_what_needs_it_and_nothing_else(landed: Run, shop: Shop):
    (landed.landing.root / f"orders/{SECOND}.csv").unlink()  # type: ignore[union-attr]
    reports = refine_all(shop, landed)
    error = reports["bronze/orders"].errors[SECOND]
    assert isinstance(error, SourceMissing)
    assert f"orders/{SECOND}.csv is not in {landed.landing.root}" in str(error)  # type: ignore[union-attr]
    assert f"closed={{'{SECOND}': 'why'}}" in str(error)
    failed = {path: list(report.refused) for path, report in reports.items() if report.refused}
    assert failed == {
        "bronze/orders": [SECOND], "silver/orders": [SECOND], "gold/daily": [SECOND],
        "gold/trailing": [SECOND, THIRD, FOURTH], "gold/monthly": ["2017-01-01"],
    }  # fmt: skip
    assert all(
        isinstance(reports[path].errors[key], InputNotCommitted) for path in list(failed)[1:] for key in failed[path]
    )
    assert reports["gold/monthly"].errors["2017-01-01"].missing == (("silver/orders", SECOND, "not committed"),)


def test_a_day_whose_file_was_taken_away_keeps_what_was_published(built: Run, shop: Shop):
    before = state_of(shop, built)
    (built.landing.root / f"orders/{SECOND}.csv").unlink()  # type: ignore[union-attr]
    assert isinstance(only(refine(shop.raw_orders, [SECOND], built)).error, SourceMissing)
    assert state_of(shop, built) == before


def test_a_closed_day_is_committed_empty_with_its_reason_and_no_finding_all_the_way(landed: Run):
    shop = make_shop(closed={SECOND: "the shop was closed"})
    (landed.landing.root / f"orders/{SECOND}.csv").unlink()  # type: ignore[union-attr]
    reports = refine_all(shop, landed)
    assert {report.name for report in reports.values()} == {"COMPLETE"}
    for path in ("bronze/orders", "silver/orders", "gold/daily"):
        outcome = reports[path].outcomes[SECOND]
        assert isinstance(outcome, Committed)
        assert outcome.evidence.closed == "the shop was closed"
        assert outcome.verdict.findings == ()
    assert rows_of(pin(shop.trailing, landed), SECOND)["orders"].sum() == 3
    assert {report.name for report in refine_all(shop, landed).values()} == {"COMPLETE"}


def test_a_closed_day_can_be_the_first_that_is_built(landed: Run):
    shop = make_shop(closed={SECOND: "the shop was closed"})
    (landed.landing.root / f"orders/{SECOND}.csv").unlink()  # type: ignore[union-attr]
    reports = refine_all(shop, landed, [SECOND])
    assert [kinds(reports[path]) for path in ("bronze/orders", "silver/orders", "gold/daily")] == [
        {SECOND: "Committed"}
    ] * 3
    assert refine_all(shop, landed)["gold/daily"].name == "COMPLETE"
    assert rows_of(pin(shop.orders, landed)).height == 12


def test_a_file_that_comes_for_a_closed_day_counts(landed: Run):
    shop = make_shop(closed={SECOND: "the shop was closed"})
    path = landed.landing.root / f"orders/{SECOND}.csv"  # type: ignore[union-attr]
    path.unlink()
    refine_all(shop, landed)
    land_orders(landed, SECOND, orders_of(SECOND))
    reports = refine_all(shop, landed)
    assert committed_keys(reports["silver/orders"]) == [SECOND]
    assert evidence_of(shop.orders, landed, SECOND).closed is None
    assert pin(shop.orders, landed).rows(SECOND) == 3


# Rows


def test_a_row_that_breaks_only_a_warning_is_published_with_the_rule(landed: Run, shop: Shop):
    """K17."""
    land_orders(landed, FIRST, [order(1, quantity=2000), order(2)])
    verdict = only(build_orders(shop, landed, [FIRST])).verdict
    assert (verdict.accepted, verdict.quarantined) == (2, 0)
    assert [(finding.rule, finding.severity, finding.rows) for finding in verdict.findings] == [
        ("quantity.le", WARNING, 1)
    ]
    published = rows_of(pin(shop.orders, landed), FIRST).select("order_id", "quantity", WARNINGS)
    assert published.rows() == [(1, 2000, ["quantity.le"]), (2, 1, None)]
    assert pin_quarantine(shop.orders, landed).rows(FIRST) == 0


def test_a_value_that_cannot_be_read_as_its_type_is_quarantined_as_it_came(run: Run):
    """K18."""
    schema = text_schema(
        {
            "id": pa.Column(pl.Int64),
            "small": pa.Column(pl.UInt8),
            "on": pa.Column(pl.Date),
            "whole": pa.Column(pl.Int64),
            "price": pa.Column(pl.Float64),
        },
    )
    export = bronze("items", source="items/{day}.csv", partition=DAY)

    @silver(raw=export, contract=schema, key=["id"], partition=DAY, max_quarantined=1.0)
    def items(raw: pl.LazyFrame) -> pl.LazyFrame:
        return raw

    wrong = {"small": "300", "on": "2017-02-30", "whole": "1.5", "price": "-"}
    right: dict[str, object] = {"id": 1, "small": 255, "on": "2017-02-28", "whole": -1, "price": "0.5"}
    rows = [right, *({**right, "id": 2 + n, name: value} for n, (name, value) in enumerate(wrong.items()))]
    for day in (FIRST, SECOND):  # the second commit meets the types that the first one stored
        land(run, f"items/{day}.csv", as_csv(rows))
        refine(export, [day], run)
        assert isinstance(only(refine(items, [day], run)), Committed)
        published = rows_of(pin(items, run), day).select("id", "small", "on", "whole", "price")
        assert published.rows() == [(1, 255, dt.date(2017, 2, 28), -1, 0.5)]
        refused = rows_of(pin_quarantine(items, run), day).sort("id")
        assert [refused[n, name] for n, name in enumerate(wrong)] == list(wrong.values())
        assert reasons_of(refused) == [[f"{name}.type"] for name in wrong]


def versioned(run: Run, rows: list[dict[str, object]], version_column: str | None) -> tuple[Table, Any]:
    export = bronze("prices", source="prices/{day}.csv", partition=DAY)
    schema = text_schema({"sku": pa.Column(int), "price": pa.Column(float), "updated": pa.Column(int)})

    @silver(raw=export, contract=schema, key=["sku"], partition=DAY, max_quarantined=1.0, version_column=version_column)
    def prices(raw: pl.LazyFrame) -> pl.LazyFrame:
        return raw

    land(run, f"prices/{FIRST}.csv", as_csv(rows))
    refine(export, [FIRST], run)
    return prices, only(refine(prices, [FIRST], run))


def price(sku: int, value: float, updated: int) -> dict[str, object]:
    return {"sku": sku, "price": value, "updated": updated}


def test_identical_copies_of_a_row_collapse_into_one_and_are_counted(run: Run):
    """K20."""
    prices, outcome = versioned(run, [price(1, 2.5, 1), price(2, 1, 1), price(1, 2.5, 1), price(1, 2.5, 1)], None)
    assert (outcome.verdict.accepted, outcome.verdict.collapsed, outcome.verdict.quarantined) == (2, 2, 0)
    assert rows_of(pin(prices, run), FIRST)["sku"].to_list() == [1, 2]


def test_copies_of_a_key_that_differ_are_all_quarantined(run: Run):
    """K20."""
    prices, outcome = versioned(run, [price(1, 2.5, 1), price(2, 1, 1), price(1, 2.6, 1)], None)
    assert (outcome.verdict.accepted, outcome.verdict.collapsed, outcome.verdict.quarantined) == (1, 0, 2)
    assert rows_of(pin(prices, run), FIRST)["sku"].to_list() == [2]
    refused = rows_of(pin_quarantine(prices, run), FIRST)
    assert sorted(refused["price"]) == ["2.5", "2.6"]
    assert Counter(map(tuple, reasons_of(refused))) == {("table.conflicting_content",): 2}


def test_with_a_version_column_the_newest_of_several_rows_wins(run: Run):
    """K20."""
    prices, outcome = versioned(run, [price(1, 2.5, 2), price(1, 2.6, 3), price(1, 2.4, 1), price(2, 1, 1)], "updated")
    assert (outcome.verdict.accepted, outcome.verdict.collapsed, outcome.verdict.quarantined) == (2, 2, 0)
    assert rows_of(pin(prices, run), FIRST).select("sku", "price").rows() == [(1, 2.6), (2, 1.0)]


def test_two_rows_that_are_both_the_newest_conflict(run: Run):
    prices, outcome = versioned(run, [price(1, 2.5, 2), price(1, 2.6, 2), price(2, 1, 1)], "updated")
    assert (outcome.verdict.accepted, outcome.verdict.quarantined) == (1, 2)
    assert rows_of(pin(prices, run), FIRST)["sku"].to_list() == [2]


# Columns, as in K19


def test_a_missing_column_blocks_the_day_and_is_named(landed: Run, shop: Shop):
    land(landed, f"orders/{SECOND}.csv", "order_id,product_id,price\n1,1,2.5\n")
    report = build_orders(shop, landed)
    assert list(report.refused) == [SECOND]
    outcome = report.outcomes[SECOND]
    assert isinstance(outcome, Blocked)
    (finding,) = outcome.verdict.blocking
    assert (finding.rule, finding.severity) == ("quantity.present", CRITICAL)
    assert "column 'quantity' is missing" in finding.message


def test_a_renamed_column_blocks_the_day_and_the_message_shows_the_new_name(landed: Run, shop: Shop):
    land(landed, f"orders/{SECOND}.csv", "order_id,product_id,qty,price\n1,1,1,2.5\n")
    outcome = build_orders(shop, landed).outcomes[SECOND]
    assert isinstance(outcome, Blocked)
    assert "quantity.present" in str(outcome.error)
    assert "qty" in str(outcome.error)


def test_a_column_that_the_transform_itself_asks_for_and_is_missing_blocks_the_day(landed: Run, shop: Shop):
    @silver(raw=shop.raw_orders, contract=shop.orders.contract, key=["order_id"], partition=DAY, partitionwise=True)
    def renamed(raw: pl.LazyFrame) -> pl.LazyFrame:
        return raw.with_columns(pl.col("quantity").str.strip_chars())

    build_orders(shop, landed)
    land(landed, f"orders/{SECOND}.csv", "order_id,product_id,qty,price\n1,1,1,2.5\n")
    refine(shop.raw_orders, DAYS, landed)
    report = refine(renamed, DAYS, landed)
    assert list(report.refused) == [SECOND]
    outcome = report.outcomes[SECOND]
    assert isinstance(outcome, Blocked)
    assert "column 'quantity' is missing; the input has order_id, product_id, qty, price" in str(outcome.error)


def test_an_extra_column_is_a_warning_and_kept_in_bronze(landed: Run, shop: Shop):
    land(landed, f"orders/{SECOND}.csv", as_csv([{**row, "coupon": "X"} for row in orders_of(SECOND)]))
    report = build_orders(shop, landed)
    assert report.name == "COMPLETE"
    warned = {key: [finding.rule for finding in each.verdict.findings] for key, each in report.published.items()}
    assert warned == {**{day: [] for day in DAYS}, SECOND: ["table.extra_column"]}
    (finding,) = report.published[SECOND].verdict.findings
    assert finding.severity == WARNING
    assert "coupon" in finding.message
    kept = rows_of(pin(shop.raw_orders, landed)).group_by("day").agg(pl.col("coupon").drop_nulls()).sort("day")
    assert kept["coupon"].to_list() == [[], ["X"] * 3, [], [], []]
    assert "coupon" not in pin(shop.orders, landed).schema


def test_an_extra_column_stays_when_days_without_it_are_committed_later(built: Run, shop: Shop):
    """The halves of a run are commits of their own: none may drop the columns of another."""
    land(built, f"orders/{FIRST}.csv", as_csv([{**row, "coupon": "X"} for row in orders_of(FIRST)]))
    land(built, f"orders/{SECOND}.csv", b"\xff")
    land_orders(built, LAST, orders_of(LAST)[:1])
    report = refine(shop.raw_orders, DAYS, built)
    assert (committed_keys(report), list(report.refused)) == ([FIRST, LAST], [SECOND])
    assert rows_of(pin(shop.raw_orders, built), FIRST)["coupon"].to_list() == ["X"] * 3


def parquet_feed() -> Table:
    return bronze("events", source="events/{day}.parquet", partition=DAY)


def land_parquet(run: Run, day: str, column: pl.Series) -> None:
    pl.DataFrame({"id": range(len(column)), "value": column}).write_parquet(land(run, f"events/{day}.parquet", ""))


def test_a_type_that_changed_upstream_fails_the_day_naming_the_column_and_both_types(run: Run):
    export = parquet_feed()
    land_parquet(run, FIRST, pl.Series([1, 2]))
    land_parquet(run, SECOND, pl.Series(["1", "2"]))
    land_parquet(run, THIRD, pl.Series([3, 4]))
    report = refine(export, DAYS[:3], run)
    assert (report.name, list(report.refused)) == ("PARTIAL", [SECOND])
    assert "column 'value' is String in what is to be committed, and Int64 in the table" in str(report.errors[SECOND])
    assert "Nothing was published" in str(report.errors[SECOND])
    assert rows_of(pin(export, run))["value"].to_list() == [1, 2, 3, 4]


def test_a_column_of_a_type_that_the_contract_cannot_take_blocks_naming_both_types(run: Run):
    export = parquet_feed()
    schema = text_schema({"id": pa.Column(int), "value": pa.Column(int)})

    @silver(raw=export, contract=schema, key=["id"], partition=DAY)
    def events(raw: pl.LazyFrame) -> pl.LazyFrame:
        return raw

    land_parquet(run, FIRST, pl.Series([dt.date(2017, 1, 1)]))
    refine(export, [FIRST], run)
    outcome = only(refine(events, [FIRST], run))
    assert isinstance(outcome, Blocked)
    assert [finding.rule for finding in outcome.verdict.blocking] == ["value.type"]
    assert "column 'value' is Date, and the contract says integer (Int64)" in str(outcome.error)


@pytest.mark.parametrize(
    ("given_", "stored"),
    [
        (pl.Series([255], dtype=pl.UInt8), 255),
        (pl.Series([2**32 - 1], dtype=pl.UInt32), 2**32 - 1),
        (pl.Series([2**64 - 1], dtype=pl.UInt64), 2**64 - 1),
        (pl.Series(["a"], dtype=pl.Categorical), "a"),
        (pl.Series(["a"], dtype=pl.Enum(["a", "b"])), "a"),
        (pl.Series([[1, 2]], dtype=pl.Array(pl.UInt8, 2)), [1, 2]),
        (pl.Series([{"a": 255}], dtype=pl.Struct({"a": pl.UInt8})), {"a": 255}),
        (pl.Series([MIDNIGHT], dtype=pl.Datetime("ms")), MIDNIGHT),
        (
            pl.Series([MIDNIGHT]).dt.replace_time_zone("America/New_York"),
            dt.datetime(2017, 1, 1, 5, tzinfo=dt.UTC),
        ),
    ],
    ids=lambda value: str(value.dtype) if isinstance(value, pl.Series) else "",
)
def test_a_type_that_delta_lacks_is_stored_wider_without_losing_a_value(run: Run, given_: pl.Series, stored):
    export = parquet_feed()
    for day in (FIRST, SECOND):  # one after the other: the second commit meets the stored type
        land_parquet(run, day, given_)
        assert isinstance(only(refine(export, [day], run)), Committed)
    assert rows_of(pin(export, run))["value"].to_list() == [stored, stored]


def test_a_type_that_delta_cannot_hold_at_all_fails_the_day_naming_the_column(run: Run):
    export = parquet_feed()
    land_parquet(run, FIRST, pl.Series([dt.timedelta(1)]))
    land_parquet(run, SECOND, pl.Series([1]))
    report = refine(export, DAYS[:2], run)
    assert (kinds(report)[FIRST], kinds(report)[SECOND]) == ("Failed", "Committed")
    assert "column 'value' is Duration(time_unit='us'), which a Delta table has no type for" in str(
        report.errors[FIRST]
    )


# Files, as in K22


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (bytes(range(256)), "the first line is no CSV header"),
        (b"\x1f\x8b\x08\x00 compressed", "the first line is no CSV header"),
        (b"\0" * 4096, "the first line is no CSV header"),
        ("order_id,product_id\n1,2\n".encode("utf-16"), "the first line is no CSV header"),
        (b"order_id,product_id,quantity,price\n1,1,1,\xff\xfe\n", "invalid utf-8 sequence"),
        (b"order_id,product_id,quantity,price\n1,1,1,2.5\n2,1,1,2.5,9\n", "found more fields than defined"),
        (b'order_id,product_id,quantity,price\n1,1,1,"2.5\n2,1,1,2.5\n', "could not parse"),
        (b"", "the file is empty, and a delivery without rows still has a header"),
        (b"order_id,order_id\n1,2\n", "column 'order_id' is named twice"),
        (b"order_id,day\n1,2\n", "column 'day' is empty or reserved"),
    ],
)
def test_an_unreadable_file_fails_its_day_with_its_name_and_the_reason(landed: Run, shop: Shop, content, reason):
    land(landed, f"orders/{SECOND}.csv", content)
    report = refine(shop.raw_orders, DAYS, landed)
    assert (report.name, list(report.refused)) == ("PARTIAL", [SECOND])
    error = report.errors[SECOND]
    assert isinstance(error, SourceUnreadable)
    assert reason in error.reason
    assert error.source == f"orders/{SECOND}.csv"
    assert f"Repair the file and replay bronze/orders {SECOND}" in str(error)
    assert error.kept is not None
    assert (landed.lake.root / error.kept).read_bytes() == content


def test_of_many_days_only_those_fail_whose_file_cannot_be_read(run: Run):
    cut = Daily("day", start="2017-01-01", end="2017-03-02")
    export = bronze("events", source="{day}.csv", partition=cut)
    for number, day in enumerate(cut.keys()):
        land(run, f"{day}.csv", f"id\n{number}\n")
    bad = {"2017-01-03": b"\x89PNG\r\n\x1a\n", "2017-01-31": b"id\n1\n2,3\n", "2017-02-14": b""}
    for day, content in bad.items():
        land(run, f"{day}.csv", content)
    folder = run.landing.root / "2017-02-20.csv"  # type: ignore[union-attr]
    folder.unlink()
    folder.mkdir()
    report = refine(export, cut.keys(), run)
    assert list(report.refused) == [*bad, "2017-02-20"]
    assert all(
        isinstance(error, SourceUnreadable) and f"{day}.csv" in str(error) for day, error in report.errors.items()
    )
    assert len(report.published) == 56
    assert rows_of(pin(export, run)).height == 56


def test_a_truncated_parquet_file_fails_its_day_alone(run: Run):
    export = parquet_feed()
    for day in DAYS:
        land_parquet(run, day, pl.Series([1, 2]))
    path = run.landing.root / f"events/{THIRD}.parquet"  # type: ignore[union-attr]
    path.write_bytes(path.read_bytes()[:-40])
    report = refine(export, DAYS, run)
    assert list(report.refused) == [THIRD]
    assert isinstance(report.errors[THIRD], SourceUnreadable)
    assert f"events/{THIRD}.parquet" in str(report.errors[THIRD])


def test_text_is_kept_exactly_as_it_was_exported(run: Run, shop: Shop):
    land(run, f"orders/{FIRST}.csv", b'\xef\xbb\xbforder_id,product_id,quantity,price\r\n" 007 ","a ""b""\nc",,""\r\n')
    refine(shop.raw_orders, [FIRST], run)
    assert rows_of(pin(shop.raw_orders, run), FIRST).select(ORDER_COLUMNS).rows() == [(" 007 ", 'a "b"\nc', None, "")]


def test_the_exact_bytes_of_every_delivery_are_kept_under_their_sha256(built: Run, shop: Shop):
    deliveries = [(built.landing.root / f"orders/{SECOND}.csv").read_bytes()]  # type: ignore[union-attr]
    land_orders(built, SECOND, orders_of(SECOND)[:1])
    deliveries.append((built.landing.root / f"orders/{SECOND}.csv").read_bytes())  # type: ignore[union-attr]
    refine(shop.raw_orders, [SECOND], built)
    for data in deliveries:
        kept = pin(shop.raw_orders, built).folder / "_sources" / hashlib.sha256(data).hexdigest()
        assert kept.read_bytes() == data
    (source,) = evidence_of(shop.raw_orders, built, SECOND).sources
    assert (built.lake.root / source.kept).read_bytes() == deliveries[1]
    assert (source.name, source.size) == (f"orders/{SECOND}.csv", len(deliveries[1]))
    rows = rows_of(pin(shop.raw_orders, built), SECOND).select("_source_file", "_source_row", "_source_sha256")
    assert rows.rows() == [(source.name, 1, source.sha256)]


def test_equal_files_of_many_days_are_kept_once_and_read_for_every_day(run: Run, shop: Shop):
    for day in DAYS:
        land_orders(run, day, [order(1), order(2)])
    assert refine(shop.raw_orders, DAYS, run).name == "COMPLETE"
    assert len(list((pin(shop.raw_orders, run).folder / "_sources").iterdir())) == 1
    counts = rows_of(pin(shop.raw_orders, run)).group_by("day", "_source_file").len().sort("day")
    assert counts["len"].to_list() == [2] * 5
    assert counts["_source_file"].to_list() == [f"orders/{day}.csv" for day in DAYS]


# Transforms


def lines(shop: Shop, transform, **options) -> Table:
    """A silver table on the raw orders with a transform of its own."""
    transform.__name__ = "lines"
    return silver(
        raw=shop.raw_orders, contract=text_schema({"order_id": pa.Column(int)}), key=["order_id"], partition=DAY,
        max_quarantined=1.0, **options,
    )(transform)  # fmt: skip


def test_a_transform_that_raises_fails_its_day_with_the_error(landed: Run, shop: Shop):
    def raises(raw):
        if raw.select(pl.col("order_id").is_in(["11"]).any()).collect().item():
            raise LookupError("no rate for eleven")
        return raw

    refine(shop.raw_orders, DAYS, landed)
    report = refine(lines(shop, raises), DAYS, landed)
    assert (report.name, list(report.refused)) == ("PARTIAL", [SECOND])
    error = report.errors[SECOND]
    assert isinstance(error, TransformFailed)
    assert f"silver/lines {SECOND} failed in its transform: LookupError: no rate for eleven" in str(error)


def test_an_error_inside_polars_fails_its_day_alone(landed: Run, shop: Shop):
    def strict(raw):
        return raw.with_columns(pl.col("order_id").replace_strict({str(n): n for n in range(100) if n != 11}))

    refine(shop.raw_orders, DAYS, landed)
    report = refine(lines(shop, strict, partitionwise=True), DAYS, landed)
    assert (report.name, list(report.refused)) == ("PARTIAL", [SECOND])
    assert isinstance(report.errors[SECOND], TransformFailed)


@pytest.mark.parametrize("query", ["SELECT nope FROM lines", "SELEC 1", "SELECT month, 'x'::BIGINT AS n FROM lines"])
def test_an_sql_query_that_fails_is_one_failed_month_with_the_error_of_duckdb(built: Run, shop: Shop, query):
    table = gold_sql(
        "counts", query, lines=shop.orders, contract=text_schema({"n": pa.Column(int)}), key=["n"],
        description="Counts.", partition=MONTH,
    )  # fmt: skip
    report = refine(table, ["2017-01-01"], built)
    assert isinstance(report.errors["2017-01-01"], TransformFailed)
    assert "Error" in str(report.errors["2017-01-01"])


def test_a_transform_must_give_a_lazy_frame(landed: Run, shop: Shop):
    refine(shop.raw_orders, [FIRST], landed)
    error = only(refine(lines(shop, lambda raw: raw.collect()), [FIRST], landed)).error
    assert isinstance(error, TransformFailed)
    assert "the transform returned DataFrame, and a LazyFrame is expected" in str(error)


def test_a_partitionwise_transform_must_keep_the_partition_column(landed: Run, shop: Shop):
    refine(shop.raw_orders, DAYS, landed)
    loses = lines(shop, lambda raw: raw.drop("day"), partitionwise=True)
    # Alone, a day is known; of several days nobody can tell which row belongs to which.
    assert refine(loses, DAYS, landed).name == "COMPLETE"
    assert rows_of(pin(loses, landed)).group_by("day").len()["len"].to_list() == [3] * 5


@pytest.mark.parametrize("partitionwise", [False, True])
@pytest.mark.parametrize(
    "day",
    [
        pl.when(pl.col("order_id") == "1").then(dt.date(2017, 6, 1)).otherwise("day"),
        pl.when(pl.col("order_id") != "1").then("day"),
        pl.col("day").cast(pl.String),
    ],
    ids=["another day", "null", "text"],
)
def test_rows_that_a_transform_moves_out_of_the_days_asked_for_are_refused_and_never_lost(
    landed: Run, shop: Shop, day: pl.Expr, partitionwise
):
    """Law 1, and K10 for values that data brings: no verdict would count such rows."""
    refine(shop.raw_orders, [FIRST], landed)
    table = lines(shop, lambda raw: raw.with_columns(day=day), partitionwise=partitionwise)
    report = refine(table, [FIRST], landed)
    assert isinstance(report.errors[FIRST], TransformFailed)
    assert "which is not a partition that was asked for" in str(report.errors[FIRST])
    assert pin(table, landed).version is None


def test_a_transform_may_drop_rows_and_then_only_what_it_gives_is_read(landed: Run, shop: Shop):
    refine(shop.raw_orders, [FIRST], landed)
    verdict = only(refine(lines(shop, lambda raw: raw.filter(pl.col("product_id") == "1")), [FIRST], landed)).verdict
    assert (verdict.read, verdict.accepted) == (2, 2)


def test_the_plain_function_of_a_table_can_be_called_on_a_frame(shop: Shop):
    rows = pl.LazyFrame({"order_id": [1]})
    assert shop.orders.transform(rows).collect().rows() == [(1,)]  # type: ignore[misc, operator]


# Judgement of whole partitions


def test_gold_with_a_wrong_row_is_blocked_whole(built: Run, shop: Shop):
    class Total(Contract):
        department: str = field(isin=["BAKERY"])
        orders: int = field()

    @gold(lines=shop.daily, contract=Total, key=["department"], partition=DAY, partitionwise=True)
    def totals(lines: pl.LazyFrame) -> pl.LazyFrame:
        return lines.select("day", "department", "orders")

    report = refine(totals, DAYS, built)
    assert set(kinds(report).values()) == {"Blocked"}
    assert pin(totals, built).version is None


def test_a_critical_rule_blocks_the_days_that_break_it_and_no_others(landed: Run, shop: Shop):
    class Whole(Contract):
        order_id: int = field()

        @rule(CRITICAL, table=True)
        def a_whole_day(rows):
            """A day has at least three orders."""
            return pl.len() >= 3

    @silver(raw=shop.raw_orders, contract=Whole, key=["order_id"], partition=DAY, partitionwise=True)
    def whole(raw: pl.LazyFrame) -> pl.LazyFrame:
        return raw

    land_orders(landed, THIRD, orders_of(THIRD)[:2])
    refine(shop.raw_orders, DAYS, landed)
    report = refine(whole, DAYS, landed)
    assert list(report.refused) == [THIRD]
    assert "table.a_whole_day" in str(report.errors[THIRD])


# Revisions


def test_a_lower_revision_is_refused_and_both_are_named(landed: Run):
    newer, older = make_shop(revision=2), make_shop(revision=1)
    refine_all(newer, landed)
    before = state_of(newer, landed)
    report = refine(older.orders, DAYS, landed)
    assert report.name == "FAILED"
    error = report.errors[FIRST]
    assert isinstance(error, RevisionRefused)
    assert (error.mine, error.live) == (1, 2)
    assert f"silver/orders {FIRST} was published by revision 2 of its feed, and this is revision 1" in str(error)
    assert state_of(newer, landed) == before
    assert evidence_of(newer.orders, landed, FIRST).revision == 2


def test_a_higher_revision_replaces_a_lower_one(built: Run):
    newer = make_shop(revision=2)
    assert committed_keys(refine(newer.orders, DAYS, built)) == list(DAYS)
    assert evidence_of(newer.orders, built, FIRST).revision == 2
    assert set(kinds(refine(newer.daily, DAYS, built)).values()) == {"Unchanged"}


# Interrupted


def test_a_commit_that_fails_after_its_files_were_written_shows_the_old_version_and_can_be_replayed(
    built: Run, shop: Shop
):
    """K13, by a real cause: no file may grow beyond a limit that the log entry alone reaches.

    A run id of quotes does it: it is quoted once in the evidence, and twice in the log.
    """
    before, rows, reader = state_of(shop, built), rows_of(pin(shop.raw_orders, built)), pin(shop.raw_orders, built)
    land_orders(built, SECOND, orders_of(SECOND)[:1])
    folder = reader.folder / DAY.folder(SECOND)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, limits[1]))
    try:
        outcome = only(refine(shop.raw_orders, [SECOND], replace(built, run_id='"' * 10_000)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, StorageFailed)
    assert "File too large" in outcome.error.reason
    assert len(list(folder.glob("*.parquet"))) == 2, "the new file was written, and nothing refers to it"
    assert state_of(shop, built) == before
    assert rows_of(pin(shop.raw_orders, built)).equals(rows)
    assert isinstance(only(refine(shop.raw_orders, [SECOND], built)), Committed)
    assert pin(shop.raw_orders, built).rows(SECOND) == 1
    assert rows_of(reader).equals(rows), "who had pinned the old version still reads it"
    assert len(list(folder.glob("*.parquet"))) == 2, "the replay found the name taken by its own bytes"


# Pending and watching


def test_what_is_pending_is_what_refine_would_not_find_unchanged(landed: Run, shop: Shop):
    assert pending(shop.raw_orders, DAYS, landed) == list(DAYS)
    refine_all(shop, landed)
    assert [pending(table, table.partition.keys(), landed) for table in shop.tables] == [[]] * 7
    land_orders(landed, THIRD, orders_of(THIRD)[:1])
    (landed.landing.root / f"orders/{LAST}.csv").unlink()  # type: ignore[union-attr]
    assert pending(shop.raw_orders, DAYS, landed) == [THIRD, LAST]


def test_asking_what_is_pending_commits_nothing(built: Run, shop: Shop):
    before = state_of(shop, built)
    land_orders(built, THIRD, orders_of(THIRD)[:1])
    pending(shop.raw_orders, DAYS, built)
    assert state_of(shop, built) == before


def test_a_watcher_hears_of_every_partition_once(landed: Run, shop: Shop):
    land_orders(landed, SECOND, bad_orders())
    land(landed, f"orders/{LAST}.csv", b"\xff")
    heard: Counter[str] = Counter()
    with watching(lambda table, settled: heard.update({table: settled})):
        refine_all(shop, landed)
    assert heard == {table.path: len(table.partition.keys()) for table in shop.tables}


def test_evidence_names_versions_contents_and_the_run(built: Run, shop: Shop):
    evidence = evidence_of(shop.daily, built, SECOND)
    assert (evidence.table, evidence.partition, evidence.run_id) == ("gold/daily", SECOND, "manual")
    assert evidence.batch_id == pin(shop.daily, built).batch_id(SECOND)
    assert evidence.content == pin(shop.daily, built).content(SECOND)
    silver_orders = pin(shop.orders, built)
    assert evidence.inputs["lines"] == {
        "table": "silver/orders",
        "version": silver_orders.version,
        "partitions": {SECOND: silver_orders.content(SECOND)},
    }
    assert evidence.references["products"]["content"] == pin(shop.products, built).content("all")
    assert evidence.started_at == built.started_at.isoformat()
    assert set(evidence.packages) == {"polars", "pandera", "deltalake", "duckdb"}
