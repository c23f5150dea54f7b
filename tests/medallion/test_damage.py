"""Every kind of damage is found and named, and repaired when somebody says so; what is lost is said."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from medallion.attempts import attempting
from medallion.backup import backup
from medallion.cli import cli
from medallion.damage import Kind
from medallion.errors import MedallionError
from medallion.evidence import EvidenceReader
from medallion.failpoints import Interrupted, armed
from medallion.fsck import check_lake
from medallion.gaps import irrecoverable
from medallion.isolation import isolate
from medallion.lake import Lake
from medallion.log import CHECKPOINT_INTERVAL
from medallion.outcomes import Committed
from medallion.past_states import of_savepoint
from medallion.planning import plan
from medallion.project import Project
from medallion.refine import Run, refine
from medallion.repair import repair_lake
from medallion.restore import restore
from medallion.savepoints import create
from medallion.state import Standing, fold
from medallion.vacuum import plan_vacuum, vacuum
from tests.builders import DAYS, FIRST, SECOND, Shop, land_orders, make_run, order, refine_all
from tests.medallion.test_retention import correct, later, names, save

BLOCKING = [order(n, 99) for n in range(1, 9)] + [order(9, 1)]


def contents(lake: Lake) -> dict[str, dict[str, str | None]]:
    """What every table holds, named by the bytes of its files."""
    found = {}
    for table in names(lake):
        snapshot = lake.open(table)
        found[table] = {key: snapshot.content(key) for key in sorted(snapshot.files)}
    return found


def live(run: Run, table: str, key: str) -> Path:
    snapshot = run.lake.open(table)
    return Path(str(snapshot.folder / snapshot.files[key][0].path))


def log_of(run: Run, table: str) -> Path:
    return Path(str(run.lake.root / table / "_delta_log"))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def _last(run: Run, table: str) -> Path:
    return max(log_of(run, table).glob("*.json"))


def _middle_entry_gone(run: Run) -> None:
    (log_of(run, "gold/daily") / f"{1:020}.json").unlink()


def _newest_entry_truncated(run: Run) -> None:
    cut(_last(run, "silver/orders"))


def _data_missing(run: Run) -> None:
    live(run, "gold/daily", FIRST).unlink()


def _data_altered(run: Run) -> None:
    flip(live(run, "silver/orders", SECOND))


def _data_truncated(run: Run) -> None:
    cut(live(run, "bronze/orders", SECOND))


def _refused_rows_missing(run: Run) -> None:
    live(run, "quarantine/orders", FIRST).unlink()


def _evidence_missing(run: Run) -> None:
    for path in (run.lake.root / "gold/daily/_evidence").glob("*"):
        path.unlink()


def _evidence_damaged(run: Run) -> None:
    for path in (run.lake.root / "gold/daily/_evidence").glob("*"):
        cut(Path(str(path)))


def _source_missing(run: Run) -> None:
    next((run.lake.root / "bronze/products/_sources").glob("*")).unlink()


def _source_altered(run: Run) -> None:
    flip(Path(str(next((run.lake.root / "bronze/products/_sources").glob("*")))))


def _folder_gone(run: Run) -> None:
    shutil.rmtree(str(run.lake.root / "silver/orders"))


def _foreign_delete(run: Run) -> None:
    DeltaTable(str(run.lake.root / "gold/daily")).delete(f"day = '{FIRST}'")


INJURIES: dict[Callable[[Run], None], set[Kind]] = {
    _middle_entry_gone: {Kind.LOG_ENTRY_MISSING},
    _newest_entry_truncated: {Kind.LOG_ENTRY_DAMAGED},
    _data_missing: {Kind.FILE_MISSING},
    _data_altered: {Kind.FILE_ALTERED},
    _data_truncated: {Kind.FILE_ALTERED},
    _refused_rows_missing: {Kind.FILE_MISSING},
    _evidence_missing: {Kind.EVIDENCE_MISSING},
    _evidence_damaged: {Kind.EVIDENCE_DAMAGED, Kind.EVIDENCE_MISSING},
    _source_missing: {Kind.SOURCE_MISSING},
    _source_altered: {Kind.SOURCE_ALTERED},
    _folder_gone: {Kind.TABLE_GONE},
}
"""What happens to a lake, and what is found."""


@pytest.fixture
def hurt(built: Run, shop: Shop) -> Run:
    """A lake with a second version of one day, some of whose rows are refused."""
    correct(shop, built, FIRST, "3")
    return built


def kinds(lake: Lake, shop: Shop) -> set[Kind]:
    return {each.kind for each in check_lake(lake, Project(shop.tables))}


def test_a_lake_that_is_whole_has_no_damage(hurt, shop):
    save(shop, hurt.lake, "kept")
    land_orders(hurt, SECOND, BLOCKING)
    refine_all(shop, hurt)
    assert check_lake(hurt.lake, Project(shop.tables)) == []
    correct(shop, hurt, FIRST, "4")
    vacuum(hurt.lake, plan_vacuum(hurt.lake, later()))
    assert check_lake(Lake(hurt.lake.root), Project(shop.tables)) == []


@pytest.mark.parametrize("injure", INJURIES, ids=lambda each: each.__name__.strip("_"))
def test_damage_is_found_and_put_back_from_a_backup_without_a_loss(hurt, shop, tmp_path, injure):
    backup(hurt.lake, tmp_path / "backup")
    before = contents(hurt.lake)
    injure(hurt)
    lake = Lake(hurt.lake.root, durable=False)
    assert kinds(lake, shop) == INJURIES[injure]
    done = repair_lake(lake, project=Project(shop.tables), backup=tmp_path / "backup")
    assert done.left == ()
    lost = [each.lost for each in done.done if each.lost]
    assert all(each.startswith("what was committed to it after") for each in lost)
    assert not done.replay
    assert contents(Lake(lake.root)) == before


@pytest.mark.parametrize("injure", INJURIES, ids=lambda each: each.__name__.strip("_"))
def test_damage_is_repaired_from_the_lake_itself_and_a_replay_makes_the_same_again(hurt, shop, injure):
    before = contents(hurt.lake)
    injure(hurt)
    run = make_run(Path(str(hurt.lake.root)).parent)
    done = repair_lake(run.lake, project=Project(shop.tables), landing=run.landing)
    if injure is not _folder_gone:  # nothing is left to repair: it is built anew
        assert not [each for each in done.left if each.needed and each.kind != Kind.EVIDENCE_MISSING]
    reports = refine_all(shop, run)
    assert {report.name for report in reports.values()} == {"COMPLETE"}
    assert contents(run.lake) == before
    assert not [each for each in check_lake(run.lake, Project(shop.tables)) if each.needed]


def test_a_repair_says_what_is_lost_and_what_to_replay(hurt, shop):
    _newest_entry_truncated(hurt)
    version = int(_last(hurt, "silver/orders").stem)
    (found,) = check_lake(hurt.lake)
    assert f"take the table back to version {version - 1}" in found.repair
    assert f"versions {version}" in found.loses
    run = make_run(Path(str(hurt.lake.root)).parent)
    done = repair_lake(run.lake)
    assert done.done[0].lost == found.loses
    assert done.replay == {"silver/orders": (FIRST,)}
    assert (run.lake.root / "silver/orders/_damaged").exists()  # nothing is deleted


def test_an_entry_that_only_an_older_version_needs_is_lost_without_touching_the_newest(hurt, shop):
    for number in range(CHECKPOINT_INTERVAL):
        land_orders(hurt, FIRST, [order(1, 1, number + 1)])
        refine(shop.raw_orders, [FIRST], hurt)
    version = hurt.lake.open("bronze/orders").version
    cut(log_of(hurt, "bronze/orders") / f"{5:020}.json")
    run = make_run(Path(str(hurt.lake.root)).parent)
    (found,) = check_lake(run.lake)
    assert (found.kind, found.needed) == (Kind.LOG_ENTRY_DAMAGED, False)
    assert found.loses == f"the way back to versions 5 to {CHECKPOINT_INTERVAL - 2}; the newest is not touched"
    repair_lake(run.lake)
    assert run.lake.open("bronze/orders").version == version


def test_a_damaged_checkpoint_is_removed_where_the_entries_lead_there_without_it(hurt, shop):
    for number in range(CHECKPOINT_INTERVAL):
        land_orders(hurt, FIRST, [order(1, 1, number + 1)])
        refine(shop.raw_orders, [FIRST], hurt)
    before = contents(hurt.lake)
    (checkpoint,) = log_of(hurt, "bronze/orders").glob("*.checkpoint.parquet")
    cut(checkpoint)
    run = make_run(Path(str(hurt.lake.root)).parent)
    assert kinds(run.lake, shop) == {Kind.CHECKPOINT_DAMAGED, Kind.CHECKPOINT_HINT}
    done = repair_lake(run.lake)
    assert done.left == ()
    assert not any(each.lost for each in done.done)
    assert contents(run.lake) == before


def test_a_checkpoint_hint_that_points_nowhere_is_removed(hurt, shop):
    hint = log_of(hurt, "gold/daily") / "_last_checkpoint"
    hint.write_text('{"version":7,"size":3}')
    assert kinds(hurt.lake, shop) == {Kind.CHECKPOINT_HINT}
    assert repair_lake(hurt.lake).left == ()
    assert not hint.exists()


def test_a_partition_with_a_fence_and_no_file_is_found_and_replayed(hurt, shop):
    before = contents(hurt.lake)
    _foreign_delete(hurt)
    run = make_run(Path(str(hurt.lake.root)).parent)
    (found,) = check_lake(run.lake)
    assert (found.kind, found.partition) == (Kind.FENCE_WITHOUT_FILE, FIRST)
    assert isinstance(refine(shop.daily, [FIRST], run).outcomes[FIRST], Committed)
    assert check_lake(run.lake) == []
    assert contents(run.lake) == before


def test_a_file_without_a_fence_is_found_and_committed_again_with_one(hurt, shop):
    path = _last(hurt, "gold/daily")
    lines = [line for line in path.read_text().splitlines() if '"txn"' not in line]
    path.write_text("\n".join(lines) + "\n")
    first = log_of(hurt, "gold/daily") / f"{1:020}.json"
    first.write_text("\n".join(line for line in first.read_text().splitlines() if '"txn"' not in line) + "\n")
    run = make_run(Path(str(hurt.lake.root)).parent)
    before = contents(run.lake)
    assert kinds(run.lake, shop) == {Kind.FILE_WITHOUT_FENCE}
    assert repair_lake(run.lake).left == ()
    assert contents(run.lake) == before
    snapshot = run.lake.open("gold/daily")
    assert min(snapshot.epochs(list(snapshot.files)).values()) == 1


def test_strays_and_temporary_files_are_found_and_removed(hurt, shop):
    folder = Path(str(hurt.lake.root / "gold/daily"))
    (folder / f"day={FIRST}" / f"part-{'0' * 32}-{'1' * 32}.parquet").write_bytes(b"left behind")
    (folder / "_evidence" / ".half.json").write_bytes(b"{")
    then = time.time() - 48 * 3600
    for path in (*folder.rglob("part-000*"), *folder.rglob(".half*")):
        os.utime(path, (then, then))
    assert kinds(hurt.lake, shop) == {Kind.STRAY}
    assert len(check_lake(hurt.lake)) == 2
    assert repair_lake(hurt.lake).left == ()
    assert not list(folder.rglob("part-000*"))


@pytest.mark.parametrize("part", ["accepted.parquet", "evidence.json"])
def test_a_blocked_candidate_without_its_files_is_found_and_forgotten(hurt, shop, part):
    land_orders(hurt, SECOND, BLOCKING)
    refine_all(shop, hurt)
    (hurt.lake.root / "silver/orders/_held" / SECOND / part).unlink()
    (found,) = check_lake(hurt.lake)
    assert (found.kind, found.partition) == (Kind.HELD_INCOMPLETE, SECOND)
    done = repair_lake(hurt.lake)
    assert done.left == ()
    assert done.replay == {"silver/orders": (SECOND,)}


def test_a_damaged_and_a_dangling_savepoint_are_found(hurt, shop, tmp_path):
    save(shop, hurt.lake, "one")
    correct(shop, hurt, FIRST, "4")
    save(shop, hurt.lake, "two")
    backup(hurt.lake, tmp_path / "backup")
    cut(Path(str(hurt.lake.root / "_savepoints/two.json")))
    first = EvidenceReader(hurt.lake.root / "gold/daily")
    old = hurt.lake.open("gold/daily", 2)
    assert first(old.batch_id(FIRST) or "") is not None
    (old.folder / old.files[FIRST][0].path).unlink()
    found = {each.kind: each for each in check_lake(hurt.lake)}
    assert found.keys() == {Kind.SAVEPOINT_DAMAGED, Kind.SAVEPOINT_DANGLING, Kind.FILE_MISSING}
    assert "medallion savepoint drop one" in found[Kind.SAVEPOINT_DANGLING].repair
    assert not found[Kind.FILE_MISSING].needed
    assert repair_lake(hurt.lake, backup=tmp_path / "backup").left == ()


def test_a_restore_that_was_interrupted_is_found_and_completed(hurt, shop):
    project = Project(shop.tables)
    create(project, hurt.lake, "before")
    want = contents(hurt.lake)
    correct(shop, hurt, FIRST, "4")
    with armed("restore table done=raise"), pytest.raises(Interrupted):
        restore(project, hurt.lake, of_savepoint(project, hurt.lake, "before"), reason="a test")
    assert Kind.RESTORE_UNFINISHED in kinds(hurt.lake, shop)
    assert repair_lake(hurt.lake, project=project).left == ()
    assert contents(hurt.lake) == want


def test_a_damaged_horizon_is_found(hurt, shop):
    folder = hurt.lake.root / "_retention"
    folder.mkdir()
    (folder / "horizon.json").write_text("{")
    assert kinds(hurt.lake, shop) == {Kind.RECORD_DAMAGED}


def test_a_table_that_others_were_built_from_is_missed_without_declarations(hurt):
    _folder_gone(hurt)
    assert [(each.kind, each.table) for each in check_lake(hurt.lake)] == [(Kind.TABLE_GONE, "silver/orders")]


def test_an_altered_file_of_an_old_version_is_found_and_the_newest_does_not_need_it(hurt, shop):
    old = hurt.lake.open("gold/daily", 1)
    flip(Path(str(old.folder / old.files[FIRST][0].path)))
    (found,) = check_lake(hurt.lake)
    assert (found.kind, found.needed, found.partition) == (Kind.FILE_ALTERED, False, FIRST)
    assert check_lake(hurt.lake, read_bytes=False) == []


def test_nothing_is_repaired_while_an_attempt_is_running(hurt, shop):
    _data_missing(hurt)
    before = contents(hurt.lake)
    target = hurt.lake.pin("gold/daily", shop.daily.partition)
    with attempting(target, "a" * 32, "run", [SECOND], [SECOND]), pytest.raises(MedallionError, match="is running"):
        repair_lake(hurt.lake)
    assert contents(hurt.lake) == before


def test_a_log_of_another_table_of_the_same_name_is_not_put_back(hurt, shop, tmp_path):
    shutil.copytree(Path(str(hurt.lake.root)).parent / "landing", tmp_path / "other" / "landing")
    other = make_run(tmp_path / "other")
    refine_all(shop, other)
    backup(other.lake, tmp_path / "backup")
    _newest_entry_truncated(hurt)
    run = make_run(Path(str(hurt.lake.root)).parent)
    done = repair_lake(run.lake, backup=tmp_path / "backup")
    assert "taken back to version" in done.done[0].did


def test_looking_changes_nothing(hurt, shop):
    _data_altered(hurt)
    before = {path: path.read_bytes() for path in Path(str(hurt.lake.root)).rglob("*") if path.is_file()}
    check_lake(hurt.lake, Project(shop.tables))
    assert before == {path: path.read_bytes() for path in Path(str(hurt.lake.root)).rglob("*") if path.is_file()}


def test_the_command_names_damage_repairs_when_told_and_says_what_is_lost(hurt):
    call = ["--lake", str(hurt.lake.root), "--landing", str(hurt.landing.root), "check-lake"]
    whole = CliRunner().invoke(cli, call)
    assert (whole.exit_code, whole.output) == (0, "nothing is damaged\n")
    _data_missing(hurt)
    found = CliRunner().invoke(cli, [*call, "--json"])
    assert found.exit_code == 1
    (told,) = json.loads(found.output)
    assert (told["kind"], told["table"], told["partition"]) == ("data file missing", "gold/daily", FIRST)
    text = CliRunner().invoke(cli, call).output
    assert f"replay gold/daily {FIRST}" in text
    assert "without a backup, lost is the partition, until it is replayed" in text
    repaired = CliRunner().invoke(cli, [*call, "--repair"])
    assert repaired.exit_code == 0, repaired.output
    assert f"replay now: gold/daily {FIRST}" in repaired.output
    assert "lost: the partition" in repaired.output


def test_bad_words_to_the_command_are_refused(hurt):
    done = CliRunner().invoke(cli, ["--lake", str(hurt.lake.root), "check-lake", "--from", "x"])
    assert done.exit_code == 2
    assert "give --repair as well" in done.output


def test_evidence_that_was_lost_says_the_same_again(hurt, shop):
    """Everything but who made it and when."""
    read = EvidenceReader(hurt.lake.root / "gold/daily")
    batch = hurt.lake.open("gold/daily").batch_id(FIRST) or ""
    was = read(batch)
    assert was is not None
    _evidence_missing(hurt)
    run = make_run(Path(str(hurt.lake.root)).parent)
    repair_lake(run.lake)
    refine(shop.daily, DAYS, run)
    now = EvidenceReader(run.lake.root / "gold/daily")(batch)
    assert now is not None
    assert (now.verdict, now.content, now.inputs) == (was.verdict, was.content, was.inputs)


def test_a_partition_that_nothing_can_make_again_is_found_recorded_and_shown_as_irrecoverable(hurt, shop):
    project = Project(shop.tables)
    live(hurt, "bronze/orders", SECOND).unlink()
    (hurt.landing.root / f"orders/{SECOND}.csv").unlink()
    (kept,) = (
        each.sources[0].kept
        for each in EvidenceReader(hurt.lake.root / "bronze/orders").all()
        if each.partition == SECOND
    )
    (hurt.lake.root / kept).unlink()
    done = repair_lake(hurt.lake, project=project, landing=hurt.landing)
    assert any("for good" in each.lost for each in done.done)
    assert SECOND in irrecoverable(hurt.lake, "bronze/orders")
    state = fold(project, hurt.lake, hurt.landing)["bronze/orders"][SECOND]
    assert state.standing == Standing.IRRECOVERABLE
    assert "in neither the landing zone nor the lake" in state.reason
    land_orders(hurt, SECOND, [order(1, 1)])
    planned = plan(project, hurt.lake, hurt.landing)
    assert "in neither" in planned.waiting["bronze/orders"][SECOND]


def test_a_table_that_a_newer_engine_has_written_is_named_and_left_alone(hurt, shop):
    entry = _last(hurt, "gold/daily")
    entry.write_text(entry.read_text().replace('\\"format\\": 1', '\\"format\\": 99'))
    before = entry.read_bytes()
    (found,) = check_lake(hurt.lake, Project(shop.tables))
    assert (found.kind, found.table) == (Kind.TABLE_UNREADABLE, "gold/daily")
    assert "has format 99" in found.found
    assert entry.read_bytes() == before


def test_a_copy_that_was_not_restored_to_the_end_is_found(hurt, shop):
    isolate(hurt.lake.root, {"backup": "/backups/shop", "manifest": "1", "at": "", "verified": None}, durable=False)
    (found,) = check_lake(hurt.lake, Project(shop.tables))
    assert found.kind is Kind.COPY_UNVERIFIED
    assert "medallion recover --from /backups/shop" in found.repair
