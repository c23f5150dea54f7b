"""The gate on files that do not fit into memory: Parquet in, accepted and quarantined Parquet out, in one pass.

The source is read in batches of rows. Rows that break nothing, most of them, are written as they are; only the others
get their bits and reasons. Keys are told apart by a 64-bit hash in a pass of their own over the key columns; rows whose
hash occurs twice are set aside and compared exactly. Table rules are evaluated on what was accepted, by streaming.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from medallion.errors import DeclarationError
from medallion.gate import WARNINGS, Gate
from medallion.masks import Query
from medallion.partitions import Whole
from medallion.rules import Setting
from medallion.tally import judge_shares
from medallion.verdict import Finding, Verdict, worst_first

__all__ = ["split_parquet"]

_ENCODING: dict[str, Any] = {"compression": "zstd", "compression_level": 1}
_BROKEN = "_broken"
_DOUBTFUL = "_doubtful"


def split_parquet(
    source: Path | list[Path],
    gate: Gate,
    *,
    accepted: Path,
    quarantined: Path,
    references: Mapping[str, pl.Series] | None = None,
    batch_rows: int = 250_000,
) -> Verdict:
    """Split Parquet files by a gate, with memory bounded by ``batch_rows``.

    Args:
        source: a file, or files with the same columns.
        gate: what judges; it has no partitions.
        accepted: folder for the accepted rows, as ``part-00000.parquet`` and so on; made if it is not there.
        quarantined: folder for the refused ones.
        references: by contract column, the values that ``known_in`` allows.
        batch_rows: rows that are in memory at a time.

    Returns:
        the verdict. If the columns do not fit, nothing is written.

    Raises:
        DeclarationError: if the gate has partitions, or a rule that looks across rows other than by the key, which no
            batch can judge; use :meth:`Gate.judge`.
    """
    _check_streamable(gate)
    scan = pl.scan_parquet(source, glob=False)
    given = scan.collect_schema()
    # An empty frame with these columns is judged first: what it says of their shape holds for all batches.
    empty = gate.judge(pl.LazyFrame(schema=given), references=references)
    if any(finding.scope == "shape" and finding.blocks for finding in empty.verdict.findings):
        return gate.judge(scan, references=references).verdict
    query = Query(gate.compiled_for(given), given, None, references or {})
    for folder in (accepted, quarantined):
        folder.mkdir(parents=True, exist_ok=True)
    job = _Job(gate, query, accepted, quarantined, references or {}, _repeated_keys(scan, gate, query))
    for batch in _batches(scan, batch_rows):
        job.take(batch)
    return job.finish([finding for finding in empty.verdict.findings if finding.scope == "shape"])


def _check_streamable(gate: Gate) -> None:
    if not isinstance(gate.partition, Whole):
        raise DeclarationError(f"{gate.name}: a gate with partitions judges frames; split one partition at a time")
    for rule in gate.compiled.row_rules:
        if rule.check is not None and rule.check.across:
            raise DeclarationError(
                f"{gate.name}: {rule.id} looks across rows, which no batch can judge; use Gate.judge"
            )
    for rule in gate.compiled.table_rules:
        if rule.check is not None and rule.check.expr is None:
            raise DeclarationError(f"{gate.name}: {rule.id} needs the whole frame in memory; use Gate.judge")


def _batches(scan: pl.LazyFrame, size: int) -> Iterator[pl.DataFrame]:
    total = scan.select(pl.len()).collect().item()
    for start in range(0, total, size):
        yield scan.slice(start, size).collect()


def _repeated_keys(scan: pl.LazyFrame, gate: Gate, query: Query) -> pl.Series | None:
    """Hashes that more than one row's key has; None if there are none. Eight bytes a row are held for a moment."""
    if not gate.key:
        return None
    keyed = scan.with_columns(query.typed()[0]).select(_hash_of(gate.key))
    hashes = keyed.collect(engine="streaming").to_series().sort()
    repeated = hashes.filter(hashes == hashes.shift(1)).unique()
    return repeated if repeated.len() else None


def _hash_of(key: Sequence[str]) -> pl.Expr:
    return pl.struct(*key).hash()


