"""How bad it is to break a rule."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["CRITICAL", "ERROR", "INFO", "WARNING", "Severity"]


class Severity(IntEnum):
    """What breaking a rule does.

    ======== ======================================== ==========================
    severity a row breaks a row rule                  a table rule fails
    ======== ======================================== ==========================
    INFO     counted                                  recorded
    WARNING  published, listed in ``_warnings``       published, shown
    ERROR    quarantined with every reason            partition blocked
    CRITICAL partition blocked                        partition blocked
    ======== ======================================== ==========================
    """

    INFO = 0
    WARNING = 1
    ERROR = 2
    CRITICAL = 3


INFO, WARNING, ERROR, CRITICAL = Severity
