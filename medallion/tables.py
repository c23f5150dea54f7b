"""Declarations: what the tables are, what each is built from, and by which function. Frozen; no data is touched here.

``bronze`` declares what a source delivers, ``silver`` and ``gold`` decorate a transform. Inputs are the declared tables
themselves, so that a misspelt one is a ``NameError`` and a mismatch fails when the feed is imported.
"""

from __future__ import annotations

import datetime as dt
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

import pandera.polars as pa
import polars as pl

from medallion.contract import METADATA_KEY
from medallion.declarations import (
    check_columns,
    check_name,
    check_options,
    check_parameters,
    check_references,
    check_types,
    check_use_by_key,
)
from medallion.digests import digest, digest_function
from medallion.errors import DeclarationError
from medallion.gate import Gate, schema_of
from medallion.partitions import Partitioning, TimePartitioning, Whole

__all__ = ["SOURCE_COLUMNS", "Input", "Sql", "Table", "bronze", "gold", "gold_sql", "silver"]

SOURCE_COLUMNS = ("_source_file", "_source_row", "_source_sha256")
"""Columns that bronze adds to every row: the file's name in the landing zone, the 1-based row in it after the header,
and the SHA-256 of the file's bytes. A silver transform keeps them (``with_columns``, ``rename`` and ``filter`` do)."""

LAYERS = ("bronze", "silver", "gold")


@dataclass(frozen=True)
class Input:
    """A table as another one reads it.

    Attributes:
        table: the table that is read.
        days: how many days back the window reaches, the partition's own day included; 1 is the same window.
        by: the column through which rows of a reference table are used; None if the input counts whole.
    """

    table: Table
    days: int = 1
    by: str | None = None

    def keys_for(self, target: Partitioning, key: str) -> tuple[str, ...]:
        """The partitions of the input that partition ``key`` of a table cut like ``target`` is built from."""
        mine = self.table.partition
        if self.days == 1 and (mine is target or mine == target):
            return (key,)
        if isinstance(mine, Whole):
            return mine.keys()
        if isinstance(mine, TimePartitioning) and isinstance(target, TimePartitioning):
            start, end = target.window(key)
            return mine.overlapping(start - dt.timedelta(days=self.days - 1), end)
        return (key,)

    def check_against(self, target: Partitioning, where: str) -> None:
        """Refuse an input whose partitions cannot be mapped to those of ``target``."""
        mine = self.table.partition
        if isinstance(mine, Whole) or mine == target:
            return
        both_time = isinstance(mine, TimePartitioning) and isinstance(target, TimePartitioning)
        if not both_time:
            raise DeclarationError(
                f"{where}: input {self.table.path} is partitioned by {mine}, and this table by {target}. A table can "
                "read tables with the same partitions, time partitions of another length, or unpartitioned ones."
            )
        if mine.timezone != target.timezone:  # type: ignore[attr-defined]
            raise DeclarationError(f"{where}: input {self.table.path} has its days in another time zone")


@dataclass(frozen=True)
class Sql:
    """A transform written as one SQL query, run by DuckDB over views that are named like the inputs."""

    query: str


Transform = Callable[..., pl.LazyFrame] | Sql | None


