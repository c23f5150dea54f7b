"""The ledger held against the tables: made anew from them, and its contradictions named. The tables always win.

What the tables know of an attempt stands in their logs, in the evidence of their batches, in what is held and in what
was found of attempts that died. What they do not know: attempts that came to nothing, and what was only looked at.
"""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from medallion import ledger
from medallion.attempts import CLEANED, AttemptRecord, records
from medallion.digests import digest_bytes
from medallion.errors import StorageFailed
from medallion.evidence import Evidence, EvidenceReader, held_candidates
from medallion.lake import Lake, Snapshot
from medallion.partitions import Whole
from medallion.project import Project
from medallion.restore_intents import settled
from medallion.staging import parse_name
from medallion.tables import Table
from medallion.telemetry import (
    Row,
    Teller,
    commit_rows,
    discarded_row,
    held_row,
    live_row,
    recovered_rows,
    recovery_rows,
)

__all__ = ["Contradiction", "Rebuilt", "contradictions", "from_tables", "rebuild"]

_TRIES = 5
_MADE = ("committed", "approved", "restored")
"""Statuses that a table's log tells of."""
_TOLD_NOWHERE = (
    "attempts that failed, were superseded or found nothing to do: they leave nothing in a table",
    "verifications: nothing is written by them but their row",
    "candidates that were blocked and have been replaced since",
)
_INEXACT = {"blocked": frozenset({"started_at", "completed_at", "plan_id"})}
"""Columns that the tables know only about: a held candidate says when its run started, and when it was put there."""

_FORGOTTEN = frozenset({"started_at", "completed_at"})
"""Likewise of what is live and whose log entry has gone: its evidence says when the run started."""


@dataclass(frozen=True)
class Rebuilt:
    """What a rebuild has made.

    Attributes:
        rows: of the new ledger.
        from_tables: how many the tables told of, by status.
        kept: how many were kept from the old ledger because no table can tell of them, by status.
        dropped: the contradictions of the old ledger; the tables have won.
        unknown: what no table can tell; with the old ledger gone, it is lost.
    """

    rows: int
    from_tables: Mapping[str, int]
    kept: Mapping[str, int]
    dropped: tuple[Contradiction, ...]
    unknown: tuple[str, ...]


@dataclass(frozen=True)
class Contradiction:
    """Something that the ledger says and the tables do not, or the other way round.

    Attributes:
        table: ``layer/name``; that of the ledger itself for a file of its own.
        partition: None if it is about no single one.
        attempt: whose row it is; None if it is about no single one.
        column: that differs; None if a whole row or file is meant.
        message: what is wrong.
    """

    table: str
    partition: str | None
    attempt: str | None
    column: str | None
    message: str

    def __str__(self) -> str:
        return " ".join(filter(None, (self.table, self.partition, self.message)))


@dataclass
class _Known:
    """What the tables tell: a row for each attempt at a partition, with only the columns that they know."""

    rows: dict[tuple[str, str, str, str], Row] = field(default_factory=dict)
    logs: dict[str, tuple[int | None, int]] = field(default_factory=dict)
    """By table: its version, and the oldest one that its log still tells of."""
    unknown: list[str] = field(default_factory=list)
    untold: set[str] = field(default_factory=set)
    """Attempts that have not acknowledged yet: the ledger is told of their commits by them, or by who comes after."""

    def add(self, rows: list[Row]) -> None:
        for row in rows:
            self.rows.setdefault(_identity(row), row)


