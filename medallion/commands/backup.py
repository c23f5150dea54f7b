"""A copy of the lake elsewhere, and the way back from it."""

from __future__ import annotations

import datetime as dt
import json

import click

from medallion.cli import Settings
from medallion.errors import BackupRefused, MedallionError

__all__ = ["backup", "promote", "recover", "restore_copy"]


@click.command()
@click.argument("to")
@click.option("--keep", type=click.IntRange(min=1), help="Afterwards forget all manifests but the newest N.")
@click.option("--check", is_flag=True, help="Read the newest manifest's bytes instead, and tell what is damaged.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.pass_obj
def backup(settings: Settings, to: str, *, keep: int | None, check: bool, as_json: bool) -> None:
    """Copy what is new of the lake to TO: a folder outside of it, or s3://bucket/prefix."""
    from dataclasses import asdict

    from medallion.backup import backup as make
    from medallion.manifests import check_backup, prune, read_manifest
    from medallion.store import open_place

    if check:
        place = open_place(to)
        manifest = read_manifest(place)
        wrong = check_backup(place, manifest)
        for each in wrong:
            click.echo(each, err=True)
        if wrong:
            raise BackupRefused(f"{len(wrong)} files of the backup {place}, manifest {manifest.name}, are damaged.")
        click.echo(f"{manifest.name}: {len(manifest.files):,} files, {manifest.size:,} bytes, all as they were written")
        return
    lake = settings.lake()
    try:
        project = settings.project()
    except MedallionError:  # the lake answers alone
        project = None
    done = make(lake, to, project=project)
    pruned = prune(open_place(to), keep) if keep is not None else ()
    tables = {table: asdict(cut) for table, cut in done.manifest.tables.items()}
    if as_json:
        told = {
            "manifest": done.manifest.name, "at": done.manifest.at, "tables": tables,
            "files": len(done.manifest.files), "bytes": done.manifest.size,
            "copied_files": done.copied, "copied_bytes": done.copied_bytes, "forgotten": list(pruned),
        }  # fmt: skip
        click.echo(json.dumps(told, indent=2))
        return
    for table, cut in done.manifest.tables.items():
        click.echo(f"{table:30} version {cut.version:>5}  {cut.partitions:>6,} partitions  {cut.rows:>12,} rows")
    click.echo(
        f"{done.copied:,} of {len(done.manifest.files):,} files were new, {done.copied_bytes:,} bytes. What was "
        f"committed by {done.manifest.at} is in {done.manifest.name}"
    )
    for name in pruned:
        click.echo(f"forgotten: {name}")


@click.command()
@click.option("--from", "source", required=True, metavar="BACKUP", help="A folder, or s3://bucket/prefix.")
@click.option("--into", required=True, metavar="NEW_ROOT", help="An empty or missing folder, or s3://bucket/prefix.")
@click.option("--manifest", help="The name of a manifest of the backup; the newest if not given.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def recover(source: str, into: str, manifest: str | None, *, as_json: bool) -> None:
    """Restore a lake from a backup into an empty root, and verify it.

    The copy can be read and verified, and publishes nothing until `medallion promote`.
    """
    restore_copy(source, into, manifest, as_json=as_json)


def restore_copy(source: str, into: str, manifest: str | None, *, as_json: bool) -> None:
    """Restore a lake from a backup and tell of it."""
    from dataclasses import asdict

    from medallion.recovery import restore_backup

    done = restore_backup(source, into, manifest=manifest)
    if as_json:
        told = {
            "manifest": done.manifest.name, "rpo": done.manifest.at, "rto_seconds": round(done.seconds, 3),
            "tables": {table: asdict(cut) for table, cut in done.tables.items()},
        }  # fmt: skip
        click.echo(json.dumps(told, indent=2))
        return
    for table, cut in done.tables.items():
        click.echo(f"{table:30} version {cut.version:>5}  {cut.rows:>12,} rows  digest {cut.digest}  as backed up")
    click.echo(
        f"{len(done.manifest.files):,} files were restored and verified in {done.seconds:.1f} s. What was committed "
        f"after {done.manifest.at} is not in it. {done.root} is an isolated copy: nothing is published in it before "
        "medallion promote."
    )


@click.command()
@click.option("--reason", required=True, help="Why the copy takes the place of the lake; kept in it.")
@click.pass_obj
def promote(settings: Settings, reason: str) -> None:
    """Let a verified copy take the place of the lake that was lost: from now on it publishes."""
    from medallion.recovery import promote_copy

    lake = settings.lake()
    at = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    told = promote_copy(lake, reason=reason, at=at)
    click.echo(
        f"{lake.root} publishes from now on. It holds what was committed by {told['at']}; replay what came after."
    )
