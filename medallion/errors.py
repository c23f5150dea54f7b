"""Every error the engine raises, in one tree. Each says what happened, where, and what to do next.

    MedallionError
    ├── DeclarationError        a feed is declared wrongly; raised at import, before any data is read
    ├── ConfigurationError      a folder, a setting or an environment variable is not usable
    ├── UnknownTable            no declared table has that name
    ├── UnknownPartition        a key that the table's partitions do not have, or may not have
    ├── SourceError             the landing zone cannot give a partition its file
    │   ├── SourceMissing         there is no file, and the feed does not say that there should be none
    │   ├── SourceIncomplete      there is a file, and it is not all that the source says it sent
    │   └── SourceUnreadable      there is a file, and it cannot be parsed
    ├── InputNotCommitted       an input partition has no committed version to build on
    ├── RevisionRefused         the live version was made by a higher revision of the feed
    ├── TransformFailed         the feed's own function raised
    ├── PartitionBlocked        the gate refused a partition (raised only where a caller asks for an exception)
    ├── Superseded              another attempt committed this partition first
    ├── PlanOutdated            the lake or the code has moved since a plan was made
    ├── HeldCandidate           a blocked candidate cannot be approved or discarded
    ├── SavepointRefused        a savepoint cannot be made, found, dropped or relied on
    ├── RestoreRefused          a state cannot be made current again; nothing was changed
    ├── RestoreUnfinished       a restore has begun and not ended; nothing is built on what it has half done
    ├── StorageFailed           the store did not take or give something: a full disk, an I/O error, no end of conflicts
    ├── Irrecoverable           a partition whose source bytes are gone, and which is recorded as a gap
    ├── IsolatedCopy            the lake is a copy from a backup, in which nothing is published
    ├── BackupRefused           a backup is damaged or does not fit, or the root to restore it into is in use
    └── TableUnreadable         the lake holds something this version cannot read
        └── NotRecoverable        a version that has been taken by vacuum, or is not there yet

An error carries its facts as attributes, so that a caller never parses a message.
"""

from __future__ import annotations

import re
from typing import ClassVar

__all__ = [
    "BackupRefused",
    "ConfigurationError",
    "DeclarationError",
    "HeldCandidate",
    "InputNotCommitted",
    "Irrecoverable",
    "IsolatedCopy",
    "MedallionError",
    "NotRecoverable",
    "PartitionBlocked",
    "PlanOutdated",
    "RestoreRefused",
    "RestoreUnfinished",
    "RevisionRefused",
    "SavepointRefused",
    "SourceError",
    "SourceIncomplete",
    "SourceMissing",
    "SourceUnreadable",
    "StorageFailed",
    "Superseded",
    "TableUnreadable",
    "TransformFailed",
    "UnknownPartition",
    "UnknownTable",
]


class MedallionError(Exception):
    """Base of all errors of the engine."""

    failure_class: ClassVar[str] = "configuration"
    """What is at fault, in one word: ``source``, ``gate``, ``code``, ``storage``, ``fence`` or ``configuration``."""

    @property
    def code(self) -> str:
        """Names the kind of error in records: the name of its class, as ``SOURCE_MISSING``."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).upper()


class DeclarationError(MedallionError):
    """A table, contract or rule is declared wrongly."""

    failure_class = "code"


class ConfigurationError(MedallionError):
    """A folder, setting or environment variable cannot be used as it is."""


class UnknownTable(MedallionError):
    """No table that is declared, or that the lake holds, has this name."""

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        self.name, self.known = name, known
        super().__init__(f"no table is called {name!r}. There are: {', '.join(known) or 'none'}.")


class UnknownPartition(MedallionError):
    """A partition key that the table does not have."""

    def __init__(self, key: str, rule: str) -> None:
        self.key, self.rule = key, rule
        shown = key if len(key) <= 60 else f"{key[:57]}... ({len(key)} characters)"
        super().__init__(f"{shown!r} is not a partition here: {rule}. Nothing was read or written.")


class _AtPartition(MedallionError):
    """An error that belongs to one partition of one table."""

    def __init__(self, table: str, partition: str, what: str, then: str) -> None:
        self.table, self.partition, self.what, self.then = table, partition, what, then
        super().__init__(f"{table} {partition} {what} {then}")


_STANDS = "Nothing was published; the previous version stands, if there was one."


class SourceError(_AtPartition):
    """The landing zone cannot give a partition what it needs."""

    failure_class = "source"


class SourceMissing(SourceError):
    """The source file of a partition is not there."""

    def __init__(self, table: str, partition: str, source: str, where: str) -> None:
        self.source = source
        super().__init__(
            table,
            partition,
            f"has no source file: {source} is not in {where}. {_STANDS}",
            f"Deliver the file and replay {table} {partition}, or, if none is to come, "
            f"say so in the feed: bronze(..., closed={{{partition!r}: 'why'}}).",
        )


class SourceIncomplete(SourceError):
    """The source file of a partition is not all that the source's manifest or trailer says it sent."""

    def __init__(self, table: str, partition: str, source: str, reason: str) -> None:
        self.source, self.reason = source, reason
        super().__init__(
            table,
            partition,
            f"is incomplete: {source}: {reason}. {_STANDS}",
            f"Have the file delivered again and replay {table} {partition}.",
        )


