"""What the tests of the commit protocol count, and the table that they print at the end."""

from collections import Counter
from dataclasses import dataclass, field

import pytest


@dataclass
class Matrix:
    """Interruptions by operation and place, what replay found after them, and what became of overtaken attempts."""

    interruptions: Counter[tuple[str, str]] = field(default_factory=Counter)
    recoveries: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        return self.interruptions.total()


MATRIX = Matrix()


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
