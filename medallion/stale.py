"""Which committed partitions the declared code would make differently, and why, told from their evidence alone."""

from __future__ import annotations

from functools import lru_cache

from medallion.digests import digest
from medallion.evidence import Evidence, EvidenceReader
from medallion.lake import Lake
from medallion.tables import Table

__all__ = ["code_change", "contract_digest", "stale_partitions"]


@lru_cache(maxsize=1024)
def contract_digest(table: Table) -> str:
    """Names what a table is judged by: its rules, and the settings that decide with them."""
    if table.schema is None:
        return ""
    return digest(table.gate.digest, table.key, dict(table.gate.limits), table.version_column)


def code_change(table: Table, evidence: Evidence) -> str | None:
    """What differs between the code that made a batch and the declared one; None if nothing does."""
    if evidence.revision > table.revision:
        return f"made by revision {evidence.revision}, and {table.revision} is declared: it is refused"
    changes = [
        what
        for what, made, declared in (
            (f"revision {evidence.revision} became {table.revision}", evidence.revision, table.revision),
            ("the transform changed", evidence.transform, table.transform_digest),
            ("the contract changed", evidence.contract, contract_digest(table)),
        )
        if made != declared
    ]
    return ", ".join(changes) or None


def stale_partitions(table: Table, lake: Lake) -> dict[str, str]:
    """The committed partitions that replay would make anew because the table's own code changed, each with the reason.

    Whether inputs have changed is not asked here.

    Raises:
        TableUnreadable: if a newer engine wrote the table or its evidence.
    """
    snapshot = lake.pin(table.path, table.partition)
    evidence_of = EvidenceReader(snapshot.folder)
    found: dict[str, str] = {}
    for key in snapshot.files:
        batch_id = snapshot.batch_id(key)
        evidence = evidence_of(batch_id) if batch_id is not None else None
        reason = "its evidence is gone" if evidence is None else code_change(table, evidence)
        if reason is not None:
            found[key] = reason
    return found
