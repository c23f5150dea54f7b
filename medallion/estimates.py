"""What a plan is expected to cost: rows and bytes from what is live, time from what past attempts took.

An estimate decides nothing but where a range is cut: when it is executed, the real sizes are known, and a slice that
turns out too large is cut again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from medallion import ledger
from medallion.slicing import bytes_of_file, bytes_of_rows, in_slices, rows_read
from medallion.state import Survey
from medallion.tables import Table

__all__ = ["Estimates", "Slice"]

_ATTEMPTS = 20
"""How many past attempts at a table are looked at."""


@dataclass(frozen=True)
class Slice:
    """A part of a table's partitions that is worked on at once.

    Attributes:
        partitions: how many, from where the slice before ended.
        rows: estimated rows of the result; None if nothing is known.
        bytes: estimated bytes in memory; None if nothing is known.
    """

    partitions: int
    rows: int | None
    bytes: int | None


class Estimates:
    """Rows, bytes and time of partitions, each table after those that it is built from."""

    def __init__(self, survey: Survey) -> None:
        """Estimate from a look at the lake."""
        self._survey = survey
        self._rows: dict[str, dict[str, int]] = {}
        self._means: dict[str, float | None] = {}

    def of(
        self, table: Table, keys: Sequence[str], limit: int, *, newest_first: bool = False
    ) -> tuple[tuple[Slice, ...], float | None]:
        """The slices of some partitions, given oldest first, and the time they take in seconds; None if unknown."""
        bytes_of = self._bytes(table, keys)
        rows = {key: self._rows_of(table.path, key) for key in keys}
        ordered = list(reversed(keys)) if newest_first else list(keys)
        slices = []
        for piece in in_slices(ordered, lambda key: bytes_of[key] or 0, limit):
            known_rows, known_bytes = [rows[key] for key in piece], [bytes_of[key] for key in piece]
            slices.append(
                Slice(
                    len(piece),
                    None if None in known_rows else sum(each or 0 for each in known_rows),
                    None if None in known_bytes else sum(each or 0 for each in known_bytes),
                )
            )
        pace = self._paces.get(table.path)
        return tuple(slices), None if pace is None else round(pace * len(keys), 3)

    def _rows_of(self, path: str, key: str) -> int | None:
        """Rows that are live, or as many as the table's partitions have on average; None if it has none."""
        snapshot = self._survey.snapshots[path]
        if path not in self._rows:
            self._rows[path] = {each: snapshot.rows(each) for each in snapshot.files}
            known = [rows for rows in self._rows[path].values() if rows]
            self._means[path] = sum(known) / len(known) if known else None
        mean = self._means[path]
        return self._rows[path].get(key, None if mean is None else round(mean))

    def _bytes(self, table: Table, keys: Sequence[str]) -> dict[str, int | None]:
        basis = self._survey.bases[table.path]
        if table.layer == "bronze":
            sizes = self._survey.landing.present(table) if self._survey.landing is not None else {}
            return {key: bytes_of_file(table, sizes[key][0]) if key in sizes else None for key in keys}
        found: dict[str, int | None] = {}
        for key in keys:
            unknown: list[str] = []

            def rows(path: str, each: str, unknown: list[str] = unknown) -> int:
                known = self._rows_of(path, each)
                if known is None:
                    unknown.append(path)
                return known or 0

            weight = bytes_of_rows(basis, rows_read(basis, key, rows))
            found[key] = None if unknown else weight
        return found

    @cached_property
    def _paces(self) -> dict[str, float]:
        """Seconds a partition, by table, over the last attempts that published something."""
        rows = ledger.read(self._survey.lake, ["committed"])
        attempts = (
            rows.group_by("pipeline_name", "attempt", maintain_order=True)
            .agg(
                partitions=pl.len(),
                seconds=(pl.col("completed_at").max() - pl.col("started_at").min()).dt.total_microseconds() / 1e6,
            )
            .group_by("pipeline_name", maintain_order=True)
            .tail(_ATTEMPTS)
            .group_by("pipeline_name")
            .agg(pl.col("seconds").sum() / pl.col("partitions").sum())
        )
        return {table: pace for table, pace in attempts.iter_rows() if pace is not None}
