"""What the engine's tests share: an empty lake, a landing zone, and the small shop of ``tests/builders.py``."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from medallion.lake import Lake
from medallion.project import Project, feeds_of, load_project
from medallion.refine import Run
from tests.builders import Shop, land_everything, make_run, make_shop, refine_all

# How long an example takes says how busy the machine is, and nothing about the law.
settings.register_profile("engine", deadline=None)
settings.load_profile("engine")


ROOT = Path(__file__).parents[2]
SHOP = '''"""The shop of the tests."""

from tests.builders import make_shop

SHOP = make_shop()
raw_products, products, raw_orders, orders = SHOP.raw_products, SHOP.products, SHOP.raw_orders, SHOP.orders
'''


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run on an empty lake and an empty landing zone."""
    return make_run(tmp_path)


@pytest.fixture
def lake(run: Run) -> Lake:
    """The lake of ``run``."""
    return run.lake


@pytest.fixture
def shop() -> Shop:
    """The declared shop; nothing is delivered or built."""
    return make_shop()


@pytest.fixture
def landed(run: Run) -> Run:
    """The run, with five good days and a catalogue delivered."""
    land_everything(run)
    return run


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which every table of the shop was built once from five good days; to copy only."""
    folder = tmp_path_factory.mktemp("template")
    run = make_run(folder)
    land_everything(run)
    reports = refine_all(make_shop(), run)
    assert {report.name for report in reports.values()} == {"COMPLETE"}
    return folder


@pytest.fixture
def built(template: Path, tmp_path: Path) -> Run:
    """The run, with every table of the shop built from five good days. A lake may be copied: its paths are relative."""
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    return make_run(tmp_path)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder with one feed; it is the working directory."""
    name = f"feeds_{os.urandom(6).hex()}"  # Python keeps one module under a name, and each test has its own
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / name / "shop.py").write_text(SHOP)
    (tmp_path / "pyproject.toml").write_text(f'[tool.medallion]\nfeeds = "{name}"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    monkeypatch.delenv("MEDALLION_LAKE", raising=False)
    return tmp_path


@pytest.fixture
def project(folder: Path) -> Project:
    sys.path.insert(0, str(folder))
    return load_project(feeds_of(folder))
