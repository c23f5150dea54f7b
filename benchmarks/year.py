"""The retail year, from landing files to gold: against Dagster's own Delta IO manager and one plain script.

    python -m benchmarks.year [--quick]

All on the same CSV landing zone, without promotions, which the peers do not have. The engine also builds the seven-day
and the monthly table, checks every rule, keeps the source bytes, quarantines with reasons, records the evidence and the
checks of every partition and flushes everything to the disk; the peers do none of that.

Measured are, each beside the plain script in the same run where that is what it is compared with:

- *data*: the engine's work alone, in its process, and the script's;
- *command*: the process of ``make run`` after set-up, start, evidence and Dagster's events included, and the script's
  process; and that command again after one day's file was corrected, which makes the day and what is built from it;
- *daemon*: a backfill of the year, clicked: real webserver and daemon, polling every second, from the launch to the
  end; the two references are in place before. The tuned peer is one run in one process, the default peer a run for each
  day in processes of its own, taken from a few days.

The peers need ``dagster-deltalake-polars``, which is installed into a temporary folder beside the versions that are
there; without an index to install it from, what is compared with them is null.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.peer_daemon import deployed

ROOT = Path(__file__).resolve().parents[1]
_GOLD = ["gold/daily_sales", "gold/sales_7d", "gold/household_months"]
_ASSETS = ["bronze/transactions", "silver/transactions", *_GOLD]
_CLOSED = "2017-12-25"
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
_REFERENCES = """
import dagster as dg
from assets.chains import chains
from assets.local_runs import execute
from medallion.project import load_project

with dg.DagsterInstance.get() as instance:
    for chain in chains(load_project("assets.feeds").tables):
        if chain[0].name in ("products", "households"):
            assert not execute(chain, chain[0].partition.keys(), instance)
"""


def main() -> None:
    """Measure, print a table, and one JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="one month instead of twelve, and each once")
    parser.add_argument("--pairs", type=int, default=None, help="how often the script and the engine, in turn (3)")
    parser.add_argument("--without-peers", action="store_true", help="leave Dagster's IO manager out")
    options = parser.parse_args()
    pairs = options.pairs or (1 if options.quick else 3)
    table = Table(title=f"The year, landing to gold, without promotions (load {os.getloadavg()[0]:.1f})")
    table.add_column("what")
    table.add_column("seconds, median", justify="right")
    try:
        with tempfile.TemporaryDirectory() as name:
            results = _measure(table, Path(name), pairs, quick=options.quick, peers=not options.without_peers)
    finally:
        Console().print(table)  # what was measured until then, if something went wrong
    print(json.dumps(results))


def _measure(table: Table, folder: Path, pairs: int, *, quick: bool, peers: bool) -> dict[str, float | None]:
    landing, until = _landing(folder, quick=quick)
    data = _data(table, landing, folder, until, pairs)
    command = _command(table, landing, folder, pairs, until)
    ours = _ours_by_daemon(folder, landing, until)
    table.add_row("backfill by webserver and daemon: medallion", f"{ours:.1f}")
    packages = _install_peers(folder / "peer") if peers else None
    days = 1 if quick else 8
    return data | command | _peers(table, packages, folder, landing=landing, until=until, ours=ours, default_days=days)


def _landing(folder: Path, *, quick: bool) -> tuple[Path, str]:
    """The landing zone, and the first key that is left out."""
    landing = folder / "landing"
    subprocess.run([sys.executable, "-m", "resources.retail", "--landing", landing], check=True, capture_output=True)
    shutil.rmtree(landing / "promotions")
    until = "2017-02-01" if quick else "2018-01-01"
    for path in (landing / "transactions").iterdir():
        if path.stem >= until:
            path.unlink()
    return landing, until


def _data(table: Table, landing: Path, folder: Path, until: str, count: int) -> dict[str, float]:
    pairs = [_pair(landing, folder / f"pair{turn}", until) for turn in range(count)]
    table.add_row("data work: plain script", f"{statistics.median(pair[0] for pair in pairs):.2f}")
    table.add_row("data work: medallion", f"{statistics.median(pair[1] for pair in pairs):.2f}")
    return {"data_vs_plain_script": round(statistics.median(ours / plain for plain, ours in pairs), 3)}


def _pair(landing: Path, folder: Path, until: str) -> tuple[float, float]:
    """Seconds of the plain script and of the engine, one after the other, each in a process of its own.

    Nothing is removed between them: ext4 without a journal passes over what was removed in the last minutes, one by
    one, and whoever makes files next would pay for it.
    """
    peer: list[str | Path] = [sys.executable, "-m", "benchmarks.peer_plain_script", landing, folder / "plain"]
    ours: list[str | Path] = [sys.executable, "-c", _OURS, landing, folder / "lake", until]
    return _printed(peer), _printed(ours)


