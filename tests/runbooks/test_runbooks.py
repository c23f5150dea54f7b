"""Each runbook is carried out on a lake to which it has happened, and ends with what stood before."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from medallion.attempts import records
from medallion.backup import backup
from medallion.failpoints import armed
from medallion.lake import Lake
from medallion.refine import refine
from tests.runbooks.book import Book, sections
from tests.runbooks.conftest import DAYS, ROOT, Shop

FIRST, SECOND, THIRD, FOURTH, LAST = DAYS


def back_up(shop: Shop) -> str:
    place = shop.folder.parent / f"{shop.folder.name}-backup"
    backup(Lake(shop.root, durable=False), place, project=shop.project)
    return str(place)


def test_a_bad_deploy_found_days_later(shop):
    shop.save("good")
    want = shop.contents()
    shop.deploy(2, 'return raw.with_columns(price=pl.col("price") + "0")')  # ten times too much
    shop.build(DAYS[:2])
    shop.land(LAST, [7, 8, 9])  # good news, taken in since
    shop.build([LAST])
    assert shop.contents() != want
    book = Book("A bad deploy is found days later", {"TABLE": "silver/orders", "KEY": FIRST, "SAVEPOINT": "good"})
    book.until("medallion plan --save")
    assert "3 partitions differ" in book.said["medallion diff $TABLE $SAVEPOINT"]
    shop.deploy(3)
    book.rest()
    now = shop.contents()
    for table in ("bronze/orders", "silver/orders", "gold/daily"):  # a refused row names its batch, and so its revision
        contents = want[table]
        assert {key: now[table].get(key) for key in DAYS[:4]} == {key: contents.get(key) for key in DAYS[:4]}
    assert now["silver/orders"][LAST] != want["silver/orders"][LAST]  # what came since is kept
    told = json.loads(book.said["medallion diff $TABLE $SAVEPOINT --json"])
    changed = [each["key"] for each in told["partitions"] if each["added"] + each["removed"] + each["changed"]]
    assert changed == [LAST]


def test_a_wrong_update_was_published(shop):
    shop.save("good")
    want = shop.contents()
    path = shop.land(SECOND, [1, 1, 1])
    shop.build()
    assert shop.contents() != want
    variables = {"TABLE": "gold/daily", "SAVEPOINT": "good", "DELIVERY": f"orders/{SECOND}.csv"}
    book = Book("A wrong update was published", variables)
    book.until("medallion plan --execute")
    assert not path.exists()
    assert shop.contents() == want
    assert json.loads(book.said["medallion diff $TABLE $SAVEPOINT --json"])["partitions"] == []
    shop.land(SECOND, [11, 20, 30])
    book.rest()
    assert shop.contents()["gold/daily"] != want["gold/daily"]


@pytest.mark.parametrize("kept", ["backup", "nothing newer"])
def test_a_tables_folder_was_deleted(shop, kept):
    place = back_up(shop)
    if kept == "backup":
        shop.land(LAST, [5, 6, 7])
        shop.build([LAST])  # after the backup
    want = shop.contents()
    shutil.rmtree(shop.root / "silver/orders")
    shutil.rmtree(shop.root / "bronze/orders" / f"day={FIRST}")
    Book("A table's folder, or files in it", {"BACKUP": place}).rest()
    assert shop.contents() == want


def test_the_whole_lake_was_deleted(shop):
    place = back_up(shop)
    shop.land(LAST, [5, 6, 7])
    shop.build([LAST])  # after the backup: made again from the landing zone
    want = shop.contents()
    shutil.rmtree(shop.root)
    new = shop.folder / "lake-2"
    book = Book("The whole lake", {"BACKUP": place, "NEW_ROOT": str(new)})
    started = time.perf_counter()
    book.rest()
    assert shop.contents(new) == want
    told = book.said["medallion recover --from $BACKUP --into $NEW_ROOT"]
    assert "What was committed after" in told
    assert time.perf_counter() - started < 120


def test_the_disk_is_full(shop):
    for price in (1, 2, 3):
        shop.land(FIRST, [price])
        shop.build([FIRST])
    shop.land(SECOND, [40, 50])
    run = shop.run()
    with armed("table files written=full"):
        report = refine(shop.project.table("bronze/orders"), [SECOND], run)
    assert "could not be written" in str(report.errors)
    book = Book("The disk is full", {})
    book.rest()
    assert "Recovery horizon 7d" in book.said["medallion vacuum --horizon 7d --dry-run"]
    other = Shop(shop.folder, shop.feed.parent.name)
    other.root = shop.folder / "from scratch"
    other.build()
    assert shop.contents() == other.contents()


def test_dagsters_instance_is_lost(shop, monkeypatch, tmp_path):
    want = shop.versions()
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "gone"))
    book = Book("Dagster's instance is lost", {"TABLE": "gold/daily", "KEY": FIRST})
    book.rest()
    assert shop.versions() == want
    assert not (tmp_path / "gone").exists()


def test_a_backfill_is_stuck(shop):
    want = shop.contents()
    shutil.rmtree(shop.root)
    gate = shop.folder / "go"
    program = f"""
import sys
sys.path.insert(0, {str(shop.folder)!r})
from medallion.lake import Lake
from medallion.project import feeds_of, load_project
from medallion.refine import Run, refine
from medallion.sources import LandingZone
from pathlib import Path
run = Run(Lake({str(shop.root)!r}), LandingZone({str(shop.landing)!r}), slice_bytes=1)
for table in load_project(feeds_of(Path({str(shop.folder)!r}))).tables:
    refine(table, {list(DAYS)!r}, run)
"""
    environment = {**os.environ, "MEDALLION_FAILPOINTS": f"table committed:7=pause({gate})", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", program], env=environment)
    reached = gate.with_name("go.reached")
    while not reached.exists():
        assert process.poll() is None
        time.sleep(0.01)
    (record,) = records(Lake(shop.root).root / "silver/orders")
    assert record.pid == process.pid
    book = Book("A backfill is stuck", {"PID": str(process.pid), "TABLE": "silver/orders"})
    book.until("medallion plan")
    assert process.wait(10) == -signal.SIGKILL
    assert str(process.pid) in book.said["medallion status"]
    book.rest()
    assert shop.contents() == want


@pytest.mark.parametrize("with_backup", [True, False], ids=["the entry is in the backup", "the entry is younger"])
def test_a_log_is_damaged(shop, with_backup):
    place = back_up(shop)
    shop.land(THIRD, [3, 3, 3])
    shop.build([THIRD])
    if with_backup:
        back_up(shop)
    want = shop.contents()
    newest = max((shop.root / "silver/orders/_delta_log").glob("*.json"))
    newest.write_bytes(newest.read_bytes()[:-30])
    book = Book("A log is damaged", {"BACKUP": place})
    book.rest()
    assert shop.contents() == want
    told = book.said["medallion check-lake --repair --from $BACKUP"]
    assert ("put back from the backup" if with_backup else "was taken back to version") in told


def test_every_runbook_is_carried_out_by_a_test():
    source = Path(__file__).read_text()
    missing = [heading for heading in sections() if f'"{heading}"' not in source and heading != "Runbooks"]
    assert missing == []


def test_every_runbook_proves_what_it_has_done():
    words = ("medallion verify", "medallion --lake $NEW_ROOT verify", "medallion check-lake")
    for heading, commands in sections().items():
        proof = [command for command in commands[-4:] if command.startswith(words)]
        assert proof or heading == "Runbooks"
