"""A store that fails under the engine: killed at the nth system call, an I/O error, a full disk. By strace."""

import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.protocol.counts import MATRIX
from tests.protocol.scenarios import Prepared, Reader, check_after, start
from tests.protocol.workers import Nursery, Worker, until

CALLS = ("linkat", "rename", "unlink", "mkdir", "fsync")


def _attach(worker: Worker, arguments: list[str]) -> subprocess.Popen[bytes]:
    """Trace a worker that waits at a failpoint."""
    tracer = subprocess.Popen(
        ["strace", "-f", "-qq", *arguments, "-p", str(worker.pid)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    status = Path(f"/proc/{worker.pid}/status")
    until(lambda: f"TracerPid:\t{tracer.pid}" in status.read_text() or tracer.poll() is not None)
    if tracer.poll() is not None:
        assert tracer.stderr is not None
        raise OSError(tracer.stderr.read().decode().strip())
    return tracer


@pytest.fixture(scope="module")
def traceable(workers: Nursery, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip where strace cannot trace, with its own words."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    folder = tmp_path_factory.mktemp("traceable")
    (folder / "landing").mkdir()
    worker = workers.start("build", folder, points=f"pinned=pause({folder / 'go'})", keys=[])
    until((folder / "go.reached").exists)
    try:
        _attach(worker, ["-e", "trace=fsync", "-o", "/dev/null"]).kill()
    except OSError as error:
        pytest.skip(f"strace cannot trace here: {error}")
    finally:
        worker.kill()


@dataclass
class _Traced:
    worker: Worker
    status: int


def _under(case: Prepared, workers: Nursery, folder: Path, arguments: list[str]) -> _Traced:
    """Run a scenario's operation, durably, under strace."""
    go = folder / "go"
    worker = start(workers, case.scenario, folder, f"pinned=pause({go})", durable=True)
    until((folder / "go.reached").exists)
    tracer = _attach(worker, arguments)
    go.touch()
    status = worker.wait()
    tracer.wait(20)
    return _Traced(worker, status)


@pytest.fixture(scope="module")
def calls(
    prepared: Callable[[str], Prepared], workers: Nursery, tmp_path_factory: pytest.TempPathFactory, traceable: None
) -> Callable[[str], Counter[str]]:
    """How often an uninterrupted operation makes each of the system calls, in the thread that makes it most often."""

    def count(name: str) -> Counter[str]:
        case, folder = prepared(name), tmp_path_factory.mktemp("calls") / "lake"
        shutil.copytree(case.base, folder)
        told = folder / "strace"
        traced = _under(case, workers, folder, ["-e", f"trace={','.join(CALLS)}", "-o", str(told)])
        assert traced.status == 0
        lines = [line.split("(")[0].split() for line in told.read_text().splitlines() if "(" in line]
        by_thread = Counter((call, thread) for thread, call in lines)
        most: Counter[str] = Counter()
        for (call, _), times in by_thread.items():
            most[call] = max(most[call], times)
        return most

    return count


def _faults(counts: Counter[str], *, every: bool) -> Iterator[tuple[str, str, int]]:
    """System call, what is injected, and at which time the thread makes it."""
    for call in CALLS:
        times = range(1, counts[call] + 1) if every else range(1, counts[call] + 1, max(counts[call] // 2, 1))
        for nth in times:
            yield call, "signal=KILL", nth
    for call, error in (("fsync", "EIO"), ("rename", "ENOSPC"), ("linkat", "EIO"), ("mkdir", "ENOSPC")):
        times = range(1, counts[call] + 1) if every else range(1, min(counts[call], 1) + 1)
        for nth in times:
            yield call, f"error={error}", nth


def _inject(name: str, case: Prepared, workers: Nursery, folder: Path, fault: tuple[str, str, int]) -> None:
    call, what, nth = fault
    shutil.copytree(case.base, folder)
    with Reader(folder / "lake") as reader:
        traced = _under(
            case, workers, folder,
            ["-e", f"trace={call}", "-e", f"inject={call}:{what}:when={nth}", "-o", "/dev/null"],
        )  # fmt: skip
    where = f"{what} at {call} {nth}"
    assert traced.status in ((-9, 0) if what == "signal=KILL" else (0,)), f"{name}, {where}: {traced.status}"
    MATRIX.interruptions[name, f"{call} {what.partition('=')[2]}"] += 1
    check_after(name, case, folder, reader, where)
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", ["correction"])
def test_a_store_that_fails_leaves_old_or_new_and_replay_makes_it_whole(name, prepared, workers, calls, tmp_path):
    for turn, fault in enumerate(_faults(calls(name), every=False)):
        _inject(name, prepared(name), workers, tmp_path / f"{turn}", fault)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["first load", "correction", "blocked partition", "approval"])
def test_a_store_that_fails_at_any_call_leaves_old_or_new(name, prepared, workers, calls, tmp_path):
    for turn, fault in enumerate(_faults(calls(name), every=True)):
        _inject(name, prepared(name), workers, tmp_path / f"{turn}", fault)
