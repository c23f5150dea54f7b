"""A pandera schema, compiled: its columns, its rules with ids and severities, each check as one polars expression.

A schema is compiled twice: when a feed is imported, so that everything that could not be evaluated is refused there
with the reason, and for the columns that a frame really has, since patterns and optional columns depend on them.
Nothing is ever skipped.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandera.polars as pa
import polars as pl

from medallion.columns import Column, check_names, columns_of
from medallion.contract import CRITICAL, ERROR, INFO, METADATA_KEY, WARNING, FrameRule, Reference, Severity
from medallion.digests import digest
from medallion.errors import DeclarationError
from medallion.expressions import Captured, Scope, capture, describe_check, short_name, title_of
from medallion.pipeline_rule import PipelineRule
from medallion.rules import Reconciles

__all__ = ["CompiledContract", "Rule", "compile_schema"]

_STANDARD = {
    "present": "the column is there",
    "type": "the value can be read as the declared type",
    "not_null": "the value is there",
    "unique": "the value occurs once in the partition",
}


_EVERY_TABLE = (
    ("extra_column", WARNING, "shape", "there is no column that the contract does not know"),
    ("column_order", ERROR, "shape", "the columns come in the contract's order"),
    ("no_rows", WARNING, "table", "the partition has rows"),
    ("duplicate", INFO, "row", "a row is delivered once; identical copies collapse into one"),
    ("conflicting_content", ERROR, "row", "rows with one key have one content"),
    ("quarantined_share", CRITICAL, "table", "the share of quarantined rows is within max_quarantined"),
)
"""The rules that every table has, with the severities that they have unless the schema's metadata says otherwise."""


@dataclass(frozen=True)
class Rule:
    """One rule of a contract.

    Attributes:
        id: ``column.rule`` or ``table.rule``; the same everywhere.
        severity: of breaking it.
        scope: ``row`` (judges each row), ``table`` (judges what is about to be published), ``shape`` (judges the
            columns).
        title: for people, one line.
        check: what a pandera check evaluates; None where the gate itself evaluates the rule.
        ignore_null: a null verdict counts as held.
        reference: for ``known_in``.
        pipeline: for a rule about more than the partition's own rows.
        column: the column that the rule is about, or None.
        description: for people, as much as the contract says: of the check, or of its column.
    """

    id: str
    severity: Severity
    scope: str
    title: str
    check: Captured | None = None
    ignore_null: bool = True
    reference: Reference | None = None
    pipeline: PipelineRule | None = None
    column: str | None = None
    description: str = ""

    @property
    def is_evaluated_by_row(self) -> bool:
        """Whether the rule has a bit in the gate's query."""
        return self.scope == "row" and (self.check is not None or self.reference is not None)


@dataclass(frozen=True)
class CompiledContract:
    """A contract as the gate uses it."""

    columns: tuple[Column, ...]
    rules: tuple[Rule, ...]
    digest: str
    strict: bool | str = False
    ordered: bool = False
    adds_missing: bool = False

    @property
    def by_id(self) -> Mapping[str, Rule]:
        """The rules by their ids."""
        return {rule.id: rule for rule in self.rules}

    @property
    def row_rules(self) -> tuple[Rule, ...]:
        """The rules that have a bit, in its order."""
        return tuple(rule for rule in self.rules if rule.is_evaluated_by_row)

    @property
    def table_rules(self) -> tuple[Rule, ...]:
        """The pandera checks that judge a whole partition."""
        return tuple(rule for rule in self.rules if rule.scope == "table" and rule.check is not None)

    @property
    def pipeline_rules(self) -> tuple[Rule, ...]:
        """The rules about more than the partition's own rows."""
        return tuple(rule for rule in self.rules if rule.pipeline is not None and not rule.is_evaluated_by_row)


