"""The gate: split rows exactly by a contract, and judge every partition in one pass.

Order of judgement: shape of the columns, coercion, row rules, duplicates of the key; then, on what is about to be
published, the rules that look across rows once more, the table rules and the rules about past and source. Law 1 is
checked in every verdict: read = accepted + quarantined + collapsed.

A gate needs no lake: ``Gate(Contract, key=["id"]).judge(frame)`` works on any frame.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandera.polars as pa
import polars as pl

from medallion.across import settle
from medallion.coerce import coerce, describe_type
from medallion.compiler import CompiledContract, Rule, compile_schema
from medallion.contract import schema_of
from medallion.duplicates import Resolved, resolve_duplicates
from medallion.errors import DeclarationError
from medallion.masks import Gated, Query
from medallion.partitions import Partitioning, TimePartitioning, Whole
from medallion.published import History, judge_published
from medallion.rules import Reconciles
from medallion.severity import CRITICAL, ERROR, INFO, WARNING
from medallion.tally import Tally
from medallion.verdict import Finding, Verdict, worst_first

__all__ = ["FAILURES", "WARNINGS", "Gate", "Split", "schema_of"]

WARNINGS = "_warnings"
"""Column of published rows: ids of the WARNING rules that a row breaks; null if there is none."""

FAILURES = "_failures"
"""Column of quarantined rows: every rule that a row breaks, as a list of structs of ``rule`` and ``severity``."""

FAILURES_TYPE = pl.List(pl.Struct({"rule": pl.String, "severity": pl.String}))

_AT = "_row"


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
    unknown: dict[str, dict[str, list[str]]] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """The verdict, if there is one partition."""
        (verdict,) = self.verdicts.values()
        return verdict


@dataclass(frozen=True, eq=False)
class Gate:
    """A contract, ready to judge frames.

    Attributes:
        contract: a :class:`~medallion.contract.Contract`, any pandera model, or a pandera ``DataFrameSchema``.
        key: columns that identify a row within its partition; without one, duplicates are not looked for and rows
            keep their order.
        partition: how the frame is cut; one partition if not given.
        name: the table, for messages.
        max_quarantined: the share of rows (0 to 1) above which a partition is blocked: one number for all rules
            together, or one by rule id, with ``"*"`` for all together.
        version_column: of several rows with one key, the one with the highest value here wins.

    Raises:
        DeclarationError: when made, for a check that cannot be compiled, with the reason.
    """

    contract: Any
    key: Sequence[str] = ()
    partition: Partitioning = field(default_factory=Whole)
    name: str = "rows"
    max_quarantined: float | Mapping[str, float] = 1.0
    version_column: str | None = None
    _bound: dict[Any, CompiledContract] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        compiled = self.compiled  # refuses, here and now, what could not be evaluated later
        for rule, share in self.limits.items():
            if rule != "*" and rule not in compiled.by_id:
                known = sorted(rule.id for rule in compiled.row_rules)
                raise DeclarationError(f"{self.name}: max_quarantined names {rule!r}, and the row rules are {known}")
            if not 0 <= share <= 1:
                raise DeclarationError(
                    f"{self.name}: max_quarantined={share} is a share of the rows; write 0.05 for 5%"
                )
        for each in compiled.pipeline_rules:
            needs_window = each.pipeline is not None and each.pipeline.needs_window
            if needs_window and not isinstance(self.partition, TimePartitioning):
                raise DeclarationError(f"{self.name}: {each.id} asks when a partition ends; partition it by time")
        self._check_key(compiled)

    def _check_key(self, compiled: CompiledContract) -> None:
        required = [column.name for column in compiled.columns if column.required]
        own = self.partition.column
        for name in self.key:
            if name not in required and name != own:
                raise DeclarationError(f"{self.name}: key {name!r} is none of the required columns {required}")
        version = self.version_column
        if version is not None and (version not in required or version in self.key or not self.key):
            choice = [name for name in required if name not in self.key]
            raise DeclarationError(
                f"{self.name}: version_column={version!r} needs a key, and is a required column beside it: {choice}"
            )

    @property
    def limits(self) -> Mapping[str, float]:
        """The allowed shares by rule id; ``"*"`` is all rules together."""
        given = self.max_quarantined
        return given if isinstance(given, Mapping) else {"*": given}

    @cached_property
    def schema(self) -> pa.DataFrameSchema:
        """The contract's pandera schema."""
        return schema_of(self.contract, self.name)

    @cached_property
    def compiled(self) -> CompiledContract:
        """The contract, compiled as it was declared."""
        return compile_schema(self.schema, where=self.name, key=self.key, partition=self._partition)

    @cached_property
    def reconciled(self) -> frozenset[str]:
        """The inputs with which a rule reconciles; the others need not be given."""
        rules = [rule.pipeline for rule in self.compiled.pipeline_rules]
        return frozenset(rule.input for rule in rules if isinstance(rule, Reconciles))

    def compiled_for(self, given: Mapping[str, pl.DataType]) -> CompiledContract:
        """The contract, compiled for a frame with these columns; each set of columns once."""
        columns = tuple(given.items())
        if columns not in self._bound:
            self._bound[columns] = compile_schema(
                self.schema, where=self.name, key=self.key, partition=self._partition, frame=dict(given)
            )
        return self._bound[columns]

    @property
    def digest(self) -> str:
        """Names everything that a verdict depends on besides the rows."""
        return self.compiled.digest

    @property
    def _partition(self) -> tuple[str, type[pl.DataType]] | None:
        return None if isinstance(self.partition, Whole) else (self.partition.column, self.partition.dtype)

    def judge(
        self,
        rows: pl.LazyFrame | pl.DataFrame,
        keys: Sequence[str] = (Whole.KEY,),
        *,
        references: Mapping[str, pl.Series] | None = None,
        inputs: Mapping[str, pl.LazyFrame] | None = None,
        history: History | None = None,
    ) -> Split:
        """Judge the rows of some partitions.

        Args:
            rows: partition column, contract columns, and the source columns if there are any.
            keys: the partitions, those without rows included.
            references: by contract column, the values that ``known_in`` allows.
            inputs: what the rows were made of, for ``reconciles``.
            history: the committed past, for the rules that look back.

        Returns:
            the accepted and the quarantined rows and a verdict for each of ``keys``. If the columns do not fit,
            nothing is accepted or quarantined, and every verdict is blocked.
        """
        frame = rows.lazy()
        given = frame.collect_schema()
        compiled = self.compiled_for(given)
        shape = self._judge_shape(compiled, given)
        if any(finding.blocks for finding in shape):
            return self._all_blocked(frame, keys, shape)
        keep = [name for name in given if name.startswith("_source_")]
        query = Query(compiled, given, self.partition.column or None, references or {}, keep)
        gated = query.run(frame)
        return self._split(gated, query, keys, shape=shape, inputs=inputs or {}, history=history or History())

    def _judge_shape(self, compiled: CompiledContract, given: pl.Schema) -> list[Finding]:
        findings: list[Finding] = []
        for column in compiled.columns:
            if column.name not in given:
                if column.required and column.name != self.partition.column and not self._is_added(compiled, column):
                    rule = compiled.by_id[f"{column.name}.present"]
                    had = ", ".join(name for name in given if not name.startswith("_"))
                    message = f"column {column.name!r} is missing; there are {had}"
                    findings.append(Finding(rule.id, rule.severity, "shape", 0, message))
                continue
            dtype = given[column.name]
            readable = column.dtype is not None and column.coerce and coerce(pl.lit(0), dtype, column.dtype) is not None
            if not column.accepts(dtype) and not readable:
                rule = compiled.by_id[f"{column.name}.type"]
                wanted = describe_type(column.dtype) if column.dtype is not None else "another type"
                message = f"column {column.name!r} is {describe_type(dtype)}, and the contract says {wanted}"
                findings.append(Finding(rule.id, max(rule.severity, ERROR), "shape", 0, message))
        return findings + self._judge_order(compiled, given)

    def _is_added(self, compiled: CompiledContract, column: Any) -> bool:
        return compiled.adds_missing and not column.unmatched and (column.nullable or column.default is not None)

    def _judge_order(self, compiled: CompiledContract, given: pl.Schema) -> list[Finding]:
        findings: list[Finding] = []
        known = [column.name for column in compiled.columns]
        allowed = {*known, self.partition.column}
        extra = [name for name in given if name not in allowed and not name.startswith("_")]
        if extra and compiled.strict != "filter":
            rule = compiled.by_id["table.extra_column"]
            message = (
                f"columns that the contract does not know: {', '.join(extra)}; dropped here, kept in the layer below"
            )
            severity = max(ERROR, rule.severity) if compiled.strict is True else rule.severity
            findings.append(Finding(rule.id, severity, "shape", 0, message))
        present = [name for name in given if name in known]
        if compiled.ordered and present != [name for name in known if name in given]:
            rule = compiled.by_id["table.column_order"]
            message = f"the columns come as {', '.join(present)}"
            findings.append(Finding(rule.id, rule.severity, "shape", 0, message))
        return findings

    def _all_blocked(self, rows: pl.LazyFrame, keys: Sequence[str], shape: list[Finding]) -> Split:
        group = self.partition.column
        if group:
            counts = dict(rows.group_by(group).len().collect().iter_rows())
        else:
            counts = {None: rows.select(pl.len()).collect().item()}
        verdicts = {}
        for key in keys:
            read = counts.get(self.partition.value(key) if group else None, 0)
            # Held back whole: the rows are still in the layer below, none is lost.
            reasons = {tuple(f.rule for f in shape if f.blocks): read} if read else {}
            verdicts[key] = Verdict(
                self.name, key, read, 0, quarantined=read, findings=worst_first(shape), reasons=reasons
            )
        return Split(pl.DataFrame(), pl.DataFrame(), verdicts)

    def _split(
        self,
        gated: Gated,
        query: Query,
        keys: Sequence[str],
        *,
        shape: list[Finding],
        inputs: Mapping[str, pl.LazyFrame],
        history: History,
    ) -> Split:
        group = self.partition.column or None
        by = list(dict.fromkeys([*([group] if group else []), *self.key]))
        resolved = self._resolve(gated, by)
        dropped = resolved.collapsed.get_column(_AT)
        gated, before = settle(gated, query, dropped), gated
        published = resolved.accepted
        refused = gated.broken(gated.at_least(ERROR))
        if gated.rows is not before.rows:
            bits = gated.rows[published.get_column(_AT)].select(gated.masks)
            published = published.with_columns(bits).filter(~refused)
            gone = pl.concat([dropped, resolved.conflicting.get_column(_AT)])
            refused = refused & ~pl.int_range(pl.len(), dtype=pl.UInt32).is_in(gone.implode())
        conflicting = gated.rows[resolved.conflicting.get_column(_AT)]
        failing = gated.rows.filter(refused)
        tally = Tally(gated, self.partition, self.name, self.limits)
        tally.add(published)
        tally.add(failing)
        tally.add(conflicting, extra=("table.conflicting_content",))
        tally.collapse(resolved.collapsed)
        accepted = self._publishable(published, gated)
        others, measures = judge_published(
            accepted.drop(WARNINGS),
            query.compiled,
            self.partition,
            keys,
            inputs=inputs,
            history=history,
            tally=tally,
            raised=gated.raised,
        )
        verdicts = {}
        for key in keys:
            findings = [*shape, *gated.raised, *others.get(key, [])]
            verdicts[key] = tally.verdict(key, query.compiled, findings, measures.get(key, {}))
        conflict = query.compiled.by_id["table.conflicting_content"]
        quarantined = self._quarantinable(failing, conflicting, gated, conflict)
        return Split(accepted, quarantined, verdicts, self._unknown_values(gated))

    def _resolve(self, gated: Gated, by: Sequence[str]) -> Resolved:
        refused = gated.broken(gated.at_least(ERROR))
        # Raw values and source columns stay behind: most rows pass, and only those that do not need them.
        passing = gated.rows.lazy().with_row_index(_AT).filter(~refused).select(*gated.names, *gated.masks, _AT)
        failing = gated.rows.lazy().filter(refused).select(*gated.names).collect() if self.key else pl.DataFrame()
        ordered = (passing.sort(by) if by else passing).collect()
        return resolve_duplicates(
            ordered,
            failing,
            by=by if self.key else (),
            content=gated.names,
            version_column=self.version_column,
        )

    def _publishable(self, rows: pl.DataFrame, gated: Gated) -> pl.DataFrame:
        def tags(rules: tuple[Any, ...]) -> list[str] | None:
            return [rule.id for rule in rules if rule.severity == WARNING] or None

        tagged = gated.describe(rows, WARNINGS, gated.at_least(WARNING), tags, pl.List(pl.String))
        return rows.select(*gated.names, tagged)

    def _quarantinable(
        self, failing: pl.DataFrame, conflicting: pl.DataFrame, gated: Gated, conflict: Rule
    ) -> pl.DataFrame:
        """The refused rows with their values as they came, as text, and every rule they break."""
        parts = []
        group = self.partition.column
        names = [name for name in gated.names if name != group]
        for frame, extra in (
            (failing, []),
            (conflicting, [{"rule": conflict.id, "severity": conflict.severity.name}]),
        ):

            def failures(rules: tuple[Any, ...], extra: list[dict[str, str]] = extra) -> list[dict[str, str]]:
                return [*({"rule": rule.id, "severity": rule.severity.name} for rule in rules), *extra]

            parts.append(
                frame.select(
                    *([group] if group else []),
                    *(_as_text(gated.raw[name], frame.schema).alias(name) for name in names),
                    *(name for name in frame.columns if name.startswith("_source_")),
                    gated.describe(frame, FAILURES, gated.at_least(INFO), failures, FAILURES_TYPE),
                )
            )
        rows = pl.concat(parts)
        order = [group] if group else []
        order += [name for name in ("_source_file", "_source_row") if name in rows.columns]
        return rows.sort(order, maintain_order=True) if rows.height and order else rows

    def _unknown_values(self, gated: Gated) -> dict[str, dict[str, list[str]]]:
        group = self.partition.column
        found: dict[str, dict[str, list[str]]] = {}
        for rule in gated.rules:
            if rule.reference is None or rule.column is None:
                continue
            lists = (
                gated.rows.lazy()
                .filter(gated.broken(gated.bits(rule.__eq__)))
                .select((pl.col(group) if group else pl.lit(Whole.KEY)).alias("_partition"), pl.col(rule.column))
                .group_by("_partition")
                .agg(pl.col(rule.column).unique().sort())
                .cast({"_partition": pl.String})
                .collect()
            )
            found[rule.column] = {key: list(map(str, values)) for key, values in lists.iter_rows()}
        return found

    def nothing(self) -> Split:
        """The split of partitions that have nothing to judge."""
        group: dict[str, Any] = {self.partition.column: self.partition.dtype} if self.partition.column else {}
        columns = {**group, **{c.name: c.dtype for c in self.compiled.columns if c.dtype is not None}}
        accepted = pl.DataFrame(schema={**columns, WARNINGS: pl.List(pl.String)})
        text: dict[str, Any] = {name: pl.String for name in columns if name != self.partition.column}
        return Split(accepted, pl.DataFrame(schema={**group, **text, FAILURES: FAILURES_TYPE}), {})

    def missing_column(self, key: str, column: str, had: Iterable[str]) -> Verdict:
        """The verdict of a partition whose transform asks for a column that the input does not have."""
        names = ", ".join(name for name in had if not name.startswith("_"))
        message = f"column {column!r} is missing; the input has {names}"
        return Verdict(self.name, key, 0, 0, findings=(Finding(f"{column}.present", CRITICAL, "shape", 0, message),))


def _as_text(name: str, schema: Mapping[str, pl.DataType]) -> pl.Expr:
    dtype = schema[name]
    if dtype.is_nested() or dtype == pl.Object:
        return pl.col(name).map_elements(lambda value: repr(_plain(value)), return_dtype=pl.String)
    if dtype == pl.Binary:
        return pl.col(name).bin.encode("hex")
    if dtype == pl.Duration:
        return pl.col(name).dt.to_string("iso")
    return pl.col(name).cast(pl.String)


def _plain(value: Any) -> Any:
    return value.to_list() if isinstance(value, pl.Series) else value
