"""A pandera schema, compiled: its columns, its rules with ids and severities, each check as one polars expression.

A schema is compiled twice: when a feed is imported, so that everything that could not be evaluated is refused there
with the reason, and for the columns that a frame really has, since patterns and optional columns depend on them.
Nothing is ever skipped.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandera.polars as pa
import polars as pl

from medallion.contract import CRITICAL, ERROR, INFO, METADATA_KEY, WARNING, FrameRule, Reference, Severity
from medallion.digests import digest
from medallion.errors import DeclarationError
from medallion.expressions import Captured, capture
from medallion.rules import PipelineRule

__all__ = ["Column", "CompiledContract", "Rule", "compile_schema"]

_SHORT = {
    "equal_to": "eq",
    "not_equal_to": "ne",
    "greater_than": "gt",
    "greater_than_or_equal_to": "ge",
    "less_than": "lt",
    "less_than_or_equal_to": "le",
}
"""pandera's names of built-in checks and the short ones that ``field`` takes; rule ids use the short ones."""

_STANDARD = {
    "present": "the column is there",
    "type": "the value can be read as the declared type",
    "not_null": "the value is there",
    "unique": "the value occurs once in the partition",
}


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
    """

    id: str
    severity: Severity
    scope: str
    title: str
    check: Captured | None = None
    ignore_null: bool = True
    reference: Reference | None = None
    pipeline: PipelineRule | None = None

    @property
    def column(self) -> str | None:
        """The column that the rule is about, or None."""
        head = self.id.rpartition(".")[0]
        return None if head == "table" else head

    @property
    def is_evaluated_by_row(self) -> bool:
        """Whether the rule has a bit in the gate's query."""
        return self.scope == "row" and (self.check is not None or self.reference is not None)


