"""Verification: a sound lake is reconciled, and whatever is done to it behind the engine's back is named."""

import io
import json
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from medallion import ledger
from medallion.differences import DIFFERS, RECONCILED, Difference, Kind, Verification, render
from medallion.errors import UnknownTable
from medallion.evidence import EvidenceReader
from medallion.project import Project
from medallion.refine import Run, refine
from medallion.tables import Table, silver
from medallion.verify import verify
from tests.builders import (
    DAY,
    DAYS,
    FIRST,
    LAST,
    SECOND,
    THIRD,
    Shop,
    land_everything,
    land_orders,
    land_products,
    make_run,
    make_shop,
    names_of,
    order,
    orders_of,
    pin,
    pin_quarantine,
    refine_all,
)


@pytest.fixture
def shop() -> Shop:
    return make_shop()


@pytest.fixture
def run(tmp_path: Path, shop: Shop) -> Run:
    """Five days, of which the first has two refused rows and a copy."""
    opened = make_run(tmp_path)
    land_everything(opened)
    land_orders(opened, FIRST, [*orders_of(FIRST), order(7, 99), order(8, 2, 0), order(1, 1, 1)])
    refine_all(shop, opened)
    return opened


def verified(shop: Shop, run: Run, *tables: str) -> Verification:
    return verify(Project(shop.tables), run.lake, tables or None)


def only(found: Verification) -> Difference:
    """The one difference that was found; the lake must be reconciled otherwise."""
    assert not found.reconciled
    (difference,) = found.differences
    assert difference.then
    return difference


def file_of(table: Table, run: Run, key: str) -> Path:
    (name,) = names_of(table, run)[key]
    return Path(str(run.lake.root), table.path, name)


def refused_file(shop: Shop, run: Run, key: str) -> Path:
    snapshot = pin_quarantine(shop.orders, run)
    return Path(str(snapshot.folder), snapshot.files[key][0].path)


def document(table: Table, run: Run, key: str) -> Path:
    """The evidence of a partition in a file of its own, as it is after a refinement of one partition alone."""
    snapshot = pin(table, run)
    batch_id = snapshot.batch_id(key)
    assert batch_id is not None
    evidence = EvidenceReader(snapshot.folder)(batch_id)
    assert evidence is not None
    path = Path(str(snapshot.folder), "_evidence", f"{batch_id}.json")
    path.write_bytes(evidence.to_json())
    return path


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    told = json.loads(path.read_bytes())
    change(told)
    path.write_text(json.dumps(told))


def test_a_sound_lake_is_reconciled_and_every_row_of_it_was_counted(shop, run):
    found = verified(shop, run)
    assert found.reconciled
    assert (found.status, found.outdated) == (RECONCILED, ())
    counts = {each.table: each for each in found.tables}
    assert list(counts) == [table.path for table in shop.tables]
    orders = counts["silver/orders"]
    assert (orders.partitions, orders.files, orders.rows, orders.quarantined) == (5, 6, 15, 2)
    assert orders.read == orders.rows + orders.quarantined + orders.collapsed == counts["bronze/orders"].rows == 18


def test_an_empty_lake_is_reconciled(shop, tmp_path):
    assert verified(shop, make_run(tmp_path)).reconciled


def test_a_changed_value_in_a_committed_file_is_named(shop, run):
    path = file_of(shop.orders, run, SECOND)
    rows = pl.read_parquet(path, hive_partitioning=False)
    rows.with_columns(price=pl.col("price") + 1).write_parquet(path)
    found = only(verified(shop, run))
    assert (found.kind, found.table, found.partition) == (Kind.FILE_ALTERED, "silver/orders", SECOND)
    assert found.file == str(path.relative_to(str(run.lake.root)))
    assert f"with {rows.height} rows" in found.found
    assert path.stem.rpartition("-")[2] in found.expected


@pytest.mark.parametrize("table", ["raw_orders", "orders", "daily", "monthly"])
def test_one_flipped_bit_is_named_in_every_layer(shop, run, table):
    declared = getattr(shop, table)
    path = file_of(declared, run, declared.partition.keys()[0])
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    found = only(verified(shop, run))
    assert (found.kind, found.table) == (Kind.FILE_ALTERED, declared.path)
    assert found.file == str(path.relative_to(str(run.lake.root)))


