"""From a pandera check to the polars expression that it would have evaluated.

A check's own function is called once with a recorder in place of the frame, and what it selects is kept; so a check
means here what it means in pandera, whatever its version of pandera does inside.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pandera.polars as pa
import polars as pl
from pandera.api.polars.types import PolarsData

from medallion.digests import digest_function
from medallion.errors import DeclarationError

__all__ = ["Captured", "capture", "looks_across_rows"]


@dataclass(frozen=True)
class Captured:
    """What a check evaluates.

    Attributes:
        expr: one boolean a row, or one in all; None if only the check's own function can tell.
        aggregate: whether it gives one value in all.
        across: whether a row's value may depend on other rows.
        function: gives the verdict on a whole frame, for a check that is no expression.
        code: names what the check does.
        raised: filled with the errors of element-wise functions while the expression is evaluated.
    """

    expr: pl.Expr | None
    aggregate: bool
    across: bool = False
    function: Callable[[pl.LazyFrame], bool] | None = None
    code: str = ""
    raised: list[BaseException] = field(default_factory=list, compare=False)


class _NotAnExpression(Exception):
    """The check does more with the frame than select from it."""

    def __init__(self, used: str) -> None:
        super().__init__(used)
        self.used = used


class _Recorder:
    """Stands for a lazy frame inside a check's function and keeps what it selects."""

    def select(self, *exprs: Any, **named: pl.Expr) -> list[pl.Expr]:
        flat: list[pl.Expr] = []
        for expr in exprs:
            flat.extend(expr if isinstance(expr, list | tuple) else [expr])
        found = [pl.col(expr) if isinstance(expr, str) else expr for expr in flat]
        return [*found, *(expr.alias(name) for name, expr in named.items())]

    def __getattr__(self, name: str) -> Any:
        raise _NotAnExpression(name)


def capture(check: pa.Check, key: str, where: str, types: Mapping[str, pl.DataType]) -> Captured:
    """What a check of column ``key`` (``*`` for the frame) evaluates on a frame with these columns.

    Raises:
        DeclarationError: with the reason, if it can be neither compiled nor called on a whole frame.
    """
    # pandera's own backend calls a check's function so; there is no public way to it.
    check_fn, kwargs = check._check_fn, dict(check._check_kwargs)  # noqa: SLF001
    if check_fn is None:
        raise DeclarationError(f"{where}: the check has no function")
    function = partial(check_fn, **kwargs)
    if check.name == "unique_values_eq":
        return _unique_values(key, kwargs["values"])
    if check.element_wise:
        return _element_wise(function, check_fn, [key] if key != "*" else list(types), kwargs)
    try:
        selected = function(PolarsData(_Recorder(), key))  # type: ignore[arg-type]
    except _NotAnExpression as unfit:
        return _whole_frame(function, check_fn, key, where, types, f"it uses LazyFrame.{unfit.used}")
    except DeclarationError:
        raise
    except Exception as error:
        raise DeclarationError(f"{where}: the check cannot be compiled: {type(error).__name__}: {error}") from error
    if isinstance(selected, bool):
        return _whole_frame(function, check_fn, key, where, types, "it returns a bool")
    if not isinstance(selected, list) or not selected:
        raise DeclarationError(
            f"{where}: the check returns {type(selected).__name__}; write: return data.lazyframe.select(<expression>)"
        )
    aggregate, names = _probe(selected, where, types)
    expr = selected[0] if len(names) == 1 and len(selected) == 1 else _all_of(selected, names, types)
    across = not aggregate and any(map(looks_across_rows, selected))
    return Captured(expr, aggregate, across, code=str(expr))


def _unique_values(key: str, values: Any) -> Captured:
    wanted = list(dict.fromkeys(values))
    column = pl.col(key).drop_nulls()
    expr = (column.n_unique() == len(wanted)) & column.is_in(wanted).all()
    # pandera compares a set with what was given, so that anything but a set is never equal.
    expr = expr if isinstance(values, set | frozenset) else pl.len() < 0
    return Captured(expr, aggregate=True, code=f"unique_values_eq({sorted(map(repr, wanted))})")


