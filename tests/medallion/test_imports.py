"""The rooms of the house and the doors between them, as DESIGN.md draws them."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ["medallion", "resources", "checks", "assets"]
"""In order: each may import only what stands to its left, and itself."""
FILES = sorted(path.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob("*.py"))


def imports_of(file: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in the file it does."""
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports relatively"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)


def tops(file: Path) -> set[str]:
    return {name.partition(".")[0] for name in imports_of(file)}


def test_there_are_files_in_every_room():
    assert {file.parts[0] for file in FILES} == set(ROOMS)


@pytest.mark.parametrize("file", FILES, ids=str)
def test_a_file_imports_only_rooms_to_the_left_of_its_own(file: Path):
    right = set(ROOMS[ROOMS.index(file.parts[0]) + 1 :])
    assert not tops(file) & (right | {"tests", "benchmarks"})


@pytest.mark.parametrize("file", [file for file in FILES if file.parts[0] == "medallion"], ids=str)
def test_the_engine_never_imports_dagster(file: Path):
    assert not [top for top in tops(file) if top.startswith("dagster")]


@pytest.mark.parametrize("file", FILES, ids=str)
def test_deltalake_is_imported_by_the_lake_and_nowhere_else(file: Path):
    assert ("deltalake" in tops(file)) == (file == Path("medallion/lake.py"))


@pytest.mark.parametrize("file", [file for file in FILES if file.parts[:2] == ("assets", "feeds")], ids=str)
def test_a_feed_imports_the_engine_the_rules_and_other_feeds_and_never_dagster(file: Path):
    allowed = {"medallion", "checks", "polars", "pandera"} | sys.stdlib_module_names
    for name in imports_of(file):
        assert name.partition(".")[0] in allowed or f"{name}.".startswith("assets.feeds.")


@pytest.mark.parametrize("file", [file for file in FILES if file.name == "__init__.py"], ids=str)
def test_a_package_imports_nothing_that_takes_time_so_that_its_modules_start_fast(file: Path):
    if file != Path("resources/__init__.py"):  # one resource set per deployment is made there
        assert set(imports_of(file)) <= {"gc", "os", "medallion"}


def test_loading_the_engine_and_the_feeds_loads_no_dagster():
    program = (
        "import sys; import medallion.cli; from medallion.project import load_project; load_project('assets.feeds'); "
        "print([name for name in sys.modules if name.startswith('dagster')])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("module", ["assets.definitions", "assets.run", "medallion.cli", "medallion.tables"])
def test_the_allocator_of_polars_is_told_what_to_do_before_polars_is_loaded(module: str):
    program = (
        "import importlib, os, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'polars': print(os.environ.get('_RJEM_MALLOC_CONF'))\n"
        "sys.meta_path.insert(0, Finder())\n"
        f"importlib.import_module({module!r})\n"
        "import polars"
    )
    env = {name: value for name, value in os.environ.items() if name != "_RJEM_MALLOC_CONF"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=env, capture_output=True, text=True, check=True
    )
    assert "oversize_threshold:0" in done.stdout