def test_a_deleted_file_is_named(shop, run):
    path = file_of(shop.daily, run, THIRD)
    path.unlink()
    found = only(verified(shop, run))
    assert (found.kind, found.table, found.partition, found.found) == (
        Kind.FILE_MISSING, "gold/daily", THIRD, "no file",
    )  # fmt: skip
    assert found.file == str(path.relative_to(str(run.lake.root)))


def test_a_file_that_cannot_be_read_is_named(shop, run):
    path = file_of(shop.daily, run, THIRD)
    path.unlink()
    path.mkdir()
    assert only(verified(shop, run)).kind is Kind.FILE_ALTERED


def test_an_altered_file_of_refused_rows_is_named(shop, run):
    path = refused_file(shop, run, FIRST)
    path.write_bytes(path.read_bytes() + b"x")
    found = only(verified(shop, run))
    assert (found.kind, found.table, found.partition) == (Kind.FILE_ALTERED, "quarantine/orders", FIRST)


def test_source_bytes_that_are_gone_or_altered_are_named(shop, run):
    kept = sorted(Path(str(run.lake.root), "bronze/orders/_sources").iterdir())
    kept[0].unlink()
    kept[1].write_bytes(kept[1].read_bytes().replace(b"2.5", b"9.5"))
    found = verified(shop, run).differences
    assert {each.kind for each in found} == {Kind.SOURCE}
    assert {each.file for each in found} == {str(path.relative_to(str(run.lake.root))) for path in kept[:2]}
    assert {each.found == "no file" for each in found} == {True, False}


def test_evidence_that_is_gone_is_named_and_a_replay_brings_it_back(shop, run):
    for path in Path(str(run.lake.root), "silver/orders/_evidence").iterdir():
        path.unlink()
    found = verified(shop, run)
    assert [(each.kind, each.partition) for each in found.differences] == [
        (Kind.EVIDENCE_MISSING, day) for day in DAYS
    ]  # fmt: skip
    refine(shop.orders, DAYS, run)
    assert verified(shop, run).reconciled


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda told: told["verdict"].update(accepted=4, read=7), "3 rows accepted"),
        (lambda told: told["verdict"].update(accepted=4), "damaged"),
        (lambda told: told.update(content="0" * 32), "content"),
        (lambda told: told.update(revision=2), "by its own inputs and code"),
        (lambda told: told["inputs"]["raw"]["partitions"].update({FIRST: "0" * 32}), "by its own inputs and code"),
        (lambda told: told.update(partition=SECOND), "partition"),
        (lambda told: told.update(batch_id="0" * 32), "batch"),
    ],
    ids=["rows", "sum", "content", "revision", "inputs", "partition", "batch"],
)
def test_evidence_that_was_edited_is_named(shop, run, change, names):
    edit(document(shop.orders, run, FIRST), change)
    found = verified(shop, run).differences
    assert {(each.kind, each.table, each.partition) for each in found} == {
        (Kind.EVIDENCE_ALTERED, "silver/orders", FIRST)
    }
    assert any(names in f"{each.expected} {each.found}" for each in found)


def test_rows_said_to_be_read_that_the_layer_below_does_not_have_are_named(shop, run):
    edit(document(shop.orders, run, FIRST), lambda told: told["verdict"].update(read=9, collapsed=4))
    found = only(verified(shop, run))
    assert (found.kind, found.table, found.partition) == (Kind.LAYERS, "silver/orders", FIRST)
    assert (found.expected, found.found) == (
        "9 rows read, by the verdict", f"6 rows from bronze/orders {FIRST}, which holds 6",
    )  # fmt: skip


def test_a_transform_that_leaves_rows_out_is_no_difference(tmp_path):
    shop = make_shop()

    @silver(raw=shop.raw_orders, contract=shop.orders.contract, key=["order_id"], partition=DAY)
    def some(raw: pl.LazyFrame) -> pl.LazyFrame:
        """Orders of the first product."""
        return raw.filter(pl.col("product_id") == "1")

    run = make_run(tmp_path)
    land_everything(run)
    for table in (shop.raw_products, shop.products, shop.raw_orders, some):
        refine(table, table.partition.keys(), run)
    project = Project((shop.raw_products, shop.products, shop.raw_orders, some))
    assert verify(project, run.lake).reconciled
    edit(document(some, run, SECOND), lambda told: told["verdict"].update(read=3, collapsed=1))
    assert only(verify(project, run.lake)).found == f"2 rows from bronze/orders {SECOND}, which holds 3"


