"""What the tests of the commit protocol count, by place."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

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

    def to_plain(self) -> dict[str, Any]:
        """What one process of a test run hands to the one that reports."""
        return {
            "interruptions": [[*where, count] for where, count in self.interruptions.items()],
            "recoveries": dict(self.recoveries),
            "outcomes": dict(self.outcomes),
        }

    def add(self, plain: dict[str, Any]) -> None:
        """Count what another process has counted."""
        self.interruptions.update({(operation, place): count for operation, place, count in plain["interruptions"]})
        self.recoveries.update(plain["recoveries"])
        self.outcomes.update(plain["outcomes"])

    def report(self, terminal: pytest.TerminalReporter) -> None:
        """Print the table."""
        operations = sorted({operation for operation, _ in self.interruptions})
        places = sorted({place for _, place in self.interruptions})
        width = max(map(len, places)) + 1
        terminal.section(f"{self.total} interruptions")
        terminal.write_line("".ljust(width) + "  ".join(operations))
        for place in places:
            counts = [self.interruptions[operation, place] for operation in operations]
            cells = (str(count or ".").rjust(len(each)) for count, each in zip(counts, operations, strict=True))
            terminal.write_line(place.ljust(width) + "  ".join(cells))
        told = ", ".join(f"{count} {kind}" for kind, count in self.recoveries.items())
        terminal.write_line(f"recovered: {told}")
        told = ", ".join(f"{count} {kind}" for kind, count in self.outcomes.items())
        terminal.write_line(f"overtaken attempts said: {told}")


MATRIX = Matrix()
