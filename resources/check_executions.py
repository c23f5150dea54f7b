"""Asset check evaluations as Dagster keeps them in its table of check executions, for many partitions at once."""

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg
from dagster._core.events.log import EventLogEntry
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable
from sqlalchemy import bindparam, insert, select, update
from sqlalchemy.engine import Connection


def evaluation_row(event: EventLogEntry, event_id: int, row: Mapping[str, Any]) -> dict[str, Any]:
    """Where and as what an evaluation is kept: see ``_update_asset_check_evaluation`` of Dagster's."""
    evaluation = event.get_dagster_event().asset_check_evaluation_data
    status, target = AssetCheckExecutionRecordStatus, evaluation.target_materialization_data
    return {
        "of_asset": evaluation.asset_key.to_string(),
        "of_check": evaluation.check_name,
        "of_run": event.run_id,
        "of_partition": evaluation.partition,
        "execution_status": (status.SUCCEEDED if evaluation.passed else status.FAILED).value,
        "evaluation_event": row["event"],
        "evaluation_event_timestamp": row["timestamp"],
        "evaluation_event_storage_id": event_id,
        "materialization_event_storage_id": target.storage_id if target else None,
    }


def store_evaluations(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Answer the evaluations that a run has planned, and add those that it has not."""
    table = AssetCheckExecutionsTable.c
    runs = sorted({row["of_run"] for row in rows})
    planned = select(table.asset_key, table.check_name, table.run_id, table.partition).where(table.run_id.in_(runs))
    known = {tuple(each) for each in connection.execute(planned)}
    new: list[dict[str, Any]] = []
    again: list[dict[str, Any]] = []
    for row in rows:
        place = (row["of_asset"], row["of_check"], row["of_run"], row["of_partition"])
        (again if place in known else new).append(row)
        known.add(place)
    if new:
        connection.execute(_NEW_EVALUATION, new)
    if again and connection.execute(_PLANNED_EVALUATION, again).rowcount != len(again):
        raise dg.DagsterInvariantViolationError("a check was planned twice for one partition of one run")


_PLACE = {"asset_key": "of_asset", "check_name": "of_check", "run_id": "of_run", "partition": "of_partition"}
_NEW_EVALUATION = insert(AssetCheckExecutionsTable).values(
    {column: bindparam(name) for column, name in _PLACE.items()}
    | {
        column: bindparam(column)
        for column in (
            "execution_status",
            "evaluation_event",
            "evaluation_event_timestamp",
            "evaluation_event_storage_id",
            "materialization_event_storage_id",
        )
    }
)
_PLANNED_EVALUATION = update(AssetCheckExecutionsTable).where(
    *(AssetCheckExecutionsTable.c[column].is_not_distinct_from(bindparam(name)) for column, name in _PLACE.items())
)
