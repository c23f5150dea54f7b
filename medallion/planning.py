"""How a plan (``plan.py``) is made: from what is asked for, what stands, and what is built from what."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Sequence
from functools import cached_property

from medallion.closure import affected, needed
from medallion.digests import digest
from medallion.estimates import Estimates
from medallion.lake import Lake
from medallion.plan import DEFAULT, Asked, Plan, Select, Step, TablePlan
from medallion.project import Project
from medallion.refine import Run
from medallion.sources import LandingZone
from medallion.stale import contract_digest
from medallion.state import Cause, PartitionState, Reason, Standing, Survey
from medallion.tables import Table

__all__ = ["code_of", "plan", "plan_again"]


def code_of(table: Table) -> str:
    """Names what a table's declared code makes of its inputs."""
    return digest(table.revision, table.transform_digest, contract_digest(table))


def plan(
    project: Project,
    lake: Lake,
    landing: LandingZone | None = None,
    table: str | None = None,
    keys: Sequence[str] | None = None,
    *,
    select: Collection[Select | str] = DEFAULT,
    downstream: bool = True,
    upstream: bool = False,
    newest_first: bool = False,
    slice_bytes: int = Run.slice_bytes,
    now: dt.datetime | None = None,
) -> Plan:
    """Say what is to be made again, and change nothing.

    Args:
        project: the declared tables.
        lake: where they lie.
        landing: where sources deliver; without one, neither changed nor new source files are seen.
        table: the table that is asked for, as ``layer/name``; all of them if not given: then gaps are found.
        keys: partitions of that table; all if not given.
        select: which of them; see :class:`Select`.
        downstream: visit what is built from them, too.
        upstream: first make what they need, where it is selected likewise.
        newest_first: newest partitions first, in each table; oldest first if not.
        slice_bytes: estimated bytes in memory of a slice, which is one commit.
        now: when the plan was made, for the record.

    Raises:
        UnknownTable: if there is no such table.
        UnknownPartition: if the table has no such partition.
        TableUnreadable: if a newer engine wrote something that is looked at.
    """
    if table is not None and keys is not None:
        cut = project.table(table).partition
        keys = [key for key in cut.keys() if key in {cut.check(each) for each in keys}]  # noqa: SIM118
    asked = Asked(
        project.table(table).path if table is not None else None,
        None if keys is None else tuple(keys),
        tuple(sorted({Select(each) for each in select})),
        downstream,
        upstream,
        newest_first,
    )
    survey = Survey(project, lake, landing, _looked_at(project, asked))
    return _Planning(survey, asked, slice_bytes).plan(now or dt.datetime.now(dt.UTC))


def plan_again(made: Plan, project: Project, lake: Lake, landing: LandingZone | None = None) -> Plan:
    """The answer to a plan's question as things stand now."""
    asked = {name: getattr(made.asked, name) for name in made.asked.__dataclass_fields__}
    return plan(project, lake, landing, **asked, slice_bytes=made.slice_bytes)


def _looked_at(project: Project, asked: Asked) -> list[str] | None:
    """The tables whose state matters for a question: the one that is asked for, and those before and behind it."""
    if asked.table is None:
        return None
    wanted = {asked.table}
    for each in project.tables if asked.downstream else ():
        if wanted & _built_from(each):
            wanted.add(each.path)
    behind = {asked.table}
    for each in reversed(project.tables) if asked.upstream else ():
        if each.path in behind:
            behind |= _built_from(each)
    return [each.path for each in project.tables if each.path in wanted | behind]


def _built_from(table: Table) -> set[str]:
    return {each.table.path for each in (*table.inputs.values(), *table.references.values())}


