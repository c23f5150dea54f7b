"""A slice is cut by what its partitions take in memory, whatever their files take on the disk."""

from pathlib import Path

import polars as pl
import pytest

from medallion.partitions import Daily
from medallion.slicing import bytes_of_file, in_slices
from medallion.tables import bronze

DAY = Daily("day", start="2026-01-01", end="2026-02-01")
TABLE = bronze("weighed", source="weighed/{day}.parquet", partition=DAY)
TEXT = bronze("told", source="told/{day}.csv", partition=DAY)


@pytest.fixture
def alike(tmp_path: Path) -> Path:
    """Half a million rows that are all alike, in a few kilobytes."""
    path = tmp_path / "alike.parquet"
    pl.DataFrame(
        {"store": pl.repeat(7, 500_000, eager=True), "place": pl.repeat("A", 500_000, eager=True)}
    ).write_parquet(path)
    return path


def test_a_parquet_file_weighs_at_least_what_its_rows_take_however_small_it_is(alike: Path) -> None:
    size = alike.stat().st_size
    assert size < 100_000
    assert bytes_of_file(TABLE, alike, size) >= pl.read_parquet(alike).estimated_size()


def test_a_parquet_file_weighs_by_its_rows_and_not_by_how_well_they_compress(alike: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.parquet"
    pl.read_parquet(alike).write_parquet(other, compression="uncompressed", statistics=False)
    assert bytes_of_file(TABLE, alike, alike.stat().st_size) == bytes_of_file(TABLE, other, other.stat().st_size)


def test_a_file_that_is_no_parquet_is_still_weighed_so_that_reading_it_can_say_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "broken.parquet"
    path.write_bytes(b"no parquet at all")
    assert bytes_of_file(TABLE, path, 17) == 17
    assert bytes_of_file(TABLE, tmp_path / "absent.parquet", 17) == 17


def test_text_weighs_by_its_size(tmp_path: Path) -> None:
    assert bytes_of_file(TEXT, tmp_path / "absent.csv", 2000) == 2 * bytes_of_file(TEXT, tmp_path / "absent.csv", 1000)


def test_a_slice_weighs_no_more_than_the_limit_and_what_weighs_more_is_alone() -> None:
    weights = {"a": 40, "b": 60, "c": 1, "d": 250, "e": 100}
    assert list(in_slices(list(weights), weights.__getitem__, 100)) == [["a", "b"], ["c"], ["d"], ["e"]]
