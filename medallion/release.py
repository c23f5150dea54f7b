"""Replaying just the partitions that hold refused rows, after what was at fault has been mended.

What the partitions are made of is brought up to date first, then they are made anew, then what is built from those that
changed. A partition for which nothing has changed is left alone, so its rows stay refused, and nothing is written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from medallion.outcomes import Committed, Report
from medallion.project import Project
from medallion.quarantine import outstanding
from medallion.refine import Run, refine
from medallion.released import released
from medallion.state import Standing, fold
from medallion.tables import Input, Table

__all__ = ["Replayed", "replay_refused"]


@dataclass(frozen=True)
class Replayed:
    """What a replay of refused rows came to.

    Attributes:
        reports: of every table that something was done with, in order.
        asked: the partitions that held refused rows.
        released: rows that left the quarantine, by partition.
    """

    table: str
    reports: tuple[Report, ...]
    asked: tuple[str, ...]
    released: dict[str, int]

    @property
    def complete(self) -> bool:
        """Whether every partition is in place."""
        return not any(report.refused for report in self.reports)


def replay_refused(
    project: Project, run: Run, table: Table, *, rule: str | None = None, keys: Collection[str] | None = None
) -> Replayed:
    """Replay the partitions of a table that hold refused rows, with what they are made of and what is made of them.

    Args:
        project: the declared tables.
        run: the lake, and the landing zone if sources or reference files were mended.
        table: a silver table.
        rule: only partitions in which this rule refuses rows.
        keys: only these partitions.
    """
    found = outstanding(project, run.lake, [table.path], rule=rule, keys=keys)
    asked = tuple(dict.fromkeys(each.partition for each in found))
    reports = list(_upstream(project, run, table, asked)) if asked else []
    mine = refine(table, asked, run)
    changed = {table.path: _committed(mine)}
    reports += [mine, *_downstream(project, run, table, changed)]
    freed = {
        key: released(outcome.was, outcome.verdict).total()
        for key, outcome in mine.outcomes.items()
        if isinstance(outcome, Committed)
    }
    return Replayed(table.path, tuple(reports), asked, {key: rows for key, rows in freed.items() if rows})


def _committed(report: Report) -> set[str]:
    return {key for key, outcome in report.outcomes.items() if isinstance(outcome, Committed)}


def _upstream(project: Project, run: Run, table: Table, keys: Collection[str]) -> Iterator[Report]:
    """Bring what some partitions are made of up to date, from the sources on."""
    needed: dict[str, set[str]] = defaultdict(set)
    needed[table.path] = set(keys)
    for each in reversed(project.tables):
        for key in needed.get(each.path, ()):
            for given in each.inputs.values():
                needed[given.table.path].update(given.keys_for(each.partition, key))
            for reference in each.references.values():
                needed[reference.table.path].update(reference.table.partition.keys())
    for each in project.tables:
        if each is table or each.path not in needed:
            continue
        states = fold(project, run.lake, run.landing, [each.path])[each.path]
        waiting = [
            key
            for key in needed[each.path]
            if states[key].standing in {Standing.STALE, Standing.MISSING} and states[key].undelivered is None
        ]
        if waiting and (each.layer != "bronze" or run.landing is not None):
            yield refine(each, waiting, run)


def _downstream(project: Project, run: Run, table: Table, changed: dict[str, set[str]]) -> Iterator[Report]:
    """Make anew what is built from partitions that changed, from table to table."""
    for each in project.tables:
        if each is table:
            continue
        read = [given for given in each.inputs.values() if changed.get(given.table.path)]
        keys = [key for key in each.partition.keys() if any(_reads(given, each, key, changed) for given in read)]  # noqa: SIM118
        if keys:
            report = refine(each, keys, run)
            changed[each.path] = _committed(report)
            yield report


def _reads(given: Input, table: Table, key: str, changed: dict[str, set[str]]) -> bool:
    return not changed[given.table.path].isdisjoint(given.keys_for(table.partition, key))
