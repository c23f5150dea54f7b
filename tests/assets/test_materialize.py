"""What runs leave behind: in the tables, and in what Dagster records of them."""

import re
from collections.abc import Iterable

import dagster as dg
import polars as pl
import pytest

from tests.assets.conftest import DAYS
from tests.assets.deployment import DAILY, GARBAGE, Deployment, Standing, causes, cut_short, evaluations, metadata, told

BRONZE, SILVER, DAILY_SALES, SALES_7D = DAILY
DAY = "2017-01-03"
LATER = [day for day in DAYS if day >= DAY]


def red(checks: dict[str | None, dg.AssetCheckEvaluation]) -> set[str | None]:
    """The partitions of which a check says that something is wrong with ERROR severity."""
    return {key for key, each in checks.items() if not each.passed and each.severity == dg.AssetCheckSeverity.ERROR}


def edit_a_quantity(deployment: Deployment, day: str) -> None:
    """Correct one row of a day's export: one more was sold, for two dollars more."""
    file = deployment.file(day)
    rows = pl.read_csv(file, infer_schema=False)
    first = rows.with_row_index().filter((pl.col("quantity") == "1") & (pl.col("sales_value") != "0.0"))["index"][0]
    more = pl.int_range(pl.len()) == first
    rows.with_columns(
        pl.when(more).then(pl.lit("2")).otherwise(pl.col("quantity")).alias("quantity"),
        pl.when(more)
        .then((pl.col("sales_value").cast(pl.Float64) + 2).cast(pl.String))
        .otherwise(pl.col("sales_value"))
        .alias("sales_value"),
    ).write_csv(file)


def standing(deployment: Deployment, days: Iterable[str] = DAYS) -> dict[str, Standing]:
    """Files and fence of some days in every daily table."""
    return {table: deployment.standing(table, days) for table in (*DAILY, "quarantine/transactions")}


def versions(deployment: Deployment) -> dict[str, int]:
    """The version of every daily table."""
    return {table: deployment.handle(table).version() for table in (*DAILY, "quarantine/transactions")}


def test_one_day_goes_from_its_file_to_gold_in_one_run(fresh):
    result = fresh.run(BRONZE, SILVER, DAILY_SALES, first=DAY)
    assert result.success, causes(result)
    sold = fresh.rows(SILVER).get_column("sales_value").sum()
    assert fresh.rows(DAILY_SALES).get_column("sales").sum() == pytest.approx(sold)
    assert fresh.rows(BRONZE).height == fresh.rows(SILVER).height + fresh.rows("quarantine/transactions").height


def test_a_materialization_says_how_much_was_published_from_what_and_how_it_was_judged(fresh):
    result = fresh.run(BRONZE, SILVER, DAILY_SALES, first=DAY)
    delivered = len(fresh.file(DAY).read_text().splitlines()) - 1
    raw, typed = metadata(result, BRONZE)[DAY], metadata(result, SILVER)[DAY]
    assert raw["dagster/partition_row_count"] == delivered
    assert raw["source file"] == f"transactions/{DAY}.csv"
    assert raw["source bytes"] == fresh.file(DAY).stat().st_size
    assert typed["dagster/partition_row_count"] == fresh.rows(SILVER).height
    assert typed["read"] == delivered == typed["dagster/partition_row_count"] + typed["quarantined"]
    for table, said in ((BRONZE, raw), (SILVER, typed), (DAILY_SALES, metadata(result, DAILY_SALES)[DAY])):
        (file,) = fresh.files(table)[DAY]
        assert said["outcome"] == "Committed"
        assert said["table version"] == fresh.handle(table).version()
        assert said["batch id"] in file
        assert said["content digest"] in file


def test_a_materialization_lists_the_quarantined_rows_by_reason(fresh):
    said = metadata(fresh.run(BRONZE, SILVER, first=DAY), SILVER)[DAY]
    reasons = {record["rule"]: record["rows"] for record in said["quarantined by reason"]}
    refused = fresh.rows("quarantine/transactions")
    counted = refused.explode("_failures").unnest("_failures").filter(severity="ERROR")["rule"].value_counts()
    assert reasons == dict(counted.iter_rows())
    assert refused.height == said["quarantined"] > 0
    assert f"{said['read']:,} read = " in said["verdict"]


