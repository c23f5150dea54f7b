"""The operator's words, on a project of one feed file: no Dagster, and one message for every mistake."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from medallion.cli import cli, main
from medallion.errors import ConfigurationError, DeclarationError, MedallionError, UnknownPartition, UnknownTable
from medallion.project import Project, feeds_of, load_project
from medallion.refine import Run, refine
from tests.builders import FIRST, SECOND, THIRD, land_orders, land_products, make_run, order, orders_of

ROOT = Path(__file__).parents[2]


@pytest.fixture
def filled(folder: Path, project: Project) -> Run:
    """A lake in which one day is published, one blocked, and the others missing."""
    run = make_run(folder)
    land_products(run, {1: "BAKERY", 2: "DAIRY"})
    land_orders(run, FIRST, [*orders_of(FIRST), order(1, 1, 1), order(9, quantity=0)])
    land_orders(run, SECOND, [order(19, quantity=0)])
    for path in ("bronze/products", "silver/products"):
        refine(project.table(path), ["all"], run)
    for path in ("bronze/orders", "silver/orders"):
        refine(project.table(path), [FIRST, SECOND], run)
    return run


def medallion(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, list(words), catch_exceptions=True)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def run_main(monkeypatch: pytest.MonkeyPatch, *words: str) -> object:
    """Run the command as the installed script does; the exit status."""
    monkeypatch.setattr(sys, "argv", ["medallion", *words])
    try:
        main()
    except SystemExit as done:
        return done.code
    return 0


def test_the_summary_counts_what_every_table_holds(filled: Run):
    code, output = medallion("summary", "--json")
    assert code == 0
    found = {each["table"]: each for each in json.loads(output)}
    assert list(found)[:2] == ["bronze/orders", "bronze/products"]
    orders = found["silver/orders"]
    assert (orders["committed"], orders["blocked"]) == (1, [SECOND])
    assert orders["missing"] == [SECOND, THIRD, "2017-02-02", "2017-02-03"]
    assert (orders["read"], orders["accepted"], orders["quarantined"], orders["collapsed"]) == (5, 3, 1, 1)
    assert orders["quarantined_by_rule"] == {"quantity.gt": 1}
    assert (found["bronze/orders"]["read"], found["bronze/orders"]["accepted"]) == (6, 6)


def test_the_summary_is_a_table_for_people(filled: Run):
    code, output = medallion("summary")
    assert code == 0
    assert "silver/orders" in output
    assert "quantity.gt" in output


def test_a_partition_can_be_inspected(filled: Run, project: Project):
    code, output = medallion("inspect", "silver/orders", FIRST)
    assert code == 0
    found = json.loads(output)
    assert found["live"]["verdict"]["accepted"] == 3
    assert found["live"]["inputs"]["raw"]["table"] == "bronze/orders"
    assert found["held"] is None


def test_a_blocked_candidate_can_be_inspected(filled: Run):
    found = json.loads(medallion("inspect", "silver/orders", SECOND)[1])
    assert found["live"] is None
    assert [finding["rule"] for finding in found["held"]["verdict"]["findings"]] == [
        "table.quarantined_share",
        "quantity.gt",
    ]


def test_an_unpartitioned_table_is_inspected_without_a_key(filled: Run):
    assert json.loads(medallion("inspect", "silver/products")[1])["live"]["verdict"]["accepted"] == 2


def test_a_partition_that_was_never_built_is_inspected_as_empty(filled: Run):
    found = json.loads(medallion("inspect", "silver/orders", THIRD)[1])
    assert (found["live"], found["held"]) == (None, None)


def test_an_unknown_table_is_answered_with_those_there_are(filled: Run):
    with pytest.raises(
        UnknownTable, match=r"no table is called 'silver/order'\. There are: bronze/orders, .*silver/orders"
    ):
        medallion("inspect", "silver/order")


def test_an_unknown_partition_is_answered_with_those_there_are(filled: Run):
    with pytest.raises(UnknownPartition, match="the table has 5 partitions, 2017-01-30 to 2017-02-03"):
        medallion("inspect", "silver/orders", "2018-01-01")


def test_a_lake_that_is_not_there_says_how_to_build_one(folder: Path):
    code, output = medallion("--lake", str(folder / "nowhere"), "summary")
    assert code == 1
    assert "there is no lake at" in output
    assert "make run UI=0" in output
    assert not (folder / "nowhere").exists()


def test_the_lake_can_be_named_by_the_environment(filled: Run, folder: Path, monkeypatch: pytest.MonkeyPatch):
    (folder / "lake").rename(folder / "elsewhere")
    monkeypatch.setenv("MEDALLION_LAKE", str(folder / "elsewhere"))
    assert medallion("inspect", "silver/orders", FIRST)[0] == 0


@pytest.mark.parametrize(
    "words",
    [["inspect", "silver/order"], ["inspect", "silver/orders", "a/b"], ["--lake", "nowhere", "summary"], ["no"], []],
    ids=" ".join,
)
def test_every_mistake_is_one_message_and_exit_status_2(filled: Run, monkeypatch, capsys, words):
    assert run_main(monkeypatch, *words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.strip()


def test_a_good_command_ends_with_status_0(filled: Run, monkeypatch, capsys):
    assert run_main(monkeypatch, "inspect", "silver/orders", FIRST) == 0
    assert capsys.readouterr().err == ""


def test_the_installed_program_says_where_to_run_when_it_is_outside_of_a_project(tmp_path: Path):
    wrong = subprocess.run(
        [Path(sys.executable).with_name("medallion"), "summary"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert wrong.returncode == 2
    assert 'Write [tool.medallion] feeds = "assets.feeds", and run from the project\'s folder' in wrong.stderr
    assert "Traceback" not in wrong.stderr


# Projects


def test_tables_come_after_those_that_they_are_built_from(project: Project):
    paths = [table.path for table in project.tables]
    for table in project.tables:
        for each in table.inputs.values():
            assert paths.index(each.table.path) < paths.index(table.path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import nothing_of_that_name", "ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("x = (", "SyntaxError"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("from medallion.tables import bronze\nb = bronze('B', source='b.csv')", "a table name is small letters"),
        (
            "from medallion.tables import bronze\nb = bronze('orders', source='b.csv')",
            "declares bronze/orders a second time",
        ),
    ],
)
def test_a_feed_file_with_an_error_is_named_with_the_error(folder: Path, text, says):
    (feeds,) = folder.glob("feeds_*")
    (feeds / "wrong.py").write_text(text)
    sys.path.insert(0, str(folder))
    with pytest.raises(DeclarationError) as refused:
        load_project(feeds_of(folder))
    assert f"the feed {feeds.name}/wrong.py" in str(refused.value) or f"{feeds.name}/shop.py" in str(refused.value)
    assert says in str(refused.value)


@pytest.mark.parametrize("text", ["", "[tool.medallion]\n", "[tool.medallion\n", None])
def test_a_project_that_does_not_name_its_feeds_says_what_to_write(tmp_path: Path, text):
    if text is not None:
        (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(ConfigurationError, match="does not say where the feeds are"):
        feeds_of(tmp_path)


def test_a_feeds_package_that_is_not_there_is_named():
    with pytest.raises(ConfigurationError, match=r"the feeds package 'no\.such\.package' cannot be imported"):
        load_project("no.such.package")


def test_every_error_of_the_tree_is_a_medallion_error():
    import medallion.errors as tree

    offered = [getattr(tree, name) for name in tree.__all__]
    assert all(issubclass(error, MedallionError) for error in offered)
    assert all(error.__name__ in (tree.__doc__ or "") for error in offered)
