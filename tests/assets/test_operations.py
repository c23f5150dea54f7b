"""The operations group, the proof of gold, and the jobs with a form: what an operator sees and decides in Dagster."""

from typing import Any

import dagster as dg
import pytest

from medallion import ledger
from medallion.lake import Lake
from medallion.project import load_project
from medallion.verify import verify
from tests.assets.deployment import (
    DAILY,
    QUIET,
    REFERENCES,
    Deployment,
    Told,
    causes,
    cut_short,
    evaluations,
    metadata,
    told,
)  # fmt: skip

BRONZE, SILVER, DAILY_SALES, SALES_7D = DAILY


def ask(deployment: Deployment, job: str, op: str | None = None, **form: Any) -> dg.ExecuteInProcessResult:
    """Run one of the project's jobs with its form filled in."""
    config = {**QUIET, **({"ops": {op: {"config": form}}} if op else {})}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in deployment.environment().items():
            patch.setenv(name, value)
        done = deployment.defs.resolve_job_def(job).execute_in_process(
            run_config=config, instance=deployment.instance, raise_on_error=False
        )
    return Told(done, deployment.instance)


def said(result: dg.ExecuteInProcessResult, op: str) -> dict[str, Any]:
    """The metadata of an operation's output."""
    (event,) = [each for each in result.all_events if each.is_successful_output and each.node_name == op]
    return {name: value.value for name, value in event.step_output_data.metadata.items()}


@pytest.fixture
def blocked(fresh: Deployment, days: tuple[str, ...]) -> Deployment:
    """The first day in place; the second cut short, and so blocked."""
    cut_short(fresh.file(days[1]), rows=900)
    assert fresh.run(BRONZE, SILVER, first=days[0]).success
    assert not fresh.run(BRONZE, SILVER, first=days[1]).success
    return fresh


def test_ops_health_answers_the_four_questions_and_says_what_needs_somebody(blocked: Deployment, days):
    result = ask(blocked, "refresh_operations")
    assert result.success, causes(result)
    found = metadata(result, "ops/health")[None]
    for question in ("Where am I?", "What have I committed?", "Where can I safely return?", "Can I prove that"):
        assert question in found["with charts"]
        assert [name for name in found if name.startswith(question)]
    assert "data:image/svg+xml;base64," in found["with charts"]
    assert found["needs somebody"] is True
    assert found["blocked"] == 1
    (concern,) = [each for each in found["concerns"] if each["what"] == "blocked"]
    assert concern["table"] == SILVER
    assert days[1] in concern["reason"]
    assert concern["next"] == f"medallion inspect {SILVER} {days[1]}"


def test_ops_attempts_shows_the_newest_rows_of_the_ledger(blocked: Deployment, days):
    found = metadata(ask(blocked, "refresh_operations"), "ops/attempts")[None]
    rows = ledger.read(Lake(blocked.lake))
    assert found["dagster/row_count"] == rows.height
    assert found["blocked"] == 1
    assert found["committed"] == rows.filter(rows["status"] == "committed").height
    newest = found["newest"][0]
    assert (newest["table"], newest["partition"], newest["status"]) == (SILVER, days[1], "blocked")
    assert "a_whole_day" in newest["why"]


def test_the_refresh_is_asked_for_by_a_schedule(fresh: Deployment):
    schedule = fresh.defs.resolve_schedule_def("refresh_operations_schedule")
    assert (schedule.job_name, schedule.cron_schedule) == ("refresh_operations", "*/10 * * * *")


def test_a_blocked_partition_says_what_can_be_done_and_leads_to_the_forms(blocked: Deployment, days):
    again = blocked.run(BRONZE, SILVER, first=days[1])
    gate = evaluations(again, SILVER)[days[1]]
    text = str(gate.metadata["next"].value)
    for word in ("inspect", "replay", "approve", "discard"):
        assert f"medallion {word} {SILVER} {days[1]}" in text
    assert "/locations/medallion/jobs/approve_candidate/playground/setup?" in text
    (failure,) = [each for each in again.all_events if each.is_step_failure]
    assert failure.step_failure_data.user_failure_data is not None
    assert failure.step_failure_data.user_failure_data.metadata["next"].value == text


def test_a_blocked_partition_is_approved_by_form_and_turns_green(blocked: Deployment, days):
    result = ask(blocked, "approve_candidate", "approve", table=SILVER, partition=days[1], reason="a short day")
    assert result.success, causes(result)
    assert days[1] in blocked.files(SILVER)
    assert days[1] in blocked.materialized(SILVER)
    assert blocked.colours(SILVER, "gate") == {days[0]: "SUCCEEDED", days[1]: "SUCCEEDED"}
    newest = ledger.latest(Lake(blocked.lake)).filter(ledger_of(SILVER, days[1])).row(0, named=True)
    assert (newest["status"], newest["reason"]) == ("approved", "a short day")
    assert newest["pipeline_run_id"] == result.run_id
    assert f"medallion replay {SILVER} {days[1]}" in said(result, "approve")["next"]


