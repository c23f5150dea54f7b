"""Dagster's own SQLite storage with its databases kept open, so that a year's events cost seconds.

Dagster's event log opens a database, compiles its statements and closes it again for every statement. Here a database
that is in use stays open, and events that come together are written in one transaction. Tables, files and queries are
Dagster's: without the entry in ``dagster.yaml`` the same files are read and written as before.

Belongs here: how events reach the files. What they say is Dagster's.
"""

import datetime as dt
import logging
import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, Self

import dagster as dg
from dagster._core.event_api import EventHandlerFn
from dagster._core.events import (
    ASSET_CHECK_EVENTS,
    ASSET_EVENTS,
    BATCH_WRITABLE_EVENTS,
)
from dagster._core.events.log import EventLogEntry
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable, SqlEventLogStorageTable
from dagster._core.storage.event_log.sqlite.sqlite_event_log import (
    INDEX_SHARD_NAME,
    SqliteEventLogStorage,
    SqliteEventLogStorageWatchdog,
)
from dagster._core.storage.sqlite import SQLITE_BUSY_TIMEOUT_SECONDS
from dagster._core.storage.sqlite_storage import (
    DagsterSqliteStorage,
    SqliteStorageConfig,
    _event_logs_directory,
)
from dagster._serdes import ConfigurableClassData
from dagster_shared.serdes import serialize_value
from sqlalchemy import create_engine, delete, insert
from sqlalchemy import event as hooks
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.pool import QueuePool
from watchdog.events import FileSystemEvent
from watchdog.observers import Observer

from resources.check_executions import evaluation_row, store_evaluations

_logger = logging.getLogger(__name__)
_OPEN = 16
"""Databases kept open. There is one for each run, the webserver looks at many, and each takes three file handles."""
TOGETHER = 500
"""Events written in one transaction: half a second at most for which other processes wait."""
_ALIKE = {*BATCH_WRITABLE_EVENTS, dg.DagsterEventType.ASSET_CHECK_EVALUATION}


