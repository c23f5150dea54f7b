"""A month backfilled by the daemon with two bad days in it, repaired, and re-executed from failure."""

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    PARTITION_NAME_TAG,
)

from tests.assets.deployment import DAILY, GARBAGE, Deployment, Standing, cut_short
from tests.ui.retail import BRONZE, DAILY_SALES, SALES_7D, SILVER, days, served
from tests.ui.server import DagsterServer

pytestmark = pytest.mark.timeout(600)  # the first test waits for both backfills: 100 s on two quiet cores

WEEK_BEFORE = days("2017-11-26", 6)
MONTH = days("2017-12-02", 30)  # to the end of the year, so that no trailing window leads out of it
GARBLED, SHORT = "2017-12-10", "2017-12-19"
BAD = {GARBLED, SHORT}
GOOD = set(MONTH) - BAD
WINDOWS = {*days(GARBLED, 7), *days(SHORT, 7)}  # the days whose trailing week holds a bad one


@dataclass(frozen=True)
class Facts:
    """What a backfill left behind, in Dagster and in the tables."""

    backfill: Mapping[str, Any]
    partitions: Mapping[str, Mapping[str, set[str]]]
    gates: Mapping[str, Mapping[str, set[str]]]
    whole_day: Mapping[str, set[str]]
    standing: Mapping[str, Standing]

    @classmethod
    def of(cls, backfill: Mapping[str, Any], server: DagsterServer, deployment: Deployment) -> "Facts":
        return cls(
            backfill,
            {asset: _within(server.partitions(asset)) for asset in DAILY},
            {asset: _within(server.check(asset, "gate")) for asset in DAILY},
            _within(server.check(SILVER, "table__a_whole_day")),
            {asset: deployment.standing(asset, MONTH) for asset in DAILY},
        )

    def ran(self, asset: str) -> set[str]:
        """The days for which a run of the backfill was asked for an asset."""
        found: set[str] = set()
        for run in self.backfill["runs"]:
            if asset.split("/") in [each["path"] for each in run["assetSelection"]]:
                tags = {tag["key"]: tag["value"] for tag in run["tags"]}
                first = tags.get(ASSET_PARTITION_RANGE_START_TAG) or tags[PARTITION_NAME_TAG]
                last = tags.get(ASSET_PARTITION_RANGE_END_TAG, first)
                found |= {day for day in MONTH if first <= day <= last}
        return found

    def counts(self, asset: str) -> tuple[int, int, int]:
        """How many partitions of an asset were targeted, materialized and failed, as the backfill's page says."""
        for status in self.backfill["assetBackfillData"]["assetBackfillStatuses"]:
            if status["assetKey"]["path"] == asset.split("/"):
                names = ("numPartitionsTargeted", "numPartitionsMaterialized", "numPartitionsFailed")
                return tuple(status[name] for name in names)
        return 0, 0, 0


def _within(found: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """The days of the month alone, by status."""
    return {status: inside for status, keys in found.items() if (inside := set(keys) & set(MONTH))}


@dataclass(frozen=True)
class Story:
    """The month after the backfill, and after the repair."""

    first: Facts
    again: Facts


@pytest.fixture(scope="module")
def story(retail_landing: Path, tmp_path_factory: pytest.TempPathFactory) -> Story:
    """Backfill the month with two bad days, repair their files, and re-execute from failure."""
    root = tmp_path_factory.mktemp("backfill")
    delivered = [day for day in WEEK_BEFORE + MONTH if day != "2017-12-25"]  # the stores were closed
    with served(root, retail_landing, delivered, WEEK_BEFORE) as (server, deployment):
        deployment.file(GARBLED).write_bytes(GARBAGE)
        cut_short(deployment.file(SHORT), rows=900)
        backfill = server.launch_backfill(DAILY, MONTH)
        first = Facts.of(server.wait_for_backfill(backfill), server, deployment)
        for day in BAD:
            shutil.copyfile(retail_landing / "transactions" / f"{day}.csv", deployment.file(day))
        backfill = server.reexecute_from_failure(backfill)
        return Story(first, Facts.of(server.wait_for_backfill(backfill), server, deployment))


def test_of_thirty_days_28_are_materialized_and_two_fail_in_silver(story):
    assert story.first.backfill["status"] == "COMPLETED_FAILED"
    assert story.first.counts(SILVER) == (30, 28, 2)
    assert story.first.partitions[SILVER] == {"MATERIALIZED": GOOD, "FAILED": BAD}
    assert story.first.partitions[BRONZE] == {"MATERIALIZED": {*GOOD, SHORT}, "FAILED": {GARBLED}}


def test_gold_is_built_for_the_days_whose_silver_stands(story):
    assert story.first.counts(DAILY_SALES) == (30, 28, 2)
    assert story.first.partitions[DAILY_SALES] == {"MATERIALIZED": GOOD}
    assert story.first.partitions[SALES_7D] == {"MATERIALIZED": set(MONTH) - WINDOWS}


def test_the_checks_are_red_on_exactly_the_two_days(story):
    assert story.first.gates[SILVER] == {"SUCCEEDED": GOOD, "FAILED": BAD}
    assert story.first.gates[BRONZE] == {"SUCCEEDED": {*GOOD, SHORT}, "FAILED": {GARBLED}}
    assert story.first.gates[DAILY_SALES] == {"SUCCEEDED": GOOD}
    assert story.first.whole_day["FAILED"] == {SHORT}


def test_only_the_good_days_are_in_the_tables(story):
    for table in (SILVER, DAILY_SALES):
        files = {day for day, (names, _) in story.first.standing[table].items() if names}
        assert files == GOOD, table


def test_the_bad_days_are_said_to_have_failed_in_the_one_run_of_the_month(story):
    runs = [run for run in story.first.backfill["runs"] if {"path": SILVER.split("/")} in run["assetSelection"]]
    assert [run["status"] for run in runs] == ["FAILURE"]
    assert story.first.ran(SILVER) == set(MONTH)


def test_after_the_repair_re_execution_from_failure_runs_the_two_days_and_what_is_built_from_them(story):
    assert story.again.backfill["status"] == "COMPLETED_SUCCESS"
    assert story.again.ran(BRONZE) == {GARBLED}
    assert story.again.ran(SILVER) == story.again.ran(DAILY_SALES) == BAD
    assert story.again.ran(SALES_7D) == WINDOWS
    assert story.again.counts(SILVER) == story.again.counts(DAILY_SALES) == (2, 2, 0)
    assert story.again.counts(SALES_7D) == (14, 14, 0)


def test_after_the_repair_the_whole_month_is_in_place_and_green(story):
    for asset in DAILY:
        assert story.again.partitions[asset] == {"MATERIALIZED": set(MONTH)}, asset
        assert story.again.gates[asset] == {"SUCCEEDED": set(MONTH)}, asset
        assert all(names for names, _ in story.again.standing[asset].values()), asset
    assert "FAILED" not in story.again.whole_day


def test_k4_the_days_that_stood_keep_their_files_and_their_fence(story):
    for table, others in ((BRONZE, GOOD), (SILVER, GOOD), (DAILY_SALES, GOOD), (SALES_7D, set(MONTH) - WINDOWS)):
        for day in others:
            assert story.again.standing[table][day] == story.first.standing[table][day], (table, day)


def test_the_short_day_is_read_again_from_its_repaired_file(story):
    before, after = (facts.standing[BRONZE][SHORT] for facts in (story.first, story.again))
    assert before[0] != after[0]
    assert story.again.standing[BRONZE][SHORT][1] == 2  # its second commit
