"""The ledger says what was attempted and what came of it; the tables know better, and nothing depends on it."""

import json
import os
import shutil
from pathlib import Path

import polars as pl
import pytest

from medallion import ledger
from medallion.attempts import COMMITTED, INTERRUPTED
from medallion.errors import TableUnreadable
from medallion.failpoints import armed
from medallion.held import approve, discard
from medallion.lake import Lake
from medallion.partitions import Whole
from medallion.project import Project
from medallion.rebuilding import contradictions, from_tables, rebuild
from medallion.refine import Run, refine
from tests.protocol.shop import DAYS, Shop, build, contents, land, make_run
from tests.protocol.workers import nursery

FIRST, SECOND, THIRD, FOURTH, *_ = DAYS
PROJECT = Project(Shop().tables)
KNOWN = [name for name in ledger.SCHEMA if name != "retry_count"]
"""Counted over all rows on reading, so not a thing that a row knows."""
BLOCKED = [5000, 1]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    (tmp_path / "landing").mkdir()
    return make_run(tmp_path / "lake", tmp_path / "landing")


@pytest.fixture
def eventful(tmp_path: Path, run: Run, workers) -> Run:
    """A lake to which all has happened that the tables can tell of: commits, a correction, an approval, a discarded
    and a blocked candidate, and attempts that were killed before and after their commit."""
    shop = Shop()
    for day, quantities in ((FIRST, [1, -2, -3]), (SECOND, [4, 5])):
        land(tmp_path / "landing", day, quantities)
    build(shop, [FIRST, SECOND], run)
    land(tmp_path / "landing", FIRST, [1, -2, 3])
    for point in ("table files written:2=kill", "table committed:1=kill"):
        assert workers.start("build", tmp_path, points=point, keys=[FIRST]).wait() == -9
    build(shop, [FIRST, SECOND], run)
    for day in (SECOND, THIRD, FOURTH):
        land(tmp_path / "landing", day, BLOCKED)
    build(shop, [SECOND, THIRD, FOURTH], run)
    approve(shop.orders, SECOND, run, reason="a fair")
    discard(shop.orders, THIRD, run, reason="a test till")
    build(shop, [SECOND], run)
    return run


def _by_status(rows: pl.DataFrame) -> dict[str, int]:
    return dict(rows.group_by("status").len().iter_rows())


def test_a_call_of_refine_appends_one_row_for_each_partition_in_one_commit(tmp_path, run):
    for day in (FIRST, SECOND):
        land(tmp_path / "landing", day, [1, -2])
    report = refine(Shop().raw, [FIRST, SECOND, THIRD], run)
    assert run.lake.pin(ledger.PATH, Whole()).version == 1
    rows = ledger.read(run.lake)
    assert rows.schema == ledger.SCHEMA
    assert dict(rows.select("partition", "status").iter_rows()) == {
        FIRST: "committed", SECOND: "committed", THIRD: "failed",
    }  # fmt: skip
    failed = rows.row(by_predicate=pl.col("status") == "failed", named=True)
    assert (failed["error_code"], failed["failure_class"]) == ("SOURCE_MISSING", "source")
    assert failed["error"] == str(report.errors[THIRD])


def test_a_row_holds_the_control_fields_of_its_attempt(tmp_path, run):
    land(tmp_path / "landing", FIRST, [1, -2, 3])
    report = build(Shop(), [FIRST], run)[1]
    row = ledger.read(run.lake).row(by_predicate=pl.col("pipeline_name") == "silver/orders", named=True)
    evidence = report.published[FIRST].evidence
    assert row["batch_id"] == evidence.batch_id
    assert (row["attempt"], row["pipeline_run_id"]) == (evidence.attempt, "test")
    assert (row["watermark_start"].isoformat(), row["watermark_end"].isoformat()) == (
        "2017-03-01T00:00:00+00:00", "2017-03-02T00:00:00+00:00",
    )  # fmt: skip
    assert (row["source_rows"], row["target_rows"], row["quarantine_count"]) == (3, 2, 1)
    assert (row["target_version"], row["checkpoint_id"]) == (1, "silver/orders@1")
    assert row["source_position"] == "bronze/orders@1"
    assert row["reconciliation_status"] == "conserved"
    assert row["started_at"] < row["completed_at"]
    assert row["error_code"] is None