def test_gold_shows_its_total_and_a_picture_of_the_days_before(fresh):
    fresh.run(BRONZE, SILVER, first=DAYS[0], last=DAYS[-1])
    said = metadata(fresh.run(DAILY_SALES, first=DAYS[0], last=DAYS[-1]), DAILY_SALES)[DAYS[-1]]
    last = fresh.rows(DAILY_SALES).filter(pl.col("day").cast(pl.String) == DAYS[-1])
    assert said["total sales"] == pytest.approx(last.get_column("sales").sum())
    assert re.fullmatch(
        r"!\[sales of 2017-01-01 to 2017-01-05\]\(data:image/\S+;base64,\S+\)", said["sales until here"]
    )


def test_the_quarantine_is_reported_for_the_day_with_its_own_rows_and_reasons(fresh):
    result = fresh.run(BRONZE, SILVER, first=DAY)
    said = metadata(result, "quarantine/transactions")[DAY]
    assert said["dagster/partition_row_count"] == fresh.rows("quarantine/transactions").height
    assert said["by reason"] == metadata(result, SILVER)[DAY]["quarantined by reason"]
    assert fresh.materialized("quarantine/transactions") == {DAY}


def test_the_gate_and_every_rule_speak_of_the_day_and_point_at_its_materialization(fresh):
    result = fresh.run(BRONZE, SILVER, first=DAY)
    graph = fresh.defs.resolve_asset_graph()
    newest = fresh.instance.fetch_materializations(dg.AssetKey(SILVER.split("/")), limit=1).records[0]
    for check in graph.get_check_keys_for_assets([dg.AssetKey(SILVER.split("/"))]):
        said = evaluations(result, SILVER, check.name)
        assert set(said) == {DAY}, check
        target = said[DAY].target_materialization_data
        assert target is not None
        assert (target.storage_id, target.run_id) == (newest.storage_id, result.run_id)
    assert evaluations(result, SILVER)[DAY].passed
    assert evaluations(result, SILVER)[DAY].blocking


def test_a_rule_that_found_something_says_how_many_rows_and_how_severe_that_is(fresh):
    result = fresh.run(BRONZE, SILVER, first=DAY)
    said = {check: evaluations(result, SILVER, check)[DAY] for check in (
        "quantity__gt", "table__coupon_within_price", "household_id__known_in", "store_id__gt")}  # fmt: skip
    assert not said["quantity__gt"].passed
    assert said["quantity__gt"].severity == dg.AssetCheckSeverity.WARN  # rows are quarantined, the day is published
    assert not said["table__coupon_within_price"].passed
    assert said["table__coupon_within_price"].metadata["severity"].value == "WARNING"
    assert said["household_id__known_in"].passed  # INFO is counted and never red
    assert said["household_id__known_in"].metadata["rows"] != dg.MetadataValue.int(0)
    assert said["store_id__gt"].passed
    assert said["store_id__gt"].metadata["rows"] == dg.MetadataValue.int(0)


def test_a_reference_table_is_reported_as_a_whole_and_its_checks_point_at_it(fresh):
    result = fresh.run("bronze/households", "silver/households")
    said, gate = metadata(result, "silver/households"), evaluations(result, "silver/households")
    assert set(said) == set(gate) == {None}
    assert said[None]["dagster/row_count"] == 801
    newest = fresh.instance.fetch_materializations(dg.AssetKey(["silver", "households"]), limit=1).records[0]
    target = gate[None].target_materialization_data
    assert target is not None
    assert (target.storage_id, target.run_id) == (newest.storage_id, result.run_id)


def test_a_finished_day_materialized_again_is_unchanged_and_no_version_and_no_file_moves(finished):
    before, at = standing(finished), versions(finished)
    for assets in (DAILY[:2], DAILY[2:3], DAILY[3:]):
        result = finished.run(*assets, first=DAY)
        assert result.success, causes(result)
        for table in assets:
            assert metadata(result, table)[DAY]["outcome"] == "Unchanged"
            assert metadata(result, table)[DAY]["table version"] == at[table]
            assert evaluations(result, table)[DAY].passed
    assert standing(finished) == before
    assert versions(finished) == at


