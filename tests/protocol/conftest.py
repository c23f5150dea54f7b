"""What the tests of the commit protocol share, and the table of interruptions that they print at the end."""

from collections.abc import Callable, Iterator
from functools import cache

import pytest

from tests.protocol.counts import MATRIX
from tests.protocol.scenarios import Prepared, prepare
from tests.protocol.workers import Nursery, nursery


@pytest.fixture(scope="session")
def workers() -> Iterator[Nursery]:
    """A nursery of real processes."""
    with nursery() as opened:
        yield opened


@pytest.fixture(scope="session")
def prepared(workers: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Prepared]:
    """Gives a scenario's lake by name; each is built once."""
    return cache(lambda name: prepare(name, workers, tmp_path_factory.mktemp("base")))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not MATRIX.total:
        return
    operations = sorted({operation for operation, _ in MATRIX.interruptions})
    places = sorted({place for _, place in MATRIX.interruptions})
    width = max(map(len, places)) + 1
    write = terminalreporter.write_line
    terminalreporter.section(f"{MATRIX.total} interruptions")
    write("".ljust(width) + "  ".join(operations))
    for place in places:
        counts = [MATRIX.interruptions[operation, place] for operation in operations]
        cells = (str(count or ".").rjust(len(each)) for count, each in zip(counts, operations, strict=True))
        write(place.ljust(width) + "  ".join(cells))
    write("recovered: " + ", ".join(f"{count} {kind}" for kind, count in MATRIX.recoveries.items()))
    write("overtaken attempts said: " + ", ".join(f"{count} {kind}" for kind, count in MATRIX.outcomes.items()))
