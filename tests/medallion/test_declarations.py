import datetime as dt

import pandera.polars as pa
import polars as pl
import pytest

from medallion.contract import CRITICAL, ERROR, WARNING, Contract, field, rule
from medallion.errors import DeclarationError
from medallion.partitions import Daily, Hourly, Keys, Monthly
from medallion.refine import Run, refine
from medallion.tables import Input, Table, bronze, gold, gold_sql, silver
from tests.builders import DAY, MONTH, ZONE, Shop, land, pin, rows_of, text_schema

EXPORT = bronze("orders", source="orders/{day}.csv", partition=DAY)


class Order(Contract):
    order_id: int = field()
    quantity: int = field(gt=0)


def identity(raw: pl.LazyFrame) -> pl.LazyFrame:
    return raw


def declare(contract=Order, key=("order_id",), **more):
    """A silver table that is right unless ``more`` says otherwise."""
    return silver(**{"raw": EXPORT, "contract": contract, "key": key, "partition": DAY, **more})(identity)


def checked(*checks: pa.Check) -> pa.DataFrameSchema:
    """A contract with checks on one column."""
    return text_schema({"order_id": pa.Column(int, list(checks))})


def test_a_table_that_is_declared_rightly_takes_its_name_and_description_from_the_function():
    table = declare()
    assert (table.path, table.quarantine_path, table.key) == ("silver/identity", "quarantine/identity", ("order_id",))


def test_a_table_is_equal_to_no_other_declaration_of_the_same_name():
    assert declare() != declare()


def test_a_declared_table_is_printed_by_its_path():
    assert repr(EXPORT) == "<bronze/orders>"


# Inputs


def test_an_input_that_is_no_table_is_named():
    with pytest.raises(DeclarationError, match="input raw is 'orders', not a declared table"):
        declare(raw="orders")


def test_a_misspelt_option_is_taken_for_an_input_and_named():
    with pytest.raises(DeclarationError, match=r"input max_quarantine is 0\.05, not a declared table"):
        declare(max_quarantine=0.05)


def test_a_table_without_inputs_says_how_to_give_them():
    with pytest.raises(DeclarationError, match=r"has no inputs; write them as keywords, as @silver\(raw=export"):
        silver(contract=Order, key=["order_id"], partition=DAY)(identity)


def test_a_function_whose_parameters_differ_from_the_inputs_shows_both():
    with pytest.raises(DeclarationError, match=r"the function takes \['raw'\], and the inputs are \['lines'\]"):
        silver(lines=EXPORT, contract=Order, key=["order_id"], partition=DAY)(identity)


def test_an_input_that_is_cut_by_keys_cannot_feed_a_table_that_is_cut_by_days():
    regions = bronze("regions", source="{region}.csv", partition=Keys("region", ("west", "east")))
    with pytest.raises(DeclarationError, match="A table can read tables with the same partitions"):
        declare(raw=regions)


def test_an_unpartitioned_table_cannot_read_days():
    with pytest.raises(DeclarationError, match="A table can read tables with the same partitions"):
        declare(partition=None)


def test_an_input_whose_days_are_in_another_time_zone_is_refused():
    utc = bronze("orders", source="{day}.csv", partition=Daily("day", start="2017-01-30", end="2017-02-04"))
    with pytest.raises(DeclarationError, match="has its days in another time zone"):
        declare(raw=utc)


@pytest.mark.parametrize("days", [0, -1])
def test_a_trailing_window_reaches_back_at_least_one_day(days):
    with pytest.raises(DeclarationError, match="days >= 1"):
        declare().trailing(days=days)


def test_an_unpartitioned_table_has_no_trailing_window(shop: Shop):
    with pytest.raises(DeclarationError, match="needs a time-partitioned table"):
        shop.products.trailing(days=7)


def test_only_an_unpartitioned_table_can_be_used_by_key():
    with pytest.raises(DeclarationError, match="only an unpartitioned table can be used by key"):
        EXPORT.by("order_id")


