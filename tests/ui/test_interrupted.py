"""The year backfilled by the daemon: everything killed at a third, and the day's run beside it."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from assets.backfill import LIVE
from tests.assets.deployment import DAILY, REFERENCES, Deployment
from tests.ui.retail import ROOT, SILVER, days, opened, settings
from tests.ui.server import DagsterServer

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

YEAR = days("2017-01-01", 365)
NEW_YEAR = YEAR[0]
TICK = 5.0
"""Seconds between two looks at the queue, if nothing else is set."""

_LAUNCH = """
mutation TestLaunch($params: ExecutionParams!) {
  launchPipelineExecution(executionParams: $params) {
    __typename
    ... on LaunchRunSuccess { run { id } }
    ... on Error { message }
  }
}
"""


@dataclass(frozen=True)
class Story:
    """What happened."""

    committed_when_killed: int
    backfill: dict[str, Any]
    live: tuple[float, float]
    beside: list[str]
    deployment: Deployment
    server: DagsterServer


@pytest.fixture(scope="module")
def story(retail_landing: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Backfill the year, kill everything at a third, start again, and launch a day's run while it goes on."""
    root = tmp_path_factory.mktemp("year")
    (root / "landing").symlink_to(retail_landing)
    home = settings(root)
    with opened(home) as instance:
        deployment = Deployment(root, instance)
        assert deployment.run(*REFERENCES).success
        # Small slices, so that there is something to be in the middle of.
        environment = deployment.environment() | {"MEDALLION_SLICE_MIB": "8"}
        server = DagsterServer(home, environment, ROOT)
        server.start()
        backfill = server.launch_backfill(DAILY, YEAR)
        committed = _wait_for(lambda: _committed(deployment), lambda count: count >= len(YEAR) // 3)
        server.kill()
        with server:
            _wait_for(lambda: _going(server, backfill), bool)
            # Until now only the slices that were committed before count; the first day is among them.
            live = _launch(server, NEW_YEAR)
            beside = _going(server, backfill)
            started = _wait_for(lambda: _left_the_queue(instance, live), lambda times: len(times) == 2)
            ended = server.wait_for_backfill(backfill, timeout=500)
            server.wait_for_runs([live])
            yield Story(committed, ended, (started[0], started[1]), beside, deployment, server)


def _wait_for(look: Any, done: Any, timeout: float = 240) -> Any:
    deadline = time.monotonic() + timeout
    while not done(found := look()):
        assert time.monotonic() < deadline, f"waited {timeout:g} s; it stood at {found}"
        time.sleep(0.1)
    return found


def _committed(deployment: Deployment) -> int:
    return len(deployment.files(SILVER)) if (deployment.lake / SILVER / "_delta_log").exists() else 0


def _going(server: DagsterServer, backfill: str) -> list[str]:
    """The runs of a backfill whose processes work."""
    return [run["id"] for run in server.backfill(backfill)["runs"] if run["status"] == "STARTED"]


def _launch(server: DagsterServer, day: str) -> str:
    """The day's run, with the tags that the schedule gives it."""
    tags = {"dagster/partition": day, **LIVE}
    selector = {"pipelineName": "daily", "repositoryName": "__repository__", "repositoryLocationName": "medallion"}
    params = {
        "selector": selector,
        "mode": "default",
        "executionMetadata": {"tags": [{"key": key, "value": value} for key, value in tags.items()]},
    }
    answer = server.graphql(_LAUNCH, params=params)["launchPipelineExecution"]
    assert answer["__typename"] == "LaunchRunSuccess", answer
    return str(answer["run"]["id"])


def _left_the_queue(instance: dg.DagsterInstance, run: str) -> list[float]:
    """When a run was put into the queue, and when it was taken out of it."""
    kinds = {dg.DagsterEventType.RUN_ENQUEUED, dg.DagsterEventType.RUN_STARTING}
    return [event.timestamp for event in instance.all_logs(run, of_type=kinds)]


def test_it_was_killed_in_the_middle(story):
    assert len(YEAR) // 3 <= story.committed_when_killed < len(YEAR) - 1


def test_killed_at_a_third_the_backfill_is_resumed_and_succeeds(story):
    assert story.backfill["status"] == "COMPLETED_SUCCESS"
    statuses = sorted(run["status"] for run in story.backfill["runs"])
    assert statuses.count("FAILURE") == 1  # the one that was killed; it was started again


def test_nothing_is_lost_and_nothing_is_made_twice(story):
    for table in DAILY:
        standing = story.deployment.standing(table, YEAR)
        assert {day: fence for day, (_, fence) in standing.items()} == dict.fromkeys(YEAR, 1), table
        assert story.deployment.materialized(table) == set(YEAR), table


def test_a_live_run_leaves_the_queue_within_one_tick_while_the_year_is_backfilled(story):
    enqueued, started = story.live
    assert story.beside
    assert started - enqueued <= TICK
