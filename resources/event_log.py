"""Dagster's own SQLite storage with its databases kept open, so that a year's events cost seconds.

Dagster's event log opens a database, compiles its statements and closes it again for every statement. Here a database
that is in use stays open, and events that come together are written in one transaction. Tables, files and queries are
Dagster's: without the entry in ``dagster.yaml`` the same files are read and written as before.

Belongs here: how events reach the files. What they say is Dagster's.
"""

import datetime as dt
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, Self

import dagster as dg
from dagster._core.event_api import EventHandlerFn
from dagster._core.events import ASSET_CHECK_EVENTS, ASSET_EVENTS, BATCH_WRITABLE_EVENTS
from dagster._core.events.log import EventLogEntry
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable, SqlEventLogStorageTable
from dagster._core.storage.event_log.sqlite.sqlite_event_log import (
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
from sqlalchemy import bindparam, create_engine, delete, insert, select, update
from sqlalchemy import event as hooks
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.pool import QueuePool
from watchdog.events import FileSystemEvent
from watchdog.observers import Observer

_logger = logging.getLogger(__name__)
_OPEN = 16
"""Databases kept open. There is one for each run, the webserver looks at many, and each takes three file handles."""
_TOGETHER = 500
"""Events written in one transaction: half a second at most for which other processes wait."""
_ALIKE = {*BATCH_WRITABLE_EVENTS, dg.DagsterEventType.ASSET_CHECK_EVALUATION}
_COLLECTED = {dg.DagsterEventType.ASSET_MATERIALIZATION, dg.DagsterEventType.ASSET_CHECK_EVALUATION}


class PooledEventLog(SqliteEventLogStorage):
    """The event log with the databases in use kept open. Safe for threads, processes and forks, as Dagster's is.

    A commit is not flushed to the disk by itself, since the tables are the authority on what is committed: after a
    power cut the newest events may be missing, and the next run tells Dagster again.
    """

    _open: "OrderedDict[str, _Database]"
    _opened: dict[str, Connection] | None
    """The connections of the transaction in progress."""
    _collected: list[EventLogEntry]
    _tables: set[str]

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

    def store_event(self, event: EventLogEntry) -> None:
        """Store an event, or keep it for the end of ``together``."""
        with self._locked():
            self._collected.append(event)
            if not self._collecting or event.dagster_event_type not in _COLLECTED or len(self._collected) >= _TOGETHER:
                self.flush()

    def store_event_batch(self, events: Sequence[EventLogEntry]) -> None:
        """Store events in one transaction."""
        with self._locked():
            self._collected.extend(events)
            self.flush()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Until the end of the block, materializations and check evaluations are written some hundred at a time.

        Whatever this process reads, and any other event, comes after them. A process that is killed in the block may
        leave some untold, as if it had been killed a little earlier.
        """
        with self._locked():
            self._collecting += 1
        try:
            yield
        finally:
            with self._locked():
                self._collecting -= 1
                self.flush()

    def flush(self) -> None:
        """Write what has been kept."""
        with self._locked():
            events, self._collected = self._collected, []
            for start in range(0, len(events), _TOGETHER):
                self._write(events[start : start + _TOGETHER])

    def _write(self, events: Sequence[EventLogEntry]) -> None:
        if len(events) == 1:
            super().store_event(events[0])
            return
        try:
            with self._one_transaction():
                for alike, group in groupby(events, lambda event: event.dagster_event_type in _ALIKE):
                    if alike:
                        self._store_many(list(group))
                    else:
                        for event in group:
                            super().store_event(event)
        except Exception:
            _logger.exception("%s events could not be written together, and are written one by one", len(events))
            self._write_singly(events)

    def _write_singly(self, events: Sequence[EventLogEntry]) -> None:
        errors = []
        for event in events:
            try:
                super().store_event(event)
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
                    evaluations.append(_evaluation(event, event_id, row))
                elif event.dagster_event_type in ASSET_CHECK_EVENTS:
                    self.store_asset_check_event(event, event_id)
            if evaluations:
                _store_evaluations(connection, evaluations)

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
                self.flush()
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
                self._initdb(engine)
                self._initialized_dbs.add(shard)
            self._open[shard] = _Database(engine, _identity(path))
            while len(self._open) > _OPEN:
                self._open.pop(next(iter(self._open))).engine.dispose()
        self._open.move_to_end(shard)
        return self._open[shard].engine

    def _close(self, shard: str) -> None:
        self._open.pop(shard).engine.dispose()
        self._initialized_dbs.discard(shard)

    def _locked(self) -> Any:
        if os.getpid() != self._process:
            # After a fork the connections are the parent's, and closing them would take its locks away: they are kept
            # and never used. What the parent has collected it writes itself.
            _INHERITED.append(self._open)
            self._of_a_process()
            self._db_lock = threading.RLock()
        return self._db_lock

    def _of_a_process(self) -> None:
        self._process = os.getpid()
        self._open = OrderedDict()
        self._opened = None
        self._collecting, self._collected = 0, []
        self._tables = set()

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
            self._collected.clear()
            for shard in list(self._open):
                self._close(shard)
            super().wipe()

    def dispose(self) -> None:
        """Write what has been kept and close everything."""
        with self._locked():
            self.flush()
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
        os.environ.setdefault("DAGSTER_EVENT_BATCH_SIZE", str(_TOGETHER))

    @classmethod
    def from_config_value(  # type: ignore[override]  # as in Dagster's own
        cls, inst_data: ConfigurableClassData, config_value: SqliteStorageConfig
    ) -> Self:
        """The storage that ``dagster.yaml`` asks for."""
        return cls.from_local(inst_data=inst_data, **config_value)


def written_together(instance: dg.DagsterInstance) -> AbstractContextManager[None]:
    """A block in which events are written some hundred at a time, if the instance can."""
    storage = instance.event_log_storage
    return storage.together() if isinstance(storage, PooledEventLog) else nullcontext()


def _evaluation(event: EventLogEntry, event_id: int, row: Mapping[str, Any]) -> dict[str, Any]:
    """Where and as what an evaluation is kept: see ``_update_asset_check_evaluation`` of Dagster's."""
    evaluation = event.get_dagster_event().asset_check_evaluation_data
    status, target = AssetCheckExecutionRecordStatus, evaluation.target_materialization_data
    return {
        "of_asset": evaluation.asset_key.to_string(),
        "of_check": evaluation.check_name,
        "of_run": event.run_id,
        "of_partition": evaluation.partition,
        "execution_status": (status.SUCCEEDED if evaluation.passed else status.FAILED).value,
        "evaluation_event": row["event"],
        "evaluation_event_timestamp": row["timestamp"],
        "evaluation_event_storage_id": event_id,
        "materialization_event_storage_id": target.storage_id if target else None,
    }


def _store_evaluations(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Answer the evaluations that a run has planned, and add those that it has not."""
    table = AssetCheckExecutionsTable.c
    runs = sorted({row["of_run"] for row in rows})
    planned = select(table.asset_key, table.check_name, table.run_id, table.partition).where(table.run_id.in_(runs))
    known = {tuple(each) for each in connection.execute(planned)}
    new: list[dict[str, Any]] = []
    again: list[dict[str, Any]] = []
    for row in rows:
        place = (row["of_asset"], row["of_check"], row["of_run"], row["of_partition"])
        (again if place in known else new).append(row)
        known.add(place)
    if new:
        connection.execute(_NEW_EVALUATION, new)
    if again and connection.execute(_PLANNED_EVALUATION, again).rowcount != len(again):
        raise dg.DagsterInvariantViolationError("a check was planned twice for one partition of one run")


_PLACE = {"asset_key": "of_asset", "check_name": "of_check", "run_id": "of_run", "partition": "of_partition"}
_NEW_EVALUATION = insert(AssetCheckExecutionsTable).values(
    {column: bindparam(name) for column, name in _PLACE.items()}
    | {
        column: bindparam(column)
        for column in (
            "execution_status",
            "evaluation_event",
            "evaluation_event_timestamp",
            "evaluation_event_storage_id",
            "materialization_event_storage_id",
        )
    }
)
_PLANNED_EVALUATION = update(AssetCheckExecutionsTable).where(
    *(AssetCheckExecutionsTable.c[column].is_not_distinct_from(bindparam(name)) for column, name in _PLACE.items())
)


def withdraw_planned(instance: dg.DagsterInstance, run_id: str, checks: Collection[dg.AssetCheckKey]) -> bool:
    """Withdraw what a run has planned of some checks; False, with nothing withdrawn, if the instance cannot."""
    storage = instance.event_log_storage
    if not isinstance(storage, PooledEventLog):
        return False
    storage.withdraw_planned(run_id, checks)
    return True


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