def test_a_day_on_which_the_source_was_closed_is_reconciled(tmp_path):
    shop, run = make_shop(closed={SECOND: "stocktaking"}), make_run(tmp_path)
    land_everything(run)
    Path(tmp_path, "landing/orders", f"{SECOND}.csv").unlink()
    refine_all(shop, run)
    assert verified(shop, run).reconciled
    edit(document(shop.orders, run, SECOND), lambda told: told["verdict"].update(read=1, collapsed=1))
    assert only(verified(shop, run)).kind is Kind.LAYERS


def test_a_lake_at_which_somebody_works_is_reconciled(shop, run):
    stop = threading.Event()

    def work() -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            rows = [*orders_of(SECOND), order(14, 2, turn), order(15, 99, turn)]
            land_orders(run, SECOND, rows if turn % 2 else rows[:-1])
            refine_all(shop, run, [SECOND])

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        try:
            found = [verified(shop, run) for _ in range(8)]
        finally:
            stop.set()
        working.result()
    assert [each.differences for each in found] == [()] * len(found)


def _replace(run: Run, path: str, key: str, *actions: AddAction) -> None:
    """Replace a partition's files by a commit behind the engine's back."""
    table = DeltaTable(str(run.lake.root / path))
    table.create_write_transaction(
        list(actions),
        mode="overwrite",
        schema=table.schema(),
        partition_by=["day"],
        partition_filters=[("day", "=", key)],
    )


def test_refused_rows_that_were_removed_by_hand_are_named_and_a_replay_puts_them_back(shop, run):
    _replace(run, "quarantine/orders", FIRST)
    found = only(verified(shop, run))
    assert (found.kind, found.table, found.partition, found.found) == (
        Kind.QUARANTINE, "quarantine/orders", FIRST, "none",
    )  # fmt: skip
    assert f"medallion replay silver/orders {FIRST}" in found.then
    refine(shop.orders, [FIRST], run)
    assert verified(shop, run).reconciled


def test_refused_rows_of_a_partition_that_refused_none_are_named(shop, run):
    path = refused_file(shop, run, FIRST)
    moved = Path(str(run.lake.root), "quarantine/orders", f"day={SECOND}", path.name)
    moved.parent.mkdir(exist_ok=True)
    moved.write_bytes(path.read_bytes())
    added = AddAction(
        f"day={SECOND}/{path.name}", moved.stat().st_size, {"day": SECOND}, 0, True, json.dumps({"numRecords": 2})
    )
    _replace(run, "quarantine/orders", SECOND, added)
    found = only(verified(shop, run))
    assert (found.kind, found.partition) == (Kind.QUARANTINE, SECOND)


def test_a_log_that_counts_other_rows_than_the_file_holds_is_named(shop, run):
    path = file_of(shop.daily, run, SECOND)
    name = str(path.relative_to(Path(str(run.lake.root), "gold/daily")))
    added = AddAction(name, path.stat().st_size, {"day": SECOND}, 0, True, json.dumps({"numRecords": 7}))
    _replace(run, "gold/daily", SECOND, added)
    found = verified(shop, run).differences
    assert (found[0].kind, found[0].partition) == (Kind.ROWS, SECOND)
    assert found[0].expected.startswith("7 rows")


def test_a_file_that_the_engine_did_not_name_is_named(shop, run):
    path = file_of(shop.trailing, run, LAST)
    foreign = path.with_name("mine.parquet")
    foreign.write_bytes(path.read_bytes())
    added = AddAction(f"day={LAST}/mine.parquet", 1, {"day": LAST}, 0, True, json.dumps({"numRecords": 2}))
    _replace(run, "gold/trailing", LAST, added)
    found = only(verified(shop, run))
    assert (found.kind, found.table, found.partition) == (Kind.FILE_FOREIGN, "gold/trailing", LAST)
    assert "mine.parquet" in found.found