def _element_wise(function: Callable[..., Any], named: Any, keys: list[str], kwargs: Mapping[str, Any]) -> Captured:
    raised: list[BaseException] = []

    def judged(value: Any) -> bool:
        try:
            return bool(function(value))
        except Exception as error:
            raised.append(error)
            return False

    expr = pl.all_horizontal([pl.col(key).map_elements(judged, return_dtype=pl.Boolean) for key in keys])
    code = f"element_wise {digest_function(named)} {sorted(kwargs.items(), key=str)}"
    single = expr if len(keys) > 1 else pl.col(keys[0]).map_elements(judged, return_dtype=pl.Boolean)
    return Captured(single, aggregate=False, code=code, raised=raised)


def _all_of(selected: list[pl.Expr], names: list[str], types: Mapping[str, pl.DataType]) -> pl.Expr:
    """Several verdicts a row as one, as pandera folds them; a selection such as ``pl.all()`` is spelled out."""
    if len(selected) == len(names):
        return pl.all_horizontal(selected)
    spelled = [expr for each in selected for expr in _expand(each, types)]
    return pl.all_horizontal(spelled)


def _expand(expr: pl.Expr, types: Mapping[str, pl.DataType]) -> list[pl.Expr]:
    if not expr.meta.has_multiple_outputs():
        return [expr]
    return [pl.struct(expr).struct.field(name) for name in pl.LazyFrame(schema=dict(types)).select(expr).collect_schema()]


def _probe(selected: list[pl.Expr], where: str, types: Mapping[str, pl.DataType]) -> tuple[bool, list[str]]:
    """Whether some expressions give one value for any number of rows, and their names; found on three dummy rows."""
    frame = pl.DataFrame({name: pl.Series(name, [None] * 3, dtype=dtype) for name, dtype in types.items()})
    try:
        result = frame.lazy().select(selected).collect()
    except pl.exceptions.PanicException as error:
        raise DeclarationError(f"{where}: polars panics on it: {str(error).splitlines()[0]}") from error
    except (pl.exceptions.PolarsError, TypeError, ValueError) as error:
        raise DeclarationError(f"{where}: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}") from error
    for name, dtype in result.schema.items():
        if dtype not in (pl.Boolean, pl.Null):
            raise DeclarationError(f"{where}: gives {dtype} in {name!r}, not true or false")
    if result.height not in (1, 3):
        raise DeclarationError(f"{where}: gives {result.height} values for 3 rows; give one a row, or one in all")
    return result.height == 1, list(result.schema)


def _whole_frame(
    function: Callable[..., Any], named: Any, key: str, where: str, types: Mapping[str, pl.DataType], why: str
) -> Captured:  # noqa: PLR0917 - one place calls it
    """A check that is no expression can still judge a whole frame, if it answers with a bool."""

    def call(frame: pl.LazyFrame) -> bool:
        verdict = function(PolarsData(frame, key))
        if isinstance(verdict, bool):
            return verdict
        raise TypeError(f"returned {type(verdict).__name__}")

    empty = pl.LazyFrame(schema=dict(types))
    try:
        call(empty)
    except TypeError as error:
        raise DeclarationError(
            f"{where}: cannot be compiled into the gate's one query ({why}), nor called for a bool ({error}). Write one "
            "expression: return data.lazyframe.select(<a boolean polars expression>)"
        ) from error
    except Exception as error:
        raise DeclarationError(f"{where}: raises on a frame without rows: {type(error).__name__}: {error}") from error
    return Captured(None, aggregate=True, function=call, code=f"function {digest_function(named)}")


_ROW_BY_ROW = {
    "Abs", "Bitwise", "Boolean", "Ceil", "Clip", "Coalesce", "FillNull", "Floor", "Hash", "Negate", "Pow", "Round",
    "RoundSF", "Sign", "StringExpr", "StructExpr", "TemporalExpr",
}  # fmt: skip
_ACROSS = {"All", "Any", "HasNulls", "IsDuplicated", "IsFirstDistinct", "IsLastDistinct", "IsUnique"}


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
