"""Recovering the retail year: a restore against a rebuild from bronze, and the next backup against the first.

    python -m benchmarks.recovery [--quick]

A wrong revision of one silver table publishes the whole year, and everything that is built from it follows. The same
lake is then brought back in two ways: restored to a savepoint, and rebuilt from bronze by the right revision. Both end
with a verification of the tables concerned, and in the same digests. The last line is one JSON object:
``restore_vs_rebuild`` is the time of the one divided by that of the other, from the decision to the proof;
``incremental_vs_full`` is told by ``benchmarks.backup``.
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl
from rich.console import Console
from rich.table import Table as RichTable

from benchmarks import backup
from benchmarks.year import landing_zone
from medallion import savepoints
from medallion.lake import Lake
from medallion.past_states import of_savepoint
from medallion.project import Project, load_project
from medallion.refine import Run, refine
from medallion.restore import RECOVERED, restore
from medallion.sources import LandingZone
from medallion.tables import Table
from medallion.verify import verify

SPOILT = "silver/transactions"


def wrong(raw: pl.LazyFrame) -> pl.LazyFrame:
    """Every price a cent too high: no rule finds it."""
    return raw.rename({"transaction_timestamp": "sold_at"}).with_columns(
        (pl.col("sales_value").cast(pl.Float64) + 0.01).cast(pl.String)
    )


def main() -> None:
    """Measure, print a table, and one JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="two months instead of twelve")
    parser.add_argument("--pairs", type=int, default=3, help="how often each of the two runs, in turn")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        base = _spoilt(Path(folder), quick=options.quick)
        pairs = [_pair(base, Path(folder)) for _ in range(options.pairs)]
    restored, rebuilt = (statistics.median(pair[each] for pair in pairs) for each in (0, 1))
    ratio = statistics.median(pair[0] / pair[1] for pair in pairs)
    shown = RichTable(title=f"From the decision to the proof, without promotions (load {os.getloadavg()[0]:.1f})")
    shown.add_column("what")
    shown.add_column("seconds, median", justify="right")
    shown.add_row("restore to the savepoint, and verify", f"{restored:.2f}")
    shown.add_row("rebuild from bronze, and verify", f"{rebuilt:.2f}")
    Console().print(shown)
    incremental = backup.measure(quick=options.quick)
    print(json.dumps({"restore_vs_rebuild": round(ratio, 3), "incremental_vs_full": round(incremental, 3)}))


def _project() -> Project:
    return Project(tuple(table for table in load_project("assets.feeds").tables if "promotion" not in table.name))


def _concerned(project: Project) -> list[Table]:
    """The spoilt table, and what is built from it."""
    found: list[Table] = []
    for table in project.tables:
        if table.path == SPOILT or any(each.table in found for each in table.inputs.values()):
            found.append(table)
    return found


def _publish(tables: Sequence[Table], run: Run, until: str) -> None:
    for table in tables:
        keys = [key for key in table.partition.keys() if key < until or key == "all"]  # noqa: SIM118
        report = refine(table, keys, run)
        assert report.name == "COMPLETE", report.errors


def _spoilt(folder: Path, *, quick: bool) -> tuple[Path, Path, str]:
    """A lake with a savepoint of the right year, in which the wrong one is live."""
    landing, until = landing_zone(folder, quick=quick)
    project, lake = _project(), Lake(folder / "base")
    run = Run(lake, LandingZone(landing))
    _publish(project.tables, run, until)
    savepoints.create(project, lake, "right")
    concerned = _concerned(project)
    _publish([replace(concerned[0], transform=wrong, revision=2), *concerned[1:]], run, until)
    return folder / "base", landing, until


def _pair(base: tuple[Path, Path, str], folder: Path) -> tuple[float, float]:
    """Seconds of a restore and of a rebuild of the same lake."""
    root, landing, until = base
    seconds = []
    for name, recover in (("restored", _restore), ("rebuilt", _rebuild)):
        shutil.copytree(root, folder / name)
        os.sync()
        project, run = _project(), Run(Lake(folder / name), LandingZone(landing))
        started = time.perf_counter()
        recover(project, run, until)
        seconds.append(time.perf_counter() - started)
        right = savepoints.read(run.lake, "right")
        for table in _concerned(project):
            rows = run.lake.pin(table.path, table.partition).scan(table.partition.keys()).collect()
            was = right.snapshot(run.lake, table.path, table.partition).scan(table.partition.keys()).collect()
            assert rows.equals(was), f"{table.path} was not recovered"
        shutil.rmtree(folder / name)
    return seconds[0], seconds[1]


def _restore(project: Project, run: Run, until: str) -> None:
    told = restore(project, run.lake, of_savepoint(project, run.lake, "right"), reason="revision 2 is wrong")
    assert told.outcome == RECOVERED, told.differences


def _rebuild(project: Project, run: Run, until: str) -> None:
    concerned = _concerned(project)
    fixed = replace(concerned[0], revision=3)
    _publish([fixed, *concerned[1:]], run, until)
    tables = tuple(fixed if table.path == SPOILT else table for table in project.tables)
    found = verify(Project(tables), run.lake, [table.path for table in concerned])
    assert found.reconciled, found.differences


if __name__ == "__main__":
    main()
