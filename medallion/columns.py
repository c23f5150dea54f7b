"""The columns of a schema: their types, how a raw value becomes one, and which columns a pattern stands for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pandera.polars as pa
import polars as pl

from medallion.contract import METADATA_KEY
from medallion.errors import DeclarationError

__all__ = ["Column", "check_names", "columns_of"]


@dataclass(frozen=True)
class Column:
    """One column of a contract: its type, and how a raw value becomes one.

    Attributes:
        dtype: None if the contract leaves it open.
        coerce: whether a value of another type is read as the declared one.
        default: takes the place of null.
        pattern: how text is parsed into a date or time; None is ISO 8601.
        accepts: whether pandera takes a polars type for the declared one.
        unmatched: a pattern that no column of the frame matches.
    """

    name: str
    dtype: pl.DataType | None
    required: bool
    nullable: bool
    coerce: bool
    default: Any = None
    pattern: str | None = None
    accepts: Callable[[pl.DataType], bool] = field(default=lambda dtype: True, compare=False, repr=False)
    unmatched: bool = False


_RESERVED = re.compile(r"(|\*|_row|_at|_partition|_holds|_warnings|_failures|_(mask|raw\.|source_|total_).*)")


def check_names(schema: pa.DataFrameSchema, where: str, partition: tuple[str, type[pl.DataType]] | None) -> None:
    """Refuse columns whose names mean something else to polars or to the engine.

    Raises:
        DeclarationError: naming the column.
    """
    for name, column in schema.columns.items():
        if not column.regex and (_RESERVED.fullmatch(name) or (name.startswith("^") and name.endswith("$"))):
            raise DeclarationError(f"{where}: no column can be called {name!r}: it means something else to the engine")
    if partition is not None and _RESERVED.fullmatch(partition[0]):
        raise DeclarationError(f"{where}: no partition column can be called {partition[0]!r}")


def columns_of(
    schema: pa.DataFrameSchema, where: str, frame: Mapping[str, pl.DataType] | None, partition: str
) -> Iterator[tuple[Column, pa.Column]]:
    """The columns of a schema, patterns spelled out, each with its declaration.

    Args:
        schema: the schema.
        where: the table, for messages.
        frame: columns and types of the frame that is to be judged; without it, patterns stand for one column.
        partition: the partition column, or empty.
    """
    if not schema.columns and schema.dtype is not None:
        # A type and no columns: every column that comes is to be of that type.
        for name in frame or ():
            if name != partition and not name.startswith("_source_"):
                plain = pa.Column(schema.dtype, name=name)
                yield _column(name, plain, schema, where), plain
    explicit = {name for name, column in schema.columns.items() if not column.regex}
    for name, column in schema.columns.items():
        if not column.regex:
            yield _column(name, column, schema, where), column
        elif frame is None:
            yield _column(_stand_in(name), column, schema, where), column
        else:
            pattern = re.compile(str(column.selector))
            matched = [each for each in frame if each not in explicit and pattern.search(each)]
            matched = [each for each in matched if not _RESERVED.fullmatch(each) and not each.startswith("^")]
            for each in matched:
                yield _column(each, column, schema, where), column
            if not matched and column.required:
                yield replace(_column(name, column, schema, where), unmatched=True), column


def _stand_in(pattern: str) -> str:
    return "matching_" + re.sub(r"\W+", "_", pattern).strip("_")


def _column(name: str, column: pa.Column, schema: pa.DataFrameSchema, where: str) -> Column:
    declared = schema.dtype if schema.dtype is not None else column.dtype
    dtype: Any = None if declared is None else declared.type
    if declared is not None and type(declared).__name__ in {"PanderaSchema", "PydanticModel"}:
        raise DeclarationError(
            f"{where}: column {name!r} nests another schema, whose rows cannot be told apart in one query; "
            "declare it as pl.Struct and write rules on its fields, as pl.col('x').struct.field('y')"
        )
    if dtype is not None and not isinstance(dtype, pl.DataType):
        dtype = dtype()
    pattern = (column.metadata or {}).get(METADATA_KEY, {}).get("format")

    def accepts(given: pl.DataType) -> bool:
        return declared is None or bool(declared.check(given, None))

    coerce = bool(column.coerce or schema.coerce) and declared is not None
    return Column(name, dtype, column.required, column.nullable, coerce, column.default, pattern, accepts)