class _Planning:
    """The work on one plan."""

    def __init__(self, survey: Survey, asked: Asked, slice_bytes: int) -> None:
        self.survey, self.asked, self.slice_bytes = survey, asked, slice_bytes
        self.chosen: dict[str, dict[str, tuple[Reason, ...]]] = {}
        self.waiting: dict[str, dict[str, str]] = {}
        self._upstream = self._needed_by_what_is_asked() if asked.upstream and asked.table is not None else {}

    def plan(self, now: dt.datetime) -> Plan:
        """The plan, with all that its execution is held against."""
        estimates = Estimates(self.survey)
        tables = []
        for table in self.survey.tables:
            self.chosen[table.path] = self._choose(table)
            keys = list(self.chosen[table.path])
            if keys:
                slices, seconds = estimates.of(table, keys, self.slice_bytes, newest_first=self.asked.newest_first)
                if self.asked.newest_first:
                    keys.reverse()
                states = self.survey.states[table.path]
                steps = tuple(Step(key, self.chosen[table.path][key], states[key].batch_id) for key in keys)
                tables.append(TablePlan(table.path, code_of(table), steps, slices, seconds))
        return Plan(
            now,
            self.asked,
            tuple(tables),
            {path: keys for path, keys in self.waiting.items() if keys},
            {path: snapshot.version for path, snapshot in sorted(self.survey.snapshots.items())},
            self._stands(),
            self.slice_bytes,
        )

    def _choose(self, table: Table) -> dict[str, tuple[Reason, ...]]:
        """The partitions of a table that are visited, in order, with their reasons."""
        states = self.survey.states[table.path]
        basis = self.survey.bases[table.path]
        hits = affected(basis, self.chosen, states) if self.asked.downstream else {}
        chosen: dict[str, tuple[Reason, ...]] = {}
        waiting = self.waiting.setdefault(table.path, {})
        for key, state in states.items():
            reasons = self._selected(table, state)
            if key in hits:
                others = [each for each in reasons or state.reasons if each.cause is not Cause.BLOCKED]
                more = f" and {len(hits[key]) - 1} more" if len(hits[key]) > 1 else ""
                reasons = (*others, Reason(Cause.UPSTREAM, hits[key][0] + more))
            if not reasons:
                continue
            lacks = self._lacks(table, state)
            if lacks and Cause.ASKED_FOR not in {reason.cause for reason in reasons}:
                waiting[key] = lacks
            else:
                # What a missing partition lacks is made by the plan as well.
                chosen[key] = tuple(
                    Reason(each.cause) if each.cause is Cause.MISSING and not lacks else each for each in reasons
                )
        return chosen

    def _selected(self, table: Table, state: PartitionState) -> tuple[Reason, ...]:
        """Why a partition is chosen for itself; nothing if it is not."""
        asked = self.asked
        if asked.table is not None and table.path != asked.table:
            if state.key not in self._upstream.get(table.path, ()):
                return ()
            wanted: set[Select] = {*asked.select, *DEFAULT} - {Select.ALL}
        else:
            if asked.keys is not None and state.key not in self._keys:
                return ()
            wanted = {*asked.select}
        if Select.ALL in wanted:
            return (*state.reasons, Reason(Cause.ASKED_FOR))
        return state.reasons if wanted & _kinds(state) else ()

    @cached_property
    def _keys(self) -> frozenset[str]:
        return frozenset(self.asked.keys or ())

    def _lacks(self, table: Table, state: PartitionState) -> str:
        """What a partition waits for; empty if it can be made, or stands already."""
        if state.standing is Standing.IRRECOVERABLE:
            return state.reason
        if state.undelivered is not None and state.batch_id is None:
            return state.reason
        if state.batch_id is not None:
            return ""
        for snapshot, key in self.survey.bases[table.path].needs(state.key):
            if key not in snapshot.files and key not in self.chosen.get(snapshot.path, ()):
                return f"{snapshot.path} {key}"
        return ""

    def _needed_by_what_is_asked(self) -> dict[str, set[str]]:
        asked = self.asked
        wanted: dict[str, set[str]] = {
            path: set(self._keys if asked.keys is not None else states)
            for path, states in self.survey.states.items()
            if path == asked.table
        }
        for table in reversed(self.survey.tables):
            for path, keys in needed(self.survey.bases[table.path], wanted.get(table.path, ())).items():
                wanted.setdefault(path, set()).update(keys)
        return wanted

    def _stands(self) -> dict[str, dict[str, str | None]]:
        """What the visited partitions are built on and the plan does not visit."""
        found: dict[str, dict[str, str | None]] = {}
        for table in self.survey.tables:
            for path, keys in needed(self.survey.bases[table.path], self.chosen.get(table.path, ())).items():
                snapshot = self.survey.snapshots[path]
                others = keys - self.chosen.get(path, {}).keys()
                found.setdefault(path, {}).update({key: snapshot.content(key) for key in sorted(others)})
        return {path: keys for path, keys in found.items() if keys}


_STANDINGS = {
    Standing.MISSING: Select.MISSING,
    Standing.FAILED: Select.FAILED,
    Standing.STALE: Select.STALE,
    Standing.BLOCKED: Select.BLOCKED,
}


def _kinds(state: PartitionState) -> set[Select]:
    """How a partition may be selected. One that failed is missing or stale as well."""
    kinds = {_STANDINGS[state.standing]} if state.standing in _STANDINGS else set()
    if state.standing is Standing.FAILED:
        kinds.add(Select.MISSING if state.batch_id is None else Select.STALE)
    if state.standing is Standing.IRRECOVERABLE:
        kinds.add(Select.MISSING)  # it is not visited, but the plan says so
    if any(reason.cause is Cause.SOURCE for reason in state.reasons):
        kinds.add(Select.SOURCE)
    return kinds
