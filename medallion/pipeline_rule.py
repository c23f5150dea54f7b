"""What a rule made for pipelines is, and what it may know of the partition that it judges."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl

from medallion.errors import DeclarationError
from medallion.severity import Severity

if TYPE_CHECKING:
    from medallion.verdict import Verdict

__all__ = ["Found", "PipelineRule", "Setting", "Totals"]

Found = tuple[Severity, str]
Totals = Mapping[tuple[Any, ...], Mapping[str, Any]]
"""Figures by group; the group is empty if there is only one."""


@dataclass(frozen=True)
class Setting:
    """What a rule may know of the partition that it judges, besides what it measured.

    Attributes:
        partition: its key.
        rows: rows about to be published.
        end: end of its window (naive local time), for time partitions.
        past: verdicts of the committed partitions before it, newest first.
        rule: the rule's own id, under which past verdicts keep what it measured.
        here: for ``reconciles``, rows and sums of the partition, by group.
        there: the same of the input.
        inputs: names of what the rows were made of.
    """

    partition: str
    rows: int
    rule: str
    end: dt.datetime | None = None
    past: Sequence[Verdict] = ()
    here: Totals = field(default_factory=dict)
    there: Totals = field(default_factory=dict)
    inputs: Sequence[str] = ()


@dataclass(frozen=True)
class PipelineRule:
    """Base of the rules of this module."""

    severity: Severity

    @property
    def title(self) -> str:
        """One line for people."""
        raise NotImplementedError

    @property
    def columns(self) -> tuple[str, ...]:
        """The contract's columns that the rule uses."""
        return ()

    def check_columns(self, types: Mapping[str, pl.DataType], where: str) -> None:
        """Refuse a rule about columns that are not there.

        Raises:
            DeclarationError: naming the column.
        """
        for name in self.columns:
            if name not in types:
                raise DeclarationError(f"{where}: there is no column {name!r}; there are {', '.join(types)}")

    def row_expression(self, types: Mapping[str, pl.DataType]) -> pl.Expr | None:
        """For a rule that judges rows: true where it holds."""
        return None

    def measures(self) -> Mapping[str, pl.Expr]:
        """Aggregates over the partition that the rule needs; kept in the verdict under the rule's id."""
        return {}

    def judge(self, measured: Mapping[str, Any], setting: Setting) -> Iterable[Found]:
        """What the rule finds, each with its severity and a message."""
        return ()

    @property
    def history(self) -> int:
        """How many partitions before this one the rule looks back on."""
        return 0

    @property
    def needs_window(self) -> bool:
        """Whether the rule can judge nothing but partitions of time."""
        return False
