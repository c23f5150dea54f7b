"""The one door to the tables: pin a version, read it, commit to it. Nothing else imports deltalake.

A commit replaces whole partitions and carries, in one transaction, the files, a fence for every partition (a Delta
``txn`` action whose application id is the partition and whose version is its epoch) and the provenance. The fence works
because of how Delta resolves conflicts: a commit fails if another one touched the same application id after the
snapshot that the handle holds. So epoch and commit must use one handle, which :class:`Snapshot` keeps.

Protocol: Delta Lake's transaction log, ``txn`` actions as in PROTOCOL.md, "Transaction Identifiers".
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from medallion.errors import ConfigurationError, StorageFailed, Superseded, TableUnreadable
from medallion.failpoints import reach
from medallion.log import (
    CHECKPOINT_INTERVAL,
    FORMAT,
    Commit,
    check_note,
    find,
    note,
    read_commits,
    read_fences,
    sync_log,
)
from medallion.partitions import Partitioning, Whole
from medallion.staging import DataFile, Staged, parse_name, publish_files, sync

__all__ = ["FORMAT", "Commit", "Lake", "Replaced", "Replacement", "Snapshot"]

_FENCE = "medallion:"
_FEW_FENCES = 8
"""For more, the log is read once for all of them."""
_TRIES = 50
"""Other partitions' commits that may get in the way of one commit; each waits a little longer than the one before."""
_FAULTS = 3
"""Tries if nothing got in the way: then it is the store that does not take the commit."""
_CONFIGURATION = {
    "delta.logRetentionDuration": "interval 30 days",
    "delta.checkpointInterval": str(CHECKPOINT_INTERVAL),
}


@dataclass(frozen=True)
class Replacement:
    """What a commit puts in place of partitions: the prepared files, and the batch of each partition.

    Attributes:
        files: of the partitions; one without a file is emptied.
        batches: the batch id of every partition that is replaced.
        schema: of the files, the partition column included.
    """

    files: Sequence[tuple[Staged, DataFile]]
    batches: Mapping[str, str]
    schema: pl.Schema

    def without(self, keys: Collection[str]) -> Replacement:
        """The same for the other partitions."""
        if not keys:
            return self
        return Replacement(
            [pair for pair in self.files if pair[1].partition not in keys],
            {key: batch for key, batch in self.batches.items() if key not in keys},
            self.schema,
        )


@dataclass(frozen=True)
class Replaced:
    """What became of a replacement.

    Attributes:
        version: that was committed; None if every partition was superseded.
        superseded: the partitions that another attempt had committed meanwhile; nothing of them was published.
        epochs: of the partitions that were committed, as they stand by this commit.
    """

    version: int | None
    superseded: Mapping[str, Superseded]
    epochs: Mapping[str, int]


@dataclass
class Snapshot:
    """A table at one version, or a table that is not there yet. Pinned once, used for reading, fencing and commit."""

    lake: Lake
    path: str
    partition: Partitioning
    handle: DeltaTable | None
    overtaken: bool = field(default=False, repr=False)
    """Whether this attempt itself has committed on top of it: the next slice then starts from the newest version."""

    @property
    def folder(self) -> Path:
        """Where the table lies."""
        return self.lake.root / self.path

    @property
    def version(self) -> int | None:
        """The Delta version; None if there is no table yet."""
        return None if self.handle is None else self.handle.version()

    @cached_property
    def schema(self) -> pl.Schema:
        """Columns and types, partition column included; empty if there is no table yet."""
        if self.handle is None:
            return pl.Schema()
        return pl.Schema(self.handle.schema().to_arrow())

    @cached_property
    def files(self) -> Mapping[str, tuple[DataFile, ...]]:
        """The live files by partition key."""
        return {} if self.handle is None else _Files(self)

    def batch_id(self, key: str) -> str | None:
        """The batch that the live files of a partition carry; None if there are none."""
        files = self.files.get(key)
        return files[0].batch_id if files else None

    def content(self, key: str) -> str | None:
        """The content digest of a partition; None if it is not committed."""
        files = self.files.get(key)
        return "+".join(sorted(file.digest for file in files)) if files else None

    def rows(self, key: str) -> int:
        """Rows of a partition, from the log."""
        return sum(file.rows for file in self.files.get(key, ()))

    def epoch(self, key: str) -> int:
        """How many times a partition has been committed, as this snapshot sees it."""
        return self.epochs([key])[key]

    def epochs(self, keys: Collection[str]) -> dict[str, int]:
        """How many times each of some partitions has been committed, as this snapshot sees it."""
        if self.handle is None or self.handle.version() == 0:
            return dict.fromkeys(keys, 0)  # version 0 makes the table and commits no partition
        if len(keys) > _FEW_FENCES:
            found = read_fences(self.folder / "_delta_log", self.handle.version(), _FENCE)
            if found is not None:
                return {key: found.get(key, 0) for key in keys}
        return {key: self.handle.transaction_version(_FENCE + key) or 0 for key in keys}

    def commits(self, since: int | None, *, partial: bool = False) -> list[Commit] | None:
        """The engine's commits after a version, newest first; None if the log does not reach back so far.

        Args:
            since: the version; None for all.
            partial: be content with those that the log still tells.

        Raises:
            TableUnreadable: if a newer engine wrote one of them.
        """
        if self.handle is None:
            return []
        log = self.folder / "_delta_log"
        return read_commits(log, -1 if since is None else since, self.handle.version(), partial=partial)

    def columns(self, key: str) -> tuple[str, ...]:
        """The columns that the files of a partition really have; in bronze, those that the source delivered."""
        return tuple(dict.fromkeys(name for file in self.files.get(key, ()) for name in self._footer(file)))

    def _footer(self, file: DataFile) -> list[str]:
        return list(pl.read_parquet_schema(self.folder / file.path))

    def scan(self, keys: Iterable[str], columns: Iterable[str] | None = None) -> pl.LazyFrame:
        """The rows of some partitions at this version, with the partition column; empty if none is committed.

        Args:
            keys: the partitions.
            columns: read only these besides the partition column; all of the table if not given.
        """
        paths = [str(self.folder / file.path) for key in keys for file in self.files.get(key, ())]
        column = self.partition.column
        wanted = set(self.schema if columns is None else columns)
        physical = {name: dtype for name, dtype in self.schema.items() if name != column and name in wanted}
        if not paths:
            return pl.LazyFrame(schema={**physical, **({column: self.partition.dtype} if column else {})})
        if isinstance(self.partition, Whole):
            return pl.scan_parquet(paths, schema=physical, missing_columns="insert", extra_columns="ignore", glob=False)
        return pl.scan_parquet(
            paths,
            schema=physical,
            hive_partitioning=True,
            hive_schema={column: self.partition.dtype},
            missing_columns="insert",
            extra_columns="ignore",
            glob=False,
        )


