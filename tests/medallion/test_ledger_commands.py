"""The ledger in the operator's words: shown, made anew, held against the tables."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from medallion import errors, ledger
from medallion.cli import cli
from medallion.errors import MedallionError
from medallion.project import Project, feeds_of, load_project
from medallion.refine import Run, refine
from tests.builders import FIRST, SECOND, THIRD, land_orders, land_products, make_run, order, orders_of

ROOT = Path(__file__).parents[2]
FEED = '''"""The shop of the tests."""

from tests.builders import make_shop

SHOP = make_shop()
raw_products, products, raw_orders, orders = SHOP.raw_products, SHOP.products, SHOP.raw_orders, SHOP.orders
'''


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A project in the working directory: one day is published, one blocked, and one has failed."""
    name = f"feeds_{os.urandom(6).hex()}"  # Python keeps one module under a name, and each test has its own
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / name / "shop.py").write_text(FEED)
    (tmp_path / "pyproject.toml").write_text(f'[tool.medallion]\nfeeds = "{name}"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(ROOT), *sys.path])
    for variable in ("MEDALLION_LAKE", "MEDALLION_LANDING"):
        monkeypatch.delenv(variable, raising=False)
    opened = make_run(tmp_path)
    land_products(opened, {1: "BAKERY", 2: "DAIRY"})
    land_orders(opened, FIRST, orders_of(FIRST))
    land_orders(opened, SECOND, [order(19, quantity=0)])
    project = load_project(feeds_of(tmp_path))
    for path in ("bronze/products", "silver/products"):
        refine(project.table(path), ["all"], opened)
    for path in ("bronze/orders", "silver/orders"):
        refine(project.table(path), [FIRST, SECOND, THIRD], opened)
    return opened


@pytest.fixture
def project(run: Run, tmp_path: Path) -> Project:
    return load_project(feeds_of(tmp_path))


def said(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["ledger", *words], env={"COLUMNS": "100"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_show_tells_the_newest_rows_with_the_reason(run):
    code, text = said("show", "bronze/orders", THIRD)
    assert code == 0
    assert "failed" in text
    assert "has no source file" in " ".join(text.split())
    assert SECOND not in text


def test_show_as_json_gives_every_column_of_every_row(run):
    _, text = said("show", "silver/orders", "--status", "blocked", "--json")
    (row,) = [json.loads(line) for line in text.splitlines()]
    assert list(row) == list(ledger.SCHEMA)
    assert (row["partition"], row["error_code"], row["failure_class"]) == (SECOND, "PARTITION_BLOCKED", "gate")


def test_a_status_that_there_is_not_is_refused_with_those_that_there_are(run):
    code, text = said("show", "--status", "perhaps")
    assert code == 1
    assert "committed" in text


def test_a_deleted_ledger_is_rebuilt_and_says_what_is_lost(run):
    shutil.rmtree(run.lake.root / ledger.PATH)
    code, text = said("rebuild")
    assert code == 0
    assert "6 rows: 6 that the tables tell, 0 kept" in text
    assert "attempts that failed" in text
    assert said("check") == (0, "The ledger says nothing that the tables do not.\n")


def test_a_row_that_is_not_true_is_named_and_the_exit_status_says_so(run):
    rows = ledger.read(run.lake, {"committed"}).head(1)
    ledger.record(run.lake, rows.with_columns(attempt=rows.get_column("attempt") + "x"))
    code, text = said("check")
    assert code == 1
    assert "1 contradiction. The tables are right" in text
    assert "the tables have won" in said("rebuild")[1]
    assert said("check")[0] == 0


def test_every_kind_of_error_has_a_code_and_a_class_of_its_own_spelling():
    kinds = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, MedallionError)]
    classes = {"source", "gate", "code", "storage", "fence", "configuration"}
    assert {kind.failure_class for kind in kinds} == classes
    assert errors.SourceMissing("t", "p", "s", "w").code == "SOURCE_MISSING"
    assert errors.TableUnreadable("").code == "TABLE_UNREADABLE"