@dataclass
class _Job:
    """Takes batches, writes their halves, and counts."""

    gate: Gate
    query: Query
    accepted: Path
    quarantined: Path
    references: Mapping[str, pl.Series]
    repeated: pl.Series | None
    parts: int = 0
    clean: int = 0
    aside: list[pl.DataFrame] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)

    def take(self, batch: pl.DataFrame) -> None:
        """Split one batch; rows whose key may occur elsewhere are set aside."""
        typed, _, unreadable = self.query.typed()
        broken = pl.any_horizontal([self.query.breaks(rule, unreadable) for rule in self.query.rules()])
        doubtful = pl.lit(value=False)
        if self.repeated is not None:
            doubtful = _hash_of(self.gate.key).is_in(self.repeated.implode())
        rows = batch.lazy().with_columns(typed).with_columns(broken.alias(_BROKEN), doubtful.alias(_DOUBTFUL)).collect()
        is_broken, is_doubtful = rows.get_column(_BROKEN), rows.get_column(_DOUBTFUL)
        if is_doubtful.any():
            self.aside.append(batch.filter(is_doubtful))
        clean = rows.select(*self.query.names).filter(~(is_broken | is_doubtful))
        self.clean += clean.height
        self._write(clean, batch.filter(is_broken & ~is_doubtful))

    def _write(self, clean: pl.DataFrame, others: pl.DataFrame) -> None:
        split = self.gate.judge(others, references=self.references)
        self.verdicts.append(split.verdict)
        name = f"part-{self.parts:05}.parquet"
        self.parts += 1
        untagged = [clean.with_columns(pl.lit(None, pl.List(pl.String)).alias(WARNINGS))] if clean.width else []
        pl.concat([*untagged, split.accepted]).write_parquet(self.accepted / name, **_ENCODING)
        if split.quarantined.height:
            split.quarantined.write_parquet(self.quarantined / name, **_ENCODING)

    def finish(self, shape: Sequence[Finding]) -> Verdict:
        """Settle the rows that were set aside, judge the whole, and add everything up."""
        if self.aside or not self.parts:
            schema = self.query.schema
            self._write(pl.DataFrame(), pl.concat(self.aside) if self.aside else pl.DataFrame(schema=dict(schema)))
        reasons: Counter[tuple[str, ...]] = Counter()
        by_rule: Counter[str] = Counter()
        for verdict in self.verdicts:
            reasons.update(verdict.reasons)
            by_rule.update({f.rule: f.rows for f in verdict.findings if f.scope == "row"})
        read, accepted, quarantined = (
            self.clean + sum(each.read for each in self.verdicts),
            self.clean + sum(each.accepted for each in self.verdicts),
            sum(each.quarantined for each in self.verdicts),
        )
        rules = self.gate.compiled.by_id
        findings = [Finding(rule, rules[rule].severity, "row", n, rules[rule].title) for rule, n in by_rule.items()]
        findings += [*shape, *self._raised(), *self._judge_whole(accepted)]
        findings += judge_shares(self.gate.limits, by_rule, quarantined, read, rules)
        return Verdict(
            self.gate.name,
            Whole.KEY,
            read,
            accepted,
            quarantined,
            sum(each.collapsed for each in self.verdicts),
            worst_first(findings),
            dict(reasons),
        )

    def _raised(self) -> list[Finding]:
        """Checks that raised in some batch; each once."""
        found = {f.rule: f for v in self.verdicts for f in v.findings if f.scope == "table" and "raised" in f.message}
        return list(found.values())

    def _judge_whole(self, rows: int) -> list[Finding]:
        """The rules about the whole, on what was accepted, by streaming."""
        scan = pl.scan_parquet(self.accepted / "part-*.parquet")
        tables = self.gate.compiled.table_rules
        pipelines = [rule for rule in self.gate.compiled.pipeline_rules if rule.pipeline is not None]
        measures = {
            (rule.id, name): expr
            for rule in pipelines
            if rule.pipeline is not None
            for name, expr in rule.pipeline.measures().items()
        }
        exprs = {**{(rule.id, ""): rule.check.expr for rule in tables if rule.check is not None}, **measures}
        named = [expr.alias(str(n)) for n, expr in enumerate(exprs.values()) if expr is not None]
        values = dict(zip(exprs, scan.select(named).collect(engine="streaming").row(0), strict=True)) if named else {}
        found = [
            Finding(rule.id, rule.severity, "table", 0, f"does not hold: {rule.title}")
            for rule in tables
            if not (values[rule.id, ""] if values[rule.id, ""] is not None else rule.ignore_null)
        ]
        for rule in pipelines:
            assert rule.pipeline is not None
            mine = {name: values[rule.id, name] for name in rule.pipeline.measures()}
            for severity, message in rule.pipeline.judge(mine, Setting(Whole.KEY, rows, rule.id)):
                found.append(Finding(rule.id, severity, "table", 0, message))
        return found
