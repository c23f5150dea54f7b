"""Rules that compare a partition with the committed ones before it: by its number of rows, by how values are spread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import polars as pl

from medallion.pipeline_rule import Found, PipelineRule, Setting
from medallion.severity import CRITICAL, WARNING

__all__ = ["distribution", "volume"]

_QUANTILES = [step / 50 for step in range(51)]


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
        # Sorted once and looked up, the nearest rank as polars' quantile has it: a fifth of the time of 51 quantiles.
        ranks = (
            (pl.lit(pl.Series(_QUANTILES)) * (number.len().cast(pl.Int64) - 1).clip(0) + 0.5).floor().cast(pl.UInt32)
        )
        return {"quantiles": number.sort().gather(ranks, null_on_oob=True).implode().cast(pl.List(pl.Float64))}

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
    """The greatest distance between the two empirical distributions.

    ``scipy.stats.ks_2samp(...).statistic``, to which a test holds it. Importing scipy.stats takes as long as judging
    half a million rows, in every process.
    """
    here, before = np.sort(now), np.sort([value for each in past for value in each])
    at = np.concatenate([here, before])
    distances = np.searchsorted(here, at, "right") / here.size - np.searchsorted(before, at, "right") / before.size
    return float(np.abs(distances).max())


def _jensen_shannon(now: Sequence[Mapping[str, Any]], past: Sequence[Sequence[Mapping[str, Any]]]) -> float:
    from scipy.spatial.distance import jensenshannon  # noqa: PLC0415 - takes half a second, and few ask for it

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

    Numbers are compared by the two-sample Kolmogorov-Smirnov statistic (as ``scipy.stats.ks_2samp``; 0 is the same, 1
    is apart) of 51 quantiles of each partition, which is exact to 0.02; categories by the Jensen-Shannon distance with
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
