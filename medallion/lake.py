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
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from medallion.errors import ConfigurationError, Superseded, TableUnreadable
from medallion.partitions import Partitioning, Whole
from medallion.staging import DataFile, Staged, parse_name, publish_files, sync

__all__ = ["FORMAT", "Lake", "Replacement", "Snapshot"]

FORMAT = 1
"""Version of what this engine writes into file names, fences and evidence. A higher one is refused."""

_FENCE = "medallion:"
_REBASES = 20
_CONFIGURATION = {"delta.logRetentionDuration": "interval 30 days", "delta.checkpointInterval": "50"}


@dataclass(frozen=True)
class Replacement:
    """What a commit puts in place of partitions: the prepared files, each with the batch that made it."""

    files: Sequence[tuple[Staged, DataFile]]
    keys: Sequence[str]
    schema: pl.Schema
    """Of the files, the partition column included."""


@dataclass
class Snapshot:
    """A table at one version, or a table that is not there yet. Pinned once, used for reading, fencing and commit."""

    lake: Lake
    path: str
    partition: Partitioning
    handle: DeltaTable | None
    _files: dict[str, tuple[DataFile, ...]] | None = field(default=None, repr=False)

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

    @property
    def files(self) -> Mapping[str, tuple[DataFile, ...]]:
        """The live files by partition key."""
        if self._files is None:
            self._files = self._read_files()
        return self._files

    def _read_files(self) -> dict[str, tuple[DataFile, ...]]:
        if self.handle is None:
            return {}
        actions = pl.DataFrame(self.handle.get_add_actions(flatten=True))
        column = None if isinstance(self.partition, Whole) else f"partition.{self.partition.column}"
        found: dict[str, list[DataFile]] = defaultdict(list)
        for row in actions.iter_rows(named=True):
            named = parse_name(row["path"])
            if named is None:
                raise TableUnreadable(
                    f"{self.path} at {self.folder} holds {row['path']}, which this engine did not write. It replaces "
                    "whole partitions by name and does not guess: move the file's rows through the landing zone, or "
                    "point the feed at another table name."
                )
            key = Whole.KEY if column is None else str(row[column])
            found[key].append(DataFile(key, row["path"], *named, row["num_records"], row["size_bytes"]))
        return {key: tuple(files) for key, files in found.items()}

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
        if self.handle is None or self.handle.version() == 0:
            return 0  # version 0 makes the table and commits no partition
        return self.handle.transaction_version(_FENCE + key) or 0

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
        return Snapshot(self, path, partition, handle)

    def replace(
        self, snapshot: Snapshot, replacement: Replacement, *, metadata: Mapping[str, Any], fenced: Sequence[str]
    ) -> int:
        """Commit: put prepared files in the place of whole partitions, in one transaction.

        The files are written under their names and flushed first, then the log entry is written, then it is flushed. If
        another commit gets in the way, the partitions are looked at again: if all of them still stand where the
        snapshot saw them, the commit is tried on top; else this attempt has been superseded.

        Args:
            snapshot: pinned when the attempt started; its handle is the fence.
            replacement: the files; ``keys`` without a file are emptied.
            metadata: provenance, kept in the commit.
            fenced: the partitions whose epoch is raised, all of ``replacement.keys`` as a rule.

        Returns:
            the version that was committed.

        Raises:
            Superseded: another attempt committed one of the partitions; nothing was published.
            TableUnreadable: the table's columns have other types than the files'.
        """
        seen = {key: snapshot.epoch(key) for key in fenced}
        if snapshot.handle is None:
            snapshot = self._create(snapshot, replacement.schema)
            # Whoever made the table may have committed these partitions as well.
            version = self._examine(snapshot, replacement, seen)
            if version is not None:
                return version
        self._check_schema(snapshot, replacement)
        publish_files(replacement.files, snapshot.folder, durable=self.durable)
        version = None
        for attempt in range(_REBASES):
            try:
                version = self._write(snapshot, replacement, metadata, seen)
            except (CommitFailedError, OSError):
                # On top of what the other commit left: its columns stay, and types are compared again.
                snapshot = self.pin(snapshot.path, snapshot.partition)
                version = self._examine(snapshot, replacement, seen)
                if version is None and attempt == _REBASES - 1:
                    raise
                self._check_schema(snapshot, replacement)
            if version is not None:
                break
            time.sleep(random.uniform(0, 0.01 * 2 ** min(attempt, 6)))
        assert version is not None
        if self.durable:
            self._sync_log(snapshot.folder, version)
        return version

    def _write(
        self, snapshot: Snapshot, replacement: Replacement, metadata: Mapping[str, Any], seen: Mapping[str, int]
    ) -> int:
        handle = snapshot.handle
        assert handle is not None
        whole = isinstance(snapshot.partition, Whole)
        column = snapshot.partition.column
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
        merged = pl.Schema({**snapshot.schema, **replacement.schema})
        handle.create_write_transaction(
            actions,
            mode="overwrite",
            schema=pl.DataFrame(schema=merged).to_arrow().schema,
            partition_by=[] if whole else [column],
            partition_filters=None if whole else [(column, "in", list(replacement.keys))],
            commit_properties=CommitProperties(
                custom_metadata={"medallion": json.dumps({"format": FORMAT, **metadata}, sort_keys=True)},
                max_commit_retries=0,
                app_transactions=[Transaction(_FENCE + key, epoch + 1) for key, epoch in seen.items()],
            ),
        )
        # The handle does not move with its own commit; with no retries the commit is the next version.
        return int(handle.version()) + 1

    def _examine(self, now: Snapshot, replacement: Replacement, seen: Mapping[str, int]) -> int | None:
        """After a failed commit: the version if it was ours after all, None to try again, or Superseded."""
        ours = {file.path for _, file in replacement.files}
        live = {file.path for key in replacement.keys for file in now.files.get(key, ())}
        moved = {key: now.epoch(key) for key, epoch in seen.items() if now.epoch(key) != epoch}
        if not moved:
            return None
        if live == ours and all(now.epoch(key) == epoch + 1 for key, epoch in seen.items()):
            return now.version
        key, epoch = next(iter(moved.items()))
        raise Superseded(now.path, key, seen[key], epoch)

    def _create(self, snapshot: Snapshot, schema: pl.Schema) -> Snapshot:
        column = snapshot.partition.column
        try:
            DeltaTable.create(
                str(snapshot.folder),
                schema=pl.DataFrame(schema=schema).to_arrow().schema,
                mode="error",
                partition_by=[column] if column else [],
                configuration=_CONFIGURATION,
            )
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

    def _sync_log(self, folder: Path, version: int) -> None:
        log = folder / "_delta_log"
        entry = log / f"{version:020}.json"
        if entry.exists():
            sync(entry)
        sync(log)


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
