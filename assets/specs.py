"""Declarations as Dagster sees them: partitions, mappings, column schemas, kinds and owners."""

import datetime as dt
from functools import cache
from itertools import zip_longest
from math import ceil
from typing import Any

import dagster as dg
import polars as pl
from dagster._core.definitions.partitions.context import partition_loading_context

from medallion import partitions as cut
from medallion.errors import DeclarationError
from medallion.gate import FAILURES, WARNINGS
from medallion.planning import code_of
from medallion.tables import Input, Sql, Table

QUARANTINE_GROUP = "quarantine"
_WINDOWS_OF_A_DAY: dict[type[cut.Partitioning], float] = {cut.Hourly: 24, cut.Daily: 1, cut.Weekly: 1 / 7}


def asset_key(table: Table) -> dg.AssetKey:
    """``layer/name``."""
    return dg.AssetKey([table.layer, table.name])


def quarantine_key(table: Table) -> dg.AssetKey:
    """``quarantine/name``."""
    return dg.AssetKey([QUARANTINE_GROUP, table.name])


@cache
def partitions_definition(how: cut.Partitioning) -> dg.PartitionsDefinition | None:
    """The same partitions in Dagster, with the same keys; None for an unpartitioned table.

    Raises:
        DeclarationError: if Dagster would cut otherwise, naming the first key on which the two differ.
    """
    if isinstance(how, cut.Whole):
        return None
    if isinstance(how, cut.Keys):
        return dg.StaticPartitionsDefinition(list(how.values))
    if not isinstance(how, cut.TimePartitioning):
        raise DeclarationError(f"{how} has no counterpart in Dagster")
    found = _in_time(how)
    # Dagster lists the windows that have passed, so it is asked from a day on which all of them have.
    end = dt.datetime.fromisoformat(how.end).replace(tzinfo=dt.UTC) + dt.timedelta(days=40)
    with partition_loading_context(effective_dt=end):
        theirs = found.get_partition_keys()
    if list(theirs) != list(how.keys()):
        first = next(one or other for one, other in zip_longest(how.keys(), theirs) if one != other)
        raise DeclarationError(
            f"{how}: Dagster cuts this time otherwise, first at {first}. Let start and end be the ends of whole "
            "windows, and declare hours in a time zone that changes no clocks, as UTC."
        )
    return found


def _in_time(how: cut.TimePartitioning) -> dg.TimeWindowPartitionsDefinition:
    range_: dict[str, Any] = {"start_date": how.start, "end_date": how.end, "timezone": how.timezone}
    if isinstance(how, cut.Weekly):
        # Dagster counts weekdays from Sunday.
        offset = how.window(how.keys()[0])[0].isoweekday() % 7
        return dg.WeeklyPartitionsDefinition(**range_, day_offset=offset)
    if isinstance(how, cut.Monthly):
        return dg.MonthlyPartitionsDefinition(**range_)
    if isinstance(how, cut.Hourly):
        first, last = f"{how.start}-00", f"{how.end}-00"
        return dg.HourlyPartitionsDefinition(
            start_date=first, end_date=last, timezone=how.timezone, fmt=cut.Hourly.key_format
        )
    return dg.DailyPartitionsDefinition(**range_)


def dependency(given: Input, target: Table) -> dg.AssetDep:
    """An input as a dependency, with the mapping that the engine uses itself.

    Raises:
        DeclarationError: if Dagster has no such mapping.
    """
    mine = given.table.partition
    key = asset_key(given.table)
    if isinstance(mine, cut.Whole) or isinstance(target.partition, cut.Whole):
        return dg.AssetDep(key)
    if mine == target.partition and given.days == 1:
        return dg.AssetDep(key)
    # Windows are clipped at the ends of the declared range, as the engine clips them.
    mapping = dg.TimeWindowPartitionMapping(
        start_offset=-_windows_back(given, target), allow_nonexistent_upstream_partitions=True
    )
    return dg.AssetDep(key, partition_mapping=mapping)


