"""Four questions, answered from the lake for somebody who was not there; what is wrong stays until it is resolved."""

import datetime as dt
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from medallion import ledger
from medallion.cli import cli
from medallion.held import approve, discard
from medallion.project import Project, feeds_of, load_project
from medallion.refine import Run
from medallion.status import Status, status
from medallion.status_view import to_dict
from tests.builders import (
    DAYS,
    FIRST,
    FOURTH,
    LAST,
    SECOND,
    THIRD,
    land_everything,
    land_orders,
    land_products,
    make_run,
    make_shop,
    order,
    orders_of,
    pin,
    pin_quarantine,
)

ROOT = Path(__file__).parents[2]
FEED = '''"""The shop of the tests."""

from tests.builders import make_shop

SHOP = make_shop()
raw_products, products, raw_orders, orders = SHOP.raw_products, SHOP.products, SHOP.raw_orders, SHOP.orders
daily, trailing, monthly = SHOP.daily, SHOP.trailing, SHOP.monthly
'''
BUILD = """
import sys
from pathlib import Path
from typing import Any
from medallion.project import load_project
from tests.builders import make_run
from medallion.refine import refine

run = make_run(Path.cwd(), run_id="nightly")
for table in load_project(sys.argv[1]).tables:
    refine(table, [key for key in table.partition.keys() if key in sys.argv[2:] or key in ("all", "2017-02-01")], run)
"""
REFUSED = order(99, 7, 1)
"""Refers to a product that the catalogue does not have."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder with one feed; it is the working directory."""
    name = f"feeds_{os.urandom(6).hex()}"  # Python keeps one module under a name, and each test has its own
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / name / "shop.py").write_text(FEED)
    (tmp_path / "pyproject.toml").write_text(f'[tool.medallion]\nfeeds = "{name}"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    for variable in ("MEDALLION_LAKE", "MEDALLION_LANDING"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


@pytest.fixture
def project(folder: Path) -> Project:
    sys.path.insert(0, str(folder))
    return load_project(feeds_of(folder))


@pytest.fixture
def run(folder: Path, project: Project) -> Run:
    """A healthy lake: five days from landing to gold."""
    opened = make_run(folder)
    land_everything(opened)
    build(project, opened)
    return opened


def build(project: Project, run: Run, *days: str) -> None:
    from medallion.refine import refine

    for table in project.tables:
        keys = table.partition.keys()
        refine(table, [key for key in keys if key in days] or keys if table.partition.column == "day" else keys, run)


def look(project: Project, run: Run, **more: object) -> Status:
    return status(project, run.lake, run.landing, now=dt.datetime.now(dt.UTC), **more)  # type: ignore[arg-type]


def shown(*words: str, width: int = 80) -> tuple[int, str]:
    """Exit status and text of the command."""
    result = CliRunner().invoke(cli, ["status", *words], env={"COLUMNS": str(width)}, catch_exceptions=True)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def answers(*words: str) -> dict[str, Any]:
    """What the command answers to the questions of a recovery."""
    found: dict[str, Any] = json.loads(shown("--json", *words)[1])["answers"]
    return found


def kinds(found: Status) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(each.kind, each.table, each.partitions) for each in found.concerns if each.needs_person]


def killed(folder: Path, point: str, *days: str) -> int:
    """Run a nightly build in a process of its own that is killed at a point; its id."""
    path = os.pathsep.join([str(ROOT), str(folder)])
    process = subprocess.Popen(
        [sys.executable, "-c", BUILD, feeds_of(folder), *days],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "MEDALLION_FAILPOINTS": f"{point}=kill"},
        stderr=subprocess.DEVNULL,
    )
    assert process.wait(60) == -9
    return process.pid


def test_a_healthy_lake_needs_nobody_and_answers_the_four_questions_first(run):
    code, text = shown()
    assert code == 0
    lines = text.splitlines()
    assert [line for line in lines if line.endswith("?")] == [
        "Where am I?",
        "What have I committed?",
        "Where can I safely return?",
        "Can I prove that the result is correct?",
    ]
    assert lines[0] == "Where am I?"
    assert lines[1].strip() == "Healthy: nothing needs anybody."
    assert "24 of 24 partitions in 7 tables" in text
    assert "Nothing was ever verified" in text
    assert "Needs somebody" not in text


