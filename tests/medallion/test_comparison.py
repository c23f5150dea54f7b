"""What differs between two states: exactly the partitions, rows and totals that were changed."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medallion import savepoints
from medallion.comparison import PartitionChange, compare
from medallion.errors import SavepointRefused, TableUnreadable, UnknownTable
from medallion.project import Project
from medallion.refine import Run, refine
from tests.builders import DAYS, FIRST, SECOND, Shop, land_orders, make_run, make_shop, order, orders_of, refine_all

Quantities = dict[int, int]


@pytest.fixture
def project(shop: Shop) -> Project:
    return Project(shop.tables)


def test_a_difference_names_partitions_rows_by_key_columns_and_totals(built: Run, project, shop):
    savepoints.create(project, built.lake, "before")
    first, second, third = orders_of(SECOND)
    land_orders(built, SECOND, [first, {**second, "quantity": 7}, order(99, 2, 5, "1.5")])
    refine_all(shop, built)
    found = compare(project, built.lake, "silver/orders", "before")
    assert found.partitions == [PartitionChange(SECOND, "changed", 3, 3, added=1, removed=1, changed=1)]
    assert (found.same, found.key) == (4, ("order_id",))
    assert found.columns == {"quantity": 1}
    assert found.totals["quantity"] == (1 + 2 + 3, 1 + 7 + 5)
    assert found.totals["price"] == (7.5, 6.5)
    assert [(each["kind"], each["key"]) for each in found.examples] == [
        ("changed", {"order_id": second["order_id"]}),
        ("removed", {"order_id": third["order_id"]}),
        ("added", {"order_id": 99}),
    ]


def test_bronze_is_compared_by_the_row_in_the_file_and_a_new_digest_is_no_difference(built: Run, project, shop):
    savepoints.create(project, built.lake, "before")
    land_orders(built, FIRST, [*orders_of(FIRST), order(50)])
    refine(shop.raw_orders, [FIRST], built)
    found = compare(project, built.lake, "bronze/orders", "before")
    assert found.key == ("_source_row",)
    assert found.rows == {"added": 1, "removed": 0, "changed": 0}


def test_a_quarantine_is_compared_like_a_table(built: Run, project, shop):
    savepoints.create(project, built.lake, "before")
    land_orders(built, FIRST, [*orders_of(FIRST), order(50, quantity=-1)])
    refine_all(shop, built)
    found = compare(project, built.lake, "quarantine/orders", "before")
    assert found.partitions == [PartitionChange(FIRST, "added", 0, 1, added=1)]


def test_the_same_rows_in_other_bytes_are_a_partition_that_differs_without_rows_that_do(built: Run, project):
    savepoints.create(project, built.lake, "before")
    refine(make_shop(revision=2).orders, [FIRST], built)
    found = compare(project, built.lake, "silver/orders", "before")
    assert found.partitions == [PartitionChange(FIRST, "changed", 3, 3)]
    assert found.totals == {}


def test_states_are_named_by_version_savepoint_or_time(built: Run, project, shop):
    savepoints.create(project, built.lake, "before")
    land_orders(built, FIRST, [order(50)])
    refine_all(shop, built)
    by_version = compare(project, built.lake, "silver/orders", "1", "2")
    by_name = compare(project, built.lake, "silver/orders", "before")
    from_nothing = compare(project, built.lake, "silver/orders", "2016-01-01", "before")
    assert by_version.partitions == by_name.partitions
    assert [each.kind for each in from_nothing.partitions] == ["added"] * 5
    assert compare(project, built.lake, "silver/orders", "2099-01-01", "2").partitions == []


def test_a_state_that_is_not_there_is_refused_by_name(built: Run, project):
    with pytest.raises(SavepointRefused, match="'nowhere' is not there"):
        compare(project, built.lake, "silver/orders", "nowhere")
    with pytest.raises(TableUnreadable, match="version 99"):
        compare(project, built.lake, "silver/orders", "99")
    with pytest.raises(UnknownTable):
        compare(project, built.lake, "silver/nothing", "1")


@pytest.fixture(scope="module")
def folder(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake that all examples go on writing to."""
    copied = tmp_path_factory.mktemp("comparison") / "folder"
    shutil.copytree(template, copied)
    return copied


orders = st.dictionaries(st.integers(1, 8), st.integers(1, 3), max_size=6)
deliveries = st.fixed_dictionaries(dict.fromkeys(DAYS[:2], orders))


@settings(max_examples=25, deadline=None)
@given(before=deliveries, after=deliveries)
def test_a_difference_counts_exactly_the_rows_that_a_set_comparison_counts(folder, before, after):
    run, shop = make_run(folder), make_shop()
    project = Project(shop.tables)
    versions = []
    for delivered in (before, after):
        for day, quantities in delivered.items():
            land_orders(run, day, [order(number, 1, quantity) for number, quantity in quantities.items()])
        refine(shop.raw_orders, DAYS[:2], run)
        refine(shop.orders, DAYS[:2], run)
        versions.append(run.lake.pin("silver/orders", shop.orders.partition).version)
    found = compare(project, run.lake, "silver/orders", str(versions[0]), str(versions[1]))
    for day in DAYS[:2]:
        old, new = before[day], after[day]
        told = next((each for each in found.partitions if each.key == day), PartitionChange(day, "", 0, 0))
        assert told.added == len(new.keys() - old.keys())
        assert told.removed == len(old.keys() - new.keys())
        assert told.changed == sum(old[number] != new[number] for number in old.keys() & new.keys())
    total = [sum(sum(quantities.values()) for quantities in each.values()) for each in (before, after)]
    told_totals = found.totals.get("quantity", (0, 0))
    assert told_totals[1] - told_totals[0] == total[1] - total[0]
