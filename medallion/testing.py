"""For the tests of one's own feeds: rows that pass a contract, and a proof that a transform keeps partitions apart.

::

    def test_discounts_are_added_up():
        lines = valid_rows(Transaction, 3, coupon_disc=[0.5, 0.0, 1.0])
        ...

    def test_daily_sales_keeps_days_apart():
        assert_partitionwise(daily_sales, lines, products)

pandera makes no example data for polars (0.35), so that rows are built here: from the columns' types and from what
their checks name, and then judged by the gate itself. This module belongs into tests; nothing of the engine imports it.
"""

from __future__ import annotations

import datetime as dt
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cache
from typing import Any

import pandera.polars as pa
import polars as pl
from polars.testing import assert_frame_equal

from medallion.columns import Column
from medallion.errors import DeclarationError
from medallion.gate import WARNINGS, Gate
from medallion.partitions import Whole

__all__ = ["assert_partitionwise", "valid_rows"]

_POOL = 40
"""Values that are tried for a column."""
_PATTERNS = 5
"""Texts that are tried for a pattern."""
_TRIES = 4_000
"""Rows that are tried for those that are asked for."""


def valid_rows(contract: Any, n: int = 1, /, **overrides: Any) -> pl.DataFrame:
    """Rows that pass a contract without any finding, not even a warning. The same call gives the same rows.

    Args:
        contract: a contract, any pandera model or schema; or a :class:`~medallion.gate.Gate`, if the rows need the
            partition column or are to have different keys.
        n: how many.
        **overrides: values for columns, one for all rows or one for each. They need not pass the contract, so that a
            test can make a row that breaks one rule: the other columns do.

    Returns:
        ``n`` rows with the contract's columns in its order and its types, the partition column first if there is one.

    Raises:
        ValueError: if there are no such rows to be found, with the rules in the way; give values for their columns.
    """
    gate = contract if isinstance(contract, Gate) else Gate(contract)
    columns = [column for column in gate.compiled.columns if not column.name.startswith("matching_")]
    for name in overrides:
        if name not in {column.name for column in columns} | {gate.partition.column}:
            raise ValueError(f"there is no column {name!r}; there are {', '.join(column.name for column in columns)}")
    chance = random.Random(n)
    given = {name: _spread(value, n) for name, value in overrides.items()}
    pools = {column.name: _passing(gate, column) for column in columns}
    rows = _search(gate, columns, pools, n, chance)
    types = {column.name: column.dtype for column in columns}
    if not isinstance(gate.partition, Whole):
        types = {gate.partition.column: gate.partition.dtype(), **types}
    fixed = [pl.Series(name, values, types[name], strict=False) for name, values in given.items()]
    if fixed:
        rows = _fitting(gate, rows, fixed, lambda: _candidates(gate, columns, pools, _TRIES, chance))
    return rows.select(list(types))


def _spread(value: Any, n: int) -> list[Any]:
    values = list(value) if isinstance(value, list | tuple | pl.Series) else [value] * n
    if len(values) != n:
        raise ValueError(f"{len(values)} values are given for {n} rows")
    return values


def _candidates(
    gate: Gate, columns: Sequence[Column], pools: Mapping[str, list[Any]], n: int, chance: random.Random
) -> pl.DataFrame:
    series = []
    for column in columns:
        pool = pools[column.name]
        distinct = column.name in gate.key or f"{column.name}.unique" in gate.compiled.by_id
        values = (
            [pool[row % len(pool)] if distinct else pool[int(len(pool) * chance.random() ** 2)] for row in range(n)]
            if pool
            else []
        )
        series.append(pl.Series(column.name, values, column.dtype, strict=False))
    if not isinstance(gate.partition, Whole):
        series.insert(0, gate.partition.series([gate.partition.keys()[0]] * n))
    return pl.DataFrame(series)


def _search(
    gate: Gate, columns: Sequence[Column], pools: Mapping[str, list[Any]], n: int, chance: random.Random
) -> pl.DataFrame:
    """``n`` rows that pass together."""
    empty = [name for name, pool in pools.items() if not pool]
    if empty:
        raise ValueError(f"no value is known that passes the rules of {', '.join(empty)}; build these rows by hand")
    tried = _candidates(gate, columns, pools, _TRIES, chance)
    alone = [column.name for column in columns if f"{column.name}.unique" in gate.compiled.by_id]
    for subset in ([list(gate.key)] if gate.key else []) + [[name] for name in alone]:
        tried = tried.unique(subset, keep="first", maintain_order=True)
    accepted, findings = _judge(gate, tried)
    chosen = accepted.head(n)
    again, findings = _judge(gate, chosen) if chosen.height == n else (chosen, findings)
    if again.height < n:
        raise ValueError(f"{again.height} of {n} rows were found that pass; in the way are {', '.join(findings)}")
    return chosen


