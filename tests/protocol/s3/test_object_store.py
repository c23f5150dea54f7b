"""The pipeline in an object store: what a local lake does, a lake in a bucket does."""

import datetime as dt
from pathlib import Path

import pytest
from deltalake import DeltaTable
from polars.testing import assert_frame_equal

from medallion import ledger
from medallion.attempts import COMMITTED
from medallion.evidence import read_held
from medallion.held import approve, discard
from medallion.inspection import inspect
from medallion.lake import Lake
from medallion.outcomes import Blocked, Committed, Failed, Unchanged
from medallion.project import Project
from medallion.rebuilding import contradictions, rebuild
from medallion.refine import refine
from medallion.sources import LandingZone
from medallion.status import status
from medallion.store import open_place
from medallion.strays import find_strays, remove_strays
from medallion.summary import summarize
from tests.protocol.s3.server import Proxy, environment
from tests.protocol.shop import DAY, DAYS, Shop, build, contents, expected, held_by, land, make_run
from tests.protocol.workers import nursery, until

FIRST, SECOND, THIRD, *_ = DAYS
LOADED = {FIRST: [1, 2, -3], SECOND: [4, 5], THIRD: [6, -7]}
BAD = [5000, 1, -2]


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    """Three days of deliveries."""
    for day, quantities in LOADED.items():
        land(tmp_path / "landing", day, quantities)
    return tmp_path / "landing"


def _names(lake: str, pattern: str = "*") -> set[str]:
    root = open_place(lake)
    return {str(path) for path in root.rglob(pattern)}


def test_a_pipeline_in_a_bucket_makes_the_bytes_of_one_in_a_folder_and_a_replay_writes_nothing(
    bucket: str, landing: Path, tmp_path: Path
):
    build(Shop(), list(LOADED), make_run(tmp_path / "lake", landing))
    reports = build(Shop(), list(LOADED), make_run(bucket, landing))
    assert {report.name for report in reports} == {"COMPLETE"}
    assert contents(bucket) == contents(tmp_path / "lake")
    rows = held_by(bucket)
    assert {path: rows[path] for path in expected(LOADED)} == expected(LOADED)
    before = _names(bucket)
    replay = build(Shop(), list(LOADED), make_run(bucket, landing))
    assert all(isinstance(each, Unchanged) for report in replay for each in report.outcomes.values())
    assert {name for name in _names(bucket) - before if ledger.PATH not in name} == set()
    assert ledger.read(Lake(bucket), {"unchanged"}).height == 9
    found = summarize(Shop().tables, Lake(bucket))
    assert [(each.read, each.accepted, each.quarantined) for each in found] == [(7, 7, 0), (7, 5, 2), (3, 3, 0)]


def test_the_ledger_and_the_status_of_a_lake_in_a_bucket_are_those_of_one_in_a_folder(bucket: str, landing: Path):
    project = Project(Shop().tables)
    build(Shop(), list(LOADED), make_run(bucket, landing))
    land(landing, SECOND, BAD)
    build(Shop(), [SECOND], make_run(bucket, landing))
    lake = Lake(bucket)
    by = ("pipeline_name", "partition", "target_version")
    before = ledger.read(lake, {"committed"}).sort(by)
    assert contradictions(lake, project) == []
    rebuild(lake, project)
    assert_frame_equal(ledger.read(lake, {"committed"}).sort(by), before)
    found = status(project, lake, LandingZone(landing), now=dt.datetime.now(dt.UTC))
    assert [(each.kind, each.table, each.partitions) for each in found.concerns] == [
        ("blocked", "silver/orders", (SECOND,))
    ]
    assert {each.table: each.oldest_version for each in found.tables} == dict.fromkeys(project.by_path, 0)


def test_a_correction_after_a_checkpoint_is_fenced_by_epochs_that_are_read_from_it(bucket: str, landing: Path):
    build(Shop(), list(LOADED), make_run(bucket, landing))
    DeltaTable(f"{bucket}/silver/orders").create_checkpoint()
    land(landing, FIRST, [8])
    build(Shop(), list(LOADED), make_run(bucket, landing))
    many = Lake(bucket).pin("silver/orders", DAY).epochs([*DAYS, *(f"no-{number}" for number in range(8))])
    assert [many[day] for day in LOADED] == [2, 1, 1]


def test_a_blocked_candidate_is_seen_whole_replaced_in_one_step_and_approved_as_it_was_judged(
    bucket: str, landing: Path
):
    shop, run = Shop(), make_run(bucket, landing)
    build(shop, [FIRST], run)
    for quantities in ([6000], BAD):
        land(landing, FIRST, quantities)
        outcome = build(shop, [FIRST], run)[1].outcomes[FIRST]
        assert isinstance(outcome, Blocked)
    table = Lake(bucket).root / "silver/orders"
    held = read_held(table, FIRST)
    assert held is not None
    names = sorted(path.name for path in (table / "_held" / FIRST).glob("*"))
    assert names == sorted([f"{held.attempt}-accepted.parquet", f"{held.attempt}-quarantined.parquet", "evidence.json"])
    assert isinstance(approve(shop.orders, FIRST, run, reason="checked by hand"), Committed)
    assert held_by(bucket)["silver/orders"][FIRST] == [(1, 5000), (2, 1)]
    assert [str(path) for path in (table / "_held" / FIRST).glob("*")] == []


