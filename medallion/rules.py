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
from statistics import median
from typing import TYPE_CHECKING, Any

import polars as pl

from medallion.errors import DeclarationError
from medallion.severity import CRITICAL, ERROR, WARNING, Severity

if TYPE_CHECKING:
    from medallion.verdict import Verdict

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
_QUANTILES = [step / 50 for step in range(51)]


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
class _Volume(PipelineRule):
    warning: float
    critical: float
    window: int
    least: int

    @property
    def title(self) -> str:
        return f"as many rows as in the {self.window} partitions before, within {self.warning:.0%}"

    @property
    def history(self) -> int:
        return self.window

    def judge(self, measured: Mapping[str, Any], setting: Setting) -> Iterable[Found]:
        past = [verdict.accepted for verdict in setting.past[: self.window] if verdict.accepted]
        if len(past) < self.least:
            return
        usual = median(past)
        # Half as many and twice as many are equally unusual, so the smaller of the two is compared with the larger.
        change = 1 - min(setting.rows, usual) / max(setting.rows, usual)
        for severity, bound in ((CRITICAL, self.critical), (WARNING, self.warning)):
            if change > bound:
                yield (
                    severity,
                    f"{setting.rows:,} rows, usually {usual:,.0f}: {change:.0%} apart, allowed are {bound:.0%}",
                )
                return


def volume(*, warning: float, critical: float, window: int = 28, least: int = 7) -> Any:
    """The partition has about as many rows as the ones before it.

    The change is ``1 - smaller / larger`` of the row count and the median of the past, so that 0.5 is half as many or
    twice as many.

    Args:
        warning: change from which the check warns.
        critical: change from which the partition is blocked.
        window: how many committed partitions before this one are looked at; empty ones do not count.
        least: fewer than these are no past to judge by, and nothing is said.
    """
    return _Volume(CRITICAL, warning, critical, window, least)


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
class _Distribution(PipelineRule):
    column: str
    warning: float
    critical: float
    window: int
    least: int
    categorical: bool

    @property
    def title(self) -> str:
        measure = "Jensen-Shannon distance" if self.categorical else "Kolmogorov-Smirnov statistic"
        return f"{self.column} is distributed as in the {self.window} partitions before ({measure})"

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def history(self) -> int:
        return self.window

    def measures(self) -> Mapping[str, pl.Expr]:
        value = pl.col(self.column).drop_nulls()
        if self.categorical:
            return {"counts": value.cast(pl.String).alias("value").value_counts(sort=True).head(1000).implode()}
        number = value.cast(pl.Float64).drop_nans()
        return {"quantiles": pl.concat_list([number.quantile(q, "nearest") for q in _QUANTILES])}

    def judge(self, measured: Mapping[str, Any], setting: Setting) -> Iterable[Found]:
        kind = "counts" if self.categorical else "quantiles"
        kept = [verdict.measures.get(setting.rule, {}) for verdict in setting.past[: self.window]]
        past = [each[kind] for each in kept if each.get(kind) and None not in each[kind]]
        now = measured[kind]
        if len(past) < self.least or not now or (not self.categorical and None in now):
            return
        change = _jensen_shannon(now, past) if self.categorical else _kolmogorov_smirnov(now, past)
        for severity, bound in ((CRITICAL, self.critical), (WARNING, self.warning)):
            if change > bound:
                yield severity, f"{self.column} is distributed otherwise than before: {change:.3f}, allowed are {bound}"
                return


def _kolmogorov_smirnov(now: Sequence[float], past: Sequence[Sequence[float]]) -> float:
    from scipy.stats import ks_2samp  # noqa: PLC0415 - takes half a second, and few contracts ask for it

    return float(ks_2samp(now, [value for each in past for value in each]).statistic)


def _jensen_shannon(now: Sequence[Mapping[str, Any]], past: Sequence[Sequence[Mapping[str, Any]]]) -> float:
    from scipy.spatial.distance import jensenshannon  # noqa: PLC0415 - as above

    before: dict[str, float] = {}
    for each in past:
        for entry in each:
            before[entry["value"]] = before.get(entry["value"], 0) + entry["count"]
    here: dict[str, float] = {entry["value"]: entry["count"] for entry in now}
    names = sorted({*before, *here})
    return float(jensenshannon([here.get(name, 0) for name in names], [before.get(name, 0) for name in names], base=2))


def distribution(
    column: str, *, warning: float, critical: float, window: int = 7, least: int = 3, categorical: bool = False
) -> Any:
    """A column's values are distributed as in the partitions before.

    Numbers are compared by the two-sample Kolmogorov-Smirnov statistic (``scipy.stats.ks_2samp``; 0 is the same, 1 is
    apart) of 51 quantiles of each partition, which is exact to 0.02; categories by the Jensen-Shannon distance with
    base 2 (``scipy.spatial.distance.jensenshannon``; 0 to 1) of the counts of the 1,000 most frequent values.

    Args:
        column: the column.
        warning: change from which the check warns.
        critical: change from which the partition is blocked.
        window: how many committed partitions before this one are pooled.
        least: fewer than these are no past to judge by.
        categorical: compare the values themselves instead of their size.
    """
    return _Distribution(CRITICAL, column, warning, critical, window, least, categorical)


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
