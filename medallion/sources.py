"""From a landing zone to bronze rows: keep the exact bytes, then parse what was kept.

A file is copied into the lake under its own SHA-256 first and parsed from there, so that what was hashed, what is kept
and what was parsed are the same bytes, even if the landing zone changes meanwhile.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from medallion.errors import ConfigurationError, SourceError, SourceIncomplete, SourceMissing, SourceUnreadable
from medallion.evidence import SourceFile
from medallion.objects import ObjectPath
from medallion.staging import in_parallel, stored_type
from medallion.store import Place, readable, relative, sync, write_durably
from medallion.tables import Table

__all__ = ["Landed", "LandingZone", "collect_sources", "header", "look_for_sources", "parse"]

_KEPT = "_sources"
_PATH = "_path"
_SAMPLE = 1 << 18


class LandingZone:
    """A folder in which sources deliver files."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        """Open a landing zone.

        Raises:
            ConfigurationError: if the folder is not there.
        """
        self.root = Path(root).absolute()
        if not self.root.is_dir():
            raise ConfigurationError(
                f"the landing zone {self.root} is not there. Build the example's with `make landing`, or set "
                "MEDALLION_LANDING to the folder in which your sources deliver."
            )

    def path(self, table: Table, key: str) -> Path:
        """Where the file of a partition is delivered."""
        assert table.source is not None
        return self.root / table.source.replace("{" + table.partition.column + "}", key)

    def manifest(self, table: Table, key: str) -> Path | None:
        """Where the source says what it sent; None if it does not."""
        given = table.manifest
        return None if given is None else self.root / given.replace("{" + table.partition.column + "}", key)

    def present(self, table: Table) -> dict[str, tuple[int, int]]:
        """The partitions whose file is there, each with its size in bytes and time of change in nanoseconds."""
        found: dict[str, tuple[int, int]] = {}
        for key in table.partition.keys():  # noqa: SIM118 - a method of partitionings, not of a dictionary
            path = self.path(table, key)
            if path.exists():
                stat = path.stat()
                found[key] = (stat.st_size, stat.st_mtime_ns)
        return found

    def density(self, table: Table, key: str) -> float | None:
        """Rows a byte of a partition's file, for estimates; None if it cannot be told from its beginning or footer."""
        path = self.path(table, key)
        try:
            if _is_parquet(table):
                return float(pl.scan_parquet(path, glob=False).select(pl.len()).collect().item()) / path.stat().st_size
            with path.open("rb") as file:
                start = file.read(_SAMPLE)
        except (OSError, pl.exceptions.PolarsError):
            return None
        return start.count(b"\n") / len(start) if start else None


@dataclass(frozen=True)
class Landed:
    """What the landing zone holds for one partition: a kept file, or the reason why there is none."""

    key: str
    file: SourceFile | None
    closed: str | None = None
    rows: int | None = None
    """How many rows the source says there are; None if it does not."""


def collect_sources(
    table: Table, keys: Sequence[str], landing: LandingZone, lake: Place, *, durable: bool
) -> tuple[list[Landed], dict[str, SourceError]]:
    """Copy the files of some partitions into the lake under their SHA-256.

    Returns:
        what was found, and an error for each partition that has neither a file nor a reason for having none, or whose
        file cannot be opened.
    """
    folder = lake / table.path / _KEPT
    folder.mkdir(parents=True, exist_ok=True)

    def collect(key: str) -> Landed | SourceError:
        found, data = _read_landed(table, key, landing, lake)
        if isinstance(found, Landed) and found.file is not None:
            kept = lake / found.file.kept
            if not kept.exists() or kept.stat().st_size != len(data):
                write_durably(kept, data, durable=durable)
        return found

    results = dict(zip(keys, in_parallel(collect, keys), strict=True))
    if durable:
        sync(folder)
    found = [each for each in results.values() if isinstance(each, Landed)]
    return found, {key: each for key, each in results.items() if isinstance(each, SourceError)}


def look_for_sources(
    table: Table, keys: Sequence[str], landing: LandingZone, lake: Place
) -> dict[str, Landed | SourceError]:
    """What :func:`collect_sources` would find, read and hashed, and nothing kept."""
    found = in_parallel(lambda key: _read_landed(table, key, landing, lake)[0], keys)
    return dict(zip(keys, found, strict=True))


