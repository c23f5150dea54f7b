"""A real Dagster deployment for one test: webserver, daemon and code server as processes, on loopback.

Belongs here: starting, asking and stopping `dagster dev`. Does not belong here: anything about the pages it serves
(see `pages.py`) or about what the definitions under test mean.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date, timedelta
from http.client import HTTPException
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, TypeAlias

AssetKeyLike: TypeAlias = str | Sequence[str]
"""An asset key as "silver/transactions" or as its parts."""

FINISHED_RUN = frozenset({"SUCCESS", "FAILURE", "CANCELED"})
FINISHED_BACKFILL = frozenset({"COMPLETED", "COMPLETED_SUCCESS", "COMPLETED_FAILED", "FAILED", "CANCELED"})

_HOST = "127.0.0.1"

# Written only into a home that has no dagster.yaml. `nux` and `telemetry` would otherwise put a dialog over the first
# page and post to the internet; the queue is looked at every second instead of every five.
_DEFAULT_INSTANCE = """\
telemetry:
  enabled: false
nux:
  enabled: false
run_queue:
  dequeue_interval_seconds: 1
"""

# The backfill daemon sleeps for a constant, controller.DEFAULT_DAEMON_INTERVAL_SECONDS = 30, which neither dagster.yaml
# nor an environment variable reaches (1.13.27, dagster/_daemon/backfill.py). A backfill needs about four of its turns.
# Python imports sitecustomize before `-m dagster._daemon` runs, so the constant is set before anything reads it; the
# webserver, the code server and the runs start untouched.
_SITECUSTOMIZE = """\
import sys

if "dagster._daemon" in sys.orig_argv:
    import dagster._daemon.controller

    assert hasattr(dagster._daemon.controller, "DEFAULT_DAEMON_INTERVAL_SECONDS")
    dagster._daemon.controller.DEFAULT_DAEMON_INTERVAL_SECONDS = {seconds!r}
"""

_LOCATIONS = """
query TestLocations {
  workspaceOrError {
    __typename
    ... on PythonError { message }
    ... on Workspace {
      locationEntries {
        name
        loadStatus
        locationOrLoadError { __typename ... on PythonError { message stack } }
      }
    }
  }
}
"""

_DAEMONS = """
query TestDaemons {
  instance { daemonHealth { allDaemonStatuses { daemonType required healthy lastHeartbeatErrors { message } } } }
}
"""

_LAUNCH_BACKFILL = """
mutation TestLaunchBackfill($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on Error { message }
  }
}
"""

_REEXECUTE_BACKFILL = """
mutation TestReexecuteBackfill($params: ReexecutionParams!) {
  reexecutePartitionBackfill(reexecutionParams: $params) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on Error { message }
  }
}
"""

_STATUSES = """
query TestStatuses($key: AssetKeyInput!) {
  assetNodeOrError(assetKey: $key) {
    __typename
    ... on AssetNotFoundError { message }
    ... on AssetNode {
      assetPartitionStatuses { ... on TimePartitionStatuses { ranges { status startKey endKey } } }
      assetChecksOrError {
        ... on AssetChecks {
          checks {
            name
            partitionStatuses { ... on AssetCheckTimePartitionStatuses { ranges { status startKey endKey } } }
          }
        }
      }
    }
  }
}
"""

_RUN_FIELDS = """
fragment RunFields on Run {
  id
  status
  jobName
  stepKeysToExecute
  creationTime
  startTime
  endTime
  tags { key value }
  assetSelection { path }
}
"""

_BACKFILL = (
    """
query TestBackfill($id: String!) {
  partitionBackfillOrError(backfillId: $id) {
    __typename
    ... on Error { message }
    ... on PartitionBackfill {
      id
      status
      numPartitions
      partitionNames
      timestamp
      endTimestamp
      error { message }
      runs { ...RunFields }
      assetBackfillData {
        assetBackfillStatuses {
          ... on AssetPartitionsStatusCounts {
            assetKey { path }
            numPartitionsTargeted
            numPartitionsInProgress
            numPartitionsMaterialized
            numPartitionsFailed
          }
        }
      }
    }
  }
}
"""
    + _RUN_FIELDS
)

_RUNS = (
    """
