"""What becomes of a row: published, tagged, quarantined with its reasons, collapsed, or held back whole."""

import datetime as dt
from types import SimpleNamespace

import pandera.polars as pa
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medallion.contract import CRITICAL, ERROR, INFO, METADATA_KEY, WARNING, Contract, field, rule
from medallion.errors import DeclarationError
from medallion.gate import Gate, Split
from medallion.partitions import Daily
from medallion.verdict import Verdict


def judge(contract, rows, **settings) -> Split:
    return Gate(contract, **settings).judge(rows if isinstance(rows, pl.DataFrame) else pl.DataFrame(rows))


def reasons(split: Split) -> list[list[str]]:
    """The rules that each quarantined row breaks."""
    return [[failure["rule"] for failure in row] for row in split.quarantined["_failures"].to_list()]


def blocking(verdict: Verdict) -> set[str]:
    return {finding.rule for finding in verdict.blocking}


class Price(Contract):
    price: int = field(ge=5, le=20)


class Reading(Contract):
    """A contract with one column of every type that text is read as."""

    small: pl.UInt8 = field(nullable=True)
    day: pl.Date = field(nullable=True)
    whole: int = field(nullable=True)
    number: float = field(nullable=True)


class Line(Contract):
    id: int
    quantity: int = field(gt=0, le=100, severity={"le": WARNING})
    code: str = field(str_startswith="x", severity=INFO)


# Cases from the field


def test_k11_a_lazy_frame_is_judged_by_its_rows():
    split = Gate(Price).judge(pl.LazyFrame({"price": [2, 5, 20]}))
    assert split.accepted["price"].to_list() == [5, 20]
    assert reasons(split) == [["price.ge"]]


def test_k12_one_bad_row_of_six_is_quarantined_with_every_reason():
    class Sale(Contract):
        price: int = field(ge=5)
        store: str = field(isin=["a", "b"])

    split = judge(Sale, {"price": [5, 6, 2, 7, 8, 9], "store": ["a", "a", "c", "b", "b", "a"]})
    assert split.verdict.summary == "6 read = 5 accepted + 1 quarantined + 0 collapsed"
    assert reasons(split) == [["price.ge", "store.isin"]]
    assert split.quarantined.row(0, named=True)["price"] == "2"
    assert split.verdict.reasons == {("price.ge", "store.isin"): 1}


def test_k17_a_row_that_only_breaks_a_warning_is_published_and_tagged():
    split = judge(Line, {"id": [1, 2], "quantity": [1, 101], "code": ["x", "x"]})
    assert split.accepted["_warnings"].to_list() == [None, ["quantity.le"]]
    assert split.verdict.quarantined == 0
    assert split.verdict.severity == WARNING


@pytest.mark.parametrize(
    ("column", "text"), [("small", "300"), ("day", "2017-02-30"), ("whole", "1.5"), ("number", "-"), ("whole", "")]
)
def test_k18_what_cannot_be_read_is_quarantined_with_its_text(column, text):
    good = {"small": "1", "day": "2017-02-28", "whole": "1", "number": "1.5"}
    split = judge(Reading, pl.DataFrame([good, {**good, column: text}]))
    assert split.accepted.height == 1
    assert split.quarantined[column].to_list() == [text]
    assert reasons(split) == [[f"{column}.type"]]


def test_k18_values_that_can_be_read_are():
    split = judge(Reading, {"small": ["255"], "day": ["2017-02-28"], "whole": ["-1"], "number": ["1e3"]})
    assert split.accepted.drop("_warnings").row(0) == (255, dt.date(2017, 2, 28), -1, 1000.0)


def test_k19_a_missing_column_blocks_and_is_named():
    verdict = judge(Line, {"id": [1], "code": ["x"]}).verdict
    assert blocking(verdict) == {"quantity.present"}
    assert "'quantity' is missing; there are id, code" in verdict.blocking[0].message
    assert (verdict.read, verdict.quarantined) == (1, 1)


def test_k19_a_renamed_column_is_missing_and_its_new_name_is_told():
    verdict = judge(Line, {"id": [1], "amount": [1], "code": ["x"]}).verdict
    assert "amount" in verdict.blocking[0].message


def test_k19_an_extra_column_is_a_warning_and_not_published():
    split = judge(Line, {"id": [1], "quantity": [1], "code": ["x"], "new": [1]})
    assert "new" not in split.accepted.columns
    assert not split.verdict.blocked
    assert [(f.rule, f.severity) for f in split.verdict.findings] == [("table.extra_column", WARNING)]


