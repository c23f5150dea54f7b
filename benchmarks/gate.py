"""The row gate against a plain copy of the data, pandera's validate and split, and dataframely's filter.

The data is the retail year as the stores export it, every column as text, repeated to ten million rows; 25 rules, in
the words of each library. All read one Parquet file and write two, in a process of their own; ``copy`` reads and writes
and does nothing else: the limit. Few: one row in 170 is refused. Many: one in three.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import polars as pl
from rich.console import Console
from rich.table import Table

from benchmarks import peer_gates

_ROWS = 10_000_000
_WAYS = ("copy", "medallion", "dataframely", "pandera")


def main() -> None:
    """Measure, print a table, and one JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one million rows, three million for the memory")
    parser.add_argument("--make", nargs=2, metavar=("PATH", "ROWS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make:
        _make(Path(options.make[0]), int(options.make[1]))
        return
    rows = _ROWS // 10 if options.quick else _ROWS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = _made(folder / "source.parquet", rows)
        found = {
            (way, failures): _measure(way, failures, source, folder) for failures in ("few", "many") for way in _WAYS
        }
        more = _measure("medallion", "few", _made(folder / "more.parquet", 3 * rows), folder)
    _show(found, more, rows)
    ours, copy = ({f: found[way, f] for f in ("few", "many")} for way in ("medallion", "copy"))
    pandera, frames = ({f: found[way, f] for f in ("few", "many")} for way in ("pandera", "dataframely"))
    print(
        json.dumps(
            {
                **{f"cpu_vs_copy_{f}": round(ours[f][0] / copy[f][0], 3) for f in ours},
                **{f"memory_vs_pandera_{f}": round(ours[f][1] / pandera[f][1], 3) for f in ours},
                **{f"cpu_vs_dataframely_{f}": round(ours[f][0] / frames[f][0], 3) for f in ours},
                "memory_30m_vs_10m": round(more[1] / ours["few"][1], 3),
            }
        )
    )


def _made(path: Path, rows: int) -> Path:
    """The file, made by a process of its own: a child's peak memory counts from what its parent held."""
    subprocess.run([sys.executable, "-m", "benchmarks.gate", "--make", str(path), str(rows)], check=True)
    return path


def _make(path: Path, rows: int) -> None:
    """The year's export, repeated; every row with a basket of its own."""
    landing = path.parent / "landing"
    if not landing.exists():
        command = [sys.executable, "-m", "resources.retail", "--landing", str(landing)]
        subprocess.run(command, check=True, capture_output=True)
    year = pl.scan_csv(landing / "transactions/*.csv", infer_schema=False).collect()
    times = -(-rows // year.height)
    basket = pl.int_range(pl.len(), dtype=pl.Int64).cast(pl.String).alias("basket_id")
    repeated = pl.concat([year.lazy()] * times).head(rows).with_columns(basket)
    repeated.sink_parquet(path, row_group_size=250_000)


def _measure(way: str, failures: str, source: Path, folder: Path) -> tuple[float, float, int]:
    """CPU seconds, peak memory in MiB, and accepted rows, of a whole process."""
    command = [sys.executable, peer_gates.__file__, way, failures, str(source), str(folder / f"{way}_{failures}")]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(Path.cwd())}
    )
    assert process.stdout is not None
    printed = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(f"{way} {failures} failed")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, int(printed.split()[-1])


def _show(found: dict[tuple[str, str], tuple[float, float, int]], more: tuple[float, float, int], rows: int) -> None:
    table = Table(title=f"{rows:,} rows, 25 rules, whole processes (load {os.getloadavg()[0]:.1f})")
    for name in ("way", "failures", "cpu s", "peak MiB", "accepted rows"):
        table.add_column(name, justify="left" if name in {"way", "failures"} else "right")
    for (way, failures), (cpu, memory, accepted) in found.items():
        table.add_row(way, failures, f"{cpu:.2f}", f"{memory:,.0f}", f"{accepted:,}")
    table.add_row("medallion, 3x rows", "few", f"{more[0]:.2f}", f"{more[1]:,.0f}", f"{more[2]:,}")
    Console().print(table)


if __name__ == "__main__":
    main()