class PooledEventLog(SqliteEventLogStorage):
    """The event log with the databases in use kept open. Safe for threads, processes and forks, as Dagster's is.

    A commit is not flushed to the disk by itself, since the tables are the authority on what is committed: after a
    power cut the newest events may be missing, and the next run tells Dagster again.
    """

    _open: "OrderedDict[str, _Database]"
    _opened: dict[str, Connection] | None
    """The connections of the transaction in progress."""
    _tables: set[str]
    _empty: bytes | None
    """The database of a run to which nothing has happened yet."""

    def __init__(self, base_dir: str, inst_data: ConfigurableClassData | None = None) -> None:
        self._of_a_process()
        super().__init__(base_dir, inst_data)
        self._db_lock: Any = threading.RLock()

    @classmethod
    def from_config_value(  # type: ignore[override]  # as in Dagster's own
        cls, inst_data: ConfigurableClassData | None, config_value: SqliteStorageConfig
    ) -> Self:
        """The storage that ``dagster.yaml`` asks for."""
        return cls(inst_data=inst_data, **config_value)

    def store_event_batch(self, events: Sequence[EventLogEntry]) -> None:
        """Store events, some hundred in one transaction; in any number of them, one that fails takes no other with it.

        Raises:
            Exception: the first that an event itself caused, after all others were stored.
        """
        with self._locked():
            for start in range(0, len(events), TOGETHER):
                self._write(events[start : start + TOGETHER])

    def _write(self, events: Sequence[EventLogEntry]) -> None:
        if len(events) == 1:
            self.store_event(events[0])
            return
        try:
            with self._one_transaction():
                for alike, group in groupby(events, lambda event: event.dagster_event_type in _ALIKE):
                    if alike:
                        self._store_many(list(group))
                    else:
                        for event in group:
                            self.store_event(event)
        except Exception:
            _logger.exception("%s events could not be written together, and are written one by one", len(events))
            self._write_singly(events)

    def _write_singly(self, events: Sequence[EventLogEntry]) -> None:
        errors = []
        for event in events:
            try:
                self.store_event(event)
            except Exception as error:  # noqa: BLE001 - one that cannot be stored takes no other with it
                errors.append(error)
        if errors:
            raise errors[0]

    @contextmanager
    def _one_transaction(self) -> Iterator[None]:
        opened: dict[str, Connection] = {}
        self._opened = opened
        try:
            yield
            for connection in opened.values():  # the run's database first, as Dagster writes them
                connection.commit()
        finally:
            self._opened = None
            for connection in opened.values():
                connection.close()  # rolls back what is not committed

    def _store_many(self, events: Sequence[EventLogEntry]) -> None:
        """What ``store_event`` does with each of these events, as few statements."""
        rows = [self._event_to_row(event) for event in events]
        for run_id, of_a_run in groupby(rows, itemgetter("run_id")):
            with self.run_connection(run_id) as connection:
                connection.execute(insert(SqlEventLogStorageTable), list(of_a_run))
        with self.index_connection() as connection:
            new_ids = insert(SqlEventLogStorageTable).returning(
                SqlEventLogStorageTable.c.id, sort_by_parameter_order=True
            )
            stored = list(zip(events, connection.execute(new_ids, rows).scalars(), rows, strict=True))
            told = [(event, event_id) for event, event_id, _ in stored if event.dagster_event_type in ASSET_EVENTS]
            self._store_asset_event_tags(connection, [event for event, _ in told], [event_id for _, event_id in told])
            # An asset has one row, which holds its newest event of a kind: of these, only the last would be seen.
            newest: dict[object, tuple[EventLogEntry, int]] = {}
            for event, event_id in told:
                of_a_kind = (event.get_dagster_event().asset_key, event.dagster_event_type)
                newest.pop(of_a_kind, None)
                newest[of_a_kind] = (event, event_id)
            for event, event_id in newest.values():
                self._store_asset_event(connection, event, event_id)
            evaluations = []
            for event, event_id, row in stored:
                if event.dagster_event_type == dg.DagsterEventType.ASSET_CHECK_EVALUATION and event.run_id:
                    evaluations.append(evaluation_row(event, event_id, row))
                elif event.dagster_event_type in ASSET_CHECK_EVENTS:
                    self.store_asset_check_event(event, event_id)
            if evaluations:
                store_evaluations(connection, evaluations)

    def _store_asset_check_evaluation_planned(self, event: EventLogEntry, event_id: int | None) -> None:
        """What Dagster does, but for one statement for all partitions, and the event serialized once for them."""
        planned: Any = event.get_dagster_event().event_specific_data
        subset = planned.partitions_subset
        row = {
            "asset_key": planned.asset_key.to_string(),
            "check_name": planned.check_name,
            "run_id": event.run_id,
            "execution_status": AssetCheckExecutionRecordStatus.PLANNED.value,
            "evaluation_event": serialize_value(event),
            "evaluation_event_timestamp": dt.datetime.fromtimestamp(event.timestamp, dt.UTC).replace(tzinfo=None),
            "evaluation_event_storage_id": event_id,
        }
        rows = [{**row, "partition": key} for key in (subset.get_partition_keys() if subset else [None])]
        with self.index_connection() as connection:
            connection.execute(insert(AssetCheckExecutionsTable), rows)

    def withdraw_planned(self, run_id: str, checks: Collection[dg.AssetCheckKey]) -> None:
        """Forget that a run wants to say something of each partition, for checks that will not speak of all of them.

        Dagster shows a partition of which a planned check says nothing as skipped, in red; of one that is not planned
        it shows what was said last.
        """
        table = AssetCheckExecutionsTable.c
        with self.index_connection() as connection:
            for check in checks:
                connection.execute(
                    delete(AssetCheckExecutionsTable).where(
                        table.run_id == run_id,
                        table.asset_key == check.asset_key.to_string(),
                        table.check_name == check.name,
                        table.execution_status == AssetCheckExecutionRecordStatus.PLANNED.value,
                    )
                )

    @contextmanager
    def _connect(self, shard: str) -> Iterator[Connection]:
        with self._locked():
            if self._opened is None:
                with self._engine(shard).connect() as connection, connection.begin():
                    yield connection
                return
            # Within a transaction, which is this thread's since it has the lock.
            if shard not in self._opened:
                self._opened[shard] = self._engine(shard).connect()
                self._opened[shard].begin()
            yield self._opened[shard]

    def _engine(self, shard: str) -> Engine:
        path = self.path_for_shard(shard)
        known = self._open.get(shard)
        if known is not None and known.file != _identity(path):  # somebody removed it, or put another one there
            self._close(shard)
        if shard not in self._open:
            engine = create_engine(
                self.conn_string_for_shard(shard),
                poolclass=QueuePool,
                connect_args={"timeout": SQLITE_BUSY_TIMEOUT_SECONDS, "check_same_thread": False},
            )
            hooks.listen(engine, "connect", _not_flushed)
            if shard not in self._initialized_dbs:
                self._make(shard, engine)
                self._initialized_dbs.add(shard)
            self._open[shard] = _Database(engine, _identity(path))
            while len(self._open) > _OPEN:
                self._open.pop(next(iter(self._open))).engine.dispose()
        self._open.move_to_end(shard)
        return self._open[shard].engine

    def _make(self, shard: str, engine: Engine) -> None:
        """Make a database, or look after the one that is there. One for a run is as empty as the one made before it.

        Dagster reads all its migrations, twice, to write down which it is at: most of what a small run takes.
        """
        path = Path(self.path_for_shard(shard))
        new = shard != INDEX_SHARD_NAME and not path.exists()
        if new and self._empty is not None and _made_of(self._empty, path):
            return
        self._initdb(engine)
        if new:
            with engine.connect() as connection:
                driver: Any = connection.connection.driver_connection
                driver.execute("BEGIN")  # what is looked at is what is kept: another process may write to it already
                if not driver.execute("SELECT id FROM event_logs LIMIT 1").fetchall():
                    self._empty = driver.serialize()
                driver.rollback()

    def _close(self, shard: str) -> None:
        self._open.pop(shard).engine.dispose()
        self._initialized_dbs.discard(shard)

    def _locked(self) -> Any:
        if os.getpid() != self._process:
            # After a fork the connections are the parent's, and closing them would take its locks away: they are kept
            # and never used.
            _INHERITED.append(self._open)
            self._of_a_process()
            self._db_lock = threading.RLock()
        return self._db_lock

    def _of_a_process(self) -> None:
        self._process = os.getpid()
        self._open = OrderedDict()
        self._opened = None
        self._tables = set()
        self._empty = None

    def has_table(self, table_name: str) -> bool:
        """Whether the index has a table. One that is there stays."""
        if table_name not in self._tables and super().has_table(table_name):
            self._tables.add(table_name)
        return table_name in self._tables

    def _has_asset_key_index_cols_on_connection(self, conn: Connection) -> bool:
        name = "columns of the asset index"
        if name not in self._tables and super()._has_asset_key_index_cols_on_connection(conn):
            self._tables.add(name)
        return name in self._tables

    def wipe(self) -> None:
        """Remove all events, and the databases of the runs."""
        with self._locked():
            for shard in list(self._open):
                self._close(shard)
            super().wipe()

    def dispose(self) -> None:
        """Close everything."""
        with self._locked():
            for shard in list(self._open):
                self._close(shard)
        super().dispose()

    def watch(self, run_id: str, cursor: str | None, callback: EventHandlerFn) -> None:
        """Call back with the events of a run as they are stored, by whatever process."""
        observer: Any = self._obs
        if observer is None:
            observer = self._obs = Observer()  # type: ignore[assignment]  # Dagster says None, and means until now
            observer.start()
        watchdog = _Watchdog(self, run_id, callback, cursor)
        self._watchers[run_id][callback] = (watchdog, observer.schedule(watchdog, self._base_dir, recursive=True))