def test_k19_a_column_of_another_type_blocks_and_both_types_are_named():
    class Strict(pa.DataFrameModel):
        a: int

    verdict = judge(Strict, {"a": ["1"]}).verdict
    assert blocking(verdict) == {"a.type"}
    assert verdict.blocking[0].message == "column 'a' is text, and the contract says integer (Int64)"


class Versioned(Contract):
    id: int
    value: str
    version: int = field(nullable=True)


def test_k20_identical_copies_collapse_and_are_counted():
    split = judge(Line, {"id": [1, 1, 2], "quantity": [1, 1, 2], "code": ["x", "x", "x"]}, key=["id"])
    assert split.verdict.summary == "3 read = 2 accepted + 0 quarantined + 1 collapsed"
    assert [(f.rule, f.rows) for f in split.verdict.findings] == [("table.duplicate", 1)]


def test_k20_copies_that_differ_are_all_quarantined_as_conflicting_content():
    split = judge(Line, {"id": [1, 1, 2], "quantity": [1, 3, 2], "code": ["x", "x", "x"]}, key=["id"])
    assert split.accepted["id"].to_list() == [2]
    assert reasons(split) == [["table.conflicting_content"]] * 2


def test_k20_the_newest_version_wins():
    rows = {"id": [1, 1, 1, 2], "value": ["old", "new", "older", "x"], "version": [2, 3, None, 1]}
    split = judge(Versioned, rows, key=["id"], version_column="version")
    assert split.accepted["value"].to_list() == ["new", "x"]
    assert (split.verdict.quarantined, split.verdict.collapsed) == (0, 2)


def test_two_rows_with_the_newest_version_conflict():
    rows = {"id": [1, 1, 1], "value": ["a", "b", "c"], "version": [2, 2, 1]}
    split = judge(Versioned, rows, key=["id"], version_column="version")
    assert split.accepted.height == 0
    assert split.verdict.read == split.verdict.quarantined + split.verdict.collapsed == 3


def test_rows_without_any_version_conflict_and_none_is_lost():
    rows = pl.DataFrame(
        {"id": [1, 1], "value": ["a", "b"], "version": [None, None]}, schema_overrides={"version": pl.Int64}
    )
    split = judge(Versioned, rows, key=["id"], version_column="version")
    assert reasons(split) == [["table.conflicting_content"]] * 2


def test_a_row_conflicts_with_a_refused_row_of_its_key():
    split = judge(Line, {"id": [1, 1, 2], "quantity": [1, 0, 2], "code": ["x", "x", "x"]}, key=["id"])
    assert split.accepted["id"].to_list() == [2]
    assert sorted(reasons(split)) == [["quantity.gt"], ["table.conflicting_content"]]


def test_a_refused_older_version_says_nothing_against_the_newest():
    class Positive(Versioned):
        value: str = field(ne="bad")

    rows = {"id": ["1", "1"], "value": ["bad", "good"], "version": ["1", "2"]}
    split = judge(Positive, rows, key=["id"], version_column="version")
    assert split.accepted["value"].to_list() == ["good"]
    rows = {"id": ["1", "1"], "value": ["bad", "good"], "version": ["2", "1"]}
    assert judge(Positive, rows, key=["id"], version_column="version").accepted.height == 0


def test_a_refused_row_whose_version_cannot_be_read_may_be_the_newest():
    rows = {"id": ["1", "1"], "value": ["a", "b"], "version": ["1", "?"]}
    split = judge(Versioned, rows, key=["id"], version_column="version")
    assert split.accepted.height == 0
    assert split.verdict.quarantined == 2


KEYED = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from(["a", "b", "bad"]), st.sampled_from([1, 2, None])), max_size=8
)


class Keyed(Contract):
    id: int
    value: str = field(ne="bad")
    version: int = field(nullable=True)


@settings(max_examples=150, deadline=None)
@given(rows=KEYED, versioned=st.booleans(), data=st.data())
def test_the_order_of_rows_and_further_copies_change_nothing_that_is_published(rows, versioned, data):
    shuffled = data.draw(st.permutations(rows))
    copies = data.draw(st.lists(st.sampled_from(rows), max_size=4)) if rows else []
    gate = Gate(Keyed, key=["id"], version_column="version" if versioned else None)
    schema = {"id": pl.Int64, "value": pl.String, "version": pl.Int64}
    first, second = (
        gate.judge(pl.DataFrame(each, schema=schema, orient="row")) for each in (rows, [*shuffled, *copies])
    )
    assert first.accepted.equals(second.accepted)
    assert set(first.quarantined.drop("_failures").rows()) == set(second.quarantined.drop("_failures").rows())
    assert first.accepted["id"].is_unique().all()


