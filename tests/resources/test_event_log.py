"""The pooled event log against Dagster's own: the same events, the same answers, the same files."""

import logging
import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluationPlanned,
    AssetCheckEvaluationTargetMaterializationData,
)
from dagster._core.event_api import EventLogCursor
from dagster._core.events import StepMaterializationData
from dagster._core.storage.event_log.sqlite.sqlite_event_log import SqliteEventLogStorage
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG
from dagster_shared.serdes.errors import SerializationError

from resources.event_log import PooledEventLog
from resources.telling import Told, tell, withdraw_planned

ROOT = Path(__file__).resolve().parents[2]
DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-02-01")
KEYS = DAYS.get_partition_keys()
BAD = KEYS[3]
ASSET = dg.AssetKey("sales")
POOLED = yaml.safe_load((ROOT / "resources" / "dagster.yaml").read_text())["storage"]


@dg.multi_asset(
    specs=[dg.AssetSpec(ASSET, partitions_def=DAYS), dg.AssetSpec("notes")],
    check_specs=[dg.AssetCheckSpec("gate", asset=ASSET, partitions_def=DAYS)],
    can_subset=True,
    backfill_policy=dg.BackfillPolicy.single_run(),
)
def sales(context: dg.AssetExecutionContext) -> Iterator[Any]:
    """Sales by day, one of them bad; a note beside them; everything told as the project's assets tell it."""
    for key in context.partition_keys:
        context.add_asset_metadata({"rows": len(key)}, asset_key=ASSET, partition_key=key)
    yield dg.MaterializeResult(ASSET)
    tell(context, judged(context))
    context.log.info("all told")
    tell(context, [dg.AssetMaterialization("elsewhere", metadata={"note": "kept"}, tags={"colour": "red"})])
    yield dg.Output(None, "sales_gate")


