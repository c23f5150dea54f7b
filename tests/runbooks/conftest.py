"""A small project to which things happen: a folder with a feed, a landing zone and a lake, and a savepoint of it."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from medallion.lake import Lake
from medallion.project import Project, feeds_of, load_project
from medallion.refine import Run, refine
from medallion.savepoints import create
from medallion.sources import LandingZone
from medallion.store import relative, tables

FEED = '''"""Orders of a small shop."""

import polars as pl

from medallion.contract import Contract, field
from medallion.partitions import Daily
from medallion.tables import bronze, gold, silver

DAY = Daily("day", start="2017-01-30", end="2017-02-04")


class Order(Contract):
    """One order."""

    order_id: int = field(gt=0)
    price: int = field(ge=0)


class Total(Contract):
    """One day."""

    shop: str = field()
    sales: int = field(ge=0)


export = bronze("orders", source="orders/{day}.csv", partition=DAY)


@silver(
    raw=export, contract=Order, key=["order_id"], partition=DAY, partitionwise=True, max_quarantined=0.9, revision=1
)
def orders(raw: pl.LazyFrame) -> pl.LazyFrame:
    """Typed orders."""
    return raw


@gold(lines=orders, contract=Total, key=["shop"], partition=DAY, partitionwise=True)
def daily(lines: pl.LazyFrame) -> pl.LazyFrame:
    """Sales by day."""
    return lines.group_by("day").agg(shop=pl.lit("one"), sales=pl.col("price").sum())
'''
DAYS = ("2017-01-30", "2017-01-31", "2017-02-01", "2017-02-02", "2017-02-03")
ROOT = Path(__file__).parents[2]

Contents = Mapping[str, Mapping[str, str | None]]


class Shop:
    """The project, the landing zone and the lake of one test."""

    def __init__(self, folder: Path, feeds: str) -> None:
        self.folder, self.feed = folder, folder / feeds / "shop.py"
        self.root, self.landing = folder / "lake", folder / "landing"

    @property
    def project(self) -> Project:
        """As the feed is now."""
        for name in [name for name in sys.modules if name.startswith("feeds_")]:
            del sys.modules[name]
        return load_project(feeds_of(self.folder))

    def run(self) -> Run:
        return Run(Lake(self.root, durable=False), LandingZone(self.landing))

    def land(self, day: str, prices: Sequence[int]) -> Path:
        path = self.landing / "orders" / f"{day}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = ["order_id,price", *(f"{number},{price}" for number, price in enumerate(prices, 1))]
        path.write_text("\n".join(lines) + "\n")
        return path

    def build(self, days: Sequence[str] = DAYS) -> None:
        run = self.run()
        for table in self.project.tables:
            refine(table, days, run)

    def deploy(self, revision: int, body: str = "return raw") -> None:
        """Another revision of the transform of silver."""
        text = FEED.replace("revision=1", f"revision={revision}").replace("    return raw\n", f"    {body}\n")
        self.feed.write_text(text)

    def contents(self, root: Path | None = None) -> Contents:
        """What every table holds, named by the bytes of its files; without the ledger, which tells of every call."""
        lake = Lake(root or self.root, durable=False)
        found = {}
        for folder in tables(lake.root):
            path = str(relative(folder, lake.root))
            if not path.startswith("ops/"):
                snapshot = lake.open(path)
                found[path] = {key: snapshot.content(key) for key in sorted(snapshot.files)}
        return found

    def versions(self) -> Mapping[str, int | None]:
        lake = Lake(self.root, durable=False)
        paths = [str(relative(folder, lake.root)) for folder in tables(lake.root)]
        return {path: lake.open(path).version for path in paths if not path.startswith("ops/")}

    def save(self, name: str) -> None:
        create(self.project, Lake(self.root, durable=False), name)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """Five days are delivered and built, one of them with a refused row; the project's folder is the working one."""
    name = f"feeds_{os.urandom(6).hex()}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    (tmp_path / "pyproject.toml").write_text(f'[tool.medallion]\nfeeds = "{name}"\n')
    (tmp_path / "landing").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(ROOT), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("MEDALLION_LAKE", str(tmp_path / "lake"))
    monkeypatch.setenv("MEDALLION_LANDING", str(tmp_path / "landing"))
    made = Shop(tmp_path, name)
    made.deploy(1)
    for number, day in enumerate(DAYS):
        made.land(day, [10 + number, 20, -1 if day == DAYS[1] else 30])
    made.build()
    return made