# Rules combined


TRUTH = [
    # the values of a and b; then what either, the negation of the first, and both are
    (1, 1, True, False, True),
    (1, 0, True, False, False),
    (0, 1, True, True, False),
    (0, 0, False, True, False),
    (None, 1, True, None, None),
    (None, 0, None, None, False),
    (None, None, None, None, None),
    (1, None, True, False, None),
    (0, None, None, True, False),
]


class Combined(Contract):
    a: int = field(nullable=True)
    b: int = field(nullable=True)

    @rule()
    def either(rows):
        return (rows.a > 0) | (rows.b > 0)

    @rule()
    def neither(rows):
        return ~(rows.a > 0)

    @rule()
    def both(rows):
        return (rows.a > 0) & (rows.b > 0)


@pytest.mark.parametrize(("a", "b", "either", "negated", "both"), TRUTH)
def test_rules_combine_as_three_valued_logic_has_it_and_null_counts_as_held(a, b, either, negated, both):
    split = judge(Combined, pl.DataFrame({"a": [a], "b": [b]}, schema={"a": pl.Int64, "b": pl.Int64}))
    expected = [
        f"table.{name}" for name, held in [("either", either), ("neither", negated), ("both", both)] if held is False
    ]
    assert (reasons(split) or [[]]) == [expected]


@pytest.mark.parametrize(("a", "b", "either", "negated", "both"), TRUTH)
def test_null_counts_as_broken_where_ignore_na_is_off(a, b, either, negated, both):
    check = pa.Check(lambda data: data.lazyframe.select((pl.col("a") > 0) | (pl.col("b") > 0)), ignore_na=False)
    columns = {name: pa.Column(pl.Int64, nullable=True) for name in "ab"}
    split = judge(
        pa.DataFrameSchema(columns, checks=[check]),
        pl.DataFrame({"a": [a], "b": [b]}, schema=dict.fromkeys("ab", pl.Int64)),
    )
    assert split.accepted.height == (1 if either else 0)


# Severities


@pytest.mark.parametrize(
    ("severity", "published", "quarantined", "blocked", "tag"),
    [
        (INFO, 1, 0, False, [None]),
        (WARNING, 1, 0, False, [["a.gt"]]),
        (ERROR, 0, 1, False, []),
        (CRITICAL, 0, 1, True, []),
    ],
)
def test_a_severity_decides_what_becomes_of_the_row(severity, published, quarantined, blocked, tag):
    class One(Contract):
        a: int = field(gt=0, severity={"gt": severity})

    split = judge(One, {"a": [0]})
    assert (split.verdict.accepted, split.verdict.quarantined, split.verdict.blocked) == (
        published,
        quarantined,
        blocked,
    )
    assert split.accepted["_warnings"].to_list() == tag
    assert [(f.rule, f.severity, f.rows) for f in split.verdict.findings] == [("a.gt", severity, 1)]


@pytest.mark.parametrize(("severity", "blocked"), [(INFO, False), (WARNING, False), (ERROR, True), (CRITICAL, True)])
def test_a_severity_decides_what_a_table_rule_does(severity, blocked):
    class Some(Contract):
        a: int

        @rule(severity, table=True)
        def many(rows):
            return pl.len() > 5

    verdict = judge(Some, {"a": [1]}).verdict
    assert verdict.blocked == blocked
    assert [(f.rule, f.severity) for f in verdict.findings] == [("table.many", severity)]


def test_a_plain_schema_carries_severities_in_panderas_own_metadata():
    schema = pa.DataFrameSchema(
        {
            "id": pa.Column(pl.Int64, metadata={METADATA_KEY: {"severity": {"type": CRITICAL}}}, coerce=True),
            "a": pa.Column(pl.Int64, pa.Check.gt(0), metadata={METADATA_KEY: {"severity": WARNING}}),
        },
        checks=[pa.Check(lambda data: data.lazyframe.select(pl.col("a") < 9), name="small")],
        unique=["a"],
        metadata={
            METADATA_KEY: {
                "severity": {"small": WARNING, "unique": INFO, "conflicting_content": CRITICAL, "extra_column": ERROR}
            }
        },
    )
    rules = Gate(schema).compiled.by_id
    assert {name: rules[name].severity for name in ("id.type", "id.not_null", "a.gt", "a.not_null")} == {
        "id.type": CRITICAL,
        "id.not_null": ERROR,
        "a.gt": WARNING,
        "a.not_null": WARNING,
    }
    assert {name: rules[f"table.{name}"].severity for name in ("small", "unique")} == {"small": WARNING, "unique": INFO}
    assert blocking(judge(schema, {"id": ["1", "1"], "a": [1, 2]}, key=["id"]).verdict) == {"table.conflicting_content"}
    assert blocking(judge(schema, {"id": [1], "a": [1], "more": [1]}).verdict) == {"table.extra_column"}
    assert blocking(judge(schema, {"id": ["x"], "a": [1]}).verdict) == {"id.type"}