class _Compiler:
    """Compiles one schema; holds what every step needs."""

    def __init__(
        self,
        schema: pa.DataFrameSchema,
        where: str,
        key: Iterable[str],
        types: Mapping[str, pl.DataType],
        given: Mapping[str, pl.DataType] | None,
    ) -> None:
        self.schema, self.where, self.key, self.types, self.given = schema, where, set(key), types, given
        self.frame = (schema.metadata or {}).get(METADATA_KEY, {})
        self.ids: set[str] = set()
        self.columns: tuple[Column, ...] = ()

    def run(self, columns: list[tuple[Column, pa.Column]]) -> CompiledContract:
        self.columns = tuple(column for column, _ in columns)
        rules = [rule for column, declared in columns for rule in self._column_rules(column, declared)]
        rules += self._frame_rules()
        rules += self._pipeline_rules()
        rules += self._standard_rules()
        self._check_named(self.frame.get("severity"), "*", [rule for rule in rules if rule.column is None])
        ids = [rule.id for rule in rules]
        for each in ids:
            if ids.count(each) > 1:
                raise DeclarationError(f"{self.where}: two rules have the id {each}; give one of them another name")
        described = [
            [
                [c.name, str(c.dtype), c.required, c.nullable, c.coerce, repr(c.default), c.pattern]
                for c in self.columns
            ],
            [_describe(rule) for rule in rules],
            [self.schema.strict, self.schema.ordered, self.schema.add_missing_columns, sorted(self.key)],
        ]
        return CompiledContract(
            self.columns,
            tuple(rules),
            digest(described),
            self.schema.strict,
            bool(self.schema.ordered),
            bool(self.schema.add_missing_columns),
        )

    def _is_there(self, column: Column) -> bool:
        """Whether rules about a column can be evaluated: whether the frame has it, or is given it."""
        if self.given is None or column.name in self.given:
            return True
        return bool(self.schema.add_missing_columns) and not column.unmatched

    def _column_rules(self, column: Column, declared: pa.Column) -> Iterator[Rule]:
        name, own = column.name, (declared.metadata or {}).get(METADATA_KEY, {})
        about = declared.description or declared.title or ""
        severity = self._severities(own.get("severity", ERROR), name)

        def rule(kind: str, captured: Captured) -> Rule:
            title = _STANDARD[kind]
            return Rule(f"{name}.{kind}", severity(kind), "row", title, captured, column=name, description=about)

        rules: list[Rule] = []
        if column.required:
            chosen = severity("present") if _is_named(own, "present") else CRITICAL
            present = Rule(f"{name}.present", chosen, "shape", _STANDARD["present"], column=name, description=about)
            rules.append(present)
        if not self._is_there(column):
            yield from rules
            return
        rules.append(rule("type", Captured(pl.lit(value=True), aggregate=False, code="type")))
        if not column.nullable or name in self.key:
            rules.append(rule("not_null", _is_there(name, self.types.get(name))))
        if declared.unique:
            once = Captured(~pl.col(name).is_duplicated(), aggregate=False, across=True, code="unique")
            rules.append(rule("unique", once))
        self.ids.update(each.id for each in rules)
        rules += [self._check_rule(check, name, severity, about) for check in declared.checks]
        if "known_in" in own:
            reference: Reference = own["known_in"]
            title = f"the value is a {reference.column} of {reference.table.path}"
            chosen = severity("known_in")
            known = Rule(f"{name}.known_in", chosen, "row", title, reference=reference, column=name, description=about)
            rules.append(known)
        self._check_named(own.get("severity"), name, rules)
        yield from rules

    def _check_named(self, given: Any, name: str, rules: Iterable[Rule]) -> None:
        known = {rule.id.rpartition(".")[2] for rule in rules}
        for each in given if isinstance(given, Mapping) else ():
            if each not in known:
                owner = "the schema" if name == "*" else f"column {name!r}"
                raise DeclarationError(
                    f"{self.where}: {owner} gives a severity for {each!r}, and its rules are {sorted(known)}"
                )

    def _severities(self, given: Any, name: str) -> Callable[[str], Severity]:
        if isinstance(given, Mapping):
            return lambda rule: Severity(given.get(rule, ERROR))
        if isinstance(given, Severity):
            return lambda rule: given
        raise DeclarationError(f"{self.where}: {name!r} has severity={given!r}; give a Severity, or one for each rule")

    def _check_rule(self, check: pa.Check, key: str, severity: Callable[[str], Severity], about: str = "") -> Rule:
        short = short_name(check)
        rule_id = self._new_id("table" if key == "*" else key, short)
        captured = self._capture(check, key, f"{self.where}, rule {rule_id}")
        chosen = min(severity(short), WARNING) if check.raise_warning else severity(short)
        scope = "table" if captured.aggregate else "row"
        return Rule(
            rule_id,
            chosen,
            scope,
            title_of(check, short),
            captured,
            ignore_null=bool(check.ignore_na),
            column=None if key == "*" else key,
            description=inspect.cleandoc(check.description) if check.description else about,
        )

    def _new_id(self, owner: str, short: str) -> str:
        rule_id, n = f"{owner}.{short}", 2
        while rule_id in self.ids:
            rule_id, n = f"{owner}.{short}_{n}", n + 1
        self.ids.add(rule_id)
        return rule_id

    def _capture(self, check: pa.Check, key: str, where: str) -> Captured:
        there = tuple(column.name for column in self.columns if self._is_there(column))
        try:
            return capture(check, key, Scope(where, self.types, there))
        except DeclarationError as error:
            if self.given is None and not self._is_open(key, error):
                raise
            # Once the frame is there, it is no longer the declaration that is wrong: the rule blocks.
            return Captured(None, aggregate=True, code=describe_check(check), refused=str(error))

    def _frame_rules(self) -> list[Rule]:
        declared: Mapping[str, FrameRule] = self.frame.get("rules", {})
        severities = self._severities(self.frame.get("severity", ERROR), "the frame")
        rules: list[Rule] = []
        for check in self.schema.checks:
            own = declared.get(short_name(check))
            severity = severities if own is None else self._severities(own.severity, short_name(check))
            rule = self._check_rule(check, "*", severity)
            refused = rule.check is not None and rule.check.refused
            if own is not None and not refused and own.table != (rule.scope == "table"):
                says, gives = ("one value", "one a row") if own.table else ("one value a row", "one in all")
                raise DeclarationError(
                    f"{self.where}, rule {rule.id}: is to give {says}, and gives {gives}; set table="
                )
            rules.append(rule)
        for names in _unique_groups(self.schema):
            present = [column.name for column in self.columns if column.name in names and self._is_there(column)]
            if not present and self.given is not None:
                continue
            if self.given is None and not any(c.regex for c in self.schema.columns.values()):
                self._check_group(names)
            once = Captured(~pl.struct(present).is_duplicated(), aggregate=False, across=True, code=f"unique {present}")
            rule_id = self._new_id("table", "unique")
            rules.append(Rule(rule_id, severities("unique"), "row", f"no two rows agree in {', '.join(names)}", once))
        return rules

    def _checked(self, rule: PipelineRule, name: str) -> pl.Expr | None:
        """The rule's row expression, once all that the rule evaluates has been seen to give what it should."""
        used = {self.types.get(column) for column in rule.columns}
        if self.given is None and pl.Null() in used:
            return rule.row_expression(self.types)
        where = f"{self.where}, rule table.{name}"
        frame = pl.LazyFrame({each: pl.Series(each, [None] * 3, dtype=dtype) for each, dtype in self.types.items()})
        try:
            expr = rule.row_expression(self.types)
            rows = 3 if expr is None else frame.select(expr).collect().height
            figures = [*rule.measures().values(), *(rule.own_totals().values() if isinstance(rule, Reconciles) else ())]
            single = all(frame.select(each).collect().height == 1 for each in figures)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, AttributeError) as error:
            raise DeclarationError(f"{where}: {type(error).__name__}: {str(error).partition(chr(10))[0]}") from error
        if rows != 3 or not single:
            raise DeclarationError(f"{where}: gives one value a row where one in all is needed, or the other way round")
        return expr

    def _is_open(self, key: str, error: DeclarationError) -> bool:
        """Whether only a frame can tell if a check fits: its columns have no declared type, or a pattern for a name."""
        patterns = any(column.regex for column in self.schema.columns.values())
        if patterns and isinstance(error.__cause__, pl.exceptions.ColumnNotFoundError):
            return True
        return any(column.dtype is None for column in self.columns if key in {"*", column.name})

    def _standard_rules(self) -> Iterator[Rule]:
        """The rules that every table has; the gate evaluates them itself."""
        given = self.frame.get("severity", ERROR)
        for name, severity, scope, title in _EVERY_TABLE:
            chosen = Severity(given.get(name, severity)) if isinstance(given, Mapping) else severity
            if name == "conflicting_content" and chosen < ERROR:
                raise DeclarationError(f"{self.where}: {name} is at least ERROR; a key has one row, or it is none")
            yield Rule(f"table.{name}", chosen, scope, title)

    def _check_group(self, names: list[str]) -> None:
        unknown = [name for name in names if name not in self.types]
        if unknown:
            raise DeclarationError(f"{self.where}: unique names {unknown}, and the columns are {list(self.types)}")

    def _pipeline_rules(self) -> list[Rule]:
        declared: Mapping[str, PipelineRule] = self.frame.get("pipeline", {})
        rules = []
        for name, rule in declared.items():
            rule.check_columns(self.types, f"{self.where}, rule table.{name}")
            expr = self._checked(rule, name)
            captured = None if expr is None else Captured(expr, aggregate=False, code=repr(rule))
            scope = "table" if expr is None else "row"
            rules.append(Rule(f"table.{name}", rule.severity, scope, rule.title, captured, pipeline=rule))
        return rules


