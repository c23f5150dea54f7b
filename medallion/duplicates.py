"""What happens to rows that share a key: identical copies collapse, the newest version wins, other copies conflict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

__all__ = ["Resolved", "resolve_duplicates"]


@dataclass(frozen=True)
class Resolved:
    """Rows by what became of them: accepted in the order they came, collapsed copies, conflicting rows."""

    accepted: pl.DataFrame
    collapsed: pl.DataFrame
    conflicting: pl.DataFrame


def resolve_duplicates(
    passing: pl.DataFrame,
    failing: pl.DataFrame,
    *,
    by: Sequence[str],
    content: Sequence[str],
    version_column: str | None,
) -> Resolved:
    """Make the key unique.

    Args:
        passing: rows that broke no ERROR rule, sorted by ``by``.
        failing: rows that are refused already. A passing row with the key of a failing one conflicts with it: the two
            say different things about one thing, and neither is known to be right.
        by: partition column and key; empty if there is no key.
        content: the columns that are compared.
        version_column: of copies that differ, the one with the highest value here wins; if two have it, all conflict.
    """
    nothing = passing.clear()
    keys = _shared_keys(passing, failing, by) if by and passing.height else None
    if keys is None or keys.height == 0:
        return Resolved(passing, nothing, nothing)
    rows = passing.with_row_index("_at")
    suspected = rows.join(keys, on=list(by), how="semi", maintain_order="left")
    refused = failing.join(keys, on=list(by), how="semi")
    distinct = suspected.unique(list(content), keep="first", maintain_order=True)
    newest = distinct
    version = [version_column] if version_column is not None else []
    if version_column is not None:
        newest = distinct.filter(_is_newest(version_column, by))
    rivals = pl.concat([newest.select(*by, *version), refused.select(*by, *version)])
    if version_column is not None:
        # A refused row of an older version says nothing against the newest one.
        rivals = rivals.filter(_is_newest(version_column, by))
    contested = rivals.group_by(by).len().filter(pl.col("len") > 1).select(by)
    if version_column is not None:
        # The newest version is a refused one: what is left would be out of date.
        outdated = (
            newest.select(*by, *version).join(rivals, on=[*by, *version], how="anti", nulls_equal=True).select(by)
        )
        # A refused row that does not tell its version may be the newest.
        untold = refused.filter(pl.col(version_column).is_null()).select(by)
        contested = pl.concat([contested, outdated, untold]).unique()
    conflicting = suspected.join(contested, on=list(by), how="semi", maintain_order="left")
    gone = suspected.join(newest.select("_at"), on="_at", how="anti", maintain_order="left")
    collapsed = gone.join(conflicting.select("_at"), on="_at", how="anti", maintain_order="left")
    dropped = pl.concat([conflicting.select("_at"), collapsed.select("_at")])
    accepted = rows.join(dropped, on="_at", how="anti", maintain_order="left")
    return Resolved(accepted.drop("_at"), collapsed.drop("_at"), conflicting.drop("_at"))


def _is_newest(version_column: str, by: Sequence[str]) -> pl.Expr:
    """Whether a row has its key's highest version; no version is the lowest."""
    return pl.col(version_column).eq_missing(pl.col(version_column).max().over(by))


def _shared_keys(passing: pl.DataFrame, failing: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """The keys that more than one row has, at least one of them passing."""
    # Sorted by key, so that equal keys are neighbours: exact, and cheaper than any hash.
    same = passing.select(pl.all_horizontal([pl.col(c) == pl.col(c).shift(1) for c in by]).fill_null(value=False))
    repeated = passing.filter(same.to_series()).select(by)
    if failing.height:
        repeated = pl.concat([repeated, passing.select(by).join(failing.select(by), on=list(by), how="semi")])
    return repeated.unique()
