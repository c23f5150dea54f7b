"""How large a slice should be: time and commits of a range, and what a kill in the middle costs, by slice size.

    python -m benchmarks.slices [--quick]

A slice is one commit, so it is the checkpoint: a smaller one means less to do again after a crash, and more commits.
Days of sales are taken from CSV files to silver by a process of its own, for each size once undisturbed and once killed
(SIGKILL) when half of silver's slices are committed, in the middle of the next one. Then the same plan is executed
again. Rows redone are those of silver that were read by both executions. The last line is one JSON object.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from benchmarks.plan import correct, make_tables
from medallion.lake import Lake
from medallion.planning import plan
from medallion.project import Project
from medallion.sources import LandingZone

_KIB = 1024
_WORKER = """
import json, sys, time
from pathlib import Path
from benchmarks.plan import make_tables
from medallion.execution import execute
from medallion.lake import Lake
from medallion.outcomes import Committed
from medallion.plan import Plan
from medallion.project import Project
from medallion.refine import Run
from medallion.sources import LandingZone

folder, days = Path(sys.argv[1]), int(sys.argv[2])
project = Project(make_tables(days))
run = Run(Lake(folder / "lake"), LandingZone(folder / "landing"))
made = Plan.from_json((folder / "plan.json").read_text())
started = time.perf_counter()
reports = execute(made, project, run)
assert all(report.name == "COMPLETE" for report in reports)
spent = time.perf_counter() - started
(silver,) = [report for report in reports if report.table == "silver/sales"]
rows = sum(each.verdict.read for each in silver.outcomes.values() if isinstance(each, Committed))
print(json.dumps({"seconds": spent, "rows": rows}))
"""


def _deliver(landing: Path, days: tuple[str, ...], rows: int) -> None:
    (landing / "sales").mkdir(parents=True)
    for first, day in enumerate(days):
        lines = [f"{number},{1 + number % 10},{(first + number) % 7}" for number in range(1, rows + 1)]
        (landing / "sales" / f"{day}.csv").write_text("\n".join(["sale_id,product_id,units", *lines]) + "\n")
    correct(landing, "FOOD")


def _start(folder: Path, days: int, points: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _WORKER, str(folder), str(days)],
        capture_output=True, text=True, check=False, env={**os.environ, "MEDALLION_FAILPOINTS": points},
    )  # fmt: skip


def _told(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def measure(landing: Path, folder: Path, project: Project, slice_bytes: int) -> dict[str, Any]:
    """One size: time and commits of an undisturbed execution, time and rows of one that was killed and resumed."""
    folder.mkdir()
    (folder / "landing").symlink_to(landing, target_is_directory=True)
    wanted = [project.table(path) for path in ("bronze/products", "silver/products", "bronze/sales", "silver/sales")]
    days = len(wanted[-1].partition.keys())
    small = Project(tuple(wanted))
    made = plan(small, Lake(folder / "lake"), LandingZone(landing), slice_bytes=slice_bytes)
    (folder / "plan.json").write_text(made.to_json())
    told = _told(_start(folder, days))
    lake, silver = Lake(folder / "lake"), wanted[-1]
    commits = lake.pin(silver.path, silver.partition).commits(None) or []
    total = told["rows"]

    # "quarantine committed" is reached by silver alone, once a slice: after so many of them the next one is half done.
    middle = len(commits) // 2 + 1 + 1  # the catalogue's comes first
    shutil.rmtree(folder / "lake")
    killed = time.perf_counter()
    assert _start(folder, days, f"quarantine committed:{middle}=kill").returncode == -9
    killed = time.perf_counter() - killed
    lake = Lake(folder / "lake")
    done = {key for each in lake.pin(silver.path, silver.partition).commits(None) or [] for key in each.batches}
    resumed = _told(_start(folder, days))
    per_day = total // days
    started = min(days, len(done) + max(len(each.batches) for each in commits))
    redone = resumed["rows"] - (days - started) * per_day
    shutil.rmtree(folder)
    return {
        "slice_kib": slice_bytes // _KIB,
        "commits": len(commits),
        "seconds": round(told["seconds"], 3),
        "rows_redone": redone,
        "rows": total,
        "resume_seconds": round(resumed["seconds"], 3),
    }


def main() -> None:
    """Measure each size, print a table for people, and JSON as the last line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer days and rows")
    quick = parser.parse_args().quick
    days, rows = (60, 1_000) if quick else (360, 4_000)
    project = Project(make_tables(days))
    day_bytes = (rows + 1) * 7 * 16  # seven columns of bronze, by the engine's own estimate
    sizes = [day_bytes * count for count in ((1, 8, 60) if quick else (1, 4, 16, 64, 180, 360))]
    found = []
    with tempfile.TemporaryDirectory() as folder:
        landing = Path(folder) / "landing"
        _deliver(landing, project.table("bronze/sales").partition.keys(), rows)
        for number, size in enumerate(sizes):
            found.append(measure(landing, Path(folder) / str(number), project, size))
    table = RichTable(title=f"{days} days of {rows:,} rows, files to silver (load {os.getloadavg()[0]:.1f})")
    for name in ("slice, MiB", "commits", "seconds", "against the fastest", "rows redone after a kill", "of all"):
        table.add_column(name, justify="right")
    fastest = min(each["seconds"] for each in found)
    for each in found:
        table.add_row(
            f"{each['slice_kib'] / _KIB:,.1f}", f"{each['commits']:,}", f"{each['seconds']:.2f}",
            f"{each['seconds'] / fastest:.2f}x", f"{each['rows_redone']:,}",
            f"{each['rows_redone'] / each['rows']:.0%}",
        )  # fmt: skip
    Console().print(table)
    print(json.dumps({"slices": found}))


if __name__ == "__main__":
    main()
