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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

from medallion.digests import digest
from medallion.errors import ConfigurationError
from medallion.estimates import Slice
from medallion.log import FORMAT, check_format
from medallion.refine import Run
from medallion.state import Cause, Reason

__all__ = ["DEFAULT", "Asked", "Plan", "Select", "Step", "TablePlan"]


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
