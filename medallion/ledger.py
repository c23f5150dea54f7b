"""The ledger: what was attempted, by whom, when, and what came of it. A Delta table at ``ops/ledger`` that only grows.

One row for each partition that an attempt settled, for each recovery, and for whatever else is done to a table and has
an end. It is evidence, not authority: nothing is decided by it that the tables themselves can tell, so a row that
cannot be written is a warning and never undoes a commit. What belongs here: the table, how it is written and read. What
does not: what an attempt says of itself (``telemetry.py``), and making it anew from the tables (``rebuilding.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import polars as pl

from medallion.failpoints import reach
from medallion.lake import Lake, Snapshot
from medallion.partitions import Whole
from medallion.store import scan_options

__all__ = [
    "OUTCOMES",
    "PATH",
    "SCHEMA",
    "SETTLED_WELL",
    "STATUSES",
    "STORED",
    "compact",
    "count_retries",
    "frame",
    "latest",
    "read",
    "record",
    "stored",
]

_log = logging.getLogger(__name__)

PATH = "ops/ledger"
"""Where it lies in the lake."""

_TIME = pl.Datetime("us", "UTC")

SCHEMA = pl.Schema(
    {
        "pipeline_name": pl.String(),
        "partition": pl.String(),
        "attempt": pl.String(),
        "batch_id": pl.String(),
        "watermark_start": _TIME,
        "watermark_end": _TIME,
        "status": pl.String(),
        "started_at": _TIME,
        "completed_at": _TIME,
        "source_rows": pl.Int64(),
        "target_rows": pl.Int64(),
        "error_code": pl.String(),
        "error": pl.String(),
        "pipeline_run_id": pl.String(),
        "checkpoint_id": pl.String(),
        "source_position": pl.String(),
        "target_version": pl.Int64(),
        "failure_class": pl.String(),
        "retry_count": pl.Int64(),
        "recovery_scope": pl.String(),
        "replay_volume": pl.Int64(),
        "quarantine_count": pl.Int64(),
        "released_count": pl.Int64(),
        "reconciliation_status": pl.String(),
        "recovery_started_at": _TIME,
        "recovery_completed_at": _TIME,
        "rto_observed": pl.Float64(),
        "reason": pl.String(),
        "plan_id": pl.String(),
        "content": pl.String(),
        "recovered_by": pl.String(),
    }
)
"""The columns, as :func:`read` gives them; ``docs/operations.md`` says what each means."""

OUTCOMES = frozenset({"committed", "unchanged", "blocked", "failed", "superseded", "approved", "discarded", "restored"})
"""Statuses that say how a partition stands after an attempt."""

STATUSES = OUTCOMES | {"recovered", "verified"}
"""All of them."""

SETTLED_WELL = frozenset({"committed", "unchanged", "approved", "restored"})
"""Statuses after which the partition's rows are in place."""

STORED = pl.Schema({name: dtype for name, dtype in SCHEMA.items() if name != "retry_count"})
"""What is written. How often something was tried is counted on reading, so that no attempt has to read what others
have written."""

_IDENTITY = ["pipeline_name", "partition", "attempt", "status", "recovered_by"]
_COMPACT_EVERY = 64
"""Appends after which small files are made one."""
_SMALL = 4 * 1024 * 1024


def record(lake: Lake, rows: Sequence[Mapping[str, Any]] | pl.DataFrame) -> bool:
    """Add rows, in one append.

    Never raises: what the rows tell of has happened, whether they can be kept or not. Rows that could not be kept are
    logged as a warning, and ``medallion ledger rebuild`` makes those anew that the tables can tell.

    Args:
        lake: whose ledger.
        rows: with any of the columns of :data:`SCHEMA`; the others are null.

    Returns:
        whether they were kept.
    """
    if not len(rows):
        return True
    try:
        version = lake.append(PATH, frame(rows), metadata={"table": PATH})
        reach("ledger written")
        if version is not None and version % _COMPACT_EVERY == 0:
            compact(lake)
    except (Exception, pl.exceptions.PanicException) as error:  # noqa: BLE001 - nothing here may undo what was done
        _log.warning(
            "%d rows of the ledger at %s could not be kept: %s. What they tell of stands.",
            len(rows), lake.root / PATH, " ".join(str(error).split()),
        )  # fmt: skip
        return False
    return True


