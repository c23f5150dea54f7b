"""The job that launches a plan: what its form asks, what it shows, and the backfill that it asks the daemon for."""

import datetime as dt
import json
import time
from typing import Any

import dagster as dg
import pytest
from dagster._core.execution.asset_backfill import AssetBackfillData

from assets.backfill import BEHIND, PLAN_TAG
from medallion.plan import Plan
from tests.assets.conftest import DAYS
from tests.assets.deployment import DAILY, QUIET, Deployment, told
from tests.assets.test_materialize import edit_a_quantity

BRONZE, SILVER, DAILY_SALES, SALES_7D = DAILY
HOUSEHOLD_MONTHS = "gold/household_months"
DAY = "2017-01-03"


def between(first: str, last: str) -> list[str]:
    """The days from one to another, both included."""
    count = (dt.date.fromisoformat(last) - dt.date.fromisoformat(first)).days + 1
    return [str(dt.date.fromisoformat(first) + dt.timedelta(days=after)) for after in range(count)]


def launched(deployment: Deployment, **form: Any) -> dg.ExecuteInProcessResult:
    """Run the job with a filled-in form."""
    job = deployment.defs.get_job_def("planned_backfill")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in deployment.environment().items():
            patch.setenv(name, value)
        config = {**QUIET, "ops": {"plan": {"config": form}}}
        return job.execute_in_process(run_config=config, instance=deployment.instance, raise_on_error=False)


def shown(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    """What the run says of its plan."""
    (output,) = [each for each in result.all_events if each.is_successful_output]
    return {name: each.value for name, each in output.step_output_data.metadata.items()}


def targeted(deployment: Deployment) -> dict[str, set[str]]:
    """The partitions of the only backfill there is, by asset."""
    (backfill,) = deployment.instance.get_backfills()
    assert backfill.asset_backfill_data is not None
    subsets = backfill.asset_backfill_data.target_subset.partitions_subsets_by_asset_key
    return {key.to_user_string(): set(subset.get_partition_keys()) for key, subset in subsets.items()}


def test_a_corrected_file_launches_exactly_its_closure(finished):
    edit_a_quantity(finished, DAY)
    result = launched(finished, table=BRONZE, partitions=[f"{DAYS[0]}..{DAYS[-1]}"])
    assert result.success, told(result)
    later = {day for day in DAYS if day >= DAY}
    assert {asset: days & set(DAYS) for asset, days in targeted(finished).items()} == {
        BRONZE: {DAY}, SILVER: {DAY}, DAILY_SALES: {DAY}, SALES_7D: later
    }  # fmt: skip


def test_the_backfill_is_the_plan_and_carries_its_id_at_the_end_of_the_queue(finished):
    edit_a_quantity(finished, DAY)
    result = launched(finished, table=BRONZE, partitions=[DAY])
    facts = shown(result)
    made = Plan.from_json(json.dumps(facts["document"]))
    assert targeted(finished) == {each.table: set(each.keys) for each in made.tables if each.keys != ("all",)}
    (backfill,) = finished.instance.get_backfills()
    assert backfill.tags == {PLAN_TAG: made.id, **BEHIND}
    run = finished.instance.get_run_by_id(result.run_id)
    assert run is not None
    assert run.tags[PLAN_TAG] == made.id == facts["plan id"] == result.output_for_node("plan")
    assert f"| {BRONZE} {DAY} |" in facts["plan"]
    assert facts["backfill"] == f"/runs/b/{backfill.backfill_id}"


def test_a_dry_run_shows_the_plan_and_launches_nothing(finished):
    result = launched(finished, table=SILVER, partitions=[DAY], only=["ALL"], downstream=False, dry_run=True)
    facts = shown(result)
    assert facts["partitions"] == 1
    assert f"{SILVER} {DAY}" in facts["plan"]
    assert finished.instance.get_backfills() == []


def test_nothing_to_do_is_said_and_launches_nothing(finished):
    result = launched(finished, table=SILVER, partitions=[DAY])
    assert shown(result)["plan"].startswith("Nothing is to be made.")
    assert finished.instance.get_backfills() == []


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"table": "silver/transaction"}, "silver/transaction"),
        ({"table": SILVER, "partitions": ["2017-02-30"]}, "2017-02-30"),
    ],
)
def test_a_mistake_in_the_form_is_one_clear_message(finished, form, words):
    result = launched(finished, **form)
    assert not result.success
    assert words in told(result)
    assert finished.instance.get_backfills() == []


def test_every_field_of_the_form_says_what_it_is(finished):
    fields = finished.defs.get_job_def("planned_backfill").get_node_named("plan").definition.config_schema
    form = fields.config_type.fields
    assert set(form) == {"table", "partitions", "only", "downstream", "upstream", "dry_run"}
    assert all(field.description and not field.is_required for field in form.values())


@pytest.mark.parametrize(
    ("first", "last", "week", "month"),
    [
        ("2017-03-01", "2017-03-01", ("2017-03-01", "2017-03-07"), ["2017-03-01"]),
        ("2017-02-27", "2017-03-02", ("2017-02-27", "2017-03-08"), ["2017-02-01", "2017-03-01"]),
        ("2017-12-30", "2017-12-31", ("2017-12-30", "2017-12-31"), ["2017-12-01"]),  # clipped at the end of the year
    ],
)
def test_a_range_of_silver_with_its_downstream_targets_exactly_its_closure(fresh, first, last, week, month):
    graph = fresh.defs.resolve_asset_graph()
    days = between(first, last)
    targets = AssetBackfillData.from_asset_partitions(
        graph, days, [dg.AssetKey(path.split("/")) for path in (SILVER, DAILY_SALES, SALES_7D, HOUSEHOLD_MONTHS)],
        fresh.instance, all_partitions=False, backfill_start_timestamp=time.time(),
    ).target_subset.partitions_subsets_by_asset_key  # fmt: skip
    found = {key.to_user_string(): sorted(subset.get_partition_keys()) for key, subset in targets.items()}
    assert found == {
        SILVER: days,
        DAILY_SALES: days,
        SALES_7D: between(*week),
        HOUSEHOLD_MONTHS: month,
    }


def test_a_range_of_silver_alone_targets_itself(fresh):
    targets = AssetBackfillData.from_asset_partitions(
        fresh.defs.resolve_asset_graph(), [DAY], [dg.AssetKey(SILVER.split("/"))], fresh.instance,
        all_partitions=False, backfill_start_timestamp=time.time(),
    ).target_subset.partitions_subsets_by_asset_key  # fmt: skip
    assert {key.to_user_string() for key in targets} == {SILVER}
