"""The operator's words for proof: verify, quarantine, approve, discard, and what inspect says of a held candidate."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner

from medallion import ledger
from medallion.cli import cli
from medallion.errors import ConfigurationError, HeldCandidate, UnknownPartition
from medallion.evidence import read_held
from medallion.project import Project
from medallion.refine import Run, refine
from tests.builders import (
    DAYS,
    FIRST,
    LAST,
    SECOND,
    land_everything,
    land_orders,
    land_products,
    make_run,
    names_of,
    order,
    orders_of,
    pin,
    rows_of,
)

UNKNOWN = "product_id.known_in"


def said(*words: str, status: int = 0) -> str:
    result = CliRunner().invoke(cli, list(words), env={"COLUMNS": "80"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == status, result.output
    return result.output


def answer(*words: str, status: int = 0) -> Any:
    return json.loads(said(*words, status=status))


@pytest.fixture
def run(folder: Path, project: Project) -> Run:
    """A project folder with a lake: the first day has refused rows, the second is blocked, the others are good."""
    opened = make_run(folder)
    land_everything(opened)
    land_orders(opened, FIRST, [*orders_of(FIRST), order(7, 99), order(8, 2, 0)])
    land_orders(opened, SECOND, [order(11), order(12, quantity=0), order(13, quantity=0)])
    for table in project.tables:
        refine(table, table.partition.keys(), opened)
    return opened


def test_verify_says_reconciled_and_ends_with_status_0(run: Run):
    text = said("verify")
    assert text.startswith("Reconciled")
    assert "silver/orders" in text
    assert {len(line) <= 80 for line in text.splitlines()} == {True}
    assert answer("verify", "--json")["status"] == "reconciled"


def test_verify_names_each_difference_and_ends_with_status_1(run: Run, project: Project):
    orders = project.table("silver/orders")
    path = Path(str(run.lake.root), orders.path, names_of(orders, run)[LAST][0])
    path.unlink()
    text = " ".join(said("verify", status=1).split())
    assert f"silver/orders {LAST}: file missing: silver/orders/day={LAST}/part-" in text
    (found,) = answer("verify", "silver/orders", "--json", status=1)["differences"]
    assert found["file"] == str(path.relative_to(str(run.lake.root)))
    assert answer("verify", "silver/orders", f"{FIRST}..{DAYS[3]}", "--json")["differences"] == []
    assert answer("verify", "bronze/orders", "--json")["differences"] == []
    with pytest.raises(UnknownPartition):
        said("verify", "silver/orders", "2019-01-01")


def test_the_quarantine_is_listed_with_its_age_its_owner_and_the_command_that_replays_it(run: Run):
    text = said("quarantine", "list")
    assert f"medallion quarantine replay silver/orders --rule {UNKNOWN}" in text
    assert "nobody" in text  # the shop's tables have no owner
    found = answer("quarantine", "list", "--json")
    assert {(each["rule"], each["rows"], *each["partitions"]) for each in found} == {
        (UNKNOWN, 1, FIRST), ("quantity.gt", 1, FIRST),
    }  # fmt: skip
    assert all(0 <= each["age_seconds"] < 3600 for each in found)
    (day,) = answer("quarantine", "list", "--by", "day", "--json")
    assert (day["day"], day["rows"]) == (FIRST, 2)
    by_day = said("quarantine", "list", "silver/orders", "--by", "day", "--rule", UNKNOWN)
    assert f"medallion quarantine replay silver/orders {FIRST} --rule {UNKNOWN}" in by_day
    assert said("quarantine", "list", "silver/orders", LAST) == "No rows are quarantined.\n"


def test_refused_rows_are_shown_with_their_source_their_reasons_and_their_values(run: Run):
    text = said("quarantine", "show", "silver/orders", FIRST, "--rule", UNKNOWN)
    assert text.splitlines()[0] == f"orders/{FIRST}.csv row 4: {UNKNOWN} (ERROR)"
    assert "order_id 7  product_id 99" in text
    assert text.splitlines()[-1] == "1 rows."
    assert "1 more: --limit" in said("quarantine", "show", "silver/orders", "--limit", "1")
    (row, _) = map(json.loads, said("quarantine", "show", "silver/orders", "--json").splitlines())
    assert row["_failures"] == [{"rule": UNKNOWN, "severity": "ERROR"}]


def test_refused_rows_are_exported(run: Run, folder: Path):
    assert "2 rows" in said("quarantine", "export", "silver/orders", "--to", "rows.csv")
    assert pl.read_csv(folder / "rows.csv").height == 2
    with pytest.raises(ConfigurationError, match="is there already"):
        said("quarantine", "export", "silver/orders", "--to", "rows.csv")


def test_one_command_replays_what_holds_the_rows_after_the_catalogue_was_mended(run: Run, project: Project):
    assert "silver/orders: 0; at none" in said("quarantine", "replay", "silver/orders", "--rule", UNKNOWN)
    land_products(run, {1: "BAKERY", 2: "DAIRY", 3: "FUEL", 99: "NEW"})
    before = names_of(project.table("silver/orders"), run)
    assert "asked for" in said("quarantine", "replay", "silver/orders", "--rule", UNKNOWN, "--dry-run")
    assert names_of(project.table("silver/orders"), run) == before
    text = said("quarantine", "replay", "silver/orders", "--rule", UNKNOWN)
    assert text.splitlines()[-1] == f"Rows released from the quarantine of silver/orders: 1; at {FIRST}"
    after = names_of(project.table("silver/orders"), run)
    assert [day for day in before if before[day] != after[day]] == [FIRST]
    assert "no such rows" in said("quarantine", "replay", "silver/orders", "--rule", UNKNOWN)


def test_a_held_candidate_is_inspected_with_its_rows_and_what_can_be_done(run: Run):
    found = answer("inspect", "silver/orders", SECOND)
    assert [row["order_id"] for row in found["held rows"]["accepted"]] == ["11"]
    assert [row["order_id"] for row in found["held rows"]["quarantined"]] == ["12", "13"]
    assert f"medallion approve silver/orders {SECOND}" in found["next"]["approve"]
    assert f"medallion discard silver/orders {SECOND}" in found["next"]["discard"]
    assert f"medallion replay silver/orders {SECOND}" in found["next"]["repair"]
    assert "next" not in answer("inspect", "silver/orders", FIRST)


def test_a_candidate_without_rows_is_inspected_and_cannot_be_approved(run: Run, project: Project, folder: Path):
    (folder / "landing/orders" / f"{SECOND}.csv").write_text("order_id,quantity,price\n1,1,1\n")
    for path in ("bronze/orders", "silver/orders"):
        refine(project.table(path), [SECOND], run)
    found = answer("inspect", "silver/orders", SECOND)
    assert found["held rows"] == {"accepted": [], "quarantined": []}
    assert sorted(found["next"]) == ["discard", "repair"]
    with pytest.raises(HeldCandidate):
        said("approve", "silver/orders", SECOND, "--reason", "why not")


def test_inspect_of_a_partitioned_table_asks_for_a_partition(run: Run, folder: Path):
    wanted = f"silver/orders has 5 partitions, {FIRST} to {LAST}. Name one, as in silver/orders {FIRST}."
    assert wanted in said("inspect", "silver/orders", status=2)
    assert answer("inspect", "silver/products")["partition"] == "all"
    (folder / "pyproject.toml").unlink()  # the lake answers alone
    held = f"silver/orders has 4 partitions, {FIRST} to {LAST}"
    assert held in said("inspect", "silver/orders", status=2)
    assert answer("inspect", "silver/products")["partition"] == "all"


def test_a_candidate_is_approved_with_a_reason_that_the_ledger_keeps(run: Run, project: Project):
    assert "Missing option '--reason'" in said("approve", "silver/orders", SECOND, status=2)
    text = said("approve", "silver/orders", SECOND, "--reason", "a day of returns")
    assert f"silver/orders {SECOND} is published" in text
    assert f"medallion replay silver/orders {SECOND}" in text
    assert rows_of(pin(project.table("silver/orders"), run), SECOND).get_column("order_id").to_list() == [11]
    newest = ledger.latest(run.lake).row(
        by_predicate=(pl.col("pipeline_name") == "silver/orders") & (pl.col("partition") == SECOND), named=True
    )
    assert (newest["status"], newest["reason"]) == ("approved", "a day of returns")
    assert newest["pipeline_run_id"].startswith("medallion approve by ")
    assert answer("verify", "--json")["status"] == "reconciled"


def test_a_candidate_is_discarded(run: Run):
    text = said("discard", "silver/orders", SECOND, "--reason", "a test delivery")
    assert "table.quarantined_share had blocked is gone" in text
    assert read_held(run.lake.root / "silver/orders", SECOND) is None
    with pytest.raises(HeldCandidate, match="no blocked candidate"):
        said("discard", "silver/orders", SECOND)
    assert "5 partitions" in said("discard", "silver/orders", status=2)
