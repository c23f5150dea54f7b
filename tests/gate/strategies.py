"""Random schemas and frames: all that pandera's polars backend can be told, on values that are hard to judge.

A pair is made from a seed alone, so that a failing test names the seed and anybody can look at the same pair.
"""

import datetime as dt
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pandera.backends.polars.builtin_checks  # noqa: F401 - registers the checks before the first one is made
import pandera.polars as pa
import polars as pl

NEW_YORK = ZoneInfo("America/New_York")


@dataclass(frozen=True)
class Kind:
    """A type with the values that a column of it is made of, and that checks compare with."""

    dtype: Any
    values: tuple[Any, ...]
    ordered: bool = True
    text: bool = False


def _integers(dtype: Any) -> Kind:
    low, high = pl.select(low=pl.lit(0, dtype).lower_bound(), high=pl.lit(0, dtype).upper_bound()).row(0)
    return Kind(dtype(), tuple(dict.fromkeys([low, max(low, -1), 0, 1, 2, 5, high])))


def _moments(zone: dt.tzinfo | None) -> tuple[dt.datetime, ...]:
    naive = [(1970, 1, 1, 0), (2017, 3, 12, 1), (2017, 11, 5, 1), (2024, 2, 29, 23), (2100, 12, 31, 12)]
    return tuple(dt.datetime(*each, tzinfo=zone) for each in naive)


_FLOATS = (float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 1.0, 1.5, 2.0, 5.0, -3.25)
_TEXTS = ("", "a", "ab", "b", "ß", "日本", "e\u0301", "a b\n", "1", "2.5", "null", "A")

KINDS = (
    *map(_integers, [pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64]),
    Kind(pl.Float32(), _FLOATS),
    Kind(pl.Float64(), (*_FLOATS, 1e300)),
    Kind(pl.String(), _TEXTS, text=True),
    Kind(pl.Boolean(), (True, False)),
    Kind(pl.Date(), (dt.date(1969, 12, 31), dt.date(2017, 3, 12), dt.date(2024, 2, 29), dt.date(9999, 12, 31))),
    Kind(pl.Datetime("us"), _moments(None)),
    Kind(pl.Datetime("ms", "America/New_York"), _moments(NEW_YORK)),
    Kind(pl.Datetime("ns", "UTC"), _moments(dt.UTC)),
    Kind(pl.Time(), (dt.time(0), dt.time(12, 30), dt.time(23, 59, 59, 999999))),
    Kind(pl.Duration("us"), tuple(dt.timedelta(seconds=each) for each in (0, -86_400, 90_000, 1e-6))),
    Kind(pl.Decimal(10, 2), tuple(map(Decimal, ["0.00", "1.50", "-2.25", "99999999.99"]))),
    Kind(pl.Categorical(), ("a", "b", "ß"), ordered=False),
    Kind(pl.Enum(["c", "b", "a"]), ("a", "b", "c"), ordered=False),
    Kind(pl.Binary(), (b"", b"a", b"\x00\xff"), ordered=False),
    Kind(pl.List(pl.Int64), ([], [1], [1, None], [2, 3]), ordered=False),
    Kind(pl.Struct({"x": pl.Int64, "y": pl.String}), ({"x": 1, "y": "a"}, {"x": None, "y": "a"}, {"x": 2, "y": None})),
    Kind(pl.Array(pl.Int64, 2), ([1, 2], [1, None], [3, 4]), ordered=False),
)  # fmt: skip
"""Common kinds come more often: see ``Maker.kind``."""
NESTED = (pl.List, pl.Struct, pl.Array)


@dataclass
class Pair:
    """A schema and a frame for it, with what a reader of a failure wants to know."""

    seed: int
    schema: pa.DataFrameSchema
    frame: pl.DataFrame
    parts: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        checks = {name: [str(check) for check in column.checks] for name, column in self.schema.columns.items()}
        return f"seed {self.seed}\n{self.schema}\nchecks: {checks} {list(map(str, self.schema.checks))}\n{self.frame}"


