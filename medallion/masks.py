"""The one query of a gate: every row typed, with a bit for every row rule that it breaks.

What comes after works on the bits, so that a row's reasons cost nothing until somebody looks at them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from medallion.coerce import coerce
from medallion.columns import Column
from medallion.compiler import CompiledContract, Rule
from medallion.errors import DeclarationError
from medallion.severity import ERROR
from medallion.verdict import Finding

__all__ = ["Gated", "Query"]

_BITS = 62
"""Rules in one mask column; an Int64 keeps its sign bit out of the way."""
_RAW = "_raw."


@dataclass(frozen=True)
class Gated:
    """Rows, typed, with their bits.

    Attributes:
        rules: the rules that have a bit, in its order.
        masks: the columns that hold the bits.
        raw: by contract column, the column that holds its value as it came.
        names: the contract's columns that are there, the partition column first.
        raised: rules whose check raised instead of judging; they block.
    """

    rows: pl.DataFrame
    rules: tuple[Rule, ...]
    masks: tuple[str, ...]
    raw: Mapping[str, str]
    names: tuple[str, ...]
    raised: tuple[Finding, ...] = ()

    def with_rows(self, rows: pl.DataFrame) -> Gated:
        """The same with other bits."""
        return replace(self, rows=rows)

    def with_raised(self, raised: Iterable[Finding]) -> Gated:
        """The same with further findings that block."""
        return replace(self, raised=(*self.raised, *raised))

    def bits(self, chosen: Callable[[Rule], bool]) -> list[int]:
        """For each mask column, the bits of the chosen rules."""
        words = [0] * len(self.masks)
        for i, rule in enumerate(self.rules):
            if chosen(rule):
                words[i // _BITS] |= 1 << (i % _BITS)
        return words

    def at_least(self, severity: int) -> list[int]:
        """The bits of the rules that are as severe as that."""
        return self.bits(lambda rule: rule.severity >= severity)

    def broken(self, words: Sequence[int]) -> pl.Expr:
        """Whether a row breaks one of the rules of ``words``."""
        parts = [
            (pl.col(mask) & pl.lit(word, pl.Int64)) != 0 for mask, word in zip(self.masks, words, strict=True) if word
        ]
        return pl.any_horizontal(parts) if parts else pl.lit(value=False)

    def broken_by(self, masks: Sequence[int]) -> tuple[Rule, ...]:
        """The rules whose bits are set."""
        return tuple(rule for i, rule in enumerate(self.rules) if masks[i // _BITS] >> (i % _BITS) & 1)

    def describe(
        self, frame: pl.DataFrame, name: str, words: Sequence[int], value: Callable[[tuple[Rule, ...]], Any], dtype: Any
    ) -> pl.Series:
        """For each row something about the rules that it breaks. Few combinations occur: each is looked at once."""
        combined = frame.select(
            [(pl.col(m) & pl.lit(w, pl.Int64)).alias(m) for m, w in zip(self.masks, words, strict=True)]
        )
        distinct = combined.unique(maintain_order=True)
        values = [value(self.broken_by(row)) for row in distinct.iter_rows()]
        named = distinct.with_columns(pl.Series(name, values, dtype=dtype))
        return combined.join(named, on=list(self.masks), how="left", maintain_order="left").get_column(name)


@dataclass(frozen=True)
class Query:
    """Builds and runs the query of a compiled contract for frames with some columns.

    Attributes:
        schema: columns and types of the frame.
        group: the partition column, or None.
        references: by contract column, the values that ``known_in`` allows.
        keep: columns that are carried along untouched.
    """

    compiled: CompiledContract
    schema: Mapping[str, pl.DataType]
    group: str | None = None
    references: Mapping[str, pl.Series] = field(default_factory=dict)
    keep: Sequence[str] = ()

    def run(self, rows: pl.LazyFrame) -> Gated:
        """Evaluate every row rule on every row.

        A check that raises is found and reported as a finding that blocks; it neither passes nor stops the others.
        """
        typed, raw, unreadable = self.typed()
        rules = self.rules()
        frame = rows.with_columns(typed)
        carried = [*self.names, *(r for r in raw.values() if r.startswith(_RAW)), *self.keep]
        try:
            return self._collect(frame, carried, rules, ())
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
            sound, raised = self.isolate(frame.select(*dict.fromkeys(carried)).collect(), rules, unreadable)
            return self._collect(frame, carried, sound, raised)

    @property
    def columns(self) -> list[Column]:
        """The contract's columns that the frame has, or is given."""
        there = set(self.schema)
        added = self.compiled.adds_missing
        return [c for c in self.compiled.columns if c.name in there or (added and c.required and not c.unmatched)]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns that are published, the partition column first."""
        return tuple(dict.fromkeys([*([self.group] if self.group else []), *(c.name for c in self.columns)]))

    def rules(self) -> tuple[Rule, ...]:
        """The rules that have a bit and something to judge."""
        present = {column.name for column in self.columns}
        # A rule about an optional column that is not there has nothing to judge.
        return tuple(r for r in self.compiled.row_rules if r.column is None or r.column in present)

    def typed(self) -> tuple[list[pl.Expr], dict[str, str], dict[str, pl.Expr]]:
        """Expressions that type the columns, where each raw value is, and which values could not be read."""
        typed: list[pl.Expr] = []
        raw: dict[str, str] = {}
        unreadable: dict[str, pl.Expr] = {}
        for column in self.columns:
            name, given = column.name, self.schema.get(column.name)
            raw[name] = name
            value = pl.col(name) if given is not None else pl.lit(None, column.dtype)
            if given is not None and column.coerce and column.dtype is not None and not column.accepts(given):
                raw[name] = _RAW + name
                read = coerce(value, given, column.dtype, column.pattern)
                assert read is not None, "a column that cannot be read at all is refused by its shape"
                typed.append(value.alias(raw[name]))
                value = read
                unreadable[name] = pl.col(raw[name]).is_not_null() & pl.col(name).is_null()
            if column.default is not None:
                value = _with_default(value, column)
                if name in unreadable:
                    # A default stands in for what is missing, not for what cannot be read.
                    unreadable[name] = pl.col(raw[name]).is_not_null() & _cannot_be_read(column, raw[name], given)
            if given is None or column.default is not None or name in unreadable:
                typed.append(value.alias(name))
        return typed, raw, unreadable

    def _collect(
        self,
        frame: pl.LazyFrame,
        carried: Iterable[str],
        rules: tuple[Rule, ...],
        raised: tuple[Finding, ...],
    ) -> Gated:
        _, raw, unreadable = self.typed()
        for rule in rules:
            if rule.check is not None:
                rule.check.raised.clear()
        masks = tuple(f"_mask{n}" for n in range(max(1, -(-len(rules) // _BITS))))
        words = [self._word(rules[n * _BITS : (n + 1) * _BITS], unreadable).alias(m) for n, m in enumerate(masks)]
        rows = frame.with_columns(words).select(*dict.fromkeys(carried), *masks).collect()
        failed = [(r, r.check.raised[0]) for r in rules if r.check is not None and r.check.raised]
        found = (*raised, *(_raised(rule, error) for rule, error in failed))
        return Gated(rows, rules, masks, raw, self.names, found)

    def _word(self, rules: Sequence[Rule], unreadable: Mapping[str, pl.Expr]) -> pl.Expr:
        bits = [
            pl.when(self.breaks(rule, unreadable)).then(pl.lit(1 << i, pl.Int64)).otherwise(pl.lit(0, pl.Int64))
            for i, rule in enumerate(rules)
            if rule.check is None or not rule.check.across  # across.py sets theirs, once copies are gone
        ]
        return pl.sum_horizontal(bits) if bits else pl.lit(0, pl.Int64)

    def breaks(self, rule: Rule, unreadable: Mapping[str, pl.Expr]) -> pl.Expr:
        """Whether a row breaks a rule."""
        if rule.column is not None and rule.id == f"{rule.column}.type":
            return unreadable.get(rule.column, pl.lit(value=False))
        if rule.reference is not None and rule.column is not None:
            if rule.column not in self.references:
                raise DeclarationError(
                    f"{rule.id}: known_in judges by references={{{rule.column!r}: <series>}}; none is given"
                )
            holds = pl.col(rule.column).is_in(self.references[rule.column].implode(), nulls_equal=False)
            used = {rule.column}
        else:
            assert rule.check is not None
            assert rule.check.expr is not None
            holds = rule.check.expr
            used = set(holds.meta.root_names())
            if rule.check.across and self.group is not None:
                holds = holds.over(self.group)
        breaks = ~holds.fill_null(rule.ignore_null)
        # What could not be read is already refused for that; other rules on the value are unknown, not broken.
        unknown = [expr for name, expr in unreadable.items() if name in used]
        return breaks & ~pl.any_horizontal(unknown) if unknown else breaks

    def isolate(
        self, frame: pl.DataFrame, rules: Sequence[Rule], unreadable: Mapping[str, pl.Expr]
    ) -> tuple[tuple[Rule, ...], tuple[Finding, ...]]:
        """Which rules can be evaluated at all, and what is to be said of the others."""
        sound: list[Rule] = []
        raised: list[Finding] = []
        for rule in rules:
            try:
                frame.select(self.breaks(rule, unreadable).alias("breaks"))
                sound.append(rule)
            except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
                raised.append(_raised(rule, error))
        return tuple(sound), tuple(raised)


def _cannot_be_read(column: Column, raw: str, given: pl.DataType | None) -> pl.Expr:
    """Whether a raw value cannot be read, told before a default takes its place."""
    assert given is not None
    assert column.dtype is not None
    read = coerce(pl.col(raw), given, column.dtype, column.pattern)
    assert read is not None
    return read.is_null()


def _with_default(value: pl.Expr, column: Column) -> pl.Expr:
    default = column.default if isinstance(column.default, pl.Expr) else pl.lit(column.default, dtype=column.dtype)
    if column.dtype is not None and column.dtype.is_float():
        value = value.fill_nan(default)
    return value.fill_null(default)


def _raised(rule: Rule, error: BaseException) -> Finding:
    reason = (str(error).splitlines() or [""])[0]
    message = f"the check raised {type(error).__name__}: {reason}"
    return Finding(rule.id, max(rule.severity, ERROR), "table", 0, message)