def frame(rows: Sequence[Mapping[str, Any]] | pl.DataFrame) -> pl.DataFrame:
    """Rows as they are stored; see :func:`record`."""
    if isinstance(rows, pl.DataFrame):
        given = rows.drop("retry_count", strict=False)
        unknown = set(given.columns) - set(STORED)
    else:
        unknown = set().union(*rows) - set(STORED) - {"retry_count"}
        given = pl.DataFrame([{name: row.get(name) for name in STORED} for row in rows], schema=STORED)
    if unknown:
        raise ValueError(f"the ledger has no column {', '.join(sorted(unknown))}")
    return given.select(
        (pl.col(name) if name in given.columns else pl.lit(None)).cast(dtype).alias(name)
        for name, dtype in STORED.items()
    )


def read(lake: Lake, statuses: Collection[str] | None = None) -> pl.DataFrame:
    """Every row, oldest first, each once; empty with the columns of :data:`SCHEMA` if there is none.

    Args:
        lake: whose ledger.
        statuses: only rows with one of these; all if not given. ``retry_count`` is counted over all.

    Raises:
        TableUnreadable: if it cannot be opened. Then move its folder away and run ``medallion ledger rebuild``.
    """
    rows = count_retries(stored(lake.pin(PATH, Whole())))
    return rows if statuses is None else rows.filter(pl.col("status").is_in(list(statuses)))


def stored(snapshot: Snapshot) -> pl.DataFrame:
    """The rows as they lie in the files, each once, oldest first; whoever wrote the files."""
    paths = [str(snapshot.folder / path) for path in snapshot.sizes]
    if not paths:
        return pl.DataFrame(schema=STORED)
    scan = pl.scan_parquet(
        paths, schema=STORED, missing_columns="insert", extra_columns="ignore", glob=False,
        hive_partitioning=False, **scan_options(snapshot.folder),
    )  # fmt: skip
    # A row is there twice if an attempt wrote it, died, and whoever recovered it told of the same.
    once = scan.unique(_IDENTITY, keep="first", maintain_order=True)
    return once.sort("completed_at", "started_at", maintain_order=True).collect()


def count_retries(rows: pl.DataFrame) -> pl.DataFrame:
    """How many attempts at the partition went before each row's since it was last in place."""
    tried = pl.col("status").is_in([*OUTCOMES - {"discarded"}, "recovered"])
    well = pl.col("status").is_in(list(SETTLED_WELL))
    each = ["pipeline_name", "partition"]
    return (
        rows.with_columns(_tried=tried, _since=well.cast(pl.Int64).cum_sum().shift(1, fill_value=0).over(each))
        .with_columns(
            retry_count=pl.when("_tried").then(pl.col("_tried").cast(pl.Int64).cum_sum().over([*each, "_since"]) - 1)
        )
        .select(list(SCHEMA))
    )


def latest(lake: Lake) -> pl.DataFrame:
    """The newest row of each table and partition that says how it stands; see :data:`OUTCOMES`.

    Raises:
        TableUnreadable: as :func:`read`.
    """
    rows = read(lake, OUTCOMES)
    return rows.unique(["pipeline_name", "partition"], keep="last", maintain_order=True)


def compact(lake: Lake) -> bool:
    """Make one file of all small ones; no row is lost, whoever appends at the same time. Whether it was done.

    Raises:
        TableUnreadable: if it cannot be opened.
        StorageFailed: if the store does not take it.
    """
    snapshot = lake.pin(PATH, Whole())
    small = [path for path, size in snapshot.sizes.items() if size < _SMALL]
    if len(small) < 2:
        return False
    scan = pl.scan_parquet(
        [str(snapshot.folder / path) for path in small], schema=snapshot.schema, missing_columns="insert",
        extra_columns="ignore", glob=False, hive_partitioning=False, **scan_options(snapshot.folder),
    )  # fmt: skip
    told = {"table": PATH, "compacted": len(small)}
    return lake.append(PATH, scan.collect(), metadata=told, replacing=small) is not None
