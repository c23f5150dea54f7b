"""What a commit costs: replacing partitions, against delta-rs' own overwrite, and on a table that has grown old.

    python -m benchmarks.commit [--quick]

Ours is the whole protocol from rows in memory to the acknowledgement: attempt record, fence, encoding, evidence, files
and log flushed to the disk. Theirs is ``write_deltalake`` with a predicate, which flushes nothing and has no fence.
The two are run in turn, and the medians are compared. The last line is one JSON object: ``replace_*`` are ours divided
by theirs; ``aged_vs_fresh`` is a commit to a table with a long history divided by one to a table as large without, and
``aged_vs_empty`` by the first partition of a new table: that one grows with the number of partitions, because deltalake
reads and updates all of a table's files with each version.
"""

import argparse
import json
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl
from deltalake import DeltaTable, write_deltalake

from medallion.attempts import attempting
from medallion.evidence import Evidence
from medallion.lake import Lake
from medallion.partitions import Daily, Keys, Partitioning
from medallion.publication import Prepared, Publication
from medallion.staging import stage
from medallion.tables import Table, bronze
from medallion.verdict import Verdict

YEAR = Daily("day", start="2017-01-01", end="2018-01-01")


def _rows(partition: Partitioning, keys: Sequence[str], each: int) -> pl.DataFrame:
    """Purchases: two keys, a price, a text; ``each`` rows in every partition."""
    count = each * len(keys)
    numbers = pl.int_range(count, eager=True)
    return pl.DataFrame(
        {
            "basket_id": numbers // 7,
            "product_id": (numbers * 7919) % 92_331,
            "quantity": numbers % 5 + 1,
            "sales_value": (numbers * 31 % 10_007) / 100,
            "store": "store " + (numbers % 400).cast(pl.String),
            partition.column: partition.series(list(keys)).repeat_by(each).explode(),
        }
    )


def commit(table: Table, lake: Lake, rows: pl.DataFrame, keys: Sequence[str]) -> None:
    """Replace some partitions through the whole protocol."""
    attempt = uuid.uuid4().hex
    target = lake.pin(table.path, table.partition)
    with attempting(target, attempt, "benchmark", keys, keys):
        staged = stage(rows, table.partition, keys, empty=True)
        evidence = {
            each.partition: Evidence(
                table.path, each.partition, uuid.uuid4().hex, each.digest, 1, "", "", "benchmark", attempt, "",
                Verdict(table.path, each.partition, each.rows, each.rows),
            )
            for each in staged
        }  # fmt: skip
        publication = Publication(table, target, {"attempt": attempt, "run_id": "benchmark"})
        publication.publish(Prepared(evidence, staged, schema=rows.schema), lambda key: None)


def _seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compare(folder: Path, each: int, keys: Sequence[str], times: int, *, durable: bool = True) -> tuple[float, float]:
    """The medians of both ways to replace some days of a year."""
    table = bronze("ours", source="{day}.csv", partition=YEAR)
    lake, theirs = Lake(folder / "lake", durable=durable), str(folder / "theirs")
    everything = _rows(YEAR, YEAR.keys(), 10)
    commit(table, lake, everything, YEAR.keys())
    write_deltalake(theirs, everything, partition_by=["day"])
    rows = _rows(YEAR, keys, each)
    predicate = f"day >= '{keys[0]}' AND day <= '{keys[-1]}'" if len(keys) > 1 else f"day = '{keys[0]}'"

    def replace() -> None:
        write_deltalake(theirs, rows, mode="overwrite", predicate=predicate)

    mine, other = [], []
    for turn in range(times + 1):
        spent = (_seconds(lambda: commit(table, lake, rows, keys)), _seconds(replace))
        if turn:  # the first one warms up
            mine.append(spent[0])
            other.append(spent[1])
    count = DeltaTable(theirs).to_pyarrow_dataset().count_rows()
    assert count == lake.pin(table.path, YEAR).scan(YEAR.keys()).select(pl.len()).collect().item()
    return statistics.median(mine), statistics.median(other)


def aged(folder: Path, partitions: int, commits: int) -> dict[str, float]:
    """The medians of a commit to a table with a long history, to one as large without it, and to one with nothing."""
    cut = Keys("shop", tuple(f"shop-{number:05}" for number in range(partitions)))
    tables = {name: bronze(name, source="{shop}.csv", partition=cut) for name in ("aged", "fresh", "empty")}
    lake = Lake(folder / "lake", durable=False)
    first = cut.keys()[:1]
    one = _rows(cut, first, 1000)
    for name in ("aged", "fresh"):
        commit(tables[name], lake, _rows(cut, cut.keys(), 1), cut.keys())
    for number in range(commits):
        key = cut.keys()[number % partitions]
        commit(tables["aged"], lake, one.with_columns(shop=pl.lit(key)), [key])
    durable = Lake(folder / "lake")
    times: dict[str, list[float]] = {name: [] for name in tables}
    for _ in range(25):
        for name, table in tables.items():
            times[name].append(_seconds(lambda table=table: commit(table, durable, one, first)))  # type: ignore[misc]
    return {name: statistics.median(spent) for name, spent in times.items()}


def main() -> None:
    """Measure, print a line for each, and the ratios as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions and a younger table")
    quick = parser.parse_args().quick
    one, year = YEAR.keys()[100:101], YEAR.keys()
    cases = {
        "replace_1k": (1_000, one, 9 if quick else 31),
        "replace_100k": (100_000, one, 7 if quick else 21),
        "replace_1m": (1_000_000, one, 5 if quick else 11),
        "replace_365": (4_000, year, 3 if quick else 7),
    }
    ratios: dict[str, float] = {}
    # Nothing is removed before the end: ext4 without a journal passes over what was removed in the last minutes, one by
    # one, and whoever makes files next would pay for it.
    with tempfile.TemporaryDirectory() as folder:
        for name, (each, keys, times) in cases.items():
            for durable in (True, False):
                mine, theirs = compare(Path(folder) / f"{name}-{durable}", each, keys, times, durable=durable)
                label = "durable" if durable else "not durable"
                print(f"{name:14} {label:12} ours {mine * 1000:8.1f} ms   write_deltalake {theirs * 1000:8.1f} ms")
                if durable:
                    ratios[name] = round(mine / theirs, 3)
        partitions, commits = (2_000, 500) if quick else (10_000, 5_000)
        spent = aged(Path(folder) / "aged", partitions, commits)
        print(
            f"one partition of {partitions:,}: after {commits:,} commits {spent['aged'] * 1000:.1f} ms, after one "
            f"{spent['fresh'] * 1000:.1f} ms; the only partition of a new table {spent['empty'] * 1000:.1f} ms"
        )
        ratios["aged_vs_fresh"] = round(spent["aged"] / spent["fresh"], 3)
        ratios["aged_vs_empty"] = round(spent["aged"] / spent["empty"], 3)
    print(json.dumps(ratios))


if __name__ == "__main__":
    main()