def _read_landed(table: Table, key: str, landing: LandingZone, lake: Place) -> tuple[Landed | SourceError, bytes]:
    """What lies in the landing zone for a partition, and the file's bytes."""
    path = landing.path(table, key)
    name = str(path.relative_to(landing.root))
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        if key in table.closed:
            return Landed(key, None, table.closed[key]), b""
        return SourceMissing(table.path, key, name, str(landing.root)), b""
    except OSError as error:  # no permission, a folder, a broken disk: this partition's trouble alone
        return SourceUnreadable(table.path, key, name, error.strerror or str(error), None), b""
    sha256 = hashlib.sha256(data).hexdigest()
    said = _manifest(table, key, landing)
    if isinstance(said, SourceError):
        return said, b""
    if said.get("sha256", sha256) != sha256:
        reason = f"its SHA-256 is {sha256}, and the manifest says {said['sha256']}"
        return SourceIncomplete(table.path, key, name, reason), b""
    kept = str(relative(lake / table.path / _KEPT / sha256, lake))
    return Landed(key, SourceFile(name, sha256, len(data), kept), rows=said.get("rows")), data


def _manifest(table: Table, key: str, landing: LandingZone) -> dict[str, Any] | SourceError:
    """What the source says it sent; empty if it says nothing."""
    path = landing.manifest(table, key)
    if path is None:
        return {}
    name = str(path.relative_to(landing.root))
    try:
        said = json.loads(path.read_bytes())
    except FileNotFoundError:
        return SourceMissing(table.path, key, name, str(landing.root))
    except (OSError, ValueError) as error:
        return SourceUnreadable(table.path, key, name, str(error), None)
    if not isinstance(said, dict) or not {"rows", "sha256"} & said.keys():
        return SourceUnreadable(table.path, key, name, 'a manifest is written {"rows": 4031, "sha256": "..."}', None)
    return said


def parse(table: Table, landed: Sequence[Landed], lake: Place) -> pl.DataFrame:
    """The rows of some kept files, as exported, with the source columns and the partition column.

    Raises:
        SourceUnreadable: naming the file, if one cannot be parsed. Which one is only known for certain if there is one.
    """
    by_header: dict[tuple[str, ...], list[Landed]] = defaultdict(list)
    for each in landed:
        if each.file is not None:
            by_header[header(table, each, lake)].append(each)
    frames = [_read(table, group, lake) for _, group in sorted(by_header.items())]
    if not frames:
        return _nothing(table)
    rows = pl.concat(frames, how="diagonal")
    return rows.sort(table.partition.column, maintain_order=True) if len(frames) > 1 else rows


def _nothing(table: Table) -> pl.DataFrame:
    column = table.partition.column
    schema = {"_source_file": pl.String, "_source_row": pl.Int64, "_source_sha256": pl.String}
    return pl.DataFrame(schema={**schema, **({column: table.partition.dtype} if column else {})})


def _unreadable(table: Table, each: Landed, reason: str) -> SourceUnreadable:
    assert each.file is not None
    return SourceUnreadable(table.path, each.key, each.file.name, reason.rstrip("."), each.file.kept)


def header(table: Table, each: Landed, lake: Place) -> tuple[str, ...]:
    """The columns that a kept file says it has, with their types if it says so; none if there is no file.

    Raises:
        SourceUnreadable: if it says nothing of the kind.
    """
    if each.file is None:
        return ()
    kinds = (_parquet_header if _is_parquet(table) else _csv_header)(table, each, lake / each.file.kept)
    names = list(kinds)
    if not names:
        raise _unreadable(table, each, "the file is empty, and a delivery without rows still has a header")
    for name in names:
        if not name.isprintable():
            shown = repr(name) if len(name) <= 40 else f"{name[:40]!r}..."
            raise _unreadable(table, each, f"the first line is no CSV header: it holds {shown}")
        if not name or name.startswith("_") or name == table.partition.column:
            raise _unreadable(table, each, f"column {name!r} is empty or reserved in {names}")
    return tuple(f"{name}:{kind}" for name, kind in kinds.items())


def _parquet_header(table: Table, each: Landed, path: Place) -> dict[str, str]:
    try:
        schema = pl.read_parquet_schema(readable(path))
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _unreadable(table, each, str(error).splitlines()[0]) from error
    for name, dtype in schema.items():
        if stored_type(dtype) is None:
            raise _unreadable(table, each, f"column {name!r} is {dtype}, which a Delta table has no type for")
    return {name: str(dtype) for name, dtype in schema.items()}