def _windows_back(given: Input, target: Table) -> int:
    """How many windows before a partition's own one its input reaches; Dagster counts in windows, not in days."""
    if given.days == 1:
        return 0
    windows_of_a_day = _WINDOWS_OF_A_DAY.get(type(target.partition))
    if given.table.partition != target.partition or windows_of_a_day is None:
        raise DeclarationError(
            f"{target.path}: Dagster cannot follow {given.table.path}.trailing(days={given.days}) from "
            f"{given.table.partition} to {target.partition}. Declare the trailing window in a table that is cut like "
            f"{given.table.path}, by day, week or hour, and read that table here."
        )
    return ceil((given.days - 1) * windows_of_a_day)


def dependencies(table: Table) -> list[dg.AssetDep]:
    """Everything that a table is built from or refers to."""
    deps = {asset_key(each.table): dependency(each, table) for each in table.inputs.values()}
    for reference in table.references.values():
        deps.setdefault(asset_key(reference.table), dg.AssetDep(asset_key(reference.table)))
    return list(deps.values())


def code_version(table: Table) -> str:
    """The revision that a table declares, and a digest of its code and its contract."""
    return f"{table.revision}-{code_of(table)[:8]}"


def freshness(table: Table, today: dt.date) -> dg.FreshnessPolicy | None:
    """How often gold is to be made: once a window, with half a window's grace; None if its last window has passed."""
    if table.layer != "gold" or not isinstance(table.partition, cut.TimePartitioning):
        return None
    if dt.date.fromisoformat(table.partition.end) < today:
        return None
    first, last = table.partition.window(table.partition.keys()[0])
    return dg.FreshnessPolicy.time_window(fail_window=(last - first) * 1.5, warn_window=(last - first) * 1.25)


def asset_spec(table: Table, today: dt.date | None = None) -> dg.AssetSpec:
    """A table as an asset; ``today`` decides whether more is expected of it."""
    kinds = {"deltalake", "duckdb" if isinstance(table.transform, Sql) else "polars"}
    if table.source:
        kinds.add("parquet" if table.source.endswith(".parquet") else "csv")
    metadata: dict[str, object] = {"table": dg.MetadataValue.text(table.path)}
    if table.schema is not None:
        metadata["dagster/column_schema"] = _column_schema(table)
        metadata["key"] = ", ".join(table.key)
    return dg.AssetSpec(
        asset_key(table),
        deps=dependencies(table),
        description=table.description or None,
        group_name=table.layer,
        kinds=kinds,
        owners=list(table.owners),
        code_version=code_version(table),
        partitions_def=partitions_definition(table.partition),
        metadata={**metadata, "dagster/io_manager_key": "lake_reader"},
        freshness_policy=freshness(table, today or dt.datetime.now(dt.UTC).date()),
    )


def quarantine_spec(table: Table) -> dg.AssetSpec:
    """A table's quarantine: an external asset, which the table's own run reports."""
    columns = [dg.TableColumn(name, "text as it came") for name in table.schema.columns] if table.schema else []
    columns += [
        dg.TableColumn(FAILURES, "list of rule and severity", description="every rule that the row breaks"),
        dg.TableColumn("_source_file", "text"),
        dg.TableColumn("_source_row", "integer"),
        dg.TableColumn("_batch_id", "text"),
    ]
    return dg.AssetSpec(
        quarantine_key(table),
        deps=[asset_key(table)],
        description=f"Rows that {table.path} refused, with their values as they came and every reason.",
        group_name=QUARANTINE_GROUP,
        kinds={"deltalake"},
        owners=list(table.owners),
        partitions_def=partitions_definition(table.partition),
        metadata={"dagster/column_schema": dg.TableSchema(columns=columns)},
    )


def _column_schema(table: Table) -> dg.TableSchema:
    compiled = table.gate.compiled
    columns = []
    for column in compiled.columns:
        rules = [rule for rule in compiled.rules if rule.column == column.name and rule.scope != "shape"]
        schema_column = table.schema.columns[column.name] if table.schema is not None else None
        columns.append(
            dg.TableColumn(
                column.name,
                type=str(column.dtype),
                description=schema_column.description if schema_column is not None else None,
                constraints=dg.TableColumnConstraints(
                    nullable=column.nullable,
                    unique=table.key == (column.name,),
                    other=[f"{rule.id.rpartition('.')[2]} ({rule.severity.name})" for rule in rules],
                ),
            )
        )
    columns.append(
        dg.TableColumn(WARNINGS, str(pl.List(pl.String)), description="WARNING rules that the row breaks, null if none")
    )
    return dg.TableSchema(columns=columns)
