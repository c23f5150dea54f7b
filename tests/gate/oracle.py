"""What pandera itself says about a frame, told in the gate's words, so that the two can be compared.

pandera judges a whole frame and stops where the gate goes on, so it is asked in steps:

- Coercion column by column, since its own stops at the first column that fails and then judges what was not coerced.
- The rules that judge rows, on the typed rows; then again on the rows that are left, until nothing more is refused.
- Several groups of ``unique`` one by one, since its own stops at the first that is broken.
- The rules that judge the whole, on the rows that are left over: what is about to be published.

Its reporter, which formats what was found and often crashes on it, is left out; what is compared is what was found.
"""

import copy
import datetime as dt
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pandera.polars as pa
import polars as pl
from pandera.api.polars.types import PolarsData
from pandera.backends.polars.base import PolarsSchemaBackend
from pandera.constants import CHECK_OUTPUT_KEY
from pandera.errors import FailureCaseMetadata, ParserError, SchemaError, SchemaErrors

from medallion.compiler import CompiledContract, compile_schema
from medallion.severity import ERROR

_STANDARD = {
    "COLUMN_NOT_IN_DATAFRAME": "{column}.present",
    "ADD_MISSING_COLUMN_NO_DEFAULT": "{column}.present",
    "INVALID_COLUMN_NAME": "{column}.present",
    "COLUMN_NOT_IN_SCHEMA": "table.extra_column",
    "COLUMN_NOT_ORDERED": "table.column_order",
    "WRONG_DATATYPE": "{column}.type",
    "SERIES_CONTAINS_NULLS": "{column}.not_null",
    "SERIES_CONTAINS_DUPLICATES": "{column}.unique",
}
SHAPE = {*list(_STANDARD)[:6]}


class NoVerdict(Exception):
    """pandera crashed."""


@dataclass
class Opinion:
    """What pandera says.

    Attributes:
        shape: ids of the rules about columns that are broken; with any, there is nothing else to compare.
        rows: by id of a row rule, the rows that break it.
        raised: ids of the rules whose check raised.
        table: ids of the rules about the whole that are broken by the rows that are left.
        left: the rows that are left, by number.
    """

    shape: set[str] = field(default_factory=set)
    rows: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    raised: set[str] = field(default_factory=set)
    table: set[str] = field(default_factory=set)
    left: list[int] = field(default_factory=list)


@contextmanager
def without_reporter() -> Iterator[None]:
    nothing = FailureCaseMetadata(failure_cases=None, message={}, error_counts={})
    with mock.patch.object(PolarsSchemaBackend, "failure_cases_metadata", return_value=nothing):
        yield


def ask(schema: pa.DataFrameSchema, frame: pl.DataFrame) -> tuple[list[SchemaError], pl.DataFrame]:
    """pandera's errors, and the frame as it parsed it.

    Raises:
        NoVerdict: if it crashes.
    """
    try:
        with warnings.catch_warnings(), without_reporter():
            warnings.simplefilter("ignore")
            return [], schema.validate(frame, lazy=True)
    except SchemaErrors as found:
        return found.schema_errors, found.data
    except (Exception, pl.exceptions.PanicException) as error:
        raise NoVerdict(f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}") from error


def opinion(schema: pa.DataFrameSchema, frame: pl.DataFrame) -> Opinion:
    """What pandera says about a frame."""
    compiled = compile_schema(schema, where="rows", frame=dict(frame.schema))
    plain = _without_coercion_and_warnings(schema)
    said = Opinion()
    typed, unreadable = _coerced(compiled, schema, frame, said)
    errors, parsed = ask(plain, typed)
    said.shape |= {name for name, error in _named(compiled, errors) if error.reason_code.name in SHAPE}
    if said.shape:
        return said
    if set(parsed.columns) > set(typed.columns):
        errors, parsed = ask(plain, parsed)  # pandera does not judge a column in the pass in which it adds it
    said.rows.update({f"{name}.type": rows for name, rows in unreadable.items() if rows})
    said.left = list(range(parsed.height))
    first = True
    while True:
        named = [*_named(compiled, errors), *_groups_broken(compiled, schema, parsed[said.left])]
        said.table = _add(named, compiled, unreadable, said, first=first)
        gone = set().union(*(rows for name, rows in said.rows.items() if compiled.by_id[name].severity >= ERROR))
        left = [row for row in said.left if row not in gone]
        if left == said.left:
            break
        said.left, first = left, False
        errors, _ = ask(plain, parsed[said.left])
    for name, rows in _rows(named, compiled, said).items():  # a tag is about the rows that are published
        said.rows[name] |= rows
    return said


