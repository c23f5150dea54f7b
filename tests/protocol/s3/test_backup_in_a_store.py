"""Lakes and backups in buckets: vacuum, backup, recovery and repair do what they do in folders."""

import datetime as dt
from pathlib import Path

import pytest

from medallion.backup import backup
from medallion.damage import Kind
from medallion.errors import BackupRefused, IsolatedCopy, NotRecoverable
from medallion.fsck import check_lake
from medallion.isolation import promote
from medallion.lake import Lake
from medallion.manifests import check_backup, manifests, object_place, read_manifest
from medallion.project import Project
from medallion.recovery import restore_backup
from medallion.refine import refine
from medallion.repair import repair_lake
from medallion.savepoints import create
from medallion.store import open_place
from medallion.vacuum import plan_vacuum, vacuum
from tests.protocol.shop import DAYS, Shop, build, contents, land, make_run

FIRST, SECOND, *_ = DAYS


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    for day in (FIRST, SECOND):
        land(tmp_path / "landing", day, [1, 2, -3])
    return tmp_path / "landing"


@pytest.fixture
def lake(bucket: str, landing: Path) -> Lake:
    """A lake in a bucket in which one day was delivered twice."""
    for quantities in ([1, -2], [3, -4]):
        land(landing, FIRST, quantities)
        build(Shop(), [FIRST, SECOND], make_run(f"{bucket}/lake", landing))
    return Lake(f"{bucket}/lake")


@pytest.mark.parametrize("place", ["folder", "store"])
def test_a_lake_in_a_bucket_is_backed_up_and_comes_back_verified(bucket, lake, landing, tmp_path, place):
    to = str(tmp_path / "backup") if place == "folder" else f"{bucket}/backup"
    into = str(tmp_path / "copy") if place == "folder" else f"{bucket}/copy"
    project = Project(Shop().tables)
    done = backup(lake, to, project=project)
    assert backup(lake, to, project=project).copied == 0
    assert len(manifests(open_place(to))) == 2
    recovered = restore_backup(to, into)
    assert recovered.tables == done.manifest.tables
    assert contents(into) == contents(f"{bucket}/lake")
    run = make_run(into, landing)
    with pytest.raises(IsolatedCopy):
        refine(Shop().orders, [FIRST], run)
    promote(run.lake.root, reason="the bucket is gone", at="2017-03-02T00:00:00+00:00")
    land(landing, SECOND, [9])
    assert {report.name for report in build(Shop(), [FIRST, SECOND], run)} == {"COMPLETE"}
    with pytest.raises(BackupRefused, match="empty root only"):
        restore_backup(to, into)


def test_altered_bytes_of_a_backup_in_a_store_are_found(bucket, lake):
    manifest = backup(lake, f"{bucket}/backup", project=Project(Shop().tables)).manifest
    place = open_place(f"{bucket}/backup")
    path = next(path for path in sorted(manifest.files) if "/_sources/" in path)
    object_place(place, manifest.files[path][0]).write_bytes(b"something else")
    assert [each.partition(":")[0] for each in check_backup(place, read_manifest(place))] == [path]
    with pytest.raises(BackupRefused, match="altered"):
        restore_backup(place, f"{bucket}/copy")


def test_vacuum_in_a_bucket_keeps_what_a_savepoint_holds(bucket, lake, landing):
    project = Project(Shop().tables)
    create(project, lake, "kept")
    held = lake.open("silver/orders").version
    before = contents(f"{bucket}/lake")
    for quantities in ([5, -6], [7, -8]):
        land(landing, FIRST, quantities)
        build(Shop(), [FIRST, SECOND], make_run(f"{bucket}/lake", landing))
    done = vacuum(lake, plan_vacuum(lake, dt.datetime.now(dt.UTC) + dt.timedelta(days=31)))
    assert done.files
    assert done.entries
    fresh = Lake(f"{bucket}/lake")
    then = fresh.open("silver/orders", held)
    assert {day: then.content(day) for day in then.files} == before["silver/orders"]
    with pytest.raises(NotRecoverable, match="older than the recovery horizon"):
        fresh.open("silver/orders", 1)
    assert check_lake(fresh, project) == []


def test_damage_in_a_bucket_is_found_and_put_back(bucket, lake):
    project = Project(Shop().tables)
    backup(lake, f"{bucket}/backup", project=project)
    before = contents(f"{bucket}/lake")
    snapshot = lake.open("silver/orders")
    (snapshot.folder / snapshot.files[FIRST][0].path).unlink()
    newest = max((lake.root / "gold/totals/_delta_log").glob("*.json"), key=str)
    newest.write_bytes(newest.read_bytes()[:-20])
    fresh = Lake(f"{bucket}/lake")
    assert {each.kind for each in check_lake(fresh, project)} == {Kind.FILE_MISSING, Kind.LOG_ENTRY_DAMAGED}
    assert repair_lake(fresh, project=project, backup=open_place(f"{bucket}/backup")).left == ()
    assert contents(f"{bucket}/lake") == before
