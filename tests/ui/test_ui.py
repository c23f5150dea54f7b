"""What an operator does and sees in the Dagster UI, in a real browser, on a few days of the retail year.

Pictures of the pages are left in the folder that SCREENSHOTS names.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.assets.deployment import cut_short
from tests.ui.pages import AssetPage, BackfillPage, LineageGraph, RunPage
from tests.ui.retail import BRONZE, BUILT, DAILY_SALES, JANUARY, SILVER

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(600),
]  # the first test may wait for the deployment, each for pages and runs

CLICKED = JANUARY[6]
FILLED = JANUARY[7:]
SHORT = FILLED[2]

Picture = Callable[[str], Path]


@pytest.fixture
def picture(page: Page, tmp_path: Path) -> Picture:
    """Take a picture of the page under a name."""
    folder = Path(os.environ.get("SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)

    def take(name: str) -> Path:
        page.screenshot(path=folder / f"{name}.png", animations="disabled")
        return folder / f"{name}.png"

    return take


def test_the_lineage_graph_shows_the_five_groups_and_all_their_tables(server, page, picture):
    graph = LineageGraph(page, server.url).open()
    assert graph.group_names() == ["bronze", "gold", "ops", "quarantine", "silver"]
    picture("groups")
    page.set_viewport_size({"width": 1900, "height": 2100})  # else the names of the tables are shortened
    graph.expand()
    assert graph.group_names() == ["bronze", "gold", "ops", "quarantine", "silver"]
    names = graph.asset_names()
    assert names.count("transactions") == 3  # bronze, silver and quarantine
    assert {"daily_sales", "sales_7d", "weekly_promotion_sales", "household_months"} <= set(names)
    picture("lineage")


def test_one_partition_is_materialized_by_clicking_and_shows_what_was_published(server, deployment, page, picture):
    runs = {}
    for asset in (BRONZE, SILVER):
        runs[asset] = AssetPage(page, server.url, asset).materialize_partition(CLICKED)
        assert RunPage(page, server.url, runs[asset]).open().wait_until_finished() == "Success"
    picture("run")
    detail = AssetPage(page, server.url, SILVER).partition(CLICKED)
    picture("partition")
    assert detail.status == "Materialized"
    assert detail.run_id == runs[SILVER]
    (file,) = deployment.files(SILVER)[CLICKED]
    assert detail.metadata["batch id"] in file
    assert detail.metadata["outcome"] == "Committed"
    assert detail.metadata["table version"] == str(deployment.handle(SILVER).version())
    assert "quantity.gt" in detail.metadata["quarantined by reason"]


def test_gold_shows_a_chart_of_its_sales(server, page, picture):
    detail = AssetPage(page, server.url, DAILY_SALES).partition(BUILT[-1])
    assert float(detail.metadata["total sales"].replace(",", "")) > 1000
    chart = page.get_by_alt_text(f"sales of {BUILT[0]} to {BUILT[-1]}")
    chart.scroll_into_view_if_needed()
    picture("chart")
    assert chart.evaluate("image => image.complete && image.naturalWidth") > 100


def test_a_range_is_backfilled_by_clicking_and_a_repaired_day_alone_is_run_again(server, deployment, page, picture):
    whole = deployment.file(SHORT).read_bytes()
    cut_short(deployment.file(SHORT), rows=900)

    graph = LineageGraph(page, server.url).open([BRONZE, SILVER, DAILY_SALES])
    backfill = BackfillPage(page, server.url, graph.launch_backfill(FILLED[0], FILLED[-1])).open()
    assert backfill.wait_until_finished() == "Failed"
    done = backfill.assets()
    picture("backfill")
    assert done[SILVER]["Succeeded"] == done[DAILY_SALES]["Succeeded"] == 4
    assert done[SILVER]["Failed"] == 1

    silver = AssetPage(page, server.url, SILVER)
    refused = silver.check_result("gate", SHORT)
    picture("gate")
    assert refused.status == "Failed"
    assert f"silver/transactions {SHORT} blocked by table.a_whole_day" in (refused.description or "")
    assert silver.check_result("table__a_whole_day", SHORT).status == "Failed"
    picture("rule")
    assert silver.partition(SHORT).status == "Failed"
    picture("refused")

    stood = {table: deployment.standing(table, FILLED) for table in (SILVER, DAILY_SALES)}
    deployment.file(SHORT).write_bytes(whole)
    run = silver.materialize_partition(SHORT)
    assert RunPage(page, server.url, run).open().wait_until_finished() == "Success"
    assert silver.check_counts("gate").get("Failed", 0) == 0
    picture("repaired")
    others = [day for day in FILLED if day != SHORT]
    for table, before in stood.items():
        assert deployment.standing(table, others) == {day: before[day] for day in others}, table


def test_every_check_of_a_partition_can_be_read_on_the_checks_tab(server, page, picture):
    silver = AssetPage(page, server.url, SILVER)
    checks = silver.checks()
    picture("checks")
    assert {"gate", "quantity__gt", "product_id__known_in", "table__a_whole_day"} <= set(checks)
    warned = silver.check_result("quantity__gt", BUILT[0])
    picture("warning")
    assert warned.metadata["severity"] == "ERROR"
    assert int(warned.metadata["rows"]) > 0