def _printed(command: list[str | Path]) -> float:
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def _command(table: Table, landing: Path, folder: Path, count: int, until: str) -> dict[str, float]:
    """The whole process of the command, for the year and for one day again, against the script's process."""
    found = []
    for turn in range(count):
        root = folder / f"command{turn}"
        plain = _process([sys.executable, "-m", "benchmarks.peer_plain_script", str(landing), str(root / "plain")])
        env = _environment(root, landing)
        command = [sys.executable, "-m", "assets.run", "--no-ui", *_GOLD]
        # Days that are not delivered, because less than the year is measured, are refused: exit status 1.
        year = _process(command, env, accept={0} if until > _CLOSED else {0, 1})
        _correct(landing / "transactions" / "2017-01-17.csv", turn)
        found.append((plain, year, _process(command, env, accept={0} if until > _CLOSED else {0, 1})))
    for what, column in (("plain script", 0), ("make run", 1), ("make run, one corrected day with its downstream", 2)):
        table.add_row(f"process: {what}", f"{statistics.median(each[column] for each in found):.2f}")
    return {
        "command_vs_plain_script": round(statistics.median(year / plain for plain, year, _ in found), 3),
        "one_day_vs_plain_script": round(statistics.median(day / plain for plain, _, day in found), 3),
    }


def _environment(root: Path, landing: Path) -> dict[str, str]:
    places = {"DAGSTER_HOME": root / "home", "MEDALLION_LAKE": root / "lake", "MEDALLION_LANDING": landing}
    return {name: str(path) for name, path in places.items()}


def _process(command: Sequence[str], env: Mapping[str, str] | None = None, accept: set[int] | None = None) -> float:
    started = time.perf_counter()
    done = subprocess.run(
        command, env={**os.environ, **(env or {})}, cwd=ROOT, capture_output=True, text=True, check=False
    )
    spent = time.perf_counter() - started
    if done.returncode not in (accept or {0}):
        raise RuntimeError(
            f"{' '.join(command)} ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return spent


def _correct(file: Path, turn: int) -> None:
    """One line more than before: the day's last one again, in a basket of its own."""
    lines = file.read_text().splitlines()
    column = lines[0].split(",").index("basket_id")
    line = lines[-1].split(",")
    line[column] = str(99_000_000_000 + turn)
    file.write_text("\n".join([*lines, ",".join(line)]) + "\n")


def _days(until: str, count: int | None = None, *, closed: bool = False) -> list[str]:
    """The days before one, or the first of them; the day without a file, which the peers cannot do, only if wished."""
    first = date(2017, 1, 1)
    days = [str(first + timedelta(days=after)) for after in range((date.fromisoformat(until) - first).days)]
    return [day for day in days if closed or day != _CLOSED][:count]


def _ours_by_daemon(folder: Path, landing: Path, until: str) -> float:
    env = _environment(folder / "ours", landing)
    home = folder / "ours" / "home"
    instance = (ROOT / "resources" / "dagster.yaml").read_text()
    with deployed(home, ["-w", "workspace.yaml"], env, instance) as server:
        _process([sys.executable, "-c", _REFERENCES], env)
        # Of less than a year, the closure of the trailing week reaches days that are not delivered.
        assets = [each for each in _ASSETS if until > _CLOSED or each != "gold/sales_7d"]
        seconds, status, _ = server.backfill(assets, _days(until, closed=True))
    if status != "COMPLETED_SUCCESS":
        raise RuntimeError(f"the backfill ended as {status}: {(home / 'log.txt').read_text()[-3000:]}")
    return seconds


def _install_peers(folder: Path) -> Path | None:
    """The peers' packages in a folder of their own; None, said on the terminal, if they cannot be had."""
    release = version("dagster-duckdb")
    wanted = [f"dagster-deltalake=={release}", f"dagster-deltalake-polars=={release}"]
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), *wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"Without the peers, since they cannot be installed: {done.stderr[-500:]}", file=sys.stderr)
        return None
    return folder


def _peers(
    table: Table, packages: Path | None, folder: Path, *, landing: Path, until: str, ours: float, default_days: int
) -> dict[str, float | None]:
    if packages is None:
        return {"wall_vs_tuned_peer": None, "speedup_vs_default_peer": None}
    tuned = _peer(packages, folder / "tuned", landing, "single", _days(until))
    each = _peer(packages, folder / "default", landing, "default", _days(until, default_days)) / default_days
    whole = each * len(_days(until))
    table.add_row("backfill by webserver and daemon: Delta IO manager, tuned", f"{tuned:.1f}")
    table.add_row(
        f"backfill by webserver and daemon: Delta IO manager, default (from {default_days} days)", f"{whole:.0f}"
    )
    return {"wall_vs_tuned_peer": round(ours / tuned, 3), "speedup_vs_default_peer": round(whole / ours, 1)}


def _peer(packages: Path, root: Path, landing: Path, policy: str, days: Sequence[str]) -> float:
    end = str(date.fromisoformat(days[-1]) + timedelta(days=1))
    path = os.pathsep.join([str(packages), str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = {"PYTHONPATH": path, "PEER_LAKE": str(root / "lake"), "PEER_LANDING": str(landing), "PEER_END": end}
    target = ["-m", "benchmarks.peer_dagster_deltalake"]
    with deployed(root / "home", target, {**env, "PEER_POLICY": policy}) as server:
        seconds, status, _ = server.backfill(["bronze", "silver", "quarantine", "gold"], days)
    if status != "COMPLETED_SUCCESS":
        raise RuntimeError(f"the peer's backfill ended as {status}: {(root / 'home/log.txt').read_text()[-3000:]}")
    return seconds


if __name__ == "__main__":
    main()
