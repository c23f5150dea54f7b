"""What a partition is, folded from the lake, and what a changed reference means for it."""

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from medallion.evidence import EvidenceReader
from medallion.outcomes import Committed, Unchanged
from medallion.project import Project
from medallion.refine import Run, refine
from medallion.state import Cause, PartitionState, Standing, fold
from medallion.tables import Table
from tests.builders import (
    DAYS,
    FIRST,
    FOURTH,
    LAST,
    SECOND,
    THIRD,
    Shop,
    committed_keys,
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

few = settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow])


def look(shop: Shop, run: Run, *, landing: bool = True) -> dict[str, dict[str, PartitionState]]:
    """What is not current, by table."""
    found = fold(Project(shop.tables), run.lake, run.landing if landing else None)
    others = {
        path: {key: state for key, state in states.items() if state.standing is not Standing.CURRENT}
        for path, states in found.items()
    }
    return {path: states for path, states in others.items() if states}


def standings(shop: Shop, run: Run, *, landing: bool = True) -> dict[str, dict[str, str]]:
    return {
        path: {key: s.standing.value for key, s in each.items()}
        for path, each in look(shop, run, landing=landing).items()
    }


def causes(state: PartitionState) -> list[Cause]:
    return [reason.cause for reason in state.reasons]


def test_an_empty_lake_has_every_partition_missing(run: Run, shop: Shop):
    found = fold(Project(shop.tables), run.lake)
    assert {path: set(states) for path, states in found.items()} == {
        table.path: set(table.partition.keys()) for table in shop.tables
    }
    assert {state.standing for states in found.values() for state in states.values()} == {Standing.MISSING}


def test_a_built_lake_is_current_all_over(built: Run, shop: Shop):
    assert standings(shop, built) == {}


def test_a_day_that_was_not_delivered_says_so_and_what_waits_for_it(landed: Run, shop: Shop):
    landed_path = landed.landing.root / f"orders/{LAST}.csv"  # type: ignore[union-attr]
    landed_path.unlink()
    refine_all(shop, landed, DAYS[:4])
    found = look(shop, landed)
    assert found["bronze/orders"][LAST].standing is Standing.MISSING
    assert "is not delivered" in found["bronze/orders"][LAST].reason
    assert found["silver/orders"][LAST].reason == f"missing: needs bronze/orders {LAST} (not committed)"
    assert LAST in found["gold/daily"]
    refine_all(shop, landed)  # somebody asked for it nevertheless
    failed = look(shop, landed)["bronze/orders"][LAST]
    assert failed.standing is Standing.FAILED
    assert "has no source file" in failed.reason


def test_a_closed_day_is_current_not_missing(tmp_path: Path):
    run, shop = make_run(tmp_path), make_shop(closed={LAST: "closed that day"})
    land_everything(run)
    (run.landing.root / f"orders/{LAST}.csv").unlink()  # type: ignore[union-attr]
    refine_all(shop, run)
    found = look(shop, run)
    assert LAST not in found.get("bronze/orders", {})
    assert LAST not in found.get("silver/orders", {})


def test_a_source_file_that_was_rewritten_is_found_even_if_its_size_and_time_are_the_same(built: Run, shop: Shop):

    path = built.landing.root / f"orders/{SECOND}.csv"  # type: ignore[union-attr]
    stat = path.stat()
    path.write_bytes(path.read_bytes().replace(b"2.5", b"2.7"))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    found = look(shop, built)
    assert list(found) == ["bronze/orders"]
    assert causes(found["bronze/orders"][SECOND]) == [Cause.SOURCE]
    assert look(shop, built, landing=False) == {}


def test_a_source_file_that_is_gone_leaves_what_was_read_from_it_current(built: Run, shop: Shop):
    (built.landing.root / f"orders/{SECOND}.csv").unlink()  # type: ignore[union-attr]
    assert look(shop, built) == {}


def test_an_input_that_changed_makes_stale_what_was_built_from_it_and_names_it(built: Run, shop: Shop):
    land_orders(built, SECOND, orders_of(SECOND)[:2])
    refine(shop.raw_orders, [SECOND], built)
    found = look(shop, built)
    assert list(found) == ["silver/orders"]
    assert found["silver/orders"][SECOND].reason == f"stale input: bronze/orders {SECOND}"
    refine(shop.orders, [SECOND], built)
    assert standings(shop, built) == {"gold/daily": {SECOND: "stale"}, "gold/monthly": {"2017-01-01": "stale"}}


def test_changed_code_makes_every_partition_stale(built: Run):
    changed = make_shop(revision=2)
    found = look(changed, built)
    assert {key: causes(state) for key, state in found["silver/orders"].items()} == {day: [Cause.CODE] for day in DAYS}


def test_a_corrected_product_makes_stale_exactly_the_days_that_sold_it(built: Run, shop: Shop):
    land_orders(built, THIRD, [order(31, 3)])
    land_orders(built, FOURTH, [order(41, 3), order(42, 1)])
    refine_all(shop, built)
    land_products(built, {1: "BAKERY", 2: "DAIRY", 3: "GARDEN"})
    for table in (shop.raw_products, shop.products):
        refine(table, ["all"], built)
    found = look(shop, built)
    assert {path: sorted(states) for path, states in found.items()} == {"gold/daily": [THIRD, FOURTH]}
    assert {state.reason for state in found["gold/daily"].values()} == {"dimension rekey: silver/products"}
    assert committed_keys(refine(shop.daily, DAYS, built)) == [THIRD, FOURTH]