def _without_coercion_and_warnings(schema: pa.DataFrameSchema) -> pa.DataFrameSchema:
    """The same schema for typed rows; a check that only warns is asked like the others."""
    plain = copy.deepcopy(schema)
    plain.unique = None
    plain._coerce = False  # noqa: SLF001 - the public property of a schema with a dtype cannot be reset
    for column in plain.columns.values():
        column.coerce = False
        for check in column.checks:
            check.raise_warning = False
    for check in plain.checks:
        check.raise_warning = False
    return plain


def _named(compiled: CompiledContract, errors: Iterable[SchemaError]) -> Iterator[tuple[str, SchemaError]]:
    """The ids of the rules that errors are about."""
    for error in errors:
        column = error.column_name
        reason = error.reason_code.name
        if reason in _STANDARD:
            absent = error.failure_cases if isinstance(error.failure_cases, str) else error.schema.name
            yield _STANDARD[reason].format(column=absent if column is None else column), error
        else:
            yield checks_of(compiled, column)[error.check_index], error


def checks_of(compiled: CompiledContract, column: str | None) -> list[str]:
    """The ids of a column's checks, or of the frame's, in their order."""
    own = {f"{column}.{name}" for name in ("present", "type", "not_null", "unique")}
    return [rule.id for rule in compiled.rules if rule.column == column and rule.check and rule.id not in own]


def _groups_broken(
    compiled: CompiledContract, schema: pa.DataFrameSchema, rows: pl.DataFrame
) -> Iterator[tuple[str, SchemaError]]:
    rules = [each for each in compiled.rules if each.check is not None and each.check.code.startswith("unique [")]
    for rule, names in zip(rules, _groups(schema, rows), strict=True):
        for error in ask(pa.DataFrameSchema(unique=names), rows)[0]:
            yield rule.id, error


def _groups(schema: pa.DataFrameSchema, rows: pl.DataFrame) -> list[list[str]]:
    given = schema.unique or []
    groups = [given] if all(isinstance(each, str) for each in given) and given else given
    present = [[name for name in group if name in rows.columns] for group in groups]
    return [group for group in present if group]


def _rows(named: Iterable[tuple[str, SchemaError]], compiled: CompiledContract, said: Opinion) -> dict[str, set[int]]:
    """The rows that break a row rule, by its id."""
    found: dict[str, set[int]] = {}
    for name, error in named:
        if error.reason_code.name != "CHECK_ERROR" and compiled.by_id[name].scope == "row":
            held = error.check_output[CHECK_OUTPUT_KEY]
            found[name] = {row for n, row in enumerate(said.left) if held[n] is False}
    return found


def _add(
    named: list[tuple[str, SchemaError]],
    compiled: CompiledContract,
    unreadable: dict[str, set[int]],
    said: Opinion,
    *,
    first: bool,
) -> set[str]:
    """Add what was found, except what is unknown; return what was found about the whole."""
    said.raised |= {name for name, error in named if error.reason_code.name == "CHECK_ERROR"}
    for name, rows in _rows(named, compiled, said).items():
        rule = compiled.by_id[name]
        used = rule.check.expr.meta.root_names() if rule.check and rule.check.expr is not None else []
        if first or rule.severity >= ERROR:
            said.rows[name] |= rows - set().union(*(unreadable.get(each, set()) for each in used))
    return {name for name, _ in named if compiled.by_id[name].scope != "row"} - said.raised


# Coercion


def _coerced(
    compiled: CompiledContract, schema: pa.DataFrameSchema, frame: pl.DataFrame, said: Opinion
) -> tuple[pl.DataFrame, dict[str, set[int]]]:
    unreadable: dict[str, set[int]] = {}
    for column in compiled.columns:
        if column.name not in frame.columns or column.dtype is None:
            continue
        given = frame.schema[column.name]
        if column.accepts(given):
            continue
        # pandera fills a default in before it looks at the type, and so turns the column into the default's type.
        wrong = not column.coerce and column.default is not None
        if wrong or (column.coerce and is_refused_whole(given, column.dtype)):
            said.shape.add(f"{column.name}.type")
            frame = frame.with_columns(pl.lit(None, column.dtype).alias(column.name))
            continue
        if not column.coerce:
            continue
        declared = schema.dtype or next(
            c.dtype for n, c in schema.columns.items() if n == column.name or (c.regex and column.name.startswith("r_"))
        )
        read, bad = read_column(frame.select(column.name), declared, column.dtype)
        unreadable[column.name] = bad
        frame = frame.with_columns(read)
    return frame, unreadable


