"""A pandera contract, compiled: every check as one polars expression that is true where the check holds.

pandera validates data; a gate has to split it. So each check's own function is called once, with a recorder in place
of the frame, and the expression that it would have selected is captured. pandera's verdicts are kept: an expression
that yields one value is a rule about the whole table, a null verdict passes if the check says ``ignore_na``.

What cannot be compiled is refused here, when the feed is imported. Nothing is skipped.
"""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandera.polars as pa
import polars as pl
from pandera.api.polars.types import PolarsData

from medallion.contract import CRITICAL, ERROR, INFO, METADATA_KEY, WARNING, FrameRule, Reference, Severity
from medallion.digests import digest, digest_function
from medallion.errors import DeclarationError

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
    "known_in": "the value is known in the referenced table",
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
        expr: true where the rule holds; None where the gate itself evaluates the rule.
        ignore_null: a null verdict counts as held.
    """

    id: str
    severity: Severity
    scope: str
    title: str
    expr: pl.Expr | None = None
    ignore_null: bool = True
    reference: Reference | None = None
    across: bool = False
    """The expression looks at other rows of the partition as well, such as a mean or a duplicate."""

    @property
    def column(self) -> str | None:
        """The column that the rule is about, or None."""
        head = self.id.rpartition(".")[0]
        return None if head == "table" else head


@dataclass(frozen=True)
class Column:
    """One column of a contract: its polars type and how a raw value becomes one."""

    name: str
    dtype: pl.DataType
    required: bool
    nullable: bool
    pattern: str | None
    """How text is parsed into a date or time; None is ISO 8601."""


@dataclass(frozen=True)
class CompiledContract:
    """A contract as the gate uses it."""

    columns: tuple[Column, ...]
    rules: tuple[Rule, ...]
    digest: str

    @property
    def by_id(self) -> Mapping[str, Rule]:
        """The rules by their ids."""
        return {rule.id: rule for rule in self.rules}

    @property
    def row_rules(self) -> tuple[Rule, ...]:
        """The rules with an expression per row, in bit order."""
        return tuple(rule for rule in self.rules if rule.scope == "row" and (rule.expr is not None or rule.reference))

    @property
    def table_rules(self) -> tuple[Rule, ...]:
        """The rules with an expression per partition."""
        return tuple(rule for rule in self.rules if rule.scope == "table" and rule.expr is not None)


class _Recorder:
    """Stands for a lazy frame inside a check's function and keeps what it selects."""

    def __init__(self, where: str) -> None:
        self.where = where

    def select(self, *exprs: Any, **named: pl.Expr) -> list[pl.Expr]:
        flat: list[pl.Expr] = []
        for expr in exprs:
            flat.extend(expr if isinstance(expr, list | tuple) else [expr])
        return [*flat, *(expr.alias(name) for name, expr in named.items())]

    def __getattr__(self, name: str) -> Any:
        raise DeclarationError(
            f"{self.where}: the check uses LazyFrame.{name}, which cannot be compiled into the gate's one query. Write "
            "it as one expression: return data.lazyframe.select(<a boolean polars expression>)"
        )


def compile_schema(
    schema: pa.DataFrameSchema, *, where: str, key: Iterable[str], partition: tuple[str, type[pl.DataType]] | None
) -> CompiledContract:
    """Compile a pandera schema.

    Args:
        schema: the schema; severities are read from its metadata and from that of its columns.
        where: the table, for messages.
        key: columns of the key; they are never null.
        partition: name and type of the partition column, which rules may use.

    Raises:
        DeclarationError: for a check that cannot be compiled, with the reason; for a rule that is named and not there.
    """
    columns = tuple(_column(name, column, where) for name, column in schema.columns.items())
    dummy = {column.name: column.dtype for column in columns}
    if partition is not None:
        dummy.setdefault(partition[0], partition[1]())
    rules: list[Rule] = []
    for name, column in schema.columns.items():
        rules.extend(_column_rules(name, column, in_key=name in set(key), where=where, dummy=dummy))
    rules.extend(_frame_rules(schema, where, dummy))
    rules.extend(_standard_rules())
    ids = [rule.id for rule in rules]
    for each in ids:
        if ids.count(each) > 1:
            raise DeclarationError(f"{where}: two rules have the id {each}; give one of the checks another name")
    described = (
        [[c.name, str(c.dtype), c.required, c.nullable, c.pattern] for c in columns],
        [_describe(rule) for rule in rules],
    )
    return CompiledContract(columns, tuple(rules), digest(described, sorted(key)))


def _describe(rule: Rule) -> list[Any]:
    # An expression that calls Python prints an address; the function's own digest stands for it (see _capture).
    code = getattr(rule.expr, "__medallion_digest__", None) or str(rule.expr)
    reference = [rule.reference.table.path, rule.reference.column] if rule.reference else None
    return [rule.id, int(rule.severity), rule.scope, code, rule.ignore_null, reference]