def test_a_product_that_becomes_known_makes_stale_exactly_the_days_that_hold_it(built: Run, shop: Shop):
    land_orders(built, SECOND, [*orders_of(SECOND), order(99, 7)])
    refine_all(shop, built)
    land_products(built, {1: "BAKERY", 2: "DAIRY", 3: "FUEL", 7: "NEW"})
    for table in (shop.raw_products, shop.products):
        refine(table, ["all"], built)
    found = look(shop, built)
    assert {path: sorted(states) for path, states in found.items()} == {"silver/orders": [SECOND]}
    report = refine(shop.orders, DAYS, built)
    assert committed_keys(report) == [SECOND]
    assert look(shop, built)["gold/daily"].keys() == {SECOND}


def test_a_blocked_day_is_blocked_until_something_changes(built: Run, shop: Shop):
    land_orders(built, SECOND, [order(900 + n, quantity=0) for n in range(3)])
    refine_all(shop, built)
    found = look(shop, built)
    assert found["silver/orders"][SECOND].standing is Standing.BLOCKED
    assert found["silver/orders"][SECOND].batch_id is not None
    land_orders(built, SECOND, orders_of(SECOND)[:1])
    refine(shop.raw_orders, [SECOND], built)
    assert look(shop, built)["silver/orders"][SECOND].standing is Standing.STALE


def test_a_candidate_that_is_held_is_no_news_once_the_partition_was_committed(built: Run, shop: Shop):
    held = pin(shop.orders, built).folder / "_held"
    land_orders(built, SECOND, [order(900 + n, quantity=0) for n in range(3)])
    refine_all(shop, built)
    kept = built.lake.root / "kept"
    shutil.copytree(str(held), str(kept))
    land_orders(built, SECOND, orders_of(SECOND)[:1])
    refine_all(shop, built)
    land_orders(built, SECOND, orders_of(SECOND))
    refine_all(shop, built)
    shutil.copytree(str(kept), str(held), dirs_exist_ok=True)
    assert look(shop, built) == {}


def lose_evidence(table: Table, run: Run) -> None:
    """So that the next attempt has to work its batches out."""
    shutil.rmtree(str(pin(table, run).folder / "_evidence"))


values = st.lists(st.sampled_from(["1", "2", "3", "4", "x", "", "4.0", "1.0"]), min_size=1, max_size=4)
catalogues = st.dictionaries(st.sampled_from([1, 2, 3, 4]), st.sampled_from(["A", "B"]), min_size=1)


@few
@given(
    st.lists(values, min_size=1, max_size=3),
    st.lists(st.sampled_from(["1", "0"]), min_size=4, max_size=4),
    catalogues,
    catalogues,
)
def test_a_changed_reference_matters_exactly_where_the_batch_would_be_another_one(sold, quantities, before, after):
    with tempfile.TemporaryDirectory() as folder:
        run, shop = make_run(Path(folder)), make_shop(max_quarantined=1.0)
        days = DAYS[: len(sold)]
        for day, products in zip(days, sold, strict=True):
            land_orders(
                run, day, [order(n, p, q) for n, (p, q) in enumerate(zip(products, quantities, strict=False), 1)]
            )
        land_products(run, before)
        refine_all(shop, run, days)
        land_products(run, after)
        for table in (shop.raw_products, shop.products):
            refine(table, ["all"], run)
        for table in (shop.orders, shop.daily):
            states = fold(Project(shop.tables), run.lake, tables=[table.path])[table.path]
            built = [key for key in days if key in pin(table, run).files]
            told = {key for key in built if states[key].standing is Standing.STALE}
            names = names_of(table, run)
            lose_evidence(table, run)
            report = refine(table, built, run)
            assert {type(outcome) for outcome in report.outcomes.values()} <= {Committed, Unchanged}
            assert {key for key in built if names_of(table, run)[key] != names[key]} == told
            assert all(EvidenceReader(pin(table, run).folder)(pin(table, run).batch_id(key) or "") for key in built)


def test_a_table_can_be_looked_at_alone(built: Run, shop: Shop):
    found = fold(Project(shop.tables), built.lake, tables=["gold/daily"])
    assert list(found) == ["gold/daily"]
    assert list(found["gold/daily"]) == [FIRST, SECOND, THIRD, FOURTH, LAST]


def test_evidence_that_is_gone_makes_a_partition_stale(built: Run, shop: Shop):
    lose_evidence(shop.daily, built)
    found = look(shop, built)
    assert {state.reason for state in found["gold/daily"].values()} == {
        "code or contract changed: its evidence is gone"
    }


def test_files_of_a_reference_that_cannot_be_read_leave_it_open_and_count_as_a_change(built: Run, shop: Shop):
    land_products(built, {1: "BAKERY", 2: "DAIRY", 3: "GARDEN"})
    for table in (shop.raw_products, shop.products):
        refine(table, ["all"], built)
    snapshot = pin(shop.products, built)
    (file,) = snapshot.files["all"]
    land(built, "saved", (snapshot.folder / file.path).read_bytes())
    (snapshot.folder / file.path).unlink()
    assert set(standings(shop, built)["gold/daily"]) == set(DAYS)


def test_a_file_that_cannot_be_parsed_makes_its_day_failed_until_it_is_repaired(built: Run, shop: Shop):
    good = (built.landing.root / f"orders/{SECOND}.csv").read_bytes()  # type: ignore[union-attr]
    land(built, f"orders/{SECOND}.csv", b"\xff\xfe")
    refine(shop.raw_orders, [SECOND], built)
    found = look(shop, built)["bronze/orders"]
    assert found[SECOND].standing is Standing.FAILED
    assert found[SECOND].batch_id is not None
    assert causes(found[SECOND]) == [Cause.FAILED, Cause.SOURCE]
    land(built, f"orders/{SECOND}.csv", good)
    assert look(shop, built) == {}
