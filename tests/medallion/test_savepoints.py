"""Savepoints: what they hold, when they are refused, and what they protect."""

import datetime as dt
import json
from contextlib import suppress
from pathlib import Path

import pytest

from medallion import savepoints
from medallion.cut import take_cut, unclosed
from medallion.errors import SavepointRefused, TableUnreadable
from medallion.execution import execute
from medallion.failpoints import Interrupted, armed
from medallion.lake import Lake
from medallion.planning import plan
from medallion.project import Project
from medallion.refine import Run, refine
from medallion.saved_state import content_of
from medallion.strays import find_strays, remove_strays
from tests.builders import (
    DAY,
    DAYS,
    FIRST,
    LAST,
    SECOND,
    Shop,
    land_orders,
    make_shop,
    order,
    orders_of,
    pin,
    refine_all,
)

NOON = dt.datetime(2017, 3, 2, 12, tzinfo=dt.UTC)


@pytest.fixture
def project(shop: Shop) -> Project:
    return Project(shop.tables)


def document(run: Run, name: str) -> Path:
    return Path(str(run.lake.root)) / "_savepoints" / f"{name}.json"


def test_a_savepoint_names_version_content_rows_and_code_of_every_table_and_quarantine(built: Run, project, shop):
    made = savepoints.create(project, built.lake, "before", reason="to look at it", now=NOON)
    assert made == savepoints.read(built.lake, "before")
    assert list(made.tables) == [
        "bronze/products", "quarantine/products", "silver/products", "bronze/orders", "quarantine/orders",
        "silver/orders", "gold/daily", "gold/trailing", "gold/monthly",
    ]  # fmt: skip
    for path, table in made.tables.items():
        snapshot = built.lake.open(path)
        assert table.version == snapshot.version
        assert table.content == content_of(snapshot.files)
    silver = made.tables["silver/orders"]
    assert (silver.rows, silver.revision, dict(silver.made_by)) == (15, 1, {"1": 5})
    assert silver.transform == shop.orders.transform_digest
    assert made.stale == {}
    assert made.packages["deltalake"]
    assert (made.kind, made.reason, made.created_at) == ("manual", "to look at it", NOON.isoformat())


def test_a_savepoint_tells_how_far_the_sources_had_been_taken_in(landed: Run, project, shop):
    refine(shop.raw_orders, [FIRST, SECOND, LAST], landed)
    position = savepoints.create(project, landed.lake, "gap").tables["bronze/orders"].position
    assert position is not None
    assert (position.newest, position.contiguous) == (LAST, SECOND)
    land_orders(landed, SECOND, [order(99)])
    refine(shop.raw_orders, [SECOND], landed)
    after = savepoints.create(project, landed.lake, "corrected").tables["bronze/orders"].position
    assert after is not None
    assert after.sources != position.sources


def test_a_savepoint_lists_what_was_stale_when_it_was_made(built: Run, project, shop):
    land_orders(built, SECOND, [*orders_of(SECOND), order(77)])
    refine(shop.raw_orders, DAYS, built)
    made = savepoints.create(project, built.lake, "stale")
    assert made.stale == {"silver/orders": {SECOND: f"bronze/orders {SECOND} changed"}}
    refine(shop.orders, DAYS, built)
    assert list(savepoints.create(project, built.lake, "staler").stale) == ["gold/daily", "gold/monthly"]


def test_a_name_is_never_overwritten(built: Run, project):
    savepoints.create(project, built.lake, "once")
    with pytest.raises(SavepointRefused, match="never overwritten"):
        savepoints.create(project, built.lake, "once")


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "x" * 101, "sp ace"])
def test_a_name_that_could_lead_elsewhere_is_refused(built: Run, project, name):
    with pytest.raises(SavepointRefused, match="cannot be called that"):
        savepoints.create(project, built.lake, name)
    assert savepoints.savepoints(built.lake) == []


def test_an_unknown_savepoint_is_refused_with_those_that_there_are(built: Run, project):
    savepoints.create(project, built.lake, "one")
    with pytest.raises(SavepointRefused, match="There are: one"):
        savepoints.read(built.lake, "two")


def test_a_savepoint_that_was_edited_is_named(built: Run, project):
    savepoints.create(project, built.lake, "edited")
    path = document(built, "edited")
    path.write_text(path.read_text().replace('"rows": 15', '"rows": 16'))
    with pytest.raises(SavepointRefused, match=r"edited\.json is damaged"):
        savepoints.read(built.lake, "edited")


def test_a_savepoint_of_a_newer_engine_is_refused(built: Run, project):
    savepoints.create(project, built.lake, "newer")
    path = document(built, "newer")
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    with pytest.raises(TableUnreadable, match="format 99"):
        savepoints.read(built.lake, "newer")


def test_old_automatic_savepoints_are_dropped_and_those_of_people_never(built: Run, project):
    savepoints.create(project, built.lake, "mine", now=NOON - dt.timedelta(days=900))
    for day in range(6):
        savepoints.automatic(project, built.lake, "test", keep=3, days=2, now=NOON + dt.timedelta(days=day))
    kept = savepoints.savepoints(built.lake)
    assert [each.name for each in kept if each.kind == savepoints.MANUAL] == ["mine"]
    moments = [each.moment for each in kept if each.kind == savepoints.AUTOMATIC]
    assert moments == [NOON + dt.timedelta(days=day) for day in (3, 4, 5)]


