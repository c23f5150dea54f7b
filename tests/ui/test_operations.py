"""What an operator does when a partition is blocked: sees it, reads what can be done, and approves it by form."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

from medallion import ledger
from medallion.lake import Lake
from tests.assets.deployment import cut_short
from tests.ui.pages import AssetPage, LaunchpadPage, LineageGraph, RunPage
from tests.ui.retail import BRONZE, SILVER, WEEK_BEFORE

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

SHORT = WEEK_BEFORE[2]
WHY = "a holiday, the till closed early"

Picture = Callable[[str], Path]


@pytest.fixture
def picture(page, tmp_path: Path) -> Picture:
    """Take a picture of the page under a name."""
    folder = Path(os.environ.get("SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)

    def take(name: str) -> Path:
        page.screenshot(path=folder / f"{name}.png", animations="disabled")
        return folder / f"{name}.png"

    return take


def test_a_blocked_partition_is_seen_and_approved_by_form(server, deployment, page, picture):
    whole = deployment.file(SHORT).read_bytes()
    cut_short(deployment.file(SHORT), rows=900)
    assert not deployment.run(BRONZE, SILVER, first=SHORT, gates_only=True).success

    health = AssetPage(page, server.url, "ops/health")
    run = health.materialize()
    assert RunPage(page, server.url, run).open().wait_until_finished() == "Success"
    page.set_viewport_size({"width": 1600, "height": 1500})
    health.open()
    page.get_by_text("[Show Markdown]").click()
    expect(page.get_by_role("heading", name="Where am I?")).to_be_visible()
    expect(page.get_by_role("heading", name="Can I prove that the result is correct?")).to_be_visible()
    picture("operations")
    assert "ops" in LineageGraph(page, server.url).open().group_names()

    silver = AssetPage(page, server.url, SILVER)
    gate = silver.check_result("gate", SHORT)
    assert gate.status == "Failed"
    assert f"medallion inspect {SILVER} {SHORT}" in (gate.description or "")
    page.get_by_role("row").filter(has=page.get_by_role("cell", name="next")).get_by_text("[Show Markdown]").click()
    expect(page.get_by_text(f"medallion replay {SILVER} {SHORT}")).to_be_visible()
    picture("blocked")

    page.get_by_role("link", name="approve", exact=True).first.click()
    form = LaunchpadPage(page, server.url).wait()
    assert SILVER in form.fields()
    assert SHORT in form.fields()
    form.type_at_the_end(WHY)
    picture("approve")
    assert RunPage(page, server.url, form.launch()).open().wait_until_finished() == "Success"

    assert silver.check_result("gate", SHORT).status == "Passed"
    assert silver.partition(SHORT).status == "Materialized"
    newest = ledger.latest(Lake(deployment.lake)).to_dicts()
    (told,) = [each for each in newest if (each["pipeline_name"], each["partition"]) == (SILVER, SHORT)]
    assert (told["status"], told["reason"]) == ("approved", WHY)

    deployment.file(SHORT).write_bytes(whole)  # as the other tests expect it
    assert deployment.run(BRONZE, SILVER, first=SHORT, gates_only=True).success
