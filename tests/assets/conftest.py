"""Small retail deployments that run in the tests' own process."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from tests.assets.deployment import DAILY, REFERENCES, Deployment, deliver, instance_in

DAYS = ("2017-01-01", "2017-01-02", "2017-01-03", "2017-01-04", "2017-01-05")
WEEK = "2016-12-26"


@pytest.fixture(scope="session")
def days() -> tuple[str, ...]:
    """The days that the small landing zone holds, the first ones of the year."""
    return DAYS


@pytest.fixture(scope="session")
def delivered(retail_landing: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A landing zone of a few days, and a lake that holds only the references; to copy only."""
    root = tmp_path_factory.mktemp("delivered")
    deliver(retail_landing, root / "landing", DAYS, [WEEK])
    with instance_in(tmp_path_factory.mktemp("home") / "delivered") as instance:
        assert Deployment(root, instance).run(*REFERENCES).success
    return root


@pytest.fixture(scope="session")
def built(delivered: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with every day in place up to gold; to read and to copy only."""
    root = tmp_path_factory.mktemp("built") / "retail"
    shutil.copytree(delivered, root)
    with instance_in(tmp_path_factory.mktemp("home") / "built") as instance:
        deployment = Deployment(root, instance)
        for assets in (DAILY[:2], DAILY[2:3], DAILY[3:]):
            assert deployment.run(*assets, first=DAYS[0], last=DAYS[-1]).success
    return root


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """A Dagster instance that knows nothing yet and is forgotten afterwards."""
    with instance_in(tmp_path / "home") as new:
        yield new


@pytest.fixture
def fresh(delivered: Path, tmp_path: Path, instance: dg.DagsterInstance) -> Deployment:
    """The few days delivered, the references in place, and no day built."""
    shutil.copytree(delivered, tmp_path / "fresh")
    return Deployment(tmp_path / "fresh", instance)


@pytest.fixture
def finished(built: Path, tmp_path: Path, instance: dg.DagsterInstance) -> Deployment:
    """The few days, all in place up to gold, to do anything to. Dagster does not know of them."""
    shutil.copytree(built, tmp_path / "finished")
    return Deployment(tmp_path / "finished", instance)
