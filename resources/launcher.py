"""Runs on this machine, whose processes are looked after by more than the code server that started them.

Dagster's own launcher starts the same processes. When one dies, the code server that started it says so; when both die,
as they do with the machine or a killed terminal, nobody does, and the run would stay "started" and keep its place in
the queue for hours.
"""

import re
from pathlib import Path

import dagster as dg
from dagster._core.execution.retries import auto_reexecution_should_retry_run
from dagster._core.launcher import CheckRunHealthResult, DefaultRunLauncher, WorkerStatus
from dagster._core.storage.tags import WILL_RETRY_TAG

_PROCESS = re.compile(r"\(pid: (\d+)\)")


class LocalRunLauncher(DefaultRunLauncher):
    """Dagster's launcher, which also tells run monitoring whether a run's process is still there."""

    @property
    def supports_check_run_worker_health(self) -> bool:
        """Yes, on Linux."""
        return Path("/proc/self/stat").exists()

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        """Whether the process of a started run lives. Of a run that does not name one, nothing is concluded."""
        events = self._instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)
        named = [found[1] for event in events if (found := _PROCESS.search(event.message or event.user_message))]
        if named and not lives(int(named[-1])):
            self._say_whether_it_is_tried_again(run)
            return CheckRunHealthResult(WorkerStatus.NOT_FOUND, f"process {named[-1]} of the run is gone")
        return CheckRunHealthResult(WorkerStatus.RUNNING)

    def _say_whether_it_is_tried_again(self, run: dg.DagsterRun) -> None:
        """Say so before the run is marked failed.

        Dagster (1.13) marks it first and says it next; a backfill that looks in between takes the failure for its end,
        and then nothing is tried again.
        """
        failed = run.with_status(dg.DagsterRunStatus.FAILURE)
        again = auto_reexecution_should_retry_run(self._instance, failed, None)
        self._instance.add_run_tags(run.run_id, {WILL_RETRY_TAG: str(again).lower()})


def lives(process: int) -> bool:
    """Whether a process of this machine runs. One that has ended and was not yet asked for its status does not."""
    try:
        # pid (command, which may hold spaces and brackets) state ...
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
