"""From a pandera check to the polars expression that it would have evaluated.

A check's own function is called once with a recorder in place of the frame, and what it selects is kept; so a check
means here what it means in pandera, whatever its version of pandera does inside.
"""

from __future__ import annotations

import inspect
import io
import json
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType
from typing import Any

import pandera.polars as pa
import polars as pl
from pandera.api.polars.types import PolarsData

from medallion.contract import RULE_ATTRIBUTE
from medallion.digests import digest_function
from medallion.errors import DeclarationError

__all__ = ["Captured", "Scope", "capture", "describe_check", "looks_across_rows", "short_name", "title_of"]


_SHORT = {
    "equal_to": "eq",
    "not_equal_to": "ne",
    "greater_than": "gt",
    "greater_than_or_equal_to": "ge",
    "less_than": "lt",
    "less_than_or_equal_to": "le",
}
"""pandera's names of built-in checks and the short ones that ``field`` takes; rule ids use the short ones."""


@dataclass(frozen=True)
class Captured:
    """What a check evaluates.

    Attributes:
        expr: one boolean a row, or one in all; None if only the check's own function can tell.
        aggregate: whether it gives one value in all.
        across: whether a row's value may depend on other rows.
        function: gives the verdict on a whole frame, for a check that is no expression.
        code: names what the check does.
        refused: why the check cannot be evaluated on the frame that came; it then blocks.
        raised: filled with the errors of element-wise functions while the expression is evaluated.
    """

    expr: pl.Expr | None
    aggregate: bool
    across: bool = False
    function: Callable[[pl.LazyFrame], bool] | None = None
    code: str = ""
    refused: str = ""
    raised: list[BaseException] = field(default_factory=list, compare=False)


class _NotAnExpression(Exception):
    """The check does more with the frame than select from it."""

    def __init__(self, used: str) -> None:
        super().__init__(used)
        self.used = used


class _Selected(list[pl.Expr]):
    """What a check selects; a check that goes on from there is no expression."""

    def __getattr__(self, name: str) -> Any:
        raise _NotAnExpression(f"select(...).{name}")


class _Recorder:
    """Stands for a lazy frame inside a check's function and keeps what it selects."""

    def select(self, *exprs: Any, **named: pl.Expr) -> _Selected:
        flat: list[pl.Expr] = []
        for expr in exprs:
            each = expr if isinstance(expr, list | tuple) else [expr]
            flat += [pl.col(one) if isinstance(one, str) else one for one in each]
        return _Selected([*flat, *(expr.alias(name) for name, expr in named.items())])

    def __getattr__(self, name: str) -> Any:
        raise _NotAnExpression(name)


@dataclass(frozen=True)
class Scope:
    """What a check may look at.

    Attributes:
        where: table and rule, for messages.
        types: every column that may be named.
        columns: the contract's columns: what ``pl.all()`` and a check of the whole frame stand for. A column that the
            contract does not know is dropped, so that it cannot be judged.
    """

    where: str
    types: Mapping[str, pl.DataType]
    columns: tuple[str, ...]

    @property
    def own(self) -> dict[str, pl.DataType]:
        """The contract's columns and their types."""
        return {name: self.types[name] for name in self.columns}


def capture(check: pa.Check, key: str, scope: Scope) -> Captured:
    """What a check of column ``key`` (``*`` for the frame) evaluates on a frame with these columns.

    Raises:
        DeclarationError: with the reason, if it can be neither compiled nor called on a whole frame.
    """
    where = scope.where
    # pandera's own backend calls a check's function so; there is no public way to it.
    check_fn, kwargs = check._check_fn, dict(check._check_kwargs)  # noqa: SLF001
    code = describe_check(check)
    function = partial(check_fn, **kwargs)
    if check.element_wise:
        return _element_wise(function, code, [key] if key != "*" else list(scope.columns))
    if getattr(check_fn, "__name__", "") == "unique_values_eq":
        # It turns a whole column into a Python list; the distinct values say the same.
        return Captured(
            None, aggregate=True, function=lambda rows: _call(function, rows.select(key).unique(), key), code=code
        )
    try:
        selected = function(PolarsData(_Recorder(), key))  # type: ignore[arg-type]
    except _NotAnExpression as unfit:
        return _whole_frame(function, code, key, scope, f"it uses LazyFrame.{unfit.used}")
    except Exception as error:
        raise DeclarationError(f"{where}: the check cannot be compiled: {type(error).__name__}: {error}") from error
    if isinstance(selected, bool):
        return _whole_frame(function, code, key, scope, "it returns a bool")
    if not isinstance(selected, list) or not selected:
        raise DeclarationError(
            f"{where}: the check returns {type(selected).__name__}; write: return data.lazyframe.select(<expression>)"
        )
    exprs = [each for expr in selected for each in _expand(expr, scope)]
    aggregate = _probe(exprs, scope)
    expr = (
        exprs[0] if len(exprs) == 1 else pl.all_horizontal(exprs)
    )  # several verdicts a row as one, as pandera folds them
    across = not aggregate and any(map(looks_across_rows, selected))
    return Captured(expr, aggregate, across, code=code)


def short_name(check: pa.Check) -> str:
    """What a check is called in the ids of rules."""
    name = str(check.name or getattr(check._check_fn, "__name__", "check"))  # noqa: SLF001 - see expressions.capture
    if name == "<lambda>":
        name = "check"
    return re.sub(r"\W+", "_", _SHORT.get(name, name))


def title_of(check: pa.Check, short: str) -> str:
    """One line about a check, for people: what its author says, or what it is called."""
    for text in (check.title, check.description, check.error):
        if text:
            return str(inspect.cleandoc(str(text)).splitlines()[0])
    return short