def compile_schema(
    schema: pa.DataFrameSchema,
    *,
    where: str,
    key: Iterable[str] = (),
    partition: tuple[str, type[pl.DataType]] | None = None,
    frame: Mapping[str, pl.DataType] | None = None,
) -> CompiledContract:
    """Compile a pandera schema.

    Args:
        schema: the schema; severities are read from its metadata and from that of its columns.
        where: the table, for messages.
        key: columns of the key; they are never null.
        partition: name and type of the partition column, which rules may use.
        frame: columns and types of the frame that is to be judged; without it, patterns stand for one column.

    Raises:
        DeclarationError: for a check that cannot be compiled, with the reason; for a rule that is named and not there.
    """
    if getattr(schema, "parsers", None) or any(getattr(c, "parsers", None) for c in schema.columns.values()):
        raise DeclarationError(f"{where}: pandera's polars backend does not run parsers; write them into the transform")
    check_names(schema, where, partition)
    columns = list(columns_of(schema, where, frame, partition[0] if partition else ""))
    types = {column.name: column.dtype or pl.Null() for column, _ in columns}
    for column, _ in columns:
        given = (frame or {}).get(column.name)
        if given is not None and (column.dtype is None or (not column.coerce and column.accepts(given))):
            types[column.name] = given
    if partition is not None:
        types.setdefault(partition[0], partition[1]())
    if frame is not None:
        columns = [(c, d) for c, d in columns if c.required or c.name in frame]
    return _Compiler(schema, where, key, types, frame).run(columns)


def _describe(rule: Rule) -> list[Any]:
    reference = [rule.reference.table.path, rule.reference.column] if rule.reference else None
    code = rule.check.code if rule.check else repr(rule.pipeline)
    return [rule.id, int(rule.severity), rule.scope, code, rule.ignore_null, reference]


def _is_named(own: Mapping[str, Any], rule: str) -> bool:
    return isinstance(own.get("severity"), Mapping) and rule in own["severity"]


def _is_there(name: str, dtype: pl.DataType | None) -> Captured:
    there = pl.col(name).is_not_null()
    if dtype is not None and dtype.is_float():
        there = there & pl.col(name).is_not_nan()
    return Captured(there, aggregate=False, code="not_null")


def _unique_groups(schema: pa.DataFrameSchema) -> list[list[str]]:
    given = schema.unique
    if not given:
        return []
    return [list(given)] if all(isinstance(each, str) for each in given) else [list(each) for each in given]