def test_a_file_in_the_folder_of_another_partition_is_named(shop, run):
    path = file_of(shop.trailing, run, LAST)
    added = AddAction(
        f"day={FIRST}/{path.name}", path.stat().st_size, {"day": LAST}, 0, True, json.dumps({"numRecords": 2})
    )
    _replace(run, "gold/trailing", LAST, added)
    found = only(verified(shop, run))
    assert (found.kind, found.partition) == (Kind.FILE_FOREIGN, LAST)


def test_a_committed_partition_without_a_fence_is_named(shop, run):
    table = DeltaTable(str(run.lake.root / "gold/daily"))
    table.create_write_transaction(
        [],
        mode="append",
        schema=table.schema(),
        partition_by=["day"],
        commit_properties=CommitProperties(app_transactions=[Transaction(f"medallion:{SECOND}", 0)]),
    )
    found = only(verified(shop, run))
    assert (found.kind, found.table, found.partition, found.found) == (Kind.FENCE, "gold/daily", SECOND, "epoch 0")


def test_a_table_that_cannot_be_opened_is_named_and_the_others_are_verified(shop, run):
    log = Path(str(run.lake.root), "gold/monthly/_delta_log")
    for entry in log.iterdir():
        entry.write_text("{")
    found = verified(shop, run)
    assert only(found).kind is Kind.TABLE_UNREADABLE
    assert only(found).table == "gold/monthly"
    assert sum(each.partitions for each in found.tables) == 22


def test_what_was_made_of_something_that_has_changed_is_out_of_date_and_not_damaged(shop, run):
    land_orders(run, SECOND, [*orders_of(SECOND), order(14, 2, 9)])
    refine(shop.raw_orders, [SECOND], run)
    refine(shop.orders, [SECOND], run)
    found = verified(shop, run)
    assert found.reconciled
    assert {(each.table, each.partition) for each in found.outdated} == {
        ("gold/daily", SECOND), ("gold/monthly", "2017-01-01"),
    }  # fmt: skip
    assert {each.reason for each in found.outdated} == {f"silver/orders {SECOND} changed"}


def test_a_changed_reference_makes_out_of_date_what_uses_the_row_that_changed(shop, run):
    land_orders(run, SECOND, [*orders_of(SECOND), order(14, 3)])
    refine_all(shop, run)
    land_products(run, {1: "BAKERY", 2: "DAIRY", 3: "TOYS", 99: "NEW"})
    for table in (shop.raw_products, shop.products):
        refine(table, ["all"], run)
    found = verified(shop, run)
    assert found.reconciled
    assert {(each.table, each.partition, each.reason) for each in found.outdated} == {
        ("silver/orders", FIRST, "silver/products changed"),
        ("gold/daily", SECOND, "silver/products changed"),
    }


def test_a_table_and_a_range_can_be_verified_alone(shop, run):
    file_of(shop.daily, run, THIRD).unlink()
    assert verified(shop, run, "silver/orders").reconciled
    project = Project(shop.tables)
    assert verify(project, run.lake, ["gold/daily"], [FIRST, SECOND]).reconciled
    found = verify(project, run.lake, keys=[THIRD])
    assert only(found).partition == THIRD
    assert {each.partitions for each in found.tables} == {0, 1}
    with pytest.raises(UnknownTable):
        verify(project, run.lake, ["gold/nothing"])


def test_verifying_changes_no_table(shop, run):
    def everything() -> dict[str, tuple[int, int]]:
        root = Path(str(run.lake.root))
        return {
            str(path): (path.stat().st_mtime_ns, path.stat().st_size)
            for path in root.rglob("*")
            if "ops" not in path.parts
        }

    before = everything()
    assert verified(shop, run).reconciled
    assert everything() == before


def test_the_ledger_keeps_what_a_verification_found(shop, run):
    good = verified(shop, run)
    file_of(shop.daily, run, THIRD).unlink()
    bad = verify(Project(shop.tables), run.lake, ["gold/daily"], run_id="nightly")
    rows = ledger.read(run.lake, ["verified"])
    assert rows.get_column("attempt").to_list() == [good.id] * len(shop.tables) + [bad.id]
    first = rows.row(
        by_predicate=(pl.col("attempt") == good.id) & (pl.col("pipeline_name") == "silver/orders"), named=True
    )
    assert (first["partition"], first["reconciliation_status"], first["error"]) == (
        f"{FIRST}..{LAST}",
        RECONCILED,
        None,
    )
    assert (first["source_rows"], first["target_rows"], first["quarantine_count"]) == (18, 15, 2)
    assert first["target_version"] == pin(shop.orders, run).version
    last = rows.row(-1, named=True)
    assert (last["pipeline_run_id"], last["reconciliation_status"], last["error_code"]) == (
        "nightly",
        DIFFERS,
        "file missing",
    )
    assert last["error"] == str(only(bad))
    assert last["completed_at"] >= last["started_at"] > first["started_at"]


