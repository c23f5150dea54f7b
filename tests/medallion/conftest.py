"""What the engine's tests share: an empty lake, a landing zone, and the small shop of ``tests/builders.py``."""

import shutil
from pathlib import Path

import pytest
from hypothesis import settings

from medallion.lake import Lake
from medallion.refine import Run
from tests.builders import Shop, land_everything, make_run, make_shop, refine_all

# How long an example takes says how busy the machine is, and nothing about the law.
settings.register_profile("engine", deadline=None)
settings.load_profile("engine")


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
