"""How far back a lake can return: one duration, from which every table's retention follows.

It is kept at ``<lake>/_retention/horizon.json``. Every state that was current within the horizon can be read; what is
older may be taken by ``medallion vacuum``, unless something holds it.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Mapping

from medallion.errors import ConfigurationError, TableUnreadable
from medallion.log import FORMAT, check_format
from medallion.store import Place, write_durably

__all__ = [
    "DEFAULT",
    "LEAST",
    "parse_duration",
    "read_horizon",
    "shown_duration",
    "table_properties",
    "write_horizon",
]

DEFAULT = dt.timedelta(days=30)
LEAST = dt.timedelta(days=1)
"""An attempt on another host is taken for dead after as long; what it reads must not go while it may live."""

_FILE = "_retention/horizon.json"
_UNITS = {"h": dt.timedelta(hours=1), "d": dt.timedelta(days=1), "w": dt.timedelta(weeks=1)}
_DURATION = re.compile(r"([1-9][0-9]{0,5})([hdw])")


def parse_duration(text: str) -> dt.timedelta:
    """A duration as people write it: ``36h``, ``30d`` or ``4w``.

    Raises:
        ConfigurationError: if it is none, or shorter than a day.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ConfigurationError(f"{text!r} is no duration here: write hours, days or weeks, as 36h, 30d or 4w.")
    found = int(match[1]) * _UNITS[match[2]]
    if found < LEAST:
        raise ConfigurationError(
            f"a recovery horizon of {text} is too short: an attempt on another host may live for 24 hours before it is "
            "taken for dead. Choose 24h or more."
        )
    return found


def shown_duration(duration: dt.timedelta) -> str:
    """A duration as people write it, in days if it is whole days."""
    hours = round(duration / dt.timedelta(hours=1))
    return f"{hours // 24}d" if hours % 24 == 0 else f"{hours}h"


def read_horizon(root: Place) -> dt.timedelta:
    """The lake's recovery horizon; 30 days if none has been set.

    Raises:
        TableUnreadable: if a newer engine wrote it, or it is damaged.
    """
    path = root / _FILE
    try:
        told = json.loads(path.read_bytes())
        check_format(told["format"], f"the recovery horizon {path}")
        return dt.timedelta(hours=told["hours"])
    except FileNotFoundError:
        return DEFAULT
    except (ValueError, KeyError, TypeError) as error:
        raise TableUnreadable(
            f"the recovery horizon {path} is damaged ({type(error).__name__}: {error}). Nothing was removed. Write it "
            "again: medallion retention set 30d"
        ) from error


def write_horizon(root: Place, horizon: dt.timedelta, *, durable: bool = True) -> None:
    """Keep a recovery horizon; the tables' own properties are for :func:`medallion.retention.set_horizon`."""
    path = root / _FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    told = {"format": FORMAT, "hours": horizon / dt.timedelta(hours=1)}
    write_durably(path, json.dumps(told).encode(), durable=durable)


def table_properties(horizon: dt.timedelta) -> Mapping[str, str]:
    """What a table's metadata says of the horizon, for whoever else reads or cleans it.

    Expired entries are removed by ``medallion vacuum`` alone. deltalake (1.6) would remove them after a checkpoint, and
    with them what a savepoint needs.
    """
    interval = f"interval {round(horizon / dt.timedelta(hours=1))} hours"
    return {
        "delta.logRetentionDuration": interval,
        "delta.deletedFileRetentionDuration": interval,
        "delta.enableExpiredLogCleanup": "false",
    }
