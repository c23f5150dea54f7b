"""Real processes for the tests of the commit protocol, cheap enough to be killed by the hundred.

``python -m tests.protocol.workers`` is a nursery: it imports the engine once and forks a worker for each job. It never
runs a query itself: polars' and deltalake's threads start with the first one, and threads do not survive a fork.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

# Imported here so that they are there when a worker is forked.
from medallion import failpoints
from medallion.backup import backup
from medallion.execution import execute
from medallion.held import approve
from medallion.lake import Lake
from medallion.outcomes import Outcome
from medallion.past_states import of_savepoint
from medallion.plan import Plan
from medallion.project import Project
from medallion.recovery import restore_backup
from medallion.refine import Run, refine
from medallion.restore import restore, resume
from medallion.vacuum import plan_vacuum, vacuum
from tests.protocol.shop import Shop, build, make_run

_ROOT = Path(__file__).parents[2]


@dataclass
class Worker:
    """A process of the nursery."""

    nursery: Nursery
    pid: int
    result: Path

    def wait(self) -> int:
        """Its exit status; below 0 the signal that ended it."""
        return int(self.nursery.ask({"wait": self.pid}))

    def kill(self) -> int:
        """End it as power does, and return its status."""
        os.kill(self.pid, signal.SIGKILL)
        return self.wait()

    def report(self) -> dict[str, dict[str, list[Any]]]:
        """By table and partition: the outcome's name and what it says was recovered."""
        found: dict[str, dict[str, list[Any]]] = json.loads(self.result.read_text())
        return found


class Nursery:
    """The process that forks workers."""

    def __init__(self, environment: Mapping[str, str], prefix: Sequence[str] = ()) -> None:
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "tests.protocol.workers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=_ROOT,
            env={**os.environ, "POLARS_MAX_THREADS": "1", **environment},
        )
        self._count = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, job: Mapping[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the nursery has died")
        return json.loads(line)

    def start(self, operation: str, folder: Path, *, points: str = "", **arguments: Any) -> Worker:
        """Start an operation on ``folder/lake``, or a lake that is named, and ``folder/landing`` in its own process."""
        self._count += 1
        result = folder / f"result-{self._count}.json"
        job = {
            "operation": operation, "folder": str(folder), "points": points, "result": str(result),
            "arguments": arguments,
        }  # fmt: skip
        return Worker(self, int(self.ask({"run": job})), result)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


@contextmanager
def nursery(prefix: Sequence[str] = (), **environment: str) -> Iterator[Nursery]:
    opened = Nursery(environment, prefix)
    try:
        yield opened
    finally:
        opened.close()


def until(condition: Any, seconds: float = 20) -> None:
    """Wait for something that another process does."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds} s in vain")
        time.sleep(0.002)


def perform(operation: str, folder: Path, arguments: Mapping[str, Any]) -> dict[str, dict[str, list[Any]]]:
    """Run an operation; what became of each partition of each table."""
    if operation == "backup":
        backup(Lake(folder / "lake"), folder / "backup", project=Project(Shop().tables))
        return {}
    if operation == "vacuum":
        lake = Lake(folder / "lake", durable=False)
        vacuum(lake, plan_vacuum(lake, dt.datetime.now(dt.UTC) + dt.timedelta(days=31)))
        return {}
    if operation == "recover":
        restore_backup(folder / "backup", folder / "copy")
        return {}
    more = dict(arguments)
    keys, revision = more.pop("keys", ()), more.pop("revision", 1)
    words: dict[str, Any] = {name: more.pop(name) for name in ("to", "rollback") if name in more}
    run = make_run(more.pop("lake", folder / "lake"), folder / "landing", **more)
    shop = Shop(revision)
    if operation in {"restore", "resume"}:
        return {"": {"": _restored(operation, shop, run, words)}}
    if operation == "approve":
        told = {"silver/orders": {key: _told(approve(shop.orders, key, run, reason="checked by hand")) for key in keys}}
        reports = [refine(shop.totals, keys, run)]
    elif operation == "execute":
        plan = Plan.from_json((folder / "plan.json").read_text())
        told, reports = {}, execute(plan, Project(shop.tables), run)
    elif operation == "one table":
        told, reports = {}, [refine(shop.orders, keys, run)]
    else:
        told, reports = {}, build(shop, keys, run)
    for report in reports:
        told[report.table] = {key: _told(outcome) for key, outcome in report.outcomes.items()}
    return told


def _restored(operation: str, shop: Shop, run: Run, words: Mapping[str, Any]) -> list[Any]:
    project = Project(shop.tables)
    if operation == "resume":
        told = resume(project, run.lake, rollback=words.get("rollback", False))
    else:
        told = restore(project, run.lake, of_savepoint(project, run.lake, words["to"]), reason="a test")
    return [told.outcome if told is not None else None, dict(told.overtaken) if told is not None else {}]


def _told(outcome: Outcome) -> list[Any]:
    return [type(outcome).__name__, outcome.recovery]


def _work(job: Mapping[str, Any]) -> None:
    with failpoints.armed(job["points"]):
        told = perform(job["operation"], Path(job["folder"]), job["arguments"])
    Path(job["result"]).write_text(json.dumps(told))


def _serve(jobs: TextIO, answers: TextIO) -> None:
    for line in jobs:
        asked = json.loads(line)
        if "wait" in asked:
            _, status = os.waitpid(asked["wait"], 0)
            answer = os.waitstatus_to_exitcode(status)
        else:
            answer = os.fork()
            if answer == 0:
                status = 1
                with suppress(BaseException):
                    try:
                        _work(asked["run"])
                        status = 0
                    except BaseException:  # noqa: BLE001 - the worker ends here, whatever it was
                        traceback.print_exc()
                os._exit(status)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    _serve(sys.stdin, sys.stdout)
