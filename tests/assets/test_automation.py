"""What starts runs without anybody clicking: jobs, schedules and the landing sensor."""

import datetime as dt
import os
from pathlib import Path
from zoneinfo import ZoneInfo

import dagster as dg
import pytest
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    PARTITION_NAME_TAG,
)

from assets.automation import neighbours
from assets.definitions import build_definitions
from assets.feeds.calendar import DAY, WEEK
from medallion.partitions import Whole
from medallion.project import load_project

NEW_YORK = ZoneInfo("America/New_York")
JOB_OF = {"": "references", "day": "daily", "week_start": "weekly", "month": "monthly"}
REFERENCES = ("products.parquet", "households.csv")


@pytest.fixture(scope="module")
def definitions() -> dg.Definitions:
    return build_definitions()


@pytest.fixture
def landing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty landing zone, of which the deployment is told as in production."""
    folder = tmp_path / "landing"
    for part in ("transactions", "promotions"):
        (folder / part).mkdir(parents=True)
    monkeypatch.setenv("MEDALLION_LANDING", str(folder))
    return folder


@pytest.fixture
def look(definitions: dg.Definitions, landing: Path):
    """Let the sensor look at the landing zone once, with the cursor of the time before; what it asks for."""
    cursor: list[str | None] = [None]

    def evaluate() -> list[tuple[str | None, str]]:
        sensor, resources = definitions.resolve_sensor_def("landing_files"), definitions.resources or {}
        with (
            dg.DagsterInstance.ephemeral() as instance,
            dg.build_sensor_context(
                instance, cursor[0], definitions=definitions, resources={"landing": resources["landing"]}
            ) as context,
        ):
            result = sensor.evaluate_tick(context)
        cursor[0] = result.cursor
        requests = result.run_requests or []
        assert len({request.run_key for request in requests}) == len(requests)
        return [(request.job_name, asked_for(request)) for request in requests]

    return evaluate


def asked_for(request: dg.RunRequest) -> str:
    """The partitions of a run request: a key, a range, or everything."""
    if ASSET_PARTITION_RANGE_START_TAG in request.tags:
        return f"{request.tags[ASSET_PARTITION_RANGE_START_TAG]} to {request.tags[ASSET_PARTITION_RANGE_END_TAG]}"
    return request.partition_key or request.tags.get(PARTITION_NAME_TAG, "everything")


def deliver(landing: Path, *days: str) -> None:
    for day in days:
        (landing / "transactions" / f"{day}.csv").write_text(f"basket_id\n{day}\n")


def test_there_is_one_job_for_each_way_in_which_tables_are_cut_and_every_table_is_in_it(definitions):
    tables = load_project("assets.feeds").tables
    for column, name in JOB_OF.items():
        selected = definitions.resolve_job_def(name).asset_layer.selected_asset_keys
        assert {key.to_user_string() for key in selected} == {
            table.path for table in tables if table.partition.column == column
        }


def test_the_jobs_have_the_partitions_of_their_tables(definitions):
    for name, cut in (("daily", DAY), ("weekly", WEEK)):
        partitions = definitions.resolve_job_def(name).partitions_def
        assert tuple(partitions.get_partition_keys()) == cut.keys()
    assert definitions.resolve_job_def("references").partitions_def is None


@pytest.mark.parametrize(
    ("schedule", "moment", "partition"),
    [
        ("daily_schedule", dt.datetime(2017, 3, 2, 2, tzinfo=NEW_YORK), "2017-03-01"),
        ("daily_schedule", dt.datetime(2017, 3, 13, 2, tzinfo=NEW_YORK), "2017-03-12"),  # a day of 23 hours
        ("weekly_schedule", dt.datetime(2017, 3, 6, 2, tzinfo=NEW_YORK), "2017-02-27"),
        ("monthly_schedule", dt.datetime(2017, 4, 1, 2, tzinfo=NEW_YORK), "2017-03-01"),
    ],
)
def test_a_schedule_asks_for_the_window_that_ended_two_hours_before(definitions, schedule, moment, partition):
    found = definitions.resolve_schedule_def(schedule)
    with dg.DagsterInstance.ephemeral() as instance:
        context = dg.build_schedule_context(
            instance, scheduled_execution_time=moment, repository_def=definitions.get_repository_def()
        )
        (request,) = found.evaluate_tick(context).run_requests
    assert request.tags[PARTITION_NAME_TAG] == partition


def test_the_schedules_run_in_the_time_zone_of_the_stores(definitions):
    schedules = definitions.get_repository_def().schedule_defs
    assert {schedule.name: schedule.cron_schedule for schedule in schedules} == {
        "daily_schedule": "0 2 * * *",
        "weekly_schedule": "0 2 * * 1",
        "monthly_schedule": "0 2 1 * *",
        "refresh_operations_schedule": "*/10 * * * *",
    }
    daily = [schedule for schedule in schedules if schedule.name != "refresh_operations_schedule"]
    assert {schedule.execution_timezone for schedule in daily} == {"America/New_York"}


def test_the_first_look_asks_for_all_files_that_are_there_in_rows_of_neighbours(look, landing):
    deliver(landing, "2017-01-01", "2017-01-02", "2017-01-03", "2017-01-07")
    for name in (*REFERENCES, "promotions/2016-12-26.parquet"):
        (landing / name).write_bytes(b"delivered")
    assert sorted(look()) == [
        ("daily", "2017-01-01 to 2017-01-03"),
        ("daily", "2017-01-07"),
        ("references", "everything"),  # two files, one run
        ("weekly", "2016-12-26"),
    ]


def test_an_empty_landing_zone_asks_for_nothing(look):
    assert look() == []


def test_a_second_look_asks_for_nothing(look, landing):
    deliver(landing, "2017-01-01", "2017-01-02")
    assert look()
    assert look() == []


def test_a_new_file_asks_for_its_partition_alone(look, landing):
    deliver(landing, "2017-01-01", "2017-01-02")
    look()
    deliver(landing, "2017-01-03")
    assert look() == [("daily", "2017-01-03")]


def test_a_changed_file_asks_for_its_partition_alone(look, landing):
    deliver(landing, "2017-01-01", "2017-01-02", "2017-01-03")
    look()
    with (landing / "transactions" / "2017-01-02.csv").open("a") as file:
        file.write("a line more\n")
    assert look() == [("daily", "2017-01-02")]


def test_a_file_rewritten_with_as_many_bytes_asks_for_its_partition(look, landing):
    deliver(landing, "2017-01-01")
    look()
    file = landing / "transactions" / "2017-01-01.csv"
    size, was = file.stat().st_size, file.stat().st_mtime_ns
    file.write_text("basket_id\n2017-01-99\n")
    os.utime(file, ns=(was + 1_000_000, was + 1_000_000))
    assert file.stat().st_size == size
    assert look() == [("daily", "2017-01-01")]


def test_a_file_that_was_taken_away_and_comes_back_asks_for_its_partition_again(look, landing):
    deliver(landing, "2017-01-01", "2017-01-02")
    look()
    file = landing / "transactions" / "2017-01-02.csv"
    file.rename(file.with_suffix(".away"))
    assert look() == []
    file.with_suffix(".away").rename(file)
    assert look() == [("daily", "2017-01-02")]


def test_a_file_for_a_day_that_is_not_declared_is_left_alone(look, landing):
    deliver(landing, "2018-01-01", "2017-02-30", "notes")
    assert look() == []


def test_neighbours_are_runs_of_partitions_without_a_gap_in_order():
    assert neighbours(DAY, {"2017-02-01", "2017-01-31", "2017-01-29", "2017-12-31"}) == [
        ["2017-01-29"],
        ["2017-01-31", "2017-02-01"],
        ["2017-12-31"],
    ]
    assert neighbours(DAY, []) == []
    assert neighbours(Whole(), ["all"]) == [["all"]]