def test_after_one_row_is_edited_only_that_day_and_what_is_built_from_it_change(finished):
    before, at = standing(finished), versions(finished)
    edit_a_quantity(finished, DAY)
    outcomes: dict[str, dict[str | None, str]] = {}
    for assets in (DAILY[:2], DAILY[2:3], DAILY[3:]):
        result = finished.run(*assets, first=DAYS[0], last=DAYS[-1])
        assert result.success, causes(result)
        outcomes |= {table: {day: said["outcome"] for day, said in metadata(result, table).items()} for table in assets}
    changed = {table: [day for day, said in days.items() if said == "Committed"] for table, days in outcomes.items()}
    assert changed == {BRONZE: [DAY], SILVER: [DAY], DAILY_SALES: [DAY], SALES_7D: LATER}
    others = [day for day in DAYS if day != DAY]
    for table in (BRONZE, SILVER, DAILY_SALES):
        assert finished.standing(table, others) == {day: before[table][day] for day in others}, table
        assert finished.handle(table).version() == at[table] + 1
    earlier = [day for day in DAYS if day < DAY]
    assert finished.standing(SALES_7D, earlier) == {day: before[SALES_7D][day] for day in earlier}


def test_the_colours_of_a_day_stay_when_it_is_found_unchanged_in_a_range(fresh):
    first = fresh.run(BRONZE, SILVER, first=DAYS[0], last=DAYS[1])
    again = fresh.run(BRONZE, SILVER, first=DAYS[0], last=DAYS[1])
    for check in ("gate", "quantity__gt", "table__coupon_within_price"):
        before, after = evaluations(first, SILVER, check), evaluations(again, SILVER, check)
        assert {day: said.passed for day, said in after.items()} == {day: said.passed for day, said in before.items()}
        assert set(before) == set(DAYS[:2])


@pytest.fixture
def with_two_bad_days(fresh: Deployment) -> Deployment:
    """The second day's export is garbage, and the fourth day's was cut short."""
    fresh.file(DAYS[1]).write_bytes(GARBAGE)
    cut_short(fresh.file(DAYS[3]), rows=900)
    return fresh


GARBLED, SHORT = DAYS[1], DAYS[3]
GOOD = {DAYS[0], DAYS[2], DAYS[4]}


def test_a_range_with_a_garbage_file_and_a_critical_day_publishes_the_others_and_fails(with_two_bad_days):
    result = with_two_bad_days.run(BRONZE, SILVER, first=DAYS[0], last=DAYS[-1])
    assert not result.success
    assert set(metadata(result, BRONZE)) == {*GOOD, SHORT}
    assert set(metadata(result, SILVER)) == set(metadata(result, "quarantine/transactions")) == GOOD
    assert with_two_bad_days.materialized(SILVER) == GOOD
    assert set(with_two_bad_days.files(SILVER)) == GOOD


def test_the_failure_of_a_range_names_the_days_their_faults_and_what_to_do(with_two_bad_days):
    message = told(with_two_bad_days.run(BRONZE, SILVER, first=DAYS[0], last=DAYS[-1]))
    assert "bronze/transactions: PARTIAL, 4 of 5 partitions in place" in message
    assert "silver/transactions: PARTIAL, 3 of 5 partitions in place" in message
    assert f"bronze/transactions {GARBLED} cannot be read from transactions/{GARBLED}.csv" in message
    assert f"silver/transactions {GARBLED} was not built, because it needs bronze/transactions {GARBLED}" in message
    assert f"silver/transactions {SHORT} blocked by table.a_whole_day" in message
    assert f"replay silver/transactions {SHORT}" in message
    assert not [day for day in GOOD if day in message]


def test_the_checks_of_a_range_are_red_on_exactly_the_days_that_failed(with_two_bad_days):
    result = with_two_bad_days.run(BRONZE, SILVER, first=DAYS[0], last=DAYS[-1])
    assert set(evaluations(result, SILVER)) == set(DAYS)
    assert red(evaluations(result, SILVER)) == {GARBLED, SHORT}
    assert red(evaluations(result, BRONZE)) == {GARBLED}
    assert red(evaluations(result, SILVER, "table__a_whole_day")) == {SHORT}
    assert red(evaluations(result, SILVER, "quantity__gt")) == set()


