"""A run whose process is gone is known to be dead, also where the code server that started it died with it."""

import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.launcher import WorkerStatus
from dagster._core.storage.dagster_run import DagsterRunStatus
from dagster._core.storage.tags import WILL_RETRY_TAG

from resources.launcher import LocalRunLauncher, lives

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def instance(tmp_path, monkeypatch):
    """The instance as the project sets it up."""
    (tmp_path / "dagster.yaml").write_text((ROOT / "resources" / "dagster.yaml").read_text())
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    with dg.DagsterInstance.get() as found:
        yield found


def health(instance: dg.DagsterInstance, *messages: str) -> WorkerStatus:
    """What the launcher says of a started run that has logged these messages."""
    run = dg.DagsterRun(job_name="job", status=DagsterRunStatus.STARTED)
    instance.add_run(run)
    for message in messages:
        instance.report_engine_event(message, dagster_run=run)
    assert isinstance(instance.run_launcher, LocalRunLauncher)
    return instance.run_launcher.check_run_worker_health(run).status


def test_a_process_that_runs_is_alive_and_one_that_ended_is_not():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert lives(child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has asked for its status
    assert not lives(child.pid)
    child.wait()
    assert not lives(child.pid)


def test_a_run_is_as_healthy_as_its_process(instance):
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert health(instance, f"Started process for run (pid: {os.getpid()}).") is WorkerStatus.RUNNING
    assert health(instance, f"Started process for run (pid: {child.pid}).") is WorkerStatus.NOT_FOUND


def test_nothing_is_concluded_of_a_run_that_names_no_process(instance):
    assert health(instance, "Submitted") is WorkerStatus.RUNNING
    assert health(instance) is WorkerStatus.RUNNING


def test_run_monitoring_asks(instance):
    assert instance.run_monitoring_enabled
    assert instance.run_launcher.supports_check_run_worker_health


def test_a_run_that_is_gone_is_known_to_be_tried_again_before_it_is_marked_failed(instance):
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    run = dg.DagsterRun(job_name="job", status=DagsterRunStatus.STARTED)
    instance.add_run(run)
    instance.report_engine_event(f"Started process for run (pid: {child.pid}).", dagster_run=run)
    assert isinstance(instance.run_launcher, LocalRunLauncher)
    instance.run_launcher.check_run_worker_health(run)
    found = instance.get_run_by_id(run.run_id)
    assert found.status is DagsterRunStatus.STARTED
    assert found.tags[WILL_RETRY_TAG] == "true"
