"""What a plan says, and that executing it does exactly that."""

import datetime as dt
import json

import pytest

from medallion.errors import ConfigurationError, PlanOutdated, TableUnreadable, UnknownPartition, UnknownTable
from medallion.execution import execute, remaining, slices_of
from medallion.failpoints import Interrupted, armed
from medallion.outcomes import Report
from medallion.partitions import Daily, Keys, Monthly, Weekly
from medallion.plan import Plan, Select
from medallion.planning import plan, plan_again
from medallion.project import Project
from medallion.refine import Run, refine
from tests.builders import (
    DAYS,
    FIRST,
    FOURTH,
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
    refine_all,
)

MONTHS = ("2017-01-01", "2017-02-01")


def planned(made: Plan) -> dict[str, list[str]]:
    """The visited partitions by table."""
    return {each.table: list(each.keys) for each in made.tables}


def reasons(made: Plan, table: str) -> dict[str, str]:
    """The reasons of a table's partitions as one line each."""
    (found,) = [each for each in made.tables if each.table == table]
    return {step.key: "; ".join(map(str, step.reasons)) for step in found.steps}


def kinds(reports: list[Report]) -> dict[str, dict[str, str]]:
    return {r.table: {key: type(outcome).__name__ for key, outcome in r.outcomes.items()} for r in reports}


def written(reports: list[Report]) -> dict[str, list[str]]:
    """The partitions that were committed, by table."""
    found = {table: [k for k, kind in each.items() if kind == "Committed"] for table, each in kinds(reports).items()}
    return {table: keys for table, keys in found.items() if keys}


def make(shop: Shop, run: Run, *args: object, **settings: object) -> Plan:
    return plan(Project(shop.tables), run.lake, run.landing, *args, **settings)  # type: ignore[arg-type]


def carry_out(made: Plan, shop: Shop, run: Run, **settings: object) -> list[Report]:
    return execute(made, Project(shop.tables), run, **settings)  # type: ignore[arg-type]


def all_names(shop: Shop, run: Run) -> dict[tuple[str, str], tuple[str, ...]]:
    return {(table.path, key): names for table in shop.tables for key, names in names_of(table, run).items()}


# What is planned


def test_an_up_to_date_lake_gives_an_empty_plan(built: Run, shop: Shop):
    made = make(shop, built)
    assert planned(made) == {}
    assert made.waiting == {}
    assert carry_out(made, shop, built) == []


def test_a_corrected_source_day_plans_its_closure_and_says_why(built: Run, shop: Shop):
    land_orders(built, SECOND, orders_of(SECOND)[:2])
    made = make(shop, built)
    assert planned(made) == {
        "bronze/orders": [SECOND],
        "silver/orders": [SECOND],
        "gold/daily": [SECOND],
        "gold/monthly": [MONTHS[0]],
        "gold/trailing": [SECOND, THIRD, FOURTH],
    }
    assert reasons(made, "bronze/orders") == {SECOND: f"source changed: orders/{SECOND}.csv"}
    assert reasons(made, "silver/orders") == {SECOND: f"upstream: bronze/orders {SECOND}"}
    assert reasons(made, "gold/trailing")[FOURTH] == f"upstream: gold/daily {SECOND}"
    assert (made.partitions, made.certain) == (7, 1)


def test_executing_a_plan_visits_exactly_what_it_lists_and_leaves_all_else_as_it_was(built: Run, shop: Shop):
    land_orders(built, SECOND, orders_of(SECOND)[:2])
    made = make(shop, built)
    before = all_names(shop, built)
    reports = carry_out(made, shop, built)
    assert {report.table: list(report.outcomes) for report in reports} == planned(made)
    changed = {place for place, names in all_names(shop, built).items() if before[place] != names}
    assert changed == {(table, key) for table, keys in written(reports).items() for key in keys}
    assert make(shop, built).partitions == 0


def test_where_an_upstream_partition_comes_out_the_same_its_downstream_is_not_made_again(built: Run, shop: Shop):
    source = built.landing.root / f"orders/{SECOND}.csv"  # type: ignore[union-attr]
    lines = source.read_text().splitlines()
    source.write_text("\n".join([lines[0], *reversed(lines[1:])]) + "\n")  # the same orders, in another order
    reports = carry_out(make(shop, built), shop, built)
    assert written(reports) == {"bronze/orders": [SECOND], "silver/orders": [SECOND]}
    assert set(kinds(reports)["gold/trailing"].values()) == {"Unchanged"}


