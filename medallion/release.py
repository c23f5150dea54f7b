"""Replaying just the partitions that hold refused rows, after what was at fault has been mended.

What the partitions are made of is brought up to date first, if it is out of date; then they are made anew, and what is
built from those that changed. A partition for which nothing has changed is left alone, so its rows stay refused, and
nothing is written. Whatever else a mended reference table matters for is out of date then, as any plan tells.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from medallion.execution import execute
from medallion.outcomes import Committed, Report
from medallion.plan import Plan, Select
from medallion.planning import plan
from medallion.project import Project
from medallion.quarantine import outstanding
from medallion.refine import Run
from medallion.released import released
from medallion.tables import Table

__all__ = ["Release", "plan_release", "release"]


@dataclass(frozen=True)
class Release:
    """What a replay of refused rows came to.

    Attributes:
        reports: of every table that was visited, in order.
        released: rows that left the quarantine, by partition.
    """

    table: str
    reports: tuple[Report, ...]
    released: Mapping[str, int]

    @property
    def complete(self) -> bool:
        """Whether every partition is in place."""
        return not any(report.refused for report in self.reports)


def plan_release(
    project: Project, run: Run, table: Table, *, rule: str | None = None, keys: Collection[str] | None = None
) -> Plan | None:
    """What is to be made again so that refused rows can leave the quarantine; None if there are none.

    What is built from the partitions is not in it: that follows for those that have changed when it is done.

    Args:
        project: the declared tables.
        run: the lake, and the landing zone if sources or reference files were mended.
        table: a silver table.
        rule: only partitions in which this rule refuses rows.
        keys: only these partitions.
    """
    found = outstanding(project, run.lake, [table.path], rule=rule, keys=keys)
    asked = list(dict.fromkeys(each.partition for each in found))
    if not asked:
        return None
    settings: dict[str, Any] = {"select": {Select.ALL}, "slice_bytes": run.slice_bytes}
    mine = plan(project, run.lake, run.landing, table.path, asked, downstream=False, **settings)
    whole = plan(project, run.lake, run.landing, table.path, asked, upstream=True, **settings)
    # A mended reference table concerns every partition, and here only those are visited that hold refused rows.
    before = _built_from(table)
    return replace(whole, tables=(*(each for each in whole.tables if each.table in before), *mine.tables))


def _built_from(table: Table) -> set[str]:
    """The tables that a table is built from, at whatever remove."""
    found: set[str] = set()
    for each in (*table.inputs.values(), *table.references.values()):
        found |= {each.table.path, *_built_from(each.table)}
    return found


def release(made: Plan, project: Project, run: Run) -> Release:
    """Do what a plan of :func:`plan_release` says, and make anew what is built from the partitions that changed.

    Raises:
        PlanOutdated: before anything is written, if the lake or the code has moved since.
    """
    reports = execute(made, project, run)
    path = made.asked.table
    assert path is not None
    mine = next(report for report in reports if report.table == path)
    if mine.committed:
        after = plan(
            project, run.lake, None, path, mine.committed, select={Select.ALL}, slice_bytes=run.slice_bytes
        )  # fmt: skip
        after = replace(after, tables=tuple(each for each in after.tables if each.table != path))
        reports += execute(after, project, run)
    rows = {
        key: released(outcome.was, outcome.verdict).total()
        for key, outcome in mine.outcomes.items()
        if isinstance(outcome, Committed)
    }
    return Release(path, tuple(reports), {key: count for key, count in rows.items() if count})
