import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from medallion.digests import digest, digest_bytes, digest_file, digest_function
from tests.builders import make_shop

FEED = '''
import datetime as dt
import re
from functools import lru_cache, partial

import polars as pl

from {package} import helpers
from {package}.helpers import clean, Status

LIMIT = 10
FIRST = dt.date(2017, 1, 1)
PATTERN = re.compile("[a-z]+")
CODES = {{"fuel": {{"a", "b", "c"}}, "food": {{"d"}}}}
RATES = pl.DataFrame({{"rate": [1.0, 2.0]}})
STEPS = {{"clean": clean}}


@lru_cache
def table():
    return 1


def inner(rows, limit):
    return rows.head(limit)


shorten = partial(inner, limit=5)


def transform(rows, threshold=LIMIT):
    """What it does."""
    # a comment
    rows = clean(rows).filter(pl.col("a") > LIMIT, pl.col("d") >= FIRST, pl.col("s").str.contains(PATTERN.pattern))
    rows = helpers.reach(rows).filter(pl.col("c").is_in(CODES["fuel"]), pl.col("r").is_in(RATES["rate"]))
    return shorten(STEPS["clean"](rows)).with_columns(pl.lit(table()), pl.lit(Status.OPEN), pl.lit(threshold))
'''
HELPERS = '''
from enum import StrEnum

FACTOR = 2


class Status(StrEnum):
    """States."""

    OPEN = "open"


def clean(rows):
    """Clean."""
    return rows.drop_nulls()


def reach(rows):
    return rows.with_columns(b=FACTOR)


def unused(rows):
    return rows
'''
SAME = {
    "a comment": ("feed", "# a comment", "# another comment"),
    "a docstring": ("feed", '"""What it does."""', '"""Something else.\n\n    At length."""'),
    "layout": ("feed", "return rows.head(limit)", "return rows.head(\n        limit,\n    )"),
    "a helper's docstring": ("helpers", '"""Clean."""', '"""Cleaner."""'),
    "a class's docstring": ("helpers", '"""States."""', '"""Conditions."""'),
    "a function that is not used": ("helpers", "return rows\n", "return rows.head()\n"),
    "an import that is not used": ("feed", "import re\n", "import re\nimport json\n"),
}
DIFFERENT = {
    "the code": ("feed", 'pl.col("a") > LIMIT', 'pl.col("a") >= LIMIT'),
    "a number": ("feed", "LIMIT = 10", "LIMIT = 11"),
    "a date": ("feed", "dt.date(2017, 1, 1)", "dt.date(2017, 1, 2)"),
    "a pattern": ("feed", '"[a-z]+"', '"[a-z]*"'),
    "a set in a dictionary": ("feed", '"c"}', '"x"}'),
    "a frame": ("feed", "[1.0, 2.0]", "[1.0, 2.5]"),
    "a bound argument": ("feed", "limit=5", "limit=6"),
    "a cached helper": ("feed", "return 1", "return 2"),
    "a helper behind a partial": ("feed", "rows.head(limit)", "rows.tail(limit)"),
    "a helper": ("helpers", "rows.drop_nulls()", "rows.fill_null(0)"),
    "a helper reached through its module": ("helpers", "b=FACTOR", "b=FACTOR + 1"),
    "a helper's constant": ("helpers", "FACTOR = 2", "FACTOR = 3"),
    "a member of an enumeration": ("helpers", 'OPEN = "open"', 'OPEN = "opened"'),
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Digest the transform of a project of two files, after a change in one of them."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def digest_of(module: str = "feed", old: str = "", new: str = "") -> str:
        # The same package each time: its name is part of what a helper is.
        folder = tmp_path / "digested"
        folder.mkdir(exist_ok=True)
        sources = {"__init__": "", "feed": FEED.format(package="digested"), "helpers": HELPERS}
        assert old in sources[module]
        sources[module] = sources[module].replace(old, new)
        for name, text in sources.items():
            (folder / f"{name}.py").write_text(text)
        for name in [name for name in sys.modules if name.partition(".")[0] == "digested"]:
            del sys.modules[name]
        importlib.invalidate_caches()
        return digest_function(importlib.import_module("digested.feed").transform)

    return digest_of


@pytest.mark.parametrize("change", SAME.values(), ids=SAME)
def test_what_does_not_change_the_work_does_not_change_the_digest(project, change):
    assert project(*change) == project()


@pytest.mark.parametrize("change", DIFFERENT.values(), ids=DIFFERENT)
def test_what_changes_the_work_changes_the_digest(project, change):
    assert project(*change) != project()


def test_a_digest_is_the_same_in_every_process(project, tmp_path: Path):
    here = project()
    program = "import digested.feed as f; from medallion.digests import digest_function as d; print(d(f.transform))"
    for seed in ("1", "2"):
        there = subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert there.stdout.strip() == here


def test_a_helper_of_another_package_counts_by_its_name_only():
    def uses_a_foreign_helper(value):
        return importlib.import_module(value)

    assert digest_function(uses_a_foreign_helper) == digest_function(uses_a_foreign_helper)


def test_a_function_without_source_is_told_by_its_byte_code_and_names():
    def made(text):
        return eval(text)

    same = [digest_function(made("lambda rows: rows.head(5)")) for _ in range(2)]
    assert same[0] == same[1]
    assert digest_function(made("lambda rows: rows.tail(5)")) != same[0]
    assert digest_function(made("lambda rows: rows.head(6)")) != same[0]
    assert digest_function(made("lambda rows: [row for row in rows.head(5)]")) != same[0]


def test_a_value_from_an_enclosing_function_counts():
    def make(limit):
        def transform(rows):
            return rows.head(limit)

        return transform

    assert digest_function(make(1)) == digest_function(make(1))
    assert digest_function(make(1)) != digest_function(make(2))


def test_a_function_that_calls_itself_has_a_digest():
    def again(n):
        return again(n - 1) if n else 0

    assert len(digest_function(again)) == 32


def test_declarations_that_are_made_alike_have_the_same_transform_digest():
    one, other = make_shop(), make_shop()
    assert [table.transform_digest for table in one.tables] == [table.transform_digest for table in other.tables]


def test_a_digest_does_not_depend_on_the_order_of_a_mapping():
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest(["a", "b"]) != digest(["b", "a"])


def test_a_file_has_the_digest_of_its_bytes(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(b"bytes")
    assert digest_file(path) == digest_bytes(b"bytes")
    assert len(digest_file(path)) == 32


# Contracts


_CONTRACTS = """
import sys
from medallion.contract import Contract, field, rule
from medallion.gate import Gate

class Row(Contract):
    kind: str = field(isin=["a", "b", "c", "d", "e"], notin=["x", "y", "z"])
    size: int = field(isin=range(BOUND))

    @rule()
    def known(rows):
        return rows.kind.is_in({"a", "b", "c", "d", "e"}) & (rows.size < BOUND)

print(Gate(Row).digest)
"""


def contract_digest_in_another_process(folder, seed: int, bound: int) -> str:
    script = folder / f"contract_{bound}.py"
    script.write_text(_CONTRACTS.replace("BOUND", str(bound)))
    environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_contract_has_one_digest_in_every_process_and_another_one_when_a_bound_in_it_changes(tmp_path):
    digests = {contract_digest_in_another_process(tmp_path, seed, 200) for seed in (1, 2, 3)}
    assert len(digests) == 1
    assert contract_digest_in_another_process(tmp_path, 1, 201) not in digests