def test_k6_a_corrected_day_reaches_exactly_the_existing_days_of_the_window_behind_it(built: Run, shop: Shop):
    """In the middle, the first and the last day of the table."""
    for day, reached in ((FIRST, [FIRST, SECOND, THIRD]), (THIRD, [THIRD, FOURTH, LAST]), (LAST, [LAST])):
        land_orders(built, day, [order(700 + DAYS.index(day), 1, 9)])
        made = make(shop, built)
        assert planned(made)["gold/trailing"] == reached
        assert written(carry_out(made, shop, built))["gold/trailing"] == reached


def test_k4_one_failed_partition_of_five_is_the_one_that_is_made_again(landed: Run, shop: Shop):
    land_orders(landed, THIRD, [order("31", "1", "1", "1")])
    (landed.landing.root / f"orders/{THIRD}.csv").write_bytes(b"\xff\xfe")  # type: ignore[union-attr]
    refine_all(shop, landed)
    land_orders(landed, THIRD, orders_of(THIRD))
    before = {
        key: (names, pin(shop.raw_orders, landed).epoch(key))
        for key, names in names_of(shop.raw_orders, landed).items()
    }
    made = make(shop, landed, "bronze/orders", select={"failed", "missing"}, downstream=False)
    assert planned(made) == {"bronze/orders": [THIRD]}
    assert reasons(made, "bronze/orders")[THIRD].startswith("failed: bronze/orders 2017-02-01 cannot be read")
    assert written(carry_out(made, shop, landed)) == {"bronze/orders": [THIRD]}
    after = {
        key: (names, pin(shop.raw_orders, landed).epoch(key))
        for key, names in names_of(shop.raw_orders, landed).items()
    }
    assert {key: after[key] for key in before} == before
    assert set(after) == set(DAYS)


def test_k14_a_plan_that_is_executed_later_processes_what_it_was_made_for(run: Run, shop: Shop):
    land_products(run, {1: "BAKERY", 2: "DAIRY", 3: "FUEL"})
    for day in (FIRST, SECOND):
        land_orders(run, day, orders_of(day))
    made = make(shop, run, now=dt.datetime(2017, 3, 21, tzinfo=dt.UTC))
    for day in (THIRD, FOURTH):
        land_orders(run, day, orders_of(day))
    later = make_run(run.lake.root.parent)  # type: ignore[arg-type]
    written(carry_out(made, shop, later))
    assert set(pin(shop.orders, run).files) == {FIRST, SECOND}


def test_k16_days_on_which_nothing_ran_are_found_and_planned_oldest_first(run: Run, shop: Shop):
    land_everything(run)
    refine_all(shop, run, [FIRST])
    made = make(shop, run)
    assert planned(made)["silver/orders"] == list(DAYS[1:])
    assert planned(made)["gold/trailing"] == list(DAYS[1:])
    assert reasons(made, "bronze/orders") == dict.fromkeys(DAYS[1:], "missing")
    assert {report.name for report in carry_out(made, shop, run)} == {"COMPLETE"}
    assert make(shop, run).partitions == 0


def test_what_cannot_be_made_is_said_to_wait_and_is_not_planned(run: Run, shop: Shop):
    land_everything(run)
    (run.landing.root / f"orders/{THIRD}.csv").unlink()  # type: ignore[union-attr]
    made = make(shop, run)
    assert THIRD not in planned(made)["bronze/orders"]
    assert made.waiting["bronze/orders"] == {THIRD: f"missing: orders/{THIRD}.csv is not delivered"}
    assert made.waiting["silver/orders"] == {THIRD: f"bronze/orders {THIRD}"}
    assert made.waiting["gold/monthly"] == {MONTHS[1]: f"silver/orders {THIRD}"}
    assert {report.name for report in carry_out(made, shop, run)} == {"COMPLETE"}


def test_a_corrected_product_makes_again_exactly_the_days_that_sold_it(built: Run, shop: Shop):
    land_orders(built, THIRD, [order(31, 3)])
    land_orders(built, FOURTH, [order(41, 3), order(42, 1)])
    refine_all(shop, built)
    land_products(built, {1: "BAKERY", 2: "DAIRY", 3: "GARDEN"})
    made = make(shop, built)
    assert planned(made)["gold/daily"] == list(DAYS)  # which days sold it is known once the catalogue is made
    reports = carry_out(made, shop, built)
    assert written(reports) == {
        "bronze/products": ["all"],
        "silver/products": ["all"],
        "gold/daily": [THIRD, FOURTH],
        "gold/trailing": [THIRD, FOURTH, LAST],
    }


