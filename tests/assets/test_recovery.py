"""The jobs that make a savepoint and go back to one: what their forms do, and what Dagster knows afterwards."""

from typing import Any

import dagster as dg
import pytest

from medallion import savepoints
from medallion.lake import Lake
from tests.assets.conftest import DAYS
from tests.assets.deployment import DAILY, QUIET, REFERENCES, Deployment, told
from tests.assets.test_materialize import edit_a_quantity
from tests.assets.test_staleness import stale

BRONZE, SILVER, DAILY_SALES, SALES_7D = DAILY
DAY = DAYS[2]


def launched(deployment: Deployment, job: str, op: str, **form: Any) -> dg.ExecuteInProcessResult:
    """Run a job with a filled-in form."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in deployment.environment().items():
            patch.setenv(name, value)
        return deployment.defs.get_job_def(job).execute_in_process(
            run_config={**QUIET, "ops": {op: {"config": form}}}, instance=deployment.instance, raise_on_error=False
        )


def shown(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    """What the run's output says."""
    (output,) = [each for each in result.all_events if each.is_successful_output]
    return {name: each.value for name, each in output.step_output_data.metadata.items()}


def contents(deployment: Deployment) -> dict[str, dict[str, str | None]]:
    lake = Lake(deployment.lake, durable=False)
    pins = {path: lake.open(path) for path in DAILY}
    return {path: {key: each.content(key) for key in each.files} for path, each in pins.items()}


def data_version(deployment: Deployment, asset: str, day: str) -> str | None:
    records = deployment.instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=dg.AssetKey(asset.split("/")), asset_partitions=[day]), limit=1
    ).records
    materialization = records[0].asset_materialization if records else None
    return (materialization.tags or {}).get("dagster/data_version") if materialization else None


@pytest.fixture
def spoilt(finished: Deployment) -> Deployment:
    """A savepoint of the few days, one of which is wrong now, up to gold."""
    assert launched(finished, "create_savepoint", "create", name="good", reason="before the edit").success
    edit_a_quantity(finished, DAY)
    for assets in (DAILY[:2], DAILY[2:3], DAILY[3:]):
        assert finished.run(*assets, first=DAYS[0], last=DAYS[-1]).success
    return finished


def test_the_form_makes_a_savepoint_of_every_table(finished):
    result = launched(finished, "create_savepoint", "create", name="by-form", reason="to see")
    assert result.success, told(result)
    (saved,) = savepoints.savepoints(Lake(finished.lake))
    assert (saved.name, saved.kind, saved.reason, saved.run_id) == ("by-form", "manual", "to see", result.run_id)
    assert f"| {SILVER} | " in shown(result)["savepoint"]


def test_a_form_left_as_it_is_changes_nothing(spoilt):
    before = contents(spoilt)
    result = launched(spoilt, "restore_savepoint", "restore", savepoint="good")
    assert result.success, told(result)
    assert f"| {SILVER} | 1 | 0 | 0 |" in shown(result)["plan"]
    assert contents(spoilt) == before


def test_a_restore_puts_the_day_back_and_dagster_is_told_its_content(finished, spoilt):
    saved = savepoints.read(Lake(spoilt.lake), "good")
    wrong = data_version(spoilt, SILVER, DAY)
    result = launched(spoilt, "restore_savepoint", "restore", savepoint="good", dry_run=False, reason="wrong day")
    assert result.success, told(result)
    right = {path: {key: files[0].digest for key, files in saved.tables[path].files.items()} for path in DAILY}
    assert contents(spoilt) == right
    for asset in (BRONZE, SILVER, DAILY_SALES, SALES_7D):
        assert data_version(spoilt, asset, DAY) == right[asset][DAY]
    assert wrong != right[SILVER][DAY]
    assert "recovered" in shown(result)["restore"]


def test_what_was_out_of_date_at_the_savepoint_is_shown_so_after_the_restore(finished):
    for assets in (REFERENCES, DAILY[:2], DAILY[2:3], DAILY[3:]):  # so that Dagster knows of them
        cut = {} if assets == REFERENCES else {"first": DAYS[0], "last": DAYS[-1]}
        assert finished.run(*assets, **cut).success
    edit_a_quantity(finished, DAY)
    assert finished.run(BRONZE, SILVER, first=DAY).success
    assert finished.run(DAILY_SALES, first=DAY).success
    assert launched(finished, "create_savepoint", "create", name="behind").success
    assert finished.run(SALES_7D, first=DAY, last=DAYS[-1]).success
    assert stale(finished, SALES_7D) == {}
    result = launched(finished, "restore_savepoint", "restore", savepoint="behind", dry_run=False, reason="as it was")
    assert result.success, told(result)
    assert set(stale(finished, SALES_7D)) == {day for day in DAYS if day >= DAY}


def test_an_unknown_savepoint_fails_the_run_with_those_that_there_are(finished):
    assert launched(finished, "create_savepoint", "create", name="good").success
    result = launched(finished, "restore_savepoint", "restore", savepoint="bad", dry_run=False)
    assert not result.success
    assert "There are: good" in str(told(result))
