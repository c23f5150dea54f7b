"""What is to be made again, in which order, why, and at about what cost: decided first, then done (``execution.py``).

A plan is a value. It lists, table by table in the order of lineage, the partitions that its execution visits, each with
its reasons. A partition that is only there because one that it is built from is made again may turn out unchanged:
whether content really changes is known when it is made, so such a partition is visited, its inputs are compared, and
its rows are looked at only if one of them differs. What is visited is what is listed, no more and no less.
"""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

from medallion.closure import affected, needed
from medallion.digests import digest
from medallion.errors import ConfigurationError
from medallion.estimates import Estimates, Slice
from medallion.lake import Lake
from medallion.log import FORMAT, check_format
from medallion.project import Project
from medallion.refine import Run
from medallion.sources import LandingZone
from medallion.stale import contract_digest
from medallion.state import Cause, PartitionState, Reason, Standing, Survey
from medallion.tables import Table

__all__ = ["DEFAULT", "Asked", "Plan", "Select", "Step", "TablePlan", "code_of", "plan", "plan_again"]


class Select(StrEnum):
    """Which partitions of those that are asked for are to be made again."""

    MISSING = "missing"
    """Nothing is live."""
    FAILED = "failed"
    """The last attempt failed."""
    STALE = "stale"
    """The source, an input, a used row of a reference, or the code has changed."""
    SOURCE = "source"
    """Of the stale ones those whose source file has changed."""
    BLOCKED = "blocked"
    """The gate refused it, and nothing has changed since."""
    ALL = "all"
    """Replay: every one, whatever it is."""


DEFAULT = frozenset({Select.MISSING, Select.FAILED, Select.STALE})
"""What is selected if nothing is said: all that may come out differently now. A blocked partition would be blocked
again as long as nothing has changed."""


@dataclass(frozen=True)
class Asked:
    """The question that a plan answers.

    Attributes:
        table: ``layer/name``; None for all tables.
        keys: partitions of it; None for all.
        select: which of them.
        downstream: whether what is built from them is visited too.
        upstream: whether what they need is made first, where it is selected likewise.
        newest_first: the order of partitions in a table.
    """

    table: str | None = None
    keys: tuple[str, ...] | None = None
    select: tuple[Select, ...] = tuple(sorted(DEFAULT))
    downstream: bool = True
    upstream: bool = False
    newest_first: bool = False


@dataclass(frozen=True)
class Step:
    """A partition that is visited.

    Attributes:
        reasons: why.
        was: the batch that was live when the plan was made; None if there was none.
    """

    key: str
    reasons: tuple[Reason, ...]
    was: str | None = None

    @property
    def is_certain(self) -> bool:
        """Whether it is made again whatever becomes of the others."""
        return any(reason.cause is not Cause.UPSTREAM for reason in self.reasons)


@dataclass(frozen=True)
class TablePlan:
    """What is visited of one table.

    Attributes:
        code: names the table's code and contract when the plan was made.
        steps: in the order in which they are visited.
        slices: cut by estimated bytes in memory; each is at least one commit, if there is something to commit.
        seconds: estimated from past attempts; None if there were none.
    """

    table: str
    code: str
    steps: tuple[Step, ...]
    slices: tuple[Slice, ...]
    seconds: float | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """The partitions, in the order in which they are visited."""
        return tuple(step.key for step in self.steps)

    @property
    def causes(self) -> Counter[str]:
        """How many partitions each cause has, the commonest first."""
        return Counter(cause for step in self.steps for cause in {str(reason.cause) for reason in step.reasons})

    @property
    def rows(self) -> int | None:
        """Estimated rows that are read; None if nothing is known of a slice."""
        return _total(each.rows for each in self.slices)

    @property
    def bytes(self) -> int | None:
        """Estimated bytes in memory, all slices together; None if nothing is known of a slice."""
        return _total(each.bytes for each in self.slices)


def _total(values: Iterator[int | None]) -> int | None:
    known = list(values)
    return None if None in known else sum(each for each in known if each is not None)


