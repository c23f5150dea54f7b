"""Proof in an object store: verification, refused rows and held candidates do there what they do in a folder."""

from pathlib import Path

import polars as pl

from medallion.differences import Kind
from medallion.held import approve
from medallion.inspection import inspect
from medallion.project import Project
from medallion.quarantine import export_rows, outstanding, refused_rows
from medallion.release import plan_release, release
from medallion.verify import verify
from tests.protocol.shop import DAYS, Shop, build, land, make_run

FIRST, SECOND, THIRD, *_ = DAYS
LOADED = {FIRST: [1, 2, -3], SECOND: [4, 5], THIRD: [6, -7]}
REFUSED = "quantity.ge"


def test_a_lake_in_a_bucket_is_verified_and_an_object_that_is_gone_or_altered_is_named(bucket: str, tmp_path: Path):
    for day, quantities in LOADED.items():
        land(tmp_path / "landing", day, quantities)
    run, shop = make_run(bucket, tmp_path / "landing"), Shop()
    build(shop, list(LOADED), run)
    project = Project(shop.tables)
    assert verify(project, run.lake).reconciled
    snapshot = run.lake.pin("silver/orders", shop.orders.partition)
    gone, altered = (snapshot.files[day][0].path for day in (FIRST, SECOND))
    (snapshot.folder / altered).write_bytes((snapshot.folder / altered).read_bytes() + b"x")
    (snapshot.folder / gone).unlink()
    found = {(each.kind, each.partition, each.file) for each in verify(project, run.lake).differences}
    assert found == {
        (Kind.FILE_MISSING, FIRST, f"silver/orders/{gone}"),
        (Kind.FILE_ALTERED, SECOND, f"silver/orders/{altered}"),
    }


def test_refused_rows_in_a_bucket_are_listed_exported_and_released(bucket: str, tmp_path: Path):
    for day, quantities in LOADED.items():
        land(tmp_path / "landing", day, quantities)
    run, shop = make_run(bucket, tmp_path / "landing"), Shop()
    build(shop, list(LOADED), run)
    project = Project(shop.tables)
    found = outstanding(project, run.lake)
    assert [(each.partition, each.rule, each.rows) for each in found] == [(FIRST, REFUSED, 1), (THIRD, REFUSED, 1)]
    assert export_rows(refused_rows(run.lake, shop.orders, rule=REFUSED), tmp_path / "rows.parquet") == 2
    assert pl.read_parquet(tmp_path / "rows.parquet").get_column("quantity").to_list() == ["-3", "-7"]
    land(tmp_path / "landing", THIRD, [6, 7])
    made = plan_release(project, run, shop.orders, rule=REFUSED)
    assert made is not None
    assert release(made, project, run).released == {THIRD: 1}
    assert [each.partition for each in outstanding(project, run.lake)] == [FIRST]
    assert verify(project, run.lake).reconciled


def test_a_held_candidate_in_a_bucket_is_shown_with_its_rows_and_approved(bucket: str, tmp_path: Path):
    land(tmp_path / "landing", FIRST, [5000, 1, -2])
    run, shop = make_run(bucket, tmp_path / "landing"), Shop()
    build(shop, [FIRST], run)
    found = inspect(run.lake, "silver/orders", FIRST, partition=shop.orders.partition)
    assert [row["quantity"] for row in found["held rows"]["accepted"]] == ["5000", "1"]
    assert [row["quantity"] for row in found["held rows"]["quarantined"]] == ["-2"]
    approve(shop.orders, FIRST, run, reason="a real bulk order")
    assert verify(Project(shop.tables), run.lake).reconciled
