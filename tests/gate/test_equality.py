"""The gate says what pandera says, wherever pandera says something, and something right where it does not."""

import re
import warnings
from collections import Counter
from typing import Any

import pandera.polars as pa
import polars as pl
import pytest
from pandera.errors import SchemaError, SchemaErrors

from medallion.contract import Contract, field
from medallion.errors import DeclarationError
from medallion.gate import Gate
from medallion.severity import ERROR
from medallion.verdict import Verdict
from tests.gate.oracle import NoVerdict, Opinion, ask, opinion
from tests.gate.strategies import KINDS, Pair, pair

BLOCK = 250
FIRST_ONLY = {"table.extra_column", "table.column_order"}
"""pandera reports the first of these that it meets."""

CRASHES = (
    r"ColumnNotFoundError: unable to find column",  # a default for an optional column that is not there
    r"AttributeError: 'NoneType' object has no attribute 'type'",  # a default or an added column without a type
    r"PanicException: assertion `left == right` failed",  # a column of nothing but null structs, compared
    r"SchemaError: failed to determine supertype",  # a default in a column of another type
)


def judge(declared, frame: pl.DataFrame) -> Verdict:
    return Gate(declared).judge(frame).verdict


def gate_opinion(schema: pa.DataFrameSchema, frame: pl.DataFrame) -> Opinion:
    """What the gate says, read from what it hands out: the verdict and the two halves of the rows."""
    numbered = frame.with_columns(pl.int_range(pl.len()).alias("_source_row")) if frame.width else frame
    split = Gate(schema).judge(numbered)
    said = Opinion()
    findings = split.verdict.findings
    said.shape = {each.rule for each in findings if each.scope == "shape" and each.severity >= ERROR}
    if said.shape:
        return said
    for row in split.quarantined.iter_rows(named=True):
        for failure in row["_failures"]:
            said.rows[failure["rule"]].add(row["_source_row"])
    gone = set().union(*said.rows.values())
    said.left = [row for row in range(frame.height) if row not in gone]
    for number, rules in zip(said.left, split.accepted["_warnings"].to_list(), strict=True):
        for rule in rules or ():
            said.rows[rule].add(number)
    said.table = {each.rule for each in findings if each.scope == "table" and each.rule != "table.no_rows"}
    return said


def difference(theirs: Opinion, ours: Opinion) -> str:
    """What is not the same; empty if all is."""
    if theirs.shape or ours.shape:
        first = theirs.shape & FIRST_ONLY
        same = theirs.shape - FIRST_ONLY == ours.shape - FIRST_ONLY and first <= ours.shape
        return "" if same and bool(first) == bool(ours.shape & FIRST_ONLY) else "shape"
    if theirs.raised:  # what the other checks say is worth nothing then: the partition is blocked
        return "" if theirs.raised <= ours.table else "raised"
    if {rule: rows for rule, rows in theirs.rows.items() if rows} != dict(ours.rows):
        return "rows"
    return "" if theirs.table == ours.table else "table"


def raises_in_pandera(sample: Pair, refusal: DeclarationError) -> bool:
    """Whether pandera cannot evaluate the check either that the gate refuses to compile."""
    try:
        errors, _ = ask(sample.schema, sample.frame)
    except NoVerdict:
        return True
    return any(error.reason_code.name == "CHECK_ERROR" for error in errors) and "rule" in str(refusal)


def compare(first: int, count: int) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in range(first, first + count):
        sample = pair(seed)
        try:
            ours = gate_opinion(sample.schema, sample.frame)
        except DeclarationError as refusal:
            if not raises_in_pandera(sample, refusal):
                raise AssertionError(f"refused, and pandera has a verdict: {sample}") from refusal
            seen["refused"] += 1
            continue
        try:
            theirs = opinion(sample.schema, sample.frame)
        except NoVerdict as crash:
            if not any(re.match(known, str(crash)) for known in CRASHES):
                raise AssertionError(f"pandera crashes in a way of its own: {sample}") from crash
            seen["crashed"] += 1
            continue
        differs = difference(theirs, ours)
        assert not differs, f"{differs} differ in {sample}\npandera: {theirs}\ngate: {ours}"
        seen["shape" if ours.shape else "rows" if ours.rows else "table" if ours.table else "passed"] += 1
    return seen


