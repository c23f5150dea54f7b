"""What dead attempts leave behind is found and removed; what anybody needs is not."""

import os
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from medallion import ledger
from medallion.cli import cli
from medallion.evidence import read_held
from medallion.held import approve
from medallion.lake import Lake
from medallion.partitions import Whole
from medallion.store import Place
from medallion.strays import find_strays, remove_strays
from tests.protocol.shop import DAY, DAYS, Shop, build, contents, land, make_run
from tests.protocol.workers import until

FIRST, SECOND, THIRD, *_ = DAYS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A lake with two versions of one day, and another day."""
    for quantities in ([1, -2], [3, -4]):
        land(tmp_path / "landing", FIRST, quantities)
        land(tmp_path / "landing", SECOND, [5])
        build(Shop(), [FIRST, SECOND], make_run(tmp_path / "lake", tmp_path / "landing"))
    return tmp_path


def _age(lake: Place, hours: float = 48) -> None:
    """Let everything in the lake be as old as that."""
    then = time.time() - hours * 3600
    for path in [*Path(str(lake)).rglob("*")]:
        os.utime(path, (then, then))


def _files(lake: Place) -> set[str]:
    return {str(path.relative_to(str(lake))) for path in Path(str(lake)).rglob("*") if path.is_file()}


def test_a_lake_that_nobody_died_in_has_no_strays(folder):
    _age(folder / "lake")
    assert find_strays(Lake(folder / "lake")) == []


@pytest.mark.parametrize("point", ["table files written", "quarantine files written", "evidence written"])
def test_files_of_a_dead_attempt_are_found_and_removed_after_a_safe_age(folder, workers, point):
    lake = Lake(folder / "lake")
    before = _files(lake.root)
    land(folder / "landing", THIRD, [7, -8])
    assert workers.start("build", folder, points=f"{point}:1=kill", keys=[THIRD]).wait() == -9
    left = _files(lake.root) - before
    assert find_strays(lake) == []  # too young
    _age(lake.root)
    found = find_strays(lake)
    assert {each.kind for each in found} <= {"data file", "evidence", "attempt record"}
    removed = remove_strays(lake, found)
    assert {each.path for each in removed} == {each.path for each in found}
    assert left & _files(lake.root) == {path for path in left if "_sources" in path or "_delta_log" in path} | {
        path for path in left if path in contents_paths(lake)
    }
    assert find_strays(lake) == []
    build(Shop(), [THIRD], make_run(folder / "lake", folder / "landing"))


def contents_paths(lake: Lake) -> set[str]:
    """Every file and document that belongs to a live batch."""
    found = set()
    for table in ("bronze/orders", "silver/orders", "quarantine/orders", "gold/totals"):
        for files in lake.pin(table, DAY).files.values():
            for file in files:
                found |= {f"{table}/{file.path}", f"{table}/_evidence/{file.batch_id}.json"}
    return found | {f"{ledger.PATH}/{path}" for path in lake.pin(ledger.PATH, Whole()).sizes}


def test_a_dry_run_removes_nothing(folder, workers):
    land(folder / "landing", THIRD, [7, -8])
    workers.start("build", folder, points="table files written=kill", keys=[THIRD]).wait()
    _age(folder / "lake")
    before = _files(folder / "lake")
    arguments = ["--lake", str(folder / "lake"), "clean"]
    told = CliRunner().invoke(cli, [*arguments, "--dry-run"])
    assert "--apply removes them" in told.output
    assert "data file" in told.output
    assert _files(folder / "lake") == before
    done = CliRunner().invoke(cli, [*arguments, "--apply"])
    assert "removed" in done.output
    assert _files(folder / "lake") != before
    assert CliRunner().invoke(cli, arguments).output.startswith("0 strays")


def test_nothing_that_a_live_attempt_has_staged_is_removed_however_old_it_looks(folder, workers):
    land(folder / "landing", THIRD, [7, -8])
    go = folder / "go"
    worker = workers.start("build", folder, points=f"table files written=pause({go})", keys=[THIRD])
    until((folder / "go.reached").exists)
    _age(folder / "lake")
    lake = Lake(folder / "lake")
    assert remove_strays(lake, find_strays(lake)) == []
    go.touch()
    assert worker.wait() == 0
    assert lake.pin("silver/orders", DAY).scan([THIRD]).collect().height == 1


def test_a_file_that_is_written_anew_after_it_was_found_is_not_removed(folder, workers):
    land(folder / "landing", THIRD, [7, -8])
    workers.start("build", folder, points="table files written=kill", keys=[THIRD]).wait()
    _age(folder / "lake")
    lake = Lake(folder / "lake")
    found = [each for each in find_strays(lake) if each.kind == "data file"]
    assert found
    build(Shop(), [THIRD], make_run(folder / "lake", folder / "landing"))
    assert remove_strays(lake, found) == []
    assert lake.pin("bronze/orders", DAY).scan([THIRD]).collect().height == 2


def test_a_held_candidate_is_never_removed_and_can_still_be_approved(folder):
    land(folder / "landing", THIRD, [5000])
    run = make_run(folder / "lake", folder / "landing")
    build(Shop(), [THIRD], run)
    _age(folder / "lake")
    lake = Lake(folder / "lake")
    remove_strays(lake, find_strays(lake))
    assert read_held(folder / "lake/silver/orders", THIRD) is not None
    approve(Shop().orders, THIRD, run, reason="checked")


def test_the_refused_rows_of_a_live_batch_stay_while_others_stand_in_their_place(folder, workers):
    before = contents(folder / "lake")
    land(folder / "landing", FIRST, [10, -11])
    worker = workers.start("build", folder, points="quarantine log synced=kill", keys=[FIRST])
    assert worker.wait() == -9
    _age(folder / "lake")
    lake = Lake(folder / "lake")
    remove_strays(lake, find_strays(lake))
    land(folder / "landing", FIRST, [3, -4])
    build(Shop(), [FIRST], make_run(folder / "lake", folder / "landing"))
    assert contents(folder / "lake")["quarantine/orders"] == before["quarantine/orders"]


def test_a_dead_attempt_that_nobody_has_followed_is_settled_by_cleaning(folder, workers):
    land(folder / "landing", THIRD, [7])
    workers.start("build", folder, points="staged=kill", keys=[THIRD]).wait()
    lake = Lake(folder / "lake")
    found = find_strays(lake, older_than=0)
    assert [each.kind for each in found if "_attempts/" in each.path] == ["attempt record"]
    remove_strays(lake, found, older_than=0)
    (note,) = (folder / "lake/bronze/orders/_attempts/settled").iterdir()
    assert "interrupted before commit" in note.read_text()


def test_older_versions_stay_readable(folder, workers):
    lake = Lake(folder / "lake")
    _age(lake.root)
    remove_strays(lake, find_strays(lake))
    assert lake.pin("silver/orders", DAY, version=1).scan([FIRST]).collect().height == 1
