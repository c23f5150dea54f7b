"""The builders that are shipped for users' own tests."""

import datetime as dt
from types import SimpleNamespace

import pandera.polars as pa
import polars as pl
import pytest

from medallion.contract import WARNING, Contract, field, rule
from medallion.gate import Gate
from medallion.partitions import Daily
from medallion.testing import assert_partitionwise, valid_rows

DAY = Daily("day", start="2017-01-01", end="2018-01-01")
PRODUCTS = SimpleNamespace(path="silver/products", name="products", key=("product_id",))


class Line(Contract):
    basket_id: int = field(gt=0)
    product_id: int = field(known_in=PRODUCTS)
    quantity: int = field(gt=0, le=1000, severity={"le": WARNING})
    sales: float = field(ge=0)
    discount: float = field(le=0)
    kind: str = field(isin=["private", "national"])
    code: str = field(str_matches=r"^[A-Z]{2}-\d{3}$")
    sold_at: dt.datetime

    @rule()
    def paid(rows):
        return rows.sales + rows.discount > rows.quantity

    @rule()
    def on_its_day(rows):
        return rows.sold_at.dt.date() >= rows.day


GATE = Gate(Line, key=["basket_id", "product_id"], partition=DAY)


@pytest.mark.parametrize("n", [0, 1, 3, 30])
def test_built_rows_pass_their_contract(n):
    rows = valid_rows(GATE, n)
    assert rows.height == n
    verdict = GATE.judge(rows, ["2017-01-01"], references={"product_id": rows["product_id"]}).verdict
    assert verdict.accepted == n
    assert {finding.rule for finding in verdict.findings} <= {"table.no_rows"}


def test_the_same_call_gives_the_same_rows():
    assert valid_rows(GATE, 5).equals(valid_rows(GATE, 5))


def test_rows_have_the_contracts_columns_and_types_in_its_order():
    assert valid_rows(GATE, 1).columns[:4] == ["day", "basket_id", "product_id", "quantity"]
    assert valid_rows(GATE, 1).schema["sold_at"] == pl.Datetime("us")


def test_other_columns_are_chosen_to_go_with_a_given_value():
    rows = valid_rows(GATE, 2, sales=[1.5, 800.0])
    assert rows["sales"].to_list() == [1.5, 800.0]
    assert GATE.judge(rows, ["2017-01-01"], references={"product_id": rows["product_id"]}).verdict.accepted == 2


def test_a_given_value_may_break_its_own_rule_and_no_other():
    rows = valid_rows(GATE, 1, kind="unknown")
    verdict = GATE.judge(rows, ["2017-01-01"], references={"product_id": rows["product_id"]}).verdict
    assert verdict.quarantined_by_rule == {"kind.isin": 1}


EVERY = [
    pl.Int8(), pl.UInt64(), pl.Float32(), pl.String(), pl.Boolean(), pl.Date(), pl.Datetime("ms", "America/New_York"),
    pl.Datetime("ns"), pl.Time(), pl.Duration("us"), pl.Decimal(10, 2), pl.Categorical(), pl.Enum(["a", "b"]),
    pl.Binary(), pl.List(pl.Int64()), pl.Struct({"x": pl.Int64(), "y": pl.String()}), pl.Array(pl.Int64(), 3),
]  # fmt: skip


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_there_are_values_of_every_type(dtype):
    rows = valid_rows(pa.DataFrameSchema({"a": pa.Column(dtype)}), 4)
    assert rows.schema["a"] == dtype
    assert rows["a"].null_count() == 0


@pytest.mark.parametrize(
    "check",
    [
        pa.Check.eq(17), pa.Check.ne(1), pa.Check.gt(10_000_000), pa.Check.le(-77), pa.Check.in_range(250, 251),
        pa.Check.isin([4321]), pa.Check.notin([1, 2, 3]),
    ],
    ids=str,
)  # fmt: skip
def test_there_are_values_for_every_check_of_numbers(check):
    assert valid_rows(pa.DataFrameSchema({"a": pa.Column(pl.Int64, check)}), 3).height == 3


