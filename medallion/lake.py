"""The one door to the tables: pin a version, read it, commit to it. Nothing else imports deltalake.

A commit replaces whole partitions and carries, in one transaction, the files, a fence for every partition (a Delta
``txn`` action whose application id is the partition and whose version is its epoch) and the provenance. The fence works
because a commit takes the version after the one whose epochs were looked at, or fails: an attempt commits a partition
only on top of a version in which it still stands where the attempt's own snapshot saw it.

Protocol: Delta Lake's transaction log, ``txn`` actions as in PROTOCOL.md, "Transaction Identifiers".
"""

from __future__ import annotations

import json
import logging
import os
import random
import threading
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import polars as pl
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from medallion.errors import ConfigurationError, StorageFailed, Superseded, TableUnreadable, UnknownTable
from medallion.failpoints import reach
from medallion.horizon import read_horizon, table_properties
from medallion.isolation import check_publishes
from medallion.log import (
    CHECKPOINT_INTERVAL,
    FENCE,
    FORMAT,
    Commit,
    check_note,
    find,
    has_entries_after,
    mark,
    note,
    read_fences,
    sync_log,
)
from medallion.objects import ObjectPath, conceal
from medallion.partitions import Partitioning, Whole
from medallion.recoverable import check_readable
from medallion.snapshot import Replaced, Replacement, Snapshot, check_cut
from medallion.staging import DataFile, publish_files, stage
from medallion.store import Place, check_reachable, open_place, relative, sync, table_options, tables

__all__ = ["FORMAT", "Commit", "Lake", "Replaced", "Replacement", "Snapshot"]

_log = logging.getLogger(__name__)

_FEW_FENCES = 8
"""For more, the log is read once for all of them."""
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
_TRIES = 50
"""Other partitions' commits that may get in the way of one commit; each waits a little longer than the one before."""
_FRESH = 3600.0
"""Seconds after which prepared files are written again before they are committed."""
_FAULTS = 3
"""Tries if nothing got in the way: then it is the store that does not take the commit."""
_CHECKPOINT = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
"""Old entries are left to ``medallion vacuum``, which knows what savepoints need of them."""