class _Files(Mapping[str, tuple[DataFile, ...]]):
    """The live files of a snapshot, looked at when asked for: a commit to one partition of thousands needs one."""

    def __init__(self, snapshot: Snapshot) -> None:
        assert snapshot.handle is not None
        self._path, self._folder = snapshot.path, snapshot.folder
        self._actions = pl.DataFrame(snapshot.handle.get_add_actions(flatten=True))
        self._rows: dict[str, list[int]] = {}
        column = snapshot.partition.column
        keys = self._actions.get_column(f"partition.{column}").cast(pl.String) if column else None
        for row, key in enumerate(keys if keys is not None else [Whole.KEY] * self._actions.height):
            self._rows.setdefault(key, []).append(row)

    def __getitem__(self, key: str) -> tuple[DataFile, ...]:
        return tuple(self._file(key, self._actions.row(row, named=True)) for row in self._rows[key])

    def _file(self, key: str, action: Mapping[str, Any]) -> DataFile:
        named = parse_name(action["path"])
        if named is None:
            raise TableUnreadable(
                f"{self._path} at {self._folder} holds {action['path']}, which this engine did not write. It replaces "
                "whole partitions by name and does not guess: move the file's rows through the landing zone, or "
                "point the feed at another table name."
            )
        return DataFile(key, action["path"], *named, action["num_records"], action["size_bytes"])

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


