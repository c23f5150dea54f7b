"""A consistent cut: one version of every table, so that none depends on what the cut does not hold.

Tables are pinned in the reverse order of lineage, each after those that are built from it. A batch names the versions
that it was built from, and was committed after them; whatever stands upstream when it is pinned later is at least as
new. So the cut is closed whoever commits meanwhile, and nobody has to wait. (Chandy and Lamport, "Distributed
Snapshots", 1985, call a cut consistent if no effect is in it without its cause.)

A table and its quarantine are two commits, and a cut between the two would be torn: they are pinned as a pair until
they tell of the same batches. Where a writer has died between the two, they are made to agree first.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb

from medallion.errors import SavepointRefused
from medallion.evidence import Evidence, EvidenceReader
from medallion.lake import Lake, Snapshot
from medallion.layers import Layers
from medallion.partitions import Whole
from medallion.project import Project
from medallion.publication import disagreeing, reconcile
from medallion.tables import Table

__all__ = ["Cut", "live_evidence", "outdated", "paths_of", "take_cut", "unclosed"]

_PATIENCE = 6
"""Looks at a pair of tables that do not agree, each after twice the time, before it is taken for left behind."""
_TRIES = 40
_FIRST_WAIT = 0.01


@dataclass(frozen=True)
class Cut:
    """One version of every table, upstream first; each quarantine right before its table."""

    snapshots: Mapping[str, Snapshot]


def paths_of(table: Table) -> tuple[str, ...]:
    """Where a declared table's rows lie: its quarantine, if it has one, and itself; in the order of publication."""
    return (table.path,) if table.quarantine_path is None else (table.quarantine_path, table.path)


def take_cut(project: Project, lake: Lake) -> Cut:
    """Pin every declared table, and its quarantine, at one consistent cut.

    Raises:
        SavepointRefused: if a table and its quarantine do not come to agree.
        TableUnreadable: if one of them cannot be read.
    """
    pinned: dict[str, Snapshot] = {}
    for table in reversed(project.tables):
        pinned |= _pair(table, lake) if table.quarantine_path else {table.path: lake.pin(table.path, table.partition)}
    return Cut({path: pinned[path] for table in project.tables for path in paths_of(table)})


def _pair(table: Table, lake: Lake) -> dict[str, Snapshot]:
    """A table and its quarantine at versions that tell of the same batches."""
    assert table.quarantine_path is not None
    torn: list[str] = []
    for turn in range(_TRIES):
        quarantine = lake.pin(table.quarantine_path, table.partition)
        target = lake.pin(table.path, table.partition)
        keys = {**target.files, **quarantine.files}
        torn = list(disagreeing(quarantine, target, keys, EvidenceReader(target.folder)))
        if not torn:
            return {table.quarantine_path: quarantine, table.path: target}
        if turn < _PATIENCE:
            time.sleep(_FIRST_WAIT * 2**turn)  # a writer is between its two commits; it needs a few milliseconds
        else:
            # Dead, or slow. If it lives, it looks again after its second commit and puts back what belongs there then.
            reconcile(table, lake, torn, {"attempt": uuid.uuid4().hex, "table": table.path})
    raise SavepointRefused(
        "",
        f"cannot be made: {table.path} and {table.quarantine_path} do not tell of the same batches, as {torn[0]}.",
        f"Replay {table.path} {torn[0]}, and try again.",
    )


def unclosed(project: Project, snapshots: Mapping[str, Snapshot]) -> list[str]:
    """What in some versions was built from something that they do not hold; none in a consistent cut.

    A partition depends on what they do not hold if it was built from a later version of an input than theirs, and from
    other content than stands there.
    """
    found = []
    for table in project.tables:
        target = snapshots[table.path]
        for key, evidence in live_evidence(target).items():
            for told in (*evidence.inputs.values(), *evidence.references.values()):
                source = snapshots.get(told["table"])
                if source is None or source.version is None or int(told["version"] or 0) > source.version:
                    changed = _changed(told, source)
                    if changed:
                        found.append(f"{table.path} {key} was built from version {told['version']} of {changed}")
    return found


def outdated(
    project: Project, snapshots: Mapping[str, Snapshot], told: Mapping[str, Mapping[str, Evidence]] | None = None
) -> dict[str, dict[str, str]]:
    """The partitions that replay would make anew, at some versions of the tables, each with the reason.

    Args:
        project: the declared tables.
        snapshots: their versions.
        told: by table, the evidence of its live batches; read if not given.
    """
    found: dict[str, dict[str, str]] = {}
    for table in project.tables:
        target = snapshots[table.path]
        evidence = live_evidence(target) if told is None else told[table.path]
        reasons = {key: "its evidence is gone" for key in target.files if key not in evidence}
        layers = Layers(table, target, lambda each: snapshots[each.path], duckdb.connect)
        if reasons := reasons | layers.outdated(evidence):
            found[table.path] = reasons
    return found


def live_evidence(target: Snapshot) -> dict[str, Evidence]:
    """The evidence of a table's batches at one version, by partition; without those whose evidence is gone."""
    evidence_of = EvidenceReader(target.folder)
    pairs = ((key, evidence_of(target.batch_id(key) or "")) for key in target.files)
    return {key: evidence for key, evidence in pairs if evidence is not None}


def _changed(told: Mapping[str, Any], source: Snapshot | None) -> str:
    """The input, if what a batch read of it is not what stands; empty if it is."""
    if "partitions" not in told:
        same = source is not None and source.content(Whole.KEY) == told["content"]
        return "" if same else str(told["table"])
    read: Mapping[str, str | None] = told["partitions"]
    moved: Sequence[str] = [key for key, content in read.items() if source is None or source.content(key) != content]
    return f"{told['table']} {', '.join(moved[:3])}{' and more' if len(moved) > 3 else ''}" if moved else ""
