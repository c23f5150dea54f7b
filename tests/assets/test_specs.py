"""Declared tables as Dagster sees them: what the UI shows of a table before anything has run."""

import datetime as dt
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pytest
from dagster._core.definitions.assets.graph.base_asset_graph import BaseAssetGraph
from dagster._core.definitions.freshness import TimeWindowFreshnessPolicy

from assets.definitions import build_definitions
from assets.operations import FRESH, RECONCILED
from assets.specs import asset_key, asset_spec, dependency, partitions_definition, quarantine_key
from checks.translate import GATE, check_name, rules
from medallion.contract import Contract, field
from medallion.errors import DeclarationError
from medallion.partitions import Daily, Hourly, Keys, Monthly, Partitioning, Weekly, Whole
from medallion.project import Project, load_project
from medallion.tables import Input, Table, bronze, gold

NEW_YORK = "America/New_York"
DAYS = Daily("day", start="2017-01-01", end="2018-01-01", timezone=NEW_YORK)
WEEKS = Weekly("week_start", start="2016-12-26", end="2018-01-01", timezone=NEW_YORK)


@pytest.fixture(scope="module")
def project() -> Project:
    return load_project("assets.feeds")


@pytest.fixture(scope="module")
def definitions() -> dg.Definitions:
    return build_definitions()


@pytest.fixture(scope="module")
def graph(definitions: dg.Definitions) -> BaseAssetGraph[Any]:
    return definitions.resolve_asset_graph()


def partitioned(project: Project) -> list[Table]:
    return [table for table in project.tables if not isinstance(table.partition, Whole)]


def edges(project: Project) -> list[tuple[Table, Input]]:
    """Every partitioned table with every partitioned input that it is built from."""
    return [(table, given) for table in partitioned(project) for given in table.inputs.values()
            if not isinstance(given.table.partition, Whole)]  # fmt: skip


def sample(cut: Partitioning) -> list[str]:
    """The ends of the range, where windows are clipped, the weeks in which clocks change, and some in between."""
    keys = list(cut.keys())
    around = [key for key in keys if "2017-03-06" <= key <= "2017-03-20" or "2017-10-30" <= key <= "2017-11-13"]
    return sorted({*keys[:9], *keys[-9:], *keys[::30], *around})


@pytest.mark.parametrize(
    "cut",
    [
        DAYS,
        Daily("day", start="2017-01-01", end="2018-01-01"),
        Daily("day", start="2018-10-01", end="2018-12-01", timezone="America/Sao_Paulo"),  # a day without a midnight
        WEEKS,
        Weekly("week", start="2017-01-01", end="2017-12-31"),  # weeks from Sunday
        Weekly("week", start="2017-01-04", end="2017-12-27", timezone="Europe/Berlin"),  # weeks from Wednesday
        Monthly("month", start="2017-01-01", end="2018-01-01", timezone=NEW_YORK),
        Monthly("month", start="2016-02-01", end="2016-04-01"),
        Hourly("hour", start="2017-01-01", end="2017-03-01"),
        Keys("region", ("north", "south", "east")),
    ],
    ids=str,
)
def test_dagster_has_the_same_partition_keys_in_the_same_order(cut):
    definition = partitions_definition(cut)
    assert definition is not None
    assert tuple(definition.get_partition_keys()) == cut.keys()


def test_the_partition_keys_of_every_declared_table_are_dagsters_own(project, graph):
    for table in partitioned(project):
        assert tuple(graph.get(asset_key(table)).partitions_def.get_partition_keys()) == table.partition.keys()


@pytest.mark.parametrize(
    ("cut", "given"),
    [
        (Hourly, {"start": "2017-03-11", "end": "2017-03-14", "timezone": NEW_YORK}),
        (Hourly, {"start": "2017-11-04", "end": "2017-11-07", "timezone": NEW_YORK}),
        (Weekly, {"start": "2017-01-02", "end": "2017-01-20"}),
        (Monthly, {"start": "2017-01-01", "end": "2017-03-15"}),
    ],
    ids=["an hour that is left out", "an hour that is repeated", "a broken week", "a broken month"],
)
def test_partitions_that_dagster_would_cut_otherwise_are_refused_at_the_declaration(cut, given):
    with pytest.raises(DeclarationError):
        partitions_definition(cut("when", **given))


def test_an_unpartitioned_table_has_no_partitions_in_dagster():
    assert partitions_definition(Whole()) is None


