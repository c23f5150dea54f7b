"""Finds the declared tables of a project: every module of the feeds package is imported and its tables are gathered."""

from __future__ import annotations

import gc
import importlib
import pkgutil
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from medallion.errors import ConfigurationError, DeclarationError, MedallionError, UnknownTable
from medallion.tables import LAYERS, Table

__all__ = ["Project", "feeds_of", "load_project"]


@dataclass(frozen=True)
class Project:
    """The declared tables, in an order in which each comes after those that it is built from."""

    tables: tuple[Table, ...]

    @cached_property
    def by_path(self) -> dict[str, Table]:
        """The tables by ``layer/name``."""
        return {table.path: table for table in self.tables}

    def table(self, path: str) -> Table:
        """The table of that name.

        Raises:
            UnknownTable: with the names there are.
        """
        try:
            return self.by_path[path]
        except KeyError:
            raise UnknownTable(path, tuple(self.by_path)) from None


def load_project(feeds: str) -> Project:
    """Import every module of the package ``feeds`` and gather its tables.

    Raises:
        DeclarationError: naming the feed file that cannot be imported and why, or two tables with one name.
    """
    try:
        package = importlib.import_module(feeds)
    except ImportError as error:
        raise ConfigurationError(f"the feeds package {feeds!r} cannot be imported: {error}") from error
    found: dict[str, Table] = {}
    for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda each: each.name):
        name = f"{feeds}.{module.name}"
        file = name.replace(".", "/") + ".py"
        try:
            content = importlib.import_module(name)
        except MedallionError as error:
            raise DeclarationError(f"the feed {file}: {error}") from error
        except Exception as error:
            raise DeclarationError(
                f"the feed {file} cannot be imported: {type(error).__name__}: {error}. Mend it, or move it out of the "
                "folder; until then no table is served, and nothing that is committed is touched."
            ) from error
        for value in vars(content).values():
            if isinstance(value, Table) and found.setdefault(value.path, value) is not value:
                raise DeclarationError(f"the feed {file} declares {value.path} a second time")
    # Half a million objects that importing made stay for good; the collector need not walk them again and again.
    gc.freeze()
    return Project(_in_order(found.values()))


def feeds_of(folder: Path) -> str:
    """The feeds package that ``pyproject.toml`` in ``folder`` names under ``[tool.medallion]``."""
    path = folder / "pyproject.toml"
    try:
        return str(tomllib.loads(path.read_text())["tool"]["medallion"]["feeds"])
    except (OSError, KeyError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(
            f'{path} does not say where the feeds are ({error!r}). Write [tool.medallion] feeds = "assets.feeds", and '
            "run from the project's folder."
        ) from error


def _in_order(tables: Iterable[Table]) -> tuple[Table, ...]:
    ordered: dict[str, Table] = {}

    def visit(table: Table) -> None:
        for each in table.inputs.values():
            visit(each.table)
        for reference in table.references.values():
            visit(reference.table)
        ordered.setdefault(table.path, table)

    for table in sorted(tables, key=lambda each: (LAYERS.index(each.layer), each.name)):
        visit(table)
    return tuple(ordered.values())
