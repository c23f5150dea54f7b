"""What the gate says about one partition: a value that prints, serialises, and is the same everywhere."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from medallion.severity import CRITICAL, ERROR, WARNING, Severity

__all__ = ["Finding", "Verdict", "worst_first"]


@dataclass(frozen=True)
class Finding:
    """One rule that found something.

    Attributes:
        rule: the rule's id.
        severity: of the rule.
        scope: ``row``, ``table`` or ``shape``.
        rows: how many rows broke it; 0 for a rule about the table or its columns.
        message: what was found, for people.
    """

    rule: str
    severity: Severity
    scope: str
    rows: int
    message: str

    @property
    def blocks(self) -> bool:
        """Whether this finding alone refuses the partition."""
        return self.severity == CRITICAL or (self.scope != "row" and self.severity >= ERROR)


@dataclass(frozen=True)
class Verdict:
    """The judgement of one partition. Always: read = accepted + quarantined + collapsed.

    Attributes:
        read: rows that the transform gave.
        accepted: rows that are published, if the partition is not blocked.
        quarantined: rows that are refused.
        collapsed: copies that were dropped for an identical row, or an older version of the same key.
        findings: the rules that found something, most severe first.
        reasons: rows by the combination of rules they broke, for quarantined and tagged rows.
        measures: what the rules about the past and the whole measured, by rule id; the next partitions' past.
    """

    table: str
    partition: str
    read: int
    accepted: int
    quarantined: int = 0
    collapsed: int = 0
    findings: tuple[Finding, ...] = ()
    reasons: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    measures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.read != self.accepted + self.quarantined + self.collapsed:
            raise AssertionError(
                f"{self.table} {self.partition}: {self.read} rows read are not {self.accepted} accepted + "
                f"{self.quarantined} quarantined + {self.collapsed} collapsed"
            )

    @property
    def blocking(self) -> tuple[Finding, ...]:
        """The findings that refuse the partition."""
        return tuple(finding for finding in self.findings if finding.blocks)

    @property
    def blocked(self) -> bool:
        """Whether the partition is refused."""
        return bool(self.blocking)

    @property
    def passed(self) -> bool:
        """Whether nothing was refused: no row quarantined and the partition not blocked."""
        return not self.quarantined and not self.blocked

    @property
    def severity(self) -> Severity | None:
        """The most severe finding's severity; None if nothing was found."""
        return max((finding.severity for finding in self.findings), default=None)

    @property
    def quarantined_by_rule(self) -> dict[str, int]:
        """Quarantined rows by each rule that refused them; a row that broke two counts in both."""
        return {
            finding.rule: finding.rows
            for finding in self.findings
            if finding.scope == "row" and finding.severity >= ERROR and finding.rows
        }

    @property
    def summary(self) -> str:
        """The counts, as one line."""
        return (
            f"{self.read:,} read = {self.accepted:,} accepted + {self.quarantined:,} quarantined + "
            f"{self.collapsed:,} collapsed"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "table": self.table,
            "partition": self.partition,
            "read": self.read,
            "accepted": self.accepted,
            "quarantined": self.quarantined,
            "collapsed": self.collapsed,
            "blocked": self.blocked,
            "findings": [
                {"rule": f.rule, "severity": f.severity.name, "scope": f.scope, "rows": f.rows, "message": f.message}
                for f in self.findings
            ],
            "reasons": [[list(rules), rows] for rules, rows in sorted(self.reasons.items())],
            "measures": self.measures,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Verdict:
        """The verdict that :meth:`to_dict` wrote."""
        findings = tuple(
            Finding(f["rule"], Severity[f["severity"]], f["scope"], f["rows"], f["message"]) for f in data["findings"]
        )
        return cls(
            data["table"],
            data["partition"],
            data["read"],
            data["accepted"],
            data["quarantined"],
            data["collapsed"],
            findings,
            {tuple(rules): rows for rules, rows in data["reasons"]},
            data.get("measures", {}),
        )

    def to_json(self) -> str:
        """The same as text; a figure that is no number is null there."""
        return json.dumps(_finite(self.to_dict()), ensure_ascii=False, sort_keys=True, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Verdict:
        """The verdict that :meth:`to_json` wrote."""
        return cls.from_dict(json.loads(text))

    def to_markdown(self) -> str:
        """A table for people: the counts, then every rule that found something."""
        lines = [f"**{self.outcome}**: {self.summary}"]
        if self.findings:
            lines += ["", "| rule | severity | rows | found |", "| --- | --- | ---: | --- |"]
            lines += [f"| `{f.rule}` | {f.severity.name} | {f.rows:,} | {_cell(f.message)} |" for f in self.findings]
        return "\n".join(lines)

    @property
    def outcome(self) -> str:
        """``blocked``, ``published in part`` or ``published``, as the judgement has it."""
        if self.blocked:
            return "blocked"
        return "published in part" if self.quarantined else "published"

    def __rich__(self) -> RenderableType:
        """The same for a terminal."""
        head = Text(f"{self.table} {self.partition}: {self.outcome}. {self.summary}")
        if not self.findings:
            return head
        table = RichTable(box=SIMPLE_HEAD, show_edge=False)
        for name in ("rule", "severity", "rows", "found"):
            table.add_column(name, justify="right" if name == "rows" else "left", overflow="fold")
        for f in self.findings:
            table.add_row(
                Text(f.rule), Text(f.severity.name, style=_STYLES.get(f.severity, "")), f"{f.rows:,}", Text(f.message)
            )
        return Group(head, table)


_STYLES = {WARNING: "yellow", ERROR: "red", CRITICAL: "bold red"}


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings, most severe first, then by id."""
    return tuple(sorted(findings, key=lambda f: (-f.severity, f.rule)))
