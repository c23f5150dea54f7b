"""Memory and time as a table grows: promotions, 20.9 million rows, and the year's transactions repeated to 100 million.

    python -m benchmarks.scale [--quick]

Each is brought from its landing files through bronze to silver with its contract, key and quarantine, in a process of
its own whose peak memory is taken from the system. The repeated months are links to the same twelve files, so that the
data is real and the disk holds it once; what is written is written in full. A range is cut into slices of estimated
bytes, which bounds memory: the bound of the run is ``PEAK_MIB``.

The last line is one JSON object: the peak of the largest table in MiB; the time for 100 million rows divided by ten
times the time for 10 million; and the seconds to plan 10,000 partitions of one table, from ``benchmarks.plan``.
"""

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import polars as pl
from rich.console import Console
from rich.table import Table

PEAK_MIB = 2560
"""The bound that the configuration is made for: slices of 512 MiB, of which five fit."""
_SLICE_MIB = 512

_PROMOTIONS = """
import resource, sys, time
from medallion.lake import Lake
from medallion.project import load_project
from medallion.refine import Run, refine
from medallion.sources import LandingZone

project = load_project("assets.feeds")
run = Run(Lake(sys.argv[2]), LandingZone(sys.argv[1]), slice_bytes=int(sys.argv[3]) * 2**20)
started, rows = time.perf_counter(), 0
for path in ("bronze/products", "silver/products", "bronze/promotions", "silver/promotions"):
    table = project.table(path)
    report = refine(table, table.partition.keys(), run)
    assert report.name == "COMPLETE", report.errors
rows = sum(each.verdict.read for each in report.outcomes.values())
print(rows, time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
_TRANSACTIONS = """
import resource, sys, time
import polars as pl
from medallion.contract import INFO, WARNING, Contract, field, rule
from medallion.lake import Lake
from medallion.partitions import Keys
from medallion.refine import Run, refine
from medallion.sources import LandingZone
from medallion.tables import bronze, silver

MONTHS = Keys("month", tuple(sys.argv[4].split(",")))

class Line(Contract):
    household_id: int = field(gt=0)
    store_id: int = field(gt=0)
    basket_id: int = field(gt=0)
    product_id: int = field(gt=0)
    quantity: int = field(gt=0)
    sales_value: float = field(ge=0, gt=0, severity={"gt": WARNING})
    retail_disc: float = field(ge=0)
    coupon_disc: float = field(ge=0)
    coupon_match_disc: float = field(ge=0)
    week: int = field(in_range=(1, 53))

    @rule(INFO)
    def sold_by_piece(rows):
        return (rows.quantity <= 100) | (rows.sales_value >= rows.quantity * 0.01)

    @rule(WARNING)
    def coupon_within_price(rows):
        return rows.coupon_disc <= rows.sales_value

raw = bronze("lines", source="{month}.csv", partition=MONTHS)

@silver(raw=raw, contract=Line, key=["basket_id", "product_id"], partition=MONTHS, partitionwise=True)
def lines(raw: pl.LazyFrame) -> pl.LazyFrame:
    return raw

run = Run(Lake(sys.argv[2]), LandingZone(sys.argv[1]), slice_bytes=int(sys.argv[3]) * 2**20)
started = time.perf_counter()
for table in (raw, lines):
    report = refine(table, MONTHS.keys(), run)
    assert report.name == "COMPLETE", report.errors
rows = sum(each.verdict.read for each in report.outcomes.values())
print(rows, time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def main() -> None:
    """Measure, print a table, and one JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="1 and 10 million rows, and no promotions")
    quick = parser.parse_args().quick
    table = Table(title=f"Landing to silver, slices of {_SLICE_MIB} MiB (load {os.getloadavg()[0]:.1f})")
    for column in ("what", "rows", "seconds", "million rows a second", "peak MiB"):
        table.add_column(column, justify="left" if column == "what" else "right")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        landing = folder / "landing"
        subprocess.run(
            [sys.executable, "-m", "resources.retail", "--landing", landing], check=True, capture_output=True
        )
        months = _months(landing, folder / "months")
        small = _measure(table, folder, months, 1_000_000 if quick else 10_000_000)
        large = _measure(table, folder, months, 10_000_000 if quick else 100_000_000)
        peaks = [large[2]]
        if not quick:
            peaks.append(_row(table, "promotions", folder, _PROMOTIONS, landing)[2])
    Console().print(table)
    linear = (large[1] / large[0]) / (small[1] / small[0])
    print(
        json.dumps(
            {
                "peak_mib_100m": round(max(peaks)),
                "time_100m_vs_10x_10m": round(linear, 3),
                "plan_10k_s": _plan(quick=quick),
                "bound_mib": PEAK_MIB,
            }
        )
    )


def _months(landing: Path, folder: Path) -> dict[str, int]:
    """The year's transactions as one file a month; how many rows each has."""
    folder.mkdir()
    found = {}
    for month in range(1, 13):
        name = f"2017-{month:02}"
        rows = pl.concat(
            pl.read_csv(path, infer_schema=False) for path in sorted((landing / "transactions").glob(f"{name}-*.csv"))
        )
        rows.write_csv(folder / f"{name}.csv")
        found[name] = rows.height
    return found


def _measure(table: Table, folder: Path, months: dict[str, int], rows: int) -> tuple[float, float, float]:
    """So many rows, as months that are repeated."""
    landing = folder / "repeated"
    landing.mkdir()
    keys, total = [], 0
    while total < rows:
        month = list(months)[len(keys) % 12]
        key = f"{len(keys) // 12:03}-{month}"
        (landing / f"{key}.csv").symlink_to(folder / "months" / f"{month}.csv")
        keys.append(key)
        total += months[month]
    found = _row(table, f"transactions, {len(keys)} months", folder, _TRANSACTIONS, landing, ",".join(keys))
    shutil.rmtree(landing)
    return found


def _row(
    table: Table, what: str, folder: Path, code: str, landing: Path, *arguments: str
) -> tuple[float, float, float]:
    """Rows, seconds and peak MiB of a process."""
    lake = folder / "lake"
    command = [sys.executable, "-c", code, str(landing), str(lake), str(_SLICE_MIB), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    shutil.rmtree(lake)
    rows, seconds, peak = map(float, done.stdout.split()[-3:])
    table.add_row(what, f"{rows:,.0f}", f"{seconds:.1f}", f"{rows / seconds / 1e6:.2f}", f"{peak:,.0f}")
    return rows, seconds, peak


def _plan(*, quick: bool) -> float | None:
    """What `benchmarks.plan` measures of a table of 10,000 partitions."""
    if importlib.util.find_spec("benchmarks.plan") is None:
        return None
    command = [sys.executable, "-m", "benchmarks.plan", *(["--quick"] if quick else [])]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: float | None = json.loads(done.stdout.splitlines()[-1]).get("plan_10k_s")
    return found


if __name__ == "__main__":
    main()