@dataclass(frozen=True, eq=False)
class Table:
    """One table of the lake. Two tables are the same only if they are the same declaration.

    Attributes:
        layer: ``bronze``, ``silver`` or ``gold``.
        name: unique in its layer.
        partition: how it is cut.
        inputs: what it is built from, by the name that the transform gives it.
        transform: a pure function of lazy frames, an SQL query, or None for bronze.
        schema: the contract's pandera schema; None for bronze, which takes what comes.
        key: columns that identify a row within a partition; rows are stored in this order.
        partitionwise: the transform may be given many partitions at once, because it never mixes rows of different
            values of the partition column.
        max_quarantined: the share of rows (0 to 1) above which a partition is blocked instead of published in part:
            one number for all rules together, or one by rule id, with ``"*"`` for all together.
        revision: a commit whose revision is lower than the live one is refused.
        source: bronze only: the path in the landing zone, with the partition column in braces.
        manifest: bronze only: the path of a JSON file beside the source's, which says its ``rows``, ``sha256`` or both.
        trailer: bronze only: what stands in the first column of a CSV file's last line, with the number of rows behind.
        closed: bronze only: partitions for which the source says that there is nothing, with the reason.
        version_column: of several rows with one key, the one with the highest value here wins.
    """

    layer: str
    name: str
    partition: Partitioning
    inputs: Mapping[str, Input] = field(default_factory=dict)
    transform: Transform = None
    schema: pa.DataFrameSchema | None = None
    contract: Any = None
    key: tuple[str, ...] = ()
    partitionwise: bool = False
    max_quarantined: float | Mapping[str, float] = 1.0
    revision: int = 1
    source: str | None = None
    manifest: str | None = None
    trailer: str | None = None
    closed: Mapping[str, str] = field(default_factory=dict)
    version_column: str | None = None
    description: str = ""
    owners: tuple[str, ...] = ()
    chart: str | None = None

    @property
    def path(self) -> str:
        """``layer/name``: its name everywhere."""
        return f"{self.layer}/{self.name}"

    @property
    def quarantine_path(self) -> str | None:
        """Where its refused rows lie; None for bronze, which refuses none, and gold, which is published whole."""
        return f"quarantine/{self.name}" if self.layer == "silver" else None

    def trailing(self, *, days: int) -> Input:
        """This table as an input that reaches back over ``days`` days, the partition's own included."""
        if days < 1 or not isinstance(self.partition, TimePartitioning):
            raise DeclarationError(f"{self.path}.trailing(days={days}): needs a time-partitioned table and days >= 1")
        return Input(self, days=days)

    def by(self, column: str) -> Input:
        """This reference table as an input that counts only with the rows whose ``column`` a partition uses."""
        if not isinstance(self.partition, Whole):
            raise DeclarationError(f"{self.path}.by({column!r}): only an unpartitioned table can be used by key")
        return Input(self, by=column)

    @property
    def references(self) -> dict[str, Any]:
        """The ``known_in`` references of the contract, by column."""
        columns = self.schema.columns if self.schema is not None else {}
        found = {
            name: (column.metadata or {}).get(METADATA_KEY, {}).get("known_in") for name, column in columns.items()
        }
        return {name: reference for name, reference in found.items() if reference is not None}

    @cached_property
    def gate(self) -> Gate:
        """What judges its rows; bronze has none, since it takes what comes."""
        return Gate(self.schema, self.key, self.partition, self.path, self.max_quarantined, self.version_column)

    @cached_property
    def transform_digest(self) -> str:
        """Names what the transform does; changes when its code, or a helper of the same project, does."""
        if isinstance(self.transform, Sql):
            return digest("sql", " ".join(self.transform.query.split()))
        if self.transform is None:
            return digest("source", self.source, self.trailer)
        return digest_function(self.transform)

    def __deepcopy__(self, memo: dict[int, Any]) -> Table:
        # pandera copies a column's metadata, references to tables included; a copied declaration would be another one.
        return self

    def __repr__(self) -> str:
        return f"<{self.path}>"


def bronze(
    name: str,
    *,
    source: str,
    partition: Partitioning | None = None,
    manifest: str | None = None,
    trailer: str | None = None,
    closed: Mapping[str, str] | None = None,
    revision: int = 1,
    description: str = "",
    owners: Sequence[str] = (),
) -> Table:
    """Declare what a source delivers: one CSV or Parquet file a partition, kept exactly as it came.

    CSV columns are kept as text, Parquet columns with their types. Columns that turn up later are kept too.

    Args:
        name: of the table.
        source: path in the landing zone, with the partition column in braces: ``"transactions/{day}.csv"``.
        partition: how it is cut; one unpartitioned table if not given.
        manifest: path of a JSON file that is delivered beside each source file and says its ``rows``, its ``sha256``
            or both, as ``"transactions/{day}.json"``; a file that is not what it says fails.
        trailer: for CSV files that end with a line such as ``END,4031``: the text in its first column. A file without
            that line, or with another number of rows before it, fails; the line is no row.
        closed: keys for which there is to be no file, with the reason; such a partition is committed empty.
        revision: see :class:`Table`.
        description: for people.
        owners: e-mail addresses or ``team:name``.

    Raises:
        DeclarationError: if the source does not name the partition column, or has an unknown ending.
    """
    cut = partition or Whole()
    where = f"bronze({name!r})"
    check_name(name, where)
    if not isinstance(cut, Whole) and f"{{{cut.column}}}" not in source:
        raise DeclarationError(
            f"{where}: source {source!r} does not contain {{{cut.column}}}, so all keys share a file"
        )
    if source.startswith("/") or ".." in source.split("/"):
        raise DeclarationError(f"{where}: source {source!r} leads out of the landing zone; write a path inside it")
    if not source.endswith((".csv", ".parquet")):
        raise DeclarationError(f"{where}: source {source!r} must end in .csv or .parquet")
    if manifest is not None and not isinstance(cut, Whole) and f"{{{cut.column}}}" not in manifest:
        raise DeclarationError(f"{where}: manifest {manifest!r} does not contain {{{cut.column}}}, as the source does")
    if trailer is not None and not source.endswith(".csv"):
        raise DeclarationError(f"{where}: a trailer is a line of a CSV file, and the source is {source!r}")
    for key in closed or {}:
        cut.check(key)
    return Table(
        "bronze",
        name,
        cut,
        source=source,
        manifest=manifest,
        trailer=trailer,
        closed=MappingProxyType(dict(closed or {})),
        revision=revision,
        description=description,
        owners=tuple(owners),
        partitionwise=True,
    )