class Lake:
    """Delta tables at ``<root>/<layer>/<table>``, in a folder or in an S3-compatible object store."""

    def __init__(self, root: str | os.PathLike[str] | Place, *, durable: bool | None = None) -> None:
        """Open a lake; its folder is made if it is not there.

        Args:
            root: the folder, or ``s3://bucket/prefix``. How a store is reached is read from the environment alone:
                AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL, AWS_REGION, AWS_ALLOW_HTTP.
            durable: flush files and log entries to the disk before a commit counts as done. Without it a commit
                survives a killed process, and may not survive a power cut. If not given, ``MEDALLION_DURABLE`` in the
                environment says so (``0`` is off), and otherwise it is done.

        Raises:
            ConfigurationError: if the folder cannot be made or written, or the store refuses or does not answer.
        """
        self.root = open_place(root)
        self._options = table_options(self.root)
        asked = os.environ.get("MEDALLION_DURABLE", "1").lower()
        self.durable = asked not in {"0", "no", "off", "false"} if durable is None else durable
        self._opened: dict[str, tuple[DeltaTable, tuple[int, int] | None]] = {}
        self._lock = threading.RLock()
        """Held while a kept handle is moved, read or committed with; it is one for all threads of the process."""
        if isinstance(self.root, ObjectPath):
            return
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"the lake folder {self.root} cannot be made: {error.strerror}. Set MEDALLION_LAKE to a folder that "
                "can be written."
            ) from error
        if not os.access(self.root, os.W_OK | os.X_OK):
            raise ConfigurationError(
                f"the lake folder {self.root} cannot be written by this user. Change its permissions, or set "
                "MEDALLION_LAKE to another folder."
            )

    def pin(self, path: str, partition: Partitioning, version: int | None = None) -> Snapshot:
        """Open a table at its latest version, or at ``version``.

        Raises:
            TableUnreadable: if there is a log that cannot be read, or the table is cut in another way.
            NotRecoverable: if there is no such version any more, or not yet.
            ConfigurationError: if a file lies where a folder of the table should be.
        """
        folder = self.root / path
        if not isinstance(folder, ObjectPath):
            for each in (folder, *folder.parents[: path.count("/") + 1]):
                if each.is_file():
                    raise ConfigurationError(
                        f"{each} is a file, and {path} needs a folder there. Move it away, or set "
                        "MEDALLION_LAKE to another folder."
                    )
        try:
            with self._lock:
                handle = self._newest(path) if version is None else self._table(folder, version)
                return self._snapshot(handle, path, partition)
        except TableNotFoundError:
            if version is not None:  # deltalake (1.6) says so too of one whose log entries have expired
                check_readable(self.root, path, version)
            return Snapshot(self, path, partition, None)
        except (DeltaError, OSError) as error:
            check_reachable(self.root, error)
            if version is not None:
                check_readable(self.root, path, version)
            reason = conceal(str(error).splitlines()[0])
            raise TableUnreadable(
                f"{path} at {folder} cannot be opened: {reason}. Nothing was written. Restore its _delta_log from a "
                "copy, or move the folder away and replay the table from the layer below."
            ) from error

    def _table(self, folder: Place, version: int | None = None) -> DeltaTable:
        return DeltaTable(str(folder), version=version, storage_options=self._options)

    def _is_table(self, folder: Place) -> bool:
        if isinstance(folder, ObjectPath):  # deltalake (1.6) keeps all threads waiting while it asks a store this
            return any((folder / "_delta_log").glob("*.json"))
        return DeltaTable.is_deltatable(str(folder))

    def _snapshot(self, handle: DeltaTable, path: str, partition: Partitioning) -> Snapshot:
        check_cut(handle.metadata().partition_columns, path, partition)
        check_note(handle.metadata().description, f"{path} at {self.root / path}")
        actions = pl.DataFrame(handle.get_add_actions(flatten=True))
        wanted = [
            "path",
            "size_bytes",
            "num_records",
            "modification_time",
            *([f"partition.{partition.column}"] if partition.column else []),
        ]
        schema = pl.Schema(handle.schema().to_arrow())
        live = actions.select(wanted) if actions.height else pl.DataFrame()
        return Snapshot(self, path, partition, handle.version(), schema, live)

    def _newest(self, path: str) -> DeltaTable:
        """The table's handle, moved to the newest version. One is kept for each table: opening reads the whole log.

        Raises:
            TableNotFoundError: if there is no table.
        """
        log = self.root / path / "_delta_log"
        known = self._opened.get(path)
        if known is not None and known[1] == mark(log, known[0].version()):
            handle = known[0]
            if has_entries_after(log, handle.version()):
                try:
                    handle.update_incremental()
                except DeltaError:  # the entries in between have expired
                    handle = self._table(self.root / path)
        else:  # never opened, or made anew under the same name
            handle = self._table(self.root / path)
        self._opened[path] = (handle, mark(log, handle.version()))
        return handle

    def epochs(self, snapshot: Snapshot, keys: Collection[str]) -> dict[str, int]:
        """How many times each of some partitions has been committed, as a snapshot sees it."""
        if not snapshot.version:
            return dict.fromkeys(keys, 0)  # version 0 makes the table and commits no partition
        if len(keys) > _FEW_FENCES:
            found = read_fences(snapshot.folder / "_delta_log", snapshot.version, FENCE)
            if found is not None:
                return {key: found.get(key, 0) for key in keys}
        with self._lock:
            known = self._opened.get(snapshot.path)
            if known is not None and known[0].version() == snapshot.version:
                handle = known[0]
            else:
                handle = self._table(snapshot.folder, snapshot.version)
            return {key: handle.transaction_version(FENCE + key) or 0 for key in keys}

    def open(self, path: str, version: int | None = None) -> Snapshot:
        """Open a table that is cut as the lake itself says, for those who do not know its declaration.

        Raises:
            UnknownTable: if there is no such table, with those that there are.
            TableUnreadable: if it cannot be read at that version.
            NotRecoverable: if there is no such version any more, or not yet.
        """
        folder = self.root / path
        if not self._is_table(folder):
            raise UnknownTable(path, tuple(str(relative(each, self.root)) for each in tables(self.root)))
        try:
            columns = self._table(folder, version).metadata().partition_columns
        except (DeltaError, OSError) as error:
            if version is not None:
                check_readable(self.root, path, version)
            at = "" if version is None else f" at version {version}"
            reason = conceal(str(error).splitlines()[0])
            raise TableUnreadable(f"{path} at {folder} cannot be opened{at}: {reason}") from error
        return self.pin(path, Partitioning(columns[0]) if columns else Whole(), version)

    def replace(self, snapshot: Snapshot, replacement: Replacement, *, metadata: Mapping[str, Any]) -> Replaced:
        """Commit: put prepared files in the place of whole partitions, in one transaction.

        The files are written under their names and flushed first, then the log entry is written, then it is flushed. If
        another commit gets in the way, the partitions are looked at again: those that still stand where the snapshot
        saw them are tried on top, with the files as they are; the others have been superseded and stay as they are.

        Args:
            snapshot: pinned when the attempt started; the epochs that it sees are the fence.
            replacement: the files; partitions without one are emptied.
            metadata: provenance, kept in the commit; ``attempt`` names whose commit it is.

        Returns:
            the version, and the partitions that were superseded.

        Raises:
            TableUnreadable: the table's columns have other types than the files'.
            StorageFailed: the store does not take the files or the commit; it says whether anything was published.
            IsolatedCopy: the lake is a copy from a backup that has not been promoted.
        """
        check_publishes(self.root)
        seen = snapshot.epochs(replacement.batches)
        tip = snapshot
        if snapshot.version is None:
            tip = self._create(snapshot, replacement.schema, next(iter(replacement.batches)))
        elif snapshot.overtaken:
            tip = self.pin(snapshot.path, snapshot.partition)
        what = "quarantine" if snapshot.path.startswith("quarantine/") else "table"
        self._check_schema(tip, replacement)
        self._write_files(snapshot, replacement)
        reach(f"{what} files written")
        replaced = self._commit(snapshot, tip, replacement, metadata, seen)
        if replaced.version is not None:
            snapshot.overtaken = True
            reach(f"{what} committed")
            self._sync(snapshot, replaced.version, next(iter(replaced.epochs)))
            reach(f"{what} log synced")
        return replaced

    def _write_files(self, snapshot: Snapshot, replacement: Replacement) -> None:
        if not replacement.standing:
            publish_files(replacement.files, snapshot.folder, durable=self.durable)

    def append(
        self, path: str, rows: pl.DataFrame, *, metadata: Mapping[str, Any], replacing: Collection[str] = ()
    ) -> int | None:
        """Commit: add rows to an unpartitioned table that only grows, as one more file.

        Nothing is fenced, since nothing is replaced: whatever others add at the same time stays.

        Args:
            path: ``layer/name``; the table is made if it is not there.
            rows: columns that the table does not have are added to it.
            metadata: provenance, kept in the commit.
            replacing: paths of live files whose rows are all among ``rows``; they are taken out in the same commit.

        Returns:
            the version; None if one of the files that were to be replaced is gone, and then nothing is added.

        Raises:
            TableUnreadable: the table's columns have other types than the rows, or it cannot be opened.
            StorageFailed: the store does not take the file or the commit.
        """
        first = tip = self.pin(path, Whole())
        if tip.version is None:
            tip = self._create(tip, rows.schema, Whole.KEY)
        (staged,) = stage(rows, Whole(), [Whole.KEY], empty=True)
        file = staged.named(uuid.uuid4().hex, "")
        replacement = Replacement([(staged, file)], {}, rows.schema)
        try:
            publish_files(replacement.files, tip.folder, durable=self.durable)
        except OSError as error:
            raise StorageFailed(path, Whole.KEY, error.strerror or str(error)) from error
        told = {"format": FORMAT, **metadata}
        version = 0
        for attempt in range(_TRIES):
            self._check_schema(tip, replacement)
            live = tip.sizes
            if not live.keys() >= set(replacing):
                return None
            gone = {each: live[each] for each in replacing}
            try:
                if not tip.schema.keys() >= rows.schema.keys():
                    tip = self._widen(tip, rows.schema)
                version = self._transact(tip, [file], gone, tip.schema, told, now=_milliseconds())
                break
            except (DeltaError, OSError) as error:
                time.sleep(random.uniform(0, 0.005 * 2 ** min(attempt, 6)))
                before, tip = tip, self.pin(path, Whole())
                if file.path in tip.sizes:
                    version = int(tip.version or 0)  # it was committed, and its acknowledgement was lost
                    break
                if tip.version == before.version or attempt == _TRIES - 1:
                    raise StorageFailed(path, Whole.KEY, conceal(" ".join(str(error).split()))) from error
        self._sync(first, version, Whole.KEY)
        return version

    def _widen(self, tip: Snapshot, schema: pl.Schema) -> Snapshot:
        """Add the columns that a table does not have yet; a commit that only appends would leave them out."""
        new = {name: dtype for name, dtype in schema.items() if name not in tip.schema}
        fields = DeltaSchema.from_arrow(pl.DataFrame(schema=new).to_arrow().schema).fields
        self._table(tip.folder, tip.version).alter.add_columns(fields)
        return self.pin(tip.path, tip.partition)

    def _sync(self, since: Snapshot, version: int, key: str) -> None:
        """Flush the log entries of a commit, and of those that it rests on."""
        if not self.durable:
            return
        try:
            sync_log(since.folder, since.version, version)
        except OSError as error:
            raise StorageFailed(since.path, key, error.strerror or str(error), published=True) from error

    def _commit(
        self, pinned: Snapshot, tip: Snapshot, replacement: Replacement, metadata: Mapping[str, Any],
        seen: Mapping[str, int],
    ) -> Replaced:  # fmt: skip
        superseded: dict[str, Superseded] = {}
        faults, written = 0, time.time()
        for attempt in range(_TRIES):
            if tip is not pinned:
                stands = tip.epochs(replacement.batches)
                moved = {key: epoch for key, epoch in stands.items() if epoch != seen[key]}
                superseded |= {key: Superseded(tip.path, key, seen[key], epoch) for key, epoch in moved.items()}
                replacement = replacement.without(moved)
                self._check_schema(tip, replacement)
            raised = {key: seen[key] + 1 for key in replacement.batches}
            if not raised:
                return Replaced(None, superseded, {})
            if time.time() - written > _FRESH:
                # Whoever cleans the lake from another host may have taken the files of an attempt that slept so long.
                self._write_files(tip, replacement)
            now = _milliseconds()
            try:
                return Replaced(self._write(tip, replacement, metadata, raised, now), superseded, raised, at=now)
            except (DeltaError, OSError) as error:
                time.sleep(random.uniform(0, 0.005 * 2 ** min(attempt, 6)))
                before, tip = tip, self.pin(tip.path, tip.partition)
                # The commit may have succeeded although its caller was told otherwise; only the log knows.
                ours = find(tip.commits(before.version), metadata["attempt"], replacement.batches)
                if ours is not None:
                    _log.warning("%s: version %s was committed, and its acknowledgement was lost", tip.path, ours)
                    return Replaced(ours, superseded, raised, recovered=True, at=now)
                faults += tip.version == before.version
                if faults == _FAULTS or attempt == _TRIES - 1:
                    reason = f"the log took no commit in {attempt + 1} tries: {conceal(' '.join(str(error).split()))}"
                    raise StorageFailed(tip.path, next(iter(raised)), reason) from error
        raise AssertionError("unreachable")  # pragma: no cover - the last try returns or raises

    def _write(
        self, tip: Snapshot, replacement: Replacement, metadata: Mapping[str, Any], epochs: Mapping[str, int], now: int
    ) -> int:
        # A file that stands already stays: one version that both adds and removes a path means nothing in the protocol.
        stands = {file.path for key in replacement.batches for file in tip.files.get(key, ())}
        kept = {file.partition for _, file in replacement.files if file.path in stands}
        changing = [key for key in replacement.batches if key not in kept]
        added = [file for _, file in replacement.files if file.partition not in kept]
        told = {"format": FORMAT, **metadata, "at": now, "batches": dict(replacement.batches)}
        fences = [Transaction(FENCE + key, epoch) for key, epoch in epochs.items()]
        schema = {**tip.schema, **replacement.schema}
        return self._transact(tip, added, {}, schema, told, now=now, changing=changing, fences=fences)

    def _transact(
        self, tip: Snapshot, added: Sequence[DataFile], gone: Mapping[str, int], schema: Mapping[str, pl.DataType],
        told: Mapping[str, Any], *, now: int, changing: Sequence[str] = (), fences: Sequence[Transaction] = (),
    ) -> int:  # fmt: skip
        """Write the version after the one of ``tip``, or nothing."""
        column = tip.partition.column
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                path=file.path,
                size=file.size,
                partition_values={column: file.partition} if column else {},
                modification_time=now,
                data_change=True,
                stats=json.dumps({"numRecords": file.rows}),
            )
            for file in added
        ]
        actions += [
            RemoveAction(path, data_change=True, deletion_timestamp=now, size=size, partition_values={})
            for path, size in gone.items()
        ]
        version = int(tip.version or 0) + 1
        # deltalake would read the table again after each commit, to see whether a checkpoint is due: here it is told.
        hooks = _CHECKPOINT if (version + 1) % CHECKPOINT_INTERVAL == 0 else _NO_HOOKS
        with self._lock:
            handle = self._newest(tip.path)
            if handle.version() != tip.version:
                raise CommitFailedError(f"the table is at version {handle.version()}, no longer at {tip.version}")
            handle.create_write_transaction(
                actions,
                mode="overwrite" if changing else "append",
                schema=pl.DataFrame(schema=schema).to_arrow().schema,
                partition_by=[column] if column else [],
                partition_filters=[(column, "in", changing)] if column and changing else None,
                commit_properties=CommitProperties(
                    custom_metadata={"medallion": json.dumps(told, sort_keys=True)},
                    # No retries: deltalake's own would commit on top of versions whose fences nobody has looked at. So
                    # a handle commits the version after its own, or nothing; that alone is the fence.
                    max_commit_retries=0,
                    app_transactions=list(fences),
                ),
                post_commithook_properties=hooks,
            )
        return version

    def _create(self, snapshot: Snapshot, schema: pl.Schema, key: str) -> Snapshot:
        column = snapshot.partition.column
        try:
            DeltaTable.create(
                str(snapshot.folder),
                schema=pl.DataFrame(schema=schema).to_arrow().schema,
                mode="error",
                partition_by=[column] if column else [],
                description=note(),
                configuration={
                    **table_properties(read_horizon(self.root)),
                    "delta.checkpointInterval": str(CHECKPOINT_INTERVAL),
                },
                storage_options=self._options,
            )
            if self.durable:
                for folder in (snapshot.folder, snapshot.folder.parent, snapshot.folder.parent.parent):
                    sync(folder)
        except (DeltaError, OSError) as error:
            # Another process was first, or the acknowledgement was lost; what stands is used, if it can be read.
            if self.pin(snapshot.path, snapshot.partition).version is None:
                reason = f"the table could not be made: {conceal(' '.join(str(error).split()))}"
                raise StorageFailed(snapshot.path, key, reason) from error
        return self.pin(snapshot.path, snapshot.partition)

    def configure(self, path: str, properties: Mapping[str, str]) -> bool:
        """Set properties of a table that is there; whether any differed. Each that differs is a commit of its own.

        Raises:
            StorageFailed: if the log does not take it.
            IsolatedCopy: the lake is a copy from a backup that has not been promoted.
        """
        check_publishes(self.root)
        reason = ""
        for _ in range(_FAULTS):
            try:
                with self._lock:
                    handle = self._newest(path)
                    if all(handle.metadata().configuration.get(name) == value for name, value in properties.items()):
                        return False
                    handle.alter.set_table_properties(dict(properties))
                return True
            except (DeltaError, OSError) as error:  # somebody's commit got in the way, or an answer was lost
                reason = conceal(" ".join(str(error).split()))
        raise StorageFailed(path, "properties", reason)

    def checkpoint(self, path: str, version: int) -> None:
        """Write a checkpoint of an earlier version, so that it can be read without the entries before it.

        What ``_last_checkpoint`` names stays, as long as it names a later one (deltalake 1.6).
        """
        self._table(self.root / path, version).create_checkpoint()
        if self.durable:
            sync_log(self.root / path, version - 1, version)

    def _check_schema(self, snapshot: Snapshot, replacement: Replacement) -> None:
        """Delta would take any files; so types are compared here, before a log entry can name them."""
        for name, dtype in replacement.schema.items():
            stands = snapshot.schema.get(name)
            if stands is not None and stands != dtype:
                raise TableUnreadable(
                    f"{snapshot.path}: column {name!r} is {dtype} in what is to be committed, and {stands} in the "
                    "table. Nothing was published. If the type is meant to change, give the table another name, or "
                    "rebuild it from the layer below."
                )


def _milliseconds() -> int:
    """The time, as the log wants it of files and commits; nothing is decided by it."""
    return time.time_ns() // 1_000_000