@dataclass(frozen=True)
class Column:
    """One column of a contract: its type, and how a raw value becomes one.

    Attributes:
        dtype: None if the contract leaves it open.
        coerce: whether a value of another type is read as the declared one.
        default: takes the place of null.
        pattern: how text is parsed into a date or time; None is ISO 8601.
        accepts: whether pandera takes a polars type for the declared one.
    """

    name: str
    dtype: pl.DataType | None
    required: bool
    nullable: bool
    coerce: bool
    default: Any = None
    pattern: str | None = None
    accepts: Callable[[pl.DataType], bool] = field(default=lambda dtype: True, compare=False, repr=False)


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

    def __init__(self, schema: pa.DataFrameSchema, where: str, key: Iterable[str], types: dict[str, pl.DataType]) -> None:
        self.schema, self.where, self.key, self.types = schema, where, set(key), types
        self.frame = (schema.metadata or {}).get(METADATA_KEY, {})

    def run(self, columns: list[tuple[Column, pa.Column]]) -> CompiledContract:
        rules = [rule for column, declared in columns for rule in self._column_rules(column, declared)]
        rules += self._frame_rules()
        rules += self._pipeline_rules()
        rules += _standard_rules()
        ids = [rule.id for rule in rules]
        for each in ids:
            if ids.count(each) > 1:
                raise DeclarationError(f"{self.where}: two rules have the id {each}; give one of them another name")
        described = [
            [[c.name, str(c.dtype), c.required, c.nullable, c.coerce, repr(c.default), c.pattern] for c, _ in columns],
            [_describe(rule) for rule in rules],
            [self.schema.strict, self.schema.ordered, self.schema.add_missing_columns, sorted(self.key)],
        ]
        return CompiledContract(
            tuple(column for column, _ in columns),
            tuple(rules),
            digest(described),
            self.schema.strict,
            bool(self.schema.ordered),
            bool(self.schema.add_missing_columns),
        )

    def _column_rules(self, column: Column, declared: pa.Column) -> Iterator[Rule]:
        name, own = column.name, (declared.metadata or {}).get(METADATA_KEY, {})
        severity = self._severities(own.get("severity", ERROR), name)
        rules: list[Rule] = []
        if column.required:
            chosen = severity("present") if _is_named(own, "present") else CRITICAL
            rules.append(Rule(f"{name}.present", chosen, "shape", _STANDARD["present"]))
        always = Captured(pl.lit(value=True), aggregate=False, code="type")
        rules.append(Rule(f"{name}.type", severity("type"), "row", _STANDARD["type"], always))
        if not column.nullable or name in self.key:
            there = _is_there(name, self.types.get(name))
            rules.append(Rule(f"{name}.not_null", severity("not_null"), "row", _STANDARD["not_null"], there))
        if declared.unique:
            once = Captured(~pl.col(name).is_duplicated(), aggregate=False, across=True, code="unique")
            rules.append(Rule(f"{name}.unique", severity("unique"), "row", _STANDARD["unique"], once))
        for check in declared.checks:
            rules.append(self._check_rule(check, column.name, severity, {rule.id for rule in rules}))
        if "known_in" in own:
            reference: Reference = own["known_in"]
            title = f"the value is a {reference.column} of {reference.table.path}"
            rules.append(Rule(f"{name}.known_in", severity("known_in"), "row", title, reference=reference))
        self._check_named(own.get("severity"), name, rules)
        yield from rules

    def _check_named(self, given: Any, name: str, rules: Iterable[Rule]) -> None:
        known = {rule.id.rpartition(".")[2] for rule in rules}
        for each in given if isinstance(given, Mapping) else ():
            if each not in known:
                raise DeclarationError(
                    f"{self.where}: column {name!r} gives a severity for {each!r}, and its rules are {sorted(known)}"
                )

    def _severities(self, given: Any, name: str) -> Callable[[str], Severity]:
        if isinstance(given, Mapping):
            return lambda rule: Severity(given.get(rule, ERROR))
        if isinstance(given, Severity):
            return lambda rule: given
        raise DeclarationError(f"{self.where}: {name!r} has severity={given!r}; give a Severity, or one for each rule")

    def _check_rule(
        self, check: pa.Check, key: str, severity: Callable[[str], Severity], taken: Iterable[str]
    ) -> Rule:
        short = _short_name(check)
        owner = "table" if key == "*" else key
        rule_id, n = f"{owner}.{short}", 2
        while rule_id in taken:
            rule_id, n = f"{owner}.{short}_{n}", n + 1
        captured = capture(check, key, f"{self.where}, rule {rule_id}", self.types)
        chosen = min(severity(short), WARNING) if check.raise_warning else severity(short)
        scope = "table" if captured.aggregate else "row"
        return Rule(rule_id, chosen, scope, _title(check, short), captured, ignore_null=bool(check.ignore_na))

    def _frame_rules(self) -> list[Rule]:
        declared: Mapping[str, FrameRule] = self.frame.get("rules", {})
        severities = self._severities(self.frame.get("severity", ERROR), "the frame")
        rules: list[Rule] = []
        for check in self.schema.checks:
            own = declared.get(_short_name(check))
            severity = severities if own is None else self._severities(own.severity, _short_name(check))
            rule = self._check_rule(check, "*", severity, {rule.id for rule in rules})
            if own is not None and own.table != (rule.scope == "table"):
                says, gives = ("one value", "one a row") if own.table else ("one value a row", "one in all")
                raise DeclarationError(f"{self.where}, rule {rule.id}: is to give {says}, and gives {gives}; set table=")
            rules.append(rule)
        for n, names in enumerate(_unique_groups(self.schema)):
            present = [name for name in names if name in self.types]
            once = Captured(~pl.struct(present).is_duplicated(), aggregate=False, across=True, code=f"unique {present}")
            rule_id = "table.unique" if n == 0 else f"table.unique_{n + 1}"
            rules.append(Rule(rule_id, severities("unique"), "row", f"no two rows agree in {', '.join(names)}", once))
        return rules

    def _pipeline_rules(self) -> list[Rule]:
        declared: Mapping[str, PipelineRule] = self.frame.get("pipeline", {})
        rules = []
        for name, rule in declared.items():
            rule.check_columns(self.types, f"{self.where}, rule table.{name}")
            expr = rule.row_expression(self.types)
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
    if getattr(schema, "parsers", None):
        raise DeclarationError(f"{where}: pandera's polars backend does not run parsers; write them into the transform")
    columns = list(_columns(schema, where, frame))
    types = {column.name: column.dtype for column, _ in columns if column.dtype is not None}
    for column, _ in columns:
        given = (frame or {}).get(column.name)
        if given is not None and (column.dtype is None or (not column.coerce and column.accepts(given))):
            types[column.name] = given
    if partition is not None:
        types.setdefault(partition[0], partition[1]())
    if frame is not None:
        absent = {c.name for c, _ in columns if c.name not in frame and not schema.add_missing_columns}
        for name, dtype in frame.items():
            types.setdefault(name, dtype)
        columns = [(c, d) for c, d in columns if c.name not in absent or c.required]
    return _Compiler(schema, where, key, types).run(columns)