def judged(context: dg.AssetExecutionContext) -> Iterator[dg.AssetCheckEvaluation]:
    """The gate's word on each day."""
    kind, wanted = dg.DagsterEventType.ASSET_MATERIALIZATION, set(context.partition_keys)
    newest = context.instance.event_log_storage.get_latest_storage_id_by_partition(ASSET, kind, wanted)
    for key in context.partition_keys:
        target = AssetCheckEvaluationTargetMaterializationData(
            storage_id=newest[key], run_id=context.run.run_id, timestamp=0.0
        )
        yield dg.AssetCheckEvaluation(
            asset_key=ASSET, check_name="gate", passed=key != BAD, partition=key, metadata={"day": key},
            target_materialization_data=target,
        )  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def batches() -> Iterator[None]:
    """Dagster gives its events in batches that are no divisor of their number."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGSTER_EVENT_BATCH_SIZE", "9")
        yield


def opened(home: Path, *, pooled: bool) -> dg.DagsterInstance:
    """An instance on these files, with the pooled storage or with Dagster's own."""
    home.mkdir(exist_ok=True)
    (home / "dagster.yaml").write_text(yaml.dump({"storage": POOLED} if pooled else {}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGSTER_HOME", str(home))
        return dg.DagsterInstance.from_config(str(home))


def run(instance: dg.DagsterInstance, first: str = KEYS[0], last: str = KEYS[-1]) -> dg.ExecuteInProcessResult:
    """One run over a range of days."""
    job = dg.Definitions(assets=[sales]).resolve_implicit_job_def_def_for_assets([ASSET])
    assert job is not None
    tags = {ASSET_PARTITION_RANGE_START_TAG: first, ASSET_PARTITION_RANGE_END_TAG: last}
    quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    return job.execute_in_process(
        run_config=quiet, instance=instance, tags=tags, asset_selection=[ASSET], raise_on_error=False
    )


def answers(instance: dg.DagsterInstance, run_ids: list[str]) -> dict[str, Any]:
    """What the UI, the daemon and the project ask an event log; without what differs from run to run."""
    log = instance.event_log_storage
    check = dg.AssetCheckKey(ASSET, "gate")
    state = log.get_asset_check_state([(check, DAYS)])[check]
    record = instance.get_asset_records([ASSET])[0]
    kind = dg.DagsterEventType.ASSET_MATERIALIZATION
    materializations = instance.fetch_materializations(ASSET, limit=1000).records
    entry = record.asset_entry
    assert entry.last_materialization is not None
    return {
        "events of the runs": [
            [(each.dagster_event_type, each.step_key) for each in instance.all_logs(run_id)] for run_id in run_ids
        ],
        "statistics": [
            (stats.steps_succeeded, stats.steps_failed, stats.materializations)
            for stats in (instance.get_run_stats(run_id) for run_id in run_ids)
        ],
        "materializations": [(each.partition_key, found_of(each)) for each in materializations],
        "in order": sorted(each.storage_id for each in materializations)
        == [each.storage_id for each in reversed(materializations)],
        "newest": (entry.last_run_id in run_ids, entry.last_materialization.get_dagster_event().partition),
        "newest is the newest": entry.last_materialization_storage_id == materializations[0].storage_id,
        "partitions": instance.get_materialized_partitions(ASSET),
        "newest by partition": sorted(log.get_latest_storage_id_by_partition(ASSET, kind)),
        "tags": [sorted(each) for each in instance.get_event_tags_for_asset(ASSET)],
        "assets": sorted(key.to_user_string() for key in instance.all_asset_keys()),
        "check": {name.value: sorted(each.subset_value.get_partition_keys()) for name, each in state.subsets.items()},
        "check's history": [
            (each.partition, each.status, each.evaluation and each.evaluation.passed)
            for each in log.get_asset_check_execution_history(check, limit=1000)
        ],
        "run changes": [
            each.event_log_entry.dagster_event_type
            for each in instance.fetch_run_status_changes(dg.DagsterEventType.RUN_SUCCESS, limit=10).records
        ],
        "planned": instance.get_latest_planned_materialization_info(ASSET) is not None,
        "pages": pages(log, run_ids[0]),
    }


def found_of(record: dg.EventLogRecord) -> dict[str, Any]:
    """The metadata of a materialization as plain values."""
    assert record.asset_materialization is not None
    return {name: each.value for name, each in record.asset_materialization.metadata.items()}


def pages(log: Any, run_id: str) -> list[int]:
    """How many events each page of a run's log has."""
    found, cursor = [], None
    while True:
        page = log.get_records_for_run(run_id, cursor=cursor, limit=20)
        found.append(len(page.records))
        if not page.has_more:
            return found
        cursor = page.cursor


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[str], dict[str, Any]]]:
    """Two runs told to each kind of storage: where, which, and what it answers."""
    found = {}
    for kind in ("default", "pooled"):
        home = tmp_path_factory.mktemp(kind)
        with opened(home, pooled=kind == "pooled") as instance:
            ids = [run(instance).run_id, run(instance, KEYS[2], KEYS[5]).run_id]
            found[kind] = (home, ids, answers(instance, ids))
    return found


@pytest.mark.parametrize("question", list(dict.fromkeys([
    "events of the runs", "statistics", "materializations", "in order", "newest", "newest is the newest", "partitions",
    "newest by partition", "tags", "assets", "check", "check's history", "run changes", "planned", "pages",
])))  # fmt: skip
def test_both_storages_answer_alike(told, question):
    assert told["pooled"][2][question] == told["default"][2][question]


def test_the_questions_have_answers(told):
    facts = told["pooled"][2]
    assert facts["partitions"] == set(KEYS)
    assert facts["check"]["FAILED"] == [BAD]
    assert len(facts["check's history"]) == len(KEYS) + 4
    assert facts["in order"]
    assert facts["newest is the newest"]
    assert all("dagster/data_version" in each for each in facts["tags"])