class Maker:
    """Makes schemas and frames from one source of randomness."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.seed = seed

    def maybe(self, share: float) -> bool:
        return self.rng.random() < share

    def kind(self) -> Kind:
        common = [kind for kind in KINDS if kind.dtype in (pl.Int64, pl.Float64, pl.String)]
        return self.rng.choice(common if self.maybe(0.35) else KINDS)

    def values(self, kind: Kind, height: int, nulls: float = 0.15) -> list[Any]:
        few = self.rng.sample(kind.values, k=min(len(kind.values), self.rng.randint(1, 5)))
        return [None if self.maybe(nulls) else self.rng.choice(few) for _ in range(height)]

    def pick(self, kind: Kind) -> Any:
        plain = [value for value in kind.values if value == value]  # noqa: PLR0124 - no NaN: nobody asks for more than NaN
        return self.rng.choice(plain)

    # Checks

    def options(self) -> dict[str, Any]:
        return {"ignore_na": self.maybe(0.7), "raise_warning": self.maybe(0.12)}

    def column_check(self, kind: Kind, name: str, others: Sequence[str]) -> pa.Check:
        makers: list[Callable[[Kind, str], pa.Check]] = [self.membership, self.custom, self.aggregate]
        if kind.ordered and not isinstance(kind.dtype, NESTED):
            makers += [self.comparison] * 3
        if kind.text:
            makers += [self.about_text] * 3
        if not isinstance(kind.dtype, NESTED):
            makers.append(self.element_wise)
        return self.rng.choice(makers)(kind, name)

    def comparison(self, kind: Kind, name: str) -> pa.Check:
        which = self.rng.choice(["equal_to", "not_equal_to", "greater_than", "greater_than_or_equal_to", "less_than",
                                 "less_than_or_equal_to", "in_range"])  # fmt: skip
        if which != "in_range":
            check: pa.Check = getattr(pa.Check, which)(self.pick(kind), **self.options())
            return check
        low, high = sorted([self.pick(kind), self.pick(kind)])
        if low == high:
            return pa.Check.in_range(low, high, **self.options())
        ends = {"include_min": self.maybe(0.5), "include_max": self.maybe(0.5)}
        return pa.Check.in_range(low, high, **ends, **self.options())

    def membership(self, kind: Kind, name: str) -> pa.Check:
        chosen = self.rng.sample(kind.values, k=self.rng.randint(1, len(kind.values)))
        if isinstance(kind.dtype, NESTED):
            return self.custom(kind, name)
        which = self.rng.choice(["isin", "notin", "unique_values_eq"])
        if which == "unique_values_eq":
            return pa.Check.unique_values_eq(set(chosen), **self.options())
        check: pa.Check = getattr(pa.Check, which)(chosen, **self.options())
        return check

    def about_text(self, kind: Kind, name: str) -> pa.Check:
        options = self.options()
        match self.rng.randrange(5):
            case 0:
                return pa.Check.str_matches(self.rng.choice(["a", "^a", "[ab]+$", "日", "^$", r"\d"]), **options)
            case 1:
                return pa.Check.str_contains(self.rng.choice(["a", "b$", "本", r"\s"]), **options)
            case 2:
                return pa.Check.str_startswith(self.rng.choice(["a", "", "ß"]), **options)
            case 3:
                return pa.Check.str_endswith(self.rng.choice(["b", "", "本"]), **options)
            case _:
                bounds = self.rng.choice([(1, None), (None, 1), (1, 2), (0, 0)])
                if self.maybe(0.3):
                    return pa.Check.str_length(exact_value=self.rng.randint(0, 2), **options)
                return pa.Check.str_length(*bounds, **options)

    def custom(self, kind: Kind, name: str) -> pa.Check:
        """A row check of the column's own, with and without looking at other rows."""
        bodies: list[Callable[[str], pl.Expr]] = [
            lambda key: pl.col(key).is_not_null(),
            lambda key: pl.col(key) == pl.col(key).first(),
            lambda key: pl.col(key).is_null() | pl.col(key).is_not_null(),
            lambda key: pl.col(key) != pl.col(key).last(),
            lambda key: pl.when(pl.col(key).is_null()).then(None).otherwise(pl.lit(value=True)),
        ]
        if not isinstance(kind.dtype, NESTED):
            bodies += [
                lambda key: pl.col(key).is_first_distinct(),
                lambda key: pl.len().over(key) <= 2,
                lambda key: (pl.col(key) != pl.col(key).shift(1)).fill_null(value=True),
            ]
        body = self.rng.choice(bodies)
        return pa.Check(lambda data: data.lazyframe.select(body(data.key)), **self.options())

    def aggregate(self, kind: Kind, name: str) -> pa.Check:
        """A check that gives one value in all: as an expression, or as a bool."""
        least = self.rng.randint(0, 4)
        match self.rng.randrange(4):
            case 0:
                return pa.Check(lambda data: data.lazyframe.select(pl.col(data.key).count() >= least), **self.options())
            case 1:
                return pa.Check(lambda data: data.lazyframe.collect().height >= least, **self.options())
            case 2:
                return pa.Check(lambda data: data.lazyframe.select(pl.len() > least), **self.options())
            case _:
                return pa.Check(
                    lambda data: data.lazyframe.select(pl.col(data.key).first().is_null() & (pl.len() > least)),
                    **self.options(),
                )

    def element_wise(self, kind: Kind, name: str) -> pa.Check:
        wanted = self.pick(kind)
        functions: list[Callable[[Any], bool]] = [
            lambda value: bool(value == wanted),
            lambda value: value is not None,
            lambda value: len(str(value)) % 2 == 0,
        ]
        return pa.Check(self.rng.choice(functions), element_wise=True, **self.options())

    def frame_check(self, names: Sequence[str], kinds: Sequence[Kind]) -> pa.Check:
        first, last = self.rng.choice(names), self.rng.choice(names)
        numbers = [n for n, k in zip(names, kinds, strict=True) if k.dtype.is_numeric()]
        bodies: list[Callable[[], pl.Expr | list[pl.Expr]]] = [
            lambda: pl.col(first).is_not_null() | pl.col(last).is_null(),
            lambda: pl.col(first).is_null() ^ pl.col(last).is_not_null(),
            lambda: ~(pl.col(first).is_null() & pl.col(last).is_null()),
            lambda: [pl.col(name).is_not_null().alias(name) for name in names],
            lambda: pl.all().is_not_null(),
            lambda: pl.len() >= len(names),
            lambda: pl.col(first).null_count() <= 1,
        ]
        if numbers:
            one, other = self.rng.choice(numbers), self.rng.choice(numbers)
            bodies += [
                lambda: pl.col(one) <= pl.col(other),
                lambda: pl.col(one) >= pl.col(other).mean(),
                lambda: pl.col(one).sum() >= 0,
                lambda: (pl.col(one) > 0) | (pl.col(other) < 2),
            ]
        body = self.rng.choice(bodies)
        if self.maybe(0.1):
            return pa.Check(lambda data: data.lazyframe.collect().height != len(names), **self.options())
        if self.maybe(0.1) and len(numbers) == len(names):
            return self.rng.choice([pa.Check.gt(0, **self.options()), pa.Check.isin([1, 2, 5], **self.options())])
        return pa.Check(lambda data: data.lazyframe.select(body()), **self.options())

    # Schemas

    def column(self, kind: Kind, name: str, names: Sequence[str], **settings: Any) -> pa.Column:
        checks = [self.column_check(kind, name, names) for _ in range(self.rng.choice([0, 0, 1, 1, 2, 3]))]
        untyped = self.maybe(0.05)
        chosen: dict[str, Any] = {
            "dtype": None if untyped else kind.dtype,
            "nullable": self.maybe(0.5),
            "unique": self.maybe(0.12),
            "required": self.maybe(0.85),
        }
        if not untyped and self.maybe(0.1) and not isinstance(kind.dtype, NESTED):
            chosen["default"] = self.pick(kind)
        return pa.Column(**{**chosen, "checks": checks, **settings})

    def pair(self) -> Pair:
        height = self.rng.choice([0, 1, 2, 3, 4, 5, 6, 8])
        names = [f"c{n}" for n in range(self.rng.randint(1, 3))]
        if self.maybe(0.1):
            names[0] = self.rng.choice(["日本", "a b", "a.b", "table", "x+y"])
        kinds = [self.kind() for _ in names]
        columns = {n: self.column(k, n, names) for n, k in zip(names, kinds, strict=True)}
        series = [self.series(n, k, columns[n], height) for n, k in zip(names, kinds, strict=True)]
        if self.maybe(0.12):
            kind = self.kind()
            columns[r"^r_\d$"] = self.column(kind, r"^r_\d$", names, regex=True)
            series += [
                pl.Series(f"r_{n}", self.values(kind, height), kind.dtype) for n in range(self.rng.randint(0, 2))
            ]
        extra = self.maybe(0.1)
        if extra:
            series.append(pl.Series("extra", list(range(height)), pl.Int64))
        if self.maybe(0.08) and len(series) > 1:
            series.pop(self.rng.randrange(len(series)))
        if self.maybe(0.15):
            self.rng.shuffle(series)
        flat = not extra and all(not column.regex for column in columns.values())
        checks = [self.frame_check(names, kinds) for _ in range(self.rng.choice([0, 0, 0, 1, 2]))] if flat else []
        schema = pa.DataFrameSchema(
            columns,
            checks=checks,
            strict=self.rng.choice([False, False, False, True, "filter"]),
            ordered=self.maybe(0.1),
            unique=self.unique(names),
            coerce=self.maybe(0.08),
            add_missing_columns=self.maybe(0.15),
        )
        return Pair(self.seed, schema, pl.DataFrame(series) if series else pl.DataFrame(), {"height": height})

    def unique(self, names: Sequence[str]) -> Any:
        if self.maybe(0.85):
            return None
        groups = [self.rng.sample(names, k=self.rng.randint(1, len(names))) for _ in range(self.rng.randint(1, 2))]
        return groups[0] if len(groups) == 1 else groups

    def series(self, name: str, kind: Kind, column: pa.Column, height: int) -> pl.Series:
        """The column's values: mostly of its type; of another one sometimes, and then often to be coerced."""
        nulls = self.rng.choice([0, 0, 0.15, 0.5])
        if self.maybe(0.8) or column.dtype is None:
            return pl.Series(name, self.values(kind, height, nulls), kind.dtype)
        column.coerce = self.maybe(0.8)
        return self.foreign(name, kind, height, nulls)

    def foreign(self, name: str, kind: Kind, height: int, nulls: float) -> pl.Series:
        """Values of another type than the declared one."""
        if self.maybe(0.6) and not isinstance(kind.dtype, NESTED):
            texts = [None if self.maybe(nulls) else self.text(kind) for _ in range(height)]
            return pl.Series(name, texts, pl.String)
        given = self.kind()
        return pl.Series(name, self.values(given, height, nulls), given.dtype)

    def text(self, kind: Kind) -> str:
        if self.maybe(0.25):
            return self.rng.choice(
                ["-", "", "1.5", "300", "2017-02-30", " 1", "1e3", "nan", "+7", "0x10", "true", "１"]
            )
        value = self.rng.choice(kind.values)
        return value.isoformat() if isinstance(value, dt.date | dt.time) else str(value)


def pair(seed: int) -> Pair:
    """The pair of a seed."""
    return Maker(seed).pair()
