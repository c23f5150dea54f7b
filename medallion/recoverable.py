"""To which versions of a table one can return, and why not to another.

A version can be read as long as the log leads to it and its files are there. ``medallion vacuum`` takes both from the
versions that it has announced, and keeps a record under ``<lake>/_retention``, from which the reason is told.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from medallion.errors import NotRecoverable
from medallion.log import list_log
from medallion.store import Place

__all__ = ["RECORDS", "check_readable", "last_vacuum", "ranges"]

RECORDS = "_retention/vacuums"


def check_readable(root: Place, table: str, version: int) -> None:
    """Refuse a version to which the log does not lead.

    Args:
        root: of the lake.
        table: ``layer/name``.
        version: of the table.

    Raises:
        NotRecoverable: with the versions that there are.
    """
    listing = list_log(root / table / "_delta_log")
    readable = listing.readable()
    if version in readable:
        return
    there = f"Recoverable are {ranges(readable)}." if readable else "No version is recoverable."
    if version > listing.latest or version < 0:
        raise NotRecoverable(table, version, f"there is no such version. {there}")
    taken = last_vacuum(root)
    told = (taken or {}).get("tables", {}).get(table)
    if taken is not None and told is not None and version < told["oldest"]:
        raise NotRecoverable(
            table,
            version,
            f"it was older than the recovery horizon of {taken['horizon']} and held by no savepoint when vacuum ran at "
            f"{taken['at']}. {there}",
        )
    raise NotRecoverable(table, version, f"the log has lost entries below it. See: medallion check-lake. {there}")


def last_vacuum(root: Place) -> dict[str, Any] | None:
    """The record of the last vacuum; None if there was none."""
    records: list[Place] = [*(root / RECORDS).glob("*.json")]
    if not records:
        return None
    found: dict[str, Any] = json.loads(max(records, key=lambda path: path.name).read_bytes())
    return found


def ranges(versions: Iterable[int]) -> str:
    """Versions as people write them: ``3, 41 to 60``."""
    parts: list[list[int]] = []
    for version in sorted(versions):
        if parts and parts[-1][-1] == version - 1:
            parts[-1][1:] = [version]
        else:
            parts.append([version])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]} to {part[-1]}" for part in parts)
