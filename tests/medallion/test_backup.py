"""A lake that is gone comes back from its backup, verified, and takes nobody's place before somebody says so."""

import datetime as dt
import hashlib
import json
import os
import shutil
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from medallion import ledger
from medallion.backup import backup
from medallion.cli import cli
from medallion.errors import BackupRefused, IsolatedCopy, UnknownTable
from medallion.evidence import read_held
from medallion.held import approve
from medallion.isolation import isolation, promote
from medallion.lake import Lake
from medallion.log import list_log
from medallion.manifests import Manifest, check_backup, manifests, object_place, prune, read_manifest
from medallion.outcomes import Blocked, Committed, Failed, Unchanged
from medallion.project import Project
from medallion.recovery import promote_copy, restore_backup, verify_copy
from medallion.refine import Run, refine
from medallion.retention import pins
from medallion.sources import LandingZone
from medallion.vacuum import plan_vacuum, vacuum
from tests.builders import (
    DAYS,
    FIRST,
    LAST,
    SECOND,
    STARTED,
    land_everything,
    land_orders,
    make_shop,
    order,
    orders_of,
    refine_all,
    rows_of,
)
from tests.medallion.test_retention import correct, digest_at, later, names, save


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "backup"


def reopened(root: Path, landing: LandingZone | None) -> Run:
    return Run(Lake(root, durable=False), landing, started_at=STARTED)


def tables_of(lake: Lake) -> dict[str, str]:
    return {table: digest_at(lake, table) for table in names(lake)}