def by_key(shop: Shop, column: str) -> Table:
    def table(lines: pl.LazyFrame, products: pl.LazyFrame) -> pl.LazyFrame:
        return lines

    return gold(lines=shop.orders, products=shop.products.by(column), contract=Order, key=["order_id"], partition=DAY)(
        table
    )


def test_a_reference_is_used_by_a_column_that_it_has(shop: Shop):
    with pytest.raises(DeclarationError, match="silver/products has no column 'sku' to be used by"):
        by_key(shop, "sku")


def test_a_reference_is_used_by_a_column_that_another_input_has(shop: Shop):
    with pytest.raises(DeclarationError, match="no partitioned input has that column; give the table itself"):
        by_key(shop, "shelf")


def test_a_month_is_built_from_its_days_and_a_day_from_its_month():
    days, months = Input(EXPORT), Input(bronze("plans", source="{month}.csv", partition=MONTH))
    assert days.keys_for(MONTH, "2017-01-01") == ("2017-01-30", "2017-01-31")
    assert days.keys_for(MONTH, "2017-02-01") == ("2017-02-01", "2017-02-02", "2017-02-03")
    assert months.keys_for(DAY, "2017-01-31") == ("2017-01-01",)


def test_a_trailing_window_begins_where_the_table_begins(shop: Shop):
    window = shop.daily.trailing(days=3)
    assert window.keys_for(DAY, "2017-01-30") == ("2017-01-30",)
    assert window.keys_for(DAY, "2017-02-02") == ("2017-01-31", "2017-02-01", "2017-02-02")


# Keys, columns, options


def test_a_table_needs_a_key():
    with pytest.raises(DeclarationError, match=r"needs a key, .* as key=\['basket_id'\]"):
        declare(key=[])


def test_a_key_column_must_be_in_the_contract():
    with pytest.raises(DeclarationError, match=r"key column 'id' is not in the contract \['order_id', 'quantity'\]"):
        declare(key=["id"])


def test_the_partition_column_may_be_part_of_the_key_without_being_in_the_contract():
    assert declare(key=["day", "order_id"]).key == ("day", "order_id")


@pytest.mark.parametrize("name", ["_id", ".id", "*"])
def test_reserved_column_names_are_refused(name):
    contract = text_schema({"order_id": pa.Column(int), name: pa.Column(int)})
    with pytest.raises(DeclarationError, match="is reserved; names begin with a letter"):
        declare(contract)


@pytest.mark.parametrize("name", ["Orders", "1st", "my-table", "a/b", ""])
def test_a_table_name_is_small_letters_digits_and_underscores(name):
    with pytest.raises(DeclarationError, match="a table name is small letters, digits and '_'"):
        bronze(name, source="x.csv")


def test_a_contract_is_a_contract_or_a_pandera_schema():
    with pytest.raises(DeclarationError, match="is neither a Contract nor a pandera DataFrameSchema"):
        declare({"order_id": int})


def test_a_version_column_must_be_in_the_contract():
    with pytest.raises(DeclarationError, match="version_column='updated_at' is not in the contract"):
        declare(version_column="updated_at")


def test_a_chart_is_drawn_of_a_column_of_the_contract():
    with pytest.raises(DeclarationError, match="chart='sales' is not in the contract"):
        gold(raw=declare(), contract=Order, key=["order_id"], partition=DAY, chart="sales")(identity)


@pytest.mark.parametrize("share", [-0.1, 5])
def test_max_quarantined_is_a_share(share):
    with pytest.raises(DeclarationError, match=r"is a share of the rows; write 0\.05 for 5%"):
        declare(max_quarantined=share)


def test_revisions_count_from_one():
    with pytest.raises(DeclarationError, match="revisions count from 1 upwards"):
        declare(revision=0)


@pytest.mark.parametrize("dtype", [pl.Time, pl.Duration])
def test_a_column_whose_type_delta_lacks_is_refused(dtype):
    contract = text_schema({"order_id": pa.Column(int), "took": pa.Column(dtype)})
    with pytest.raises(DeclarationError, match=r"column 'took' is .*, which a Delta table has no type for; keep it as"):
        declare(contract)


# Sources