def test_once_the_product_is_corrected_the_plan_lists_exactly_the_days_that_sold_it(built: Run, shop: Shop):
    land_orders(built, FOURTH, [order(41, 3), order(42, 1)])
    refine_all(shop, built)
    land_products(built, {1: "BAKERY", 2: "DAIRY", 3: "GARDEN"})
    for table in (shop.raw_products, shop.products):
        refine(table, ["all"], built)
    made = make(shop, built)
    assert planned(made) == {"gold/daily": [FOURTH], "gold/trailing": [FOURTH, LAST]}
    assert reasons(made, "gold/daily") == {FOURTH: "dimension rekey: silver/products"}
    assert written(carry_out(made, shop, built)) == planned(made)


def test_days_that_use_nothing_of_what_changed_are_settled_before_their_rows_are_read(built: Run, shop: Shop):
    land_products(built, {1: "BAKERY", 2: "DAIRY", 3: "GARDEN", 4: "NEW"})
    made = make(shop, built)
    assert planned(made)["gold/daily"] == planned(made)["silver/orders"] == list(DAYS)
    for table in (shop.raw_products, shop.products):
        refine(table, ["all"], built)
    with armed("transformed=raise"):
        assert written(carry_out(made, shop, built, accept=True)) == {}
    land_products(built, {1: "BAKERY", 2: "GARDEN"})
    with pytest.raises(Interrupted), armed("transformed:3=raise"):  # the catalogue twice, and then a day that sold it
        carry_out(make(shop, built), shop, built)


def test_a_changed_revision_plans_every_partition_of_its_table_and_names_the_code(built: Run):
    changed = make_shop(revision=2)
    made = make(changed, built)
    assert reasons(made, "silver/orders")[FIRST] == "code or contract changed: revision 1 became 2"
    assert planned(made)["silver/orders"] == list(DAYS)
    reports = carry_out(made, changed, built)
    assert written(reports) == {"silver/orders": list(DAYS)}  # with equal content, so that gold stays


# Which partitions


def test_replay_makes_every_partition_that_is_asked_for_and_the_rest_of_the_closure(built: Run, shop: Shop):
    made = make(shop, built, "silver/orders", [SECOND, THIRD], select={Select.ALL})
    assert reasons(made, "silver/orders") == {SECOND: "asked for", THIRD: "asked for"}
    assert planned(made)["gold/monthly"] == list(MONTHS)
    assert set(planned(made)) == {"silver/orders", "gold/daily", "gold/monthly", "gold/trailing"}
    assert written(carry_out(made, shop, built)) == {}


def test_without_downstream_only_the_table_that_was_asked_for_is_visited(built: Run, shop: Shop):
    made = make(shop, built, "silver/orders", [SECOND], select={Select.ALL}, downstream=False)
    assert planned(made) == {"silver/orders": [SECOND]}


def test_with_upstream_what_is_needed_is_made_first(run: Run, shop: Shop):
    land_everything(run)
    assert planned(make(shop, run, "gold/daily", [SECOND])) == {}
    made = make(shop, run, "gold/daily", [SECOND], upstream=True, downstream=False)
    assert planned(made) == {
        "bronze/products": ["all"],
        "silver/products": ["all"],
        "bronze/orders": [SECOND],
        "silver/orders": [SECOND],
        "gold/daily": [SECOND],
    }
    assert {report.name for report in carry_out(made, shop, run)} == {"COMPLETE"}


def test_changed_sources_alone_can_be_selected(landed: Run, shop: Shop):
    refine_all(shop, landed, DAYS[:4])
    land_orders(landed, SECOND, orders_of(SECOND)[:1])
    made = make(shop, landed, "bronze/orders", select={"source"}, downstream=False)
    assert planned(made) == {"bronze/orders": [SECOND]}


def test_a_blocked_day_is_left_alone_unless_it_is_selected(built: Run, shop: Shop):
    land_orders(built, SECOND, [order(900 + n, quantity=0) for n in range(3)])
    refine_all(shop, built)
    assert planned(make(shop, built)) == {}
    made = make(shop, built, "silver/orders", select={"blocked"}, downstream=False)
    assert planned(made) == {"silver/orders": [SECOND]}
    assert kinds(carry_out(made, shop, built)) == {"silver/orders": {SECOND: "Blocked"}}


def test_newest_first_turns_the_order_of_partitions_and_slices(built: Run, shop: Shop):
    made = make(shop, built, "silver/orders", select={"all"}, newest_first=True, slice_bytes=400)
    assert planned(made)["silver/orders"] == list(reversed(DAYS))
    (silver,) = [each for each in made.tables if each.table == "silver/orders"]
    assert len(silver.slices) > 1
    assert [key for piece in slices_of(silver) for key in piece] == list(reversed(DAYS))
    assert list(carry_out(made, shop, built)[0].outcomes) == list(reversed(DAYS))