def _judge(gate: Gate, rows: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """The rows that break no rule, and the ids of the rules that others break."""
    references = {each.column: rows[each.column] for each in gate.compiled.rules if each.reference and each.column}
    keys = (gate.partition.keys()[0],)
    split = gate.judge(rows, keys, references=references)
    rules = [finding.rule for verdict in split.verdicts.values() for finding in verdict.findings]
    clean = split.accepted.filter(pl.col(WARNINGS).is_null()) if split.accepted.width else rows.clear()
    return clean.drop(WARNINGS, strict=False), rules


def _fitting(
    gate: Gate, rows: pl.DataFrame, fixed: list[pl.Series], candidates: Callable[[], pl.DataFrame]
) -> pl.DataFrame:
    """The rows with the given values; other columns are chosen to go with them, where anything does."""
    wanted = rows.with_columns(fixed)
    if _judge(gate, wanted)[0].height == rows.height:
        return wanted
    found = []
    for row in range(rows.height):
        given = [series[row : row + 1].new_from_index(0, _TRIES) for series in fixed]
        tried = candidates()
        kept = [
            pl.Series(name, [rows[row, name]], rows.schema[name]).new_from_index(0, tried.height) for name in gate.key
        ]
        tried = tried.with_columns(kept).with_columns(given)
        # Without a key, since the candidates are rivals for one place, not rows of one table.
        clean, _ = _judge(Gate(gate.contract, partition=gate.partition), tried)
        found.append(clean.head(1) if clean.height else wanted[row : row + 1].select(tried.columns))
    return pl.concat(found)


# Values


def _passing(gate: Gate, column: Column) -> list[Any]:
    """Values of a column that pass its own rules; those that need other columns are left for later."""
    declared = gate.schema.columns[column.name]
    if column.dtype is None:
        raise ValueError(f"{column.name!r} has no declared type, so that no values of it are known")
    values = [*_named_by_checks(declared), *_values(column.dtype)]
    plain = pa.Column(column.dtype, declared.checks, nullable=False)
    frame = pl.DataFrame({column.name: pl.Series(column.name, values, column.dtype, strict=False)}).unique(
        maintain_order=True
    )
    try:
        own = Gate(pa.DataFrameSchema({column.name: plain}))
    except DeclarationError:
        return frame.to_series().drop_nulls().to_list()
    split = own.judge(frame.drop_nulls())
    clean = split.accepted.filter(pl.col(WARNINGS).is_null()) if split.accepted.width else split.accepted
    return clean.to_series().to_list() if clean.width else []


def _named_by_checks(column: pa.Column) -> Iterator[Any]:
    """Values that the column's checks are about, and their neighbours."""
    for check in column.checks:
        for name, value in check.statistics.items():
            if isinstance(value, list | tuple | set | frozenset):
                yield from sorted(value, key=str)
            elif name in {"pattern", "string"}:
                yield from _matching(str(getattr(value, "pattern", value)), check.name or "")
            elif (
                isinstance(value, int)
                and name in {"min_value", "max_value", "exact_value"}
                and "length" in str(check.name)
            ):
                yield from (letter * value for letter in "abcxyz")
            elif isinstance(value, int | float | Decimal) and not isinstance(value, bool):
                steps = range(_POOL)
                yield from (value + step for step in steps)
                yield from (value - step for step in steps)
            elif isinstance(value, dt.date):
                yield from (value + dt.timedelta(days=step) for step in range(-_POOL, _POOL))
            else:
                yield value


def _matching(pattern: str, check: str) -> Iterator[str]:
    """Texts that match a pattern, the simplest ones."""
    if check == "str_startswith":
        yield from (f"{pattern}{n}" for n in range(_POOL))
    elif check == "str_endswith":
        yield from (f"{n}{pattern}" for n in range(_POOL))
    elif re.escape(pattern) == pattern:
        yield from (f"{pattern}{n}" for n in range(_POOL))
    else:
        yield from _generated(pattern.removeprefix("^").removesuffix("$") if check == "str_matches" else pattern)


@cache
def _generated(pattern: str) -> tuple[str, ...]:
    from hypothesis import Phase, find, settings  # noqa: PLC0415 - for tests; the engine does without
    from hypothesis import strategies as st  # noqa: PLC0415

    texts = st.from_regex(pattern, fullmatch=True, alphabet=st.characters(codec="ascii"))
    quick = settings(max_examples=20, phases=[Phase.generate], derandomize=True, database=None, deadline=None)
    seen: list[str] = []
    for _ in range(_PATTERNS):
        try:
            seen.append(find(texts, lambda text: text not in seen, settings=quick))
        except Exception:  # noqa: BLE001 - there is no further one
            break
    return tuple(seen)


_START = dt.datetime(2017, 1, 1, 12)  # noqa: DTZ001 - moved into the column's own zone where it has one

_SIMPLE: dict[Any, Callable[[int], Any]] = {
    pl.String: lambda n: f"{'abcdefghijklmnopqrstuvwxyz'[n % 26]}{n // 26 or ''}",
    pl.Boolean: lambda n: n % 2 == 0,
    pl.Date: lambda n: (_START + dt.timedelta(days=n)).date(),
    pl.Time: lambda n: dt.time(12, n),
    pl.Duration: lambda n: dt.timedelta(hours=n),
    pl.Binary: lambda n: bytes([n]),
    pl.Categorical: lambda n: f"c{n}",
}


def _values(dtype: pl.DataType) -> list[Any]:
    """Ordinary values of a type, small and positive ones first."""
    if isinstance(dtype, pl.Enum):
        return dtype.categories.to_list()
    if isinstance(dtype, pl.List | pl.Array):
        size = dtype.size if isinstance(dtype, pl.Array) else 2
        return [[value] * size for value in _values(dtype.inner)]  # type: ignore[arg-type]
    if isinstance(dtype, pl.Struct):
        pools = {each.name: _values(each.dtype) for each in dtype.fields}  # type: ignore[arg-type]
        return [{name: pool[n % len(pool)] for name, pool in pools.items()} for n in range(_POOL)]
    return _plain_values(dtype)


def _plain_values(dtype: pl.DataType) -> list[Any]:
    if isinstance(dtype, pl.Datetime):
        start = pl.Series([_START], dtype=pl.Datetime(dtype.time_unit)).dt.replace_time_zone(dtype.time_zone)[0]
        return [start + dt.timedelta(hours=n) for n in range(_POOL)]
    if dtype.is_decimal():
        return [Decimal(n) for n in range(1, _POOL)]
    if dtype.is_numeric():
        return [*range(1, _POOL), 0, 100, 1_000, 1_000_000, *range(-5, 0)] + ([0.5, 0.25] if dtype.is_float() else [])
    make = _SIMPLE[dtype.base_type()]
    return list(dict.fromkeys(make(n) for n in range(_POOL)))


# Partitions kept apart


def assert_partitionwise(table: Any, *frames: pl.DataFrame | pl.LazyFrame) -> None:
    """Assert that a table's transform gives for many partitions at once what it gives for each alone.

    That is what ``partitionwise=True`` promises, and what the engine relies on when it runs a range in one pass.

    Args:
        table: a declared silver or gold table.
        *frames: one for each of its inputs, in their order. Those with the table's partition column are cut by it and
            hold several partitions; the others are given whole.

    Raises:
        AssertionError: naming the first partition that differs, with the difference.
        ValueError: if the frames cannot tell: not one for each input, or no two partitions.
    """
    column, name = table.partition.column, getattr(table, "path", table)
    if not callable(table.transform):
        raise ValueError(f"{name}: the transform is no function; SQL is run by the engine, one partition at a time")
    if len(frames) != len(table.inputs):
        raise ValueError(f"{name}: {len(frames)} frames are given for the inputs {list(table.inputs)}")
    inputs = {given: frame.lazy().collect() for given, frame in zip(table.inputs, frames, strict=True)}
    cut = {given for given, frame in inputs.items() if column in frame.columns}
    keys = sorted({key for given in cut for key in inputs[given][column].unique().to_list()}, key=str)
    if len(keys) < 2:
        raise ValueError(f"{name}: the frames have {len(keys)} partitions by {column!r}; give at least two")
    together = table.transform(**{given: frame.lazy() for given, frame in inputs.items()}).collect()
    if column not in together.columns:
        raise AssertionError(f"{name}: given many partitions, the result has no column {column!r} to tell them apart")
    for key in keys:
        mine = {g: f.filter(pl.col(column) == key) if g in cut else f for g, f in inputs.items()}
        alone = table.transform(**{given: frame.lazy() for given, frame in mine.items()}).collect()
        try:
            assert_frame_equal(together.filter(pl.col(column) == key), alone, check_row_order=False)
        except AssertionError as difference:
            raise AssertionError(
                f"{name}: partition {key} alone gives something else than with the others, so that rows of different "
                f"partitions are mixed: {difference}"
            ) from difference
    others = together.filter(~pl.col(column).is_in(keys))
    if others.height:
        raise AssertionError(
            f"{name}: given many partitions, there are rows of others: {others[column].unique().to_list()}"
        )