def test_a_source_without_the_partition_column_is_refused_since_all_days_would_share_a_file():
    with pytest.raises(DeclarationError, match=r"'orders\.csv' does not contain \{day\}, so all keys share a file"):
        bronze("orders", source="orders.csv", partition=DAY)


def test_a_source_is_csv_or_parquet():
    with pytest.raises(DeclarationError, match=r"must end in \.csv or \.parquet"):
        bronze("orders", source="orders/{day}.xlsx", partition=DAY)


@pytest.mark.parametrize("source", ["/etc/{day}.csv", "../{day}.csv", "a/../../{day}.csv"])
def test_a_source_lies_inside_the_landing_zone(source):
    with pytest.raises(DeclarationError, match="leads out of the landing zone; write a path inside it"):
        bronze("orders", source=source, partition=DAY)


# Contracts


def test_a_severity_for_a_rule_that_the_column_does_not_have_shows_those_it_has():
    class Misspelt(Contract):
        order_id: int = field(gt=0, severity={"ge": WARNING})

    with pytest.raises(
        DeclarationError, match=r"column 'order_id' gives a severity for 'ge', and its rules are .*'gt'"
    ):
        declare(Misspelt)


def test_a_severity_is_a_severity():
    class Wrong(Contract):
        order_id: int = field(gt=0, severity="warning")  # type: ignore[arg-type]

    with pytest.raises(DeclarationError, match="has severity='warning'; give a Severity, or one for each rule"):
        declare(Wrong)


def test_a_reference_is_a_declared_table_with_a_key():
    with pytest.raises(DeclarationError, match="give a declared silver or gold table, as known_in=products"):
        field(known_in="products")
    with pytest.raises(DeclarationError, match="give a declared silver or gold table"):
        field(known_in=EXPORT)


def test_a_reference_to_a_table_with_two_key_columns_says_how_to_name_one():
    both = declare(key=["order_id", "quantity"])
    with pytest.raises(DeclarationError, match=r"name one, as known_in=\(identity, 'order_id'\)"):
        field(known_in=both)


def test_a_reference_is_unpartitioned():
    class Refund(Contract):
        order_id: int = field(known_in=declare())

    with pytest.raises(DeclarationError, match="known_in silver/identity, which is partitioned; a reference is an unp"):
        declare(Refund)


def test_a_reference_names_a_column_that_the_table_has(shop: Shop):
    class Sale(Contract):
        order_id: int = field(known_in=(shop.products, "sku"))

    with pytest.raises(DeclarationError, match="known_in silver/products, which has no column 'sku'"):
        declare(Sale)


def test_a_rule_takes_the_rows_and_nothing_else():
    with pytest.raises(DeclarationError, match="write a function of one argument, the rows"):

        @rule(ERROR)
        def no_rows():
            return pl.lit(True)


def test_a_rule_about_a_column_that_is_not_there_is_refused_at_import():
    class Typo(Contract):
        order_id: int = field()

        @rule(ERROR)
        def positive(rows):
            return rows.quantiy > 0

    with pytest.raises(DeclarationError, match=r"rule table.positive: ColumnNotFoundError.*quantiy"):
        declare(Typo)


def test_a_rule_that_gives_no_truth_value_is_refused():
    class Sum(Contract):
        order_id: int = field()

        @rule(ERROR)
        def doubled(rows):
            return rows.order_id * 2

    with pytest.raises(DeclarationError, match="gives Int64, not true or false"):
        declare(Sum)


def test_a_table_rule_must_give_one_value_and_a_row_rule_one_a_row():
    class PerRow(Contract):
        order_id: int = field()

        @rule(CRITICAL, table=True)
        def positive(rows):
            return rows.order_id > 0

    class InAll(Contract):
        order_id: int = field()

        @rule(CRITICAL)
        def some(rows):
            return rows.order_id.sum() > 0

    for contract in (PerRow, InAll):
        with pytest.raises(DeclarationError, match="set table="):
            declare(contract)