query TestRuns($filter: RunsFilter, $limit: Int) {
  runsOrError(filter: $filter, limit: $limit) {
    __typename
    ... on Error { message }
    ... on Runs { results { ...RunFields } }
  }
}
"""
    + _RUN_FIELDS
)

_BACKFILLS = """
query TestBackfills($limit: Int) {
  partitionBackfillsOrError(limit: $limit) {
    __typename
    ... on Error { message }
    ... on PartitionBackfills { results { id status } }
  }
}
"""


class ServerError(RuntimeError):
    """The deployment did not start, died, or answered a question with an error."""


class DagsterServer:
    """`dagster dev` (webserver, daemon, code server) for as long as the `with` block lasts.

    `home` becomes DAGSTER_HOME and keeps the log (`dagster-dev.log`); `env` is laid over the caller's environment;
    `workdir` holds `workspace.yaml`. `poll_seconds` is how often the backfill daemon looks for work; None leaves
    Dagster's own 30 s. All timeouts are seconds.
    """

    def __init__(
        self,
        home: Path,
        env: Mapping[str, str],
        workdir: Path,
        port: int | None = None,
        *,
        poll_seconds: float | None = 1,
        start_timeout: float = 180,
    ) -> None:
        self.home = home
        self.log = home / "dagster-dev.log"
        self.port = port or _free_port()
        self.url = f"http://{_HOST}:{self.port}"
        self._env = dict(env)
        self._workdir = workdir
        self._poll_seconds = poll_seconds
        self._start_timeout = start_timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._log_file: IO[bytes] | None = None
        # No proxy: the environment may name one, and loopback must never go through it.
        self._http = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the deployment; return when GraphQL answers, every code location is loaded and the daemons beat."""
        _refuse_taken(self.port)
        self.home.mkdir(parents=True, exist_ok=True)
        instance = self.home / "dagster.yaml"
        if not instance.exists():
            instance.write_text(_DEFAULT_INSTANCE)
        self._log_file = self.log.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dagster", "dev", "-h", _HOST, "-p", str(self.port), "-w", "workspace.yaml"],
            cwd=self._workdir,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=self._log_file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # its own process group, so that stop() can find every descendant
        )
        try:
            self._wait("the code locations to load and the daemons to beat", self._ready, self._start_timeout)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End every process of the deployment, politely first, and prove that none is left.

        Runs that are still going are ended too: the code server that started them is in the same group.
        """
        process, self._process = self._process, None
        if process is None:
            return
        try:
            # The leader alone first: it asks the webserver and the daemon to shut down in order, and a second
            # interrupt from us in the middle of that would make it abandon them.
            for number, patience in ((signal.SIGINT, 20.0), (signal.SIGTERM, 5.0), (signal.SIGKILL, 10.0)):
                if number is signal.SIGINT:
                    process.send_signal(number)
                else:
                    _signal_group(process.pid, number)
                if _gone(process, patience):
                    return
            raise ServerError(f"processes {sorted(_group_members(process.pid))} of {self.url} survived SIGKILL")
        finally:
            if self._log_file is not None:
                self._log_file.close()
                self._log_file = None

    def kill(self) -> None:
        """End every process of the deployment at once, as a power cut would: webserver, daemon, code server, runs."""
        process, self._process = self._process, None
        assert process is not None
        _signal_group(process.pid, signal.SIGKILL)
        assert _gone(process, 10.0)
        self._wait_for_port()
        if self._log_file is not None:
            self._log_file.close()
            self._log_file = None

    def _wait_for_port(self) -> None:
        """Wait until the last of the killed processes has let go of the port."""
        deadline = time.monotonic() + 30
        while True:
            try:
                return _refuse_taken(self.port)
            except ServerError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def graphql(self, query: str, **variables: Any) -> dict[str, Any]:
        """The `data` of one GraphQL answer. Raises `ServerError` if there are errors or nobody answers."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        try:
            with self._http.open(request, timeout=60) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            raise ServerError(f"{self.url}/graphql: {error}: {error.read().decode(errors='replace')[:2000]}") from error
        except (OSError, HTTPException, ValueError) as error:
            raise ServerError(f"{self.url}/graphql: {error}") from error
        if answer.get("errors"):
            raise ServerError("\n".join(str(error["message"]) for error in answer["errors"]))
        data: dict[str, Any] = answer["data"]
        return data

    def launch_backfill(self, asset_keys: Iterable[AssetKeyLike], partitions: Iterable[str]) -> str:
        """Ask for a backfill of these partitions of these assets, as the UI does; return its id."""
        params = {
            "assetSelection": [{"path": _path(key)} for key in asset_keys],
            "partitionNames": list(partitions),
            "fromFailure": False,
            "tags": [],
        }
        return _backfill_id(self.graphql(_LAUNCH_BACKFILL, params=params)["launchPartitionBackfill"])

    def reexecute_from_failure(self, backfill_id: str) -> str:
        """Ask for what an ended backfill has not materialized, as the UI does; return the new backfill's id."""
        # FROM_ASSET_FAILURE is for runs; a backfill takes it for ALL_STEPS (1.13.27, retry_partition_backfill).
        params = {"parentRunId": backfill_id, "strategy": "FROM_FAILURE"}
        return _backfill_id(self.graphql(_REEXECUTE_BACKFILL, params=params)["reexecutePartitionBackfill"])

    def partitions(self, asset: AssetKeyLike) -> dict[str, set[str]]:
        """The partitions of a daily asset by status: MATERIALIZED, FAILED, MATERIALIZING. Missing ones are left out."""
        return _by_status(self._statuses(asset)["assetPartitionStatuses"]["ranges"])

    def checks(self, asset: AssetKeyLike) -> dict[str, dict[str, set[str]]]:
        """The partitions of each check of a daily asset by status: SUCCEEDED, FAILED, ... Missing ones are left out."""
        checks = self._statuses(asset)["assetChecksOrError"]["checks"]
        # What is said of a table as a whole has no partitions.
        cut = [check for check in checks if check["partitionStatuses"] is not None]
        return {check["name"]: _by_status(check["partitionStatuses"]["ranges"]) for check in cut}

    def _statuses(self, asset: AssetKeyLike) -> dict[str, Any]:
        found: dict[str, Any] = self.graphql(_STATUSES, key={"path": _path(asset)})["assetNodeOrError"]
        if found["__typename"] != "AssetNode":
            raise ServerError(f"asset {asset}: {found.get('message')}")
        return found

    def backfill(self, backfill_id: str) -> dict[str, Any]:
        """The backfill as it stands: status, runs, and the partition counts per asset."""
        found: dict[str, Any] = self.graphql(_BACKFILL, id=backfill_id)["partitionBackfillOrError"]
        if found["__typename"] != "PartitionBackfill":
            raise ServerError(f"backfill {backfill_id}: {found['__typename']}: {found.get('message')}")
        return found

    def backfills(self, limit: int = 100) -> list[dict[str, Any]]:
        """Id and status of the newest backfills, newest first."""
        found = self.graphql(_BACKFILLS, limit=limit)["partitionBackfillsOrError"]
        if found["__typename"] != "PartitionBackfills":
            raise ServerError(f"backfills: {found.get('message')}")
        results: list[dict[str, Any]] = found["results"]
        return results

    def wait_for_backfill(self, backfill_id: str, timeout: float = 180) -> dict[str, Any]:
        """The backfill when it has ended, however it ended: look at its `status`, `runs` and counts."""
        latest: dict[str, Any] = {}

        def ended() -> bool:
            latest.update(self.backfill(backfill_id))
            return latest["status"] in FINISHED_BACKFILL

        self._wait(f"backfill {backfill_id} to end", ended, timeout, lambda: _summary(latest))
        return latest

    def runs(self, run_ids: Collection[str] | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """These runs, or the newest ones, newest first."""
        chosen = {"runIds": list(run_ids)} if run_ids is not None else None
        found = self.graphql(_RUNS, filter=chosen, limit=limit)["runsOrError"]
        if found["__typename"] != "Runs":
            raise ServerError(f"runs: {found['__typename']}: {found.get('message')}")
        results: list[dict[str, Any]] = found["results"]
        return results

    def wait_for_runs(
        self, run_ids: Collection[str] | None = None, *, at_least: int = 1, timeout: float = 180
    ) -> list[dict[str, Any]]:
        """The runs when all have ended, however they ended; without ids, every run there is, `at_least` so many."""
        wanted = at_least if run_ids is None else len(set(run_ids))
        latest: list[dict[str, Any]] = []

        def ended() -> bool:
            latest[:] = self.runs(run_ids)
            return len(latest) >= wanted and all(run["status"] in FINISHED_RUN for run in latest)

        what = f"runs {sorted(run_ids)}" if run_ids is not None else f"at least {at_least} runs"
        self._wait(f"{what} to end", ended, timeout, lambda: ", ".join(f"{r['id'][:8]} {r['status']}" for r in latest))
        return latest

    def log_tail(self, lines: int = 40) -> str:
        """The last lines of everything the deployment printed."""
        if not self.log.exists():
            return "(no log)"
        plain = re.sub(r"\x1b\[[0-9;]*m", "", self.log.read_text(errors="replace"))
        return "\n".join(plain.splitlines()[-lines:])

    def _environment(self) -> dict[str, str]:
        # Settings of a surrounding deployment would silently reach into the one under test.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("DAGSTER_")}
        env = inherited | self._env | {"DAGSTER_HOME": str(self.home.resolve()), "PYTHONUNBUFFERED": "1"}
        if self._poll_seconds is not None:
            site = self.home.resolve() / "site"
            site.mkdir(exist_ok=True)
            (site / "sitecustomize.py").write_text(_SITECUSTOMIZE.format(seconds=self._poll_seconds))
            env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(site), env.get("PYTHONPATH", "")]))
        return env

    def _ready(self) -> bool:
        try:
            workspace = self.graphql(_LOCATIONS)["workspaceOrError"]
            daemons = self.graphql(_DAEMONS)["instance"]["daemonHealth"]["allDaemonStatuses"]
        except ServerError:
            return False  # not listening yet; _wait notices if the process has died
        if workspace["__typename"] == "PythonError":
            raise ServerError(f"workspace.yaml does not load: {workspace['message']}")
        entries = workspace["locationEntries"]
        for entry in entries:
            loaded = entry["locationOrLoadError"]
            if loaded and loaded["__typename"] == "PythonError":
                stack = "".join(loaded["stack"][-3:])
                raise ServerError(f"code location {entry['name']} does not load: {loaded['message']}\n{stack}")
        loaded_all = bool(entries) and all(e["loadStatus"] == "LOADED" and e["locationOrLoadError"] for e in entries)
        return loaded_all and all(daemon["healthy"] for daemon in daemons if daemon["required"])

    def _wait(
        self, what: str, done: Callable[[], bool], timeout: float, state: Callable[[], str] | None = None
    ) -> None:
        deadline = time.monotonic() + timeout
        while not done():
            if self._process is None or self._process.poll() is not None:
                code = None if self._process is None else self._process.returncode
                raise ServerError(f"dagster dev ended (exit {code}) while waiting for {what}\n{self.log_tail()}")
            if time.monotonic() > deadline:
                stood = f"; it stood at: {state()}" if state else ""
                raise ServerError(f"waited {timeout:g} s for {what}{stood}\n{self.log_tail()}")
            time.sleep(0.3)


