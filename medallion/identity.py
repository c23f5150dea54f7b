"""What names a batch: the digest of everything that decides what a partition's rows are.

The same logical work has the same id everywhere. An id can be worked out again from a batch's own evidence, so that
evidence that was edited afterwards no longer agrees with the name under which its rows lie.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from medallion.digests import digest
from medallion.evidence import Evidence

__all__ = ["batch_of", "delivered_batch", "refined_batch"]


def delivered_batch(
    table: str, partition: str, revision: int, transform: str, *, source: tuple[str, str] | None, closed: str | None
) -> str:
    """The id of what a source delivers.

    Args:
        table: ``bronze/name``.
        partition: the key.
        revision: of the declaration.
        transform: its digest.
        source: the file's name, which is stored in every row, and the SHA-256 of its bytes; None if there is none.
        closed: then, why there is none.
    """
    content = ["closed", closed] if source is None else list(source)
    return digest(table, partition, revision, transform, content)


def refined_batch(
    table: str,
    partition: str,
    revision: int,
    transform: str,
    contract: str,
    *,
    inputs: Mapping[str, Mapping[str, Any]],
    references: Mapping[str, Mapping[str, Any]],
) -> str:
    """The id of what is made of other tables: by the content of its inputs, and by what it uses of its references."""
    return digest(
        table,
        partition,
        revision,
        transform,
        contract,
        {name: each["partitions"] for name, each in inputs.items()},
        {name: each["used"] for name, each in references.items()},
    )


def batch_of(evidence: Evidence) -> str:
    """The id that a batch has by its own evidence."""
    told = (evidence.table, evidence.partition, evidence.revision, evidence.transform)
    if evidence.table.startswith("bronze/"):
        source = next(((each.name, each.sha256) for each in evidence.sources), None)
        return delivered_batch(*told, source=source, closed=evidence.closed)
    return refined_batch(*told, evidence.contract, inputs=evidence.inputs, references=evidence.references)