def test_every_partition_has_the_same_upstream_partitions_in_dagster_as_in_the_engine(project, graph):
    assert len(edges(project)) >= 6
    for table, given in edges(project):
        for key in sample(table.partition):
            theirs = graph.get_parent_partition_keys_for_child(key, asset_key(given.table), asset_key(table))
            ours = given.keys_for(table.partition, key)
            assert sorted(theirs.partitions_subset.get_partition_keys()) == sorted(ours), (table, given, key)
            assert theirs.required_but_nonexistent_subset.is_empty, (table, given, key)


def test_every_partition_has_the_downstream_partitions_in_dagster_that_the_engine_builds_from_it(project, graph):
    for table, given in edges(project):
        built_from = {key: given.keys_for(table.partition, key) for key in table.partition.keys()}  # noqa: SIM118
        for key in sample(given.table.partition):
            theirs = graph.get_child_partition_keys_of_parent(key, asset_key(given.table), asset_key(table))
            ours = [target for target, needed in built_from.items() if key in needed]
            assert sorted(theirs) == sorted(ours), (table, given, key)


class Anything(Contract):
    n: int = field()


def reading(given: Input | Table, cut: Partitioning) -> Table:
    @gold(rows=given, contract=Anything, key=["n"], partition=cut)
    def reader(rows: pl.LazyFrame) -> pl.LazyFrame:
        return rows

    return reader


@pytest.mark.parametrize(
    ("cut", "days"),
    [(WEEKS, 2), (WEEKS, 8), (WEEKS, 14), (WEEKS, 15), (Hourly("hour", start="2017-01-01", end="2017-01-20"), 3)],
    ids=["2 days of weeks", "8 days of weeks", "14 days of weeks", "15 days of weeks", "3 days of hours"],
)
def test_a_trailing_window_of_days_over_weeks_or_hours_reaches_as_far_in_dagster(cut, days):
    source = bronze("source", source=f"source/{{{cut.column}}}.csv", partition=cut)
    table = reading(source.trailing(days=days), cut)
    given, definition = table.inputs["rows"], partitions_definition(cut)
    mapping = dependency(given, table).partition_mapping
    assert mapping is not None
    assert definition is not None
    for key in cut.keys()[::5]:
        theirs = mapping.get_upstream_mapped_partitions_result_for_partitions(
            definition.subset_with_partition_keys([key]), definition, definition
        )
        assert set(theirs.partitions_subset.get_partition_keys()) == set(given.keys_for(cut, key)), key


def test_a_trailing_window_that_dagster_cannot_follow_is_refused_with_what_to_declare_instead():
    days = bronze("source", source="source/{day}.csv", partition=DAYS)
    with pytest.raises(DeclarationError, match=r"bronze/source\.trailing\(days=14\).*in a table that is cut like"):
        dependency(Input(days, days=14), reading(days, WEEKS))


def test_every_table_lies_in_the_group_of_its_layer_and_its_quarantine_in_quarantine(project, graph):
    groups = {key.to_user_string(): graph.get(key).group_name for key in graph.get_all_asset_keys()}
    assert set(groups.values()) == {"bronze", "silver", "quarantine", "gold", "ops"}
    assert all(groups[table.path] == table.layer for table in project.tables)
    assert {key for key, group in groups.items() if group == "quarantine"} == {
        f"quarantine/{table.name}" for table in project.tables if table.layer == "silver"
    }


def test_every_quarantine_is_an_external_asset_downstream_of_its_table(project, graph):
    silver = [table for table in project.tables if table.layer == "silver"]
    assert silver
    for table in silver:
        node = graph.get(quarantine_key(table))
        assert node.is_external
        assert node.parent_keys == {asset_key(table)}
        assert node.partitions_def == graph.get(asset_key(table)).partitions_def


def test_every_table_says_what_it_is_whose_it_is_and_what_it_is_made_with(project, graph):
    for table in project.tables:
        node = graph.get(asset_key(table))
        assert node.kinds >= {"deltalake"}, table
        assert node.kinds & {"polars", "duckdb"}, table
        assert node.owners == list(table.owners), table
        assert node.code_version.startswith(f"{table.revision}-"), table
    described = [table for table in project.tables if graph.get(asset_key(table)).description]
    assert {table.path for table in described} >= {table.path for table in project.tables if table.layer != "bronze"}


def test_a_table_written_in_sql_is_of_the_kind_duckdb_and_one_read_from_files_of_their_kind(graph):
    assert graph.get(dg.AssetKey(["gold", "household_months"])).kinds == {"deltalake", "duckdb"}
    assert graph.get(dg.AssetKey(["bronze", "transactions"])).kinds == {"deltalake", "polars", "csv"}
    assert graph.get(dg.AssetKey(["bronze", "promotions"])).kinds == {"deltalake", "polars", "parquet"}


