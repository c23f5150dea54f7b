"""Counts rows by partition and by what they broke, and turns the counts into verdicts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from medallion.compiler import CompiledContract, Rule
from medallion.masks import Gated
from medallion.partitions import Partitioning, Whole
from medallion.severity import ERROR
from medallion.verdict import Finding, Verdict, worst_first

__all__ = ["Tally", "judge_shares"]


class Tally:
    """The counts of one slice."""

    def __init__(self, gated: Gated, partition: Partitioning, name: str, limits: Mapping[str, float]) -> None:
        """Start with nothing counted."""
        self._gated, self._partition, self._name, self._limits = gated, partition, name, limits
        self._group = partition.column or None
        self._rows: dict[Any, Counter[tuple[str, ...]]] = defaultdict(Counter)
        self._collapsed: Counter[Any] = Counter()

    def _value(self, key: str) -> Any:
        return self._partition.value(key) if self._group else Whole.KEY

    def add(self, frame: pl.DataFrame, extra: tuple[str, ...] = ()) -> None:
        """Count rows by the combination of rules that they broke."""
        by = [*([self._group] if self._group else []), *self._gated.masks]
        for row in frame.group_by(by).len().iter_rows():
            part = row[0] if self._group else Whole.KEY
            masks = row[1:-1] if self._group else row[:-1]
            self._rows[part][(*(rule.id for rule in self._gated.broken_by(masks)), *extra)] += row[-1]

    def collapse(self, frame: pl.DataFrame) -> None:
        """Count rows that were dropped as copies."""
        if self._group:
            self._collapsed.update(dict(frame.group_by(self._group).len().iter_rows()))
        elif frame.height:
            self._collapsed[Whole.KEY] = frame.height

    def accepted(self, key: str, rules: Mapping[str, Rule]) -> int:
        """Rows about to be published."""
        combinations = self._rows.get(self._value(key), Counter())
        return sum(n for names, n in combinations.items() if not any(rules[each].severity >= ERROR for each in names))

    def verdict(
        self,
        key: str,
        compiled: CompiledContract,
        others: Sequence[Finding],
        measures: Mapping[str, Mapping[str, Any]],
    ) -> Verdict:
        """The verdict of one partition, with the findings of everything that does not judge rows."""
        rules = compiled.by_id
        combinations = self._rows.get(self._value(key), Counter())
        by_rule: Counter[str] = Counter()
        for names, count in combinations.items():
            by_rule.update(dict.fromkeys(names, count))
        collapsed = self._collapsed.get(self._value(key), 0)
        if collapsed:
            by_rule["table.duplicate"] = collapsed
        accepted = self.accepted(key, rules)
        quarantined = sum(combinations.values()) - accepted
        read = accepted + quarantined + collapsed
        findings = [Finding(id_, rules[id_].severity, "row", count, rules[id_].title) for id_, count in by_rule.items()]
        findings += [*others, *judge_shares(self._limits, by_rule, quarantined, read, rules)]
        reasons = {names: count for names, count in combinations.items() if names}
        return Verdict(
            self._name, key, read, accepted, quarantined, collapsed, worst_first(findings), reasons, measures
        )


def judge_shares(
    limits: Mapping[str, float], by_rule: Mapping[str, int], quarantined: int, read: int, rules: Mapping[str, Rule]
) -> list[Finding]:
    """What is found if there are no rows, or a larger share of them is refused than allowed."""
    if read == 0:
        rule = rules["table.no_rows"]
        return [Finding(rule.id, rule.severity, "table", 0, "the partition has no rows")]
    rule = rules["table.quarantined_share"]
    over = []
    for id_, limit in limits.items():
        count = quarantined if id_ == "*" else by_rule.get(id_, 0)
        if count / read > limit:
            what = "of the rows are refused" if id_ == "*" else f"of the rows break {id_}"
            over.append(f"{count / read:.1%} {what}, and max_quarantined is {limit:.1%}")
    return [Finding(rule.id, rule.severity, "table", 0, "; ".join(over))] if over else []