def _identity(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    return row["pipeline_name"], row["partition"], row["attempt"], row.get("recovered_by") or ""


def from_tables(lake: Lake, project: Project) -> pl.DataFrame:
    """The rows that the tables can tell of, with the columns of :data:`medallion.ledger.SCHEMA`, oldest first.

    Raises:
        TableUnreadable: if a table or its evidence cannot be read.
    """
    rows = [dict.fromkeys(ledger.SCHEMA) | row for row in _known(lake, project).rows.values()]
    frame = pl.DataFrame(rows, schema=ledger.SCHEMA, orient="row")
    return ledger.count_retries(frame.sort("completed_at", "started_at", maintain_order=True))


def _known(lake: Lake, project: Project) -> _Known:
    known = _Known()
    for table in project.tables:
        # Before the log is read: what is committed later is not seen there.
        known.untold |= {each.attempt for each in records(lake.root / table.path)}
        snapshot = lake.pin(table.path, table.partition)
        _add_commits(known, table, snapshot)
        known.add(list(_held(table, snapshot)))
        known.add(list(_discarded(table, snapshot)))
        known.add(list(_recoveries(table, snapshot, list(known.rows.values()))))
    for told in settled(lake):
        known.add([row for row in recovery_rows(told) if row["pipeline_name"] in project.by_path])
    known.unknown += _TOLD_NOWHERE
    return known


def _add_commits(known: _Known, table: Table, snapshot: Snapshot) -> None:
    commits = snapshot.commits(None, partial=True) or []
    evidence_of = EvidenceReader(snapshot.folder)
    oldest = min((each.version for each in commits), default=(snapshot.version or 0) + 1)
    rows = commit_rows(table, commits, evidence_of)
    told = {(row["partition"], row["batch_id"]) for row in rows}
    for key, files in snapshot.files.items():
        evidence = evidence_of(files[0].batch_id)
        if (key, files[0].batch_id) not in told and evidence is not None:
            at = dt.datetime.fromtimestamp(files[0].modified / 1000, dt.UTC)
            rows.append(live_row(table, evidence, at))
    known.add(rows)
    known.logs[table.path] = (snapshot.version, oldest)
    if oldest > 1 and snapshot.version:
        known.unknown.append(
            f"{table.path}: commits before version {oldest}, whose log entries have expired, but for what is still live"
        )
    if bare := sum("content" not in row for row in rows):
        known.unknown.append(f"{table.path}: what {bare} batches were made of, since their evidence is gone")


def _held(table: Table, snapshot: Snapshot) -> Iterator[Row]:
    for key, each in held_candidates(snapshot.folder).items():
        put = (snapshot.folder / "_held" / key / "evidence.json").stat().st_mtime
        # A bucket tells whole seconds. But a commit takes a candidate away, so one that is there came after the last.
        live = max((file.modified for file in snapshot.files.get(key, ())), default=0)
        yield held_row(table, each, _time(max(put, (live + 1) / 1000)))


def _discarded(table: Table, snapshot: Snapshot) -> Iterator[Row]:
    folder = snapshot.folder / "_held" / ".discarded"
    for path in folder.glob("*.json"):
        told = json.loads(path.read_bytes())
        evidence = Evidence.from_json(json.dumps(told["evidence"]).encode(), path)
        at = dt.datetime.fromisoformat(told.get("discarded_at") or told["at"])
        yield discarded_row(table, evidence, Teller(path.stem, told["run_id"], at, at), told["reason"])


def _recoveries(table: Table, snapshot: Snapshot, rows: list[Row]) -> Iterator[Row]:
    for path in (snapshot.folder / "_attempts" / "settled").glob("*.json"):
        told = json.loads(path.read_bytes())
        if told["found_by"] == CLEANED:
            continue  # nothing was recovered
        record = AttemptRecord(**{**told["record"], "partitions": tuple(told["record"]["partitions"])})
        at = told.get("at", path.stat().st_mtime)
        finder = Teller(told["found_by"], "", _time(told.get("since", at)), _time(at))
        mine = [row for row in rows if row["pipeline_name"] == table.path]
        yield from recovered_rows(table, [(record, told["recoveries"])], finder, mine)


def _time(seconds: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(seconds, dt.UTC)


def contradictions(lake: Lake, project: Project) -> list[Contradiction]:
    """Where the ledger and the tables disagree. The tables are right; ``medallion ledger rebuild`` follows them.

    A ledger that is not there says nothing, and contradicts nothing.

    Raises:
        TableUnreadable: if the ledger, a table or its evidence cannot be read.
    """
    snapshot = lake.pin(ledger.PATH, Whole())
    if snapshot.version is None:
        return []
    broken = list(_damaged_files(snapshot))
    if any(each.column == "gone" for each in broken):
        return broken
    known = _known(lake, project)  # before the ledger, which is told last
    return [*broken, *_compare(known, ledger.stored(lake.pin(ledger.PATH, Whole())))]


def _damaged_files(snapshot: Snapshot) -> Iterator[Contradiction]:
    """Files of the ledger that are not what was appended: their names hold the digest of their bytes."""
    for path in snapshot.sizes:
        named = parse_name(path)
        try:
            data = (snapshot.folder / path).read_bytes()
        except FileNotFoundError:
            yield Contradiction(ledger.PATH, None, None, "gone", f"{path} is gone, and the log names it")
            continue
        if named is None:
            yield Contradiction(ledger.PATH, None, None, None, f"{path} was not appended by this engine")
        elif digest_bytes(data) != named[1]:
            yield Contradiction(ledger.PATH, None, None, None, f"{path} was altered after it had been appended")


def _compare(known: _Known, rows: pl.DataFrame) -> Iterator[Contradiction]:
    said = {_identity(row): row for row in rows.iter_rows(named=True)}
    yield from _otherwise(known, said)
    yield from _made_up(known, said)


def _otherwise(known: _Known, said: Mapping[tuple[str, str, str, str], Row]) -> Iterator[Contradiction]:
    """What the tables tell, where the ledger does not say it or says it otherwise."""
    for identity, told in known.rows.items():
        table, key, attempt, _ = identity
        row = said.get(identity)
        if row is None:
            if attempt in known.untold:
                continue
            message = f"was {told['status']} by attempt {attempt}, and the ledger does not say so"
            yield Contradiction(table, key, attempt, None, message)
            continue
        inexact = _INEXACT.get(told["status"], frozenset())
        if "target_version" not in told and told["status"] in _MADE:
            inexact |= _FORGOTTEN
        for column in told.keys() - inexact:
            if row[column] != told[column]:
                message = (
                    f"attempt {attempt}: the ledger says {column} {_shown(row[column])}, and the tables say "
                    f"{_shown(told[column])}"
                )
                yield Contradiction(table, key, attempt, column, message)


def _made_up(known: _Known, said: Mapping[tuple[str, str, str, str], Row]) -> Iterator[Contradiction]:
    """What the ledger tells of commits that the tables would know of, and do not."""
    gone: Counter[str] = Counter()
    for (table, key, attempt, _), row in said.items():
        if not _refuted(known, row):
            continue
        gone[table] += 1
        if known.logs[table][0] is not None:
            message = (
                f"was {row['status']} by attempt {attempt} as the ledger says, and the table's log knows nothing of it"
            )
            yield Contradiction(table, key, attempt, None, message)
    for table, count in gone.items():
        if known.logs[table][0] is None:
            yield Contradiction(table, None, None, None, f"is not there, and the ledger tells of {count} commits to it")


def _refuted(known: _Known, row: Mapping[str, Any]) -> bool:
    """Whether a row tells of a commit that the table's log would know of, and does not."""
    if row["status"] not in _MADE or row["pipeline_name"] not in known.logs or _identity(row) in known.rows:
        return False
    version, oldest = known.logs[row["pipeline_name"]]
    return version is None or row["target_version"] is None or row["target_version"] >= oldest


def _shown(value: object) -> str:
    return "nothing" if value is None else str(value)


def rebuild(lake: Lake, project: Project) -> Rebuilt:
    """Make the ledger anew: what the tables tell, and from the old one what no table can tell.

    Raises:
        TableUnreadable: if the old ledger cannot be opened (move its folder away first), or a table cannot.
        StorageFailed: if the store does not take it.
    """
    for _ in range(_TRIES):
        snapshot = lake.pin(ledger.PATH, Whole())
        old = ledger.stored(snapshot)
        known = _known(lake, project)
        kept = [
            row for row in old.iter_rows(named=True) if _identity(row) not in known.rows and not _refuted(known, row)
        ]
        dropped = tuple(_compare(known, old)) if old.height else ()
        rows = [*known.rows.values(), *kept]
        frame = ledger.frame(rows).sort("completed_at", "started_at", maintain_order=True)
        replacing = list(snapshot.sizes)
        if lake.append(ledger.PATH, frame, metadata={"table": ledger.PATH, "rebuilt": True}, replacing=replacing):
            return Rebuilt(
                frame.height,
                Counter(row["status"] for row in known.rows.values()),
                Counter(row["status"] for row in kept),
                dropped,
                tuple(known.unknown),
            )
    raise StorageFailed(ledger.PATH, Whole.KEY, f"it was overtaken {_TRIES} times")
