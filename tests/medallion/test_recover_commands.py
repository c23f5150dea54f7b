"""The commands around savepoints: what they print, for people and as JSON, and with which exit status they end."""

import json
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from medallion.cli import cli
from medallion.errors import RestoreRefused, SavepointRefused
from medallion.failpoints import Interrupted, armed
from medallion.project import Project, feeds_of, load_project
from medallion.refine import Run, refine
from tests.builders import SECOND, land_orders, make_run, order

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path, template: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder with the shop, built from five good days; it is the working directory."""
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    name = f"feeds_{os.urandom(6).hex()}"  # Python keeps one module under a name, and each test has its own
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("")
    words = ["raw_products", "products", "raw_orders", "orders", "daily", "trailing", "monthly"]
    lines = ["from tests.builders import make_shop", "SHOP = make_shop()", *(f"{each} = SHOP.{each}" for each in words)]
    (tmp_path / name / "shop.py").write_text("\n".join(lines) + "\n")
    (tmp_path / "pyproject.toml").write_text(f'[tool.medallion]\nfeeds = "{name}"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(ROOT), *sys.path])
    monkeypatch.delenv("MEDALLION_LAKE", raising=False)
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path


@pytest.fixture
def run(folder: Path) -> Run:
    return make_run(folder)


@pytest.fixture
def project(folder: Path) -> Project:
    return load_project(feeds_of(folder))


def medallion(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, list(words))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def spoil(run: Run, project: Project) -> None:
    land_orders(run, SECOND, [order(91, 1, 900), order(92, 1, -5)])
    for table in project.tables:
        refine(table, table.partition.keys(), run)


def test_savepoints_are_made_listed_shown_and_dropped(folder):
    code, output = medallion("savepoint", "create", "good", "--reason", "before the release")
    assert code == 0
    assert "silver/orders" in output
    assert "before the release" in output
    code, output = medallion("savepoint", "list", "--json")
    (listed,) = json.loads(output)
    assert (listed["name"], listed["kind"], listed["tables"], listed["stale"]) == ("good", "manual", 9, 0)
    assert "before the release" in medallion("savepoint", "list")[1]
    shown = json.loads(medallion("savepoint", "show", "good", "--json")[1])
    assert shown["tables"]["silver/orders"]["rows"] == 15
    assert medallion("savepoint", "drop", "good")[0] == 0
    assert json.loads(medallion("savepoint", "list", "--json")[1]) == []


def test_a_name_that_is_taken_is_one_message(folder):
    medallion("savepoint", "create", "good")
    with pytest.raises(SavepointRefused, match="never overwritten"):
        medallion("savepoint", "create", "good")


def test_a_difference_is_shown_and_given_as_json(folder, run, project):
    medallion("savepoint", "create", "good")
    spoil(run, project)
    code, output = medallion("diff", "silver/orders", "good")
    assert code == 0
    assert "1 partitions differ, 4 are the same" in output
    assert "1 rows added, 3 removed, 0 changed" in " ".join(output.split())
    found = json.loads(medallion("diff", "silver/orders", "good", "--json")[1])
    assert found["partitions"][0]["key"] == SECOND
    assert found["rows"] == {"added": 1, "removed": 3, "changed": 0}
    assert found["totals"]["quantity"] == [6, 900]


def test_a_dry_run_says_what_would_be_done_and_the_restore_does_it(folder, run, project):
    medallion("savepoint", "create", "good")
    spoil(run, project)
    planned = json.loads(medallion("restore", "--to", "good", "--dry-run", "--json")[1])
    assert planned["replaced"]["silver/orders"] == [SECOND]
    assert "Nothing was changed" in medallion("restore", "--to", "good", "--dry-run")[1]
    code, output = medallion("restore", "--to", "good", "--reason", "wrong orders")
    assert code == 0
    assert "recovered" in output
    assert "What stood before: medallion restore --to auto-" in output
    assert json.loads(medallion("diff", "silver/orders", "good", "--json")[1])["partitions"] == []


def test_a_table_goes_back_to_a_version_and_what_is_stale_is_said(folder, run, project):
    spoil(run, project)
    told = json.loads(medallion("restore", "--table", "silver/orders", "--to-version", "1", "--json")[1])
    assert told["outcome"] == "recovered"
    assert list(told["stale"]["gold/daily"]) == [SECOND]
    assert told["rto_seconds"] > 0


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--to", "good", "--to-version", "1"],
        ["--to-version", "1"],
        ["--to-time", "yesterday"],
        ["--to", "good", "--decided-at", "noon"],
    ],
)
def test_words_that_name_no_state_or_two_are_unusable(folder, words):
    medallion("savepoint", "create", "good")
    assert medallion("restore", *words)[0] == 2


def test_an_interrupted_restore_is_resumed_or_rolled_back_by_command(folder, run, project):
    assert medallion("restore", "--resume") == (0, "no restore is open\n")
    medallion("savepoint", "create", "good")
    spoil(run, project)
    with armed("restore table done:2=raise"), suppress(Interrupted):
        CliRunner().invoke(cli, ["restore", "--to", "good"])
    code, output = medallion("restore", "--rollback")
    assert code == 0
    assert "rolled back" in output
    assert json.loads(medallion("diff", "silver/orders", "good", "--json")[1])["partitions"] != []


def test_a_restore_that_is_not_possible_says_so_in_the_dry_run_and_refuses(folder, run, project):
    medallion("savepoint", "create", "good")
    spoil(run, project)
    shown = json.loads(medallion("savepoint", "show", "good", "--json")[1])
    ((path, _, _),) = shown["tables"]["silver/orders"]["files"][SECOND]
    (folder / "lake" / "silver/orders" / path).unlink()
    assert f"not possible: silver/orders/{path} is gone" in medallion("restore", "--to", "good", "--dry-run")[1]
    with pytest.raises(RestoreRefused, match="vacuumed"):
        medallion("restore", "--to", "good")
