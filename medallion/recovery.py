"""From a backup to a lake again: into an empty root, verified before it is trusted, isolated until somebody decides.

The mark of isolation is the first thing that is written, so that at no moment anything publishes there by accident.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from medallion import ledger
from medallion.differences import RECONCILED
from medallion.errors import BackupRefused
from medallion.failpoints import reach
from medallion.isolation import isolate, isolation, promote
from medallion.lake import Lake
from medallion.manifests import Manifest, TableCut, measure_table, object_place, read_manifest
from medallion.staging import in_parallel
from medallion.store import Place, open_place, relative, sync, tables, write_durably

__all__ = ["Recovered", "promote_copy", "restore_backup", "verify_copy"]


@dataclass(frozen=True)
class Recovered:
    """What was restored from a backup, and verified.

    Attributes:
        manifest: from which; what was committed after its ``at`` is lost: that is the recovery point.
        root: of the lake.
        tables: what each table holds, as read back.
        seconds: from the decision to the verified copy: the recovery time.
    """

    manifest: Manifest
    root: str
    tables: Mapping[str, TableCut]
    seconds: float


def restore_backup(
    source: str | os.PathLike[str] | Place,
    into: str | os.PathLike[str] | Place,
    *,
    manifest: str | None = None,
    durable: bool = True,
) -> Recovered:
    """Restore a lake from a backup into an empty root, and verify it.

    The copy is isolated: it can be read and verified, and nothing commits to it before it is promoted. One that was
    interrupted is gone on with by asking again.

    Args:
        source: the backup.
        into: an empty or missing folder, or ``s3://bucket/prefix`` with nothing below it.
        manifest: the name of a manifest; the newest if not given.
        durable: flush files to the disk.

    Raises:
        BackupRefused: if the root is in use, or the backup or the copy is damaged; says what is. A copy that was not
            verified stays isolated.
    """
    started, decided = time.perf_counter(), dt.datetime.now(dt.UTC)
    backup, root = open_place(source), open_place(into)
    chosen = read_manifest(backup, manifest)
    _check_empty(root, backup, chosen)
    root.mkdir(parents=True, exist_ok=True)
    told = {"backup": str(backup), "manifest": chosen.name, "at": chosen.at, "decided_at": decided.isoformat()}
    isolate(root, {**told, "verified": None}, durable=durable)
    reach("copy marked")
    _fill(root, backup, chosen, durable=durable)
    reach("copy filled")
    wrong = verify_copy(root, chosen)
    if wrong:
        raise BackupRefused(
            f"the copy {root} is not what the backup {backup} says: {_some(wrong)}. It stays isolated and is not to be "
            "trusted. Remove it and restore again, from another manifest if it is the backup that is damaged."
        )
    held = _measured(root)
    now = dt.datetime.now(dt.UTC).isoformat()
    verified = {table: cut.digest for table, cut in held.items()}
    isolate(root, {**told, "verified": verified, "verified_at": now}, durable=durable)
    reach("copy verified")
    return Recovered(chosen, str(root), held, time.perf_counter() - started)


def promote_copy(lake: Lake, *, reason: str, at: str) -> Mapping[str, Any]:
    """Let a verified copy take the place of the lake that was lost, and tell the ledger of the recovery.

    Args:
        lake: the copy.
        reason: why; kept in the lake.
        at: the time, as ISO 8601.

    Returns:
        what was told of the copy.

    Raises:
        BackupRefused: see :func:`medallion.isolation.promote`.
    """
    told = promote(lake.root, reason=reason, at=at, durable=lake.durable)
    decided, verified = (dt.datetime.fromisoformat(told[name]) for name in ("decided_at", "verified_at"))
    ledger.record(
        lake,
        [
            {
                "pipeline_name": table,
                "partition": "all",
                "attempt": PurePosixPath(told["manifest"]).stem,
                "status": "recovered",
                "recovered_by": f"backup {told['backup']}",
                "reason": f"restored from a backup as of {told['at']}: {reason}",
                "started_at": decided,
                "completed_at": verified,
                "pipeline_run_id": "medallion promote",
                "target_version": cut.version,
                "target_rows": cut.rows,
                "recovery_scope": "the whole lake",
                "replay_volume": cut.rows,
                "recovery_started_at": decided,
                "recovery_completed_at": verified,
                "rto_observed": (verified - decided).total_seconds(),
                "reconciliation_status": RECONCILED,
            }
            for table, cut in _measured(lake.root).items()
            if table != ledger.PATH
        ],
    )
    return told


def _check_empty(root: Place, backup: Place, manifest: Manifest) -> None:
    mine = isolation(root) if root.exists() else None
    if mine is not None and mine["verified"] is None and mine["manifest"] in {"", manifest.name}:
        return  # a restore of this very manifest was interrupted
    in_use = any(True for _ in root.iterdir()) if isinstance(root, Path) and root.is_dir() else root.exists()
    if in_use:
        raise BackupRefused(
            f"{root} is not empty, and a backup is restored into an empty root only. Nothing was written. Choose "
            f"another root, or move away what lies there: it may be needed to see what happened. (backup {backup})"
        )


def _fill(root: Place, backup: Place, manifest: Manifest, *, durable: bool) -> None:
    """Write every file of a manifest that is not there yet.

    Raises:
        BackupRefused: naming what the backup lacks.
    """
    if isinstance(root, Path):
        for folder in sorted({str(PurePosixPath(path).parent) for path in manifest.files}):
            (root / folder).mkdir(parents=True, exist_ok=True)

    def write(item: tuple[str, tuple[str, int, int]]) -> str:
        path, (sha256, size, changed) = item
        place = root / path
        if place.is_file() and place.stat().st_size == size and _sha256(place) == sha256:
            return ""
        try:
            data = object_place(backup, sha256).read_bytes()
        except OSError as error:
            return f"{path}: its bytes {sha256} cannot be read: {error.strerror or error}"
        if hashlib.sha256(data).hexdigest() != sha256:
            return f"{path}: its bytes {sha256} have been altered"
        write_durably(place, data, durable=durable)
        if isinstance(place, Path):
            os.utime(place, ns=(changed, changed))  # by which Delta tells the time of a version
        return ""

    lost = sorted(filter(None, in_parallel(write, sorted(manifest.files.items()))))
    if lost:
        raise BackupRefused(
            f"the backup {backup} is damaged: {_some(lost)}. What could be written of {root} stays isolated and is not "
            "to be trusted. Take another manifest into another root."
        )
    if durable and isinstance(root, Path):
        in_parallel(sync, sorted({(root / path).parent for path in manifest.files}))


def _sha256(place: Place) -> str:
    return hashlib.sha256(place.read_bytes()).hexdigest()


def _some(sentences: list[str]) -> str:
    more = f"; and {len(sentences) - 3} more" if len(sentences) > 3 else ""
    return "; ".join(sentences[:3]) + more


def verify_copy(root: Place, manifest: Manifest) -> list[str]:
    """Read a restored lake back and compare it with its manifest; what differs, a sentence each.

    Every file's SHA-256, and of every table the version, the rows, the partitions and the digest of their content.
    """

    def look(item: tuple[str, tuple[str, int, int]]) -> str:
        path, (sha256, _, _) = item
        try:
            return "" if _sha256(root / path) == sha256 else f"{path} is not the file that was backed up"
        except OSError as error:
            return f"{path} cannot be read: {error.strerror or error}"

    wrong = sorted(filter(None, in_parallel(look, sorted(manifest.files.items()))))
    if wrong:
        return wrong
    held = _measured(root)
    wrong = [f"{table} is not in the copy" for table in manifest.tables.keys() - held.keys()]
    for table, cut in held.items():
        wanted = manifest.tables.get(table)
        if wanted != cut:
            wrong.append(f"{table} holds {cut}, and the backup says {wanted}")
    return sorted(wrong)


def _measured(root: Place) -> dict[str, TableCut]:
    lake = Lake(root)
    return {str(relative(each, root)): measure_table(lake.open(str(relative(each, root)))) for each in tables(root)}
