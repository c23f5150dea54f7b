"""What a partition's batch is made of, and what of it has changed since the live batch was made.

One answer for everybody who asks: the attempt that is about to make the batch again, and those who only want to know
whether it would.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from medallion.contract import Reference
from medallion.digests import digest
from medallion.evidence import Evidence, read_held
from medallion.inputs import Pinned
from medallion.lake import Snapshot
from medallion.partitions import Whole
from medallion.sources import Landed
from medallion.stale import code_change, contract_digest
from medallion.tables import Table

__all__ = ["Basis", "Changes", "batch_id_of", "refined_batch_id", "source_batch_id"]


def source_batch_id(table: Table, landed: Landed) -> str:
    """Names what a bronze partition holds, by the file that was delivered or by the reason why none is to come."""
    # The file's name counts, since it is stored in every row.
    content = [landed.file.name, landed.file.sha256] if landed.file else ["closed", landed.closed]
    return digest(table.path, landed.key, table.revision, table.transform_digest, content)


def refined_batch_id(
    table: Table, key: str, contract: str, inputs: Mapping[str, Any], references: Mapping[str, Any]
) -> str:
    """Names what a partition holds that is made of others, by their content and by what it uses of its references.

    Args:
        table: whose partition it is.
        key: the partition.
        contract: its digest.
        inputs: as they stand in the evidence, with the ``partitions`` that were read.
        references: likewise, with what is ``used`` of them.
    """
    return digest(table.path, key, table.revision, table.transform_digest, contract, *_read(inputs, references))


def batch_id_of(evidence: Evidence) -> str:
    """The batch id that follows from a batch's own evidence: if it was edited, it no longer has that name."""
    told = (evidence.table, evidence.partition, evidence.revision, evidence.transform)
    if evidence.table.startswith("bronze/"):
        files = [[each.name, each.sha256] for each in evidence.sources]
        return digest(*told, files[0] if files else ["closed", evidence.closed])
    return digest(*told, evidence.contract, *_read(evidence.inputs, evidence.references))


def _read(inputs: Mapping[str, Any], references: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    return (
        {name: each["partitions"] for name, each in inputs.items()},
        {name: each["used"] for name, each in references.items()},
    )


@dataclass(frozen=True)
class Changes:
    """What differs between what a batch was made of and what it would be made of now.

    Attributes:
        code: what changed in the declaration; None if nothing did.
        inputs: partitions of inputs whose content changed, as ``layer/name key``.
        references: names of the inputs and contract columns whose reference table holds something else. Whether that
            matters for the partition, only its rows can tell.
    """

    code: str | None = None
    inputs: tuple[str, ...] = ()
    references: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.code or self.inputs or self.references)

    @property
    def only_references(self) -> bool:
        """Whether nothing but the content of references differs."""
        return bool(self.references) and not self.code and not self.inputs


@dataclass(frozen=True, eq=False)
class Basis:
    """The pinned tables that the partitions of a table are built from.

    Attributes:
        table: the declared table.
        inputs: pinned, by the transform's names.
        references: the ``known_in`` references by contract column, pinned.
    """

    table: Table
    inputs: Mapping[str, Pinned]
    references: Mapping[str, tuple[Reference, Snapshot]]

    @classmethod
    def pin(cls, table: Table, pin: Callable[[Table], Snapshot]) -> Basis:
        """Pin what a table is built from."""
        return cls(
            table,
            {name: Pinned(each, pin(each.table)) for name, each in table.inputs.items()},
            {column: (reference, pin(reference.table)) for column, reference in table.references.items()},
        )

    def needs(self, key: str) -> list[tuple[Snapshot, str]]:
        """The partitions of other tables that a partition cannot be built without."""
        needed = [
            (pinned.snapshot, each)
            for pinned in self.inputs.values()
            for each in pinned.input.keys_for(self.table.partition, key)
        ]
        return [*needed, *((snapshot, Whole.KEY) for _, snapshot in self.references.values())]

    def missing(self, key: str) -> tuple[tuple[str, str, str], ...]:
        """Those of them that are not committed: table, partition, and why."""
        lacking = [(snapshot, each) for snapshot, each in self.needs(key) if each not in snapshot.files]
        return tuple((snapshot.path, each, _why(snapshot, each)) for snapshot, each in lacking)

    def inputs_of(self, key: str) -> dict[str, dict[str, Any]]:
        """By input that counts whole: the table, its version, and the content digest of each partition that is read."""
        return {
            name: {
                "table": pinned.snapshot.path,
                "version": pinned.snapshot.version,
                "partitions": pinned.contents(self.table.partition, key),
            }
            for name, pinned in self.inputs.items()
            if pinned.counts_whole
        }

    def batch_id(self, key: str) -> str:
        """Names what a partition is made of, if the table has no references: those count by what its rows use."""
        return refined_batch_id(self.table, key, self._contract, self.inputs_of(key), {})

    @cached_property
    def _contract(self) -> str:
        return contract_digest(self.table)

    def whole_references(self) -> dict[str, dict[str, Any]]:
        """By input or contract column that counts by what is used of it: the table, its version and its content."""
        return {
            name: {"table": path, "version": version, "content": content}
            for name, path, version, content in self._whole
        }

    @cached_property
    def _whole(self) -> list[tuple[str, str, int | None, str | None]]:
        by_key = {name: p.snapshot for name, p in self.inputs.items() if not p.counts_whole}
        known_in = {f"{column}.known_in": snapshot for column, (_, snapshot) in self.references.items()}
        return [(name, s.path, s.version, s.content(Whole.KEY)) for name, s in {**by_key, **known_in}.items()]

    def changes(self, key: str, made: Evidence) -> Changes:
        """What changed for a partition since a batch of it was made."""
        inputs = {name: each["partitions"] for name, each in made.inputs.items()}
        references = {name: each["content"] for name, each in made.references.items()}
        changed: list[str] = []
        counted = {name: pinned for name, pinned in self.inputs.items() if pinned.counts_whole}
        for name, pinned in counted.items():
            was, now = inputs.get(name, {}), pinned.contents(self.table.partition, key)
            if was != now:
                differing = [each for each in {**was, **now} if was.get(each) != now.get(each)]
                changed += [f"{pinned.snapshot.path} {each}" for each in differing]
        changed += [f"input {name}" for name in inputs if name not in counted]
        now_there = {name: content for name, _, _, content in self._whole}
        moved = [name for name in {**references, **now_there} if references.get(name) != now_there.get(name)]
        return Changes(code_change(self.table, made), tuple(changed), tuple(moved))


def _why(snapshot: Snapshot, key: str) -> str:
    held = read_held(snapshot.folder, key)
    if held is None:
        return "not committed"
    return "blocked by its gate: " + ", ".join(finding.rule for finding in held.verdict.blocking)
