"""One way to split the retail export into accepted and refused rows, as a process.

Usage: python benchmarks/peer_gates.py copy|medallion|dataframely|pandera few|many SOURCE TARGET
"""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl

_IDS = ("household_id", "store_id", "basket_id", "product_id")
_MONEY = ("sales_value", "retail_disc", "coupon_disc", "coupon_match_disc")
_TIME = "%Y-%m-%dT%H:%M:%S%.f"


def _limit(failures: str) -> float:
    """Dollars above which a line is refused: hardly any, or one in three."""
    return 100.0 if failures == "few" else 3.0


def copy(source: Path, target: Path, failures: str) -> int:
    """Read and write, nothing else."""
    pl.scan_parquet(source).sink_parquet(target / "copy.parquet")
    return int(pl.scan_parquet(target / "copy.parquet").select(pl.len()).collect().item())


def medallion(source: Path, target: Path, failures: str) -> int:
    """The gate of this project."""
    from medallion.contract import Contract, field
    from medallion.gate import Gate
    from medallion.streams import split_parquet

    class Line(Contract):
        household_id: int = field(gt=0)
        store_id: int = field(gt=0)
        basket_id: int = field(ge=0)
        product_id: int = field(gt=0)
        quantity: int = field(ge=0, le=100_000)
        sales_value: float = field(ge=0, le=_limit(failures))
        retail_disc: float = field(ge=0)
        coupon_disc: float = field(ge=0)
        coupon_match_disc: float = field(ge=0)
        week: int = field(in_range=(1, 53))
        transaction_timestamp: str = field(str_length={"min_value": 26}, str_startswith="2017-")

    gate = Gate(Line, name="lines")
    return split_parquet(source, gate, accepted=target / "accepted", quarantined=target / "refused").accepted


def dataframely(source: Path, target: Path, failures: str) -> int:
    """Dataframely's filter, lazily, both halves written."""
    import dataframely as dy

    class Line(dy.Schema):
        household_id = dy.Int64(min_exclusive=0)
        store_id = dy.Int64(min_exclusive=0)
        basket_id = dy.Int64(min=0)
        product_id = dy.Int64(min_exclusive=0)
        quantity = dy.Int64(min=0, max=100_000)
        sales_value = dy.Float64(min=0, max=_limit(failures))
        retail_disc = dy.Float64(min=0)
        coupon_disc = dy.Float64(min=0)
        coupon_match_disc = dy.Float64(min=0)
        week = dy.Int64(min=1, max=53)
        transaction_timestamp = dy.String(min_length=26, regex="^2017-")

    good, failure = Line.filter(pl.read_parquet(source), cast=True)
    good.write_parquet(target / "accepted.parquet")
    failure.invalid().write_parquet(target / "refused.parquet")
    return good.height


def pandera(source: Path, target: Path, failures: str) -> int:
    """Pandera's lazy validation of a frame, split by the indices of its failure cases."""
    import pandera.polars as pa

    money = pa.Check.ge(0)
    schema = pa.DataFrameSchema(
        {
            "household_id": pa.Column(int, pa.Check.gt(0), coerce=True),
            "store_id": pa.Column(int, pa.Check.gt(0), coerce=True),
            "basket_id": pa.Column(int, pa.Check.ge(0), coerce=True),
            "product_id": pa.Column(int, pa.Check.gt(0), coerce=True),
            "quantity": pa.Column(int, [pa.Check.ge(0), pa.Check.le(100_000)], coerce=True),
            "sales_value": pa.Column(float, [money, pa.Check.le(_limit(failures))], coerce=True),
            "retail_disc": pa.Column(float, money, coerce=True),
            "coupon_disc": pa.Column(float, money, coerce=True),
            "coupon_match_disc": pa.Column(float, money, coerce=True),
            "week": pa.Column(int, pa.Check.in_range(1, 53), coerce=True),
            "transaction_timestamp": pa.Column(str, [pa.Check.str_length(26), pa.Check.str_startswith("2017-")]),
        }
    )
    rows = pl.read_parquet(source)
    try:
        schema.validate(rows, lazy=True)
        bad = pl.Series([], dtype=pl.Int64)
    except pa.errors.SchemaErrors as error:
        bad = error.failure_cases.get_column("index").drop_nulls().unique()
    typed = rows.with_columns(pl.col(*_IDS, "quantity", "week").cast(pl.Int64), pl.col(_MONEY).cast(pl.Float64))
    indexed = typed.with_row_index("_at")
    refused = pl.col("_at").is_in(bad.implode())
    good = indexed.filter(~refused).drop("_at")
    good.write_parquet(target / "accepted.parquet")
    indexed.filter(refused).drop("_at").write_parquet(target / "refused.parquet")
    return good.height


_WAYS: dict[str, Callable[[Path, Path, str], int]] = {
    each.__name__: each for each in (copy, medallion, dataframely, pandera)
}

if __name__ == "__main__":
    way, how_many, where, to = sys.argv[1:]
    shutil.rmtree(to, ignore_errors=True)
    Path(to).mkdir()
    print(_WAYS[way](Path(where), Path(to), how_many))
