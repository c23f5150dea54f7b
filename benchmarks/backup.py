"""What the next backup costs against the first: a year of days, of which one was delivered again.

    python -m benchmarks.backup [--quick]

Both write a manifest of every file and flush everything to the disk. The last line is one JSON object:
``incremental_vs_full`` is the time of the next backup divided by that of the first, in medians.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl

from benchmarks.commit import YEAR, commit
from medallion.backup import backup
from medallion.lake import Lake
from medallion.tables import bronze


def measure(*, quick: bool = False) -> float:
    """The time of an incremental backup divided by that of a full one, of the same lake."""
    days = YEAR.keys()[: 60 if quick else None]
    table = bronze("purchases", source="{day}.csv", partition=YEAR)
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(Path(folder) / "lake")
        for start in range(0, len(days), 30):
            commit(table, lake, _rows(days[start : start + 30], 0), days[start : start + 30])
        full, incremental = [], []
        for number in range(3):
            place = Path(folder) / "backup"
            full.append(_seconds(lambda place=place: backup(lake, place)))
            commit(table, lake, _rows(days[:1], number + 1), days[:1])
            incremental.append(_seconds(lambda place=place: backup(lake, place)))
            shutil.rmtree(place)
    return statistics.median(incremental) / statistics.median(full)


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
    """Measure, and print one JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two months instead of twelve")
    options = parser.parse_args()
    print(json.dumps({"incremental_vs_full": round(measure(quick=options.quick), 3)}))


if __name__ == "__main__":
    main()