class Lake:
    """A folder of Delta tables, ``<root>/<layer>/<table>``."""

    def __init__(self, root: str | os.PathLike[str], *, durable: bool = True) -> None:
        """Open a lake; its folder is made if it is not there.

        Args:
            root: the folder.
            durable: flush files and log entries to the disk before a commit counts as done. Without it a commit
                survives a killed process, and may not survive a power cut.

        Raises:
            ConfigurationError: if the folder cannot be made or written.
        """
        self.root = Path(root).absolute()
        self.durable = durable
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
            ConfigurationError: if a file lies where a folder of the table should be.
        """
        folder = self.root / path
        for each in (folder, *folder.relative_to(self.root).parents):
            if (self.root / each).is_file():
                raise ConfigurationError(
                    f"{self.root / each} is a file, and {path} needs a folder there. Move it away, or set "
                    "MEDALLION_LAKE to another folder."
                )
        try:
            handle = DeltaTable(str(folder), version=version)
        except TableNotFoundError:
            return Snapshot(self, path, partition, None)
        except (DeltaError, OSError) as error:
            reason = str(error).splitlines()[0]
            raise TableUnreadable(
                f"{path} at {folder} cannot be opened: {reason}. Nothing was written. Restore its _delta_log from a "
                "copy, or move the folder away and replay the table from the layer below."
            ) from error
        _check_cut(handle, path, partition)
        check_note(handle.metadata().description, f"{path} at {folder}")
        return Snapshot(self, path, partition, handle)

    def open(self, path: str, version: int | None = None) -> Snapshot:
        """Open a table that is cut as the lake itself says, for those who do not know its declaration.

        Raises:
            TableUnreadable: if there is no such table, or it cannot be read at that version.
        """
        folder = self.root / path
        try:
            columns = DeltaTable(str(folder), version=version).metadata().partition_columns
        except (DeltaError, OSError) as error:
            at = "" if version is None else f" at version {version}"
            raise TableUnreadable(f"{path} at {folder} cannot be opened{at}: {str(error).splitlines()[0]}") from error
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
        """
        seen = snapshot.epochs(replacement.batches)
        tip = snapshot
        if snapshot.handle is None:
            tip = self._create(snapshot, replacement.schema)
        elif snapshot.overtaken:
            tip = self.pin(snapshot.path, snapshot.partition)
        what = "quarantine" if snapshot.path.startswith("quarantine/") else "table"
        self._check_schema(tip, replacement)
        publish_files(replacement.files, snapshot.folder, durable=self.durable)
        reach(f"{what} files written")
        replaced = self._commit(snapshot, tip, replacement, metadata, seen)
        if replaced.version is not None:
            snapshot.overtaken = True
            reach(f"{what} committed")
            if self.durable:
                try:
                    sync_log(snapshot.folder, snapshot.version, replaced.version)
                except OSError as error:
                    key, reason = next(iter(replaced.epochs)), error.strerror or str(error)
                    raise StorageFailed(snapshot.path, key, reason, published=True) from error
            reach(f"{what} log synced")
        return replaced

    def _commit(
        self, pinned: Snapshot, tip: Snapshot, replacement: Replacement, metadata: Mapping[str, Any],
        seen: Mapping[str, int],
    ) -> Replaced:  # fmt: skip
        superseded: dict[str, Superseded] = {}
        faults = 0
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
            try:
                return Replaced(self._write(tip, replacement, metadata, raised), superseded, raised)
            except (DeltaError, OSError) as error:
                time.sleep(random.uniform(0, 0.005 * 2 ** min(attempt, 6)))
                before, tip = tip, self.pin(tip.path, tip.partition)
                # The commit may have succeeded although its caller was told otherwise; only the log knows.
                ours = find(tip.commits(before.version), metadata["attempt"], replacement.batches)
                if ours is not None:
                    return Replaced(ours, superseded, raised)
                faults += tip.version == before.version
                if faults == _FAULTS or attempt == _TRIES - 1:
                    reason = f"the log took no commit in {attempt + 1} tries: {str(error).splitlines()[0]}"
                    raise StorageFailed(tip.path, next(iter(raised)), reason) from error
        raise AssertionError("unreachable")  # pragma: no cover - the last try returns or raises

    def _write(
        self, tip: Snapshot, replacement: Replacement, metadata: Mapping[str, Any], epochs: Mapping[str, int]
    ) -> int:
        handle = tip.handle
        assert handle is not None
        whole = isinstance(tip.partition, Whole)
        column = tip.partition.column
        now = time.time_ns() // 1_000_000  # when the files were added, as the log wants it; nothing is decided by it
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                path=file.path,
                size=file.size,
                partition_values={} if whole else {column: file.partition},
                modification_time=now,
                data_change=True,
                stats=json.dumps({"numRecords": file.rows}),
            )
            for _, file in replacement.files
        ]
        merged = pl.Schema({**tip.schema, **replacement.schema})
        told = {"format": FORMAT, **metadata, "batches": dict(replacement.batches)}
        handle.create_write_transaction(
            actions,
            mode="overwrite",
            schema=pl.DataFrame(schema=merged).to_arrow().schema,
            partition_by=[] if whole else [column],
            partition_filters=None if whole else [(column, "in", list(replacement.batches))],
            commit_properties=CommitProperties(
                custom_metadata={"medallion": json.dumps(told, sort_keys=True)},
                # No retries: deltalake's own would commit on top of versions whose fences nobody has looked at. So a
                # handle commits the version after its own, or nothing; that alone is the fence.
                max_commit_retries=0,
                app_transactions=[Transaction(_FENCE + key, epoch) for key, epoch in epochs.items()],
            ),
        )
        return int(handle.version()) + 1  # the handle does not move with its own commit

    def _create(self, snapshot: Snapshot, schema: pl.Schema) -> Snapshot:
        column = snapshot.partition.column
        try:
            DeltaTable.create(
                str(snapshot.folder),
                schema=pl.DataFrame(schema=schema).to_arrow().schema,
                mode="error",
                partition_by=[column] if column else [],
                description=note(),
                configuration=_CONFIGURATION,
            )
            if self.durable:
                for folder in (snapshot.folder, *snapshot.folder.parents[:2]):
                    sync(folder)
        except (DeltaError, OSError):
            # Another process was first; what it made is used, if it can be read.
            if not DeltaTable.is_deltatable(str(snapshot.folder)):
                raise
        return self.pin(snapshot.path, snapshot.partition)

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


def _check_cut(handle: DeltaTable, path: str, partition: Partitioning) -> None:
    """Refuse a table that lies there cut in another way: a commit would replace other rows than it says."""
    stands = list(handle.metadata().partition_columns)
    wanted = [partition.column] if partition.column else []
    if stands != wanted:
        raise TableUnreadable(
            f"{path} lies in the lake partitioned by {stands or 'nothing'}, and its feed declares "
            f"{wanted or 'no partitions'}. Nothing was written. Give the table another name, or move its folder away "
            "and build it again."
        )
