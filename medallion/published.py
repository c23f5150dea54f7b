"""Judges a partition as a whole, on the rows that are about to be published."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from medallion.compiler import CompiledContract, Rule
from medallion.partitions import Partitioning, TimePartitioning, Whole
from medallion.pipeline_rule import Setting, Totals
from medallion.rules import Reconciles
from medallion.severity import ERROR
from medallion.tally import Tally
from medallion.verdict import Finding, Verdict

__all__ = ["History", "judge_published"]

Measures = dict[str, dict[str, Mapping[str, Any]]]
Findings = dict[str, list[Finding]]
Measured = tuple[dict[str, dict[str, Any]], dict[str, Totals], dict[str, Totals]]


@dataclass
class History:
    """The committed past of a table: the verdicts of its partitions, in order.

    Attributes:
        keys: all partitions of the table, in order.
        read: gives the verdict of a committed partition, or None.
        fresh: verdicts of this run, which are not committed yet and count as the past of the partitions after them.
    """

    keys: Sequence[str] = ()
    read: Callable[[str], Verdict | None] = lambda key: None
    fresh: dict[str, Verdict] = field(default_factory=dict)

    def before(self, key: str, count: int) -> list[Verdict]:
        """Up to ``count`` verdicts of partitions before ``key`` that have rows, newest first."""
        found: list[Verdict] = []
        if count <= 0 or key not in self.keys:
            return found
        for earlier in reversed(self.keys[: list(self.keys).index(key)]):
            verdict = self.fresh.get(earlier) or self.read(earlier)
            if verdict is not None and verdict.accepted and not verdict.blocked:
                found.append(verdict)
            if len(found) == count:
                break
        return found


def judge_published(
    accepted: pl.DataFrame,
    compiled: CompiledContract,
    partition: Partitioning,
    keys: Sequence[str],
    *,
    inputs: Mapping[str, pl.LazyFrame],
    history: History,
    tally: Tally,
    raised: Sequence[Finding] = (),
) -> tuple[Findings, Measures]:
    """The findings of table rules and pipeline rules, and what the latter measured, by partition."""
    findings = _table_rules(accepted, compiled, partition, keys)
    rules = [rule for rule in compiled.pipeline_rules if rule.pipeline is not None]
    if not rules:
        return findings, {}
    sound: dict[str, Measured] = {}
    for rule in rules:
        try:
            sound[rule.id] = _measure(accepted, rule, partition), *_totals(rule, accepted, inputs, partition)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            message = f"cannot be measured: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            for key in keys:
                findings[key].append(Finding(rule.id, max(rule.severity, ERROR), "table", 0, message))
    rules = [rule for rule in rules if rule.id in sound]
    measures: Measures = defaultdict(dict)
    for key in keys:
        for rule in rules:
            assert rule.pipeline is not None
            measured, here, there = sound[rule.id]
            mine = measured.get(key) or dict.fromkeys(rule.pipeline.measures())
            setting = Setting(
                key,
                tally.accepted(key, compiled.by_id),
                rule.id,
                end=partition.window(key)[1] if isinstance(partition, TimePartitioning) else None,
                past=history.before(key, rule.pipeline.history),
                here=here.get(key, {}),
                there=there.get(key, {}),
                inputs=tuple(inputs),
            )
            for severity, message in rule.pipeline.judge(mine, setting):
                findings[key].append(Finding(rule.id, severity, "table", 0, message))
            if mine:
                measures[key][rule.id] = mine
        by_rows = tally.verdict(key, compiled, raised, {})
        if not by_rows.blocked and not any(finding.blocks for finding in findings[key]):
            rows = tally.accepted(key, compiled.by_id)
            history.fresh[key] = Verdict("", key, rows, rows, measures=measures[key])
    return findings, measures


def _table_rules(
    accepted: pl.DataFrame, compiled: CompiledContract, partition: Partitioning, keys: Sequence[str]
) -> Findings:
    found: Findings = defaultdict(list)
    rules = [rule for rule in compiled.table_rules if rule.column is None or rule.column in accepted.columns]
    for rule in rules:
        if rule.check is not None and rule.check.refused:
            for key in keys:
                found[key].append(Finding(rule.id, max(rule.severity, ERROR), "table", 0, rule.check.refused))
            continue
        values = _evaluate(accepted, rule, partition)
        for key in keys:
            group = partition.value(key) if partition.column else Whole.KEY
            value = values[group] if group in values else _evaluate_one(accepted.clear(), rule)
            if isinstance(value, str):
                found[key].append(Finding(rule.id, max(rule.severity, ERROR), "table", 0, value))
            elif not (value if value is not None else rule.ignore_null):
                found[key].append(Finding(rule.id, rule.severity, "table", 0, f"does not hold: {rule.title}"))
    return found


def _evaluate(accepted: pl.DataFrame, rule: Rule, partition: Partitioning) -> dict[Any, bool | str | None]:
    """A table rule's value for each partition that has rows; text says why there is none."""
    if not partition.column:
        return {Whole.KEY: _evaluate_one(accepted, rule)} if accepted.height else {}
    assert rule.check is not None
    if rule.check.expr is not None:
        try:
            values = accepted.group_by(partition.column).agg(rule.check.expr.alias("_holds"))
            return dict(values.iter_rows())
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
            pass  # told apart below: the others are not to be blocked for the partition that cannot be judged
    parts = accepted.partition_by(partition.column, as_dict=True)
    return {value[0]: _evaluate_one(part, rule) for value, part in parts.items()}


