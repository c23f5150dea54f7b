"""Rows of the ledger for a terminal. Nothing is found out here."""

from __future__ import annotations

import polars as pl
from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable
from rich.text import Text

__all__ = ["render"]

_STYLES = {"blocked": "red", "failed": "red", "superseded": "yellow", "recovered": "yellow", "unchanged": "dim"}


def render(rows: pl.DataFrame) -> RichTable:
    """A line for each row: when, what, what came of it, how many rows, and why."""
    shown = RichTable(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    shown.add_column("completed (UTC)", no_wrap=True)
    shown.add_column("table and partition", overflow="fold")
    shown.add_column("status", no_wrap=True)
    for name in ("read", "written"):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("why", overflow="fold")
    for row in rows.iter_rows(named=True):
        at = row["completed_at"]
        shown.add_row(
            "" if at is None else f"{at:%Y-%m-%d %H:%M:%S}",
            " ".join(filter(None, (row["pipeline_name"], row["partition"]))),
            Text(row["status"] or "", style=_STYLES.get(row["status"], "")),
            _figure(row["source_rows"]),
            _figure(row["target_rows"]),
            Text(row["error"] or row["reason"] or ""),
        )
    return shown


def _figure(count: int | None) -> str:
    return "" if count is None else f"{count:,}"
