"""Gaps that nothing can fill: partitions whose source bytes are gone, from the landing zone and from the lake.

A gap is recorded beside the table, at ``<table>/_irrecoverable/<key>.json``, and from then on the partition is refused
instead of being computed from whatever lies there today. It is closed only by somebody, with a reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from medallion.errors import ConfigurationError, TableUnreadable
from medallion.evidence import EvidenceReader, SourceFile
from medallion.lake import Lake
from medallion.log import FORMAT, check_format
from medallion.partitions import Keys
from medallion.sources import LandingZone
from medallion.store import Place, write_durably
from medallion.tables import Table

__all__ = ["close_gap", "find_gaps", "irrecoverable", "past_deliveries", "record_gap"]

_FOLDER = "_irrecoverable"
_CLOSED = "closed"


def irrecoverable(lake: Lake, table: str) -> Mapping[str, str]:
    """The recorded gaps of a table: the reason by partition.

    Raises:
        TableUnreadable: if a record is damaged, or a newer engine wrote it.
    """
    found: dict[str, str] = {}
    for path in (lake.root / table / _FOLDER).glob("*.json"):
        if path.name.startswith("."):
            continue
        try:
            told = json.loads(path.read_bytes())
            check_format(told["format"], f"the record of a gap {path}")
            found[told["partition"]] = told["reason"]
        except FileNotFoundError:
            continue
        except (ValueError, KeyError, TypeError) as error:
            raise TableUnreadable(
                f"the record of a gap {path} is damaged ({type(error).__name__}: {error}). The partition named by the "
                f"file is not computed until the gap is recorded again: medallion retention gap {table} {path.stem} "
                "--reason WHY"
            ) from error
    return dict(sorted(found.items()))


def record_gap(lake: Lake, table: str, key: str, reason: str, at: str) -> None:
    """Record that a partition cannot be made again.

    Args:
        lake: the lake.
        table: ``layer/name``.
        key: the partition.
        reason: what is gone, and how that is known.
        at: the time, as ISO 8601.

    Raises:
        ConfigurationError: if no reason is given.
        UnknownPartition: if the key may not be one.
    """
    Keys("partition", (key,)).check(key)  # it becomes part of a path
    if not reason.strip():
        raise ConfigurationError("a gap is not recorded without a reason. Nothing was changed. Say why: --reason WHY")
    folder = lake.root / table / _FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    told = {"format": FORMAT, "partition": key, "reason": reason, "at": at}
    write_durably(folder / f"{key}.json", json.dumps(told, sort_keys=True).encode(), durable=lake.durable)


def close_gap(lake: Lake, table: str, key: str, reason: str, at: str) -> None:
    """Let a partition be computed again, because what it is made from has been found; the record is kept.

    Raises:
        ConfigurationError: if there is no such gap, or no reason is given.
    """
    Keys("partition", (key,)).check(key)
    path = lake.root / table / _FOLDER / f"{key}.json"
    if not reason.strip():
        raise ConfigurationError("a gap is not closed without a reason. Nothing was changed. Say why: --reason WHY")
    try:
        before = path.read_text()
    except FileNotFoundError:
        raise ConfigurationError(f"{table} {key} is not recorded as a gap. There is nothing to close.") from None
    kept = path.parent / _CLOSED
    kept.mkdir(exist_ok=True)
    told = {"format": FORMAT, "partition": key, "reason": reason, "at": at, "record": before}
    stamp = "".join(sign for sign in at if sign.isalnum())
    write_durably(kept / f"{key}.{stamp}.json", json.dumps(told, sort_keys=True).encode(), durable=lake.durable)
    path.unlink(missing_ok=True)


def find_gaps(table: Table, lake: Lake, landing: LandingZone) -> dict[str, str]:
    """The partitions of a bronze table that were delivered once and cannot be made again; recorded gaps included.

    A partition is one if the table does not hold it, an earlier batch of it is known, and the bytes of none of its
    deliveries are left in the landing zone or in the lake.
    """
    found = dict(irrecoverable(lake, table.path))
    snapshot = lake.pin(table.path, table.partition)
    for key, deliveries in past_deliveries(snapshot.folder).items():
        if key in found or snapshot.files.get(key) or landing.path(table, key).exists():
            continue
        lost = [file for file in deliveries if not (lake.root / file.kept).is_file()]
        if lost and len(lost) == len(deliveries):
            names = ", ".join(sorted({f"{file.name} (sha256 {file.sha256})" for file in lost}))
            found[key] = f"the bytes of {names} are in neither the landing zone nor the lake."
    return found


def past_deliveries(table: Place) -> dict[str, list[SourceFile]]:
    """The source files of every batch of a bronze table of which evidence is left, by partition."""
    found: dict[str, list[SourceFile]] = {}
    for evidence in EvidenceReader(table).all():
        found.setdefault(evidence.partition, []).extend(evidence.sources)
    return found