def test_a_models_config_carries_the_severities_of_its_frame():
    class Plain(pa.DataFrameModel):
        a: int

        class Config:
            metadata = {METADATA_KEY: {"severity": {"no_rows": CRITICAL}}}  # noqa: RUF012 - pandera's own way

    assert judge(Plain, pl.DataFrame(schema={"a": pl.Int64})).verdict.blocked


@pytest.mark.parametrize("severity", [{"gte": WARNING}, {"not_null": WARNING, "eq": ERROR}])
def test_a_severity_for_a_rule_that_is_not_there_is_refused(severity):
    class Typo(Contract):
        a: int = field(ge=0, severity=severity)

    with pytest.raises(DeclarationError, match="gives a severity for"):
        Gate(Typo)
    schema = pa.DataFrameSchema({"a": pa.Column(pl.Int64)}, metadata={METADATA_KEY: {"severity": severity}})
    with pytest.raises(DeclarationError, match="the schema gives a severity for"):
        Gate(schema)


# Unknown, not failed


def test_other_rules_on_a_value_that_cannot_be_read_are_unknown():
    class Ranged(Contract):
        a: int = field(gt=0, unique=True)
        b: int = field(gt=0)

        @rule()
        def more(rows):
            return rows.a >= rows.b

    split = judge(Ranged, {"a": ["x", "y", "1"], "b": ["0", "1", "1"]})
    assert reasons(split) == [["a.type", "b.gt"], ["a.type"]]


def test_a_default_takes_the_place_of_null_and_not_of_what_cannot_be_read():
    class Filled(Contract):
        a: int = field(default=7)

    split = judge(Filled, {"a": [None, "x", "1"]})
    assert split.accepted["a"].to_list() == [7, 1]
    assert split.quarantined["a"].to_list() == ["x"]


# Judged once more, on what is about to be published


def test_a_table_rule_is_judged_on_what_is_left():
    class Mean(Contract):
        a: int = field(gt=0)

        @rule(table=True)
        def balanced(rows):
            return rows.a.mean() < 5

    assert not judge(Mean, {"a": [1, 2]}).verdict.blocked
    split = judge(Mean, {"a": [9, -9, -9]})  # balanced before the bad rows are taken out
    assert split.verdict.accepted == 1
    assert blocking(split.verdict) == {"table.balanced"}


def test_a_rule_over_a_group_is_judged_until_it_holds_for_all_that_is_left():
    class Basket(Contract):
        basket: int
        price: int = field(gt=0)

        @rule()
        def complete(rows):
            return pl.len().over("basket") == 2

    split = judge(Basket, {"basket": [1, 1, 2, 2], "price": [1, 0, 1, 1]})
    assert split.accepted["basket"].to_list() == [2, 2]
    assert reasons(split) == [["table.complete"], ["price.gt"]]


def test_a_chain_of_refusals_is_followed_to_its_end():
    class Chain(Contract):
        at: int
        after: int = field(nullable=True)

        @rule()
        def follows(rows):
            return rows.after.is_null() | rows.after.is_in(rows.at.implode())

    split = judge(Chain, {"at": [1, 2, 3, 4], "after": [None, 9, 2, 3]})
    assert split.accepted["at"].to_list() == [1]


def test_a_unique_key_column_does_not_refuse_copies_that_collapse():
    class Once(Contract):
        id: int = field(unique=True)
        a: int

    split = judge(Once, {"id": [1, 1, 2], "a": [1, 1, 2]}, key=["id"])
    assert (split.verdict.accepted, split.verdict.quarantined, split.verdict.collapsed) == (2, 0, 1)


def test_a_tag_is_about_the_rows_that_are_published():
    class Tagged(Contract):
        basket: int
        price: int = field(gt=0)

        @rule(WARNING)
        def complete(rows):
            return pl.len().over("basket") == 2

    split = judge(Tagged, {"basket": [1, 1], "price": [1, 0]})
    assert split.accepted["_warnings"].to_list() == [["table.complete"]]