@dataclass(frozen=True)
class Plan:
    """What is to be made again, and on what that was decided.

    Attributes:
        created_at: when; does not count for the id.
        asked: the question.
        tables: in the order of lineage.
        waiting: partitions that belong here and cannot be made, by table, each with what it waits for.
        pinned: the version of every table that was looked at; None if there was no table.
        stands: the content digests of the partitions that the plan is built on and does not visit, by table.
        slice_bytes: estimated bytes in memory of a slice.
    """

    created_at: dt.datetime
    asked: Asked
    tables: tuple[TablePlan, ...]
    waiting: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    pinned: Mapping[str, int | None] = field(default_factory=dict)
    stands: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    slice_bytes: int = Run.slice_bytes

    @cached_property
    def id(self) -> str:
        """Names the plan by its content: the same question on the same lake gives the same id."""
        plain = self._plain()
        del plain["created_at"]
        return digest("plan", plain)

    @property
    def partitions(self) -> int:
        """How many partitions are visited."""
        return sum(len(each.steps) for each in self.tables)

    @property
    def certain(self) -> int:
        """How many of them are made again whatever becomes of the others."""
        return sum(step.is_certain for each in self.tables for step in each.steps)

    @property
    def seconds(self) -> float | None:
        """Estimated time; None if it is not known of every table."""
        known = [each.seconds for each in self.tables]
        return None if None in known else sum(each for each in known if each is not None)

    def _plain(self) -> dict[str, Any]:
        asked = {name: getattr(self.asked, name) for name in self.asked.__dataclass_fields__}
        return {
            "created_at": self.created_at.isoformat(),
            "asked": asked | {"keys": None if self.asked.keys is None else list(self.asked.keys)},
            "tables": [_table_to_plain(each) for each in self.tables],
            "waiting": {path: dict(keys) for path, keys in self.waiting.items()},
            "pinned": dict(self.pinned),
            "stands": {path: dict(keys) for path, keys in self.stands.items()},
            "slice_bytes": self.slice_bytes,
        }

    def to_json(self) -> str:
        """The plan as a document."""
        return json.dumps({"format": FORMAT, "id": self.id, **self._plain()})

    @classmethod
    def from_json(cls, text: str, where: str = "the plan") -> Plan:
        """Read a document.

        Raises:
            TableUnreadable: if a newer engine wrote it.
            ConfigurationError: if it is no plan, or was altered.
        """
        try:
            plain = json.loads(text)
            check_format(plain["format"], where)
            asked = plain["asked"]
            asked["keys"] = None if asked["keys"] is None else tuple(asked["keys"])
            asked["select"] = tuple(map(Select, asked["select"]))
            read = cls(
                dt.datetime.fromisoformat(plain["created_at"]),
                Asked(**asked),
                tuple(map(_table_from_plain, plain["tables"])),
                plain["waiting"],
                plain["pinned"],
                plain["stands"],
                plain["slice_bytes"],
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigurationError(
                f"{where} is no plan ({type(error).__name__}: {error}). Make one: medallion plan TABLE --save FILE."
            ) from error
        if read.id != plain.get("id"):
            raise ConfigurationError(f"{where} was altered since it was made. Make it again: medallion plan --save.")
        return read


def _table_to_plain(each: TablePlan) -> dict[str, Any]:
    return {
        "table": each.table,
        "code": each.code,
        "steps": [
            {"key": step.key, "was": step.was, "reasons": [[str(r.cause), r.detail] for r in step.reasons]}
            for step in each.steps
        ],
        "slices": [{"partitions": s.partitions, "rows": s.rows, "bytes": s.bytes} for s in each.slices],
        "seconds": each.seconds,
    }


def _table_from_plain(plain: Mapping[str, Any]) -> TablePlan:
    steps = tuple(
        Step(step["key"], tuple(Reason(Cause(cause), detail) for cause, detail in step["reasons"]), step["was"])
        for step in plain["steps"]
    )
    return TablePlan(
        plain["table"], plain["code"], steps, tuple(Slice(**each) for each in plain["slices"]), plain["seconds"]
    )


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