def is_refused_whole(given: pl.DataType, wanted: pl.DataType) -> bool:
    """Whether the gate says that the column has the wrong type; pandera refuses each row, or casts by a convention."""
    numbers = given.is_numeric() or given == pl.Boolean, wanted.is_numeric() or wanted == pl.Boolean
    words = given in (pl.Categorical, pl.Enum), wanted in (pl.Categorical, pl.Enum)
    if given == pl.Null or (given == pl.String and not wanted.is_nested() and wanted != pl.Duration):
        return False
    if given.is_nested() or wanted.is_nested():
        lists = given in (pl.List, pl.Array) and wanted in (pl.List, pl.Array)
        return not lists
    if wanted == pl.String:
        return given in (pl.Binary, pl.Duration)
    if isinstance(given, pl.Datetime) and isinstance(wanted, pl.Datetime):
        return (given.time_zone is None) != (wanted.time_zone is None)
    days = {given, wanted} if pl.Date in {given, wanted} else set()
    moments = [each for each in (given, wanted) if isinstance(each, pl.Datetime)]
    if days and moments:
        return moments[0].time_zone is not None
    same_time = given.is_temporal() and type(given) is type(wanted)
    return not (all(numbers) or all(words) or same_time)


def read_column(column: pl.DataFrame, declared: Any, wanted: pl.DataType) -> tuple[pl.Series, set[int]]:
    """The column as pandera coerces it, and the rows that cannot be read: pandera's, and those that it would change."""
    raw = column.to_series()
    if raw.dtype == pl.String and wanted in (pl.Date, pl.Datetime, pl.Time, pl.Boolean):
        return _parsed(raw, wanted)
    try:
        declared.try_coerce(PolarsData(column.lazy(), raw.name))
        bad: set[int] = set()
    except ParserError as error:
        good = error.parser_output[CHECK_OUTPUT_KEY]
        bad = {n for n in range(raw.len()) if raw[n] is not None and not good[n]}
        if wanted in (pl.List, pl.Array):  # pandera refuses a list column whole if one element cannot be read
            bad = {n for n in bad if _one_fails(column[n], declared)}
    kept = pl.Series([None if n in bad else value for n, value in enumerate(raw.to_list())], dtype=raw.dtype)
    read = declared.try_coerce(PolarsData(pl.DataFrame({raw.name: kept}).lazy(), raw.name)).collect().to_series()
    bad |= {n for n in range(raw.len()) if kept[n] is not None and _is_changed(kept[n], read[n], raw.dtype, wanted)}
    read = pl.Series(raw.name, [None if n in bad else value for n, value in enumerate(read.to_list())], wanted)
    return read, bad


def _one_fails(cell: pl.DataFrame, declared: Any) -> bool:
    try:
        declared.try_coerce(PolarsData(cell.lazy(), cell.columns[0]))
    except ParserError:
        return True
    return False


def _is_changed(raw: Any, read: Any, given: Any, wanted: Any) -> bool:
    """Whether a cast made another value of it, as Python sees it."""
    if isinstance(raw, pl.Series):
        pairs = zip(raw, read, strict=True)
        return any(a is not None and _is_changed(a, b, given.inner, wanted.inner) for a, b in pairs)
    if wanted.is_decimal() and isinstance(raw, str):
        return bool(len(raw.partition(".")[2].rstrip("0")) > wanted.scale)
    rounds = given.is_decimal() and wanted.is_float()
    if rounds or isinstance(raw, str) or wanted in (pl.String, pl.Categorical, pl.Enum, pl.Binary):
        return False
    if given.is_float() and (wanted.is_float() or wanted.is_decimal()):
        return bool((abs(read) == float("inf")) != (abs(raw) == float("inf")))
    midnight = dt.time(0)
    if pl.Date in {given, wanted} and given != wanted:
        raw, read = (
            each if isinstance(each, dt.datetime) else dt.datetime.combine(each, midnight) for each in (raw, read)
        )
    if isinstance(raw, dt.datetime) and raw.tzinfo is not None:
        return bool(raw.timestamp() != read.timestamp())  # Python calls no repeated hour equal to one in another zone
    return bool(raw != read)


def _parsed(raw: pl.Series, wanted: pl.DataType) -> tuple[pl.Series, set[int]]:
    values = [None if text is None else _parse(text, wanted) for text in raw]
    bad = {n for n, value in enumerate(values) if value is None and raw[n] is not None}
    return pl.Series(raw.name, values, wanted), bad


def _parse(text: str, wanted: Any) -> Any:
    if wanted == pl.Boolean:
        return {"true": True, "false": False}.get(text.lower())
    try:
        if wanted == pl.Date:
            return dt.date.fromisoformat(text)
        if wanted == pl.Time:
            return dt.time.fromisoformat(text)
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    # With an offset it is no local time; without a time of day, it is no moment.
    return moment if "T" in text and moment.tzinfo is None else None
