"""What a damage in a lake is called, where it is, how it is repaired, and what is lost by that."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Damage", "Kind"]


class Kind(StrEnum):
    """What a damage is called."""

    TABLE_GONE = "table gone"
    LOG_ENTRY_MISSING = "log entry missing"
    LOG_ENTRY_DAMAGED = "log entry damaged"
    CHECKPOINT_DAMAGED = "checkpoint damaged"
    CHECKPOINT_HINT = "checkpoint hint wrong"
    TABLE_UNREADABLE = "table unreadable"
    FILE_MISSING = "data file missing"
    FILE_ALTERED = "data file altered"
    FENCE_WITHOUT_FILE = "fence without file"
    FILE_WITHOUT_FENCE = "file without fence"
    EVIDENCE_MISSING = "evidence missing"
    EVIDENCE_DAMAGED = "evidence damaged"
    SOURCE_MISSING = "source bytes missing"
    SOURCE_ALTERED = "source bytes altered"
    HELD_INCOMPLETE = "blocked candidate incomplete"
    SAVEPOINT_DAMAGED = "savepoint damaged"
    SAVEPOINT_DANGLING = "savepoint dangling"
    RESTORE_UNFINISHED = "restore unfinished"
    RECORD_DAMAGED = "record damaged"
    COPY_UNVERIFIED = "copy unverified"
    GAP = "irrecoverable gap"
    STRAY = "stray"


@dataclass(frozen=True)
class Damage:
    """One thing that is damaged.

    Attributes:
        table: ``layer/name``; empty if it is the lake's.
        partition: empty if it is not that of one.
        path: of the file, relative to the lake; of what should be there if it is missing.
        found: what is wrong.
        repair: what is proposed.
        loses: what is lost by the repair if no backup has it; empty if nothing is.
        needed: whether the newest state needs what is damaged; otherwise only an older one does.
    """

    kind: Kind
    table: str
    partition: str
    path: str
    found: str
    repair: str
    loses: str = ""
    needed: bool = True

    def __str__(self) -> str:
        lost = f" Without a backup, lost is {self.loses}." if self.loses else ""
        return f"{self.kind}: {self.path}: {self.found}. Repair: {self.repair}.{lost}"