def ledger_of(table: str, key: str) -> Any:
    import polars as pl

    return (pl.col("pipeline_name") == table) & (pl.col("partition") == key)


def test_a_form_for_a_partition_that_is_not_blocked_says_so_and_changes_nothing(blocked: Deployment, days):
    before = blocked.standing(SILVER, days)
    for job, op in (("approve_candidate", "approve"), ("discard_candidate", "discard")):
        result = ask(blocked, job, op, table=SILVER, partition=days[0], reason="why not")
        assert "has no blocked candidate" in told(result)
    assert "no table is called" in told(ask(blocked, "discard_candidate", "discard", table="silver/x", partition="all"))
    assert blocked.standing(SILVER, days) == before


def test_a_blocked_partition_is_discarded_by_form(blocked: Deployment, days):
    result = ask(blocked, "discard_candidate", "discard", table=SILVER, partition=days[1], reason="a test")
    assert result.success
    assert "a_whole_day had blocked is gone" in result.output_for_node("discard")
    assert "has no blocked candidate" in told(
        ask(blocked, "discard_candidate", "discard", table=SILVER, partition=days[1])
    )


def test_verify_lake_proves_gold_and_names_what_was_altered(finished: Deployment, days):
    result = ask(finished, "verify_lake", "verify")
    assert result.success, causes(result)
    assert result.output_for_node("verify") == "reconciled"
    assert evaluations(result, DAILY_SALES, "reconciled")[None].passed
    (name,) = finished.files(DAILY_SALES)[days[2]]
    path = finished.lake / DAILY_SALES / name
    path.write_bytes(path.read_bytes() + b"x")
    result = ask(finished, "verify_lake", "verify")
    assert f"{DAILY_SALES} {days[2]}: file altered: {DAILY_SALES}/{name}" in told(result)
    red = evaluations(result, DAILY_SALES, "reconciled")[None]
    assert not red.passed
    assert str(red.metadata["differences"].value) == "1"
    assert evaluations(result, SALES_7D, "reconciled")[None].passed
    assert ask(finished, "verify_lake", "verify", table=SALES_7D).success
    assert ask(finished, "verify_lake", "verify", table=DAILY_SALES, partitions=[f"{days[0]}..{days[1]}"]).success


def test_gold_proves_itself_in_the_run_that_makes_it(finished: Deployment, days):
    result = finished.run(DAILY_SALES, first=days[0], last=days[2])
    found = evaluations(result, DAILY_SALES, "reconciled")[None]
    assert found.passed
    assert found.metadata["partitions"].value == 3
    assert evaluations(result, DAILY_SALES, "fresh")[None].passed


def test_gold_that_lacks_what_its_inputs_hold_is_not_fresh(fresh: Deployment, days):
    assert fresh.run(BRONZE, SILVER, first=days[0], last=days[2]).success
    result = fresh.run(DAILY_SALES, first=days[0])
    found = evaluations(result, DAILY_SALES, "fresh")[None]
    assert not found.passed
    assert found.severity == dg.AssetCheckSeverity.WARN
    assert found.metadata["partitions that wait"].value == 2
    assert found.metadata["next"].value == f"medallion replay {DAILY_SALES} {days[1]}..{days[2]}"


def test_a_new_dagster_instance_is_told_what_the_lake_holds(finished: Deployment, days):
    assert finished.materialized(SILVER) == set()  # this instance has never heard of the lake
    cut_short(finished.file(days[3]), rows=900)
    finished.run(BRONZE, SILVER, first=days[3])
    with dg.DagsterInstance.ephemeral() as new:
        finished.instance = new
        before = {table: finished.standing(table, days) for table in DAILY}
        result = ask(finished, "report_from_lake", "report")
        assert result.success, causes(result)
        for table in DAILY:
            assert finished.materialized(table) == set(days), table
            assert finished.standing(table, days) == before[table]
        assert finished.colours(SILVER, "gate") == {**dict.fromkeys(days, "SUCCEEDED"), days[3]: "FAILED"}
        for table in REFERENCES:
            assert new.get_latest_materialization_event(dg.AssetKey(table.split("/"))) is not None
        known = metadata(result, SILVER)[days[0]]
        project = load_project("assets.feeds")
        assert verify(project, Lake(finished.lake), [SILVER]).reconciled
        assert known["dagster/partition_row_count"] == finished.rows(SILVER).filter(
            finished.rows(SILVER)["day"].cast(str) == days[0]
        ).height  # fmt: skip
