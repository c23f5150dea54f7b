"""What a plan is expected to cost: rows and bytes from what is live or delivered, time from what attempts took.

An estimate decides nothing but where a range is cut: when it is executed, the real sizes are known, and a slice that
turns out too large is cut again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
        rows: estimated rows that are read; None if nothing is known.
        bytes: estimated bytes in memory; None if nothing is known.
    """

    partitions: int
    rows: int | None
    bytes: int | None


def _sum(values: Iterable[int | None]) -> int | None:
    known = list(values)
    return None if None in known else sum(each for each in known if each is not None)


class Estimates:
    """Rows, bytes and time of partitions, each table after those that it is built from."""

    def __init__(self, survey: Survey) -> None:
        """Estimate from a look at the lake."""
        self._survey = survey
        self._sizes: dict[str, dict[str, int]] = {}
        self._known: dict[str, dict[str, int | None]] = {}
        self._means: dict[str, int | None] = {}
        self._densities: dict[str, float | None] = {}

    def of(
        self, table: Table, keys: Sequence[str], limit: int, *, newest_first: bool = False
    ) -> tuple[tuple[Slice, ...], float | None]:
        """The slices of some partitions, given oldest first, and the time they take in seconds; None if unknown."""
        rows = {key: self._rows_read(table, key) for key in keys}
        weights = {key: self._bytes(table, key, rows[key]) for key in keys}
        ordered = keys[::-1] if newest_first else keys
        slices = [
            Slice(len(piece), _sum(rows[key] for key in piece), _sum(weights[key] for key in piece))
            for piece in in_slices(ordered, lambda key: weights[key] or 0, limit)
        ]
        pace = self._paces.get(table.path)
        return tuple(slices), None if pace is None else round(pace * len(keys), 3)

    def _bytes(self, table: Table, key: str, rows: int | None) -> int | None:
        if table.layer == "bronze":
            size, landing = self._sizes_of(table).get(key), self._survey.landing
            return None if size is None or landing is None else bytes_of_file(table, landing.path(table, key), size)
        return None if rows is None else bytes_of_rows(self._survey.bases[table.path], rows)

    def _rows_read(self, table: Table, key: str) -> int | None:
        """Rows of a source file, or of the inputs."""
        if table.layer == "bronze":
            return self._rows_of(table, key)
        unknown: list[str] = []

        def rows(source: Table, each: str) -> int:
            known = self._rows_of(source, each)
            if known is None:
                unknown.append(each)
            return known or 0

        found = rows_read(table, key, rows)
        return None if unknown else found

    def _rows_of(self, table: Table, key: str) -> int | None:
        """Rows of a partition: that are live, or as many as the table's partitions have on average.

        Of a table that holds nothing yet, as many as are read to make it; None for gold, which sums them up.
        """
        if table.path not in self._known:
            snapshot = self._survey.snapshots[table.path]
            live = {each: snapshot.rows(each) for each in snapshot.files}
            counts = [rows for rows in live.values() if rows]
            self._known[table.path] = dict(live)
            self._means[table.path] = round(sum(counts) / len(counts)) if counts else None
        known = self._known[table.path]
        if key not in known:
            known[key] = self._means[table.path]
            if known[key] is None and table.layer == "bronze":
                known[key] = self._rows_of_file(table, key)
            elif known[key] is None and table.layer == "silver":
                known[key] = self._rows_read(table, key)
        return known[key]

    def _sizes_of(self, table: Table) -> dict[str, int]:
        landing = self._survey.landing
        if table.path not in self._sizes:
            present = landing.present(table) if landing is not None else {}
            self._sizes[table.path] = {key: size for key, (size, _) in present.items()}
        return self._sizes[table.path]

    def _rows_of_file(self, table: Table, key: str) -> int | None:
        size = self._sizes_of(table).get(key)
        landing = self._survey.landing
        if size is None or landing is None:
            return 0 if key in table.closed else None
        if table.path not in self._densities:
            self._densities[table.path] = landing.density(table, key)
        density = self._densities[table.path]
        return None if density is None else round(size * density)

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