@pytest.mark.parametrize(("written", "read"), [("pooled", False), ("default", True)])
def test_what_one_storage_wrote_the_other_reads_and_goes_on_with(told, written, read, tmp_path):
    home, ids, facts = told[written]
    shutil.copytree(home, tmp_path / "home")
    with opened(tmp_path / "home", pooled=read) as instance:
        assert answers(instance, ids) == facts
        run(instance, KEYS[0], KEYS[1])
        assert len(instance.fetch_materializations(ASSET, limit=1000).records) == len(KEYS) + 4 + 2


def test_the_project_asks_for_the_pooled_storage(tmp_path):
    with opened(tmp_path / "home", pooled=True) as instance:
        assert type(instance.event_log_storage) is PooledEventLog
        assert instance.event_log_storage.path_for_shard("index") == str(tmp_path / "home/history/runs/index.db")
    with opened(tmp_path / "home", pooled=False) as instance:
        assert type(instance.event_log_storage) is SqliteEventLogStorage


def test_events_are_in_the_files_when_another_process_looks(tmp_path):
    with opened(tmp_path / "home", pooled=True) as instance:
        done = run(instance)
        assert _asked_elsewhere(tmp_path / "home", done.run_id) == len(instance.all_logs(done.run_id))
        instance.report_runless_asset_event(dg.AssetMaterialization("notes"))
        instance.report_engine_event("later", run_id=done.run_id, job_name="job")
        assert _asked_elsewhere(tmp_path / "home", done.run_id) == len(instance.all_logs(done.run_id))


def entry(key: str, *, broken: bool = False, **metadata: Any) -> dg.EventLogEntry:
    """A materialization of a day that no run has made, as the log stores it; broken, it cannot be written down."""
    made = dg.AssetMaterialization(ASSET, partition=key, metadata=metadata)
    if broken:
        made.metadata["one"] = object()  # type: ignore[index]
    kind = dg.DagsterEventType.ASSET_MATERIALIZATION.value
    event = dg.DagsterEvent(kind, "job", event_specific_data=StepMaterializationData(made))
    return dg.EventLogEntry(None, logging.DEBUG, "", "", time.time(), None, "job", event)


