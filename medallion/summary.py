"""What the lake holds, folded from its live files and their evidence; there is no other source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable

from medallion.evidence import EvidenceReader, read_held
from medallion.lake import Lake
from medallion.tables import Table

__all__ = ["TableSummary", "render", "summarize"]


@dataclass(frozen=True)
class TableSummary:
    """A table's committed partitions, added up.

    Attributes:
        committed: partitions with a live version.
        missing: partitions without one.
        blocked: partitions whose latest candidate the gate refused and holds.
        quarantined_by_rule: a row that broke two rules counts in both.
    """

    table: str
    committed: int
    missing: tuple[str, ...]
    blocked: tuple[str, ...]
    read: int
    accepted: int
    quarantined: int
    collapsed: int
    quarantined_by_rule: dict[str, int]


def summarize(tables: Iterable[Table], lake: Lake) -> list[TableSummary]:
    """Fold the lake into a line for each table."""
    return [_summarize(table, lake) for table in tables]


def _summarize(table: Table, lake: Lake) -> TableSummary:
    snapshot = lake.pin(table.path, table.partition)
    keys = table.partition.keys()
    counts: Counter[str] = Counter()
    rules: Counter[str] = Counter()
    evidence_of = EvidenceReader(snapshot.folder)
    committed = 0
    for key in keys:
        batch_id = snapshot.batch_id(key)
        if batch_id is None:
            continue
        committed += 1
        evidence = evidence_of(batch_id)
        if evidence is None:
            counts["read"] += snapshot.rows(key)
            counts["accepted"] += snapshot.rows(key)
            continue
        verdict = evidence.verdict
        counts.update(
            read=verdict.read, accepted=verdict.accepted, quarantined=verdict.quarantined, collapsed=verdict.collapsed
        )
        rules.update(verdict.quarantined_by_rule)
    return TableSummary(
        table.path,
        committed,
        tuple(key for key in keys if snapshot.batch_id(key) is None),
        tuple(key for key in keys if read_held(snapshot.folder, key) is not None),
        counts["read"],
        counts["accepted"],
        counts["quarantined"],
        counts["collapsed"],
        dict(rules.most_common()),
    )


def render(summaries: Iterable[TableSummary]) -> list[RichTable]:
    """The summaries for a terminal: a line for each table, then what was quarantined and why."""
    tables = RichTable(title="What the lake holds", title_justify="left", box=SIMPLE_HEAD, padding=0, show_edge=False)
    tables.add_column("table", no_wrap=True)
    for column in ("parts", "read", "accepted", "quar.", "copies", "blocked"):
        tables.add_column(column, justify="right", no_wrap=True, overflow="fold")
    reasons = RichTable(title="Quarantined, by reason", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    reasons.add_column("table", no_wrap=True)
    reasons.add_column("rule")
    reasons.add_column("rows", justify="right")
    for each in summaries:
        tables.add_row(
            each.table,
            f"{each.committed}/{each.committed + len(each.missing)}",
            f"{each.read:,}",
            f"{each.accepted:,}",
            f"{each.quarantined:,}",
            f"{each.collapsed:,}",
            str(len(each.blocked)),
        )
        for rule, rows in each.quarantined_by_rule.items():
            reasons.add_row(each.table, rule, f"{rows:,}")
    return [tables, reasons] if reasons.row_count else [tables]