@pytest.mark.parametrize(
    "check",
    [
        pa.Check.str_startswith("x-"),
        pa.Check.str_endswith(".csv"),
        pa.Check.str_contains("mid"),
        pa.Check.str_length(7, 9),
        pa.Check.str_length(exact_value=5),
        pa.Check.str_matches(r"\d{4}-[a-f]+$"),
        pa.Check.str_contains(r"[0-9]{3}"),
    ],
    ids=str,
)  # fmt: skip
def test_there_are_values_for_every_check_of_text(check):
    assert valid_rows(pa.DataFrameSchema({"a": pa.Column(pl.String, check)}), 3).height == 3


def test_unique_columns_get_different_values():
    schema = pa.DataFrameSchema({"a": pa.Column(pl.Int64, unique=True), "b": pa.Column(pl.String, unique=True)})
    rows = valid_rows(schema, 20)
    assert rows["a"].is_unique().all()
    assert rows["b"].is_unique().all()


def test_rows_that_cannot_be_found_are_an_error_that_names_the_rules():
    class Impossible(Contract):
        a: int

        @rule()
        def never(rows):
            return rows.a > 10**12

    with pytest.raises(ValueError, match=r"table\.never"):
        valid_rows(Impossible, 1)
    with pytest.raises(ValueError, match="passes the rules of a"):
        valid_rows(pa.DataFrameSchema({"a": pa.Column(pl.Int64, [pa.Check.gt(5), pa.Check.lt(5)])}), 1)
    with pytest.raises(ValueError, match="no column 'b'"):
        valid_rows(Impossible, 1, b=1)
    with pytest.raises(ValueError, match="2 values are given for 3 rows"):
        valid_rows(Impossible, 3, a=[1, 2])


def table(transform, *inputs):
    return SimpleNamespace(
        path="gold/t", transform=transform, inputs=dict.fromkeys(inputs), partition=SimpleNamespace(column="day")
    )


LINES = pl.DataFrame({"day": [1, 1, 2], "product": ["a", "b", "a"], "sales": [1.0, 2.0, 3.0]})
NAMES = pl.DataFrame({"product": ["a", "b"], "name": ["apple", "bread"]})


def by_day(lines, products):
    return lines.join(products, on="product").group_by("day", "name").agg(pl.col("sales").sum())


def test_a_transform_that_keeps_partitions_apart_passes():
    assert_partitionwise(table(by_day, "lines", "products"), LINES, NAMES.lazy())


def mixes_groups(lines):
    return lines.group_by("product").agg(pl.col("day").first(), pl.col("sales").sum())


def looks_back(lines):
    return lines.with_columns(pl.col("sales").shift(1))


def ranks(lines):
    return lines.with_columns(pl.col("sales").rank())


@pytest.mark.parametrize("transform", [mixes_groups, looks_back, ranks])
def test_a_transform_that_mixes_partitions_is_told_with_the_partition(transform):
    with pytest.raises(AssertionError, match=r"gold/t: partition \d alone gives something else"):
        assert_partitionwise(table(transform, "lines"), LINES)


def test_a_result_without_the_partition_column_is_told():
    with pytest.raises(AssertionError, match="no column 'day'"):
        assert_partitionwise(table(lambda lines: lines.select("sales"), "lines"), LINES)


@pytest.mark.parametrize(
    ("inputs", "frames", "reason"),
    [
        (("a", "b"), [LINES], "1 frames"),
        (("a",), [LINES.filter(pl.col("day") == 1)], "at least two"),
        (("a",), [NAMES], "0 part"),
    ],
)
def test_frames_that_cannot_tell_are_refused(inputs, frames, reason):
    with pytest.raises(ValueError, match=reason):
        assert_partitionwise(table(lambda **given: given["a"], *inputs), *frames)