def test_retries_are_counted_until_the_partition_is_in_place(tmp_path, run):
    raw = Shop().raw
    for _ in range(2):
        refine(raw, [FIRST], run)
    land(tmp_path / "landing", FIRST, [1])
    for _ in range(2):
        refine(raw, [FIRST], run)
    assert ledger.read(run.lake).select("status", "retry_count").rows() == [
        ("failed", 0), ("failed", 1), ("committed", 2), ("unchanged", 0),
    ]  # fmt: skip
    assert ledger.latest(run.lake).get_column("status").to_list() == ["unchanged"]


def test_rows_that_a_replay_released_from_quarantine_are_counted(tmp_path, run):
    for quantities in ([1, -2, -3], [1, -2, 3]):
        land(tmp_path / "landing", FIRST, quantities)
        build(Shop(), [FIRST], run)
    rows = ledger.read(run.lake).filter(pipeline_name="silver/orders")
    assert rows.select("quarantine_count", "released_count").rows() == [(2, 0), (1, 1)]


@pytest.mark.parametrize(
    ("point", "found"), [("table files written:2=kill", (INTERRUPTED, 3)), ("table committed:2=kill", (COMMITTED, 0))]
)
def test_a_recovery_has_a_row_with_what_it_found_what_it_did_again_and_how_long_it_took(
    tmp_path, run, workers, point, found
):
    land(tmp_path / "landing", FIRST, [1, -2, 3])
    assert workers.start("build", tmp_path, points=point, keys=[FIRST]).wait() == -9
    build(Shop(), [FIRST], run)
    (row,) = ledger.read(run.lake, {"recovered"}).rows(named=True)
    assert (row["pipeline_name"], row["failure_class"], row["recovery_scope"]) == ("silver/orders", "crash", FIRST)
    assert (row["reason"], row["replay_volume"]) == found
    assert row["started_at"] < row["recovery_started_at"] <= row["recovery_completed_at"]
    assert row["rto_observed"] == (row["recovery_completed_at"] - row["started_at"]).total_seconds()
    silver = ledger.read(run.lake).filter(pipeline_name="silver/orders")
    assert silver.filter(status="committed").height == 1, "whoever recovers a commit tells of it"


def test_the_ledger_that_is_deleted_is_made_anew_and_equal_in_all_that_the_tables_know(eventful):
    before = ledger.read(eventful.lake)
    shutil.rmtree(eventful.lake.root / ledger.PATH)
    made = rebuild(eventful.lake, PROJECT)
    after = ledger.read(eventful.lake)
    assert made.rows == after.height
    for status in ("committed", "approved", "recovered", "discarded"):
        was, now = before.filter(status=status), after.filter(status=status)
        assert was.height
        assert now.select(KNOWN).rows() == was.select(KNOWN).rows()
    clock = {"started_at", "completed_at"}
    known = [name for name in KNOWN if name not in clock]
    held = before.filter(status="blocked", partition=FOURTH)
    assert after.filter(status="blocked").select(known).rows() == held.select(known).rows()
    # What is lost is named: who found nothing to do, and candidates that were replaced or decided on.
    assert _by_status(before).keys() - _by_status(after).keys() == {"unchanged", "failed"}
    assert any("failed" in each for each in made.unknown)
    assert any("replaced" in each for each in made.unknown)


def test_a_candidate_of_which_a_bucket_tells_only_the_second_is_still_younger_than_what_is_live(tmp_path, run):
    land(tmp_path / "landing", FIRST, [1, -2])
    build(Shop(), [FIRST], run)
    land(tmp_path / "landing", FIRST, BLOCKED)
    build(Shop(), [FIRST], run)
    told = ledger.read(run.lake).select("pipeline_name", "partition", "status", "retry_count")
    os.utime(tmp_path / "lake/silver/orders/_held" / FIRST / "evidence.json", (0, 0))  # as early as can be
    rebuild(run.lake, PROJECT)
    again = ledger.read(run.lake).select("pipeline_name", "partition", "status", "retry_count")
    silver = pl.col("pipeline_name") == "silver/orders"
    assert again.filter(silver).rows() == told.filter(silver).rows()
    assert again.filter(silver).get_column("status").to_list() == ["committed", "blocked"]


