"""A backfill through a real webserver and daemon, both polling every second, and how long it takes.

Not a measurement of its own: `benchmarks.year` drives the project and its peers with it, in the same way.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_PLAIN = "telemetry:\n  enabled: false"
# The backfill daemon sleeps for a constant that no setting reaches.
_DAEMON = (
    "import sys, dagster._daemon.controller as c; c.DEFAULT_DAEMON_INTERVAL_SECONDS = 1; "
    "from dagster._daemon.cli import main; sys.argv = ['dagster-daemon', 'run', *sys.argv[1:]]; main()"
)
_LAUNCH = """
mutation Launch($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) {
    __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message }
  }
}
"""
_STATUS = """
query Status($id: String!) {
  partitionBackfillOrError(backfillId: $id) {
    ... on PartitionBackfill { status runs(limit: 1000) { status } error { message } }
  }
}
"""
_READY = """
query Ready {
  workspaceOrError { ... on Workspace { locationEntries { loadStatus locationOrLoadError { __typename } } } }
  instance { daemonHealth { allDaemonStatuses { required healthy } } }
}
"""


class Deployment:
    """A running webserver and daemon."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/graphql"
        self._http = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(self, query: str, **variables: Any) -> Any:
        """The data of a GraphQL answer."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})
        with self._http.open(request, timeout=120) as response:
            answer = json.load(response)
        if answer.get("errors"):
            raise RuntimeError(str(answer["errors"])[:1000])
        return answer["data"]

    def wait_until_ready(self, patience: float, log: Path) -> None:
        """Return when the definitions are loaded and the daemons beat; ``patience`` in seconds."""
        found: Any = None
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            try:
                found = self.ask(_READY)
                entries = found["workspaceOrError"]["locationEntries"]
                loaded = all((each["locationOrLoadError"] or {}).get("__typename") for each in entries)
                daemons = found["instance"]["daemonHealth"]["allDaemonStatuses"]
                if entries and loaded and all(each["healthy"] for each in daemons if each["required"]):
                    return
            except OSError as error:  # not listening yet
                found = error
            time.sleep(0.3)
        said = log.read_text()[-3000:]
        raise RuntimeError(f"webserver and daemon were not ready after {patience:g} s: {found}\n{said}")

    def backfill(self, assets: Sequence[str], partitions: Sequence[str]) -> tuple[float, str, int]:
        """Seconds from the click to the end, how it ended, and the number of runs."""
        params = {
            "assetSelection": [{"path": each.split("/")} for each in assets],
            "partitionNames": list(partitions),
        }
        started = time.perf_counter()
        launched = self.ask(_LAUNCH, params=params)["launchPartitionBackfill"]
        if "backfillId" not in launched:
            raise RuntimeError(str(launched)[:1000])
        while True:
            found = self.ask(_STATUS, id=launched["backfillId"])["partitionBackfillOrError"]
            if found["status"] in {"COMPLETED_SUCCESS", "COMPLETED_FAILED", "FAILED", "CANCELED"}:
                return time.perf_counter() - started, found["status"], len(found["runs"])
            time.sleep(0.25)


@contextmanager
def deployed(home: Path, target: Sequence[str], env: Mapping[str, str], instance: str = "") -> Iterator[Deployment]:
    """Webserver and daemon with a fresh instance in ``home``.

    Args:
        home: becomes ``DAGSTER_HOME``; its ``log.txt`` holds everything that was printed.
        target: the options that name the definitions, such as ``-m module``.
        env: laid over the environment.
        instance: what ``dagster.yaml`` says beside the polling.
    """
    home.mkdir(parents=True)
    (home / "dagster.yaml").write_text(f"{instance or _PLAIN}\nrun_queue:\n  dequeue_interval_seconds: 1\n")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    whole = {**os.environ, **env, "DAGSTER_HOME": str(home), "PYTHONWARNINGS": "ignore"}
    web = ["-m", "dagster_webserver", "-p", str(port), "-h", "127.0.0.1", *target]
    with (home / "log.txt").open("w") as log:
        processes = [
            subprocess.Popen([sys.executable, *command], env=whole, stdout=log, stderr=log, start_new_session=True)
            for command in (web, ["-c", _DAEMON, *target])
        ]
        try:
            found = Deployment(port)
            found.wait_until_ready(180, home / "log.txt")
            yield found
        finally:
            for process in processes:
                os.killpg(process.pid, signal.SIGTERM)
            for process in processes:
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