def _csv_header(table: Table, each: Landed, path: Place) -> dict[str, str]:
    with io.BytesIO(path.read_bytes()) if isinstance(path, ObjectPath) else path.open("rb") as file:
        first = file.readline(1 << 20)
    try:
        names = next(csv.reader(io.StringIO(first.decode("utf-8-sig"))), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise _unreadable(table, each, f"the first line is no CSV header: {error}") from error
    for name in names:
        if names.count(name) > 1:
            raise _unreadable(table, each, f"column {name!r} is named twice in {names}")
    return dict.fromkeys(names, "text")


def _read(table: Table, group: Sequence[Landed], lake: Place) -> pl.DataFrame:
    files = [each.file for each in group if each.file is not None]
    paths = [lake / file.kept for file in files]
    try:
        rows, lengths = (_read_parquet if _is_parquet(table) else _read_csv)(paths)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise _unreadable(table, group[0], str(error).splitlines()[0]) from error
    rows, lengths = _check_complete(table, group, rows, lengths)
    column = table.partition.column
    known = pl.DataFrame(
        {
            "_source_file": [file.name for file in files],
            "_source_sha256": [file.sha256 for file in files],
            **({column: table.partition.series([each.key for each in group])} if column else {}),
        }
    )
    which = pl.Series(range(len(files)), dtype=pl.UInt32).repeat_by(pl.Series(lengths)).explode().drop_nulls()
    numbers = pl.concat([pl.int_range(1, length + 1, eager=True, dtype=pl.Int64) for length in lengths])
    return rows.with_columns(known.select(pl.all().gather(which)).get_columns()).with_columns(_source_row=numbers)


def _check_complete(
    table: Table, group: Sequence[Landed], rows: pl.DataFrame, lengths: list[int]
) -> tuple[pl.DataFrame, list[int]]:
    """Hold each file's rows against what the source says of them; a trailer is taken off."""
    ends = [sum(lengths[: n + 1]) for n in range(len(lengths))] if table.trailer else []
    for each, length, end in zip(group, lengths, ends, strict=False):
        assert each.file is not None
        last = rows.row(end - 1) if length else (None, None)
        if last[0] != table.trailer or len(last) < 2:
            raise SourceIncomplete(table.path, each.key, each.file.name, f"it does not end with {table.trailer!r}")
        if last[1] != str(length - 1):
            reason = f"it has {length - 1} rows, and its trailer says {last[1]}"
            raise SourceIncomplete(table.path, each.key, each.file.name, reason)
    if table.trailer:
        trailers = pl.Series([end - 1 for end in ends], dtype=pl.UInt32)
        rows = rows.with_row_index("_at").filter(~pl.col("_at").is_in(trailers.implode())).drop("_at")
        lengths = [length - 1 for length in lengths]
    for each, length in zip(group, lengths, strict=True):
        assert each.file is not None
        if each.rows is not None and each.rows != length:
            reason = f"it has {length} rows, and the manifest says {each.rows}"
            raise SourceIncomplete(table.path, each.key, each.file.name, reason)
    return rows, lengths


def _is_parquet(table: Table) -> bool:
    return str(table.source).endswith(".parquet")


def _read_parquet(paths: Sequence[Place]) -> tuple[pl.DataFrame, list[int]]:
    frames = [pl.read_parquet(readable(path), glob=False, hive_partitioning=False) for path in paths]
    return pl.concat(frames), [frame.height for frame in frames]


def _read_csv(paths: Sequence[Place]) -> tuple[pl.DataFrame, list[int]]:
    """The rows of some files, every column as text, and how many each of them has."""
    if len(set(paths)) < len(paths) or any(isinstance(path, ObjectPath) for path in paths):
        # Equal files are kept once. One scan could not tell their rows apart. An object is fetched whole anyway.
        frames = [pl.read_csv(readable(path), infer_schema=False, glob=False) for path in paths]
        return pl.concat(frames), [frame.height for frame in frames]
    scan = pl.scan_csv([str(path) for path in paths], infer_schema=False, include_file_paths=_PATH, glob=False)
    rows = scan.collect(engine="streaming")
    lengths = {path: length for length, path in rows.get_column(_PATH).rle().struct.unnest().iter_rows()}
    rows.drop_in_place(_PATH)
    return rows, [lengths.get(str(path), 0) for path in paths]