def test_a_rebuild_keeps_what_no_table_can_tell(eventful):
    before = ledger.read(eventful.lake)
    made = rebuild(eventful.lake, PROJECT)
    after = ledger.read(eventful.lake)
    assert _by_status(after) == _by_status(before)
    order = ["pipeline_name", "partition", "attempt", "status", "recovered_by"]
    clock = [] if before.is_empty() else [name for name in KNOWN if name not in {"started_at", "completed_at"}]
    assert after.sort(order).select(clock).rows() == before.sort(order).select(clock).rows()
    assert made.dropped == ()
    assert len(eventful.lake.pin(ledger.PATH, Whole()).sizes) == 1


def test_an_untouched_ledger_contradicts_nothing(eventful):
    assert contradictions(eventful.lake, PROJECT) == []


def _edit(lake: Lake, change: pl.Expr) -> None:
    """Change rows in the files where they lie."""
    for path in lake.pin(ledger.PATH, Whole()).sizes:
        file = Path(str(lake.root), ledger.PATH, path)
        pl.read_parquet(file).with_columns(change).write_parquet(file)


@pytest.mark.parametrize(
    ("column", "value"),
    [("target_rows", pl.lit(99)), ("status", pl.lit("failed")), ("target_version", pl.lit(7)),
     ("error", pl.lit("never")), ("batch_id", pl.lit("0" * 32)),
     ("started_at", pl.col("started_at").dt.offset_by("1d"))],
)  # fmt: skip
def test_an_edited_row_is_named_and_the_tables_win(eventful, column, value):
    mine = (pl.col("pipeline_name") == "silver/orders") & (pl.col("partition") == FIRST)
    mine &= pl.col("status") == "committed"
    before = ledger.read(eventful.lake)
    _edit(eventful.lake, pl.when(mine).then(value).otherwise(pl.col(column)).alias(column))
    found = contradictions(eventful.lake, PROJECT)
    named = [each for each in found if each.column == column]
    assert {(each.table, each.partition) for each in named} == {("silver/orders", FIRST)}
    assert "the tables say" in str(named[0])
    assert any("altered after it had been appended" in each.message for each in found)
    assert set(rebuild(eventful.lake, PROJECT).dropped) == set(named)
    assert ledger.read(eventful.lake).filter(mine).select(KNOWN).rows() == before.filter(mine).select(KNOWN).rows()
    assert contradictions(eventful.lake, PROJECT) == []


def test_a_row_that_was_taken_out_or_made_up_is_named(eventful):
    rows = ledger.read(eventful.lake)
    one = rows.filter(status="committed").head(1)
    ledger.record(eventful.lake, one.with_columns(attempt=pl.lit("nobody's")))
    (made_up,) = contradictions(eventful.lake, PROJECT)
    assert "knows nothing of it" in str(made_up)
    shutil.rmtree(eventful.lake.root / ledger.PATH)
    ledger.record(eventful.lake, rows.join(one, on=["attempt", "partition"], how="anti"))
    (taken,) = contradictions(eventful.lake, PROJECT)
    assert "the ledger does not say so" in str(taken)
    assert (taken.table, taken.partition, taken.attempt) == one.select("pipeline_name", "partition", "attempt").row(0)


def test_a_commit_by_somebody_else_or_a_lost_file_of_the_ledger_is_named(eventful):
    from deltalake import DeltaTable

    folder = eventful.lake.root / ledger.PATH
    DeltaTable(str(folder)).update(predicate="status = 'failed'", updates={"status": "'committed'"})
    found = [str(each) for each in contradictions(eventful.lake, PROJECT)]
    assert any("was not appended by this engine" in each for each in found)
    next(folder.glob("part-*-*-c000*.parquet")).unlink()
    assert any("is gone" in str(each) for each in contradictions(eventful.lake, PROJECT))


def test_a_ledger_that_cannot_be_written_is_a_warning_and_the_commit_stands(tmp_path, run, caplog):
    land(tmp_path / "landing", FIRST, [1])
    with armed("ledger written=full"):
        (raw, *_) = build(Shop(), [FIRST], run)
    assert raw.name == "COMPLETE"
    (tmp_path / "lake/ops/ledger/_delta_log/00000000000000000001.json").write_text("{")
    land(tmp_path / "landing", FIRST, [1, 2])
    again = build(Shop(), [FIRST], make_run(tmp_path / "lake", tmp_path / "landing"))
    assert {type(report.outcomes[FIRST]).__name__ for report in again} == {"Committed"}
    assert "could not be kept" in caplog.text
    with pytest.raises(TableUnreadable, match="ops/ledger"):
        ledger.read(Lake(tmp_path / "lake"))