def test_no_rule_is_red_on_a_good_day_of_a_range_that_fails(with_two_bad_days):
    result = with_two_bad_days.run(BRONZE, SILVER, first=DAYS[0], last=DAYS[-1])
    assert with_two_bad_days.colours(SILVER, "table__a_whole_day") == {
        **dict.fromkeys(GOOD, "SUCCEEDED"), SHORT: "FAILED", GARBLED: "EXECUTION_FAILED"
    }  # fmt: skip
    graph = with_two_bad_days.defs.resolve_asset_graph()
    for check in graph.get_check_keys_for_assets([dg.AssetKey(SILVER.split("/"))]):
        colours = with_two_bad_days.colours(SILVER, check.name)
        assert {colours[day] for day in GOOD} <= {"SUCCEEDED", "FAILED"}, check
        assert not red(evaluations(result, SILVER, check.name)) & GOOD, check


def test_a_range_that_plans_the_gates_alone_reports_rules_that_found_something_and_leaves_no_partition_red(fresh):
    newest = DAYS[2]
    result = fresh.run(BRONZE, SILVER, first=DAYS[0], last=newest, gates_only=True)
    assert result.success, causes(result)
    assert fresh.colours(SILVER, "gate") == dict.fromkeys(DAYS[:3], "SUCCEEDED")
    assert fresh.colours(SILVER, "quantity__gt") == dict.fromkeys(DAYS[:3], "FAILED")
    assert fresh.colours(SILVER, "store_id__gt") == {newest: "SUCCEEDED"}


def test_a_rule_that_has_recovered_turns_green_in_a_range_that_plans_the_gates_alone(fresh):
    rows = pl.read_csv(fresh.file(DAYS[0]), infer_schema=False)
    few = pl.int_range(pl.len()) < 20
    rows.with_columns(week=pl.when(few).then(pl.lit("99")).otherwise("week")).write_csv(fresh.file(DAYS[0]))
    fresh.run(BRONZE, SILVER, first=DAYS[0], last=DAYS[1], gates_only=True)
    assert fresh.colours(SILVER, "week__in_range")[DAYS[0]] == "FAILED"
    rows.write_csv(fresh.file(DAYS[0]))
    result = fresh.run(BRONZE, SILVER, first=DAYS[0], last=DAYS[1], gates_only=True)
    assert result.success, causes(result)
    assert fresh.colours(SILVER, "week__in_range") == dict.fromkeys(DAYS[:2], "SUCCEEDED")


def test_k15_one_of_three_days_fails_and_the_run_fails_naming_the_one(fresh):
    cut_short(fresh.file(DAYS[1]), rows=10)
    result = fresh.run(BRONZE, SILVER, first=DAYS[0], last=DAYS[2])
    assert not result.success
    assert "silver/transactions: PARTIAL, 2 of 3 partitions in place" in told(result)
    assert DAYS[1] in told(result)
    assert not {DAYS[0], DAYS[2]} & set(re.findall(r"\d{4}-\d\d-\d\d", told(result)))


def test_k2_a_day_that_failed_stays_red_when_the_next_one_passes(fresh):
    cut_short(fresh.file(DAYS[2]), rows=900)
    assert not fresh.run(BRONZE, SILVER, first=DAYS[2]).success
    assert fresh.run(BRONZE, SILVER, first=DAYS[3]).success
    assert fresh.colours(SILVER, "gate") == {DAYS[2]: "FAILED", DAYS[3]: "SUCCEEDED"}


def test_a_published_day_turns_red_when_a_worse_delivery_is_refused_and_its_rows_stay(fresh):
    assert fresh.run(BRONZE, SILVER, first=DAY).success
    stood = fresh.standing(SILVER, [DAY])
    whole = fresh.file(DAY).read_bytes()
    cut_short(fresh.file(DAY), rows=900)
    assert not fresh.run(BRONZE, SILVER, first=DAY).success
    assert fresh.standing(SILVER, [DAY]) == stood
    assert fresh.colours(SILVER, "gate") == {DAY: "FAILED"}
    fresh.file(DAY).write_bytes(whole)
    assert fresh.run(BRONZE, SILVER, first=DAY).success
    assert fresh.colours(SILVER, "gate") == {DAY: "SUCCEEDED"}


