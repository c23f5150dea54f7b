"""The retail year, from landing files to gold: the engine's data work against one plain script on the same files.

The engine also builds the seven-day and the monthly table, checks every rule, keeps the source bytes, quarantines with
reasons, records the evidence of every partition and flushes everything to the disk; the script does none of that.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

_OURS = """
import sys, time
from pathlib import Path
from medallion.lake import Lake
from medallion.project import load_project
from medallion.pipeline import refine_all
from medallion.refine import Run
from medallion.sources import LandingZone

tables = [table for table in load_project("assets.feeds").tables if "promotion" not in table.name]
run = Run(Lake(sys.argv[2]), LandingZone(sys.argv[1]))
keys = {table.path: [key for key in table.partition.keys() if key < sys.argv[3] or key == "all"] for table in tables}
started = time.perf_counter()
for report in refine_all({table: keys[table.path] for table in tables}, run).values():
    assert report.name == "COMPLETE", report.errors
print(time.perf_counter() - started)
"""


def main() -> None:
    """Measure, print a table, and one JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two months instead of twelve")
    parser.add_argument("--pairs", type=int, default=3, help="how often each of the two runs, in turn")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        landing, until = landing_zone(Path(folder), quick=options.quick)
        pairs = [_pair(landing, Path(folder), until) for _ in range(options.pairs)]
    plain = statistics.median(pair[0] for pair in pairs)
    ours = statistics.median(pair[1] for pair in pairs)
    ratio = statistics.median(ours / plain for plain, ours in pairs)
    table = Table(title=f"Data work, landing to gold, without promotions (load {os.getloadavg()[0]:.1f})")
    table.add_column("what")
    table.add_column("seconds, median", justify="right")
    table.add_row("plain script", f"{plain:.2f}")
    table.add_row("medallion", f"{ours:.2f}")
    Console().print(table)
    print(json.dumps({"data_vs_plain_script": round(ratio, 3)}))


def landing_zone(folder: Path, *, quick: bool) -> tuple[Path, str]:
    """The landing zone, and the first key that is left out."""
    landing = folder / "landing"
    subprocess.run([sys.executable, "-m", "resources.retail", "--landing", landing], check=True, capture_output=True)
    shutil.rmtree(landing / "promotions")
    until = "2017-03-01" if quick else "2018-01-01"
    for path in (landing / "transactions").iterdir():
        if path.stem >= until:
            path.unlink()
    return landing, until


def _pair(landing: Path, folder: Path, until: str) -> tuple[float, float]:
    """Seconds of the plain script and of the engine, one after the other, each in a process of its own."""
    peer: list[str | Path] = [sys.executable, "-m", "benchmarks.peer_plain_script", landing, folder / "plain"]
    ours: list[str | Path] = [sys.executable, "-c", _OURS, landing, folder / "lake", until]
    shutil.rmtree(folder / "lake", ignore_errors=True)
    return _seconds(peer), _seconds(ours)


def _seconds(command: list[str | Path]) -> float:
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


if __name__ == "__main__":
    main()
