"""Rows that stand refused: how many, by which rule, for how long, whose they are, and what they look like.

A row leaves the quarantine because its partition was replayed after the source, the reference table or the rule was
mended (``release.py``); nothing is ever taken out of it by hand. What belongs here: looking.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import polars as pl

from medallion import ledger
from medallion.errors import ConfigurationError
from medallion.evidence import Evidence, EvidenceReader
from medallion.gate import FAILURES
from medallion.lake import Lake
from medallion.project import Project
from medallion.tables import Table

__all__ = [
    "FORMATS",
    "Group",
    "Grouping",
    "Outstanding",
    "described",
    "export_rows",
    "grouped",
    "outstanding",
    "refused_rows",
]


@dataclass(frozen=True)
class Outstanding:
    """Rows of one partition that one rule refuses.

    Attributes:
        rows: a row that broke two rules counts in both.
        since: when rows of this partition were first refused by this rule, without a break since; of a batch that
            the ledger does not know, when its run was started.
        owners: of the table, as its feed declares them.
    """

    table: str
    partition: str
    rule: str
    rows: int
    since: dt.datetime
    owners: tuple[str, ...]

    def age(self, now: dt.datetime) -> dt.timedelta:
        """For how long it has been outstanding."""
        return now - self.since


def outstanding(
    project: Project,
    lake: Lake,
    tables: Collection[str] | None = None,
    *,
    rule: str | None = None,
    keys: Collection[str] | None = None,
) -> list[Outstanding]:
    """What stands refused, from the evidence of the live batches, in the order of tables, partitions and rules.

    Args:
        project: the declared tables.
        lake: where they lie.
        tables: which of them; all if not given.
        rule: only rows that this rule refuses.
        keys: only these partitions.

    Raises:
        UnknownTable: if one of ``tables`` is not declared.
    """
    chosen = project.tables if tables is None else [project.table(path) for path in tables]
    found: list[Outstanding] = []
    past: dict[tuple[str, str], list[tuple[str, dt.datetime]]] | None = None
    for table in chosen:
        if table.quarantine_path is None:
            continue
        target = lake.pin(table.path, table.partition)
        evidence_of = EvidenceReader(target.folder)
        for key in sorted(target.files if keys is None else set(keys) & set(target.files)):
            batch_id = target.batch_id(key)
            evidence = None if batch_id is None else evidence_of(batch_id)
            if evidence is None or not evidence.verdict.quarantined:
                continue
            past = _past(lake) if past is None else past
            for name, rows in sorted(evidence.verdict.quarantined_by_rule.items()):
                if rule in {None, name}:
                    since = _since(name, evidence, past.get((table.path, key), []), evidence_of)
                    found.append(Outstanding(table.path, key, name, rows, since, table.owners))
    return found


def _past(lake: Lake) -> dict[tuple[str, str], list[tuple[str, dt.datetime]]]:
    """The batches of each partition and when each was committed, newest first, as far as the ledger tells."""
    rows = ledger.read(lake, ["committed", "approved", "restored"])
    found: dict[tuple[str, str], list[tuple[str, dt.datetime]]] = defaultdict(list)
    for table, key, batch_id, at in (
        rows.select("pipeline_name", "partition", "batch_id", "completed_at").reverse().iter_rows()
    ):
        found[table, key].append((batch_id, at))
    return found


def _since(
    rule: str, live: Evidence, past: Iterable[tuple[str, dt.datetime]], evidence_of: EvidenceReader
) -> dt.datetime:
    """When a rule began to refuse rows of a partition, looking back from the live batch as long as it did."""
    since = None
    for batch_id, at in past:
        if since is None and batch_id != live.batch_id:
            continue  # something later that is not live, as before a restore
        evidence = live if batch_id == live.batch_id else evidence_of(batch_id)
        if evidence is None or rule not in evidence.verdict.quarantined_by_rule:
            break
        since = at
    return since or dt.datetime.fromisoformat(live.started_at)


class Grouping(StrEnum):
    """How outstanding rows are listed."""

    RULE = "rule"
    TABLE = "table"
    DAY = "day"
    AGE = "age"


@dataclass(frozen=True)
class Group:
    """Outstanding rows, added up.

    Attributes:
        table: whose.
        label: of the group: a rule, a partition, an age; empty if the table itself is the group.
        rows: in all; by table and by partition a row that broke two rules still counts in both.
        partitions: that hold them, in order.
        since: of the oldest.
    """

    table: str
    label: str
    rows: int
    partitions: tuple[str, ...]
    since: dt.datetime
    owners: tuple[str, ...]


_AGES = ((1, "under a day"), (7, "1 to 7 days"), (30, "7 to 30 days"))


def grouped(found: Iterable[Outstanding], by: Grouping, now: dt.datetime) -> list[Group]:
    """Outstanding rows in groups, by table and then the oldest first.

    Args:
        found: the rows.
        by: what a group has in common besides its table.
        now: the time, for ages.
    """
    groups: dict[tuple[str, str], list[Outstanding]] = defaultdict(list)
    for each in found:
        groups[each.table, _label(each, by, now)].append(each)
    made = [
        Group(
            table,
            label,
            sum(each.rows for each in some),
            tuple(sorted({each.partition for each in some})),
            min(each.since for each in some),
            some[0].owners,
        )
        for (table, label), some in groups.items()
    ]
    return sorted(made, key=lambda each: (each.table, each.label if by is Grouping.DAY else each.since, each.label))


def _label(each: Outstanding, by: Grouping, now: dt.datetime) -> str:
    match by:
        case Grouping.RULE:
            return each.rule
        case Grouping.DAY:
            return each.partition
        case Grouping.AGE:
            days = each.age(now) / dt.timedelta(days=1)
            return next((label for limit, label in _AGES if days < limit), "30 days or more")
        case Grouping.TABLE:
            return ""


def refused_rows(
    lake: Lake, table: Table, keys: Collection[str] | None = None, rule: str | None = None
) -> pl.LazyFrame:
    """The refused rows of live batches: values as they came, where they came from, and every reason.

    Args:
        lake: where the table lies.
        table: a declared table.
        keys: only these partitions.
        rule: only rows that this rule refuses.

    Raises:
        ConfigurationError: if the table has no quarantine.
    """
    if table.quarantine_path is None:
        raise ConfigurationError(
            f"{table.path} has no quarantine: bronze refuses no rows, and gold is published whole. Look at the silver "
            "tables: medallion quarantine list."
        )
    quarantine = lake.pin(table.quarantine_path, table.partition)
    target = lake.pin(table.path, table.partition)
    wanted = sorted(quarantine.files if keys is None else set(keys) & set(quarantine.files))
    # Rows of another batch are an attempt's that is between its two commits, or has died there.
    rows = quarantine.scan([key for key in wanted if quarantine.batch_id(key) == target.batch_id(key)])
    if rule is None or FAILURES not in quarantine.schema:
        return rows
    return rows.filter(pl.col(FAILURES).list.eval(pl.element().struct.field("rule") == rule).list.any())


FORMATS = (".csv", ".parquet", ".ndjson")


def export_rows(rows: pl.LazyFrame, path: Path, *, force: bool = False) -> int:
    """Write refused rows to a file, whole or not at all; how many.

    Args:
        rows: as :func:`refused_rows` gives them.
        path: ends with ``.csv``, ``.parquet`` or ``.ndjson``. In CSV the reasons are one text.
        force: replace a file that is there.

    Raises:
        ConfigurationError: if the name says no format, or there is such a file already, or it cannot be written.
    """
    if path.suffix not in FORMATS:
        raise ConfigurationError(f"{path} says no format: name a file that ends with {', '.join(FORMATS)}.")
    if path.exists() and not force:
        raise ConfigurationError(
            f"{path} is there already, and nothing was written. Name another file, or use --force."
        )
    temporary = path.with_name(f".{path.name}.partial")
    try:
        _write(rows, temporary, path.suffix)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ConfigurationError(f"{path} cannot be written: {error.strerror or error}.") from error
    return int(rows.select(pl.len()).collect().item())


def _write(rows: pl.LazyFrame, path: Path, kind: str) -> None:
    if kind == ".csv":
        _flat(rows).sink_csv(path)
    elif kind == ".ndjson":
        rows.sink_ndjson(path)
    else:
        rows.sink_parquet(path)


def _flat(rows: pl.LazyFrame) -> pl.LazyFrame:
    if FAILURES not in rows.collect_schema():
        return rows
    reason = pl.format("{} ({})", pl.element().struct.field("rule"), pl.element().struct.field("severity"))
    return rows.with_columns(pl.col(FAILURES).list.eval(reason).list.join("; "))


def described(rows: pl.DataFrame) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Each row for people: where it came from and why it was refused, and its values as they came."""
    for row in rows.iter_rows(named=True):
        reasons = "; ".join(f"{each['rule']} ({each['severity']})" for each in row.get(FAILURES) or ())
        values = {name: value for name, value in row.items() if not name.startswith("_") and value is not None}
        where = f"{row['_source_file']} row {row['_source_row']}" if row.get("_source_file") else "a row"
        yield f"{where}: {reasons}", values
