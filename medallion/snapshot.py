"""A table as one version of its log describes it: what is live, how it is read, and how often it was committed.

A snapshot is a value: it stays what it was when the table moves on. It is made by the lake, or, where the log has
forgotten a version, from a savepoint that names its files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import polars as pl

from medallion.errors import Superseded, TableUnreadable
from medallion.log import Commit, read_commits
from medallion.partitions import Partitioning, Whole
from medallion.staging import DataFile, Staged, parse_name
from medallion.store import Place, parquet_columns, scan_options

if TYPE_CHECKING:
    from medallion.lake import Lake

__all__ = ["Replaced", "Replacement", "Snapshot", "check_cut", "named_snapshot"]


@dataclass(frozen=True)
class Replacement:
    """What a commit puts in place of partitions: the prepared files, and the batch of each partition.

    Attributes:
        files: of the partitions; one without a file is emptied.
        batches: the batch id of every partition that is replaced.
        schema: of the files, the partition column included.
        standing: whether the files lie there already and have been checked, so that none is written.
    """

    files: Sequence[tuple[Staged, DataFile]]
    batches: Mapping[str, str]
    schema: pl.Schema
    standing: bool = False

    def without(self, keys: Collection[str]) -> Replacement:
        """The same for the other partitions."""
        if not keys:
            return self
        return Replacement(
            [pair for pair in self.files if pair[1].partition not in keys],
            {key: batch for key, batch in self.batches.items() if key not in keys},
            self.schema,
            self.standing,
        )


@dataclass(frozen=True)
class Replaced:
    """What became of a replacement.

    Attributes:
        version: that was committed; None if every partition was superseded.
        superseded: the partitions that another attempt had committed meanwhile; nothing of them was published.
        epochs: of the partitions that were committed, as they stand by this commit.
        recovered: whether the acknowledgement of the commit was lost, and the log told of it.
        at: when it was committed, in milliseconds since 1970, as the commit itself says.
    """

    version: int | None
    superseded: Mapping[str, Superseded]
    epochs: Mapping[str, int]
    recovered: bool = False
    at: int | None = None


@dataclass(eq=False)
class Snapshot:
    """A table at one version, or a table that is not there yet. Pinned once, used for reading, fencing and commit."""

    lake: Lake
    path: str
    partition: Partitioning
    version: int | None
    """The Delta version; None if there is no table yet."""
    schema: pl.Schema = field(default_factory=pl.Schema)
    """Columns and types, partition column included; empty if there is no table yet."""
    actions: pl.DataFrame = field(default_factory=pl.DataFrame, repr=False)
    """The live files, as the log names them."""
    overtaken: bool = field(default=False, repr=False)
    """Whether this attempt itself has committed on top of it: the next slice then starts from the newest version."""

    @property
    def folder(self) -> Place:
        """Where the table lies."""
        return self.lake.root / self.path

    @cached_property
    def files(self) -> Mapping[str, tuple[DataFile, ...]]:
        """The live files by partition key."""
        return _Files(self)

    @property
    def sizes(self) -> dict[str, int]:
        """The live files' paths and sizes in bytes, whoever wrote them."""
        return dict(self.actions.select("path", "size_bytes").iter_rows()) if self.actions.height else {}

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
        return self.lake.epochs(self, keys)

    def commits(self, since: int | None, *, partial: bool = False) -> list[Commit] | None:
        """The engine's commits after a version, newest first; None if the log does not reach back so far.

        Args:
            since: the version; None for all.
            partial: be content with those that the log still tells.

        Raises:
            TableUnreadable: if a newer engine wrote one of them.
        """
        if self.version is None:
            return []
        log = self.folder / "_delta_log"
        return read_commits(log, -1 if since is None else since, self.version, partial=partial)

    def columns(self, key: str) -> tuple[str, ...]:
        """The columns that the files of a partition really have; in bronze, those that the source delivered."""
        return tuple(dict.fromkeys(name for file in self.files.get(key, ()) for name in self._footer(file)))

    def _footer(self, file: DataFile) -> list[str]:
        return parquet_columns(self.folder / file.path)

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
            return pl.scan_parquet(
                paths,
                schema=physical,
                missing_columns="insert",
                extra_columns="ignore",
                glob=False,
                **scan_options(self.folder),
            )
        return pl.scan_parquet(
            paths,
            schema=physical,
            hive_partitioning=True,
            hive_schema={column: self.partition.dtype},
            missing_columns="insert",
            extra_columns="ignore",
            glob=False,
            **scan_options(self.folder),
        )


