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
        by: partition column and key.
        content: the columns that are compared.
        version_column: of copies that differ, the one with the highest value here wins; if two have it, all conflict.
    """
    if passing.height == 0:
        return Resolved(passing, passing.clear(), passing.clear())
    # Sorted by key, so that equal keys are neighbours: exact, and cheaper than any hash.
    same = passing.select(pl.all_horizontal([pl.col(c) == pl.col(c).shift(1) for c in by]).fill_null(False)).to_series()
    suspects = passing.filter(same).select(by)
    if failing.height:
        shared = passing.select(by).join(failing.select(by), on=list(by), how="semi")
        suspects = pl.concat([suspects, shared])
    if suspects.height == 0:
        return Resolved(passing, passing.clear(), passing.clear())
    rows = passing.with_row_index("_at")
    keys = suspects.unique()
    suspected = rows.join(keys, on=list(by), how="semi", maintain_order="left")
    refused = failing.join(keys, on=list(by), how="semi") if failing.height else failing
    distinct = suspected.unique(list(content), keep="first", maintain_order=True)
    copies = suspected.join(distinct.select("_at"), on="_at", how="anti")
    if version_column is not None:
        newest = distinct.filter(pl.col(version_column) == pl.col(version_column).max().over(by))
        older = distinct.join(newest.select("_at"), on="_at", how="anti")
    else:
        newest, older = distinct, distinct.clear()
    rivals = pl.concat([newest.select(*by, *_version(version_column)), refused.select(*by, *_version(version_column))])
    if version_column is not None:
        rivals = rivals.filter(pl.col(version_column) == pl.col(version_column).max().over(by))
    contested = rivals.group_by(by).len().filter(pl.col("len") > 1).select(by)
    lost = newest.join(contested, on=list(by), how="semi")
    conflicting = pl.concat([lost, older.join(contested, on=list(by), how="semi")])
    copies_of_conflicting = copies.join(contested, on=list(by), how="semi")
    conflicting = pl.concat([conflicting, copies_of_conflicting])
    collapsed = pl.concat([copies, older]).join(conflicting.select("_at"), on="_at", how="anti")
    gone = pl.concat([conflicting.select("_at"), collapsed.select("_at")])
    accepted = rows.join(gone, on="_at", how="anti", maintain_order="left").drop("_at")
    return Resolved(accepted, collapsed.drop("_at"), conflicting.drop("_at"))


def _version(column: str | None) -> list[str]:
    return [column] if column is not None else []
