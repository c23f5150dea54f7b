"""The operator's words for backfills: plan, execute, replay."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click import Context
from click.testing import CliRunner, Result

from medallion.cli import cli
from medallion.project import Project
from medallion.refine import Run
from medallion.tables import Table
from tests.builders import (
    DAYS,
    FIRST,
    LAST,
    SECOND,
    THIRD,
    land_everything,
    land_orders,
    make_run,
    order,
    orders_of,
    pin,
)

MONTH = "2017-01-01"


@pytest.fixture
def folder(folder: Path) -> Path:
    """The project folder, with gold as well."""
    (feed,) = folder.glob("feeds_*/shop.py")
    feed.write_text(feed.read_text() + "daily, trailing, monthly = SHOP.daily, SHOP.trailing, SHOP.monthly\n")
    return folder


@pytest.fixture
def landed(folder: Path, project: Project) -> Run:
    """A project folder with an empty lake, in which five good days are delivered."""
    run = make_run(folder)
    land_everything(run)
    return run


def call(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words), env={"COLUMNS": "100"})


def said(*words: str, status: int = 0) -> str:
    result = call(*words)
    assert result.exit_code == status, result.output
    return result.output


def answer(*words: str, status: int = 0) -> Any:
    return json.loads(said(*words, status=status))


def live(run: Run, project: Project, path: str) -> set[str]:
    table: Table = project.table(path)
    return set(pin(table, run).files)


def test_plan_without_a_table_finds_every_gap_and_execute_fills_them(landed: Run, project: Project, folder: Path):
    text = said("plan", "--save", "gaps.json")
    assert "24 partitions in 7 tables" in text
    assert "medallion execute gaps.json" in text
    assert live(landed, project, "bronze/orders") == set()
    text = said("execute", "gaps.json", "--dry-run")
    assert "24 of 24 partitions are left." in text
    text = said("execute", "gaps.json")
    assert "silver/orders: COMPLETE, 5 committed" in text
    assert live(landed, project, "gold/trailing") == set(DAYS)
    assert "Nothing is to be made" in said("plan")


def test_a_plan_shows_ranges_reasons_slices_and_what_waits(landed: Run):
    (landed.landing.root / f"orders/{THIRD}.csv").unlink()  # type: ignore[union-attr]
    text = said("plan")
    assert f"{FIRST}..{SECOND}" in text
    assert "missing" in text
    assert f"waits: silver/orders {THIRD} for bronze/orders {THIRD}" in text


def test_replay_brings_a_corrected_day_up_to_gold_and_tells_what_became_of_each_partition(landed: Run):
    said("plan", "--execute")
    land_orders(landed, SECOND, orders_of(SECOND)[:2])
    told = answer("replay", "bronze/orders", SECOND, "--json")
    assert {each["table"]: each["outcomes"] for each in told["tables"]} == {
        "bronze/orders": {SECOND: "committed"},
        "silver/orders": {SECOND: "committed"},
        "gold/daily": {SECOND: "committed"},
        "gold/monthly": {MONTH: "committed"},
        "gold/trailing": dict.fromkeys(DAYS[1:4], "committed"),
    }


def test_a_refused_partition_gives_exit_status_1_and_says_which_and_why(landed: Run):
    said("plan", "--execute")
    land_orders(landed, LAST, [order(900 + n, quantity=0) for n in range(3)])
    text = said("replay", "bronze/orders", f"{THIRD}..", status=1)
    assert "silver/orders: PARTIAL, 2 unchanged, 1 blocked" in text
    assert f"silver/orders {LAST} blocked by" in text
    told = answer("plan", "silver/orders", "--only", "blocked", "--no-downstream", "--json")
    assert [step["key"] for table in told["tables"] for step in table["steps"]] == [LAST]
    assert said("replay", "silver/orders", "--only", "blocked", "--no-downstream", status=1)


def test_replay_only_what_is_missing_leaves_the_rest_unvisited(landed: Run):
    said("replay", "bronze/orders", f"..{SECOND}", "--no-downstream")
    told = answer("replay", "bronze/orders", "--only", "missing", "--no-downstream", "--json")
    assert told["tables"][0]["outcomes"] == dict.fromkeys(DAYS[2:], "committed")
    told = answer("replay", "bronze/orders", "--newest-first", "--dry-run", "--json")
    assert [step["key"] for step in told["tables"][0]["steps"]] == list(reversed(DAYS))


def test_with_upstream_a_gold_partition_is_made_from_nothing(landed: Run, project: Project):
    said("plan", "gold/daily", SECOND, "--upstream", "--no-downstream", "--execute")
    assert live(landed, project, "gold/daily") == {SECOND}
    assert live(landed, project, "silver/orders") == {SECOND}


def test_an_outdated_plan_is_refused_made_again_or_accepted(landed: Run, folder: Path):
    said("plan", "bronze/orders", FIRST, "--no-downstream", "--save", "first.json")
    said("replay", "bronze/orders", FIRST, "--no-downstream")
    assert f"outdated: bronze/orders {FIRST} was committed by another run" in said("execute", "first.json", "--dry-run")
    result = call("execute", "first.json")
    assert result.exception is not None
    assert "medallion execute PLANFILE --replan" in str(result.exception)
    assert "COMPLETE, 1 unchanged" in said("execute", "first.json", "--accept")
    said("execute", "first.json", "--replan")
    assert json.loads((folder / "first.json").read_text())["tables"] == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("plan", "silver/orders", "--only", "everything"), "none of missing, failed"),
        (("plan", "silver/orders", "2017-1-30.."), "YYYY-MM-DD"),
        (("plan", "silver/nothing"), "no table is called"),
        (("replay", "silver/orders", "2019-01-01"), "is not a partition here"),
        (("execute", "pyproject.toml"), "is no plan"),
    ],
)
def test_what_cannot_be_understood_is_said_in_one_message(landed: Run, words, says):
    result = call(*words)
    assert result.exit_code != 0
    assert says in result.output + str(result.exception)


DOCUMENT = (Path(__file__).parents[2] / "docs/backfills.md").read_text()


def test_every_test_that_the_documentation_names_is_there():
    tests = "\n".join(path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py"))
    named = set(re.findall(r"test_\w+", DOCUMENT))
    assert len(named) > 5
    assert [name for name in named if f"def {name}(" not in tests] == []


def test_every_option_that_the_documentation_names_is_one_of_the_commands():
    options = {
        option
        for name in ("plan", "execute", "replay")
        for parameter in cli.get_command(Context(cli), name).params  # type: ignore[union-attr]
        for option in parameter.opts
    }
    ours = [line for line in DOCUMENT.splitlines() if "medallion" in line or not line.startswith("|")]
    assert set(re.findall(r"--[a-z-]+", "\n".join(ours))) <= options | {"--from-date", "--to-date"}
