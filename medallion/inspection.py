"""What the lake itself can tell of one partition, at any version that can still be read."""

from __future__ import annotations

import json
from typing import Any

import polars as pl

from medallion.errors import UnknownPartition
from medallion.evidence import Evidence, EvidenceReader, held_candidates, held_file, read_held
from medallion.lake import Lake, Snapshot
from medallion.outcomes import Blocked, Outcome, Report, Unchanged
from medallion.partitions import Keys, Partitioning
from medallion.store import Place, readable
from medallion.tables import Table

__all__ = ["held_report", "inspect", "live_report"]

_HALVES = ("accepted", "quarantined")
_SAMPLE = 5
"""Rows of a blocked candidate that are shown."""


def inspect(
    lake: Lake, table: str, key: str, version: int | None = None, *, partition: Partitioning | None = None
) -> dict[str, Any]:
    """The pinned context of a partition's batch, the commit that put it there, and what else is known of it.

    Args:
        lake: the lake; no declaration is needed.
        table: ``layer/name``.
        key: the partition; ``all`` for an unpartitioned table.
        version: of the table; the newest if None.
        partition: how the table is declared to be cut; if not given, the lake must know the table and the partition.

    Raises:
        UnknownTable: if there is no such table.
        TableUnreadable: if there is no such version.
        UnknownPartition: if nothing is known of the partition.
    """
    Keys("partition", (key,)).check(key)  # it becomes part of a path
    snapshot = lake.open(table, version) if partition is None else lake.pin(table, partition, version)
    batch_id = snapshot.batch_id(key)
    live = EvidenceReader(snapshot.folder)(batch_id) if batch_id is not None else None
    held = read_held(snapshot.folder, key)
    recoveries = _recoveries(snapshot.folder, key)
    if partition is None and batch_id is None and held is None and not recoveries:
        some = sorted(snapshot.files)
        raise UnknownPartition(
            key, f"{table} holds {len(some)} partitions{f', {some[0]} to {some[-1]}' if some else ''}"
        )
    return {
        "table": table,
        "partition": key,
        "version": snapshot.version,
        "live batch": batch_id,
        "rows": snapshot.rows(key),
        "epoch": snapshot.epoch(key),
        "files": [{"path": each.path, "rows": each.rows, "size": each.size} for each in snapshot.files.get(key, ())],
        "live": json.loads(live.to_json()) if live is not None else None,
        "commit": _commit(snapshot, key, batch_id),
        "recoveries": recoveries,
        "held": json.loads(held.to_json()) if held is not None else None,
        **(_candidate(snapshot.folder, held) if held is not None else {}),
    }


def live_report(lake: Lake, table: Table) -> Report:
    """The committed partitions of a table, as the report of a replay that found nothing to do.

    Raises:
        TableUnreadable: if the table or its evidence cannot be read.
    """
    snapshot = lake.pin(table.path, table.partition)
    evidence_of = EvidenceReader(snapshot.folder)
    found: dict[str, Outcome] = {}
    for key in table.partition.keys():  # noqa: SIM118 - a method of partitionings, not of a dictionary
        batch_id = snapshot.batch_id(key)
        live = None if batch_id is None else evidence_of(batch_id)
        if live is not None and snapshot.version is not None:
            found[key] = Unchanged(live, snapshot.version)
    return Report(table.path, found)


def held_report(lake: Lake, table: Table) -> Report:
    """The blocked partitions of a table, as the report of the attempts that were blocked.

    Raises:
        TableUnreadable: if the table or the evidence of a candidate cannot be read.
    """
    snapshot = lake.pin(table.path, table.partition)
    held = held_candidates(snapshot.folder)
    epochs = snapshot.epochs(held) if held else {}
    return Report(
        table.path,
        {
            key: Blocked(each, snapshot.folder / "_held" / key)
            for key, each in sorted(held.items())
            if each.epoch == epochs[key]  # else it was committed since
        },
    )


def _candidate(table: Place, held: Evidence) -> dict[str, Any]:
    """Some rows of a blocked candidate, and what can be done with it."""
    where = f"{held.table} {held.partition}"
    choices = {
        "repair": f"mend the source or the feed, then: medallion replay {where}",
        "approve": f'publish it as it is: medallion approve {where} --reason "..."',
        "discard": f"forget it: medallion discard {where}",
    }
    if not held.content:
        del choices["approve"]  # it was refused for its shape, and has no rows to publish
    return {"held rows": {name: _sample(held_file(table, held, name)) for name in _HALVES}, "next": choices}


def _sample(file: Place) -> list[dict[str, Any]]:
    try:
        rows = pl.read_parquet(readable(file), n_rows=_SAMPLE, glob=False, hive_partitioning=False)
    except OSError:
        return []
    return [{name: str(value) for name, value in row.items() if value is not None} for row in rows.to_dicts()]


def _commit(snapshot: Snapshot, key: str, batch_id: str | None) -> dict[str, Any] | None:
    """The commit that put the batch there, as long as the log tells of it."""
    for commit in snapshot.commits(None, partial=True) or ():
        if batch_id is not None and commit.batches.get(key) == batch_id:
            told = {name: value for name, value in commit.metadata.items() if name != "batches"}
            return {"version": commit.version, **told}
    return None


def _recoveries(table: Place, key: str) -> list[dict[str, Any]]:
    """What became of attempts at the partition that died, oldest first."""
    found = []
    for path in (table / "_attempts" / "settled").glob("*.json"):
        told = json.loads(path.read_bytes())
        if key in told["recoveries"]:
            record = told["record"]
            found.append(
                {
                    "attempt": record["attempt"],
                    "run_id": record["run_id"],
                    "started_at": record["started_at"],
                    "was": told["recoveries"][key],
                    "found_by": told["found_by"],
                }
            )
    return sorted(found, key=lambda each: float(each["started_at"]))
