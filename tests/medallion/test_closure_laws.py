"""The law of plans: executing one after any corrections gives what rebuilding everything gives, and touches no more."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from medallion.execution import execute
from medallion.lake import Replacement
from medallion.outcomes import Committed, Report
from medallion.partitions import Keys
from medallion.plan import Plan
from medallion.planning import plan
from medallion.project import Project
from medallion.refine import Run, refine
from medallion.staging import stage
from medallion.tables import Table, bronze
from tests import thirty
from tests.builders import (
    DAYS,
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
    pin,
    refine_all,
)

days = st.sampled_from(DAYS)
rows = st.lists(
    st.builds(order, st.integers(1, 5), st.sampled_from([1, 2, 3, 4, "x"]), st.sampled_from([1, 2, 0]), st.just("1.5")),
    max_size=4,
)
edits = st.one_of(
    st.tuples(st.just("edit"), days, rows),
    st.tuples(st.just("turn"), days, st.none()),
    st.tuples(st.just("remove"), days, st.none()),
    st.tuples(st.just("garbage"), days, st.none()),
    st.tuples(
        st.just("products"),
        st.none(),
        st.dictionaries(st.sampled_from([1, 2, 3, 4]), st.sampled_from(["A", "B"]), min_size=1),
    ),
)
corrections = st.lists(edits, max_size=4)
declared = st.fixed_dictionaries(
    {"revision": st.sampled_from([1, 1, 2]), "max_quarantined": st.sampled_from([0.5, 0.5, 1.0])}
)


def correct(run: Run, kind: str, day: str | None, what: Any) -> None:
    """Change what was delivered."""
    assert run.landing is not None
    if kind == "products":
        land_products(run, what)
        return
    path = run.landing.root / f"orders/{day}.csv"
    assert day is not None
    if kind == "edit":
        land_orders(run, day, what)
    elif kind == "turn":  # the same orders, in another order
        land_orders(run, day, orders_of(day)[::-1])
    elif kind == "remove":
        path.unlink(missing_ok=True)
    else:
        land(run, f"orders/{day}.csv", b"\xff\xfe garbage")


def contents(tables: Sequence[Table], run: Run) -> dict[tuple[str, str], str | None]:
    return {
        (table.path, key): snapshot.content(key)
        for table in tables
        for snapshot in [pin(table, run)]
        for key in snapshot.files
    }


def names(shop: Shop, run: Run) -> dict[tuple[str, str], tuple[str, ...]]:
    return {(table.path, key): files for table in shop.tables for key, files in names_of(table, run).items()}


def places(made: Plan) -> set[tuple[str, str]]:
    return {(each.table, key) for each in made.tables for key in each.keys}


def check(folder: Path, template: Path, case: tuple[int, Any, Any, int]) -> None:
    """Build some days, change things, execute a plan, and hold the lake against one that is built from nothing."""
    built, changes, declaration, slice_bytes = case
    run = make_run(folder)
    if built == len(DAYS):
        shutil.copytree(template, folder, dirs_exist_ok=True)
    else:
        land_everything(run)
        refine_all(make_shop(), run, DAYS[:built] or None) if built else None
    run = make_run(folder)
    for change in changes:
        correct(run, *change)
    shop = make_shop(**declaration)
    project = Project(shop.tables)
    before = names(shop, run)
    made = plan(project, run.lake, run.landing, slice_bytes=slice_bytes)
    reports = execute(made, project, run)
    after = names(shop, run)

    assert {(report.table, key) for report in reports for key in report.outcomes} == places(made)
    touched = {place for place in {**before, **after} if before.get(place) != after.get(place)}
    assert touched <= places(made)
    assert touched == {(table, key) for table, keys in committed(reports).items() for key in keys}

    other = make_run(folder / "other")
    shutil.copytree(folder / "landing", folder / "other" / "landing", dirs_exist_ok=True)
    refine_all(shop, other)
    mine = contents(shop.tables, run)
    assert {place: mine.get(place) for place in contents(shop.tables, other)} == contents(shop.tables, other)

    again = execute(plan(project, run.lake, run.landing), project, run)
    assert [keys for keys in committed(again).values() if keys] == []
    assert names(shop, run) == after


cases = st.tuples(st.sampled_from([0, 3, 5, 5, 5]), corrections, declared, st.sampled_from([1, 300, 1 << 29]))
patient = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]


@settings(max_examples=8, suppress_health_check=patient)
@given(cases)
def test_executing_a_plan_after_any_corrections_gives_what_rebuilding_everything_gives(template: Path, case):
    with tempfile.TemporaryDirectory() as folder:
        check(Path(folder), template, case)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@settings(max_examples=80, suppress_health_check=patient)
@given(cases)
def test_executing_a_plan_after_very_many_corrections_gives_what_rebuilding_everything_gives(template: Path, case):
    with tempfile.TemporaryDirectory() as folder:
        check(Path(folder), template, case)


def test_ten_thousand_partitions_are_planned(run: Run):
    shops = Keys("shop", tuple(f"shop-{number:05}" for number in range(10_000)))
    table = bronze("deliveries", source="{shop}.csv", partition=shops)
    land(run, "shop-00007.csv", "a\n1\n")
    land(run, "shop-09999.csv", "a\n2\n")
    made = plan(Project((table,)), run.lake, run.landing)
    assert made.tables[0].keys == ("shop-00007", "shop-09999")
    assert len(made.waiting["bronze/deliveries"]) == 9_998
    assert len(execute(made, Project((table,)), run)[0].published) == 2
    every = plan(Project((table,)), run.lake, run.landing, "bronze/deliveries", select={"all"})
    assert every.partitions == 10_000


@pytest.fixture
def month(tmp_path: Path) -> Run:
    """A lake in which thirty days were built, from files to gold."""
    run, project = make_run(tmp_path), Project(thirty.make_tables())
    for day in thirty.DAY.keys():  # noqa: SIM118
        thirty.deliver(run, day, 1)
    reports = execute(plan(project, run.lake, run.landing), project, run)
    assert {report.name for report in reports} == {"COMPLETE"}
    return run


CLOSURE = {
    "silver/sales": ["2017-04-13"],
    "gold/sales_7d": [f"2017-04-{day}" for day in range(13, 20)],
    "gold/sales_of_month": ["2017-04-01"],
    "gold/sales_of_week": ["2017-04-10"],
}


def test_one_corrected_day_of_thirty_makes_again_exactly_its_closure(month: Run):
    project = Project(thirty.make_tables())
    thirty.deliver(month, "2017-04-13", 5)
    reports = execute(plan(project, month.lake, month.landing), project, month)
    assert committed(reports) == {"bronze/sales": ["2017-04-13"], **CLOSURE}


def test_one_corrupted_silver_day_of_thirty_makes_again_exactly_its_closure_and_all_is_as_before(month: Run):
    tables = thirty.make_tables()
    right = contents(tables, month)
    corrupt(tables[1], "2017-04-13", month)
    for table in tables[2:]:  # and it has spread
        refine(table, table.partition.keys(), month)
    project = Project(tables)
    made = plan(project, month.lake, month.landing)
    assert {each.table: list(each.keys) for each in made.tables} == CLOSURE
    assert committed(execute(made, project, month)) == CLOSURE
    assert {
        (table.path, key): pin(table, month).content(key) for table in tables for key in pin(table, month).files
    } == right


def committed(reports: list[Report]) -> dict[str, list[str]]:
    """The partitions that were written, by table."""
    return {r.table: [key for key, each in r.outcomes.items() if isinstance(each, Committed)] for r in reports}


def corrupt(table: Table, key: str, run: Run) -> None:
    """Commit other rows under a batch that nobody has the evidence of."""
    snapshot, batch = pin(table, run), "f" * 32
    rows = snapshot.scan([key]).with_columns(pl.col("units") * 7).collect()
    staged = stage(rows, table.partition, [key], empty=True)
    files = [(each, each.named(batch, table.partition.folder(key))) for each in staged]
    run.lake.replace(snapshot, Replacement(files, {key: batch}, rows.schema), metadata={"attempt": "nobody"})
