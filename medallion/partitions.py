"""What a partition is: its key (text), the column that carries it, and the window of time it covers.

A key names a partition everywhere: in Dagster, on the command line, in file paths, in the fence. Keys of time-based
partitions are dates written ``YYYY-MM-DD`` (the first day of a week or month) or hours written ``YYYY-MM-DD-HH``; both
sort as text in the order of time. What does not belong here: which partitions of one table another one needs
(``tables.py``).
"""

from __future__ import annotations

import datetime as dt
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import ClassVar
from zoneinfo import ZoneInfo

import polars as pl

from medallion.errors import DeclarationError, UnknownPartition

__all__ = [
    "Daily",
    "Hourly",
    "Keys",
    "Monthly",
    "Partitioning",
    "TimePartitioning",
    "Weekly",
    "Whole",
    "check_safe_key",
]

_SAFE = re.compile(r"[A-Za-z0-9_.\-]{1,128}")
_COLUMN = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}(-\d{2})?")
_RESERVED = {"__HIVE_DEFAULT_PARTITION__", ".", ".."}


def check_safe_key(key: str) -> str:
    """Return ``key`` if it may name a partition in a path.

    Partition values are read back from the paths of the files, so a key may hold only characters that every file
    system, object store and Delta reader leaves alone.

    Raises:
        UnknownPartition: if it is no text, empty, too long, reserved, or holds another character.
    """
    if not isinstance(key, str):
        raise UnknownPartition(repr(key), "a key is text")
    if key in _RESERVED or key.startswith(("_", ".")):
        raise UnknownPartition(key, "this name is reserved by Hive, by Delta or by the file system")
    if not _SAFE.fullmatch(key):
        raise UnknownPartition(key, "a key has 1 to 128 characters out of letters, digits, '_', '.' and '-'")
    return key


@dataclass(frozen=True)
class Partitioning:
    """How a table is cut. ``column`` is the partition column, absent from the files and present in every read."""

    column: str
    dtype: ClassVar[type[pl.DataType]] = pl.String

    def __post_init__(self) -> None:
        if not _COLUMN.fullmatch(self.column):
            raise DeclarationError(
                f"{type(self).__name__}({self.column!r}): the column names the folders of the table, so write it with "
                "letters, digits and '_', beginning with a letter, as 'day'"
            )

    def keys(self) -> tuple[str, ...]:
        """All keys, in order."""
        raise NotImplementedError

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.keys())

    def check(self, key: str) -> str:
        """Return ``key`` if the table has it.

        Raises:
            UnknownPartition: with the rule that the key breaks.
        """
        check_safe_key(key)
        if key not in self._known:
            keys = self.keys()
            raise UnknownPartition(key, f"the table has {len(keys)} partitions, {keys[0]} to {keys[-1]}")
        return key

    def select(self, words: Sequence[str]) -> tuple[str, ...]:
        """The keys that some words name, in order: a key, or a range ``FIRST..LAST``, both included.

        Either end of a range may be left out. The ends of a range of time need not be keys themselves: ``2017-01-01``
        is before the first Monday of the year.

        Raises:
            UnknownPartition: if a word names none.
        """
        keys = self.keys()
        found: set[str] = set()
        for word in words:
            first, dots, last = word.partition("..")
            some = self._between(first, last) if dots else (self.check(word),)
            if not some:
                raise UnknownPartition(word, f"no partition lies in that range; there are {keys[0]} to {keys[-1]}")
            found.update(some)
        return tuple(key for key in keys if key in found)

    def _between(self, first: str, last: str) -> tuple[str, ...]:
        keys = self.keys()
        start = keys.index(self.check(first)) if first else 0
        end = keys.index(self.check(last)) if last else len(keys) - 1
        return keys[start : end + 1]

    def value(self, key: str) -> object:
        """The value of the partition column for ``key``."""
        return key

    def folder(self, key: str) -> str:
        """The hive folder of ``key`` below the table, as ``day=2017-01-01``."""
        return f"{self.column}={key}"

    def in_order(self, keys: Iterable[str]) -> list[str]:
        """Some keys in the order of the partitions, each once.

        Raises:
            UnknownPartition: if there is no such partition.
        """
        asked = {self.check(key) for key in keys}
        return [key for key in self.keys() if key in asked]

    def series(self, keys: list[str], name: str | None = None) -> pl.Series:
        """The partition column's values for ``keys``."""
        return pl.Series(name or self.column, [self.value(key) for key in keys], dtype=self.dtype)


@dataclass(frozen=True)
class Whole(Partitioning):
    """One partition, the whole table: for small reference data that is delivered complete each time."""

    column: str = ""
    KEY: ClassVar[str] = "all"

    def __post_init__(self) -> None:
        """There is no column to check."""

    def keys(self) -> tuple[str, ...]:
        """The one key, ``all``."""
        return (self.KEY,)

    def folder(self, key: str) -> str:
        """No folder: the files lie at the table's root."""
        return ""


