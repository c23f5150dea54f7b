"""What tests of every room share, and how they are divided between processes.

Two processes run the tests, one for each core of a small machine. What shares a server, or counts together, stays in
one of them; so does each file, since its fixtures are made once.
"""

from pathlib import Path
from typing import Any

import pytest

from resources import retail
from tests.protocol.counts import MATRIX, Matrix

TOGETHER = ("tests/ui/", "tests/protocol/")
"""Folders that stay in one process, and come first: the one drives one Dagster, the other counts its interruptions."""


@pytest.fixture(scope="session")
def retail_landing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The landing zone of the whole retail year, built once; to read only."""
    landing = tmp_path_factory.mktemp("retail") / "landing"
    retail.build(landing)
    return landing


def _room(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    return next((folder for folder in TOGETHER if file.startswith(folder)), file)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest comes first, so that the processes end together."""
    items.sort(key=lambda item: TOGETHER.index(room) if (room := _room(item.nodeid)) in TOGETHER else len(TOGETHER))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give whole rooms to processes; xdist's own groups (3.8) are lost on pytest 9.2."""
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    class ByRoom(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return _room(nodeid)

    return ByRoom(config, log)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand the counts to the process that reports."""
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["interruptions"] = MATRIX.to_plain()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the counts of a process that has ended."""
    MATRIX.add(getattr(node, "workeroutput", {}).get("interruptions") or Matrix().to_plain())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was interrupted, if anything was."""
    if MATRIX.total:
        MATRIX.report(terminalreporter)