@pytest.mark.parametrize("number", [1, 2])
def test_a_candidate_that_is_replaced_by_an_attempt_that_dies_is_the_one_before_until_its_evidence_is_there(
    bucket: str, landing: Path, number, monkeypatch: pytest.MonkeyPatch
):
    shop, run = Shop(), make_run(bucket, landing)
    build(shop, [FIRST], run)
    land(landing, FIRST, [6000, -1])
    build(shop, [FIRST], run)
    before = read_held(run.lake.root / "silver/orders", FIRST)
    land(landing, FIRST, BAD)
    refine(shop.raw, [FIRST], run)
    with monkeypatch.context() as patched:
        _die_at_held_put(patched, number)
        with pytest.raises(KeyboardInterrupt):
            refine(shop.orders, [FIRST], run)
    assert read_held(run.lake.root / "silver/orders", FIRST) == before
    assert before is not None
    assert isinstance(refine(shop.orders, [FIRST], run).outcomes[FIRST], Blocked)
    strays = find_strays(run.lake, older_than=0)
    remove_strays(run.lake, strays, older_than=0)
    assert [each.kind for each in strays if "_held" in each.path] == ["temporary file"] * (number - 1)
    assert isinstance(approve(shop.orders, FIRST, run, reason="checked by hand"), Committed)


def test_a_discarded_candidate_is_gone_and_who_did_so_is_kept(bucket: str, landing: Path):
    shop, run = Shop(), make_run(bucket, landing)
    land(landing, FIRST, BAD)
    build(shop, [FIRST], run)
    discard(shop.orders, FIRST, run, reason="a test delivery")
    assert read_held(run.lake.root / "silver/orders", FIRST) is None
    (note,) = (run.lake.root / "silver/orders/_held/.discarded").glob("*.json")
    assert "a test delivery" in note.read_text()


def test_two_processes_at_one_partition_have_one_effect_and_a_death_after_the_commit_is_told(
    bucket: str, landing: Path, store_port: int
):
    folder = landing.parent
    with nursery(**environment(store_port)) as workers:
        stopped = []
        for number in range(2):
            go = folder / f"go-{number}"
            more = {"keys": [FIRST], "lake": bucket}
            stopped.append((workers.start("build", folder, points=f"staged=pause({go})", **more), go))
            until(go.with_name(f"{go.name}.reached").exists)
        for _, go in stopped:
            go.touch()
        assert [worker.wait() for worker, _ in stopped] == [0, 0]
        said = sorted(worker.report()["bronze/orders"][FIRST][0] for worker, _ in stopped)
        assert said in (["Committed", "Unchanged"], ["Committed", "Superseded"])
        assert Lake(bucket).pin("bronze/orders", DAY).epoch(FIRST) == 1
        build(Shop(), [FIRST], make_run(bucket, landing))
        assert held_by(bucket)["silver/orders"][FIRST] == [(1, 1), (2, 2)]
        land(landing, FIRST, [9])
        killed = workers.start("build", folder, points="table committed=kill", keys=[FIRST], lake=bucket)
        assert killed.wait() == -9
    found = build(Shop(), [FIRST], make_run(bucket, landing))[0].outcomes[FIRST]
    assert isinstance(found, Unchanged)
    assert found.recovery == COMMITTED
    assert [each["was"] for each in inspect(Lake(bucket), "bronze/orders", FIRST)["recoveries"]] == [COMMITTED]


def test_what_a_dead_attempt_has_left_in_a_bucket_is_found_and_removed(bucket: str, landing: Path):
    shop, run = Shop(), make_run(bucket, landing)
    build(shop, [FIRST], run)
    good = _names(bucket)
    left = f"day={FIRST}/part-{'a' * 32}-{'b' * 32}.parquet"
    (run.lake.root / "silver/orders" / left).write_bytes(b"of an attempt that died")
    assert find_strays(run.lake) == []
    strays = [each for each in find_strays(run.lake, older_than=0) if each.kind == "data file"]
    assert [each.path for each in strays] == [f"silver/orders/{left}"]
    assert remove_strays(run.lake, strays, older_than=0) == strays
    assert _names(bucket) == good
    assert isinstance(refine(shop.orders, [FIRST], run).outcomes[FIRST], Unchanged)


def test_a_store_that_goes_away_fails_the_partition_and_the_next_attempt_makes_it_whole(
    lossy: str, proxy: Proxy, landing: Path
):
    run = make_run(lossy, landing)

    def goes_down(count: int, path: str) -> bool:
        proxy.is_down = count >= 6  # the log entry of bronze has been written, and nobody will say so
        return proxy.is_down

    proxy.reset(goes_down)
    outcome = refine(Shop().raw, [FIRST], run).outcomes[FIRST]
    assert isinstance(outcome, Failed)
    assert "AWS_ENDPOINT_URL" in str(outcome.error)
    proxy.reset()
    again = refine(Shop().raw, [FIRST], make_run(lossy, landing)).outcomes[FIRST]
    assert isinstance(again, Unchanged)
    assert Lake(lossy).pin("bronze/orders", DAY).epoch(FIRST) == 1


def _die_at_held_put(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """End the attempt at the n-th object of the candidate that it is about to hold."""
    from medallion import evidence

    puts = 0
    write = evidence.write_durably

    def dying(place, data, *, durable=True):
        nonlocal puts
        puts += "_held" in str(place)
        if puts == number:
            raise KeyboardInterrupt
        write(place, data, durable=durable)

    monkeypatch.setattr(evidence, "write_durably", dying)