class SourceUnreadable(SourceError):
    """The source file of a partition cannot be parsed."""

    def __init__(self, table: str, partition: str, source: str, reason: str, kept: str | None) -> None:
        self.source, self.reason, self.kept = source, reason, kept
        where = f" Its bytes are kept at {kept}." if kept else ""
        super().__init__(
            table,
            partition,
            f"cannot be read from {source}: {reason}. {_STANDS}{where}",
            f"Repair the file and replay {table} {partition}.",
        )


class InputNotCommitted(_AtPartition):
    """A partition that this one is built from has no committed version."""

    failure_class = "source"

    def __init__(self, table: str, partition: str, missing: tuple[tuple[str, str, str], ...]) -> None:
        self.missing = missing
        first = "; ".join(f"{name} {key} ({why})" for name, key, why in missing[:3])
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        super().__init__(
            table,
            partition,
            f"was not built, because it needs {first}{more}. {_STANDS}",
            f"Repair and materialize {missing[0][0]} {missing[0][1]} first.",
        )


class TransformFailed(_AtPartition):
    """The feed's own transform raised."""

    failure_class = "code"

    def __init__(self, table: str, partition: str, error: BaseException) -> None:
        self.error = error
        super().__init__(
            table,
            partition,
            f"failed in its transform: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}."
            f" {_STANDS}",
            f"Mend the function and materialize {table} {partition} again.",
        )


class RevisionRefused(_AtPartition):
    """A feed of a lower revision tried to replace what a higher one published."""

    failure_class = "fence"

    def __init__(self, table: str, partition: str, mine: int, live: int) -> None:
        self.mine, self.live = mine, live
        super().__init__(
            table,
            partition,
            f"was published by revision {live} of its feed, and this is revision {mine}. {_STANDS}",
            f"Deploy revision {live} or higher; to go back on purpose, say so with a reason: Run(downgrade='why').",
        )


class PartitionBlocked(_AtPartition):
    """The gate refused a partition."""

    failure_class = "gate"

    def __init__(self, table: str, partition: str, reasons: tuple[str, ...]) -> None:
        self.reasons = reasons
        super().__init__(
            table,
            partition,
            f"blocked by {'; '.join(reasons)}. {_STANDS}",
            f"The candidate is held. Look at it: medallion inspect {table} {partition}. Then repair the source or the "
            f"rule and replay {table} {partition}, or publish it as it is: medallion approve {table} {partition} "
            "--reason WHY.",
        )


class Superseded(_AtPartition):
    """Another attempt committed this partition after this one had started."""

    failure_class = "fence"

    def __init__(self, table: str, partition: str, seen: int, live: int) -> None:
        self.seen, self.live = seen, live
        super().__init__(
            table,
            partition,
            f"was committed by another attempt meanwhile (this one started at epoch {seen}, the table is at {live}).",
            "This attempt committed nothing; there is nothing to do.",
        )


