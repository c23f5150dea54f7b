"""The README's example feed is what a newcomer copies, so it is run as it stands there."""

import importlib
import re
import sys
from pathlib import Path

import polars as pl
import pytest

from medallion.lake import Lake
from medallion.outcomes import Committed
from medallion.project import load_project
from medallion.refine import Run, refine
from medallion.sources import LandingZone

README = Path(__file__).resolve().parent.parent / "README.md"


@pytest.fixture
def feed(tmp_path, monkeypatch):
    code = next(block for block in re.findall(r"```python\n(.*?)```", README.read_text(), re.S) if "bronze(" in block)
    package = tmp_path / "readme_feeds"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "sign_ups.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    yield load_project("readme_feeds")
    for name in [name for name in sys.modules if name.startswith("readme_feeds")]:
        del sys.modules[name]
    importlib.invalidate_caches()


def test_the_example_feed_of_the_readme_publishes_quarantines_and_tags(feed, tmp_path):
    landing = tmp_path / "landing" / "sign_ups"
    landing.mkdir(parents=True)
    header = "card_id,store_id,signed_on,email,points\n"
    good = "".join(f"{n},1,2024-05-01,a@b.c,10\n" for n in range(1, 18))
    (landing / "2024-05-01.csv").write_text(header + good + "18,1,2024-05-01,nobody,10\n19,1,2024-05-01,,501\n")
    (landing / "2024-05-02.csv").write_text(header + "30,2,2024-05-02,a@b.c,10\n")
    run = Run(Lake(tmp_path / "lake"), LandingZone(tmp_path / "landing"))
    days = ["2024-05-01", "2024-05-02"]
    reports = {table.path: refine(table, days, run) for table in feed.tables}
    assert {path: report.name for path, report in reports.items()} == {
        "bronze/sign_ups": "COMPLETE",
        "silver/sign_ups": "COMPLETE",
        "gold/sign_ups_7d": "COMPLETE",
    }
    outcome = reports["silver/sign_ups"].outcomes["2024-05-01"]
    assert isinstance(outcome, Committed)
    verdict = outcome.verdict
    assert (verdict.read, verdict.accepted, verdict.quarantined) == (19, 18, 1)
    assert verdict.quarantined_by_rule == {"points.le": 1}
    rows = pl.read_delta(str(tmp_path / "lake/silver/sign_ups"))
    assert rows.filter(pl.col("card_id") == 18).get_column("_warnings").to_list() == [["email.str_contains"]]
    week = pl.read_delta(str(tmp_path / "lake/gold/sign_ups_7d")).sort("day", "store_id")
    assert week.select("store_id", "cards").rows() == [(1, 18), (1, 18), (2, 1)]
