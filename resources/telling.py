"""What a step has to say of hundreds of partitions, stored at once.

Belongs here: the way from a step to the event log. What is said is of ``assets/report.py``.
"""

import logging
import os
import time
from collections.abc import Callable, Collection, Iterable
from functools import partial
from itertools import islice

import dagster as dg
from dagster._core.events import DagsterEvent, StepMaterializationData
from dagster._core.events.log import EventLogEntry

from resources.event_log import TOGETHER, PooledEventLog

Told = dg.AssetMaterialization | dg.AssetCheckEvaluation
"""What is told of a partition."""


def tell(context: dg.OpExecutionContext | dg.AssetExecutionContext, told: Iterable[Told]) -> None:
    """Store what a step has to say of its partitions, a few hundred events in one transaction if the instance can.

    An event that is yielded goes through Dagster's generators, its signal handlers and its loggers, each by itself,
    which for the thousands of a year takes longer than to store them. What is stored is the same, in the same order.

    Args:
        context: of the step.
        told: materializations and evaluations, in order.
    """
    step = context.get_step_execution_context()
    of_step = partial(
        DagsterEvent,
        job_name=step.job_name,
        step_handle=step.step.handle,
        node_handle=step.step.node_handle,
        step_kind_value=step.step.kind.value,
        logging_tags=step.event_tags,
        pid=os.getpid(),
    )
    given = iter(told)
    while some := [_entry(context.run.run_id, of_step, each) for each in islice(given, TOGETHER)]:
        context.instance.event_log_storage.store_event_batch(some)


def _entry(run_id: str, of_step: Callable[..., DagsterEvent], told: Told) -> EventLogEntry:
    data: dg.AssetCheckEvaluation | StepMaterializationData
    if isinstance(told, dg.AssetCheckEvaluation):
        kind, data = dg.DagsterEventType.ASSET_CHECK_EVALUATION, told
        message = f"Asset check '{told.check_name}' on '{told.asset_key.to_user_string()}' " + (
            "passed." if told.passed else "did not pass."
        )
        if told.description:
            message += f" Description: '{told.description}'"
    else:
        kind, data = dg.DagsterEventType.ASSET_MATERIALIZATION, StepMaterializationData(told)
        message = told.description or f"Materialized value {told.label}."
    event = of_step(event_type_value=kind.value, event_specific_data=data, message=message)
    return EventLogEntry(  # type: ignore[no-untyped-call]  # as Dagster declares it
        error_info=None,
        level=logging.DEBUG,
        user_message="",
        run_id=run_id,
        timestamp=time.time(),
        step_key=event.step_key,
        job_name=event.job_name,
        dagster_event=event,
    )


def withdraw_planned(instance: dg.DagsterInstance, run_id: str, checks: Collection[dg.AssetCheckKey]) -> bool:
    """Withdraw what a run has planned of some checks; False, with nothing withdrawn, if the instance cannot."""
    storage = instance.event_log_storage
    if not isinstance(storage, PooledEventLog):
        return False
    storage.withdraw_planned(run_id, checks)
    return True
