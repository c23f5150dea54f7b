"""Rules made for pipelines: about a partition as a whole, its past, its source and the tables it is built from.

Each is declared in one line in a contract's body; the attribute's name gives the rule's id::

    class Transaction(Contract):
        ...
        usual_volume = volume(warning=0.3, critical=0.6)
        on_its_day = belongs_to_partition("sold_at", timezone="America/New_York")

The past is taken from committed evidence: every verdict keeps what these rules measured, so that no data is read again.
What is measured is what is about to be published.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl

from medallion.errors import DeclarationError
from medallion.past import distribution, volume
from medallion.pipeline_rule import Found, PipelineRule, Setting
from medallion.severity import CRITICAL, ERROR, WARNING, Severity

if TYPE_CHECKING:
    pass

__all__ = [
    "PipelineRule",
    "Reconciles",
    "Setting",
    "at_least",
    "belongs_to_partition",
    "distribution",
    "fresh",
    "kpi",
    "reconciles",
    "volume",
]

_SHOWN = 3
"""Groups that differ and are spelled out in a message."""


@dataclass(frozen=True)
class _AtLeast(PipelineRule):
    rows: int

    @property
    def title(self) -> str:
        return f"at least {self.rows:,} rows"

    def judge(self, measured: Mapping[str, Any], setting: Setting) -> Iterable[Found]:
        if setting.rows < self.rows:
            yield self.severity, f"{setting.rows:,} rows, at least {self.rows:,} are expected"


def at_least(rows: int, severity: Severity = CRITICAL) -> Any:
    """The partition has at least so many rows."""
    return _AtLeast(severity, rows)


@dataclass(frozen=True)
class _BelongsToPartition(PipelineRule):
    column: str
    partition: str
    timezone: str | None
    every: str

    @property
    def title(self) -> str:
        return f"the row's {self.column} lies in its partition"

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column, self.partition)

    def row_expression(self, types: Mapping[str, pl.DataType]) -> pl.Expr:
        moment = pl.col(self.column)
        if self.timezone is not None:
            moment = moment.dt.convert_time_zone(self.timezone)
        if types[self.partition] == pl.String:  # partitions of an hour are named by it
            return moment.dt.to_string("%Y-%m-%d-%H") == pl.col(self.partition)
        day = moment.dt.date() if types[self.column] != pl.Date else moment
        start = pl.col(self.partition)
        return (day >= start) & (day < start.dt.offset_by(self.every))


def belongs_to_partition(
    column: str,
    partition: str = "day",
    *,
    timezone: str | None = None,
    every: str = "1d",
    severity: Severity = CRITICAL,
) -> Any:
    """A row lies in the partition that its own date or time says.

    Args:
        column: the row's date or time.
        partition: the partition column.
        timezone: the partition's, for a time with a zone.
        every: length of a partition, as polars writes it: ``1d``, ``1w``, ``1mo``.
        severity: of a row elsewhere.
    """
    return _BelongsToPartition(severity, column, partition, timezone, every)


@dataclass(frozen=True)
class _Kpi(PipelineRule):
    name: str
    expression: pl.Expr = field(compare=False)
    minimum: float | None
    maximum: float | None

    @property
    def title(self) -> str:
        return f"{self.name} between {self.minimum} and {self.maximum}"

    def __repr__(self) -> str:
        return f"kpi({self.name!r}, {self.expression}, {self.minimum}, {self.maximum}, {self.severity})"

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.expression.meta.root_names())

    def measures(self) -> Mapping[str, pl.Expr]:
        return {"value": self.expression.cast(pl.Float64)}

    def judge(self, measured: Mapping[str, Any], setting: Setting) -> Iterable[Found]:
        value = None if measured["value"] != measured["value"] else measured["value"]  # NaN is no figure
        low = self.minimum is not None and (value is None or value < self.minimum)
        high = self.maximum is not None and (value is None or value > self.maximum)
        if low or high:
            yield self.severity, f"{self.name} is {value}, expected between {self.minimum} and {self.maximum}"


def kpi(
    name: str,
    expression: pl.Expr,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    severity: Severity = ERROR,
) -> Any:
    """A figure of the partition lies in a range.

    Args:
        name: of the figure, for people.
        expression: one value for the partition, as ``pl.col("sales").sum() / pl.len()``.
        minimum: the least allowed value.
        maximum: the greatest allowed value.
        severity: of a value outside.
    """
    return _Kpi(severity, name, expression, minimum, maximum)


@dataclass(frozen=True)
class _Fresh(PipelineRule):
    column: str
    within: dt.timedelta
    timezone: str | None

    @property
    def title(self) -> str:
        return f"the newest {self.column} is within {self.within} of the partition's end"

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def needs_window(self) -> bool:
        return True

    def measures(self) -> Mapping[str, pl.Expr]:
        newest = pl.col(self.column).max()
        if self.timezone is not None:
            newest = newest.dt.convert_time_zone(self.timezone).dt.replace_time_zone(None)
        return {"newest": newest.cast(pl.Datetime("us")).dt.to_string("iso:strict")}

    def judge(self, measured: Mapping[str, Any], setting: Setting) -> Iterable[Found]:
        if setting.end is None:
            return
        if measured["newest"] is None:
            yield self.severity, f"there is no {self.column}"
            return
        age = setting.end - dt.datetime.fromisoformat(measured["newest"])
        if age > self.within:
            yield self.severity, f"the newest {self.column} is {measured['newest']}, {age} before the partition's end"


def fresh(column: str, *, within: dt.timedelta, timezone: str | None = None, severity: Severity = WARNING) -> Any:
    """The newest value of a time column lies close to the end of the partition's window.

    Args:
        column: a date or time.
        within: how far from the end it may lie.
        timezone: of the partition, for a time with a zone.
        severity: of an older one.
    """
    return _Fresh(severity, column, within, timezone)


@dataclass(frozen=True)
class Reconciles(PipelineRule):
    """See :func:`reconciles`."""

    input: str
    count: str | bool
    sums: tuple[tuple[str, str], ...]
    by: tuple[str, ...]
    tolerance: float

    @property
    def title(self) -> str:
        """One line for people."""
        return f"rows and totals agree with {self.input}"

    @property
    def columns(self) -> tuple[str, ...]:
        """The contract's columns that are added up or compared by."""
        counted = (self.count,) if isinstance(self.count, str) else ()
        return (*self.by, *counted, *(mine for mine, _ in self.sums))

    def check_columns(self, types: Mapping[str, pl.DataType], where: str) -> None:
        """Refuse a total of what cannot be added up."""
        super().check_columns(types, where)
        for name in self.columns[len(self.by) :]:
            if not (types[name].is_numeric() or types[name] in (pl.Boolean, pl.Null)):
                raise DeclarationError(f"{where}: {name!r} is {types[name]}, which does not add up to a number")

    def own_totals(self) -> Mapping[str, pl.Expr]:
        """What is added up here: by group of ``by``, if there is one."""
        counted = {}
        if self.count:
            counted["rows"] = pl.col(self.count).sum() if isinstance(self.count, str) else pl.len()
        return {**counted, **{f"{mine} ({theirs})": pl.col(mine).sum() for mine, theirs in self.sums}}

    def their_totals(self) -> Mapping[str, pl.Expr]:
        """The same of the input."""
        counted = {"rows": pl.len()} if self.count else {}
        return {**counted, **{f"{mine} ({theirs})": pl.col(theirs).sum() for mine, theirs in self.sums}}

    def judge(self, measured: Mapping[str, Any], setting: Setting) -> Iterable[Found]:
        """The groups whose totals differ, each with the first figure that does."""
        if self.input not in setting.inputs:
            given = ", ".join(setting.inputs) or "none"
            yield max(self.severity, ERROR), f"there is no input {self.input!r} to compare with; given: {given}"
            return
        differ = [
            text
            for group in sorted({*setting.here, *setting.there}, key=str)
            if (text := self._compare(group, setting))
        ]
        if differ:
            more = f"; and {len(differ) - _SHOWN} more groups differ" if len(differ) > _SHOWN else ""
            yield self.severity, f"{'; '.join(differ[:_SHOWN])}{more}"

    def _compare(self, group: tuple[Any, ...], setting: Setting) -> str | None:
        here, there = setting.here.get(group, {}), setting.there.get(group, {})
        for name in {**here, **there}:
            mine, theirs = float(here.get(name) or 0), float(there.get(name) or 0)
            if not abs(mine - theirs) <= self.tolerance:  # a NaN agrees with nothing
                place = f" for {', '.join(map(str, group))}" if group else ""
                return f"{name}{place} add up to {mine:,.2f} here and {theirs:,.2f} in {self.input}"
        return None


def reconciles(
    input: str,  # noqa: A002 - the word for what a table is built from
    *,
    count: str | bool = False,
    sums: Mapping[str, str] | None = None,
    by: Sequence[str] = (),
    tolerance: float = 0.01,
    severity: Severity = CRITICAL,
) -> Any:
    """Rows and totals of the partition agree with those of an input.

    Args:
        input: the transform's name for it.
        count: a column here whose sum is the input's number of rows; True if rows here stand for rows there.
        sums: columns here, and the columns of the input whose sums they must add up to.
        by: columns, of both, by which totals are compared.
        tolerance: how far apart two totals may lie, in their own unit.
        severity: of a difference.
    """
    return Reconciles(severity, input, count, tuple((sums or {}).items()), tuple(by), tolerance)