def test_a_folder_of_the_ledger_that_is_a_file_stops_no_commit(tmp_path, run, caplog):
    land(tmp_path / "landing", FIRST, [1])
    (run.lake.root / "ops").write_text("")
    assert {report.name for report in build(Shop(), [FIRST], run)} == {"COMPLETE"}
    assert "could not be kept" in caplog.text


def test_eight_processes_that_make_the_ledger_at_once_lose_no_row(tmp_path):
    land(tmp_path / "landing", FIRST, [1, 2])
    with nursery() as workers:
        (tmp_path / "lake").mkdir()
        started = [workers.start("build", tmp_path, keys=[FIRST], run_id=f"run {number}") for number in range(8)]
        assert [each.wait() for each in started] == [0] * 8
    rows = ledger.read(Lake(tmp_path / "lake"))
    assert rows.group_by("pipeline_run_id").len().sort("pipeline_run_id").rows() == [
        (f"run {number}", 3) for number in range(8)
    ]


def test_small_files_are_made_one_and_no_row_is_lost(tmp_path, run):
    land(tmp_path / "landing", FIRST, [1])
    shop = Shop()
    for _ in range(70):
        refine(shop.raw, [FIRST], run)
    assert ledger.read(run.lake).height == 70
    assert len(run.lake.pin(ledger.PATH, Whole()).sizes) < 10


def test_files_that_another_process_has_compacted_are_not_compacted_twice(tmp_path, run):
    land(tmp_path / "landing", FIRST, [1])
    for _ in range(3):
        build(Shop(), [FIRST], run)
    old = list(run.lake.pin(ledger.PATH, Whole()).sizes)
    assert ledger.compact(run.lake)
    rows = ledger.read(run.lake)
    assert run.lake.append(ledger.PATH, ledger.frame(rows), metadata={}, replacing=old) is None
    assert ledger.read(run.lake).rows() == rows.rows()


def test_a_ledger_of_fewer_columns_is_widened_and_read_with_nulls(run):
    few = ledger.frame([{"pipeline_name": "silver/orders", "status": "committed"}]).drop("content", "plan_id")
    run.lake.append(ledger.PATH, few, metadata={})
    ledger.record(run.lake, [{"pipeline_name": "silver/orders", "status": "verified", "plan_id": "p", "attempt": "a"}])
    assert ledger.read(run.lake).select("status", "plan_id", "content").sort("status").rows() == [
        ("committed", None, None), ("verified", "p", None),
    ]  # fmt: skip


def test_a_column_that_the_ledger_does_not_have_is_not_written(run, caplog):
    assert not ledger.record(run.lake, [{"colour": "red"}])
    assert "colour" in caplog.text


def test_the_tables_hold_the_same_with_the_ledger_and_without(tmp_path, run, workers):
    land(tmp_path / "landing", FIRST, [1, -2])
    build(Shop(), [FIRST], run)
    shutil.rmtree(run.lake.root / ledger.PATH)
    with_none = contents(run.lake.root)
    build(Shop(), [FIRST], run)
    assert contents(run.lake.root) == with_none


def test_an_empty_ledger_reads_as_no_rows_with_all_columns(run):
    assert ledger.read(run.lake).schema == ledger.SCHEMA
    assert ledger.latest(run.lake).is_empty()
    assert contradictions(run.lake, PROJECT) == []
    assert from_tables(run.lake, PROJECT).schema == ledger.SCHEMA


def test_every_commit_says_when_its_attempt_started_and_when_it_was_made(tmp_path, run):
    land(tmp_path / "landing", FIRST, [1])
    build(Shop(), [FIRST], run)
    entry = run.lake.root / "silver/orders/_delta_log/00000000000000000001.json"
    info = next(json.loads(line) for line in entry.read_text().splitlines() if line.startswith('{"commitInfo"'))
    told = json.loads(info["commitInfo"]["medallion"])
    row = ledger.read(run.lake).row(by_predicate=pl.col("pipeline_name") == "silver/orders", named=True)
    assert told["started_at"] == row["started_at"].isoformat()
    assert told["at"] == round(row["completed_at"].timestamp() * 1000)
