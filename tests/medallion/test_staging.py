"""Equal rows give equal files, however the rows lie in memory."""

import io
import tempfile
from typing import Any

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from polars.testing.parametric import dataframes

from medallion.partitions import Daily, Whole
from medallion.staging import as_stored, stage

DAY = Daily("day", start="2026-01-01", end="2026-02-01")
KEYS = tuple(DAY.keys())
TEXTS = pl.List(pl.String)
FAILURES = pl.List(pl.Struct({"rule": pl.String, "severity": pl.String}))
STORED: list[Any] = [
    pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt16, pl.Float32, pl.Float64, pl.Boolean, pl.String, pl.Binary,
    pl.Date, pl.Datetime("us"), pl.Datetime("us", "UTC"), pl.Decimal(20, 4), pl.Categorical, TEXTS, FAILURES,
]  # fmt: skip
frames = dataframes(min_cols=1, max_cols=8, max_size=40, allowed_dtypes=STORED, allow_null=True)


def _pieces(lengths: dict[str, int]) -> list[pl.DataFrame]:
    return [
        pl.DataFrame(
            [
                pl.Series("text", [f"{key} {n % 7}" for n in range(length)], pl.String),
                pl.Series("number", range(length), pl.Int64),
                DAY.series([key] * length),
            ]
        )
        for key, length in lengths.items()
    ]


@pytest.mark.parametrize("cut", [1, 3])
def test_rows_in_many_pieces_give_the_same_files_as_rows_in_one_piece(cut: int) -> None:
    pieces = _pieces({key: 40 + n for n, key in enumerate(KEYS[:20])})
    scattered = pl.concat([part for piece in pieces for part in piece.iter_slices(-(-piece.height // cut))])
    assert scattered.n_chunks() >= 20
    together = scattered.rechunk()
    assert together.n_chunks() == 1
    assert stage(scattered, DAY, KEYS, empty=True) == stage(together, DAY, KEYS, empty=True)


def test_each_partition_by_itself_gives_the_same_file_as_in_a_range() -> None:
    rows = pl.concat(_pieces(dict.fromkeys(KEYS, 40)), rechunk=True)
    in_range = stage(rows, DAY, KEYS, empty=True)
    alone = [
        staged for key in KEYS for staged in stage(rows.filter(pl.col("day") == DAY.value(key)), DAY, [key], empty=True)
    ]
    assert in_range == alone


def test_a_partition_without_rows_gets_an_empty_file_where_its_state_is_read_from_a_file() -> None:
    rows = pl.concat(_pieces({KEYS[0]: 5, KEYS[2]: 5}))
    assert {each.partition: each.rows for each in stage(rows, DAY, KEYS[:3], empty=True)} == {
        KEYS[0]: 5,
        KEYS[1]: 0,
        KEYS[2]: 5,
    }
    assert [each.partition for each in stage(rows, DAY, KEYS[:3], empty=False)] == [KEYS[0], KEYS[2]]


@given(frames, st.booleans())
def test_every_reader_finds_the_rows_in_a_file_as_they_were_staged(given_rows: pl.DataFrame, scattered: bool) -> None:
    rows = as_stored(given_rows)
    if scattered and rows.height > 1:
        rows = pl.concat([rows.head(1), rows.tail(-1)], rechunk=False)
    (staged,) = stage(rows, Whole(), [Whole.KEY], empty=True)
    read = pl.read_parquet(io.BytesIO(staged.data))
    assert_frame_equal(read, rows, categorical_as_str=True)
    assert_frame_equal(pl.DataFrame(pq.read_table(io.BytesIO(staged.data))), rows)
    assert stage(read, Whole(), [Whole.KEY], empty=True) == [staged]


@given(frames)
def test_duckdb_reads_a_staged_file_as_it_reads_the_rows(given_rows: pl.DataFrame) -> None:
    rows = as_stored(given_rows.select(pl.exclude(pl.Categorical)))
    if not rows.width:
        return
    (staged,) = stage(rows, Whole(), [Whole.KEY], empty=True)
    with duckdb.connect() as connection, tempfile.NamedTemporaryFile(suffix=".parquet") as file:
        file.write(staged.data)
        file.flush()
        assert_frame_equal(connection.read_parquet(file.name).pl(), connection.from_arrow(rows.to_arrow()).pl())