class PooledStorage(DagsterSqliteStorage):
    """Dagster's storage of runs, events and schedules on SQLite, with the pooled event log."""

    def __init__(self, base_dir: str, inst_data: ConfigurableClassData | None = None) -> None:
        super().__init__(base_dir, inst_data)
        self._event_log_storage = PooledEventLog(_event_logs_directory(base_dir))
        # No entry of dagster.yaml says so: only with it does Dagster give events in batches.
        os.environ.setdefault("DAGSTER_EVENT_BATCH_SIZE", str(TOGETHER))

    @classmethod
    def from_config_value(  # type: ignore[override]  # as in Dagster's own
        cls, inst_data: ConfigurableClassData, config_value: SqliteStorageConfig
    ) -> Self:
        """The storage that ``dagster.yaml`` asks for."""
        return cls.from_local(inst_data=inst_data, **config_value)


class _Database(NamedTuple):
    """An open database, and which file it is."""

    engine: Engine
    file: tuple[int, int] | None


_INHERITED: list[object] = []


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _made_of(content: bytes, path: Path) -> bool:
    """Make a file at once and whole; False if it cannot be made so, or is there."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".new-") as file:
        file.write(content)
        file.flush()
        try:
            os.link(file.name, path)
        except OSError:  # another process was faster, or there are no hard links here
            return False
    return True


def _not_flushed(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA synchronous=NORMAL")


class _Watchdog(SqliteEventLogStorageWatchdog):
    """Watches the write-ahead log too: as long as a database is open, its commits are there."""

    def __init__(self, storage: PooledEventLog, run_id: str, callback: EventHandlerFn, cursor: str | None) -> None:
        super().__init__(storage, run_id, callback, cursor)
        self._patterns = [self._log_path, f"{self._log_path}-wal"]

    def on_modified(self, event: FileSystemEvent) -> None:
        """Pass on what is new."""
        self._process_log()
