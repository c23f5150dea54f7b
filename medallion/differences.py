"""What a verification says: reconciled, or every difference between what the lake holds and what it says of itself.

What belongs here: the values, and how they are shown. What does not: finding them (``verify.py``).
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table as RichTable
from rich.text import Text

__all__ = ["DIFFERS", "RECONCILED", "Difference", "Kind", "Outdated", "Verification", "Verified", "render"]

RECONCILED = "reconciled"
DIFFERS = "differs"


class Kind(StrEnum):
    """What does not agree."""

    TABLE_UNREADABLE = "table unreadable"
    FILE_MISSING = "file missing"
    FILE_ALTERED = "file altered"
    FILE_FOREIGN = "file misplaced"
    ROWS = "row count"
    EVIDENCE_MISSING = "evidence missing"
    EVIDENCE_ALTERED = "evidence altered"
    QUARANTINE = "quarantine"
    FENCE = "fence"
    SOURCE = "source bytes"
    LAYERS = "totals across layers"
    LEDGER = "ledger"


@dataclass(frozen=True)
class Difference:
    """Two things that ought to agree, and do not.

    Attributes:
        kind: what does not agree.
        table: in which it was found, ``layer/name``.
        partition: whose.
        file: relative to the lake; None if no file is at fault.
        expected: what ought to be there, and who says so.
        found: what is there.
        then: what to do.
    """

    kind: Kind
    table: str
    partition: str
    file: str | None
    expected: str
    found: str
    then: str

    def __str__(self) -> str:
        where = f" {self.file}:" if self.file else ""
        what = f"{self.kind}:{where} expected {self.expected}, found {self.found}."
        return f"{self.table} {self.partition}: {what} {self.then}"


@dataclass(frozen=True)
class Outdated:
    """A partition that agrees with itself, and was made of something that has changed since. That is no damage.

    Attributes:
        reason: what has changed.
    """

    table: str
    partition: str
    reason: str


@dataclass(frozen=True)
class Verified:
    """What was recomputed of one table and its quarantine.

    Attributes:
        rows: counted in the files of the table.
        quarantined: counted in the files of its quarantine.
        read, collapsed: rows that the verdicts say were read and dropped as copies.
        bytes: that were read, kept source files included.
        version: of the table; None if there is none.
        first, last: of the partitions; empty if there are none.
        under_way: partitions at which an attempt is at work; their quarantine was not held against them.
    """

    table: str
    partitions: int = 0
    files: int = 0
    rows: int = 0
    quarantined: int = 0
    read: int = 0
    collapsed: int = 0
    bytes: int = 0
    version: int | None = None
    first: str = ""
    last: str = ""
    under_way: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verification:
    """The result for some tables.

    Attributes:
        tables: what was recomputed.
        differences: none if the lake is reconciled.
        outdated: partitions that wait for a replay.
        id: names it in the ledger.
    """

    tables: tuple[Verified, ...]
    differences: tuple[Difference, ...]
    outdated: tuple[Outdated, ...]
    started_at: dt.datetime
    completed_at: dt.datetime
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def of(self, table: str) -> tuple[Difference, ...]:
        """The differences in one table, those of its quarantine included."""
        mine = {table, f"quarantine/{table.partition('/')[2]}"} if table.startswith("silver/") else {table}
        return tuple(each for each in self.differences if each.table in mine)

    @property
    def reconciled(self) -> bool:
        """Whether everything that was looked at agrees."""
        return not self.differences

    @property
    def status(self) -> str:
        """``reconciled`` or ``differs``."""
        return RECONCILED if self.reconciled else DIFFERS

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "id": self.id,
            "status": self.status,
            "started_at": self.started_at.isoformat(),
            "completed_at": self.completed_at.isoformat(),
            "tables": [asdict(each) for each in self.tables],
            "differences": [asdict(each) for each in self.differences],
            "outdated": [asdict(each) for each in self.outdated],
        }


_SHOWN = 20


def render(found: Verification, *, everything: bool = False) -> Iterator[RenderableType]:
    """A verification for a terminal: the answer first, then the differences, then what was recomputed.

    Args:
        found: the verification.
        everything: show every difference instead of the first twenty.
    """
    if found.reconciled:
        yield Text("Reconciled: the files, the evidence and the tables agree.", style="bold green")
    else:
        yield Text(f"Not reconciled: {_number(len(found.differences), 'difference')}.", style="bold red")
    shown = found.differences if everything else found.differences[:_SHOWN]
    for each in shown:
        yield Text(f"- {each}")
    if len(shown) < len(found.differences):
        yield Text(f"  and {len(found.differences) - len(shown)} more; --json lists all of them")
    yield from _outdated(found.outdated)
    yield _totals(found.tables)
    for table in found.tables:
        if table.under_way:
            some = ", ".join(table.under_way[:3])
            yield Text(f"{table.table}: an attempt is at work at {some}; verify again when it has ended.")


def _outdated(outdated: Sequence[Outdated]) -> Iterator[Text]:
    groups: dict[str, list[Outdated]] = {}
    for each in outdated:
        groups.setdefault(each.table, []).append(each)
    for table, some in groups.items():
        first = f"{some[0].partition}, since {some[0].reason}"
        more = f" and {_number(len(some) - 1, 'other')}" if len(some) > 1 else ""
        yield Text(f"{table}: out of date is {first}{more}. That is no damage: medallion plan {table}", style="yellow")


def _totals(tables: Sequence[Verified]) -> RichTable:
    shown = RichTable(
        title="Recomputed from the files", title_justify="left", box=SIMPLE_HEAD, padding=0, show_edge=False
    )
    shown.add_column("table", no_wrap=True)
    for column in ("parts", "files", "rows", "quarantined", "copies", "MiB"):
        shown.add_column(column, justify="right", no_wrap=True)
    for each in tables:
        counts = (each.partitions, each.files, each.rows, each.quarantined, each.collapsed)
        shown.add_row(each.table, *(f"{count:,}" for count in counts), f"{each.bytes / 2**20:,.1f}")
    return shown


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
