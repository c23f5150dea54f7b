"""A deliberately wrong revision publishes a year: found, inspected, restored, verified, and what it was before."""

import datetime as dt
from collections.abc import Mapping
from pathlib import Path

import polars as pl
import pytest

from medallion import savepoints
from medallion.comparison import compare
from medallion.contract import Contract, field
from medallion.lake import Lake
from medallion.partitions import Daily
from medallion.past_states import of_savepoint
from medallion.project import Project
from medallion.refine import Run, refine
from medallion.restore import RECOVERED, restore
from medallion.sources import LandingZone
from medallion.tables import bronze, gold, silver
from medallion.verify import verify

YEAR = Daily("day", start="2017-01-01", end="2018-01-01")
DAYS = YEAR.keys()


class Sale(Contract):
    """One sale."""

    sale_id: int = field(gt=0)
    cents: int = field(ge=0)


class Total(Contract):
    """A day's sales."""

    shop: str = field()
    cents: int = field(ge=0)


def declare(revision: int, factor: int) -> Project:
    """The shop's tables; a factor other than 1 is wrong, and breaks no rule."""
    raw = bronze("sales", source="sales/{day}.csv", partition=YEAR)

    @silver(raw=raw, contract=Sale, key=["sale_id"], partition=YEAR, partitionwise=True, revision=revision)
    def sales(raw: pl.LazyFrame) -> pl.LazyFrame:
        """Sales, in cents."""
        return raw.with_columns((pl.col("cents").cast(pl.Int64) * factor).cast(pl.String))

    @gold(lines=sales, contract=Total, key=["shop"], partition=YEAR, partitionwise=True)
    def totals(lines: pl.LazyFrame) -> pl.LazyFrame:
        """Cents by day."""
        return lines.group_by("day").agg(shop=pl.lit("one"), cents=pl.col("cents").sum())

    return Project((raw, sales, totals))


def publish(project: Project, run: Run) -> None:
    for table in project.tables:
        assert refine(table, DAYS, run).name == "COMPLETE"


def contents(lake: Lake, project: Project) -> Mapping[str, Mapping[str, str | None]]:
    pins = {table.path: lake.pin(table.path, YEAR) for table in project.tables}
    return {path: {key: each.content(key) for key in each.files} for path, each in pins.items()}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    folder = tmp_path / "landing" / "sales"
    folder.mkdir(parents=True)
    for number, day in enumerate(DAYS):
        (folder / f"{day}.csv").write_text(f"sale_id,cents\n1,{100 + number}\n2,{200 + number}\n")
    return Run(Lake(tmp_path / "lake", durable=False), LandingZone(tmp_path / "landing"))


def test_a_wrong_revision_of_a_year_is_found_taken_back_and_proven(run: Run):
    good = declare(revision=1, factor=1)
    publish(good, run)
    lake = run.lake
    before = contents(lake, good)
    savepoint = savepoints.automatic(good, lake, "before the backfill of revision 2")

    publish(declare(revision=2, factor=10), run)
    wrong = contents(lake, good)
    assert all(wrong["gold/totals"][day] != before["gold/totals"][day] for day in DAYS)

    found = compare(good, lake, "silver/sales", savepoint.name)
    assert len(found.partitions) == 365
    assert found.columns == {"cents": 730}
    assert found.totals["cents"][1] == 10 * found.totals["cents"][0]

    decided = dt.datetime.now(dt.UTC)
    told = restore(
        good, lake, of_savepoint(good, lake, savepoint.name), reason="revision 2 is wrong", decided_at=decided
    )
    assert told.outcome == RECOVERED
    assert {path: len(keys) for path, keys in told.replaced.items()} == {"silver/sales": 365, "gold/totals": 365}
    assert contents(lake, good) == before
    assert verify(good, lake).reconciled
    assert told.stale == {}
    # The clock: from the decision to the moment at which verification had found everything in place.
    assert dt.timedelta(seconds=told.seconds) <= dt.datetime.now(dt.UTC) - decided
    # Nothing that a source delivered is lost: bronze stands as it was.
    assert "bronze/sales" not in told.replaced
    print(f"\nRTO of 365 days in 2 tables: {told.seconds:.2f} s; {told.rows} rows put back")

    third = declare(revision=3, factor=1)  # the fix is deployed under a revision of its own
    publish(third, run)
    assert contents(lake, third)["gold/totals"] == before["gold/totals"]