@pytest.mark.parametrize("width", [80, 160])
def test_no_line_is_wider_than_the_terminal_and_every_table_is_named_whole(run, width):
    land_orders(run, SECOND, [order(19, quantity=0)])
    _, text = shown(width=width)
    assert max(map(len, text.splitlines())) <= width
    assert "gold/trailing" in text
    assert "…" not in text


def test_a_blocked_day_is_named_with_its_rule_its_age_and_what_to_do(run, project):
    land_orders(run, SECOND, [order(19, quantity=0)])
    build(project, run, SECOND)
    code, text = shown()
    assert code == 1
    assert f"silver/orders {SECOND} blocked" in text
    assert f"-> medallion inspect silver/orders {SECOND}" in text
    found = look(project, run)
    ((kind, table, keys),) = kinds(found)
    assert (kind, table, keys) == ("blocked", "silver/orders", (SECOND,))
    since = found.concerns[0].since
    assert since is not None
    assert dt.timedelta(0) < found.at - since < dt.timedelta(minutes=5)


def test_k2_a_blocked_day_stays_until_it_is_resolved_whatever_passes_after_it(run, project):
    land_orders(run, THIRD, [order(29, quantity=0)])
    build(project, run, THIRD)
    first = look(project, run).concerns[0].since
    build(project, run, FOURTH, LAST)
    build(project, run, THIRD)
    again = look(project, run)
    assert kinds(again) == [("blocked", "silver/orders", (THIRD,))]
    assert again.concerns[0].since == first, "it has been so since the first time"
    land_orders(run, THIRD, orders_of(THIRD))
    build(project, run)
    assert kinds(look(project, run)) == []
    assert shown()[0] == 0


def test_a_blocked_day_of_which_an_input_changes_still_says_by_what_it_was_blocked(run, project):
    land_orders(run, THIRD, [order(29, quantity=0)])
    build(project, run, THIRD)
    land_products(run, {1: "BAKERY", 2: "CHEESE", 3: "FUEL"})
    build_only(project, run, "bronze/products", "silver/products")
    concern = next(each for each in look(project, run).concerns if each.table == "silver/orders")
    assert (concern.kind, concern.partitions, concern.needs_person) == ("stale", (THIRD,), True)
    assert "blocked: by" in concern.reason
    assert "when it was tried last" in concern.reason


def test_approving_a_blocked_day_resolves_it_and_leaves_what_follows_to_be_replayed(run, project):
    land_orders(run, THIRD, [order(29, quantity=0)])
    build(project, run, THIRD)
    approve(project.table("silver/orders"), THIRD, run, reason="an empty till")
    assert "blocked" not in {kind for kind, _, _ in kinds(look(project, run))}
    build(project, run)
    assert kinds(look(project, run)) == []


def test_a_discarded_candidate_leaves_its_day_to_be_replayed(run, project):
    land_orders(run, THIRD, [order(29, quantity=0)])
    build(project, run, THIRD)
    discard(project.table("silver/orders"), THIRD, run, reason="a test till")
    assert kinds(look(project, run)) == [("stale", "silver/orders", (THIRD,))]


def test_a_missing_file_needs_somebody_as_soon_as_a_later_one_is_there(folder, project):
    run = make_run(folder)
    land_products(run, {1: "BAKERY", 2: "DAIRY"})
    for day in (FIRST, SECOND):
        land_orders(run, day, orders_of(day))
    build(project, run)
    assert shown()[0] == 1, "somebody asked for days of which no file was there"
    assert {kind for kind, _, _ in kinds(look(project, run))} == {"failed"}
    land_orders(run, FOURTH, orders_of(FOURTH))
    build(project, run, FOURTH)
    found = look(project, run)
    concern = next(each for each in found.concerns if THIRD in each.partitions and each.table == "bronze/orders")
    assert concern.needs_person
    assert "orders/2017-02-01.csv" in concern.reason
    waiting = {(each.table, each.partitions) for each in found.concerns if not each.needs_person}
    assert ("silver/orders", (THIRD,)) in waiting, "what follows from it is told, and is not asked for"


