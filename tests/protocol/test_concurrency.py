"""Many processes on one table."""

from pathlib import Path

from medallion.lake import Lake
from medallion.refine import refine
from tests.protocol.shop import DAY, DAYS, Shop, expected, held_by, land, make_run

FIRST, SECOND, *_ = DAYS
PROCESSES = 8


def test_eight_processes_that_create_a_table_at_once_all_commit_their_partitions(workers, tmp_path):
    for number, day in enumerate(DAYS, 1):
        land(tmp_path / "landing", day, [number, -number])
    started = [workers.start("build", tmp_path, keys=[DAYS[number % len(DAYS)]]) for number in range(PROCESSES)]
    assert [worker.wait() for worker in started] == [0] * PROCESSES
    said = [worker.report()["bronze/orders"] for worker in started]
    assert {outcome for days in said for outcome, _ in days.values()} <= {"Committed", "Unchanged"}
    rows = held_by(tmp_path / "lake")
    want = expected({day: [number, -number] for number, day in enumerate(DAYS, 1)})
    for table, days in want.items():
        assert rows[table] == days
    for table in ("bronze/orders", "silver/orders", "gold/totals"):
        snapshot = Lake(tmp_path / "lake").pin(table, DAY)
        assert snapshot.epochs(DAYS) == dict.fromkeys(DAYS, 1)
        commits = snapshot.commits(0, partial=True) or []
        assert [commit.version for commit in commits] == list(range(snapshot.version or 0, 0, -1))


def test_eight_processes_at_one_partition_have_one_effect_and_epochs_only_rise(workers, tmp_path):
    epochs = []
    for turn in range(3):
        land(tmp_path / "landing", FIRST, [turn + 1, -1])
        refine(Shop().raw, [FIRST], make_run(tmp_path / "lake", tmp_path / "landing"))
        started = [workers.start("one table", tmp_path, keys=[FIRST]) for _ in range(PROCESSES)]
        assert [worker.wait() for worker in started] == [0] * PROCESSES
        said = [worker.report()["silver/orders"][FIRST][0] for worker in started]
        assert said.count("Committed") == 1
        assert set(said) <= {"Committed", "Unchanged", "Superseded"}
        epochs.append(Lake(tmp_path / "lake").pin("silver/orders", DAY).epoch(FIRST))
        assert held_by(tmp_path / "lake")["silver/orders"] == {FIRST: [(1, turn + 1)]}
        assert held_by(tmp_path / "lake")["quarantine/orders"] == {FIRST: [("2", "-1")]}
    assert epochs == [1, 2, 3]


def test_the_fences_read_from_the_log_at_once_are_those_that_deltalake_tells(workers, tmp_path):
    """Over a checkpoint, with entries before and after it."""
    land(tmp_path / "landing", FIRST, [99])
    shop, run = Shop(), make_run(tmp_path / "lake", tmp_path / "landing")
    for turn in range(9):
        for day in DAYS:
            land(tmp_path / "landing", day, [turn + 1])
            refine(shop.raw, [day], run)
        snapshot = Lake(tmp_path / "lake").pin("bronze/orders", DAY)
        many = snapshot.epochs([*DAYS, *(f"never-{number}" for number in range(9))])
        assert {day: many[day] for day in DAYS} == {day: snapshot.epoch(day) for day in DAYS}
    assert list(Path(tmp_path / "lake/bronze/orders/_delta_log").glob("*.checkpoint.parquet"))
    old = Lake(tmp_path / "lake").pin("bronze/orders", DAY, version=7)
    assert old.epochs([*DAYS, *"abcdefghi"])[FIRST] == old.epoch(FIRST)