def test_an_unknown_table_or_partition_is_refused_before_anything_is_looked_at(built: Run, shop: Shop):
    with pytest.raises(UnknownTable):
        make(shop, built, "silver/orderz")
    with pytest.raises(UnknownPartition):
        make(shop, built, "silver/orders", ["2019-01-01"])


@pytest.mark.parametrize(
    ("cut", "words", "keys"),
    [
        (Daily("day", start="2017-01-01", end="2017-01-06"), ["2017-01-02..2017-01-03"], ["2017-01-02", "2017-01-03"]),
        (Daily("day", start="2017-01-01", end="2017-01-04"), ["..2017-01-02"], ["2017-01-01", "2017-01-02"]),
        (
            Daily("day", start="2017-01-01", end="2017-01-04"),
            ["2017-01-03", "2017-01-01"],
            ["2017-01-01", "2017-01-03"],
        ),
        (
            Weekly("week", start="2016-12-26", end="2017-01-16"),
            ["2017-01-01..2017-01-31"],
            ["2017-01-02", "2017-01-09"],
        ),
        (Monthly("month", start="2017-01-01", end="2017-04-01"), ["2017-02-01.."], ["2017-02-01", "2017-03-01"]),
        (Keys("region", ("north", "east", "south")), ["east..south"], ["east", "south"]),
    ],
)
def test_a_range_names_the_keys_from_its_first_to_its_last(cut, words, keys):
    assert list(cut.select(words)) == keys


@pytest.mark.parametrize("word", ["2017-1-1..", "2018-01-01..", "2017-01-03..2017-01-02", "yesterday"])
def test_a_range_without_a_partition_is_refused(word):
    with pytest.raises(UnknownPartition):
        Daily("day", start="2017-01-01", end="2017-01-06").select([word])


# A plan is a value


def test_a_plan_survives_being_saved_and_has_the_same_id_for_the_same_question(built: Run, shop: Shop):
    land_orders(built, SECOND, orders_of(SECOND)[:2])
    made = make(shop, built, "bronze/orders", [SECOND])
    read = Plan.from_json(made.to_json())
    assert read == made
    assert read.id == made.id == make(shop, built, "bronze/orders", [SECOND]).id
    assert make(shop, built, "bronze/orders", [SECOND], newest_first=True).id != made.id
    assert plan_again(made, Project(shop.tables), built.lake, built.landing).id == made.id


def test_a_plan_file_that_was_altered_or_is_of_a_newer_engine_is_refused(built: Run, shop: Shop):
    plain = json.loads(make(shop, built, "silver/orders", select={"all"}).to_json())
    altered = json.dumps(plain | {"tables": plain["tables"][:1]})
    for text, error, says in (
        (altered, ConfigurationError, "altered"),
        (json.dumps(plain | {"format": 99}), TableUnreadable, "format 99"),
        ("[]", ConfigurationError, "no plan"),
        ("{", ConfigurationError, "no plan"),
    ):
        with pytest.raises(error, match=says):
            Plan.from_json(text, "plan.json")


def test_every_commit_of_a_plan_names_it_and_so_does_the_ledger(built: Run, shop: Shop):
    from medallion import ledger

    land_orders(built, SECOND, orders_of(SECOND)[:2])
    made = make(shop, built)
    carry_out(made, shop, built)
    newest = (pin(shop.orders, built).commits(None) or [])[0]
    assert newest.metadata["plan_id"] == made.id
    rows = ledger.latest(built.lake)
    assert set(rows.filter(rows["plan_id"] == made.id)["partition"]) == {SECOND, THIRD, FOURTH, MONTHS[0]}


def test_planning_writes_nothing(built: Run, shop: Shop):
    land_orders(built, SECOND, orders_of(SECOND)[:2])

    def files() -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in built.lake.root.rglob("*")}

    before = files()
    make(shop, built)
    assert files() == before


def test_past_attempts_give_an_estimate_of_time_and_live_partitions_one_of_rows(built: Run, shop: Shop):
    made = make(shop, built, "silver/orders", [SECOND, THIRD], select={"all"}, downstream=False)
    (silver,) = made.tables
    assert silver.rows == 6
    assert silver.bytes is not None
    assert silver.seconds is not None
    assert silver.seconds > 0
    empty = make(shop, make_run(built.lake.root / "other"), "bronze/orders", select={"all"}, downstream=False)  # type: ignore[arg-type]
    assert empty.seconds is None


