"""How a value as it came becomes one of the declared type: parsed, never guessed, never cut off.

A coercion gives null where the value cannot be read; the gate then knows that the raw value was there and refuses the
row with the raw value kept. ``None`` means that there is no way from one type to the other at all: the column has the
wrong type.

This is where the gate means to differ from pandera, which casts as polars does:

- A cast that would change the value is refused: 1.5 is not the integer 1, 2 is not true, 1.234 is not a decimal with
  two digits, 12:30 on a day is not that day, 1e300 does not fit in 32 bits. pandera takes what the cast leaves over.
  (A float becomes the nearest float or decimal of the declared type, for it is an approximation itself.)
- Text is parsed into dates, times and truth values (ISO 8601 or the field's ``format``; true and false); polars has no
  such cast, so that pandera refuses them all.
- A number is not a date, a time without a zone is not a moment, bytes are not text and a struct with other fields is
  not the same struct: polars would cast them by a convention that the source may not share.
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
    if isinstance(given, pl.List | pl.Array) and isinstance(wanted, pl.List | pl.Array):
        return _each(value, given, wanted)
    return _convert(value, given, wanted)


def _convert(value: pl.Expr, given: pl.DataType, wanted: pl.DataType) -> pl.Expr | None:
    if _is_number(given) and _is_number(wanted):
        return _resize(value, given, wanted)
    if wanted == pl.String and not given.is_nested() and given not in (pl.Binary, pl.Duration, pl.Object):
        return value.cast(wanted)
    if isinstance(given, pl.Categorical | pl.Enum) and isinstance(wanted, pl.Categorical | pl.Enum):
        return value.cast(wanted, strict=False)
    return _unchanged(value, given, wanted) if _is_same_time(given, wanted) else None


def _is_number(dtype: pl.DataType) -> bool:
    return dtype.is_numeric() or dtype == pl.Boolean


def _unchanged(value: pl.Expr, given: pl.DataType, wanted: pl.DataType) -> pl.Expr:
    """The cast where casting back gives the same value, and null elsewhere."""
    cast = value.cast(wanted, strict=False)
    return pl.when(cast.cast(given, strict=False) == value).then(cast)


def _resize(value: pl.Expr, given: pl.DataType, wanted: pl.DataType) -> pl.Expr:
    if given == pl.Boolean and wanted.is_decimal():
        return value.cast(pl.Int8).cast(wanted)  # polars has no cast of its own
    if given.is_decimal() and wanted == pl.Boolean:
        return pl.when(value == 0).then(pl.lit(value=False)).when(value == 1).then(pl.lit(value=True))
    cast = value.cast(wanted, strict=False)
    if given.is_float() and wanted.is_float():
        return pl.when(cast.is_infinite() == value.is_infinite()).then(cast)
    if {given.is_float(), wanted.is_float()} == {True, False} and (given.is_decimal() or wanted.is_decimal()):
        return cast
    return _unchanged(value, given, wanted)


def _is_same_time(given: pl.DataType, wanted: pl.DataType) -> bool:
    """Whether two types say the same about time, in other units."""
    if isinstance(given, pl.Datetime) and isinstance(wanted, pl.Datetime):
        # A time without a zone does not say which moment it is, so it is not made into one by a cast.
        return (given.time_zone is None) == (wanted.time_zone is None)
    if isinstance(given, pl.Duration):
        return isinstance(wanted, pl.Duration)
    day, moment = (given, wanted) if given == pl.Date else (wanted, given)
    return day == pl.Date and isinstance(moment, pl.Datetime) and moment.time_zone is None


def _each(value: pl.Expr, given: pl.List | pl.Array, wanted: pl.List | pl.Array) -> pl.Expr | None:
    """A list is read if each of its elements is."""
    of, to = given.inner, wanted.inner
    element = coerce(pl.element(), of, to)  # type: ignore[arg-type]
    if element is None:
        return None
    values = value.arr.to_list() if isinstance(given, pl.Array) else value
    if of != to:
        lost = values.list.eval(pl.element().is_not_null() & element.is_null()).list.any()
        values = pl.when(~lost).then(values.list.eval(element))
    if isinstance(wanted, pl.Array):
        values = pl.when(values.list.len() == wanted.size).then(values).cast(wanted)
    return values


def _parse(text: pl.Expr, wanted: pl.DataType, pattern: str | None) -> pl.Expr | None:
    if isinstance(wanted, pl.Decimal):
        # polars rounds digits that do not fit away; a zero behind the last one is none.
        too_fine = text.str.contains(rf"\.\d{{{wanted.scale}}}\d*[1-9]")
        return pl.when(~too_fine).then(text.cast(wanted, strict=False))
    if wanted == pl.Boolean:
        lowered = text.str.to_lowercase()
        return pl.when(lowered.is_in(["true", "false"])).then(lowered == "true")
    if wanted.is_temporal():
        return _parse_time(text, wanted, pattern)
    return None if wanted.is_nested() or wanted == pl.Object else text.cast(wanted, strict=False)


def _parse_time(text: pl.Expr, wanted: pl.DataType, pattern: str | None) -> pl.Expr | None:
    if wanted == pl.Date:
        return text.str.to_date(pattern or "%Y-%m-%d", strict=False)
    if wanted == pl.Time:
        return text.str.to_time(pattern or "%H:%M:%S%.f", strict=False)
    if not isinstance(wanted, pl.Datetime):
        return None
    parsed = text.str.to_datetime(pattern or "%Y-%m-%dT%H:%M:%S%.f", time_unit=wanted.time_unit, strict=False)
    if wanted.time_zone is None:
        return parsed
    # Text without an offset is a time in the contract's zone; a time that the clocks skip or repeat is refused.
    return parsed.dt.replace_time_zone(wanted.time_zone, ambiguous="null", non_existent="null")