@pytest.mark.parametrize("block", range(8))
def test_the_gate_says_what_pandera_says(block):
    seen = compare(block * BLOCK, BLOCK)
    assert seen["crashed"] + seen["refused"] < 0.03 * BLOCK, "pandera gave no verdict on too many to compare with"
    assert seen["rows"] > 0.25 * BLOCK, "too few frames with broken rows to say anything"
    assert min(seen["shape"], seen["table"], seen["passed"]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("block", range(40))
def test_the_gate_says_what_pandera_says_on_many_more(block):
    compare(1_000_000 + block * BLOCK, BLOCK)


# Where pandera gives no verdict, or a wrong one


def crash_of(schema: pa.DataFrameSchema, frame: pl.DataFrame) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            schema.validate(frame, lazy=True)
        except (SchemaError, SchemaErrors):
            return "a verdict"
        except (Exception, pl.exceptions.PanicException) as error:  # noqa: BLE001 - whatever it crashes with
            return type(error).__name__
    return "a verdict"


def broken(verdict: Verdict) -> dict[str, int]:
    return {finding.rule: finding.rows for finding in verdict.findings}


PRICE = pa.DataFrameSchema({"price": pa.Column(pl.Int64, pa.Check.in_range(5, 20))})


def test_a_lazy_frame_is_judged_by_its_rows_where_pandera_looks_at_its_columns_only():
    frame = pl.LazyFrame({"price": [5, 2, 20]})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        PRICE.validate(frame, lazy=True).collect()  # passes
    split = Gate(PRICE).judge(frame)
    assert split.accepted["price"].to_list() == [5, 20]
    assert broken(split.verdict) == {"price.in_range": 1}


def test_a_check_of_the_whole_that_fails_with_another_failure_is_told_where_panderas_reporter_crashes():
    schema = pa.DataFrameSchema(
        {
            "a": pa.Column(pl.Int64, [pa.Check(lambda data: data.lazyframe.collect().height > 9, name="many")]),
            "b": pa.Column(pl.String, pa.Check.isin(["x"])),
        }
    )
    frame = pl.DataFrame({"a": [1, 2], "b": ["x", "y"]})
    assert crash_of(schema, frame) == "SchemaError"  # polars', not pandera's
    assert broken(judge(schema, frame)) == {"a.many": 0, "b.isin": 1}


def test_a_default_for_an_optional_column_that_is_absent_needs_nothing():
    schema = pa.DataFrameSchema({"a": pa.Column(pl.Int64), "b": pa.Column(pl.Int64, required=False, default=1)})
    frame = pl.DataFrame({"a": [1, 2]})
    assert crash_of(schema, frame) == "ColumnNotFoundError"
    assert judge(schema, frame).passed


def test_a_default_fills_a_column_without_a_declared_type():
    schema = pa.DataFrameSchema({"a": pa.Column(default=7)})
    frame = pl.DataFrame({"a": [1, None]})
    assert crash_of(schema, frame) == "AttributeError"
    split = Gate(schema).judge(frame)
    assert split.accepted["a"].to_list() == [1, 7]


def test_a_missing_column_without_a_declared_type_is_added():
    schema = pa.DataFrameSchema({"a": pa.Column(pl.Int64), "b": pa.Column(nullable=True)}, add_missing_columns=True)
    frame = pl.DataFrame({"a": [1]})
    assert crash_of(schema, frame) == "AttributeError"
    assert Gate(schema).judge(frame).accepted["b"].to_list() == [None]


def test_a_column_that_is_added_is_judged_like_the_others():
    schema = pa.DataFrameSchema(
        {"a": pa.Column(pl.Int64), "b": pa.Column(pl.Int64, pa.Check.gt(5), default=1)}, add_missing_columns=True
    )
    frame = pl.DataFrame({"a": [1, 2]})
    schema.validate(frame, lazy=True)  # passes: pandera judges only the columns that came
    assert broken(judge(schema, frame)) == {"b.gt": 2}


def test_a_default_does_not_hide_a_column_of_the_wrong_type():
    schema = pa.DataFrameSchema({"a": pa.Column(pl.String, default="none")})
    frame = pl.DataFrame({"a": [1, None]})
    schema.validate(frame, lazy=True)  # passes: filling in the default has made text of the numbers
    assert [finding.rule for finding in judge(schema, frame).blocking] == ["a.type"]


def test_a_panic_inside_a_check_becomes_a_finding_that_blocks():
    """polars panics where it compares nothing but null structs; a panic is no Exception and passes through pandera."""
    dtype = pl.Struct({"x": pl.Int64})
    schema = pa.DataFrameSchema(
        {
            "a": pa.Column(
                dtype, pa.Check(lambda data: data.lazyframe.select(pl.col("a") == pl.col("a").first())), nullable=True
            )
        }
    )
    frame = pl.DataFrame({"a": pl.Series([None, None, None], dtype=dtype)})
    assert crash_of(schema, frame) == "PanicException"
    (finding,) = judge(schema, frame).blocking
    assert finding.rule == "a.check"
    assert "PanicException" in finding.message


def test_every_group_of_unique_is_judged_where_pandera_stops_at_the_first():
    groups: list[Any] = [["a"], ["b"]]
    schema = pa.DataFrameSchema({"a": pa.Column(pl.Int64), "b": pa.Column(pl.Int64)}, unique=groups)
    frame = pl.DataFrame({"a": [1, 1, 2], "b": [3, 4, 4]})
    assert len(ask(schema, frame)[0]) == 1
    assert broken(judge(schema, frame)) == {"table.unique": 2, "table.unique_2": 2}


def test_every_column_is_coerced_where_pandera_stops_at_the_first_that_fails():
    schema = pa.DataFrameSchema(
        {"a": pa.Column(pl.Int64, coerce=True), "b": pa.Column(pl.Int64, pa.Check.gt(0), coerce=True)}
    )
    frame = pl.DataFrame({"a": ["x", "1", "2"], "b": ["1", "y", "0"]})
    assert not any("y" in str(error.failure_cases) for error in ask(schema, frame)[0] if "coerce" in str(error.check))
    assert broken(judge(schema, frame)) == {"a.type": 1, "b.type": 1, "b.gt": 1}


def test_every_extra_column_is_named_where_pandera_names_the_first():
    schema = pa.DataFrameSchema({"a": pa.Column(pl.Int64)}, strict=True)
    (finding,) = judge(schema, pl.DataFrame({"a": [1], "b": [1], "c": [1]})).blocking
    assert "b, c" in finding.message


def test_dropping_invalid_rows_does_not_swallow_a_wrong_type():
    schema = pa.DataFrameSchema({"a": pa.Column(pl.Int64, pa.Check.gt(0))}, drop_invalid_rows=True)
    assert judge(schema, pl.DataFrame({"a": ["1"]})).blocked
    split = Gate(schema).judge(pl.DataFrame({"a": [1, 0]}))
    assert split.accepted["a"].to_list() == [1]


@pytest.mark.parametrize(
    "name", ["check_output", "_duplicated", "_id", "failure_case", "index", "table", "a.b", "日本", "len"]
)
def test_a_column_may_have_any_name(name):
    schema = pa.DataFrameSchema({name: pa.Column(pl.Int64, pa.Check.gt(0), unique=True)})
    assert broken(judge(schema, pl.DataFrame({name: [0, 1, 1]}))) == {f"{name}.gt": 1, f"{name}.unique": 2}


def test_a_check_of_a_matched_column_may_look_at_other_columns():
    """pandera gives it the one column alone if all columns are matched by patterns, so that it raises."""
    check = pa.Check(lambda data: data.lazyframe.select(pl.col(data.key) <= pl.col("v_2")))
    schema = pa.DataFrameSchema({r"^v_\d$": pa.Column(pl.Int64, check, regex=True)})
    frame = pl.DataFrame({"v_1": [1, 3], "v_2": [2, 2]})
    assert {error.reason_code.name for error in ask(schema, frame)[0]} == {"CHECK_ERROR"}
    assert broken(judge(schema, frame)) == {"v_1.check": 1}


def test_a_check_that_raises_blocks_and_leaves_the_other_verdicts_standing():
    def explode(value):
        raise ValueError("no")

    schema = pa.DataFrameSchema({"a": pa.Column(pl.Int64, [pa.Check(explode, element_wise=True), pa.Check.gt(0)])})
    verdict = judge(schema, pl.DataFrame({"a": [0, 1]}))
    assert "ValueError" in next(finding.message for finding in verdict.blocking if finding.rule == "a.explode")
    assert broken(verdict)["a.gt"] == 1


# Where the gate means to differ


@pytest.mark.parametrize(
    ("dtype", "raw", "kept"),
    [
        (pl.Int64, [1.0, float("nan"), 1.5], [1]),
        (pl.UInt8, [255, 256, -1], [255]),
        (pl.Boolean, [1, 0, 2], [True, False]),
        (pl.Float32, [0.5, 1e300], [0.5]),
        (pl.Float64, [2**53, 2**53 + 1], [2.0**53]),
    ],
)
def test_a_value_that_coercion_would_change_is_refused_with_the_raw_value_kept(dtype, raw, kept):
    schema = pa.DataFrameSchema({"a": pa.Column(dtype, coerce=True)})
    frame = pl.DataFrame({"a": raw})
    split = Gate(schema).judge(frame)
    assert split.accepted["a"].to_list() == kept
    assert split.quarantined["a"].to_list() == frame["a"][len(kept) :].cast(pl.String).to_list()


@pytest.mark.parametrize("wanted", KINDS, ids=lambda kind: str(kind.dtype))
def test_whatever_type_comes_for_a_declared_one_is_judged_as_pandera_does(wanted):
    schema = pa.DataFrameSchema({"a": pa.Column(wanted.dtype, coerce=True, nullable=True)})
    for given in KINDS:
        frame = pl.DataFrame({"a": pl.Series([*given.values, None], dtype=given.dtype)})
        assert not difference(opinion(schema, frame), gate_opinion(schema, frame)), f"{given.dtype} for {wanted.dtype}"


def test_a_model_and_its_schema_are_the_same_contract():
    class Sale(Contract):
        quantity: int = field(gt=0, le=10)
        store: str = field(isin=["a", "b"], nullable=True)

    frame = pl.DataFrame({"quantity": ["1", "11", "x"], "store": ["a", None, "c"]})
    assert judge(Sale, frame) == judge(Sale.to_schema(), frame)
    assert Gate(Sale).digest == Gate(Sale.to_schema()).digest


@pytest.mark.parametrize(
    ("values", "same"), [([1, 2], True), ([1, None], False), (["1", "x"], False), ([1.5, 2.0], False)]
)
def test_a_schema_of_one_type_and_no_columns_judges_every_column(values, same):
    schema = pa.DataFrameSchema(dtype=pl.Int64)
    frame = pl.DataFrame({"a": [1, 2], "b": values})
    theirs, ours = opinion(schema, frame), gate_opinion(schema, frame)
    assert not difference(theirs, ours)
    assert (not ours.shape and not ours.rows) == same
