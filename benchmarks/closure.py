"""What a correction costs: executing its plan against rebuilding everything, by number of partitions.

    python -m benchmarks.closure [--quick]

Days of sales from CSV files to silver, totals of the day, of the trailing week and of the month. One day's file is
corrected. Ours plans from what the lake holds and executes that; the other way builds every table anew into an empty
lake, with the same engine and the same settings, in one run. The two are run in turn on the same files, both flushing
to the disk, and hold the same digests afterwards. The last line is one JSON object: rebuilding divided by the closure,
planning included, for 10, 50 and 200 days.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.plan import correct, make_tables
from medallion.execution import execute
from medallion.lake import Lake
from medallion.partitions import Partitioning
from medallion.planning import plan
from medallion.project import Project
from medallion.refine import Run, refine
from medallion.sources import LandingZone

_ROWS = 4_000
"""A day of the retail example."""


def _deliver(landing: Path, day: str, first: int) -> None:
    rows = [f"{number},{1 + number % 10},{(first + number) % 7}" for number in range(1, _ROWS + 1)]
    (landing / "sales").mkdir(parents=True, exist_ok=True)
    (landing / "sales" / f"{day}.csv").write_text("\n".join(["sale_id,product_id,units", *rows]) + "\n")


def _rebuild(project: Project, run: Run) -> None:
    for table in project.tables:
        report = refine(table, table.partition.keys(), run)
        assert report.name == "COMPLETE", report.errors


def _contents(project: Project, lake: Lake) -> dict[str, dict[str, str | None]]:
    pinned = {table.path: lake.pin(table.path, table.partition) for table in project.tables}
    return {path: {key: snapshot.content(key) for key in snapshot.files} for path, snapshot in pinned.items()}


def compare(folder: Path, days: int, times: int) -> tuple[float, float, int]:
    """The medians of both ways in seconds, and how many partitions the closure has."""
    landing = folder / "landing"
    project = Project(make_tables(days))
    cut: Partitioning = project.table("bronze/sales").partition
    for number, day in enumerate(cut.keys()):
        _deliver(landing, day, number)
    correct(landing, "FOOD")
    zone = LandingZone(landing)
    run = Run(Lake(folder / "lake"), zone)
    _rebuild(project, run)
    closure, full, visited = [], [], 0
    for turn in range(times + 1):
        _deliver(landing, cut.keys()[days // 2], 1000 + turn)
        start = time.perf_counter()
        made = plan(project, run.lake, zone)
        reports = execute(made, project, run)
        spent = time.perf_counter() - start
        assert {report.name for report in reports} == {"COMPLETE"}
        visited = made.partitions
        other = Run(Lake(folder / "other"), zone)
        start = time.perf_counter()
        _rebuild(project, other)
        if turn:  # the first one warms up
            closure.append(spent)
            full.append(time.perf_counter() - start)
        assert _contents(project, run.lake) == _contents(project, other.lake)
        shutil.rmtree(folder / "other")
    shutil.rmtree(folder)
    return statistics.median(closure), statistics.median(full), visited


def main() -> None:
    """Measure, print a line for each, and the ratios as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    quick = parser.parse_args().quick
    ratios: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for days in (10, 50, 200):
            closure, full, visited = compare(Path(folder) / str(days), days, 2 if quick else 7)
            print(
                f"{days:4} days: closure of one corrected day ({visited} partitions) {closure * 1000:7.0f} ms   "
                f"everything anew {full * 1000:7.0f} ms   {full / closure:5.1f}x"
            )
            ratios[f"full_vs_closure_{days}"] = round(full / closure, 2)
    print(json.dumps(ratios))


if __name__ == "__main__":
    main()
