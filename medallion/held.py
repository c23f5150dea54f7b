"""What becomes of a blocked candidate by somebody's decision: it is approved, or discarded. Both are recorded.

Approving publishes the very files that were judged; nothing is computed again. It is refused where those files would no
longer be what a replay makes: if the partition was committed since, if an input or the feed changed. Then replay, and
look at the candidate that stands there now. A candidate that is discarded comes back with the next replay, unless
something has changed.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import polars as pl

from medallion import ledger
from medallion.attempts import Recoveries, attempting
from medallion.digests import digest_bytes
from medallion.errors import HeldCandidate, RevisionRefused
from medallion.evidence import Evidence, EvidenceReader, drop_held, held_file, read_held
from medallion.inputs import Pinned
from medallion.lake import Snapshot
from medallion.outcomes import Outcome, Unchanged
from medallion.partitions import Whole
from medallion.publication import Prepared, Publication
from medallion.refine import Run
from medallion.restore_intents import check_none_open
from medallion.staging import Staged
from medallion.stale import code_change
from medallion.store import Place, write_durably
from medallion.tables import Table
from medallion.telemetry import Teller, discarded_row, tell

__all__ = ["approve", "discard"]


def approve(table: Table, key: str, run: Run, *, reason: str) -> Outcome:
    """Publish a partition's blocked candidate as it was judged.

    Args:
        table: a declared table.
        key: the partition.
        run: whose lake, run id and time are used, and whose ``downgrade`` counts.
        reason: why; kept in the evidence with the rules that had blocked it.

    Raises:
        HeldCandidate: if there is none, or it may not be published any more; says why.
        RevisionRefused: if the live version was made by a higher revision.
        RestoreUnfinished: if a restore is open.
    """
    table.partition.check(key)
    if not reason.strip():
        raise _refused(table, key, "is not approved without a reason.", "Say why.")
    target = run.lake.pin(table.path, table.partition)
    check_none_open(run.lake)  # after pinning, as in refine
    attempt, began = uuid.uuid4().hex, dt.datetime.now(dt.UTC)
    who = Teller(attempt, run.run_id, began, began)
    held = read_held(target.folder, key)
    if held is None:
        raise _refused(table, key, "has no blocked candidate.", "See what there is: medallion summary.")
    with attempting(target, attempt, run.run_id, [key], [key]) as recoveries:
        live = EvidenceReader(target.folder)(held.batch_id) if target.batch_id(key) == held.batch_id else None
        if live is not None and target.version is not None:
            drop_held(target.folder, key)
            outcomes: dict[str, Outcome] = {key: Unchanged(live, target.version, recoveries.get(key))}
            _tell(table, outcomes, run, who, recoveries)
            return outcomes[key]
        _check(table, target, held, run)
        approval = {
            "reason": reason,
            "run_id": run.run_id,
            "at": run.started_at.isoformat(),
            "rules": [finding.rule for finding in held.verdict.blocking],
            "judged_by": held.attempt,
        }
        evidence = replace(held, attempt=attempt, run_id=run.run_id, approval=approval, recovery=recoveries.get(key))
        metadata = {
            "table": table.path,
            "run_id": run.run_id,
            "attempt": attempt,
            "started_at": began.isoformat(),
            "revision": held.revision,
            "transform": held.transform,
            "contract": held.contract,
            "packages": dict(held.packages),
            "approval": approval,
        }
        prepared = _prepared(table, target, held, evidence)
        was = EvidenceReader(target.folder)
        publication = Publication(table, target, metadata)
        outcomes = publication.publish(
            prepared, lambda each: was(batch) if (batch := target.batch_id(each)) is not None else None
        )
        recoveries.update(publication.unacknowledged)
        _tell(table, outcomes, run, who, recoveries)
    return replace(outcomes[key], recovery=recoveries.get(key))


def _tell(table: Table, outcomes: Mapping[str, Outcome], run: Run, who: Teller, recoveries: Recoveries) -> None:
    teller = replace(who, completed_at=dt.datetime.now(dt.UTC))
    tell(run.lake, table, outcomes, teller, recoveries, status="approved")


def discard(table: Table, key: str, run: Run, *, reason: str = "") -> Evidence:
    """Forget a partition's blocked candidate; who did so and why is kept beside it.

    Raises:
        HeldCandidate: if there is none.
    """
    table.partition.check(key)
    folder = run.lake.root / table.path
    held = read_held(folder, key)
    if held is None:
        raise _refused(table, key, "has no blocked candidate.", "See what there is: medallion summary.")
    kept = folder / "_held" / ".discarded"
    kept.mkdir(exist_ok=True)
    name, now = uuid.uuid4().hex, dt.datetime.now(dt.UTC)
    told = {
        "run_id": run.run_id,
        "discarded_at": now.isoformat(),
        "at": run.started_at.isoformat(),
        "reason": reason,
        "evidence": json.loads(held.to_json()),
    }
    write_durably(kept / f"{name}.json", json.dumps(told).encode(), durable=run.lake.durable)
    drop_held(folder, key)
    ledger.record(run.lake, [discarded_row(table, held, Teller(name, run.run_id, now, now), reason)])
    return held


def _refused(table: Table, key: str, what: str, then: str) -> HeldCandidate:
    return HeldCandidate(table.path, key, what, then)


def _check(table: Table, target: Snapshot, held: Evidence, run: Run) -> None:
    """Refuse a candidate that a replay would not make again."""
    key = held.partition
    live = EvidenceReader(target.folder)(batch) if (batch := target.batch_id(key)) is not None else None
    if live is not None and live.revision > held.revision and run.downgrade is None:
        raise RevisionRefused(table.path, key, held.revision, live.revision)
    if not held.content:
        why = "its candidate was refused for its shape, so that no rows were prepared"
    elif held.epoch != target.epoch(key):
        why = "the partition was committed after its candidate had been judged"
    elif table.quarantine_path is None and held.verdict.quarantined:
        why = f"{held.verdict.quarantined} of its rows were refused, and {table.layer} is published whole"
    else:
        why = code_change(table, held) or _moved_input(table, held, run)
    if why:
        raise _refused(
            table,
            key,
            f"cannot be approved: {why}. Nothing was published; the previous version stands, if there was one.",
            f"Replay {table.path} {key} and look at what is held then.",
        )


def _moved_input(table: Table, held: Evidence, run: Run) -> str:
    pinned = {
        name: Pinned(each, run.lake.pin(each.table.path, each.table.partition)) for name, each in table.inputs.items()
    }
    for name, each in pinned.items():
        was: Mapping[str, Any] = held.inputs.get(name, {}).get("partitions", {})
        if each.counts_whole and each.contents(table.partition, held.partition) != was:
            return f"its input {each.snapshot.path} has changed since"
    for reference in held.references.values():
        if run.lake.pin(reference["table"], Whole()).content(Whole.KEY) != reference["content"]:
            return f"{reference['table']} has changed since"
    return ""


def _prepared(table: Table, target: Snapshot, held: Evidence, evidence: Evidence) -> Prepared:
    path = held_file(target.folder, held, "accepted")
    accepted, schema = _read(table, evidence, path, evidence.content, evidence.verdict.accepted)
    if evidence.refused is None:
        # The quarantine's columns are those of the table that stands; nothing is added to them.
        return Prepared({evidence.partition: evidence}, [accepted], (), schema, _quarantine_schema(table, target))
    refused, refused_schema = _read(
        table, evidence, held_file(target.folder, held, "quarantined"), evidence.refused, evidence.verdict.quarantined
    )
    return Prepared({evidence.partition: evidence}, [accepted], [refused], schema, refused_schema)


def _quarantine_schema(table: Table, target: Snapshot) -> pl.Schema:
    if table.quarantine_path is None:
        return pl.Schema()
    stands = target.lake.pin(table.quarantine_path, table.partition).schema
    return stands or _with_partition(table, pl.Schema({"_batch_id": pl.String()}))


def _with_partition(table: Table, schema: pl.Schema) -> pl.Schema:
    column = table.partition.column
    return pl.Schema({**schema, column: table.partition.dtype()}) if column else schema


def _read(table: Table, evidence: Evidence, path: Place, digest: str, rows: int) -> tuple[Staged, pl.Schema]:
    try:
        data = path.read_bytes()
    except OSError:
        data = b""
    if digest_bytes(data) != digest:
        raise _refused(
            table,
            evidence.partition,
            f"cannot be approved: {path} is not what was judged. Nothing was published.",
            f"Replay {table.path} {evidence.partition}.",
        )
    schema = pl.Schema(pl.read_parquet_schema(io.BytesIO(data)))
    return Staged(evidence.partition, data, digest, rows), _with_partition(table, schema)