def test_k3_gold_alone_refuses_a_day_that_silver_blocked_and_names_the_gate_and_the_day(fresh):
    cut_short(fresh.file(DAY), rows=900)
    assert not fresh.run(BRONZE, SILVER, first=DAY).success
    result = fresh.run(DAILY_SALES, first=DAY)
    assert not result.success
    assert (
        f"gold/daily_sales {DAY} was not built, because it needs silver/transactions {DAY} "
        "(blocked by its gate: table.a_whole_day)."
    ) in told(result)
    assert red(evaluations(result, DAILY_SALES)) == {DAY}
    assert metadata(result, DAILY_SALES) == {}
    assert not (fresh.lake / DAILY_SALES / "_delta_log").exists()


def test_silver_alone_reads_a_blocked_day_again_from_its_repaired_file(fresh):
    whole = fresh.file(DAY).read_bytes()
    cut_short(fresh.file(DAY), rows=900)
    assert not fresh.run(BRONZE, SILVER, first=DAY).success
    fresh.file(DAY).write_bytes(whole)
    result = fresh.run(SILVER, first=DAY)
    assert result.success, causes(result)
    assert metadata(result, BRONZE)[DAY]["outcome"] == metadata(result, SILVER)[DAY]["outcome"] == "Committed"
    assert fresh.colours(SILVER, "gate") == fresh.colours(BRONZE, "gate") == {DAY: "SUCCEEDED"}


def test_silver_alone_leaves_the_source_of_a_day_in_good_order_alone(finished):
    before = finished.standing(BRONZE, DAYS)
    edit_a_quantity(finished, DAY)
    result = finished.run(SILVER, first=DAY)
    assert result.success, causes(result)
    assert metadata(result, BRONZE) == {}
    assert metadata(result, SILVER)[DAY]["outcome"] == "Unchanged"
    assert finished.standing(BRONZE, DAYS) == before


def test_silver_alone_needs_no_landing_zone(finished):
    finished.landing.rename(finished.landing.with_name("away"))
    assert finished.run(SILVER, first=DAY).success


def test_a_missing_landing_zone_gives_one_message_that_says_what_to_do(finished):
    finished.landing.rename(finished.landing.with_name("away"))
    message = told(finished.run(BRONZE, first=DAY))
    assert message.startswith(f"the landing zone {finished.landing} is not there.")
    assert "MEDALLION_LANDING" in message


def test_a_lake_folder_that_cannot_be_used_gives_one_message_that_says_what_to_do(fresh):
    fresh.lake.rename(fresh.lake.with_name("away"))
    fresh.lake.write_text("a file where the folder should be")
    message = told(fresh.run(SILVER, first=DAY))
    assert message.startswith(f"the lake folder {fresh.lake} cannot be made")
    assert "MEDALLION_LAKE" in message


def test_a_day_without_a_file_fails_with_what_to_do_and_a_closed_day_is_published_empty(fresh):
    fresh.file(DAY).unlink()
    missing = fresh.run(BRONZE, SILVER, first=DAY)
    assert f"bronze/transactions {DAY} has no source file" in told(missing)
    closed = fresh.run(BRONZE, SILVER, first="2017-12-25")
    assert closed.success, causes(closed)
    said = metadata(closed, BRONZE)["2017-12-25"]
    assert said["dagster/partition_row_count"] == 0
    assert said["closed"] == "the stores are closed on Christmas Day"


def test_weeks_are_built_from_their_days_and_their_promotions(finished):
    result = finished.run("bronze/promotions", "silver/promotions", "gold/weekly_promotion_sales", first="2016-12-26")
    assert result.success, causes(result)
    first_day = finished.rows(SILVER).filter(pl.col("day").cast(pl.String) == DAYS[0])
    assert finished.rows("gold/weekly_promotion_sales").get_column("lines").sum() == first_day.height