def _column(name: str, column: pa.Column, where: str) -> Column:
    if column.dtype is None:
        raise DeclarationError(f"{where}: column {name!r} has no type; a table needs one for every column")
    if column.regex:
        raise DeclarationError(f"{where}: column {name!r} is a pattern; a table's columns are named one by one")
    dtype = column.dtype.type
    dtype = dtype if isinstance(dtype, pl.DataType) else dtype()
    if isinstance(dtype, pl.Datetime) and dtype.time_unit != "us":
        dtype = pl.Datetime("us", dtype.time_zone)
    pattern = (column.metadata or {}).get(METADATA_KEY, {}).get("format")
    return Column(name, dtype, column.required, column.nullable, pattern)


def _column_rules(
    name: str, column: pa.Column, *, in_key: bool, where: str, dummy: Mapping[str, pl.DataType]
) -> list[Rule]:
    own = (column.metadata or {}).get(METADATA_KEY, {})
    severity = _severities(own.get("severity", ERROR), name, where)
    rules = [Rule(f"{name}.present", CRITICAL, "shape", _STANDARD["present"])] if column.required else []
    rules.append(Rule(f"{name}.type", severity("type"), "row", _STANDARD["type"], pl.lit(True)))
    if not column.nullable or in_key:
        there = pl.col(name).is_not_null()
        if dummy[name].is_float():
            there = there & pl.col(name).is_not_nan()
        rules.append(Rule(f"{name}.not_null", severity("not_null"), "row", _STANDARD["not_null"], there))
    if column.unique:
        unique = ~pl.col(name).is_duplicated()
        rules.append(Rule(f"{name}.unique", severity("unique"), "row", _STANDARD["unique"], unique, across=True))
    for check in column.checks:
        rules.append(_check_rule(check, name, severity, where=where, dummy=dummy, taken={r.id for r in rules}))
    if "known_in" in own:
        reference: Reference = own["known_in"]
        title = f"the value is a {reference.column} of {reference.table.path}"
        rules.append(Rule(f"{name}.known_in", severity("known_in"), "row", title, reference=reference))
    if isinstance(own.get("severity"), Mapping):
        known = {rule.id.rpartition(".")[2] for rule in rules}
        for given in own["severity"]:
            if given not in known:
                raise DeclarationError(
                    f"{where}: column {name!r} gives a severity for {given!r}, and its rules are {sorted(known)}"
                )
    return rules


def _severities(given: Any, name: str, where: str) -> Callable[[str], Severity]:
    if isinstance(given, Mapping):
        return lambda rule: Severity(given.get(rule, ERROR))
    if isinstance(given, Severity):
        return lambda rule: given
    raise DeclarationError(f"{where}: column {name!r} has severity={given!r}; give a Severity, or one for each rule")


def _check_rule(
    check: pa.Check,
    name: str,
    severity: Callable[[str], Severity],
    *,
    where: str,
    dummy: Mapping[str, pl.DataType],
    taken: set[str],
) -> Rule:
    short = _short_name(check)
    rule_id, n = f"{name}.{short}", 2
    while rule_id in taken:
        rule_id, n = f"{name}.{short}_{n}", n + 1
    expr, table = _capture(check, name, f"{where}, rule {rule_id}", dummy)
    chosen = min(severity(short), WARNING) if check.raise_warning else severity(short)
    return Rule(
        rule_id,
        chosen,
        "table" if table else "row",
        _title(check, short),
        expr,
        ignore_null=bool(check.ignore_na) and not table,
        across=not table and not check.element_wise and looks_across_rows(expr),
    )


def _short_name(check: pa.Check) -> str:
    name = str(check.name or getattr(check._check_fn, "__name__", "check"))  # noqa: SLF001 - see _capture
    if name == "<lambda>":
        name = "check"
    return _SHORT.get(name, name).replace(".", "_")


def _title(check: pa.Check, short: str) -> str:
    for text in (check.title, check.description, check.error):
        if text:
            return str(inspect.cleandoc(text).splitlines()[0])
    return short


def _capture(check: pa.Check, key: str, where: str, dummy: Mapping[str, pl.DataType]) -> tuple[pl.Expr, bool]:
    """The expression of a check, and whether it judges the table instead of rows."""
    # pandera's own backend calls a check's function so; there is no public way to it.
    check_fn, kwargs = check._check_fn, check._check_kwargs  # noqa: SLF001
    if check_fn is None:
        raise DeclarationError(f"{where}: the check has no function")
    function = partial(check_fn, **kwargs)
    if check.name == "unique_values_eq":
        values = list(kwargs["values"])
        column = pl.col(key).drop_nulls()
        expr = (column.n_unique() == len(set(values))) & column.is_in(values).all()
        return expr, True
    if check.element_wise:
        if key == "*":
            raise DeclarationError(f"{where}: an element-wise check needs a column")
        expr = pl.col(key).map_elements(function, return_dtype=pl.Boolean)
        expr.__medallion_digest__ = digest_function(check_fn)  # type: ignore[attr-defined]
        return expr, False
    captured = function(PolarsData(_Recorder(where), key))  # type: ignore[arg-type]
    if not isinstance(captured, list) or not captured:
        raise DeclarationError(
            f"{where}: the check returns {type(captured).__name__}; write: return data.lazyframe.select(<expression>)"
        )
    expr = captured[0] if len(captured) == 1 else pl.all_horizontal(captured)
    return expr, _is_aggregate(expr, where, dummy)