_MANY = 32
"""Partitions of which the files are looked at one by one; whoever asks for more is likely to want them all."""


def check_cut(columns: Sequence[str], path: str, partition: Partitioning) -> None:
    """Refuse a table that lies there cut in another way: a commit would replace other rows than it says.

    Raises:
        TableUnreadable: with both ways.
    """
    stands = list(columns)
    wanted = [partition.column] if partition.column else []
    if stands != wanted:
        raise TableUnreadable(
            f"{path} lies in the lake partitioned by {stands or 'nothing'}, and its feed declares "
            f"{wanted or 'no partitions'}. Nothing was written. Give the table another name, or move its folder away "
            "and build it again."
        )


def named_snapshot(newest: Snapshot, version: int | None, files: Mapping[str, Sequence[DataFile]]) -> Snapshot:
    """A table with files that somebody else than its log names; its columns are the newest ones, which only get more.

    Args:
        newest: the table as it stands.
        version: that held these files, if any.
        files: by partition.
    """
    lake, path, partition, schema = newest.lake, newest.path, newest.partition, newest.schema
    rows = [
        {
            "path": file.path,
            "size_bytes": file.size,
            "num_records": file.rows,
            "modification_time": file.modified,
            **({f"partition.{partition.column}": key} if partition.column else {}),
        }
        for key, some in files.items()
        for file in some
    ]
    return Snapshot(lake, path, partition, version, schema, pl.DataFrame(rows))


class _Files(Mapping[str, tuple[DataFile, ...]]):
    """The live files of a snapshot, looked at when asked for: a commit to one partition of thousands needs one."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._path, self._folder = snapshot.path, snapshot.folder
        self._actions = snapshot.actions
        self._seen: dict[str, tuple[DataFile, ...]] = {}
        self._whole: list[dict[str, Any]] = []
        column = snapshot.partition.column
        if not column or self._actions.is_empty():
            keys = [Whole.KEY] * self._actions.height
        else:
            keys = self._actions.get_column(f"partition.{column}").cast(pl.String).to_list()
        self._rows: dict[str, Sequence[int]] = {key: (row,) for row, key in enumerate(keys)}
        if len(self._rows) < len(keys):  # several files in a partition, as this engine does not write them
            several: dict[str, list[int]] = {}
            for row, key in enumerate(keys):
                several.setdefault(key, []).append(row)
            self._rows.update(several)

    def __getitem__(self, key: str) -> tuple[DataFile, ...]:
        if key not in self._seen:
            if len(self._seen) == _MANY:
                self._whole = self._actions.to_dicts()
            self._seen[key] = tuple(self._file(key, self._action(row)) for row in self._rows[key])
        return self._seen[key]

    def _action(self, row: int) -> Mapping[str, Any]:
        return self._whole[row] if self._whole else self._actions.row(row, named=True)

    def _file(self, key: str, action: Mapping[str, Any]) -> DataFile:
        named = parse_name(action["path"])
        if named is None:
            raise TableUnreadable(
                f"{self._path} at {self._folder} holds {action['path']}, which this engine did not write. It replaces "
                "whole partitions by name and does not guess: move the file's rows through the landing zone, or "
                "point the feed at another table name."
            )
        return DataFile(
            key, action["path"], *named, action["num_records"], action["size_bytes"], action.get("modification_time", 0)
        )

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)