def altered(manifest: Manifest, place: Path, path: str) -> None:
    """Turn one byte of what a backup holds of a file."""
    bytes_ = Path(str(object_place(place, manifest.files[path][0])))
    data = bytearray(bytes_.read_bytes())
    data[len(data) // 2] ^= 1
    bytes_.write_bytes(data)


def test_a_lake_whose_root_is_deleted_comes_back_verified_and_the_backfill_goes_on_there(run, shop, place, tmp_path):
    land_everything(run)
    refine_all(shop, run, DAYS[:3])
    done = backup(run.lake, place, project=Project(shop.tables))
    refine_all(shop, run, [DAYS[3]])  # after the backup: lost with the root
    whole = tables_of(run.lake)
    shutil.rmtree(str(run.lake.root))

    copy = tmp_path / "copy"
    recovered = restore_backup(place, copy)

    assert recovered.manifest == done.manifest
    assert recovered.tables == done.manifest.tables
    assert recovered.seconds > 0
    there = reopened(copy, run.landing)
    assert set(there.lake.pin("silver/orders", shop.orders.partition).files) == set(DAYS[:3])
    promote_copy(there.lake, reason="the disk is gone", at="2017-03-02T00:00:00+00:00")
    told = ledger.read(there.lake, {"recovered"}).filter(pipeline_name="silver/orders").row(0, named=True)
    assert done.manifest.at in told["reason"]  # the recovery point
    assert 0 < told["rto_observed"] <= recovered.seconds + 1  # and the time that it took
    reports = refine_all(shop, there, DAYS[:4])
    outcomes = {key: type(outcome) for key, outcome in reports["silver/orders"].outcomes.items()}
    assert outcomes == {**dict.fromkeys(DAYS[:3], Unchanged), DAYS[3]: Committed}
    assert tables_of(there.lake) == whole


def test_the_next_backup_copies_only_what_is_new(built, shop, place):
    first = backup(built.lake, place)
    assert first.copied_bytes == sum({sha: size for sha, size, _ in first.manifest.files.values()}.values())
    again = backup(built.lake, place)
    assert again.copied == 0
    correct(shop, built, FIRST, "9")
    third = backup(built.lake, place)
    assert 0 < third.copied < len(third.manifest.files) / 3
    assert len(manifests(place)) == 3


def test_an_earlier_manifest_can_be_restored(built, shop, place, tmp_path):
    before = tables_of(built.lake)
    first = backup(built.lake, place)
    correct(shop, built, FIRST, "9")
    backup(built.lake, place)
    restore_backup(place, tmp_path / "copy", manifest=first.manifest.name)
    assert tables_of(Lake(tmp_path / "copy")) == before


def test_history_savepoints_candidates_and_records_come_back_with_the_lake(built, shop, place, tmp_path):
    pinned = save(shop, built.lake, "before")
    correct(shop, built, FIRST, "9")
    land_orders(built, SECOND, [order(n, 99) for n in range(1, 9)] + [order(9, 1)])
    assert isinstance(refine_all(shop, built)["silver/orders"].outcomes[SECOND], Blocked)
    was = {table: digest_at(built.lake, table, version) for table, version in pinned.items()}
    backup(built.lake, place)
    shutil.rmtree(str(built.lake.root))
    restore_backup(place, tmp_path / "copy")
    copy = Lake(tmp_path / "copy", durable=False)
    assert {table: digest_at(copy, table, version) for table, version in pinned.items()} == was
    assert pins(copy)["silver/orders"][pinned["silver/orders"]] == ("savepoint before",)
    assert read_held(copy.root / "silver/orders", SECOND) is not None


def test_an_isolated_copy_commits_nothing_and_says_what_to_do(built, shop, place, tmp_path):
    land_orders(built, SECOND, [order(n, 99) for n in range(1, 9)] + [order(9, 1)])
    refine_all(shop, built)
    backup(built.lake, place)
    restore_backup(place, tmp_path / "copy")
    there = reopened(tmp_path / "copy", built.landing)
    before = tables_of(there.lake)
    with pytest.raises(IsolatedCopy, match="medallion promote --reason"):
        refine(shop.orders, DAYS, there)
    with pytest.raises(IsolatedCopy):
        approve(shop.orders, SECOND, there, reason="it is right")
    assert tables_of(there.lake) == before
    with pytest.raises(BackupRefused, match="without a reason"):
        promote(there.lake.root, reason=" ", at="2017-03-02T00:00:00+00:00")
    told = promote(there.lake.root, reason="the disk is gone", at="2017-03-02T00:00:00+00:00")
    assert told["backup"] == str(place)
    assert json.loads((there.lake.root / "_promoted.json").read_text())["reason"] == "the disk is gone"
    assert isinstance(refine(shop.orders, [FIRST], there).outcomes[FIRST], Unchanged)
    with pytest.raises(BackupRefused, match="publishes already"):
        promote(there.lake.root, reason="again", at="2017-03-02T00:00:00+00:00")


def test_a_copy_of_a_copy_is_isolated_for_its_own_sake(built, place, tmp_path):
    backup(built.lake, place)
    restore_backup(place, tmp_path / "copy")
    backup(Lake(tmp_path / "copy"), tmp_path / "backup 2")
    manifest = read_manifest(tmp_path / "backup 2")
    assert "_isolated.json" not in manifest.files


@pytest.mark.parametrize("kind", ["data", "log", "evidence", "source"])
def test_a_backup_with_one_altered_byte_is_refused_and_the_file_named(built, place, tmp_path, kind):
    manifest = backup(built.lake, place).manifest
    part = {
        "data": "gold/daily/day=",
        "log": "silver/orders/_delta_log/",
        "evidence": "/_evidence/",
        "source": "/_sources/",
    }
    path = next(each for each in sorted(manifest.files) if part[kind] in each)
    altered(manifest, place, path)
    named = [each.partition(":")[0] for each in check_backup(place, manifest)]
    assert named == [
        each for each, (sha256, _, _) in sorted(manifest.files.items()) if sha256 == manifest.files[path][0]
    ]
    assert path in named
    with pytest.raises(BackupRefused, match=f"{path}.*altered"):
        restore_backup(place, tmp_path / "copy")
    with pytest.raises(IsolatedCopy):
        refine(make_shop().orders, DAYS, reopened(tmp_path / "copy", None))
    with pytest.raises(BackupRefused, match="not restored and verified to the end"):
        promote(tmp_path / "copy", reason="hurry", at="2017-03-02T00:00:00+00:00")


def test_a_file_that_a_backup_lacks_is_named(built, place, tmp_path):
    manifest = backup(built.lake, place).manifest
    path = next(each for each in sorted(manifest.files) if "/_sources/" in each)
    object_place(place, manifest.files[path][0]).unlink()
    with pytest.raises(BackupRefused, match=path):
        restore_backup(place, tmp_path / "copy")
    assert backup(built.lake, place).copied == 1  # the next backup heals it
    restore_backup(place, tmp_path / "other")


def test_a_manifest_that_was_altered_is_refused_and_the_others_named(built, shop, place, tmp_path):
    first = backup(built.lake, place).manifest
    correct(shop, built, FIRST, "9")
    second = backup(built.lake, place).manifest
    path = place / "manifests" / second.name
    path.write_bytes(path.read_bytes().replace(b'"rows": 1', b'"rows": 2', 1))
    with pytest.raises(BackupRefused, match=first.name):
        restore_backup(place, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_root_that_is_in_use_is_refused_and_left_as_it_is(built, place, tmp_path):
    backup(built.lake, place)
    before = tables_of(built.lake)
    with pytest.raises(BackupRefused, match="empty root only"):
        restore_backup(place, str(built.lake.root))
    assert tables_of(built.lake) == before
    assert isolation(built.lake.root) is None
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(BackupRefused):
        restore_backup(place, tmp_path / "other")
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["notes.txt"]


def test_a_backup_in_the_lake_itself_is_refused(built):
    for to in (built.lake.root / "backup", built.lake.root, Path(str(built.lake.root)).parent):
        with pytest.raises(BackupRefused, match="lie in one another"):
            backup(built.lake, to)


def test_a_lake_that_lacks_a_live_file_is_not_backed_up_as_if_it_were_whole(built, place):
    snapshot = built.lake.open("silver/orders")
    (snapshot.folder / snapshot.files[FIRST][0].path).unlink()
    with pytest.raises(BackupRefused, match=r"is missing.*check-lake"):
        backup(built.lake, place)
    assert manifests(place) == []


def test_what_was_committed_after_the_cut_is_in_none_of_its_files(built, shop, place, tmp_path, monkeypatch):
    """A commit while files are copied: the copy holds the version of the cut, with its log and no later one."""
    version = built.lake.open("silver/orders").version
    before = tables_of(built.lake)

    def meddle(name: str) -> None:
        if name == "backup listed":
            correct(shop, built, FIRST, "9")

    monkeypatch.setattr("medallion.backup.reach", meddle)
    backup(built.lake, place)
    restore_backup(place, tmp_path / "copy")
    copy = Lake(tmp_path / "copy")
    assert list_log(copy.root / "silver/orders/_delta_log").latest == version
    assert tables_of(copy) == before


def test_a_copy_that_was_altered_after_it_was_written_is_found(built, place, tmp_path):
    manifest = backup(built.lake, place).manifest
    restore_backup(place, tmp_path / "copy")
    assert verify_copy(tmp_path / "copy", manifest) == []
    path = next(each for each in sorted(manifest.files) if "gold/monthly/month=" in each)
    data = bytearray((tmp_path / "copy" / path).read_bytes())
    data[-20] ^= 1
    (tmp_path / "copy" / path).write_bytes(data)
    assert verify_copy(tmp_path / "copy", manifest) == [f"{path} is not the file that was backed up"]


def test_the_name_of_bytes_is_their_sha256(built, place):
    for path, (sha256, size, _) in backup(built.lake, place).manifest.files.items():
        data = (built.lake.root / path).read_bytes()
        assert (hashlib.sha256(data).hexdigest(), len(data)) == (sha256, size)
        assert Path(str(object_place(place, sha256))).read_bytes() == data


def test_the_commands_make_check_and_restore_a_backup(built, place, tmp_path):
    lake = ["--lake", str(built.lake.root)]
    made = CliRunner().invoke(cli, [*lake, "backup", str(place), "--json"])
    assert made.exit_code == 0, made.output
    told = json.loads(made.output)
    assert told["copied_files"] > 0
    assert told["tables"]["silver/orders"]["rows"] == 15
    checked = CliRunner().invoke(cli, ["backup", str(place), "--check"])
    assert "all as they were written" in checked.output
    into = str(tmp_path / "copy")
    done = CliRunner().invoke(cli, ["recover", "--from", str(place), "--into", into, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["tables"] == told["tables"]
    assert dt.datetime.fromisoformat(json.loads(done.output)["rpo"]) == dt.datetime.fromisoformat(told["at"])
    promoted = CliRunner().invoke(cli, ["--lake", into, "promote", "--reason", "the disk is gone"])
    assert "publishes from now on" in promoted.output
    assert isolation(tmp_path / "copy") is None


def test_a_delivery_after_recovery_is_refused_only_where_it_should_be(built, shop, place, tmp_path):
    backup(built.lake, place)
    restore_backup(place, tmp_path / "copy")
    promote(tmp_path / "copy", reason="the disk is gone", at="2017-03-02T00:00:00+00:00")
    there = reopened(tmp_path / "copy", built.landing)
    land_orders(there, LAST, [*orders_of(LAST), order(77, 1)])
    outcome = refine_all(shop, there)["silver/orders"].outcomes[LAST]
    assert isinstance(outcome, Committed)
    assert not isinstance(outcome, Failed)
    assert rows_of(there.lake.open("silver/orders"), LAST).height == 4
    with pytest.raises(UnknownTable):
        there.lake.open("silver/none")


def test_restore_takes_a_backup_as_a_whole_or_not_at_all(built, place, tmp_path):
    backup(built.lake, place)
    words = ["restore", "--from", str(place)]
    for wrong in (words, [*words, "--into", str(tmp_path / "copy"), "--table", "silver/orders"]):
        done = CliRunner().invoke(cli, wrong)
        assert done.exit_code == 2
        assert "restored as a whole" in done.output
    done = CliRunner().invoke(cli, [*words, "--into", str(tmp_path / "copy")])
    assert done.exit_code == 0, done.output
    assert "is an isolated copy" in done.output


def test_an_isolated_copy_is_not_vacuumed(built, place, tmp_path):
    backup(built.lake, place)
    restore_backup(place, tmp_path / "copy")
    copy = Lake(tmp_path / "copy", durable=False)
    with pytest.raises(IsolatedCopy):
        vacuum(copy, plan_vacuum(copy, later()))


def test_old_manifests_are_forgotten_and_the_newer_ones_can_still_be_restored(built, shop, place, tmp_path):
    for price in ("3", "4", "5"):
        correct(shop, built, FIRST, price)
        vacuum(built.lake, plan_vacuum(built.lake, later()))
        backup(built.lake, place)
    held = len(list(place.rglob("*")))
    assert len(prune(place, 1)) == 2
    assert len(list(place.rglob("*"))) == held - 2  # the bytes are too young: another backup may be under way
    then = time.time() - 48 * 3600
    for path in (place / "objects").rglob("*"):
        os.utime(path, (then, then))
    assert prune(place, 1) == ()
    assert len(list(place.rglob("*"))) < held - 2
    assert len(manifests(place)) == 1
    restore_backup(place, tmp_path / "copy")
    assert tables_of(Lake(tmp_path / "copy")) == tables_of(built.lake)


@pytest.mark.parametrize("pattern", ["silver/orders/day=*/*.parquet", "bronze/products/_sources/*"])
def test_what_is_damaged_is_not_backed_up_as_if_it_were_whole(built, place, pattern):
    path = next(iter(sorted(Path(str(built.lake.root)).glob(pattern))))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(BackupRefused, match="not what its name promises"):
        backup(built.lake, place)
    assert manifests(place) == []
