"""Refused rows: counted, shown, taken elsewhere, and released by a replay of just the partitions that hold them."""

import csv
import datetime as dt
import json
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from medallion import ledger
from medallion.contract import Contract, field
from medallion.errors import ConfigurationError
from medallion.evidence import Evidence
from medallion.gate import Gate
from medallion.project import Project
from medallion.quarantine import Grouping, described, export_rows, grouped, outstanding, refused_rows
from medallion.refine import Run
from medallion.release import Release, plan_release, release
from medallion.released import refused_by_reasons, released
from medallion.severity import ERROR
from medallion.tables import Table, silver
from medallion.verdict import Finding, Verdict
from tests.builders import (
    DAYS,
    FIRST,
    LAST,
    SECOND,
    THIRD,
    Shop,
    evidence_of,
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
)

UNKNOWN, ZERO = "product_id.known_in", "quantity.gt"
PRODUCTS = {1: "BAKERY", 2: "DAIRY", 3: "FUEL"}


@pytest.fixture
def run(tmp_path: Path, shop: Shop) -> Run:
    """Five days; three have refused rows, of unknown products or without a quantity."""
    opened = make_run(tmp_path)
    land_everything(opened)
    land_orders(opened, FIRST, [*orders_of(FIRST), order(7, 99), order(8, 99, 0)])
    land_orders(opened, SECOND, [*orders_of(SECOND), order(17, 98)])
    land_orders(opened, THIRD, [*orders_of(THIRD), order(27, 1, 0)])
    refine_all(shop, opened)
    return opened


def counts(shop: Shop, run: Run, **only: Any) -> dict[tuple[str, str], int]:
    found = outstanding(Project(shop.tables), run.lake, **only)
    assert {each.table for each in found} <= {"silver/orders"}
    return {(each.partition, each.rule): each.rows for each in found}


def released_by(run: Run, table: Table, tables: tuple[Table, ...], **only: Any) -> Release:
    made = plan_release(Project(tables), run, table, **only)
    assert made is not None
    return release(made, Project(tables), run)


def test_outstanding_rows_are_counted_by_partition_and_rule(shop, run):
    assert counts(shop, run) == {(FIRST, UNKNOWN): 2, (FIRST, ZERO): 1, (SECOND, UNKNOWN): 1, (THIRD, ZERO): 1}
    assert counts(shop, run, rule=ZERO) == {(FIRST, ZERO): 1, (THIRD, ZERO): 1}
    assert counts(shop, run, keys=[SECOND]) == {(SECOND, UNKNOWN): 1}
    assert counts(shop, run, tables=["silver/products"]) == {}


def test_the_refused_rows_themselves_have_their_values_and_every_reason(shop, run):
    rows = refused_rows(run.lake, shop.orders, [FIRST]).collect()
    told = dict(described(rows))
    assert [head.partition(":")[0] for head in told] == [f"orders/{FIRST}.csv row {n}" for n in (4, 5)]
    head, values = list(described(rows))[1]
    assert head.endswith(f"{UNKNOWN} (ERROR); {ZERO} (ERROR)")
    assert (values["order_id"], values["product_id"], values["quantity"]) == ("8", "99", "0")
    assert refused_rows(run.lake, shop.orders, rule=ZERO).collect().get_column("order_id").to_list() == ["8", "27"]
    assert refused_rows(run.lake, shop.products).collect().is_empty()
    with pytest.raises(ConfigurationError, match="has no quarantine"):
        refused_rows(run.lake, shop.daily)


def test_rows_are_outstanding_since_their_rule_first_refused_some_of_the_partition(shop, run):
    first = outstanding(Project(shop.tables), run.lake, keys=[FIRST])
    land_orders(run, FIRST, [*orders_of(FIRST), order(7, 99), order(8, 99)])
    refine_all(shop, run)
    land_orders(run, FIRST, [*orders_of(FIRST), order(7, 99), order(8, 99, 0)])
    refine_all(shop, run)
    again = outstanding(Project(shop.tables), run.lake, keys=[FIRST])
    assert [each.rule for each in first] == [each.rule for each in again] == [UNKNOWN, ZERO]
    assert again[0].since == first[0].since
    assert again[1].since > first[1].since  # there was none in between
    told = ledger.latest(run.lake).filter(pl.col("pipeline_name") == "silver/orders", pl.col("partition") == FIRST)
    assert [again[1].since] == told.get_column("completed_at").to_list()


def test_without_a_ledger_rows_are_as_old_as_the_run_that_refused_them(shop, run):
    import shutil

    shutil.rmtree(Path(str(run.lake.root), ledger.PATH))
    assert {each.since for each in outstanding(Project(shop.tables), run.lake)} == {run.started_at}


