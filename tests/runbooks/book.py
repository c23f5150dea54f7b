"""Reads the runbooks and does what they say: each command as it stands there, in its order.

What belongs here: extracting and running commands. What does not: assertions on what they have achieved.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from click.testing import CliRunner

from medallion.cli import cli

TEXT = (Path(__file__).parents[2] / "docs" / "runbooks.md").read_text()
_STATUS = re.compile(r"\s+# exit status (\d+)$")


def sections() -> dict[str, list[str]]:
    """The commands under each heading, in order."""
    found: dict[str, list[str]] = {}
    for heading, body in re.findall(r"^##+ ([^\n]+)\n(.*?)(?=^##|\Z)", TEXT, re.S | re.M):
        blocks = re.findall(r"```console\n(.*?)```", body, re.S)
        found[heading] = [line for block in blocks for line in block.splitlines() if line.strip()]
    return {heading: commands for heading, commands in found.items() if commands}


@dataclass
class Book:
    """One runbook, as it is gone through.

    Attributes:
        said: what each command has printed.
    """

    heading: str
    variables: dict[str, str]
    said: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.left = list(sections()[self.heading])

    def until(self, start: str) -> None:
        """Do what comes before the first command that begins so."""
        while not self.left[0].startswith(start):
            self._step()

    def rest(self) -> None:
        """Do all that is left."""
        while self.left:
            self._step()

    def _step(self) -> None:
        line = self.left.pop(0)
        match = _STATUS.search(line)
        wanted = int(match[1]) if match else 0
        words = [self._filled(word) for word in shlex.split(_STATUS.sub("", line))]
        status, output = _medallion(words[1:]) if words[0] == "medallion" else _shell(words)
        self.said[line] = output
        assert status == wanted, f"{line}\nhas ended with {status}, not {wanted}:\n{output}"

    def _filled(self, word: str) -> str:
        known = {**os.environ, **self.variables}
        return re.sub(r"\$([A-Z_]+)", lambda match: known[match[1]], word)


def _medallion(words: list[str]) -> tuple[int, str]:
    for name in [name for name in sys.modules if name.partition(".")[0].startswith("feeds_")]:
        del sys.modules[name]  # each command is a process of its own, and reads the feeds as they are then
    importlib.invalidate_caches()
    done = CliRunner().invoke(cli, words, env={"COLUMNS": "160"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return 2, f"{type(done.exception).__name__}: {done.exception}"
    return done.exit_code, done.output


def _shell(words: list[str]) -> tuple[int, str]:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr
