"""A real Dagster deployment of the retail project on a few days, for one test module."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path

import dagster as dg

from tests.assets.deployment import DAILY, REFERENCES, Deployment, deliver
from tests.ui.server import DagsterServer

ROOT = Path(__file__).resolve().parents[2]
BRONZE, SILVER, DAILY_SALES, SALES_7D = DAILY


def days(first: str, count: int) -> list[str]:
    """So many days, the first one included."""
    return [str(date.fromisoformat(first) + timedelta(days=after)) for after in range(count)]


@contextmanager
def served(
    root: Path, year: Path, delivered: Sequence[str], built: Sequence[str]
) -> Iterator[tuple[DagsterServer, Deployment]]:
    """Serve a landing zone with some days of the retail year; references and ``built`` days stand before.

    The instance is set up as `make run` sets it up, but for the queue, which is looked at every second.
    """
    home = root / "home"
    home.mkdir()
    settings = (ROOT / "resources" / "dagster.yaml").read_text()
    (home / "dagster.yaml").write_text(f"{settings}\nrun_queue:\n  dequeue_interval_seconds: 1\n")
    deliver(year, root / "landing", delivered)
    with dg.DagsterInstance.from_config(str(home)) as instance:
        deployment = Deployment(root, instance)
        assert deployment.run(*REFERENCES).success
        for assets in ((BRONZE, SILVER), (DAILY_SALES,)) if built else ():
            assert deployment.run(*assets, first=built[0], last=built[-1]).success
        with DagsterServer(home, deployment.environment(), ROOT) as server:
            yield server, deployment