@pytest.mark.parametrize(
    ("column", "value"),
    [("target_rows", 4), ("batch_id", "0" * 32), ("quarantine_count", 0)],
    ids=["rows", "batch", "refused"],
)
def test_an_edited_ledger_is_named_and_the_tables_are_right(shop, run, column, value):
    rows = ledger.read(run.lake)
    mine = (pl.col("pipeline_name") == "silver/orders") & (pl.col("partition") == FIRST)
    edited = rows.with_columns(pl.when(mine).then(pl.lit(value)).otherwise(pl.col(column)).alias(column))
    shutil.rmtree(Path(str(run.lake.root), ledger.PATH))
    assert ledger.record(run.lake, edited)
    found = only(verified(shop, run))
    assert (found.kind, found.table, found.partition) == (Kind.LEDGER, "silver/orders", FIRST)
    assert f"the ledger says {column} {value}" in found.found
    assert "medallion ledger rebuild" in found.then


def test_a_row_that_was_taken_out_of_the_ledger_is_named(shop, run):
    rows = ledger.read(run.lake)
    shutil.rmtree(Path(str(run.lake.root), ledger.PATH))
    assert ledger.record(
        run.lake, rows.filter((pl.col("pipeline_name") != "gold/daily") | (pl.col("partition") != LAST))
    )
    found = only(verified(shop, run))
    assert (found.kind, found.table, found.partition) == (Kind.LEDGER, "gold/daily", LAST)
    assert verified(shop, run, "silver/orders").reconciled


def test_without_a_ledger_the_tables_are_verified_all_the_same(shop, run):
    shutil.rmtree(Path(str(run.lake.root), ledger.PATH))
    assert verified(shop, run).reconciled


def test_the_report_says_what_where_and_what_to_do(shop, run):
    file_of(shop.daily, run, THIRD).unlink()
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(*render(verified(shop, run)))
    text = console.export_text()
    assert "Not reconciled: 1 difference." in text
    assert f"gold/daily {THIRD}: file missing: gold/daily/day={THIRD}/part-" in text
    assert verified(shop, run).to_dict()["status"] == DIFFERS


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whichever_byte_of_whichever_live_file_is_changed_that_file_is_named(shop, run, data):
    table = data.draw(st.sampled_from([t for t in shop.tables if t.partition == DAY]))
    path = file_of(table, run, data.draw(st.sampled_from(DAYS)))
    sound = path.read_bytes()
    at = data.draw(st.integers(0, len(sound) - 1))
    bit = data.draw(st.integers(0, 7))
    path.write_bytes(sound[:at] + bytes([sound[at] ^ 1 << bit]) + sound[at + 1 :])
    try:
        _the_file_is_named(shop, run, path)
    finally:
        path.write_bytes(sound)


def test_a_file_that_no_reader_can_open_is_named_and_so_is_what_cannot_be_counted_without_it(shop, run):
    path = file_of(shop.raw_orders, run, FIRST)
    sound = path.read_bytes()
    path.write_bytes(sound[:-8] + bytes(4) + sound[-4:])  # the length of the footer
    assert _the_file_is_named(shop, run, path) == [(shop.orders.path, FIRST)]


def _the_file_is_named(shop: Shop, run: Run, path: Path) -> list[tuple[str, str]]:
    """That the file was altered is said, and otherwise at most what can no longer be counted: those partitions."""
    found = verified(shop, run).differences
    (altered,) = [each for each in found if each.kind is Kind.FILE_ALTERED]
    assert altered.file == str(path.relative_to(str(run.lake.root)))
    assert altered.then
    others = [each for each in found if each is not altered]
    assert all(each.kind is Kind.LAYERS and "an error: " in each.found for each in others)
    return [(each.table, each.partition) for each in others]
