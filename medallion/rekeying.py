"""Which partitions a change of a reference table matters for: those that use one of the rows that changed.

A corrected product makes stale exactly the days that sold it. Two kinds of use are told apart, as a batch's identity
does: an input that is used by key counts with the rows whose key occurs in the partition; a ``known_in`` reference
counts with the values of the partition that it does not know. Neither needs the transform: keys are read from the
committed inputs, and values from the committed rows and those in the quarantine, one column in one pass.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from medallion.coerce import coerce
from medallion.digests import digest
from medallion.errors import MedallionError
from medallion.evidence import Evidence
from medallion.gate import FAILURES
from medallion.identity import Basis
from medallion.inputs import reference_values, used_digests
from medallion.lake import Snapshot
from medallion.partitions import Whole
from medallion.tables import Table

__all__ = ["changed_uses"]

_KNOWN_IN = ".known_in"
_UNTOLD = ""
"""Stands for values of a partition that only its transform can tell."""


def changed_uses(
    basis: Basis, target: Snapshot, made: Mapping[str, Evidence], changed: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """The references whose change matters, for each of some partitions of which nothing else has changed.

    Args:
        basis: what the table is built from, pinned.
        target: the table, pinned.
        made: the evidence of the partitions' live batches.
        changed: for each partition, the names of the inputs and contract columns whose reference holds something else.

    Returns:
        the names that matter, for every partition of ``changed``; none if its rows use nothing of what changed. A
        reference of which this cannot be told for certain counts as one that matters.
    """
    try:
        now = _uses(basis, target, made, changed)
    except (pl.exceptions.PolarsError, OSError):  # a file that cannot be read is told of where it is needed
        return dict(changed)
    return {
        key: tuple(name for name in names if made[key].references.get(name, {}).get("used") != now[name].get(key))
        for key, names in changed.items()
    }


def _uses(
    basis: Basis, target: Snapshot, made: Mapping[str, Evidence], changed: Mapping[str, tuple[str, ...]]
) -> dict[str, Mapping[str, str]]:
    """By reference and partition, the digest of what is used now."""
    found: dict[str, Mapping[str, str]] = {}
    by_key = {name for names in changed.values() for name in names if not name.endswith(_KNOWN_IN)}
    if by_key:
        keys = [key for key, names in changed.items() if by_key & {*names}]
        found |= used_digests(basis.table, basis.inputs, keys)
    for name in {name for names in changed.values() for name in names} - by_key:
        keys = [key for key, names in changed.items() if name in names]
        found[name] = _unknown_digests(basis, target, name, {key: made[key] for key in keys})
    return found


def _knows_the_same(basis: Basis, name: str, made: Mapping[str, Evidence]) -> set[str]:
    """The partitions that were judged by a version of a reference which knew the same values as the pinned one.

    Most corrections of a reference change what is said of a value and not which values there are.
    """
    reference, snapshot = basis.references[name.removesuffix(_KNOWN_IN)]
    known = reference_values(snapshot, reference.table, reference.column)
    same: set[str] = set()
    for (version, content), keys in _by_version(name, made).items():
        try:
            before = snapshot.lake.pin(snapshot.path, snapshot.partition, version)
            values = reference_values(before, reference.table, reference.column)
            if before.content(Whole.KEY) == content and values.equals(known):
                same |= keys
        except (MedallionError, pl.exceptions.PolarsError, OSError):  # that version is gone: the rows tell
            continue
    return same


def _by_version(name: str, made: Mapping[str, Evidence]) -> dict[tuple[int, str], set[str]]:
    found: dict[tuple[int, str], set[str]] = {}
    for key, each in made.items():
        told = each.references[name]
        if told["version"] is not None and told["content"] is not None:
            found.setdefault((told["version"], told["content"]), set()).add(key)
    return found


def _unknown_digests(basis: Basis, target: Snapshot, name: str, made: Mapping[str, Evidence]) -> dict[str, str]:
    """By partition, the digest of the values that the pinned reference does not know, as the gate would find them.

    Every value of an accepted row is in the table and every value of a refused one in the quarantine, as text. Of
    collapsed copies one is in the table.
    """
    same = _knows_the_same(basis, name, made)
    told = {key: str(made[key].references[name]["used"]) for key in same}
    keys = [key for key in made if key not in same]
    if not keys:
        return told
    column = name.removesuffix(_KNOWN_IN)
    reference, snapshot = basis.references[column]
    known = reference_values(snapshot, reference.table, reference.column)
    used = [_values(basis.table, target, column, keys)]
    untold: set[str] = set()
    if basis.table.quarantine_path is not None:
        quarantine = target.lake.pin(basis.table.quarantine_path, basis.table.partition)
        refused, untold = _refused_values(basis.table, target, quarantine, column, keys)
        used.append(refused)
    values = pl.concat(used).unique()
    try:
        unknown = values.filter(pl.col("value").is_not_null() & ~pl.col("value").is_in(known.implode()))
    except pl.exceptions.PolarsError:  # the reference's column has become one of another type
        return told | dict.fromkeys(keys, _UNTOLD)
    lists = unknown.group_by("partition").agg(pl.col("value").sort())
    found = {key: list(map(str, each)) for key, each in lists.iter_rows()}
    return told | {key: _UNTOLD if key in untold else digest(found.get(key, [])) for key in keys}


def _values(table: Table, rows: Snapshot, column: str, keys: list[str], among: pl.Expr | None = None) -> pl.DataFrame:
    """The values of a column by partition, each once."""
    scan = rows.scan(keys, [column]) if among is None else rows.scan(keys, [column, FAILURES]).filter(among)
    group = pl.col(table.partition.column).cast(pl.String) if table.partition.column else pl.lit(Whole.KEY)
    return scan.select(group.alias("partition"), pl.col(column).alias("value")).unique().collect(engine="streaming")


def _refused_values(
    table: Table, target: Snapshot, quarantine: Snapshot, column: str, keys: list[str]
) -> tuple[pl.DataFrame, set[str]]:
    """The values of refused rows, read from their text as the gate would, and the partitions that do not tell them."""
    dtype = target.schema[column]
    declared = next(each for each in table.gate.compiled.columns if each.name == column)
    # A version column's losers are in neither table, and neither are the refused rows of an attempt that died.
    untold = set(keys) if table.version_column is not None or declared.default is not None else set()
    untold |= {key for key in keys if key in quarantine.files and quarantine.batch_id(key) != target.batch_id(key)}
    if column not in quarantine.schema:
        return pl.DataFrame(schema={"partition": pl.String, "value": dtype}), untold
    # What could not be read is refused for that, and no value that a reference could know.
    unreadable = pl.col(FAILURES).list.eval(pl.element().struct.field("rule") == f"{column}.type").list.any()
    text = _values(table, quarantine, column, keys, ~unreadable)
    read = coerce(pl.col("value"), pl.String(), dtype, declared.pattern)
    if read is None:
        return text.clear().cast({"value": dtype}), {*untold, *text.get_column("partition").unique()}
    values = text.with_columns(read.alias("read"))
    # As it came it was readable, and its text does not tell what it was.
    unread = values.filter(pl.col("value").is_not_null() & pl.col("read").is_null())
    return values.select("partition", value="read"), {*untold, *unread.get_column("partition")}