def describe_check(check: pa.Check) -> str:
    """Names what a check does, by its function's code and its arguments."""
    kwargs = sorted(((name, _sorted(value)) for name, value in check._check_kwargs.items()), key=str)  # noqa: SLF001
    function: Any = _written(check._check_fn)  # noqa: SLF001
    # A built-in check is an object that finds the backend's function; only its name says what it is.
    named = digest_function(function) if isinstance(function, FunctionType) else getattr(function, "__name__", "")
    return f"{'element_wise' if check.element_wise else 'function'} {named or type(function).__qualname__} {kwargs}"


def _written(function: Any) -> Any:
    """The function that somebody wrote: pandera wraps a model's method, and ``@rule`` a function of the rows.

    Code names a check, and not the expression that it gives: an expression prints a set in the order of this process's
    hashes, and a long list not at all.
    """
    while isinstance(function, FunctionType):
        declared = getattr(function, RULE_ATTRIBUTE, None)
        wrapped = getattr(inspect.getclosurevars(function).nonlocals.get("self"), "check_fn", None)
        inner = declared.function if declared is not None else wrapped
        if inner is None:
            break
        function = inner
    return function


def _sorted(value: Any) -> Any:
    return sorted(map(repr, value)) if isinstance(value, set | frozenset) else value


def _element_wise(function: Callable[..., Any], code: str, keys: list[str]) -> Captured:
    raised: list[BaseException] = []

    def judged(value: Any) -> Any:
        try:
            return function(value)
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
            raised.append(error)
            return False

    exprs = [pl.col(key).map_elements(judged, return_dtype=pl.Boolean) for key in keys]
    return Captured(
        exprs[0] if len(exprs) == 1 else pl.all_horizontal(exprs), aggregate=False, code=code, raised=raised
    )


def _expand(expr: pl.Expr, scope: Scope) -> list[pl.Expr]:
    """A selection such as ``pl.all()``, spelled out: one expression for each verdict."""
    if not expr.meta.has_multiple_outputs():
        return [expr]
    try:
        pinned = pl.Expr.deserialize(io.StringIO(json.dumps(_pin(_tree(expr), scope))), format="json")
        names = pl.LazyFrame(schema=scope.own).select(pinned).collect_schema().names()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, ValueError) as error:
        raise DeclarationError(
            f"{scope.where}: selects several columns ({type(error).__name__}: {_first_line(error)}); name them"
        ) from error
    return [pinned] if len(names) == 1 else [pl.struct(pinned).struct.field(name) for name in names]


def _tree(expr: pl.Expr) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the JSON form is not stable between versions; it is used at once
        return json.loads(expr.meta.serialize(format="json"))


def _pin(node: Any, scope: Scope) -> Any:
    """The tree of an expression, with names in place of selectors.

    The gate's query has more columns than the contract, and a selector must not see them.
    """
    if isinstance(node, list):
        return [_pin(each, scope) for each in node]
    if not isinstance(node, dict):
        return node
    if set(node) == {"Selector"}:
        selector = pl.Expr.deserialize(io.StringIO(json.dumps(node)), format="json")
        names = pl.LazyFrame(schema=scope.own).select(selector).collect_schema().names()
        return {"Selector": {"ByName": {"names": names, "strict": True}}}
    return {name: _pin(value, scope) for name, value in node.items()}


def _probe(exprs: list[pl.Expr], scope: Scope) -> bool:
    """Whether some expressions give one value for any number of rows; found on three dummy rows."""
    where = scope.where
    # Structs without values in place of null: polars 2.1 panics where it compares nothing but null structs.
    frame = pl.DataFrame(
        [pl.Series(name, [{} if dtype == pl.Struct else None] * 3, dtype) for name, dtype in scope.types.items()]
    )
    try:
        result = frame.lazy().select(expr.alias(str(n)) for n, expr in enumerate(exprs)).collect()
    except pl.exceptions.PanicException as error:
        raise DeclarationError(f"{where}: polars panics on it: {_first_line(error)}") from error
    except (pl.exceptions.PolarsError, TypeError, ValueError) as error:
        raise DeclarationError(f"{where}: {type(error).__name__}: {_first_line(error)}") from error
    for dtype in result.dtypes:
        if dtype not in (pl.Boolean, pl.Null):
            raise DeclarationError(f"{where}: gives {dtype}, not true or false")
    if result.height not in (1, 3):
        raise DeclarationError(f"{where}: gives {result.height} values for 3 rows; give one a row, or one in all")
    return result.height == 1


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0]


def _call(function: Callable[..., Any], rows: pl.LazyFrame, key: str) -> bool:
    verdict = function(PolarsData(rows, key))
    if isinstance(verdict, bool):
        return verdict
    raise _NoBool(f"returned {type(verdict).__name__}")


class _NoBool(TypeError):
    """A check that judges a whole frame answers with something else than a bool."""


def _whole_frame(function: Callable[..., Any], code: str, key: str, scope: Scope, why: str) -> Captured:
    """A check that is no expression can still judge a whole frame, if it answers with a bool."""
    try:
        _call(function, pl.LazyFrame(schema=scope.own), key)
    except _NoBool as error:
        raise DeclarationError(
            f"{scope.where}: cannot be compiled into the gate's one query ({why}), nor called for a bool ({error}). "
            "Write one expression: return data.lazyframe.select(<a boolean polars expression>)"
        ) from error
    except (Exception, pl.exceptions.PanicException):  # noqa: BLE001 - a user's function may raise anything
        # A frame without rows may be more than it can judge; a frame that it cannot judge is refused when it comes.
        pass
    return Captured(None, aggregate=True, function=lambda rows: _call(function, rows, key), code=code)


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
        tree = _tree(expr)
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