def test_a_check_that_cannot_be_compiled_says_how_to_write_it():
    def uses_group_by(data):
        return data.lazyframe.group_by("order_id").len().select(pl.col("len") == 1)

    with pytest.raises(DeclarationError, match=r"cannot be compiled .*uses LazyFrame\.group_by.* Write one"):
        declare(checked(pa.Check(uses_group_by)))


def test_a_check_that_returns_neither_a_selection_nor_a_bool_says_how_to_write_it():
    with pytest.raises(DeclarationError, match=r"write.*: return data\.lazyframe\.select"):
        declare(checked(pa.Check(lambda data: 7)))


def test_a_column_without_a_type_and_a_column_that_is_a_pattern_are_refused():
    with pytest.raises(DeclarationError, match="has no type; a table needs one for every column"):
        declare(text_schema({"order_id": pa.Column()}))
    with pytest.raises(DeclarationError, match="is a pattern; a table's columns are named one by one"):
        declare(text_schema({"order_id": pa.Column(int), "x.*": pa.Column(int, regex=True)}))


def test_every_declaration_error_names_the_table():
    mistakes: list[dict[str, object]] = [
        {"key": []},
        {"raw": "orders"},
        {"revision": 0},
        {"contract": checked(pa.Check(lambda data: 7))},
    ]
    for wrong in mistakes:
        with pytest.raises(DeclarationError, match=r"^silver[ /]'?identity"):
            declare(**wrong)


# K1


@pytest.mark.parametrize(("cut", "kind"), [(DAY, "Daily"), (MONTH, "Monthly")])
def test_a_day_or_month_kept_as_text_is_refused_with_the_reason(cut, kind):
    contract = text_schema({"order_id": pa.Column(int), cut.column: pa.Column(str)})
    with pytest.raises(DeclarationError, match=rf"is Date in {kind}, .* would not be pruned or replaced as a day"):
        declare(contract, partition=cut)


def test_an_hour_is_text_and_not_a_date():
    hours = Hourly("hour", start="2017-01-30", end="2017-01-31", timezone=ZONE)
    export = bronze("orders", source="{hour}.csv", partition=hours)
    as_date = text_schema({"order_id": pa.Column(int), "hour": pa.Column(dt.date)})
    with pytest.raises(DeclarationError, match="partition column 'hour' is String in Hourly"):
        declare(as_date, raw=export, partition=hours)


@pytest.mark.parametrize(
    "values", [("2017-01-30", "2017-01-31", "2017-02-01"), ("2016", "2017")], ids=["days", "years"]
)
@pytest.mark.parametrize("together", [False, True], ids=["one after the other", "together"])
def test_a_table_cut_by_text_that_looks_like_dates_keeps_all_that_is_written(run: Run, values, together):
    cut = Keys("period", values)
    export = bronze("orders", source="{period}.csv", partition=cut)
    contract = text_schema({"order_id": pa.Column(int), "period": pa.Column(str)})
    table = declare(contract, raw=export, partition=cut)
    for number, value in enumerate(values):
        land(run, f"{value}.csv", f"order_id\n{number}\n")
    for keys in [values] if together else [[value] for value in values]:
        assert refine(export, keys, run).name == "COMPLETE"
        assert refine(table, keys, run).name == "COMPLETE"
    assert dict(rows_of(pin(table, run)).select("period", "order_id").iter_rows()) == {
        value: number for number, value in enumerate(values)
    }


def test_a_month_is_not_overwritten_by_the_next_month(run: Run):
    months = Monthly("month", start="2017-01-01", end="2017-03-01", timezone=ZONE)
    export = bronze("plans", source="{month}.csv", partition=months)
    plans = gold_sql(
        "plans", "SELECT month, order_id::BIGINT AS order_id FROM raw", raw=export, contract=checked(),
        key=["order_id"], description="Plans.", partition=months,
    )  # fmt: skip
    for number, month in enumerate(months.keys()):
        land(run, f"{month}.csv", f"order_id\n{number}\n")
        assert refine(export, [month], run).name == refine(plans, [month], run).name == "COMPLETE"
    assert rows_of(pin(plans, run))["order_id"].to_list() == [0, 1]
