"""What it takes to ask a large lake how it stands: ``medallion status`` on 10,000 partitions in five tables.

    python -m benchmarks.status [--quick] [--times N]

The command runs as an operator runs it, in a process of its own: import, declarations, every table pinned, every
partition folded from its files and evidence, the ledger read. The last line is one JSON object: ``status_10k_s`` is the
median of its wall time in seconds.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from medallion.lake import Lake
from medallion.project import load_project
from medallion.refine import Run, refine
from medallion.sources import LandingZone

_FEED = '''"""Readings of many meters."""

import polars as pl

from medallion.contract import Contract, field
from medallion.partitions import Hourly
from medallion.tables import bronze, gold, silver

HOUR = Hourly("hour", start="2017-01-01", end="{end}")


class Reading(Contract):
    """One reading of one meter."""

    meter: int = field(gt=0)
    value: float = field(ge=0)


class Total(Contract):
    """All readings of an hour."""

    meters: int = field(ge=0)
    value: float = field(ge=0)


class Maximum(Contract):
    """The highest reading of an hour."""

    meter: int = field(gt=0)


class Share(Contract):
    """What the meters have read in the mean."""

    meters: int = field(ge=0)


raw = bronze("readings", source="readings/{{hour}}.csv", partition=HOUR)


@silver(raw=raw, contract=Reading, key=["meter"], partition=HOUR, partitionwise=True, max_quarantined=0.9)
def readings(raw: pl.LazyFrame) -> pl.LazyFrame:
    """Typed readings."""
    return raw


@gold(lines=readings, contract=Total, key=["meters"], partition=HOUR, partitionwise=True)
def totals(lines: pl.LazyFrame) -> pl.LazyFrame:
    """All readings of an hour."""
    return lines.group_by("hour").agg(meters=pl.len().cast(pl.Int64), value=pl.col("value").sum())


@gold(lines=readings, contract=Maximum, key=["meter"], partition=HOUR, partitionwise=True)
def highest(lines: pl.LazyFrame) -> pl.LazyFrame:
    """The highest meter of an hour."""
    return lines.group_by("hour").agg(pl.col("meter").max())


@gold(totals=totals, contract=Share, key=["meters"], partition=HOUR, partitionwise=True)
def counts(totals: pl.LazyFrame) -> pl.LazyFrame:
    """How many meters were read."""
    return totals.select("hour", "meters")
'''


def build(folder: Path, end: str) -> int:
    """A project folder with its landing zone and its lake; how many partitions the lake holds."""
    feeds = folder / "meter_feeds"
    feeds.mkdir(parents=True)
    (feeds / "__init__.py").write_text("")
    (feeds / "meters.py").write_text(_FEED.format(end=end))
    (folder / "pyproject.toml").write_text('[tool.medallion]\nfeeds = "meter_feeds"\n')
    (folder / "landing/readings").mkdir(parents=True)
    sys.path.insert(0, str(folder))
    tables = load_project("meter_feeds").tables
    for number, key in enumerate(tables[0].partition.keys()):
        refused = "9,-1\n" if number % 50 == 0 else ""
        (folder / f"landing/readings/{key}.csv").write_text(f"meter,value\n1,{number}\n2,3.5\n{refused}")
    run = Run(Lake(folder / "lake", durable=False), LandingZone(folder / "landing"))
    committed = 0
    for table in tables:
        report = refine(table, table.partition.keys(), run)
        assert report.name == "COMPLETE", report.errors
        committed += len(report.published)
    return committed


def seconds(folder: Path, *words: str) -> float:
    """The wall time of the command, process start included."""
    command = [sys.executable, "-c", "from medallion.cli import main; main()", *words]
    path = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MEDALLION_")}
    start = time.perf_counter()
    done = subprocess.run(
        command, cwd=folder, env={**environment, "PYTHONPATH": path}, capture_output=True, check=False
    )
    spent = time.perf_counter() - start
    assert done.returncode == 0, done.stderr.decode() + done.stdout.decode()
    return spent


def main() -> None:
    """Measure, print a line, and one JSON object as the last one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a tenth of the partitions")
    parser.add_argument("--times", type=int, default=5, help="how often the command runs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        partitions = build(folder, "2017-01-10" if options.quick else "2017-03-26")
        spent = [seconds(folder, "status", "--json") for _ in range(options.times)]
        bare = seconds(folder, "--help")
    print(f"{partitions:,} partitions: {statistics.median(spent):.2f} s (the command alone {bare:.2f} s, "
          f"load {os.getloadavg()[0]:.1f})")  # fmt: skip
    print(json.dumps({"status_10k_s": round(statistics.median(spent), 3)}))


if __name__ == "__main__":
    main()
