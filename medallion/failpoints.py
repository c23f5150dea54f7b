"""Named places on the path at which a test can stop it. For tests alone; off unless the environment says otherwise.

``MEDALLION_FAILPOINTS`` is read once, when this module is imported:

    MEDALLION_FAILPOINTS="table committed=kill"            kill this process (SIGKILL) there
    MEDALLION_FAILPOINTS="staged:2=raise"                  raise on the second time
    MEDALLION_FAILPOINTS="judged=pause(/tmp/go)"           write /tmp/go.reached and wait until /tmp/go is there
    MEDALLION_FAILPOINTS="table files written=full"        the disk is full (OSError, ENOSPC)
    MEDALLION_FAILPOINTS="any=trace(/tmp/points)"          append every point that is reached to a file

Several are separated by ``;``. A test that runs the path in its own process uses :func:`armed` instead.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["POINTS", "UPKEEP_POINTS", "Interrupted", "armed", "reach"]

POINTS = (
    "pinned",
    "identified",
    "recorded",
    "transformed",
    "judged",
    "staged",
    "held",
    "quarantine files written",
    "quarantine committed",
    "quarantine log synced",
    "evidence written",
    "table files written",
    "table committed",
    "table log synced",
    "ledger written",
    "settled",
    "acknowledged",
    "dagster told",
    "restore recorded",
    "restore table done",
    "restore verified",
    "restore settled",
)
"""In the order of the path; then those of a restore."""

UPKEEP_POINTS = (
    "backup listed",
    "backup copied",
    "copy marked",
    "copy filled",
    "copy verified",
    "vacuum checkpoints written",
    "vacuum recorded",
    "vacuum entries taken",
)
"""Of a backup, of the restore of one and of vacuum, each in its order."""

_ANY = "any"
_SPEC = re.compile(
    r"(?P<name>[a-z ]+?)(?::(?P<nth>\d+))?=(?P<action>kill|raise|full|pause|trace)(?:\((?P<file>[^)]*)\))?"
)


class Interrupted(BaseException):
    """The path was interrupted by a failpoint, as by a signal: no ordinary handler takes it for an error."""


@dataclass
class _Armed:
    name: str
    left: int
    action: str
    file: str | None


def _parse(specs: str) -> list[_Armed]:
    found = []
    for spec in filter(None, (each.strip() for each in specs.split(";"))):
        match = _SPEC.fullmatch(spec)
        if match is None or match["name"] not in (*POINTS, *UPKEEP_POINTS, _ANY):
            raise ValueError(
                f"{spec!r} is no failpoint: write 'name[:nth]=kill|raise|full|pause(file)', name one of "
                f"{POINTS + UPKEEP_POINTS}"
            )
        found.append(_Armed(match["name"], int(match["nth"] or 1), match["action"], match["file"]))
    return found


_armed: list[_Armed] | None = _parse(os.environ.get("MEDALLION_FAILPOINTS", "")) or None


def reach(name: str) -> None:
    """Say that the path has come to ``name``; does nothing unless a test has armed it."""
    if _armed is not None:
        _act(name)


def _act(name: str) -> None:
    for each in list(_armed or ()):
        if each.action == "trace":
            with Path(each.file or "").open("a") as file:
                file.write(f"{name}\n")
        if each.name != name:
            continue
        each.left -= 1
        if each.left == 0:
            _stop(each)


def _stop(point: _Armed) -> None:
    if point.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if point.action == "raise":
        raise Interrupted(point.name)
    if point.action == "full":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), point.name)
    signal_file = Path(point.file or "")
    signal_file.with_name(signal_file.name + ".reached").touch()
    while not signal_file.exists():
        time.sleep(0.002)


@contextmanager
def armed(specs: str) -> Iterator[None]:
    """Arm failpoints in this process, for as long as the block runs."""
    global _armed  # noqa: PLW0603 - one switch for the process, so that an unarmed point costs one look
    before, _armed = _armed, _parse(specs)
    try:
        yield
    finally:
        _armed = before