def _columns(
    schema: pa.DataFrameSchema, where: str, frame: Mapping[str, pl.DataType] | None
) -> Iterator[tuple[Column, pa.Column]]:
    explicit = {name for name, column in schema.columns.items() if not column.regex}
    for name, column in schema.columns.items():
        if not column.regex:
            yield _column(name, column, schema, where), column
        elif frame is None:
            yield _column(_stand_in(name), column, schema, where), column
        else:
            pattern = re.compile(str(column.selector))
            matched = [each for each in frame if each not in explicit and pattern.search(each)]
            for each in matched:
                yield _column(each, column, schema, where), column
            if not matched and column.required:
                yield _column(name, column, schema, where), column


def _stand_in(pattern: str) -> str:
    return "matching_" + re.sub(r"\W+", "_", pattern).strip("_")


def _column(name: str, column: pa.Column, schema: pa.DataFrameSchema, where: str) -> Column:
    declared = schema.dtype if schema.dtype is not None else column.dtype
    dtype: Any = None if declared is None else declared.type
    if declared is not None and type(declared).__name__ in {"PanderaSchema", "PydanticModel"}:
        raise DeclarationError(
            f"{where}: column {name!r} nests another schema, whose rows cannot be told apart in one query; declare it as "
            "pl.Struct and write rules on its fields, as pl.col('x').struct.field('y')"
        )
    if dtype is not None and not isinstance(dtype, pl.DataType):
        dtype = dtype()
    pattern = (column.metadata or {}).get(METADATA_KEY, {}).get("format")

    def accepts(given: pl.DataType) -> bool:
        return declared is None or bool(declared.check(given, None))

    coerce = bool(column.coerce or schema.coerce) and declared is not None
    return Column(name, dtype, column.required, column.nullable, coerce, column.default, pattern, accepts)


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


def _short_name(check: pa.Check) -> str:
    name = str(check.name or getattr(check._check_fn, "__name__", "check"))  # noqa: SLF001 - see expressions.capture
    if name == "<lambda>":
        name = "check"
    return re.sub(r"\W+", "_", _SHORT.get(name, name))


def _title(check: pa.Check, short: str) -> str:
    for text in (check.title, check.description, check.error):
        if text:
            return str(inspect.cleandoc(str(text)).splitlines()[0])
    return short


def _standard_rules() -> list[Rule]:
    """The rules that every table has; the gate evaluates them itself."""
    return [
        Rule("table.extra_column", WARNING, "shape", "there is no column that the contract does not know"),
        Rule("table.column_order", ERROR, "shape", "the columns come in the contract's order"),
        Rule("table.no_rows", WARNING, "table", "the partition has rows"),
        Rule("table.duplicate", INFO, "row", "a row is delivered once; identical copies collapse into one"),
        Rule("table.conflicting_content", ERROR, "row", "rows with one key have one content"),
        Rule("table.quarantined_share", CRITICAL, "table", "the share of quarantined rows is within max_quarantined"),
    ]