# The lake moves


def test_a_plan_is_outdated_once_a_partition_that_it_visits_was_committed_by_another_run(built: Run, shop: Shop):
    land_orders(built, SECOND, orders_of(SECOND)[:2])
    made = make(shop, built)
    refine(shop.raw_orders, [SECOND], built)
    before = all_names(shop, built)
    with pytest.raises(PlanOutdated, match=f"bronze/orders {SECOND} was committed by another run") as caught:
        carry_out(made, shop, built)
    assert caught.value.plan == made.id
    assert all_names(shop, built) == before
    assert written(carry_out(made, shop, built, accept=True))["silver/orders"] == [SECOND]


def test_a_plan_is_outdated_once_something_that_it_is_built_on_has_other_content(built: Run, shop: Shop):
    made = make(shop, built, "gold/daily", [SECOND], select={"all"})
    land_orders(built, SECOND, orders_of(SECOND)[:1])
    for table in (shop.raw_orders, shop.orders):
        refine(table, [SECOND], built)
    with pytest.raises(PlanOutdated, match=f"silver/orders {SECOND} has other content"):
        carry_out(made, shop, built)


def test_a_plan_is_outdated_once_the_code_has_changed(built: Run, shop: Shop):
    made = make(shop, built, "silver/orders", select={"all"})
    with pytest.raises(PlanOutdated, match="the code or contract of silver/orders has changed"):
        carry_out(made, make_shop(revision=2), built)


def test_live_commits_of_other_partitions_do_not_outdate_a_plan(landed: Run, shop: Shop):
    refine_all(shop, landed, DAYS[:3])
    land_orders(landed, FIRST, orders_of(FIRST)[:2])
    made = make(shop, landed, "bronze/orders", [FIRST], downstream=False)
    refine_all(shop, landed, [FOURTH])
    assert written(carry_out(made, shop, landed)) == {"bronze/orders": [FIRST]}


def test_an_executed_plan_can_be_executed_again_and_writes_nothing(built: Run, shop: Shop):
    land_orders(built, SECOND, orders_of(SECOND)[:2])
    made = make(shop, built)
    project = Project(shop.tables)
    assert remaining(made, project, built)["silver/orders"] == [SECOND]
    carry_out(made, shop, built)
    assert remaining(made, project, built)["silver/orders"] == []
    assert written(carry_out(made, shop, built)) == {}


def test_a_partition_whose_input_failed_says_so_and_stays_as_it_was(built: Run, shop: Shop):
    (built.landing.root / f"orders/{SECOND}.csv").write_bytes(b"\xff\xfe")  # type: ignore[union-attr]
    made = make(shop, built)
    before = all_names(shop, built)
    reports = carry_out(made, shop, built)
    assert kinds(reports)["bronze/orders"] == {SECOND: "Failed"}
    assert kinds(reports)["silver/orders"] == {SECOND: "Unchanged"}
    assert all_names(shop, built) == before


def test_a_partition_that_needs_one_which_was_blocked_is_reported_as_not_built(landed: Run, shop: Shop):
    land_orders(landed, SECOND, [order(900 + n, quantity=0) for n in range(3)])
    reports = carry_out(make(shop, landed), shop, landed)
    told = kinds(reports)
    assert told["silver/orders"][SECOND] == "Blocked"
    assert told["gold/daily"][SECOND] == "Failed"
    (daily,) = [report for report in reports if report.table == "gold/daily"]
    assert f"it needs silver/orders {SECOND} (blocked by its gate" in str(daily.errors[SECOND])
    assert told["gold/daily"][THIRD] == "Committed"


def test_tables_that_do_not_depend_on_each_other_can_be_made_at_once(landed: Run, shop: Shop, tmp_path_factory):
    made = make(shop, landed)
    heard: list[str] = []
    reports = carry_out(made, shop, landed, parallel=3, told=lambda report: heard.append(report.table))
    assert {report.name for report in reports} == {"COMPLETE"}
    assert sorted(heard) == sorted(planned(made))
    other = make_run(tmp_path_factory.mktemp("other"))
    land_everything(other)
    refine_all(shop, other)
    assert {t.path: pin(t, landed).content(k) for t in shop.tables for k in t.partition.keys()} == {  # noqa: SIM118
        t.path: pin(t, other).content(k)
        for t in shop.tables
        for k in t.partition.keys()  # noqa: SIM118
    }
    assert evidence_of(shop.orders, landed, FIRST).batch_id == evidence_of(shop.orders, other, FIRST).batch_id
