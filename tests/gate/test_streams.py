"""Files are split as frames are: same verdict, same rows, whatever the batches."""

import random

import polars as pl
import pytest

from medallion.contract import CRITICAL, ERROR, WARNING, Contract, field, rule
from medallion.errors import DeclarationError
from medallion.gate import Gate
from medallion.rules import at_least
from medallion.streams import split_parquet


class Line(Contract):
    id: int
    quantity: int = field(gt=0, le=100, severity={"le": WARNING})
    price: float = field(ge=0)

    @rule(WARNING)
    def cheap(rows):
        return rows.price < 50

    @rule(CRITICAL, table=True)
    def some(rows):
        return pl.len() >= 1

    enough = at_least(2, ERROR)


def lines(count, *, ids, seed=1):
    chance = random.Random(seed)
    return pl.DataFrame(
        {
            "id": [str(chance.randrange(ids)) if chance.random() > 0.05 else "x" for _ in range(count)],
            "quantity": [str(chance.randrange(120)) for _ in range(count)],
            "price": [str(chance.randrange(60)) for _ in range(count)],
        }
    )


@pytest.mark.parametrize("batch_rows", [1, 7, 100, 10_000])
@pytest.mark.parametrize("ids", [50, 100_000])
def test_a_file_is_split_like_the_frame_that_it_holds_whatever_the_batches(tmp_path, batch_rows, ids):
    rows = lines(300, ids=ids)
    rows.write_parquet(tmp_path / "source.parquet")
    gate = Gate(Line, key=["id"])
    whole = gate.judge(rows)
    verdict = split_parquet(
        tmp_path / "source.parquet",
        gate,
        accepted=tmp_path / "accepted",
        quarantined=tmp_path / "refused",
        batch_rows=batch_rows,
    )
    assert verdict.to_dict() == whole.verdict.to_dict()
    assert pl.read_parquet(tmp_path / "accepted/*.parquet").sort("id").equals(whole.accepted)
    refused = pl.read_parquet(tmp_path / "refused/*.parquet")
    assert refused.sort(pl.all()).equals(whole.quarantined.sort(pl.all()))


def test_a_file_without_rows_gets_the_verdict_of_an_empty_frame(tmp_path):
    lines(0, ids=1).cast(pl.String).write_parquet(tmp_path / "source.parquet")
    gate = Gate(Line, key=["id"])
    verdict = split_parquet(
        tmp_path / "source.parquet", gate, accepted=tmp_path / "accepted", quarantined=tmp_path / "refused"
    )
    assert verdict.read == 0
    assert {finding.rule for finding in verdict.findings} == {"table.no_rows", "table.some", "table.enough"}


def test_a_file_without_a_column_is_blocked_and_nothing_is_written(tmp_path):
    lines(9, ids=9).drop("price").write_parquet(tmp_path / "source.parquet")
    verdict = split_parquet(
        tmp_path / "source.parquet", Gate(Line), accepted=tmp_path / "accepted", quarantined=tmp_path / "refused"
    )
    assert verdict.blocked
    assert not (tmp_path / "accepted").exists()


def test_a_rule_that_looks_across_rows_is_refused_before_anything_is_read(tmp_path):
    class Once(Contract):
        id: int = field(unique=True)

    with pytest.raises(DeclarationError, match=r"id\.unique looks across rows"):
        split_parquet(
            tmp_path / "none.parquet", Gate(Once), accepted=tmp_path / "accepted", quarantined=tmp_path / "refused"
        )