@dataclass(frozen=True)
class Keys(Partitioning):
    """A fixed list of text keys, such as regions."""

    values: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.values or len(set(self.values)) != len(self.values):
            raise DeclarationError(f"Keys({self.column!r}) needs at least one key, each only once: {self.values}")
        for key in self.values:
            check_safe_key(key)

    def keys(self) -> tuple[str, ...]:
        """The keys as declared."""
        return self.values


@dataclass(frozen=True)
class TimePartitioning(Partitioning):
    """Windows of time between ``start`` (inclusive) and ``end`` (exclusive), in one time zone.

    ``start`` and ``end`` are dates, ``YYYY-MM-DD``. A window begins and ends at local midnight (or at the local hour),
    so a day on which the clocks change has 23 or 25 hours.
    """

    start: str = ""
    end: str = ""
    timezone: str = "UTC"
    dtype: ClassVar[type[pl.DataType]] = pl.Date
    key_format: ClassVar[str] = "%Y-%m-%d"

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            first, last = dt.date.fromisoformat(self.start), dt.date.fromisoformat(self.end)
            ZoneInfo(self.timezone)
        except (ValueError, KeyError, OSError) as error:  # a folder of zones is an OSError
            raise DeclarationError(
                f"{type(self).__name__}({self.column!r}): {error}. Write start and end as YYYY-MM-DD and the "
                "time zone as in 'America/New_York'."
            ) from error
        if first >= last:
            raise DeclarationError(f"{type(self).__name__}({self.column!r}): start {first} is not before end {last}")
        self._check_start(first)

    def _check_start(self, first: dt.date) -> None:
        """Refuse a start that is not the start of a window."""

    def _next(self, moment: dt.datetime) -> dt.datetime:
        return moment + dt.timedelta(days=1)

    @cached_property
    def _starts(self) -> tuple[dt.datetime, ...]:
        """The naive local start of each window, and of the one after the last."""
        moment, end = dt.datetime.fromisoformat(self.start), dt.datetime.fromisoformat(self.end)
        starts = [moment]
        while moment < end:
            moment = self._next(moment)
            starts.append(moment)
        return tuple(starts)

    @cached_property
    def _keys(self) -> tuple[str, ...]:
        return tuple(moment.strftime(self.key_format) for moment in self._starts[:-1])

    @cached_property
    def _windows(self) -> dict[str, tuple[dt.datetime, dt.datetime]]:
        return dict(zip(self._keys, pairwise(self._starts), strict=True))

    def keys(self) -> tuple[str, ...]:
        """All keys from start to end, in the order of time."""
        return self._keys

    def _between(self, first: str, last: str) -> tuple[str, ...]:
        for end in filter(None, (first, last)):
            if not _MOMENT.fullmatch(end):
                raise UnknownPartition(end, "an end of a range is written YYYY-MM-DD, or YYYY-MM-DD-HH for hours")
        return tuple(key for key in self._keys if (not first or key >= first) and (not last or key <= last))

    def value(self, key: str) -> object:
        """The date that the partition column holds for ``key``."""
        return dt.date.fromisoformat(key)

    def window(self, key: str) -> tuple[dt.datetime, dt.datetime]:
        """The half-open window ``[start, end)`` of ``key``, as naive local times."""
        return self._windows[key]

    def overlapping(self, start: dt.datetime, end: dt.datetime) -> tuple[str, ...]:
        """The keys whose windows meet the half-open window ``[start, end)``, clipped to the declared range."""
        first = max(bisect_right(self._starts, start) - 1, 0)
        last = min(bisect_left(self._starts, end), len(self._keys))
        return self._keys[first:last]


@dataclass(frozen=True)
class Daily(TimePartitioning):
    """One partition a day."""


@dataclass(frozen=True)
class Weekly(TimePartitioning):
    """One partition a week; ``start`` gives the weekday on which weeks begin."""

    def _next(self, moment: dt.datetime) -> dt.datetime:
        return moment + dt.timedelta(days=7)


@dataclass(frozen=True)
class Monthly(TimePartitioning):
    """One partition a month."""

    def _check_start(self, first: dt.date) -> None:
        if first.day != 1:
            raise DeclarationError(f"Monthly({self.column!r}): start {first} is not the first day of a month")

    def _next(self, moment: dt.datetime) -> dt.datetime:
        return (moment + dt.timedelta(days=31)).replace(day=1)


@dataclass(frozen=True)
class Hourly(TimePartitioning):
    """One partition an hour of local time; the column holds the key as text.

    The hour that is repeated when clocks go back is one partition.
    """

    dtype: ClassVar[type[pl.DataType]] = pl.String
    key_format: ClassVar[str] = "%Y-%m-%d-%H"

    def _next(self, moment: dt.datetime) -> dt.datetime:
        return moment + dt.timedelta(hours=1)

    def value(self, key: str) -> object:
        """The key itself."""
        return key
