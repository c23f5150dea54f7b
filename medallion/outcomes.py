"""What became of a partition. Outcomes have names; a run's report is a mapping from partition to outcome."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from medallion import errors
from medallion.errors import MedallionError, PartitionBlocked
from medallion.evidence import Evidence
from medallion.store import Place
from medallion.verdict import Verdict

__all__ = ["Blocked", "Committed", "Failed", "Outcome", "Report", "Superseded", "Unchanged"]


@dataclass(frozen=True)
class Committed:
    """The partition was published; ``version`` is the Delta version that holds it."""

    evidence: Evidence
    version: int
    before: Evidence | None = None
    """The evidence of the version before, if there was one."""
    recovery: str | None = None
    """What became of an earlier attempt that died: ``interrupted before commit``, ``committed without
    acknowledgement`` or ``superseded``; None if there was none. ``committed without acknowledgement`` also if it was
    this attempt's own commit whose acknowledgement was lost, and that was found in the log."""
    at: dt.datetime | None = None
    """When it was committed, as the commit itself says."""

    @property
    def verdict(self) -> Verdict:
        """How it was judged."""
        return self.evidence.verdict

    @property
    def was(self) -> Verdict | None:
        """The verdict of the version before, if there was one."""
        return None if self.before is None else self.before.verdict


@dataclass(frozen=True)
class Unchanged:
    """The live files already hold this batch; nothing was written.

    After a commit without acknowledgement this is the acknowledgement.
    """

    evidence: Evidence
    version: int
    recovery: str | None = None
    """What became of an earlier attempt that died: ``interrupted before commit``, ``committed without
    acknowledgement`` or ``superseded``; None if there was none."""

    @property
    def verdict(self) -> Verdict:
        """How it was judged when it was committed."""
        return self.evidence.verdict


@dataclass(frozen=True)
class Blocked:
    """The gate refused the partition; the candidate is held, and the version before stands."""

    evidence: Evidence
    held: Place
    recovery: str | None = None
    """What became of an earlier attempt that died: ``interrupted before commit``, ``committed without
    acknowledgement`` or ``superseded``; None if there was none."""

    @property
    def verdict(self) -> Verdict:
        """How it was judged."""
        return self.evidence.verdict

    @property
    def error(self) -> PartitionBlocked:
        """The same as an error, for those who need one."""
        reasons = tuple(f"{finding.rule} ({finding.message})" for finding in self.verdict.blocking)
        return PartitionBlocked(self.evidence.table, self.evidence.partition, reasons)


@dataclass(frozen=True)
class Failed:
    """The partition could not be judged: no source, an unreadable one, an input that is not there, or an error."""

    error: MedallionError
    recovery: str | None = None
    """What became of an earlier attempt that died: ``interrupted before commit``, ``committed without
    acknowledgement`` or ``superseded``; None if there was none."""


@dataclass(frozen=True)
class Superseded(Failed):
    """Another attempt committed the partition after this one had started. This one published nothing of it."""

    error: errors.Superseded


Outcome = Committed | Unchanged | Blocked | Failed


@dataclass(frozen=True)
class Report:
    """The outcomes of one run over one table, in the order of its partitions."""

    table: str
    outcomes: Mapping[str, Outcome]

    @property
    def name(self) -> str:
        """``COMPLETE``, ``PARTIAL`` or ``FAILED``, as the partitions that are now in place are all, some or none."""
        good = len(self.published)
        if good == len(self.outcomes):
            return "COMPLETE"
        return "PARTIAL" if good else "FAILED"

    @property
    def published(self) -> dict[str, Committed | Unchanged]:
        """Partitions whose rows are in place."""
        return {key: each for key, each in self.outcomes.items() if isinstance(each, Committed | Unchanged)}

    @property
    def committed(self) -> tuple[str, ...]:
        """Partitions that were made anew."""
        return tuple(key for key, each in self.outcomes.items() if isinstance(each, Committed))

    @property
    def refused(self) -> dict[str, Blocked | Failed]:
        """Partitions that need somebody."""
        return {key: each for key, each in self.outcomes.items() if isinstance(each, Blocked | Failed)}

    @property
    def errors(self) -> dict[str, MedallionError]:
        """The refused partitions' errors."""
        return {key: each.error for key, each in self.refused.items()}

    @property
    def verdicts(self) -> Iterator[Verdict]:
        """The verdicts of all partitions that were judged."""
        return (each.verdict for each in self.outcomes.values() if not isinstance(each, Failed))
