"""Which process does something, written down so that another one can tell later whether it still lives."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

__all__ = ["Process"]

_SAFE_AGE = 24 * 3600.0
"""Seconds after which a process on another host is taken for dead. Whether it lives cannot be seen from here; if it
does, it is fenced like any other."""


@dataclass(frozen=True)
class Process:
    """A process of a host.

    Attributes:
        boot, born: of the host and the process, so that a process number that was given again is recognised.
    """

    host: str
    boot: str
    pid: int
    born: str

    @classmethod
    def here(cls) -> Process:
        """This one."""
        host, boot = _host()
        return cls(host, boot, os.getpid(), _born(os.getpid()))

    def may_live(self, since: float) -> bool:
        """Whether it may still be running.

        Args:
            since: when it was at work, in seconds since 1970; that alone counts on another host.
        """
        host, boot = _host()
        if self.host != host:
            return time.time() - since < _SAFE_AGE
        return self.boot == boot and self.born == _born(self.pid)


@lru_cache(maxsize=1)
def _host() -> tuple[str, str]:
    boot = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return socket.gethostname(), boot


def _born(pid: int) -> str:
    """When a process started, in ticks since the host did; empty if there is no such process.

    Where the system does not tell (no ``/proc``), every process that exists counts as the one that is meant.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        state, *rest = stat.rpartition(")")[2].split()
        return "" if state in "ZX" else rest[18]
    except OSError:
        if Path("/proc/self/stat").exists():
            return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return "alive"
