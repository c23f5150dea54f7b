"""What the next backup costs against the first, and how long a lake takes to come back from one.

    python -m benchmarks.backup [--quick]

A year of days, of which one is delivered again between the two backups. Both write a manifest of every file and flush
everything to the disk. Then the root is deleted and restored into an empty one, every file compared with its SHA-256
twice and every table with its rows and digests: the recovery time. The last line is one JSON object:
``incremental_vs_full`` is the time of the next backup divided by that of the first, in medians; ``recovery_vs_full`` is
the recovery time divided by that of the first backup.
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
from rich.console import Console
from rich.table import Table

from benchmarks.commit import YEAR, commit
from medallion.backup import backup
from medallion.lake import Lake
from medallion.recovery import restore_backup
from medallion.tables import bronze


def measure(*, quick: bool = False) -> float:
    """The time of an incremental backup divided by that of a full one, of the same lake."""
    full, incremental, _ = _seconds_of(quick=quick)
    return incremental / full


def _seconds_of(*, quick: bool) -> tuple[float, float, float]:
    """Seconds of a full backup, of an incremental one and of a recovery, in medians."""
    days = YEAR.keys()[: 60 if quick else None]
    table = bronze("purchases", source="{day}.csv", partition=YEAR)
    times: list[tuple[float, float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(Path(folder) / "lake")
        for start in range(0, len(days), 30):
            commit(table, lake, _rows(days[start : start + 30], 0), days[start : start + 30])
        for number in range(3):
            place, copy = Path(folder) / "backup", Path(folder) / "copy"
            full = _seconds(lambda place=place: backup(lake, place))
            commit(table, lake, _rows(days[:1], number + 1), days[:1])
            incremental = _seconds(lambda place=place: backup(lake, place))
            times.append((full, incremental, restore_backup(place, copy).seconds))
            shutil.rmtree(place)
            shutil.rmtree(copy)
    full, incremental, recovery = (statistics.median(each) for each in zip(*times, strict=True))
    return full, incremental, recovery


def _rows(days: tuple[str, ...], price: int) -> pl.DataFrame:
    """4,000 purchases a day, about as many as the retail year has."""
    count = 4_000 * len(days)
    numbers = pl.int_range(count, eager=True)
    return pl.DataFrame(
        {
            "basket_id": numbers // 7,
            "product_id": (numbers * 7919) % 92_331,
            "sales_value": (numbers * 31 % 10_007) / 100 + price,
            "day": YEAR.series(list(days)).repeat_by(4_000).explode(),
        }
    )


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    """Measure, print a table, and one JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two months instead of twelve")
    options = parser.parse_args()
    full, incremental, recovery = _seconds_of(quick=options.quick)
    shown = Table(title=f"A backup and a recovery of a year of days (load {os.getloadavg()[0]:.1f})")
    shown.add_column("what")
    shown.add_column("seconds, median", justify="right")
    for what, seconds in (("first backup", full), ("next backup", incremental), ("recovery, verified", recovery)):
        shown.add_row(what, f"{seconds:.2f}")
    Console().print(shown)
    ratios = {"incremental_vs_full": incremental / full, "recovery_vs_full": recovery / full}
    print(json.dumps({name: round(ratio, 3) for name, ratio in ratios.items()}))


if __name__ == "__main__":
    main()