def _path(key: AssetKeyLike) -> list[str]:
    return key.split("/") if isinstance(key, str) else list(key)


def _backfill_id(launched: Mapping[str, Any]) -> str:
    if launched["__typename"] != "LaunchBackfillSuccess":
        raise ServerError(f"backfill refused: {launched['__typename']}: {launched.get('message')}")
    return str(launched["backfillId"])


def _by_status(ranges: Iterable[Mapping[str, str]]) -> dict[str, set[str]]:
    """Ranges of days as sets of days by status."""
    found: dict[str, set[str]] = {}
    for each in ranges:
        first, last = (date.fromisoformat(each[end]) for end in ("startKey", "endKey"))
        days = {str(first + timedelta(days=after)) for after in range((last - first).days + 1)}
        found.setdefault(each["status"], set()).update(days)
    return found


def _summary(backfill: Mapping[str, Any]) -> str:
    runs = ", ".join(f"{run['id'][:8]} {run['status']}" for run in backfill.get("runs", ()))
    return f"{backfill.get('status')}, runs: {runs or 'none'}"


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind((_HOST, 0))
        port: int = sock.getsockname()[1]
        return port


def _refuse_taken(port: int) -> None:
    """Raise if somebody listens on the port: the webserver would then hang unheard, and the stranger answer for it."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the webserver does: TIME_WAIT is not taken
        try:
            sock.bind((_HOST, port))
        except OSError as error:
            raise ServerError(
                f"port {port} is taken: {error}; give another, or none to have a free one chosen"
            ) from error


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # nobody is left, which is what we want
        os.killpg(group, number)


def _gone(process: subprocess.Popen[bytes], patience: float) -> bool:
    """Whether the leader and its whole group ended within `patience` seconds."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        # poll() reaps the leader; its descendants are reaped by whoever adopted them.
        if process.poll() is not None and not _group_members(process.pid):
            return True
        time.sleep(0.1)
    return False


def _group_members(group: int) -> set[int]:
    """Living processes of a process group, by Linux's /proc (elsewhere: none are seen).

    Zombies do not count: they run nothing, and whoever adopted them may never reap them.
    """
    members = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended while we looked
            # pid (command, which may hold spaces and brackets) state parent group ...
            state, _parent, member_of = stat.read_text().rpartition(")")[2].split()[:3]
            if int(member_of) == group and state not in "ZX":
                members.add(int(stat.parent.name))
    return members
