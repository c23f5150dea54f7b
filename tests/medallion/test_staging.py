"""Equal rows give equal files, however the rows lie in memory."""

import polars as pl
import pytest

from medallion.partitions import Daily
from medallion.staging import stage

DAY = Daily("day", start="2026-01-01", end="2026-02-01")
KEYS = tuple(DAY.keys())


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