def test_the_column_schema_names_every_column_with_its_type_its_meaning_and_its_rules(project, graph):
    for table in project.tables:
        schema = graph.get(asset_key(table)).metadata.get("dagster/column_schema")
        assert (schema is None) == (table.layer == "bronze"), table  # bronze takes what comes
    columns = {
        column.name: column
        for column in graph.get(dg.AssetKey(["silver", "transactions"])).metadata["dagster/column_schema"].columns
    }
    assert columns["day"].type == "Date"
    assert columns["quantity"].type == "Int64"
    assert columns["quantity"].description == "a line that sold nothing is a void or an adjustment, not a sale"
    assert "gt (ERROR)" in columns["quantity"].constraints.other
    assert "gt (WARNING)" in columns["sales_value"].constraints.other
    assert not columns["basket_id"].constraints.nullable
    assert "_warnings" in columns


def test_the_code_version_changes_with_the_transform_and_with_the_revision():
    source = bronze("source", source="source/{day}.csv", partition=DAYS)

    def version(revision: int, factor: int) -> str | None:
        @gold(rows=source, contract=Anything, key=["n"], partition=DAYS, revision=revision)
        def reader(rows: pl.LazyFrame) -> pl.LazyFrame:
            return rows.with_columns(pl.col("n") * factor)

        return asset_spec(reader).code_version

    assert version(1, 2) == version(1, 2)
    assert len({version(1, 2), version(1, 3), version(2, 2)}) == 3


def test_every_table_has_a_blocking_gate_and_a_check_for_each_of_its_rules(project, graph):
    for table in project.tables:
        nodes = {key.name: graph.get(key) for key in graph.get_check_keys_for_assets([asset_key(table)])}
        proof = {RECONCILED, FRESH} if table.layer == "gold" else set()
        assert set(nodes) == {GATE, *(check_name(rule.id) for rule in rules(table)), *proof}, table
        assert {name for name, node in nodes.items() if node.blocking} == {GATE}, table
        nodes = {name: node for name, node in nodes.items() if name not in proof}  # these are about the whole table
        assert all(node.partitions_def == partitions_definition(table.partition) for node in nodes.values()), table
    silver = {key.name for key in graph.get_check_keys_for_assets([dg.AssetKey(["silver", "transactions"])])}
    assert silver >= {"quantity__gt", "product_id__known_in", "sales_value__ge", "table__a_whole_day"}


def test_gold_that_expects_another_window_is_to_be_fresh_and_what_is_complete_is_not(project):
    daily, weekly = project.table("gold/daily_sales"), project.table("gold/weekly_promotion_sales")
    while_it_runs, afterwards = dt.date(2017, 6, 1), dt.date(2018, 2, 1)
    for table, days in ((daily, 1), (weekly, 7)):
        policy = asset_spec(table, while_it_runs).freshness_policy
        assert isinstance(policy, TimeWindowFreshnessPolicy)
        assert policy.fail_window.to_timedelta() == dt.timedelta(days=days * 1.5)
        assert asset_spec(table, afterwards).freshness_policy is None
    assert asset_spec(project.table("silver/transactions"), while_it_runs).freshness_policy is None


def test_the_definitions_can_be_loaded_by_dagster_as_they_are(definitions):
    dg.Definitions.validate_loadable(definitions)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("DAY = Dayly('day')\n", "cannot be imported: NameError: name 'Dayly' is not defined"),
        ("import polar\n", "cannot be imported: ModuleNotFoundError: No module named 'polar'"),
        ("def broken(:\n", "cannot be imported: SyntaxError"),
        (
            "from medallion.tables import bronze\nraw = bronze('orders', source='orders.json')\n",
            "bronze('orders'): source 'orders.json' must end in .csv or .parquet",
        ),
        (
            "from medallion.partitions import Monthly\nfrom medallion.tables import bronze\n"
            "raw = bronze('orders', source='{month}.csv',\n"
            "             partition=Monthly('month', start='2017-01-15', end='2018-01-01'))\n",
            "start 2017-01-15 is not the first day of a month",
        ),
    ],
    ids=["a misspelt name", "a missing module", "a syntax error", "a wrong ending", "a month that starts late"],
)
def test_a_feed_file_with_an_error_gives_one_message_that_names_the_file(text, said, tmp_path, monkeypatch, request):
    package = "feeds_with_" + request.node.callspec.id.replace(" ", "_")
    folder: Path = tmp_path / package
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "orders.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DeclarationError) as caught:
        build_definitions(package)
    assert str(caught.value).startswith(f"the feed {package}/orders.py")
    assert said in str(caught.value)