def test_days_that_nobody_asked_for_yet_are_no_concern(folder, project):
    run = make_run(folder)
    land_products(run, {1: "BAKERY", 2: "DAIRY"})
    for day in (FIRST, SECOND):
        land_orders(run, day, orders_of(day))
    build(project, run, FIRST, SECOND)
    found = look(project, run)
    assert not [each for each in found.concerns if "orders" in each.table or "daily" in each.table]
    assert shown()[0] == 0


def test_k16_what_was_delivered_and_not_built_needs_somebody_once_it_has_waited_too_long(folder, project, run):
    late = make_run(folder / "late")
    land_products(late, {1: "BAKERY", 2: "DAIRY"})
    for day in DAYS:
        land_orders(late, day, orders_of(day))
    build(project, late, FIRST)
    at_once = look(project, late)
    assert ("missing", "bronze/orders", DAYS[1:]) in [(e.kind, e.table, e.partitions) for e in at_once.concerns]
    assert not at_once.needs_person
    later = dt.datetime.now(dt.UTC) + dt.timedelta(days=4)
    assert status(project, late.lake, late.landing, now=later).needs_person


def test_a_changed_dimension_makes_exactly_the_days_stale_that_use_it(run, project):
    land_products(run, {1: "BAKERY", 2: "CHEESE", 3: "FUEL"})
    build_only(project, run, "bronze/products", "silver/products")
    found = look(project, run)
    assert ("stale", "gold/daily", DAYS) in kinds(found)
    assert "silver/products" in found.concerns[0].reason
    code, text = shown()
    assert code == 1
    told = next(line for line in text.splitlines() if "->" in line).partition("-> medallion ")[2]
    assert told == f"replay gold/daily {FIRST}..{LAST}"
    assert CliRunner().invoke(cli, told.split()).exit_code == 0
    assert shown()[0] == 0


def build_only(project: Project, run: Run, *paths: str) -> None:
    from medallion.refine import refine

    for path in paths:
        refine(project.table(path), project.table(path).partition.keys(), run)


def test_a_killed_run_is_told_until_the_next_attempt_has_found_out_what_had_happened(run, project, folder):
    land_orders(run, SECOND, orders_of(SECOND)[:1])
    pid = killed(folder, "table committed:2", SECOND)
    found = look(project, run)
    assert ("interrupted", "silver/orders", (SECOND,)) in kinds(found)
    code, text = shown()
    assert code == 1
    assert f"of run nightly died (process {pid}" in " ".join(text.split())
    build(project, run)
    assert shown()[0] == 0
    recovery = look(project, run).recovery
    assert recovery is not None
    assert recovery["reason"] == "committed without acknowledgement"


def test_outstanding_quarantine_is_counted_with_its_age_and_needs_nobody_by_itself(run, project):
    land_orders(run, FIRST, [*orders_of(FIRST), REFUSED])
    build(project, run)
    code, text = shown()
    assert code == 0
    assert "1 row refused and outstanding" in text
    table = next(each for each in look(project, run).tables if each.table == "silver/orders")
    assert table.quarantined == 1
    assert table.quarantined_since is not None
    land_products(run, {1: "BAKERY", 2: "DAIRY", 3: "FUEL", 7: "TOYS"})
    build(project, run)
    assert next(each for each in look(project, run).tables if each.table == "silver/orders").quarantined == 0
    released = ledger.read(run.lake).filter(pipeline_name="silver/orders", partition=FIRST).get_column("released_count")
    assert released.drop_nulls().sum() == 1


def test_an_attempt_under_way_is_told_with_what_it_is_at_and_for_how_long(run, project, folder):
    land_orders(run, SECOND, orders_of(SECOND)[:1])
    go = folder / "go"
    path = os.pathsep.join([str(ROOT), str(folder)])
    process = subprocess.Popen(
        [sys.executable, "-c", BUILD, feeds_of(folder), SECOND],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "MEDALLION_FAILPOINTS": f"judged=pause({go})"},
    )
    from tests.protocol.workers import until

    try:
        until(go.with_name("go.reached").exists, 60)
        (running,) = answers()["running_attempts"]
        assert (running["table"], running["partitions"]) == ("bronze/orders", [SECOND])
        assert (running["run_id"], running["pid"]) == ("nightly", process.pid)
        assert running["seconds"] >= 0
        assert "Under way (1)" in shown()[1]
        assert "interrupted" not in {kind for kind, _, _ in kinds(look(project, run))}
    finally:
        go.touch()
        assert process.wait(60) == 0
    assert answers()["running_attempts"] == []


