"""Doing what a plan says: table by table in the order of lineage, slice by slice in the plan's order.

Execution visits exactly the partitions that the plan lists and reports an outcome for each. A partition whose inputs
turn out to be what they were is ``Unchanged`` without being made again; one whose input failed says so and stays as it
was. Nothing is remembered between executions but what is in the tables, so that a plan whose execution was killed is
resumed by executing it again: what was committed is found unchanged, and work goes on with the first slice that is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from medallion import savepoints
from medallion.errors import PlanOutdated
from medallion.lake import Snapshot
from medallion.outcomes import Report
from medallion.pipeline import refine_pieces
from medallion.plan import Plan, TablePlan
from medallion.planning import code_of
from medallion.project import Project
from medallion.refine import Run

__all__ = ["check_up_to_date", "execute", "moved", "remaining", "slices_of"]


def execute(
    plan: Plan,
    project: Project,
    run: Run,
    *,
    accept: bool = False,
    parallel: int = 1,
    told: Callable[[Report], None] = lambda report: None,
) -> list[Report]:
    """Bring the partitions of a plan to where their inputs and the code say they should be.

    Args:
        plan: the plan.
        project: the declared tables.
        run: the lake, the landing zone and everything else that a run needs; the plan's id and slices are added.
        accept: execute it although the lake or the code has moved since it was made. The partitions are the same; why
            they are visited, and what was left out, may no longer be right.
        parallel: how many slices are worked on at once, of different tables, each as soon as what it reads has been
            settled. The bytes of a slice are shared between them, so that the memory that is needed stays what it is.
        told: is given the report of each table as soon as there is one.

    A savepoint is made first, so that all of it can be taken back.

    Returns:
        a report for each table of the plan, in its order, with an outcome for each of its partitions.

    Raises:
        PlanOutdated: before anything is written, if the lake or the code has moved, unless ``accept``.
        UnknownTable: if a table is no longer declared.
        ConfigurationError: if bronze is to be made and the run has no landing zone.
        RestoreUnfinished: if a restore is open.
    """
    if not accept:
        check_up_to_date(plan, project, run)
    tables = [(project.table(each.table), each) for each in plan.tables]
    ours = replace(run, plan_id=plan.id, slice_bytes=plan.slice_bytes)
    if plan.partitions:
        savepoints.before(project, run.lake, f"the plan {plan.id}", run_id=run.run_id)
    slices = {table: list(slices_of(planned)) for table, planned in tables}
    reports = []
    for report in refine_pieces(slices, ours, at_once=parallel):
        reports.append(report)
        told(report)
    return reports


def slices_of(planned: TablePlan) -> Iterator[list[str]]:
    """The partitions of each slice, in the order in which they are visited."""
    keys, start = planned.keys, 0
    for piece in planned.slices:
        yield list(keys[start : start + piece.partitions])
        start += piece.partitions


def check_up_to_date(plan: Plan, project: Project, run: Run) -> None:
    """See to it that a plan still says what its execution would do.

    Raises:
        PlanOutdated: with what has moved.
    """
    found = moved(plan, project, run)
    if found:
        raise PlanOutdated(plan.id, tuple(found))


def moved(plan: Plan, project: Project, run: Run) -> list[str]:
    """What is no longer as it was when a plan was made: code, visited partitions, and what they are built on.

    Commits to other partitions do not count, however many there are, and neither do the plan's own.
    """
    found: list[str] = []
    for planned in plan.tables:
        table = project.table(planned.table)
        if code_of(table) != planned.code:
            found.append(f"the code or contract of {planned.table} has changed")
        snapshot = run.lake.pin(table.path, table.partition)
        was = {step.key: step.was for step in planned.steps}
        others = [key for key, batch in was.items() if snapshot.batch_id(key) != batch]
        if others:
            ours = _own(plan, snapshot)
            found += [
                f"{planned.table} {key} was committed by another run"
                for key in others
                if snapshot.batch_id(key) not in ours
            ]
    for path, keys in plan.stands.items():
        table = project.table(path)
        snapshot = run.lake.pin(path, table.partition)
        found += [
            f"{path} {key} has other content" for key, content in keys.items() if snapshot.content(key) != content
        ]
    return found


def _own(plan: Plan, snapshot: Snapshot) -> set[str]:
    """The batches of a table that executions of the plan have committed, as far as the log tells."""
    commits = snapshot.commits(plan.pinned.get(snapshot.path), partial=True) or []
    return {
        batch for commit in commits if commit.metadata.get("plan_id") == plan.id for batch in commit.batches.values()
    }


def remaining(plan: Plan, project: Project, run: Run) -> Mapping[str, list[str]]:
    """The partitions of a plan, by table, that no execution of it has committed yet; nothing is written."""
    found: dict[str, list[str]] = {}
    for planned in plan.tables:
        table = project.table(planned.table)
        snapshot = run.lake.pin(table.path, table.partition)
        ours = _own(plan, snapshot)
        found[table.path] = [key for key in planned.keys if snapshot.batch_id(key) not in ours]
    return found
