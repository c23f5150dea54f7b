"""Rules that look across rows, such as ``unique``: judged once the copies of a row are gone, and again until they hold.

Dropping rows can make such a rule false for a row for which it held before, so that it is judged on what is about to
be published until nothing more is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from medallion.compiler import Rule
from medallion.masks import Gated, Query
from medallion.severity import CRITICAL, ERROR
from medallion.verdict import Finding

__all__ = ["settle"]

_AT = "_row"
_ROUNDS = 20


def settle(gated: Gated, query: Query, dropped: pl.Series) -> Gated:
    """Judge by the rules that look across rows.

    Args:
        gated: rows with the bits of all other rules.
        query: what made them.
        dropped: numbers of the rows that are not there any more: copies that collapsed.

    Returns:
        the same rows with all bits. A rule that refuses further rows in every round becomes a finding that blocks.
    """
    rules = [rule for rule in gated.rules if rule.check is not None and rule.check.across]
    if not rules:
        return gated
    rows = gated.rows.lazy().with_row_index(_AT)
    there = rows.filter(~pl.col(_AT).is_in(dropped.implode())) if dropped.len() else rows
    # The first time, rows that are refused anyway are judged as well: they are to carry every reason.
    gated, rules = _judge(gated, query, there, rules)
    refusing = [rule for rule in rules if rule.severity >= ERROR]
    for _ in range(_ROUNDS):
        before = gated
        gated, refusing = _judge(gated, query, _left(gated, dropped), refusing)
        if gated.rows is before.rows:
            tagging = [rule for rule in rules if rule.severity < ERROR]
            return _judge(gated, query, _left(gated, dropped), tagging)[0]
    finding = Finding(refusing[0].id, CRITICAL, "table", 0, "does not settle: each round refuses further rows")
    return gated.with_raised([finding])


def _left(gated: Gated, dropped: pl.Series) -> pl.LazyFrame:
    rows = gated.rows.lazy().with_row_index(_AT).filter(~gated.broken(gated.at_least(ERROR)))
    return rows.filter(~pl.col(_AT).is_in(dropped.implode())) if dropped.len() else rows


def _judge(gated: Gated, query: Query, rows: pl.LazyFrame, rules: Sequence[Rule]) -> tuple[Gated, list[Rule]]:
    """Add the bits of what ``rows`` break; the rules that raised are no longer among those returned."""
    if not rules:
        return gated, []
    unreadable = query.typed()[2]
    broken = [query.breaks(rule, unreadable).alias(f"breaks {n}") for n, rule in enumerate(rules)]
    any_broken = pl.any_horizontal(pl.all().exclude(_AT))
    try:
        found = rows.select(_AT, *broken).filter(any_broken).collect()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        sound, raised = query.isolate(rows.collect(), rules, unreadable)
        return _judge(gated.with_raised(raised), query, rows, sound)
    return _add_bits(gated, found, rules), list(rules)


def _add_bits(gated: Gated, found: pl.DataFrame, rules: Sequence[Rule]) -> Gated:
    rows = gated.rows
    for n, rule in enumerate(rules):
        at = found.filter(pl.col(f"breaks {n}")).get_column(_AT)
        for mask, word in zip(gated.masks, gated.bits(rule.__eq__), strict=True):
            bits = rows.get_column(mask)
            if word and at.len() and not ((bits[at] & word) == word).all():
                rows = rows.with_columns(bits.scatter(at, bits[at] | word).alias(mask))
    return gated if rows is gated.rows else gated.with_rows(rows)
