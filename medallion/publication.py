"""From prepared candidates to what readers see: quarantine first, then the table, and one truth in both.

The two tables cannot be committed in one transaction. What keeps them together:

1. The quarantine is pinned anew for each publication, and only then the table is asked whether the partitions still
   stand where the attempt saw them. An attempt that was overtaken before this point writes nothing; one that is
   overtaken after it meets the quarantine's own fence, which moves with every publication, refused rows or not.
2. What can slip through is an attempt that is overtaken between its two commits. So whoever has written to either of
   the two looks at both afterwards, quarantine first, and puts back what belongs to the live batch. The last writer
   sees the last state, so that in the end they agree; if it dies, the next attempt at the partition does it.
3. Until then every quarantined row carries its ``_batch_id``, so that rows of a batch that is not live can be told.

A live batch's refused rows are put back from their file, whose name stands in the batch's evidence: nothing is computed
again.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from medallion import errors
from medallion.attempts import COMMITTED
from medallion.digests import digest_bytes
from medallion.evidence import Evidence, EvidenceReader, drop_held, write_evidence
from medallion.failpoints import reach
from medallion.lake import Lake, Replaced, Replacement, Snapshot
from medallion.outcomes import Committed, Outcome, Superseded, Unchanged
from medallion.recent import remember
from medallion.staging import DataFile, Staged
from medallion.tables import Table

__all__ = ["Prepared", "Publication", "disagreeing", "reconcile"]

_log = logging.getLogger(__name__)
_TRIES = 20


@dataclass(frozen=True)
class Prepared:
    """Judged and encoded partitions that are to be published.

    Attributes:
        evidence: of each partition, with the digests of its files.
        accepted: one file a partition.
        quarantined: one file for each partition of which rows were refused.
        schema: of the accepted rows, the partition column included.
        quarantine_schema: of the refused rows, likewise.
        rows: the accepted ones, as stored, if they are in memory.
    """

    evidence: Mapping[str, Evidence]
    accepted: Sequence[Staged]
    quarantined: Sequence[Staged] = ()
    schema: pl.Schema = field(default_factory=pl.Schema)
    quarantine_schema: pl.Schema = field(default_factory=pl.Schema)
    rows: pl.DataFrame | None = field(default=None, repr=False)


class Publication:
    """Publishes what one attempt has prepared."""

    def __init__(self, table: Table, target: Snapshot, metadata: Mapping[str, Any]) -> None:
        """Publish into a table.

        Args:
            table: the declared table.
            target: pinned when the attempt started: the epochs that it sees are the fence.
            metadata: what every commit says; ``attempt`` names whose it is.
        """
        self.table, self.target, self.lake, self.metadata = table, target, target.lake, metadata
        self._evidence = EvidenceReader(target.folder)
        self.unacknowledged: dict[str, str] = {}
        """Partitions of which a commit was found in the log although its caller had been told that it failed."""

    def publish(self, prepared: Prepared, was: Callable[[str], Evidence | None]) -> dict[str, Outcome]:
        """Publish partitions; those that another attempt committed meanwhile are left to it.

        Args:
            prepared: the partitions.
            was: gives the evidence of a partition's version before.

        Raises:
            StorageFailed: the store does not take it; the quarantine has been put back, if that at least was possible.
        """
        accepted = self._replacement(prepared, prepared.accepted, prepared.schema)
        replaced = self.replace(
            accepted,
            self._replacement(prepared, prepared.quarantined, prepared.quarantine_schema),
            lambda keys: self._keep_evidence([prepared.evidence[key] for key in keys]),
        )
        if prepared.rows is not None:
            committed = [file for _, file in accepted.files if file.partition in replaced.epochs]
            remember(self.target, prepared.rows, committed)
        outcomes: dict[str, Outcome] = dict(self._lost(prepared, replaced.superseded))
        for key in replaced.epochs:
            drop_held(self.target.folder, key)
            before = was(key)
            assert replaced.version is not None
            outcomes[key] = Committed(
                prepared.evidence[key],
                replaced.version,
                before,
                self.unacknowledged.get(key),
                None if replaced.at is None else dt.datetime.fromtimestamp(replaced.at / 1000, dt.UTC),
            )
        return outcomes

    def replace(
        self, accepted: Replacement, refused: Replacement, ready: Callable[[Collection[str]], None] = lambda keys: None
    ) -> Replaced:
        """Commit the refused rows of some partitions to the quarantine, and then the accepted ones to the table.

        Args:
            accepted: what is put in the place of partitions of the table.
            refused: of the same partitions, for the quarantine; not looked at if the table has none.
            ready: called with the partitions that are still this attempt's, right before the table is committed.

        Raises:
            StorageFailed: see :meth:`publish`.
        """
        keys = list(accepted.batches)
        lost = self.moved(keys)
        quarantine_epochs: dict[str, int] = {}
        try:
            if self.table.quarantine_path is not None:
                quarantine_epochs, more = self._replace_quarantine(refused.without(lost))
                lost |= more
            mine = accepted.without(lost)
            if mine.batches:
                ready(list(mine.batches))
                replaced = self.lake.replace(self.target, mine, metadata=self.metadata)
            else:
                replaced = Replaced(None, {}, {})
        except Exception:
            with suppress(Exception):  # the store may be what failed; then the next attempt puts it back
                self._agree(keys, {})
            raise
        self._note(replaced)
        lost |= replaced.superseded
        self._agree([key for key in keys if key in quarantine_epochs], quarantine_epochs if not lost else {})
        return Replaced(replaced.version, lost, replaced.epochs, replaced.recovered, replaced.at)

    def _keep_evidence(self, documents: Sequence[Evidence]) -> None:
        write_evidence(self.target.folder, documents, durable=self.lake.durable)
        reach("evidence written")

    def _note(self, replaced: Replaced) -> None:
        if replaced.recovered:
            self.unacknowledged |= dict.fromkeys(replaced.epochs, COMMITTED)

    def moved(self, keys: Collection[str]) -> dict[str, errors.Superseded]:
        """The partitions that have been committed since the attempt started."""
        now = self.lake.pin(self.target.path, self.target.partition)
        if now.version == self.target.version:
            return {}
        seen, stands = self.target.epochs(keys), now.epochs(keys)
        return {
            key: errors.Superseded(self.table.path, key, seen[key], stands[key])
            for key in keys
            if stands[key] != seen[key]
        }

    def _replace_quarantine(self, replacement: Replacement) -> tuple[dict[str, int], dict[str, errors.Superseded]]:
        """Evidence before publication. Committed even if nothing was refused, so that its fence moves."""
        assert self.table.quarantine_path is not None
        epochs: dict[str, int] = {}
        lost: dict[str, errors.Superseded] = {}
        for _ in range(_TRIES):
            quarantine = self.lake.pin(self.table.quarantine_path, self.table.partition)
            moved = self.moved(list(replacement.batches))
            lost |= moved
            replacement = replacement.without({*moved, *epochs})
            if not replacement.batches:
                reach("quarantine committed")
                return epochs, lost
            replaced = self.lake.replace(quarantine, replacement, metadata=self.metadata)
            epochs |= replaced.epochs
            self._note(replaced)
            if not replaced.superseded:
                return epochs, lost
            # The quarantine moved and the table did not: somebody is between his two commits, or put something back.
        key = next(iter(replacement.batches))
        raise errors.StorageFailed(self.table.quarantine_path, key, f"it was overtaken {_TRIES} times")

    def _replacement(self, prepared: Prepared, staged: Sequence[Staged], schema: pl.Schema) -> Replacement:
        batches = {key: each.batch_id for key, each in prepared.evidence.items()}
        folder = self.table.partition.folder
        return Replacement(
            [(each, each.named(batches[each.partition], folder(each.partition))) for each in staged],
            batches,
            schema,
        )

    def _agree(self, keys: Sequence[str], written: Mapping[str, int]) -> None:
        """See to it that the quarantine holds what belongs to the live batches."""
        path = self.table.quarantine_path
        if path is None or not keys:
            return
        if written:
            now = self.lake.pin(path, self.table.partition)
            if now.epochs(keys) == {key: written[key] for key in keys}:
                return  # nobody has written after this attempt
        reconcile(self.table, self.lake, keys, self.metadata)

    def _lost(self, prepared: Prepared, lost: Mapping[str, errors.Superseded]) -> dict[str, Outcome]:
        if not lost:
            return {}
        now = self.lake.pin(self.target.path, self.target.partition)
        found: dict[str, Outcome] = {}
        for key, error in lost.items():
            batch_id = prepared.evidence[key].batch_id
            live = self._evidence(batch_id) if now.batch_id(key) == batch_id else None
            if live is not None and now.version is not None:
                found[key] = Unchanged(live, now.version)  # the other attempt did the very same work
            else:
                found[key] = Superseded(error)
        return found


def reconcile(
    table: Table,
    lake: Lake,
    keys: Sequence[str],
    metadata: Mapping[str, Any],
    evidence_of: Callable[[str], Evidence | None] | None = None,
) -> list[str]:
    """Put the refused rows of live batches into the quarantine where others stand there.

    Args:
        table: a declared table with a quarantine.
        lake: where it lies.
        keys: the partitions to look at.
        metadata: what the commit says, if one is needed.
        evidence_of: gives the evidence of a batch.

    Returns:
        the partitions that were put right.
    """
    assert table.quarantine_path is not None
    repaired: list[str] = []
    for _ in range(_TRIES):
        # In this order: a commit of the table that is not seen here comes with a look at the quarantine after it.
        quarantine = lake.pin(table.quarantine_path, table.partition)
        target = lake.pin(table.path, table.partition)
        right = _repairs(table, quarantine, target, keys, evidence_of or EvidenceReader(target.folder))
        if not right.batches:
            return repaired
        repaired += list(lake.replace(quarantine, right, metadata={**metadata, "reconciled": True}).epochs)
    raise errors.StorageFailed(table.quarantine_path, keys[0], f"it was overtaken {_TRIES} times")


def disagreeing(
    quarantine: Snapshot, target: Snapshot, keys: Collection[str], evidence_of: Callable[[str], Evidence | None]
) -> dict[str, Evidence | None]:
    """The partitions of which the quarantine holds other rows than those that the table's live batch refused.

    Args:
        quarantine: at one version.
        target: the table, at one version.
        keys: the partitions to look at.
        evidence_of: gives the evidence of a batch.

    Returns:
        the evidence of each one's batch; None if there is no batch.
    """
    found: dict[str, Evidence | None] = {}
    for key in keys:
        live, refused = target.batch_id(key), quarantine.batch_id(key)
        if live == refused:
            continue
        evidence = None if live is None else evidence_of(live)
        if live is not None and evidence is None:
            continue  # what belongs there is not known before the partition's evidence is worked out again
        if refused is not None or (evidence is not None and evidence.verdict.quarantined):
            found[key] = evidence
    return found


def _repairs(
    table: Table,
    quarantine: Snapshot,
    target: Snapshot,
    keys: Sequence[str],
    evidence_of: Callable[[str], Evidence | None],
) -> Replacement:
    files: list[tuple[Staged, DataFile]] = []
    batches: dict[str, str] = {}
    for key, evidence in disagreeing(quarantine, target, keys, evidence_of).items():
        if evidence is None or not evidence.verdict.quarantined:
            batches[key] = target.batch_id(key) or ""
            continue
        file = _kept(table, quarantine, evidence)
        if file is None:
            _log.warning("%s %s: the refused rows of the live batch are gone", quarantine.path, key)
            continue
        files.append(file)
        batches[key] = evidence.batch_id
    return Replacement(files, batches, quarantine.schema)


def _kept(table: Table, quarantine: Snapshot, evidence: Evidence) -> tuple[Staged, DataFile] | None:
    """The file of a batch's refused rows, which stays where it was written when the log stops naming it."""
    staged = Staged(evidence.partition, b"", evidence.refused or "", evidence.verdict.quarantined)
    path = quarantine.folder / staged.named(evidence.batch_id, table.partition.folder(evidence.partition)).path
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if digest_bytes(data) != evidence.refused:
        return None
    whole = Staged(evidence.partition, data, evidence.refused, evidence.verdict.quarantined)
    return whole, whole.named(evidence.batch_id, table.partition.folder(evidence.partition))