def test_question_1_the_last_safe_checkpoint(run):
    assert answers()["last_safe_checkpoint"] == "gold/trailing@1"


def test_question_2_the_committed_batch(run, project):
    land_orders(run, SECOND, orders_of(SECOND)[:1])
    build_only(project, run, "bronze/orders")
    batch = answers()["committed_batch"]
    live = pin(project.table("bronze/orders"), run).batch_id(SECOND)
    assert (batch["checkpoint_id"], batch["partition"], batch["batch_id"]) == ("bronze/orders@2", SECOND, live)


def test_questions_3_and_4_the_lag_and_the_records_to_replay(folder, project):
    run = make_run(folder)
    land_products(run, {1: "BAKERY", 2: "DAIRY"})
    for day in (FIRST, SECOND, THIRD):
        land_orders(run, day, orders_of(day))
    build(project, run, FIRST)
    build_only(project, run, "bronze/orders")
    found = answers()
    # Of three days one is accepted; the month cannot be built before all of its days are.
    assert found["lag"] == {"partitions": 2, "rows": 6, "seconds": 2 * 86400.0}
    assert found["records_to_replay"] == 6
    build(project, run, SECOND, THIRD)
    assert answers()["lag"] == {"partitions": 0, "rows": 0, "seconds": 0}


def test_question_6_the_scope_of_what_is_to_be_recovered(run, project):
    land_orders(run, SECOND, [order(19, quantity=0)])
    build(project, run, SECOND)
    assert answers()["recovery_scope"] == {"silver/orders": [SECOND]}


def test_question_7_whether_it_is_reconciled(run):
    assert answers()["reconciled"] is None
    now = dt.datetime.now(dt.UTC)
    row = {"pipeline_name": "silver/orders", "partition": "", "attempt": "v", "status": "verified"}
    for result in ("reconciled", "differs"):
        now += dt.timedelta(seconds=1)
        ledger.record(run.lake, [{**row, "attempt": result, "completed_at": now, "reconciliation_status": result}])
        assert answers()["reconciled"] is (result == "reconciled")
    assert "silver/orders differs" in shown()[1]


def test_question_8_whether_the_watermark_advanced(folder, project):
    run = make_run(folder)
    land_everything(run)
    build(project, run, FIRST, SECOND)
    before = answers()["watermarks"]["silver/orders"]
    assert (before["contiguous"], before["newest"]) == (SECOND, SECOND)
    build(project, run, FOURTH)
    gap = answers()["watermarks"]["silver/orders"]
    assert (gap["contiguous"], gap["newest"]) == (SECOND, FOURTH)
    build(project, run, THIRD)
    after = answers()["watermarks"]["silver/orders"]
    assert (after["contiguous"], after["newest"]) == (FOURTH, FOURTH)
    assert after["advanced_at"] > before["advanced_at"]


def test_question_9_what_is_quarantined(run, project):
    land_orders(run, FIRST, [*orders_of(FIRST), REFUSED])
    build(project, run)
    found = answers()["quarantined"]["silver/orders"]
    assert found["rows"] == pin_quarantine(project.table("silver/orders"), run).rows(FIRST) == 1
    assert dt.datetime.fromisoformat(found["since"]) < dt.datetime.now(dt.UTC)


def test_question_10_the_current_version(run, project):
    assert answers()["current_version"] == {table.path: pin(table, run).version for table in project.tables}


def test_question_11_how_long_it_takes_and_took(run, project, folder):
    assert answers()["how_long"] == {"open_seconds": 0.0, "last_recovery_seconds": None}
    land_orders(run, SECOND, orders_of(SECOND)[:1])
    killed(folder, "table committed:2", SECOND)
    assert answers()["how_long"]["open_seconds"] > 0
    build(project, run)
    found = answers()["how_long"]
    assert found["open_seconds"] == 0.0
    assert found["last_recovery_seconds"] == ledger.read(run.lake, {"recovered"}).get_column("rto_observed")[-1]


