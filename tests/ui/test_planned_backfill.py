"""The planned backfill from its form in a real browser, and the runs that it launches."""

import pytest

from assets.backfill import PLAN_TAG
from tests.assets.test_materialize import edit_a_quantity
from tests.ui.pages import BackfillPage, LaunchpadPage, RunPage
from tests.ui.retail import BRONZE, DAILY_SALES, SILVER, WEEK_BEFORE

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

DAY = WEEK_BEFORE[2]
FORM = f"""\
ops:
  plan:
    config:
      table: {BRONZE}
      partitions: [{WEEK_BEFORE[0]}..{WEEK_BEFORE[-1]}]
"""


def test_a_corrected_file_is_found_planned_and_made_again_from_the_form(server, deployment, page):
    before = {table: deployment.files(table, WEEK_BEFORE) for table in (BRONZE, SILVER, DAILY_SALES)}
    edit_a_quantity(deployment, DAY)

    form = LaunchpadPage(page, server.url, "planned_backfill").open()
    for field in ("table", "partitions", "only", "downstream", "upstream", "dry_run"):
        assert f"{field}: " in form.fields()
    form.wait_for_explanation("table", "Table that is asked for")
    run = form.fill(FORM).launch()
    assert RunPage(page, server.url, run).open().wait_until_finished() == "Success"

    launched = server.backfills()[0]
    backfill = BackfillPage(page, server.url, launched["id"]).open()
    assert backfill.wait_until_finished() == "Succeeded"
    counts = backfill.assets()
    assert counts[BRONZE]["Succeeded"] == counts[SILVER]["Succeeded"] == counts[DAILY_SALES]["Succeeded"] == 1

    (planned,) = server.runs([run])
    plan = {tag["key"]: tag["value"] for tag in planned["tags"]}[PLAN_TAG]
    runs = server.backfill(launched["id"])["runs"]
    assert runs
    for each in runs:
        tags = {tag["key"]: tag["value"] for tag in each["tags"]}
        assert tags[PLAN_TAG] == plan
        assert int(tags["dagster/priority"]) < 0

    for table, files in before.items():
        now = deployment.files(table, WEEK_BEFORE)
        assert {day for day in WEEK_BEFORE if now[day] != files[day]} == {DAY}, table
