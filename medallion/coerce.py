"""How a value as it came becomes one of the declared type: text is parsed, never guessed, never cut off.

A coercion gives null where the value cannot be read; the gate then knows that the raw value was there and refuses the
row with the raw value kept. ``None`` means that there is no way from one type to the other at all: the column has the
wrong type.
"""

from __future__ import annotations

import polars as pl

__all__ = ["coerce", "describe_type"]


def describe_type(dtype: pl.DataType) -> str:
    """A type's name for people: text, integer (Int64), ..."""
    if dtype == pl.String:
        return "text"
    if dtype.is_integer():
        return f"integer ({dtype})"
    if dtype.is_float():
        return f"float ({dtype})"
    return str(dtype)


def coerce(value: pl.Expr, given: pl.DataType, wanted: pl.DataType, pattern: str | None = None) -> pl.Expr | None:
    """The expression that reads ``value``, of type ``given``, as ``wanted``; None if there is none.

    Args:
        value: the raw value.
        given: its type.
        wanted: the declared type.
        pattern: how text is parsed into a date or time, in chrono's letters; ISO 8601 if not given.
    """
    if given == wanted:
        return value
    if given == pl.Null:
        return value.cast(wanted)
    if given == pl.String:
        return _parse(value, wanted, pattern)
    if _is_number(given) and _is_number(wanted):
        return _resize(value, given, wanted)
    return value.cast(wanted, strict=False) if _fits(given, wanted) else None


def _is_number(dtype: pl.DataType) -> bool:
    return dtype.is_numeric() or dtype == pl.Boolean


def _resize(value: pl.Expr, given: pl.DataType, wanted: pl.DataType) -> pl.Expr:
    cast = value.cast(wanted, strict=False)
    if wanted.is_integer() and not (given.is_integer() or given == pl.Boolean):
        # 1.5 is not the integer 1: a value that the cast changes is refused, not cut off.
        return pl.when(cast.cast(given, strict=False) == value).then(cast)
    return cast


def _fits(given: pl.DataType, wanted: pl.DataType) -> bool:
    """Whether a cast between two types that are not numbers keeps every value."""
    if isinstance(wanted, pl.Datetime):
        if isinstance(given, pl.Datetime):
            # A time without a zone does not say which moment it is, so it is not made into one by a cast.
            return (given.time_zone is None) == (wanted.time_zone is None)
        return given == pl.Date and wanted.time_zone is None
    if wanted == pl.String:
        return not given.is_nested() and given not in (pl.Binary, pl.Object)
    if isinstance(given, pl.List | pl.Array) and isinstance(wanted, pl.List | pl.Array):
        inner = given.inner, wanted.inner
        return coerce(pl.element(), *inner) is not None  # type: ignore[arg-type]
    return isinstance(given, pl.Categorical | pl.Enum) and isinstance(wanted, pl.Categorical | pl.Enum)


def _parse(text: pl.Expr, wanted: pl.DataType, pattern: str | None) -> pl.Expr | None:
    if wanted.is_numeric() or isinstance(wanted, pl.Categorical | pl.Enum):
        return text.cast(wanted, strict=False)
    if wanted == pl.Boolean:
        lowered = text.str.to_lowercase()
        return pl.when(lowered.is_in(["true", "false"])).then(lowered == "true")
    if isinstance(wanted, pl.Datetime):
        parsed = text.str.to_datetime(pattern or "%Y-%m-%dT%H:%M:%S%.f", time_unit=wanted.time_unit, strict=False)
        if wanted.time_zone is None:
            return parsed
        # Text without an offset is a time in the contract's zone; a time that the clocks skip or repeat is refused.
        return parsed.dt.replace_time_zone(wanted.time_zone, ambiguous="null", non_existent="null")
    if wanted == pl.Date:
        return text.str.to_date(pattern or "%Y-%m-%d", strict=False)
    return text.str.to_time(pattern or "%H:%M:%S%.f", strict=False) if wanted == pl.Time else None