def _asked_elsewhere(home: Path, run_id: str) -> int:
    """How many events of a run another process sees."""
    code = (
        "import sys, dagster as dg\n"
        "with dg.DagsterInstance.get() as instance: print(len(instance.all_logs(sys.argv[1])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, run_id],
        cwd=ROOT, env={**os.environ, "DAGSTER_HOME": str(home)}, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return int(done.stdout)


def test_a_watcher_is_told_while_the_writer_keeps_the_database_open(tmp_path):
    with opened(tmp_path / "home", pooled=True) as writer, opened(tmp_path / "home", pooled=True) as reader:
        done = run(writer)
        heard, arrived = [], threading.Event()

        def hear(entry: Any, cursor: str) -> None:
            assert EventLogCursor.parse(cursor)
            heard.append(entry.message)
            arrived.set()

        reader.event_log_storage.watch(done.run_id, None, hear)
        arrived.clear()
        writer.report_engine_event("are you there?", run_id=done.run_id, job_name="job")
        assert arrived.wait(20)
        reader.event_log_storage.end_watch(done.run_id, hear)
        deadline = time.monotonic() + 20
        while not any("are you there?" in (message or "") for message in heard) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert any("are you there?" in (message or "") for message in heard)


def _write_in_a_process(home: str, count: int, start: Any) -> None:
    with opened(Path(home), pooled=True) as instance:
        start.wait()
        for number in range(count):
            instance.report_runless_asset_event(
                dg.AssetMaterialization(ASSET, partition=KEYS[number], metadata={"process": os.getpid()})
            )


def test_four_processes_write_at_once_and_nothing_is_lost(tmp_path):
    context = multiprocessing.get_context("spawn")
    with opened(tmp_path / "home", pooled=True) as instance:
        start = context.Barrier(4)
        arguments = (str(tmp_path / "home"), 25, start)
        processes = [context.Process(target=_write_in_a_process, args=arguments) for _ in range(4)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0, 0, 0, 0]
        records = instance.fetch_materializations(ASSET, limit=1000).records
    by_process: dict[Any, list[str | None]] = {}
    for record in reversed(records):
        assert record.asset_materialization is not None
        writer = record.asset_materialization.metadata["process"].value
        by_process.setdefault(writer, []).append(record.partition_key)
    assert list(by_process.values()) == [KEYS[:25]] * 4


def test_threads_write_at_once_and_each_keeps_its_order(tmp_path):
    with opened(tmp_path / "home", pooled=True) as instance:

        def write(thread: int) -> None:
            instance.event_log_storage.store_event_batch([entry(key, thread=thread) for key in KEYS[:25]])

        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        records = instance.fetch_materializations(ASSET, limit=1000).records
    by_thread: dict[Any, list[str | None]] = {}
    for record in reversed(records):
        assert record.asset_materialization is not None
        by_thread.setdefault(record.asset_materialization.metadata["thread"].value, []).append(record.partition_key)
    assert list(by_thread.values()) == [KEYS[:25]] * 4


def test_a_forked_process_opens_its_own_connections_and_leaves_the_parents_alone(tmp_path):
    with opened(tmp_path / "home", pooled=True) as instance:
        instance.report_runless_asset_event(dg.AssetMaterialization(ASSET, partition=KEYS[0]))
        child = os.fork()
        if child == 0:
            instance.report_runless_asset_event(dg.AssetMaterialization(ASSET, partition=KEYS[1]))
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        instance.report_runless_asset_event(dg.AssetMaterialization(ASSET, partition=KEYS[2]))
        records = instance.fetch_materializations(ASSET, limit=10).records
        assert sorted(record.partition_key or "" for record in records) == KEYS[:3]


def test_an_event_that_cannot_be_stored_is_an_error_and_takes_no_other_with_it(tmp_path):
    with opened(tmp_path / "home", pooled=True) as instance:
        with pytest.raises(SerializationError):
            instance.event_log_storage.store_event_batch([entry(KEYS[0]), entry(KEYS[1], broken=True), entry(KEYS[2])])
        assert instance.get_materialized_partitions(ASSET) == {KEYS[0], KEYS[2]}


def test_a_database_that_was_replaced_is_opened_anew(tmp_path):
    with opened(tmp_path / "home", pooled=True) as instance:
        done = run(instance)
        shard = Path(instance.event_log_storage.path_for_shard(done.run_id))
        for file in shard.parent.glob(f"{shard.name}*"):
            file.unlink()
        assert instance.all_logs(done.run_id) == []
        instance.report_engine_event("again", run_id=done.run_id, job_name="job")
        assert len(instance.all_logs(done.run_id)) == 1


@dg.asset
def said(context: dg.AssetExecutionContext) -> Iterator[Any]:
    """The same said twice: told, and yielded."""
    words: list[Told] = [
        dg.AssetMaterialization("elsewhere", partition="a", metadata={"rows": 3}, tags={"colour": "red"}),
        dg.AssetMaterialization("elsewhere", description="by hand"),
        dg.AssetCheckEvaluation(asset_key=ASSET, check_name="gate", passed=True, partition="a", description="fine"),
        dg.AssetCheckEvaluation(asset_key=ASSET, check_name="gate", passed=False, severity=dg.AssetCheckSeverity.WARN),
    ]
    tell(context, words)
    yield from words
    yield dg.Output(None)


@pytest.mark.parametrize("pooled", [True, False])
def test_what_is_told_is_what_would_be_yielded(pooled, tmp_path):
    with opened(tmp_path / "home", pooled=pooled) as instance:
        done = dg.materialize([said], instance=instance)
        kinds = {dg.DagsterEventType.ASSET_MATERIALIZATION, dg.DagsterEventType.ASSET_CHECK_EVALUATION}
        spoken = [each for each in instance.all_logs(done.run_id, of_type=kinds) if each.step_key]
    told, yielded = spoken[:4], spoken[4:8]
    assert len(told) == len(yielded) == 4
    for one, other in zip(told, yielded, strict=True):
        assert one.dagster_event == other.dagster_event
        assert (one.message, one.level, one.step_key, one.job_name) == (
            other.message, other.level, other.step_key, other.job_name
        )  # fmt: skip


def test_the_database_of_a_later_run_is_made_as_dagster_makes_the_first(tmp_path):
    with opened(tmp_path / "home", pooled=True) as instance:
        ids = [run(instance, key, key).run_id for key in KEYS[:2]]
        paths = [instance.event_log_storage.path_for_shard(each) for each in ids]
    first, second = (_shape(Path(path)) for path in paths)
    assert first == second
    assert first["journal"] == [("wal",)]
    assert first["migration"]


def _shape(path: Path) -> dict[str, list[Any]]:
    with sqlite3.connect(path) as connection:
        questions = {
            "tables": "select type, name, tbl_name, sql from sqlite_master order by name",
            "migration": "select version_num from alembic_version",
            "journal": "pragma journal_mode",
            "steps": "select dagster_event_type, step_key from event_logs order by id",
        }
        return {name: connection.execute(question).fetchall() for name, question in questions.items()}


def test_a_run_whose_database_another_process_makes_first_loses_nothing(tmp_path):
    with opened(tmp_path / "home", pooled=True) as one, opened(tmp_path / "home", pooled=True) as other:
        for instance in (one, other):
            run(instance, KEYS[0], KEYS[0])  # each has made one, and would make the next of it
        for instance in (one, other):
            instance.report_engine_event("hello", run_id="shared", job_name="job")
        assert len(one.all_logs("shared")) == len(other.all_logs("shared")) == 2
        with opened(tmp_path / "home", pooled=True) as late:
            late.report_engine_event("hello", run_id="shared", job_name="job")
            late.report_engine_event("first", run_id="late", job_name="job")
            late.report_engine_event("second", run_id="later", job_name="job")
            assert [len(late.all_logs(each)) for each in ("shared", "late", "later")] == [3, 1, 1]
    assert not list((tmp_path / "home/history/runs").glob(".new-*"))


def test_wiped_it_is_empty_and_works_on(tmp_path):
    with opened(tmp_path / "home", pooled=True) as instance:
        done = run(instance)
        instance.event_log_storage.wipe()
        assert instance.all_logs(done.run_id) == []
        assert instance.all_asset_keys() == []
        run(instance, KEYS[0], KEYS[0])
        assert instance.get_materialized_partitions(ASSET) == {KEYS[0]}


def test_many_runs_keep_few_databases_open(tmp_path):
    with opened(tmp_path / "home", pooled=True) as instance:
        ids = [run(instance, key, key).run_id for key in KEYS[:18]]
        handles = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.exists()]
        home = str(tmp_path / "home/history/runs")
        assert len({each for each in handles if each.startswith(home) and each.endswith(".db")}) <= 16
        assert all(instance.all_logs(run_id) for run_id in ids)


def test_planned_checks_that_are_withdrawn_are_not_shown_as_skipped(tmp_path):
    check = dg.AssetCheckKey(ASSET, "gate")
    with opened(tmp_path / "home", pooled=True) as instance:
        first = run(instance, KEYS[0], KEYS[1])
        second = dg.DagsterRun(job_name="job")
        planned = AssetCheckEvaluationPlanned(
            asset_key=ASSET,
            check_name="gate",
            partitions_subset=DAYS.subset_with_partition_keys(KEYS[:2]).to_serializable_subset(),
        )
        event = dg.DagsterEvent(
            dg.DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED.value, "job", event_specific_data=planned
        )
        instance.add_run(second)
        instance.report_dagster_event(event, second.run_id)
        newest = [each.run_id for each in instance.event_log_storage.get_asset_check_execution_history(check, limit=2)]
        assert newest == [second.run_id] * 2
        assert withdraw_planned(instance, second.run_id, [check])
        again = [each.run_id for each in instance.event_log_storage.get_asset_check_execution_history(check, limit=2)]
        assert again == [first.run_id] * 2
