"""Whether a lake is an isolated copy: one that came from a backup, beside a lake that may still be alive.

The mark is ``<lake>/_isolated.json``. It is written before the first file of a restored copy and removed only by
:func:`promote`. As long as it is there, nothing commits to the lake, and whoever tells others of what was published
asks :func:`isolation` first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from medallion.errors import BackupRefused, IsolatedCopy
from medallion.log import FORMAT
from medallion.store import Place, check_reachable, write_durably

__all__ = ["check_publishes", "isolate", "isolation", "promote"]

_FILE = "_isolated.json"
_HISTORY = "_promoted.json"


def isolation(root: Place) -> Mapping[str, Any] | None:
    """What is told of an isolated copy; None if it is none.

    Its ``backup`` and ``manifest``, the recovery point ``at``, when it was ``decided_at`` and, once that has been done,
    when it was ``verified_at`` and what was ``verified``: the digest of every table.

    Raises:
        ConfigurationError: if the store refuses or does not answer.
    """
    try:
        found: dict[str, Any] = json.loads((root / _FILE).read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        check_reachable(root, error)
        raise
    except ValueError:  # cut off by a power cut: the copy was not complete then
        return {"backup": "unknown", "manifest": "", "at": "", "verified": None}
    return found


def isolate(root: Place, told: Mapping[str, Any], *, durable: bool) -> None:
    """Mark a lake as an isolated copy."""
    write_durably(root / _FILE, json.dumps({"format": FORMAT, **told}, sort_keys=True).encode(), durable=durable)


def check_publishes(root: Place) -> None:
    """Refuse to publish in an isolated copy.

    Raises:
        IsolatedCopy: if it is one.
    """
    told = isolation(root)
    if told is not None:
        raise IsolatedCopy(str(root), str(told["backup"]))


def promote(root: Place, *, reason: str, at: str, durable: bool = True) -> Mapping[str, Any]:
    """Let a verified copy take the place of the lake that was lost: from now on it publishes.

    Args:
        root: of the copy.
        reason: why; kept in the lake.
        at: the time, as ISO 8601.
        durable: flush it to the disk.

    Returns:
        what was told of the copy.

    Raises:
        BackupRefused: if it is no isolated copy, or was not verified as a whole, or no reason is given.
    """
    told = isolation(root)
    if told is None:
        raise BackupRefused(f"the lake {root} is no isolated copy: it publishes already. There is nothing to do.")
    if not told.get("verified"):
        raise BackupRefused(
            f"the lake {root} was not restored and verified to the end, so it is not trusted. Nothing was changed. Go "
            f"on with: medallion recover --from {told['backup']} --into {root}"
        )
    if not reason.strip():
        raise BackupRefused("a copy is not promoted without a reason. Nothing was changed. Say why: --reason WHY")
    kept = {"format": FORMAT, "promoted_at": at, "reason": reason, "copy": dict(told)}
    write_durably(root / _HISTORY, json.dumps(kept, sort_keys=True).encode(), durable=durable)
    (root / _FILE).unlink(missing_ok=True)
    return told
