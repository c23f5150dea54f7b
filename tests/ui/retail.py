"""A real Dagster deployment of the retail project on a few days, shared by all tests of this folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path

import dagster as dg
import pytest

from tests.assets.deployment import DAILY, REFERENCES, Deployment, deliver
from tests.ui.server import DagsterServer

ROOT = Path(__file__).resolve().parents[2]
BRONZE, SILVER, DAILY_SALES, SALES_7D = DAILY


def days(first: str, count: int) -> list[str]:
    """So many days, the first one included."""
    return [str(date.fromisoformat(first) + timedelta(days=after)) for after in range(count)]


JANUARY = days("2017-01-01", 12)
BUILT = JANUARY[:6]
WEEK_BEFORE = days("2017-11-26", 6)
MONTH = days("2017-12-02", 30)
"""To the end of the year, so that no trailing window leads out of it. On 2017-12-25 the stores were closed."""


def settings(root: Path) -> Path:
    """DAGSTER_HOME as `make run` sets it up, but for the queue, which is looked at every second."""
    home = root / "home"
    home.mkdir()
    given = (ROOT / "resources" / "dagster.yaml").read_text()
    (home / "dagster.yaml").write_text(f"{given}\nrun_queue:\n  dequeue_interval_seconds: 1\n")
    return home


def opened(home: Path) -> dg.DagsterInstance:
    """The instance that is kept there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGSTER_HOME", str(home))  # dagster.yaml says that everything is kept there
        return dg.DagsterInstance.get()


@contextmanager
def served(root: Path, year: Path) -> Iterator[tuple[DagsterServer, Deployment]]:
    """Serve the days above, delivered; the references, the first days of January and the week before are in place.

    The instance is set up as `make run` sets it up, but for the queue, which is looked at every second.
    """
    home = settings(root)
    deliver(year, root / "landing", [day for day in JANUARY + WEEK_BEFORE + MONTH if day != "2017-12-25"])
    with opened(home) as instance:
        deployment = Deployment(root, instance)
        assert deployment.run(*REFERENCES).success
        for built in (BUILT, WEEK_BEFORE):
            for assets in ((BRONZE, SILVER), (DAILY_SALES,)):
                assert deployment.run(*assets, first=built[0], last=built[-1], gates_only=True).success
        with DagsterServer(home, deployment.environment(), ROOT) as server:
            yield server, deployment