def silver(
    *,
    contract: Any,
    key: Sequence[str],
    partition: Partitioning | None = None,
    partitionwise: bool = False,
    max_quarantined: float | Mapping[str, float] = 0.1,
    revision: int = 1,
    version_column: str | None = None,
    owners: Sequence[str] = (),
    **inputs: Table | Input,
) -> Callable[[Callable[..., pl.LazyFrame]], Table]:
    """Declare a controlled transformation; the decorated function's docstring describes the table.

    Args:
        contract: a :class:`~medallion.contract.Contract` or a pandera ``DataFrameSchema``.
        key: columns that identify a row within its partition.
        partition: how it is cut; unpartitioned if not given.
        partitionwise: see :class:`Table`.
        max_quarantined: see :class:`Table`.
        revision: see :class:`Table`.
        version_column: see :class:`Table`.
        owners: e-mail addresses or ``team:name``.
        **inputs: what it is built from; the names are those of the function's parameters. The first one is the raw
            table whose rows are conserved: read = accepted + quarantined + collapsed.

    Raises:
        DeclarationError: naming what does not fit and what to write instead.
    """

    def decorate(function: Callable[..., pl.LazyFrame]) -> Table:
        return _refined(
            "silver", function.__name__, function, contract, key, partition, inputs,
            doc=function.__doc__, partitionwise=partitionwise, max_quarantined=max_quarantined, revision=revision,
            version_column=version_column, owners=tuple(owners),
        )  # fmt: skip

    return decorate


def gold(
    *,
    contract: Any,
    key: Sequence[str],
    partition: Partitioning | None = None,
    partitionwise: bool = False,
    revision: int = 1,
    owners: Sequence[str] = (),
    chart: str | None = None,
    **inputs: Table | Input,
) -> Callable[[Callable[..., pl.LazyFrame]], Table]:
    """Declare a publication; the decorated function's docstring describes the table.

    Gold is published whole: a row that breaks an ERROR rule blocks the partition, since a total without some of its
    rows is a wrong total.

    Args:
        contract: see :func:`silver`.
        key: see :func:`silver`.
        partition: see :func:`silver`.
        partitionwise: see :class:`Table`.
        revision: see :class:`Table`.
        owners: see :func:`silver`.
        chart: a numeric column whose totals are drawn over the partitions.
        **inputs: see :func:`silver`.

    Raises:
        DeclarationError: naming what does not fit and what to write instead.
    """

    def decorate(function: Callable[..., pl.LazyFrame]) -> Table:
        return _refined(
            "gold", function.__name__, function, contract, key, partition, inputs,
            doc=function.__doc__, partitionwise=partitionwise, max_quarantined=0.0, revision=revision,
            owners=tuple(owners), chart=chart,
        )  # fmt: skip

    return decorate


def gold_sql(
    name: str,
    sql: str,
    *,
    contract: Any,
    key: Sequence[str],
    description: str,
    partition: Partitioning | None = None,
    partitionwise: bool = False,
    revision: int = 1,
    owners: Sequence[str] = (),
    chart: str | None = None,
    **inputs: Table | Input,
) -> Table:
    """Declare a publication that is written as one SQL query, run by DuckDB over views named like the inputs.

    Args:
        name: of the table.
        sql: the query; its columns are those of the contract and, if ``partitionwise``, the partition column.
        contract: see :func:`gold`, as for everything else.
        key: see :func:`gold`.
        description: for people.
        partition: see :func:`gold`.
        partitionwise: see :func:`gold`.
        revision: see :func:`gold`.
        owners: see :func:`gold`.
        chart: see :func:`gold`.
        **inputs: see :func:`gold`.

    Raises:
        DeclarationError: naming what does not fit and what to write instead.
    """
    return _refined(
        "gold", name, Sql(sql), contract, key, partition, inputs,
        doc=description, partitionwise=partitionwise, max_quarantined=0.0, revision=revision,
        owners=tuple(owners), chart=chart,
    )  # fmt: skip


def _refined(  # noqa: PLR0917 - called by the three declarations above alone
    layer: str,
    name: str,
    transform: Callable[..., pl.LazyFrame] | Sql,
    contract: Any,
    key: Sequence[str],
    partition: Partitioning | None,
    inputs: Mapping[str, Table | Input],
    *,
    doc: str | None,
    **more: Any,
) -> Table:
    where = f"{layer} {name!r}"
    check_name(name, where)
    cut = partition or Whole()
    read = {given: each if isinstance(each, Input) else Input(each) for given, each in inputs.items()}
    if not read:
        raise DeclarationError(f"{where}: has no inputs; write them as keywords, as @{layer}(raw=export, ...)")
    for given, each in read.items():
        if not isinstance(each.table, Table):
            raise DeclarationError(f"{where}: input {given} is {each.table!r}, not a declared table")
        each.check_against(cut, where)
    check_parameters(transform, read, where)
    check_use_by_key(read, where)
    schema = schema_of(contract, where)
    check_columns(schema, cut, key, where)
    check_options(schema, cut, where, more)
    table = Table(
        layer, name, cut, inputs=MappingProxyType(read), transform=transform, schema=schema, contract=contract,
        key=tuple(key), description=inspect.cleandoc(doc or ""), **more,
    )  # fmt: skip
    check_references(table, where)
    check_types(table, where)
    return table
