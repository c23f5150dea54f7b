"""The gate: split rows exactly by a compiled contract, and judge every partition of a slice in one pass.

The rules become one lazy query: each row gets a bit for every rule that it breaks. What follows works on those bits, so
that a row's reasons cost nothing until somebody looks at them. Law 1 is checked in every verdict: read = accepted +
quarantined + collapsed.

Order of judgement: shape of the columns, coercion, row rules, duplicates of the key, then the table rules on what is
about to be published.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import polars as pl

from medallion.coerce import coerce, describe_type
from medallion.compiler import CompiledContract, Rule, compile_schema
from medallion.contract import CRITICAL, ERROR, INFO, WARNING
from medallion.duplicates import resolve_duplicates
from medallion.partitions import Whole
from medallion.verdict import Finding, Verdict, worst_first

if TYPE_CHECKING:
    from medallion.tables import Table

__all__ = ["FAILURES", "WARNINGS", "Split", "compile_contract", "empty_split", "judge", "missing_column_verdict"]

WARNINGS = "_warnings"
"""Column of published rows: ids of the WARNING rules that a row breaks; null if there is none."""

FAILURES = "_failures"
"""Column of quarantined rows: every rule that a row breaks, as a list of structs of ``rule`` and ``severity``."""

FAILURES_TYPE = pl.List(pl.Struct({"rule": pl.String, "severity": pl.String}))

_BITS = 62
"""Rules in one mask column; an Int64 keeps its sign bit out of the way."""

_RAW = "_raw."
_AT = "_row"


@cache
def compile_contract(table: Table) -> CompiledContract:
    """The compiled contract of a declared table.

    Raises:
        DeclarationError: for a rule that cannot be compiled.
    """
    cut = table.partition
    partition = None if isinstance(cut, Whole) else (cut.column, cut.dtype)
    assert table.schema is not None
    return compile_schema(table.schema, where=table.path, key=table.key, partition=partition)


@dataclass(frozen=True)
class Split:
    """A slice of partitions, judged.

    Attributes:
        accepted: rows to publish, in the order of partition and key, with ``_warnings``.
        quarantined: rows that are refused: values as they came, as text, with ``_failures`` and the source columns.
        verdicts: by partition key.
        unknown: for each ``known_in`` column, the values of each partition that the reference does not know.
    """

    accepted: pl.DataFrame
    quarantined: pl.DataFrame
    verdicts: dict[str, Verdict]
    unknown: dict[str, dict[str, list[str]]]


def judge(rows: pl.LazyFrame, table: Table, keys: Sequence[str], references: Mapping[str, pl.Series]) -> Split:
    """Judge the rows that a transform gave for some partitions.

    Args:
        rows: the candidate rows; partition column, contract columns, and the source columns if there are any.
        table: whose contract it is.
        keys: the partitions, those without rows included.
        references: by contract column, the values that ``known_in`` allows.

    Returns:
        the accepted and the quarantined rows and a verdict for each of ``keys``. If the columns do not fit, nothing
        is accepted or quarantined, and every verdict is blocked.
    """
    compiled = compile_contract(table)
    schema = rows.collect_schema()
    shape = _judge_shape(compiled, schema, table)
    if any(finding.blocks for finding in shape):
        return _all_blocked(rows, table, keys, shape, compiled)
    gated = _Gate(table, compiled, schema, references).run(rows)
    return _assemble(gated, table, compiled, keys, shape)


def empty_split(table: Table) -> Split:
    """The split of partitions that have nothing to judge."""
    compiled = compile_contract(table)
    group: dict[str, Any] = {table.partition.column: table.partition.dtype} if table.partition.column else {}
    columns = {**group, **{column.name: column.dtype for column in compiled.columns}}
    accepted = pl.DataFrame(schema={**columns, WARNINGS: pl.List(pl.String)})
    text = {name: pl.String for name in columns if name != table.partition.column}
    quarantined = pl.DataFrame(schema={**group, **text, FAILURES: FAILURES_TYPE})
    return Split(accepted, quarantined, {}, {})


def missing_column_verdict(table: Table, key: str, column: str, had: Iterable[str]) -> Verdict:
    """The verdict of a partition whose transform asks for a column that the input does not have."""
    message = f"column {column!r} is missing; the input has {', '.join(name for name in had if name[0] != '_')}"
    return Verdict(table.path, key, 0, 0, findings=(Finding(f"{column}.present", CRITICAL, "shape", 0, message),))


def _judge_shape(compiled: CompiledContract, schema: pl.Schema, table: Table) -> list[Finding]:
    findings: list[Finding] = []
    for column in compiled.columns:
        given = schema.get(column.name)
        if given is None and column.required and column.name != table.partition.column:
            rule = compiled.by_id[f"{column.name}.present"]
            had = ", ".join(name for name in schema if not name.startswith("_"))
            findings.append(
                Finding(rule.id, rule.severity, "shape", 0, f"column {column.name!r} is missing; there are {had}")
            )
        elif given is not None and coerce(pl.col(column.name), given, column) is None:
            rule = compiled.by_id[f"{column.name}.type"]
            message = (
                f"column {column.name!r} is {describe_type(given)}, and the contract says {describe_type(column.dtype)}"
            )
            findings.append(Finding(rule.id, CRITICAL, "shape", 0, message))
    known = {column.name for column in compiled.columns} | {table.partition.column}
    extra = [name for name in schema if name not in known and not name.startswith("_")]
    if extra:
        rule = compiled.by_id["table.extra_column"]
        message = f"columns that the contract does not know: {', '.join(extra)}; kept in the layer below, dropped here"
        findings.append(Finding(rule.id, rule.severity, "shape", 0, message))
    return findings


def _all_blocked(
    rows: pl.LazyFrame, table: Table, keys: Sequence[str], shape: list[Finding], compiled: CompiledContract
) -> Split:
    group = table.partition.column
    if group:
        counts = dict(rows.group_by(group).len().collect().iter_rows())
    else:
        counts = {None: rows.select(pl.len()).collect().item()}
    verdicts = {}
    for key in keys:
        read = counts.get(table.partition.value(key) if group else None, 0)
        # Held back whole: the rows are still in the layer below, none is lost.
        reasons = {tuple(f.rule for f in shape if f.blocks): read} if read else {}
        verdicts[key] = Verdict(
            table.path, key, read, 0, quarantined=read, findings=worst_first(shape), reasons=reasons
        )
    return Split(pl.DataFrame(), pl.DataFrame(), verdicts, {})


@dataclass(frozen=True)
class _Gated:
    """All rows of a slice, typed, with their bits."""

    rows: pl.DataFrame
    rules: tuple[Rule, ...]
    masks: tuple[str, ...]
    raw: Mapping[str, str]
    """By contract column, the column of ``rows`` that holds its value as it came."""

    def bits(self, at_least: int, rules: Iterable[Rule] | None = None) -> list[int]:
        """For each mask column, the bits of the rules that are as severe as that."""
        words = [0] * len(self.masks)
        for i, rule in enumerate(self.rules):
            if rule.severity >= at_least and (rules is None or rule in rules):
                words[i // _BITS] |= 1 << (i % _BITS)
        return words

    def broken(self, words: Sequence[int]) -> pl.Expr:
        """Whether a row breaks one of the rules of ``words``."""
        return pl.any_horizontal(
            [(pl.col(mask) & pl.lit(word, pl.Int64)) != 0 for mask, word in zip(self.masks, words, strict=True) if word]
            or [pl.lit(False)]
        )

    def names(self, masks: Sequence[int]) -> tuple[Rule, ...]:
        """The rules whose bits are set."""
        return tuple(rule for i, rule in enumerate(self.rules) if masks[i // _BITS] >> (i % _BITS) & 1)


class _Gate:
    """Builds the one query of a table's contract."""

    def __init__(
        self, table: Table, compiled: CompiledContract, schema: pl.Schema, references: Mapping[str, pl.Series]
    ) -> None:
        self.table, self.compiled, self.schema, self.references = table, compiled, schema, references
        self.columns = [c for c in compiled.columns if c.name in schema]
        present = {column.name for column in self.columns}
        # A rule about an optional column that is not there has nothing to judge.
        self.rules = tuple(r for r in compiled.row_rules if r.column is None or r.column in present)

    def run(self, rows: pl.LazyFrame) -> _Gated:
        """Evaluate every row rule on every row."""
        typed, raw, unreadable = [], {}, {}
        for column in self.columns:
            given = self.schema[column.name]
            expr = coerce(pl.col(column.name), given, column)
            assert expr is not None
            raw[column.name] = column.name
            if given != column.dtype:
                raw[column.name] = _RAW + column.name
                typed += [pl.col(column.name).alias(raw[column.name]), expr.alias(column.name)]
                unreadable[column.name] = pl.col(raw[column.name]).is_not_null() & pl.col(column.name).is_null()
        masks = [f"_mask{i}" for i in range((len(self.rules) - 1) // _BITS + 1)] if self.rules else ["_mask0"]
        words = [
            pl.sum_horizontal(
                [self._bit(i, unreadable) for i in range(n * _BITS, min((n + 1) * _BITS, len(self.rules)))]
            )
            if self.rules
            else pl.lit(0, pl.Int64)
            for n in range(len(masks))
        ]
        group = [self.table.partition.column] if self.table.partition.column else []
        source = [name for name in self.schema if name.startswith("_source_")]
        keep = [*group, *(c.name for c in self.columns), *(r for r in raw.values() if r.startswith(_RAW)), *source]
        query = rows.with_columns(typed).with_columns(
            [word.alias(mask) for mask, word in zip(masks, words, strict=True)]
        )
        return _Gated(query.select(*dict.fromkeys(keep), *masks).collect(), self.rules, tuple(masks), raw)

    def _bit(self, index: int, unreadable: Mapping[str, pl.Expr]) -> pl.Expr:
        rule = self.rules[index]
        bit = pl.lit(1 << (index % _BITS), pl.Int64)
        return pl.when(self._breaks(rule, unreadable)).then(bit).otherwise(pl.lit(0, pl.Int64))

    def _breaks(self, rule: Rule, unreadable: Mapping[str, pl.Expr]) -> pl.Expr:
        if rule.id.endswith(".type"):
            return unreadable.get(rule.column or "", pl.lit(False))
        if rule.reference is not None:
            assert rule.column is not None
            holds = pl.col(rule.column).is_in(self.references[rule.column].implode(), nulls_equal=False)
        else:
            assert rule.expr is not None
            holds = rule.expr
            if rule.across and self.table.partition.column:
                holds = holds.over(self.table.partition.column)
        breaks = ~holds.fill_null(rule.ignore_null)
        # What could not be read is already refused for that; other rules on the value are unknown, not broken.
        used = set(rule.expr.meta.root_names()) if rule.expr is not None else {rule.column}
        unknown = [expr for name, expr in unreadable.items() if name in used]
        return breaks & ~pl.any_horizontal(unknown) if unknown else breaks


def _assemble(
    gated: _Gated, table: Table, compiled: CompiledContract, keys: Sequence[str], shape: list[Finding]
) -> Split:
    group = table.partition.column or None
    refused = gated.broken(gated.bits(ERROR))
    names = list(
        dict.fromkeys([*([group] if group else []), *(c.name for c in compiled.columns if c.name in gated.rows)])
    )
    by = list(dict.fromkeys([*([group] if group else []), *table.key]))
    numbered = gated.rows.lazy().with_row_index(_AT)
    # Raw values and source columns stay behind: most rows pass, and only those that do not need them.
    passing = numbered.filter(~refused).select(*names, *gated.masks, _AT).sort(by).collect()
    failing = gated.rows.filter(refused)
    split = resolve_duplicates(passing, failing, by=by, content=names, version_column=table.version_column)
    conflicting = gated.rows[split.conflicting.get_column(_AT)]
    tally = _Tally(gated, group, table)
    tally.add(split.accepted)
    tally.add(failing)
    tally.add(conflicting, extra=("table.conflicting_content",))
    tally.collapse(split.collapsed)
    accepted = _publishable(split.accepted, gated, names)
    quarantined = _quarantinable(failing, conflicting, gated, group, names)
    table_findings = _judge_table(accepted, compiled, table, keys)
    verdicts = {key: tally.verdict(key, compiled, [*shape, *table_findings.get(key, [])]) for key in keys}
    unknown = {
        rule.column: _unknown_values(gated, rule, group, table)
        for rule in gated.rules
        if rule.reference is not None and rule.column
    }
    return Split(accepted, quarantined, verdicts, unknown)


def _named(
    frame: pl.DataFrame,
    gated: _Gated,
    name: str,
    at_least: int,
    value: Callable[[tuple[Rule, ...]], Any],
    *,
    dtype: pl.DataType,
) -> pl.Series:
    """For each row something about the rules that it breaks. Few combinations occur: each is looked at once."""
    combined = frame.select(
        [(pl.col(m) & pl.lit(w, pl.Int64)).alias(m) for m, w in zip(gated.masks, gated.bits(at_least), strict=True)]
    )
    distinct = combined.unique(maintain_order=True)
    values = [value(gated.names(row)) for row in distinct.iter_rows()]
    named = distinct.with_columns(pl.Series(name, values, dtype=dtype))
    return combined.join(named, on=list(gated.masks), how="left", maintain_order="left").get_column(name)


def _publishable(rows: pl.DataFrame, gated: _Gated, names: Sequence[str]) -> pl.DataFrame:
    def tags(rules: tuple[Rule, ...]) -> list[str] | None:
        return [rule.id for rule in rules if rule.severity == WARNING] or None

    return rows.select(*names, _named(rows, gated, WARNINGS, WARNING, tags, dtype=pl.List(pl.String)))


def _quarantinable(
    failing: pl.DataFrame, conflicting: pl.DataFrame, gated: _Gated, group: str | None, names: Sequence[str]
) -> pl.DataFrame:
    """The refused rows with their values as they came, as text, and every rule they break."""
    parts = []
    for frame, extra in ((failing, []), (conflicting, [{"rule": "table.conflicting_content", "severity": "ERROR"}])):

        def failures(rules: tuple[Rule, ...], extra: list[dict[str, str]] = extra) -> list[dict[str, str]]:
            return [*({"rule": rule.id, "severity": rule.severity.name} for rule in rules), *extra]

        parts.append(
            frame.select(
                *([group] if group else []),
                *(pl.col(gated.raw[name]).cast(pl.String).alias(name) for name in names if name != group),
                *(name for name in frame.columns if name.startswith("_source_")),
                _named(frame, gated, FAILURES, INFO, failures, dtype=FAILURES_TYPE),
            )
        )
    rows = pl.concat(parts)
    order = [*([group] if group else []), *(c for c in ("_source_file", "_source_row") if c in rows.columns)]
    return rows.sort([*order, *(name for name in names if name != group)]) if rows.height else rows


def _unknown_values(gated: _Gated, rule: Rule, group: str | None, table: Table) -> dict[str, list[str]]:
    index = gated.rules.index(rule)
    bit = [1 << (index % _BITS) if n == index // _BITS else 0 for n in range(len(gated.masks))]
    found = (
        gated.rows.lazy()
        .filter(gated.broken(bit))
        .select(
            (pl.col(group) if group else pl.lit(Whole.KEY)).alias("_partition"),
            pl.col(rule.column or "").alias("_value"),
        )
    )
    lists = found.group_by("_partition").agg(pl.col("_value").unique().sort()).cast({"_partition": pl.String}).collect()
    return {key: list(map(str, values)) for key, values in lists.iter_rows()}


def _judge_table(
    accepted: pl.DataFrame, compiled: CompiledContract, table: Table, keys: Sequence[str]
) -> dict[str, list[Finding]]:
    """The table rules, on what is about to be published."""
    rules = [rule for rule in compiled.table_rules if rule.column is None or rule.column in accepted.columns]
    if not rules:
        return {}
    exprs = [rule.expr.alias(rule.id) for rule in rules if rule.expr is not None]
    empty = accepted.clear().select(exprs).row(0, named=True)
    group = table.partition.column
    if group:
        held = {row.pop(group): row for row in accepted.group_by(group).agg(exprs).iter_rows(named=True)}
    else:
        held = {Whole.KEY: accepted.select(exprs).row(0, named=True)} if accepted.height else {}
    found: dict[str, list[Finding]] = defaultdict(list)
    for key in keys:
        values: dict[str, Any] = held.get(table.partition.value(key), empty)
        for rule in rules:
            if values[rule.id] is not True:
                found[key].append(Finding(rule.id, rule.severity, "table", 0, f"does not hold: {rule.title}"))
    return found


class _Tally:
    """Counts rows by partition and by what they broke, and turns the counts into verdicts."""

    def __init__(self, gated: _Gated, group: str | None, table: Table) -> None:
        self.gated, self.group, self.table = gated, group, table
        self.rows: dict[Any, Counter[tuple[str, ...]]] = defaultdict(Counter)
        self.collapsed: Counter[Any] = Counter()

    def add(self, frame: pl.DataFrame, extra: tuple[str, ...] = ()) -> None:
        """Count rows by the combination of rules that they broke."""
        by = [*([self.group] if self.group else []), *self.gated.masks]
        for row in frame.group_by(by).len().iter_rows():
            part = row[0] if self.group else Whole.KEY
            masks = row[1:-1] if self.group else row[:-1]
            self.rows[part][(*(rule.id for rule in self.gated.names(masks)), *extra)] += row[-1]

    def collapse(self, frame: pl.DataFrame) -> None:
        """Count rows that were dropped as copies."""
        if self.group:
            self.collapsed.update(dict(frame.group_by(self.group).len().iter_rows()))
        elif frame.height:
            self.collapsed[Whole.KEY] = frame.height

    def verdict(self, key: str, compiled: CompiledContract, others: list[Finding]) -> Verdict:
        """The verdict of one partition."""
        part = self.table.partition.value(key)
        combinations = self.rows.get(part, Counter())
        rules = compiled.by_id
        by_rule: Counter[str] = Counter()
        accepted = quarantined = 0
        for names, count in combinations.items():
            for name in names:
                by_rule[name] += count
            if any(rules[name].severity >= ERROR for name in names):
                quarantined += count
            else:
                accepted += count
        collapsed = self.collapsed.get(part, 0)
        if collapsed:
            by_rule["table.duplicate"] = collapsed
        read = accepted + quarantined + collapsed
        findings = [
            Finding(rule, rules[rule].severity, "row", count, rules[rule].title) for rule, count in by_rule.items()
        ]
        findings += others + self._share(quarantined, read, rules)
        reasons = {names: count for names, count in combinations.items() if names}
        return Verdict(self.table.path, key, read, accepted, quarantined, collapsed, worst_first(findings), reasons)

    def _share(self, quarantined: int, read: int, rules: Mapping[str, Rule]) -> list[Finding]:
        if read == 0:
            rule = rules["table.no_rows"]
            return [Finding(rule.id, rule.severity, "table", 0, "the partition has no rows")]
        share = quarantined / read
        if share <= self.table.max_quarantined:
            return []
        rule = rules["table.quarantined_share"]
        message = f"{share:.1%} of the rows are refused, and max_quarantined is {self.table.max_quarantined:.1%}"
        return [Finding(rule.id, rule.severity, "table", 0, message)]