def _is_aggregate(expr: pl.Expr, where: str, dummy: Mapping[str, pl.DataType]) -> bool:
    """Whether the expression gives one value for any number of rows; found on three dummy rows."""
    frame = pl.DataFrame({name: pl.Series(name, [None] * 3, dtype=dtype) for name, dtype in dummy.items()})
    try:
        result = frame.lazy().select(expr.alias("verdict")).collect()
    except (pl.exceptions.PolarsError, TypeError, ValueError) as error:
        raise DeclarationError(f"{where}: {type(error).__name__}: {str(error).splitlines()[0]}") from error
    if result.schema["verdict"] not in (pl.Boolean, pl.Null):
        raise DeclarationError(f"{where}: gives {result.schema['verdict']}, not true or false")
    if result.height not in (1, 3):
        raise DeclarationError(f"{where}: gives {result.height} values for 3 rows; give one a row, or one in all")
    return result.height == 1


_ROW_BY_ROW = {"StringExpr", "TemporalExpr", "StructExpr", "Abs", "Negate", "Round", "RoundSF", "Floor", "Ceil", "Pow",
               "FillNull", "Coalesce", "Boolean", "Bitwise", "Hash", "Sign", "Clip"}  # fmt: skip
_ACROSS = {"IsDuplicated", "IsUnique", "IsFirstDistinct", "IsLastDistinct", "Any", "All", "HasNulls"}


def looks_across_rows(expr: pl.Expr) -> bool:
    """Whether an expression's value for a row may depend on other rows.

    Told from the expression's own tree; what is not known to be row by row counts as looking across, which is then
    evaluated per partition: slower, and never wrong.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the JSON form is not stable between versions; it is used at once
            tree = json.loads(expr.meta.serialize(format="json"))
    except (pl.exceptions.PolarsError, ImportError, ValueError):
        return True
    return not _row_by_row(tree)


def _row_by_row(node: Any) -> bool:
    if not isinstance(node, dict) or len(node) != 1:
        return False
    (kind, content), *_ = node.items()
    match kind:
        case "Column" | "Literal":
            return True
        case "BinaryExpr":
            parts = [content["left"], content["right"]]
        case "Ternary":
            parts = [content["predicate"], content["truthy"], content["falsy"]]
        case "Cast":
            parts = [content["expr"]]
        case "Alias":
            parts = [content[0]]
        case "Function" if _is_row_function(content["function"]):
            parts = content["input"]
        case _:
            return False
    return all(map(_row_by_row, parts))


def _is_row_function(function: Any) -> bool:
    family = function if isinstance(function, str) else next(iter(function))
    member = function.get("Boolean") if isinstance(function, dict) else None
    member = next(iter(member)) if isinstance(member, dict) else member
    return family in _ROW_BY_ROW and member not in _ACROSS


def _frame_rules(schema: pa.DataFrameSchema, where: str, dummy: Mapping[str, pl.DataType]) -> list[Rule]:
    declared: Mapping[str, FrameRule] = (schema.metadata or {}).get(METADATA_KEY, {}).get("rules", {})
    severities: Mapping[str, Severity] = (schema.metadata or {}).get(METADATA_KEY, {}).get("severity", {})
    rules: list[Rule] = []
    for check in schema.checks:
        short = _short_name(check)
        rule_id = f"table.{short}"
        expr, aggregate = _capture(check, "*", f"{where}, rule {rule_id}", dummy)
        own = declared.get(short)
        if own is not None and own.table != aggregate:
            says, gives = ("one value", "one a row") if own.table else ("one value a row", "one in all")
            raise DeclarationError(f"{where}, rule {rule_id}: declared to give {says}, and gives {gives}; set table=")
        severity = own.severity if own else Severity(severities.get(short, ERROR))
        rules.append(
            Rule(
                rule_id,
                min(severity, WARNING) if check.raise_warning else severity,
                "table" if aggregate else "row",
                _title(check, short),
                expr,
                ignore_null=bool(check.ignore_na) and not aggregate,
                across=not aggregate and looks_across_rows(expr),
            )
        )
    if schema.unique:
        expr = ~pl.struct(schema.unique).is_duplicated()
        rules.append(
            Rule("table.unique", Severity(severities.get("unique", ERROR)), "row", "the rows differ", expr, across=True)
        )
    return rules


def _standard_rules() -> list[Rule]:
    """The rules that every table has; the gate evaluates them itself."""
    return [
        Rule("table.extra_column", WARNING, "shape", "there is no column that the contract does not know"),
        Rule("table.no_rows", WARNING, "table", "the partition has rows"),
        Rule("table.duplicate", INFO, "row", "a row is delivered once; identical copies collapse into one"),
        Rule("table.conflicting_content", ERROR, "row", "rows with one key have one content"),
        Rule("table.quarantined_share", CRITICAL, "table", "the share of quarantined rows is within max_quarantined"),
    ]