def _evaluate_one(rows: pl.DataFrame, rule: Rule) -> bool | str | None:
    assert rule.check is not None
    try:
        if rule.check.function is not None:
            return rule.check.function(rows.lazy())
        assert rule.check.expr is not None
        value: bool | None = rows.select(rule.check.expr.alias("_holds")).item()
        return value
    except (Exception, pl.exceptions.PanicException) as error:  # noqa: BLE001 - a user's function may raise anything
        return f"the check raised {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _measure(accepted: pl.DataFrame, rule: Rule, partition: Partitioning) -> dict[str, dict[str, Any]]:
    """What a rule measures, by partition."""
    exprs = rule.pipeline.measures() if rule.pipeline is not None else {}
    if not exprs:
        return {}
    aggregates = [expr.alias(name) for name, expr in exprs.items()]
    if not partition.column:
        return {Whole.KEY: accepted.select(aggregates).row(0, named=True)} if accepted.height else {}
    named = [expr.alias(f"_total_{name}") for name, expr in exprs.items()]
    frame = accepted.group_by(partition.column).agg(named).cast({partition.column: pl.String})
    return {row[0]: dict(zip(exprs, row[1:], strict=True)) for row in frame.iter_rows()}


def _totals(
    rule: Rule, accepted: pl.DataFrame, inputs: Mapping[str, pl.LazyFrame], partition: Partitioning
) -> tuple[dict[str, Totals], dict[str, Totals]]:
    """For ``reconciles``, what adds up here and in the input, by partition and group."""
    given = rule.pipeline
    if not isinstance(given, Reconciles) or given.input not in inputs:
        return {}, {}
    here = _added_up(accepted.lazy(), given.own_totals(), given.by, partition)
    there = _added_up(inputs[given.input], given.their_totals(), given.by, partition)
    return here, there


def _added_up(
    rows: pl.LazyFrame, totals: Mapping[str, pl.Expr], by: Sequence[str], partition: Partitioning
) -> dict[str, Totals]:
    group = [partition.column] if partition.column and partition.column in rows.collect_schema() else []
    named = [expr.alias(f"_total_{name}") for name, expr in totals.items()]
    frame = (rows.group_by([*group, *by]).agg(named) if group or by else rows.select(named)).collect()
    found: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = defaultdict(dict)
    for row in frame.iter_rows():
        key = str(row[0]) if group else Whole.KEY
        values = row[len(group) + len(by) :]
        found[key][tuple(row[len(group) : len(group) + len(by)])] = dict(zip(totals, values, strict=True))
    return dict(found)
