"""What is checked of a declaration when its feed is imported, so that a mistake is met there and not at night."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandera.polars as pa
import polars as pl

from medallion.errors import DeclarationError
from medallion.partitions import Partitioning, Whole
from medallion.staging import stored_type

if TYPE_CHECKING:
    from medallion.tables import Input, Sql, Table

__all__ = [
    "check_columns",
    "check_name",
    "check_options",
    "check_parameters",
    "check_references",
    "check_types",
    "check_use_by_key",
]

_NAME = re.compile(r"[a-z][a-z0-9_]*")


def check_parameters(transform: Callable[..., pl.LazyFrame] | Sql, read: Mapping[str, Input], where: str) -> None:
    """Refuse a transform whose parameters are not the inputs."""
    if not callable(transform):
        return  # an SQL query names its inputs itself
    wanted = list(inspect.signature(transform).parameters)
    if set(wanted) != set(read):
        raise DeclarationError(
            f"{where}: the function takes {wanted}, and the inputs are {list(read)}; give both alike"
        )


def check_use_by_key(read: Mapping[str, Input], where: str) -> None:
    """Refuse a reference that is used by a column which it, or every table that could use it, does not have."""
    for name, each in read.items():
        if each.by is None:
            continue
        users = [other.table for given, other in read.items() if given != name]
        if not _has_column(each.table, each.by):
            raise DeclarationError(f"{where}: input {name}: {each.table.path} has no column {each.by!r} to be used by")
        if not any(_has_column(user, each.by) and not isinstance(user.partition, Whole) for user in users):
            raise DeclarationError(
                f"{where}: input {name} is used by {each.by!r}, and no partitioned input has that column; give the "
                f"table itself, as {name}={each.table.name}, and all of it counts"
            )


def _has_column(table: Table, column: str) -> bool:
    """Whether a table has a column, as far as that is declared: bronze takes what comes."""
    return table.schema is None or column in table.schema.columns


def check_references(table: Table, where: str) -> None:
    """Refuse a ``known_in`` that is no column of an unpartitioned table."""
    for column, reference in table.references.items():
        if not isinstance(reference.table.partition, Whole):
            raise DeclarationError(
                f"{where}: column {column!r} is known_in {reference.table.path}, which is partitioned; a reference is "
                "an unpartitioned table, delivered complete"
            )
        if not _has_column(reference.table, reference.column):
            raise DeclarationError(
                f"{where}: column {column!r} is known_in {reference.table.path}, which has no column "
                f"{reference.column!r}"
            )


def check_options(schema: pa.DataFrameSchema, cut: Partitioning, where: str, options: Mapping[str, Any]) -> None:
    """Refuse settings that name no column, or have no meaning."""
    for option in ("version_column", "chart"):
        column = options.get(option)
        if column is not None and column not in {*schema.columns, cut.column}:
            raise DeclarationError(f"{where}: {option}={column!r} is not in the contract {list(schema.columns)}")
    if options["revision"] < 1:
        raise DeclarationError(f"{where}: revision={options['revision']}; revisions count from 1 upwards")


def check_columns(schema: pa.DataFrameSchema, cut: Partitioning, key: Sequence[str], where: str) -> None:
    """Refuse reserved names, a key that is not there, and a partition column of another type."""
    names = list(schema.columns)
    for column in names:
        if column.startswith(("_", ".")) or column == "*":
            raise DeclarationError(f"{where}: column {column!r} is reserved; names begin with a letter")
    if not key:
        raise DeclarationError(f"{where}: needs a key, the columns that identify a row, as key=['basket_id']")
    for column in key:
        if column not in names and column != cut.column:
            raise DeclarationError(f"{where}: key column {column!r} is not in the contract {names}")
    declared = schema.columns.get(cut.column)
    if declared is not None and declared.dtype is not None and declared.dtype.type != cut.dtype:
        raise DeclarationError(
            f"{where}: partition column {cut.column!r} is {cut.dtype} in {type(cut).__name__}, and the contract "
            f"says {declared.dtype}. A day kept as text would not be pruned or replaced as a day: declare it "
            f"as {cut.dtype}, leave it out, or cut the table by Keys(...)."
        )


def check_name(name: str, where: str) -> None:
    """Refuse a name that is no small word."""
    if not _NAME.fullmatch(name):
        raise DeclarationError(f"{where}: a table name is small letters, digits and '_', beginning with a letter")


def check_types(table: Table, where: str) -> None:
    """Refuse every check that could not be evaluated later, and every type that cannot be stored."""
    assert table.schema is not None
    for pattern, declared in table.schema.columns.items():
        if declared.regex:
            raise DeclarationError(f"{where}: column {pattern!r} is a pattern; a table's columns are named one by one")
    for column in table.gate.compiled.columns:
        if column.dtype is None:
            raise DeclarationError(f"{where}: column {column.name!r} has no type; a table needs one for every column")
        if stored_type(column.dtype) is None:
            raise DeclarationError(
                f"{where}: column {column.name!r} is {column.dtype}, which a Delta table has no type for; keep it as "
                "text or as a number"
            )