def test_status_answers_where_there_is_no_ledger_and_where_it_is_damaged(run, project):
    import shutil

    shutil.rmtree(run.lake.root / ledger.PATH)
    assert shown()[0] == 0
    (run.lake.root / ledger.PATH / "_delta_log").mkdir(parents=True)
    Path(str(run.lake.root), ledger.PATH, "_delta_log", f"{0:020}.json").write_text("{")
    code, text = shown()
    assert code == 0
    assert "The ledger cannot be read" in text


def test_status_answers_where_there_is_no_landing_zone(run, folder):
    (folder / "landing").rename(folder / "gone")
    code, _ = shown()
    assert code == 0


def test_an_empty_lake_has_committed_nothing_and_what_waits_is_told(folder, project):
    run = make_run(folder)
    land_everything(run)
    code, text = shown()
    assert code == 0
    assert "0 of 24 partitions" in text
    found = look(project, run)
    assert {each.kind for each in found.concerns} == {"missing"}
    assert to_dict(found)["answers"]["committed_batch"] is None
    assert shown("--patience", "0")[0] == 1


def test_the_newest_savepoint_is_where_one_can_return_to(run, project):
    result = CliRunner().invoke(cli, ["savepoint", "create", "before-the-fair"])
    assert result.exit_code == 0, result.output
    assert "Savepoint before-the-fair (manual)" in shown()[1]
    assert answers()["last_safe_checkpoint"] == "before-the-fair"
    land_orders(run, SECOND, orders_of(SECOND)[:1])
    build_only(project, run, "bronze/orders")
    savepoint = look(project, run).savepoint
    assert savepoint is not None
    assert savepoint.moved == ("bronze/orders",)


def test_a_savepoint_of_a_state_that_was_out_of_date_is_not_where_one_returns_to(run, project):
    def save(name):
        result = CliRunner().invoke(cli, ["savepoint", "create", name])
        assert result.exit_code == 0, result.output

    save("sound")
    land_orders(run, SECOND, orders_of(SECOND)[:1])
    build_only(project, run, "bronze/orders")
    save("halfway")
    assert answers()["last_safe_checkpoint"] == "sound"


def test_a_verification_is_the_proof_until_something_is_committed(run, project):
    assert CliRunner().invoke(cli, ["verify"]).exit_code == 0
    _, text = shown()
    assert "Verified" in text
    assert "reconciled." in text
    assert "Since then" not in text
    assert answers()["reconciled"] is True
    land_orders(run, SECOND, orders_of(SECOND)[:1])
    build_only(project, run, "bronze/orders")
    assert "Since then 1 partition was committed" in shown()[1]


def test_a_closed_day_that_has_not_come_yet_is_no_concern(tmp_path, monkeypatch):
    run = make_run(tmp_path)
    shop = make_shop(closed={LAST: "a holiday"})
    land_products(run, {1: "BAKERY", 2: "DAIRY"})
    for day in (FIRST, SECOND):
        land_orders(run, day, orders_of(day))
    project = Project(shop.tables)
    build(project, run, FIRST, SECOND)
    later = dt.datetime.now(dt.UTC) + dt.timedelta(days=400)
    found = status(project, run.lake, run.landing, now=later)
    assert not [each for each in found.concerns if LAST in each.partitions]


def test_watching_shows_it_again_until_it_is_interrupted(run, folder):
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from medallion.cli import main; main()",
            "status",
            "--json",
            "--watch",
            "--every",
            "0.1",
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        first, second = (json.loads(process.stdout.readline()) for _ in range(2))
    finally:
        process.send_signal(signal.SIGINT)
        status = process.wait(30)
        process.stdout.close()
    assert first["at"] < second["at"]
    assert status == 130


def test_the_oldest_version_that_can_be_read_is_told_by_the_files_that_are_there(run, project):
    orders = project.table("silver/orders")
    old = pin(orders, run).files[SECOND][0].path
    land_orders(run, SECOND, orders_of(SECOND)[:1])
    build(project, run)
    before = next(each for each in look(project, run).tables if each.table == "silver/orders")
    assert (before.oldest_version, before.version) == (0, 2)
    (run.lake.root / "silver/orders" / old).unlink()
    after = next(each for each in look(project, run).tables if each.table == "silver/orders")
    assert after.oldest_version == 2
    assert "silver/orders from 2 of 2" in " ".join(shown(width=200)[1].split())
