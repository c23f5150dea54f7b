"""What a module offers is what it says it offers."""

import ast
import importlib
from pathlib import Path

import pytest

MODULES = sorted(
    path.stem
    for path in (Path(__file__).parents[2] / "medallion").glob("*.py")
    if path.name not in {"__init__.py", "cli.py"}
)


def defined_in(module: str) -> set[str]:
    """The public functions and classes that a module itself defines."""
    path = Path(__file__).parents[2] / "medallion" / f"{module}.py"
    body = ast.parse(path.read_text()).body
    kinds = ast.FunctionDef | ast.ClassDef
    return {node.name for node in body if isinstance(node, kinds) and not node.name.startswith("_")}


@pytest.mark.parametrize("module", MODULES)
def test_a_module_has_every_name_that_it_offers(module):
    loaded = importlib.import_module(f"medallion.{module}")
    missing = [name for name in loaded.__all__ if not hasattr(loaded, name)]
    assert not missing


@pytest.mark.parametrize("module", MODULES)
def test_a_module_offers_its_names_in_order_each_once(module):
    offered = importlib.import_module(f"medallion.{module}").__all__
    assert len(offered) == len(set(offered))


@pytest.mark.parametrize("module", MODULES)
def test_a_module_offers_what_it_defines_and_does_not_mark_as_its_own(module):
    offered = set(importlib.import_module(f"medallion.{module}").__all__)
    assert defined_in(module) <= offered