def test_a_young_automatic_savepoint_is_kept_however_many_there_are(built: Run, project):
    for minute in range(4):
        savepoints.automatic(project, built.lake, "test", keep=1, days=2, now=NOON + dt.timedelta(minutes=minute))
    assert len(savepoints.savepoints(built.lake)) == 4


def test_a_dropped_savepoint_is_gone_and_its_tables_are_as_they_were(built: Run, project):
    before = savepoints.create(project, built.lake, "gone")
    savepoints.drop(built.lake, "gone")
    assert savepoints.savepoints(built.lake) == []
    again = savepoints.create(project, built.lake, "gone")
    assert again.tables == before.tables


def test_a_savepoint_of_an_empty_lake_says_that_there_are_no_tables(run: Run, project):
    made = savepoints.create(project, run.lake, "nothing")
    assert {table.version for table in made.tables.values()} == {None}
    assert made.rows == 0


def test_a_savepoint_answers_for_a_version_that_the_log_has_forgotten(built: Run, project, shop):
    made = savepoints.create(project, built.lake, "old")
    saved = made.tables["silver/orders"]
    for number in range(55):  # past a checkpoint, so that the first entries are not needed to open the table
        land_orders(built, FIRST, [order(1000 + number)])
        refine(shop.raw_orders, [FIRST], built)
        refine(shop.orders, [FIRST], built)
    log = built.lake.root / "silver/orders/_delta_log"
    for entry in range(10):
        (log / f"{entry:020}.json").unlink()
    lake = Lake(built.lake.root, durable=False)
    with pytest.raises(TableUnreadable):
        lake.pin("silver/orders", DAY, saved.version)
    snapshot = made.snapshot(lake, "silver/orders", DAY)
    assert content_of(snapshot.files) == saved.content
    assert snapshot.scan(DAYS).collect().height == saved.rows


def test_cleaning_leaves_what_only_a_savepoint_needs(built: Run, project, shop):
    made = savepoints.create(project, built.lake, "needed")
    (old,) = made.tables["silver/orders"].files[FIRST]
    land_orders(built, FIRST, [order(500)])
    refine(shop.raw_orders, [FIRST], built)
    refine(shop.orders, [FIRST], built)
    log = Path(str(built.lake.root)) / "silver/orders/_delta_log"
    for entry in log.glob("*.json"):  # as if the log had forgotten that it ever named the file
        lines = [line for line in entry.read_text().splitlines() if old.path not in line]
        entry.write_text("\n".join(lines) + "\n")
    lake = Lake(built.lake.root, durable=False)
    remove_strays(lake, find_strays(lake, older_than=0), older_than=0)
    assert (lake.root / "silver/orders" / old.path).exists()
    savepoints.drop(lake, "needed")
    removed = remove_strays(lake, find_strays(lake, older_than=0), older_than=0)
    assert f"silver/orders/{old.path}" in {each.path for each in removed}


def test_two_shops_that_are_declared_alike_agree_that_a_cut_is_closed(built: Run):
    project = Project(make_shop().tables)
    assert unclosed(project, take_cut(project, built.lake).snapshots) == []


def test_versions_and_files_that_savepoints_need_are_told(built: Run, project, shop):
    savepoints.create(project, built.lake, "one")
    version = pin(shop.orders, built).version
    assert savepoints.pinned_versions(built.lake)["silver/orders"] == {version}
    assert len(savepoints.pinned_files(built.lake)["silver/orders"]) == len(DAYS)


def test_a_planned_backfill_makes_a_savepoint_first_and_one_with_nothing_to_do_makes_none(built: Run, project, shop):
    assert built.landing is not None
    execute(plan(project, built.lake, built.landing), project, built)
    assert savepoints.savepoints(built.lake) == []
    before = pin(shop.orders, built).version
    land_orders(built, SECOND, [order(77)])
    made = plan(project, built.lake, built.landing)
    execute(made, project, built)
    (saved,) = savepoints.savepoints(built.lake)
    assert (saved.kind, saved.reason) == ("automatic", f"before the plan {made.id}")
    assert saved.tables["silver/orders"].version == before


def test_what_is_too_broken_for_a_savepoint_does_not_stop_what_comes_after_it(landed: Run, project, shop, caplog):
    land_orders(landed, FIRST, [*orders_of(FIRST), order(8, quantity=-1)])
    refine_all(shop, landed)
    with armed("quarantine committed=raise"), suppress(Interrupted):
        land_orders(landed, FIRST, [order(9)])
        refine(shop.raw_orders, [FIRST], landed)
        refine(shop.orders, [FIRST], landed)
    root = Path(str(landed.lake.root))
    for path in (root / "quarantine/orders").rglob("part-*.parquet"):
        path.unlink()  # the refused rows of the live batch, which should be put back
    assert savepoints.before(project, landed.lake, "a test") is None
    assert "no savepoint was made before a test" in caplog.text
