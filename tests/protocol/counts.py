"""What the tests of the commit protocol count, by place."""

from collections import Counter
from dataclasses import dataclass, field


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