def test_unique_looks_within_a_partition():
    day = Daily("day", start="2017-01-01", end="2017-01-03")

    class Once(Contract):
        a: int = field(unique=True)

    rows = pl.DataFrame({"day": day.series(["2017-01-01", "2017-01-02", "2017-01-02"]), "a": [1, 1, 1]})
    split = Gate(Once, partition=day).judge(rows, day.keys())
    assert {key: verdict.quarantined for key, verdict in split.verdicts.items()} == {"2017-01-01": 0, "2017-01-02": 2}


# References, ids, titles


PRODUCTS = SimpleNamespace(path="silver/products", name="products", key=("product_id",))


def test_known_in_refuses_what_the_reference_does_not_know_and_tells_the_values():
    class Sale(Contract):
        product_id: int = field(known_in=PRODUCTS, nullable=True)

    rows = pl.DataFrame({"product_id": [1, 2, 9, 9, None]})
    split = Gate(Sale).judge(rows, references={"product_id": pl.Series([1, 2])})
    assert reasons(split) == [["product_id.known_in"]] * 2
    assert split.unknown == {"product_id": {"all": ["9"]}}
    with pytest.raises(DeclarationError, match="references"):
        Gate(Sale).judge(rows)


def test_ids_are_the_same_whatever_the_frame_and_the_order_of_columns():
    class Many(Contract):
        a: int = field(gt=0, ge=1)
        b: str = field(nullable=True)

        @rule()
        def a_is_short(rows):
            return rows.a < 10

    ids = [each.id for each in Gate(Many).compiled.rules]
    assert ids[:7] == ["a.present", "a.type", "a.not_null", "a.gt", "a.ge", "b.present", "b.type"]
    frame = pl.DataFrame({"b": ["x"], "a": [1], "c": [1]})
    assert [each.id for each in Gate(Many).compiled_for(dict(frame.schema)).rules] == ids


def test_two_checks_of_one_name_are_told_apart():
    checks = [pa.Check(lambda data: data.lazyframe.select(pl.col(data.key) > 0)) for _ in range(2)]
    schema = pa.DataFrameSchema({"a": pa.Column(pl.Int64, checks)})
    assert reasons(judge(schema, {"a": [0]})) == [["a.check", "a.check_2"]]


def test_rules_have_titles_and_descriptions_for_people():
    class Described(Contract):
        a: int = field(gt=0, description="pieces sold")

        @rule()
        def small(rows):
            """It is small.

            A large one is a typing error.
            """
            return rows.a < 100

    rules = Gate(Described).compiled.by_id
    assert rules["table.small"].title == "It is small."
    assert "typing error" in rules["table.small"].description
    assert rules["a.gt"].title == "greater_than(0)"
    assert rules["a.not_null"].description == "pieces sold"


def test_the_digest_changes_with_a_severity_and_not_with_a_description():
    def declared(**settings):
        class One(Contract):
            a: int = field(gt=0, **settings)

        return Gate(One).digest

    assert declared() == declared(description="pieces")
    assert declared() != declared(severity=WARNING)


# What cannot be judged is refused where it is declared


@pytest.mark.parametrize(
    "settings",
    [
        {"key": ["nowhere"]},
        {"key": ["id"], "version_column": "nowhere"},
        {"key": ["id"], "version_column": "id"},
        {"version_column": "quantity"},
        {"max_quarantined": 1.5},
        {"max_quarantined": {"quantity.typo": 0.5}},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(DeclarationError):
        Gate(Line, **settings)


@pytest.mark.parametrize(
    "check",
    [
        pa.Check(lambda data: data.lazyframe.select(pl.col("nowhere") > 0)),
        pa.Check(lambda data: data.lazyframe.filter(pl.col(data.key) > 0)),
        pa.Check(lambda data: data.lazyframe.select(pl.col(data.key))),
        pa.Check(lambda data: data.lazyframe.select(pl.col(data.key).head(2) > 0)),
        pa.Check(lambda data: None),
        pa.Check.str_startswith("x"),
    ],
)
def test_a_check_that_cannot_be_compiled_is_refused_with_the_reason(check):
    with pytest.raises(DeclarationError, match=r"rows, rule a\.\w+: "):
        Gate(pa.DataFrameSchema({"a": pa.Column(pl.Int64, check)}))


@pytest.mark.parametrize("name", ["*", "_warnings", "_failures", "_source_row", "_mask0", ""])
def test_names_that_mean_something_to_the_engine_are_refused(name):
    with pytest.raises(DeclarationError, match="no column can be called"):
        Gate(pa.DataFrameSchema({name: pa.Column(pl.Int64)}))