def test_outstanding_rows_are_added_up_by_rule_table_day_and_age(shop, run):
    found = outstanding(Project(shop.tables), run.lake)
    now = found[0].since + dt.timedelta(days=8)
    by = {each: {(group.label, group.rows) for group in grouped(found, each, now)} for each in Grouping}
    assert by[Grouping.RULE] == {(UNKNOWN, 3), (ZERO, 2)}
    assert by[Grouping.TABLE] == {("", 5)}
    assert by[Grouping.DAY] == {(FIRST, 3), (SECOND, 1), (THIRD, 1)}
    assert by[Grouping.AGE] == {("7 to 30 days", 5)}
    (all_,) = grouped(found, Grouping.TABLE, now)
    assert all_.partitions == (FIRST, SECOND, THIRD)


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet", "rows.ndjson"])
def test_refused_rows_are_exported_and_stay(shop, run, tmp_path, name):
    path = tmp_path / name
    before = rows_of(pin_quarantine(shop.orders, run))
    assert export_rows(refused_rows(run.lake, shop.orders), path) == 4
    if name.endswith(".csv"):
        with path.open() as file:
            rows = list(csv.DictReader(file))
        assert rows[1]["_failures"] == f"{UNKNOWN} (ERROR); {ZERO} (ERROR)"
    elif name.endswith(".ndjson"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    else:
        rows = pl.read_parquet(path).to_dicts()
    assert [row["order_id"] for row in rows] == ["7", "8", "17", "27"]
    assert rows_of(pin_quarantine(shop.orders, run)).equals(before)
    with pytest.raises(ConfigurationError, match="is there already"):
        export_rows(refused_rows(run.lake, shop.orders), path)
    assert export_rows(refused_rows(run.lake, shop.orders, rule=ZERO), path, force=True) == 2
    with pytest.raises(ConfigurationError, match="says no format"):
        export_rows(refused_rows(run.lake, shop.orders), tmp_path / "rows.xlsx")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        export_rows(refused_rows(run.lake, shop.orders), tmp_path / "nowhere" / name)


def test_a_mended_catalogue_releases_exactly_the_rows_that_it_knows_now(shop, run):
    before, daily = names_of(shop.orders, run), names_of(shop.daily, run)
    land_products(run, {**PRODUCTS, 98: "NEW"})
    found = released_by(run, shop.orders, shop.tables, rule=UNKNOWN)
    assert found.complete
    assert found.released == {SECOND: 1}
    assert [day for day in DAYS if names_of(shop.orders, run)[day] != before[day]] == [SECOND]
    assert [day for day in DAYS if names_of(shop.daily, run)[day] != daily[day]] == [SECOND]
    assert 17 in rows_of(pin(shop.orders, run), SECOND).get_column("order_id")
    assert counts(shop, run) == {(FIRST, UNKNOWN): 2, (FIRST, ZERO): 1, (THIRD, ZERO): 1}
    committed = {each.table: each.committed for each in found.reports if each.committed}
    assert committed == {
        "bronze/products": ("all",),
        "silver/products": ("all",),
        "silver/orders": (SECOND,),
        "gold/daily": (SECOND,),
        "gold/trailing": (SECOND, THIRD, DAYS[3]),
        "gold/monthly": ("2017-01-01",),
    }


def test_a_mended_source_releases_its_rows_and_the_ledger_says_why(shop, run):
    land_orders(run, FIRST, [*orders_of(FIRST), order(7, 1), order(8, 99, 0)])
    found = released_by(run, shop.orders, shop.tables, keys=[FIRST])
    assert found.released == {FIRST: 1}
    assert counts(shop, run, keys=[FIRST]) == {(FIRST, UNKNOWN): 1, (FIRST, ZERO): 1}
    told = ledger.latest(run.lake).row(
        by_predicate=(pl.col("pipeline_name") == "silver/orders") & (pl.col("partition") == FIRST), named=True
    )
    assert (told["released_count"], told["quarantine_count"]) == (1, 1)
    assert told["reason"] == f"released 1 row ({UNKNOWN} 1): bronze/orders changed"


def test_a_rule_that_was_taken_back_releases_its_rows(run):
    more = make_shop()

    class Order(Contract):
        """One order of one product, which may be of none."""

        order_id: int = field(gt=0)
        product_id: int = field(known_in=more.products)
        quantity: int = field(ge=0)
        price: float = field(ge=0)

    @silver(raw=more.raw_orders, contract=Order, key=["order_id"], partition=more.orders.partition, partitionwise=True)
    def orders(raw: pl.LazyFrame) -> pl.LazyFrame:
        """Typed orders."""
        return raw

    found = released_by(run, orders, (more.raw_products, more.products, more.raw_orders, orders), rule=ZERO)
    assert found.released == {THIRD: 1}  # the one of the first day is of an unknown product as well
    told = ledger.latest(run.lake).filter(pl.col("pipeline_name") == "silver/orders").sort("partition")
    assert told.get_column("reason").drop_nulls().to_list() == [f"released 1 row ({ZERO} 1): the contract changed"]


def test_a_replay_of_rows_for_which_nothing_has_changed_writes_nothing(shop, run):
    before = pin(shop.orders, run).version
    found = released_by(run, shop.orders, shop.tables)
    assert found.released == {}
    assert {each.committed for each in found.reports} == {()}
    assert pin(shop.orders, run).version == before


def test_where_nothing_is_refused_there_is_nothing_to_replay(shop, run):
    assert plan_release(Project(shop.tables), run, shop.orders, keys=[LAST]) is None
    assert plan_release(Project(shop.tables), run, shop.products) is None


def test_a_replay_that_is_blocked_says_so_and_nothing_is_released(shop, run):
    land_orders(run, FIRST, [order(1), order(7, 99), order(8, 99, 0)])
    found = released_by(run, shop.orders, shop.tables, rule=UNKNOWN)
    assert not found.complete
    assert found.released == {}
    assert counts(shop, run, keys=[FIRST]) == {(FIRST, UNKNOWN): 2, (FIRST, ZERO): 1}


def test_a_source_file_that_is_no_longer_in_the_landing_zone_is_not_missed(shop, run, tmp_path):
    (tmp_path / "landing/orders" / f"{SECOND}.csv").unlink()
    land_products(run, {**PRODUCTS, 98: "NEW"})
    found = released_by(run, shop.orders, shop.tables, rule=UNKNOWN)
    assert found.complete
    assert found.released == {SECOND: 1}


RULES = st.sampled_from("ABCD")
REFUSED = st.lists(st.frozensets(RULES, max_size=3), max_size=8)


def verdict_of(rows: list[frozenset[str]]) -> Verdict:
    """The verdict of rows that break these rules; D is a warning."""
    from medallion.severity import WARNING

    refused = [each for each in rows if each - {"D"}]
    counted = Counter(rule for each in rows for rule in each)
    findings = tuple(Finding(rule, WARNING if rule == "D" else ERROR, "row", n, "") for rule, n in counted.items())
    reasons = Counter(tuple(sorted(each)) for each in rows if each)
    return Verdict("silver/t", "all", len(rows), len(rows) - len(refused), len(refused), 0, findings, reasons)


@given(st.lists(st.tuples(st.frozensets(RULES, max_size=3), st.frozensets(RULES, max_size=3)), max_size=8), REFUSED)
def test_rows_that_stay_refused_are_not_released_and_the_counts_add_up(rows, new):
    was = verdict_of([before for before, _ in rows])
    now = verdict_of([after for _, after in rows] + new)
    found = released(was, now)
    assert sum(refused_by_reasons(was).values()) == was.quarantined
    newly = now.quarantined - was.quarantined + found.total()
    assert found.total() >= 0
    assert newly >= 0
    assert found.total() <= was.quarantined
    assert found.total() >= was.quarantined - now.quarantined


@given(REFUSED, st.data())
def test_rows_that_are_mended_in_full_are_all_released_and_others_are_not(rows, data):
    mended = {n for n in range(len(rows)) if data.draw(st.booleans())}
    now = verdict_of([frozenset() if n in mended else each for n, each in enumerate(rows)])
    expected = Counter(each - {"D"} for n, each in enumerate(rows) if n in mended and each - {"D"})
    assert released(verdict_of(rows), now) == expected


def test_a_row_of_which_one_fault_was_mended_is_not_released():
    both, one = frozenset("AB"), frozenset("B")
    assert released(verdict_of([both]), verdict_of([one])).total() == 0


def test_the_verdicts_of_the_gate_count_every_refused_row_once(shop, run):
    for day in DAYS:
        evidence: Evidence = evidence_of(shop.orders, run, day)
        assert refused_by_reasons(evidence.verdict).total() == evidence.verdict.quarantined
    gate = Gate(shop.products.contract, key=["product_id"])
    rows = pl.DataFrame({"product_id": [1, 1, -1], "department": ["A", "B", None], "shelf": ["x", "x", "y"]})
    verdict = gate.judge(rows.lazy(), ["all"]).verdict
    assert verdict.quarantined == refused_by_reasons(verdict).total() == 3