class HeldCandidate(_AtPartition):
    """A partition's blocked candidate cannot be approved or discarded."""

    failure_class = "gate"


class SavepointRefused(MedallionError):
    """A savepoint that cannot be made, found, dropped or relied on."""

    def __init__(self, name: str, why: str, then: str) -> None:
        self.name, self.why = name, why
        super().__init__(f"savepoint {name!r} {why} {then}")


class RestoreRefused(MedallionError):
    """A state that cannot be made current again. It was found out before the first commit, so nothing has changed.

    Attributes:
        missing: data files that the state needs and that are gone or altered, relative to the lake.
    """

    def __init__(self, target: str, why: str, then: str, missing: tuple[str, ...] = ()) -> None:
        self.target, self.why, self.missing = target, why, missing
        super().__init__(f"{target} was not restored: {why} Nothing was changed. {then}")


class RestoreUnfinished(MedallionError):
    """A restore has begun and has not ended: some tables may hold the old state and others the new."""

    def __init__(self, number: int, target: str, *, running: bool) -> None:
        self.number, self.target, self.running = number, target, running
        then = (
            "Wait until it has ended, and try again."
            if running
            else "Complete it with `medallion restore --resume`, or take it back with `medallion restore --rollback`."
        )
        what = "is running" if running else "was interrupted"
        super().__init__(f"the restore {number} to {target} {what}. Nothing was read or written. {then}")


class StorageFailed(_AtPartition):
    """The store did not take or give something. The one error that may be gone at the next try."""

    failure_class = "storage"

    def __init__(self, table: str, partition: str, reason: str, *, published: bool = False) -> None:
        self.reason, self.published = reason, published
        if published:
            what = f"was published, and could not be flushed to the disk: {reason}. It may not survive a power cut."
        else:
            what = f"could not be written: {reason}. {_STANDS}"
        super().__init__(
            table,
            partition,
            what,
            f"Make room or mend the store, and replay {table} {partition}; what is left over is recognised.",
        )


class PlanOutdated(MedallionError):
    """What a plan was made of has moved on, so that it may no longer say what it would do and why."""

    failure_class = "fence"

    def __init__(self, plan: str, moved: tuple[str, ...]) -> None:
        self.plan, self.moved = plan, moved
        more = f" and {len(moved) - 3} more" if len(moved) > 3 else ""
        super().__init__(
            f"plan {plan} is outdated: {'; '.join(moved[:3])}{more}. Nothing was executed. Make it again and execute "
            "that (medallion execute PLANFILE --replan), or execute it as it stands (medallion execute PLANFILE "
            "--accept)."
        )


class TableUnreadable(MedallionError):
    """The lake holds something that this version of the engine cannot read."""

    failure_class = "storage"


class NotRecoverable(TableUnreadable):
    """A version of a table to which nobody can return."""

    failure_class = "storage"

    def __init__(self, table: str, version: int, reason: str) -> None:
        self.table, self.version, self.reason = table, version, reason
        super().__init__(f"{table} cannot be read at version {version}: {reason} Nothing was changed.")


class Irrecoverable(_AtPartition):
    """A partition that is recorded as a gap: what it was made from is gone."""

    failure_class = "source"

    def __init__(self, table: str, partition: str, reason: str) -> None:
        self.reason = reason
        super().__init__(
            table,
            partition,
            f"is recorded as an irrecoverable gap: {reason} It is not computed from today's data.",
            f"If its source has been found again: medallion retention gap {table} {partition} --close --reason WHY, "
            "and replay it.",
        )


class IsolatedCopy(MedallionError):
    """The lake is an isolated copy: it can be read and verified, and publishes nothing."""

    def __init__(self, root: str, backup: str) -> None:
        self.root, self.backup = root, backup
        super().__init__(
            f"the lake {root} is an isolated copy from the backup {backup}: it is read and verified, and nothing is "
            "published in it or told of it. If it is to take the place of the lake that was lost, say so: "
            "medallion promote --reason WHY"
        )


class BackupRefused(MedallionError):
    """A backup is not there, is damaged or does not fit, or the root that it is to be restored into is in use."""

    failure_class = "storage"
