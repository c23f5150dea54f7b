"""What the asset graph calls out of date: contents and code decide, partition by partition."""

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleCauseCategory
from dagster._core.loader import LoadingContextForTest

from tests.assets.conftest import DAYS
from tests.assets.deployment import DAILY, REFERENCES, Deployment, causes
from tests.assets.test_materialize import edit_a_quantity

BRONZE, SILVER, DAILY_SALES, SALES_7D = DAILY
DAY = "2017-01-03"
LATER = {day for day in DAYS if day >= DAY}


def build(deployment: Deployment, *assets: str, first: str = DAYS[0], last: str = DAYS[-1]) -> None:
    """Materialize a range of days."""
    result = deployment.run(*assets, first=first, last=last, gates_only=True)
    assert result.success, causes(result)


def stale(deployment: Deployment, asset: str, defs: dg.Definitions | None = None) -> dict[str, set[str]]:
    """The days that the UI marks as out of date, each with what it says the cause is."""
    graph = (defs or deployment.defs).resolve_asset_graph()
    resolver = CachingStaleStatusResolver(
        deployment.instance, graph, LoadingContextForTest(deployment.instance)
    )  # fmt: skip
    key = dg.AssetKey(asset.split("/"))
    found = {day: {cause.category.value for cause in resolver.get_stale_causes(key, day)} for day in DAYS}
    return {day: reasons for day, reasons in found.items() if reasons}


@pytest.fixture
def known(fresh: Deployment) -> Deployment:
    """Five days in place up to gold, of which Dagster has been told."""
    assert fresh.run(*REFERENCES).success
    build(fresh, BRONZE, SILVER)
    build(fresh, DAILY_SALES)
    build(fresh, SALES_7D)
    return fresh


def test_a_corrected_day_makes_exactly_what_is_built_from_it_out_of_date(known):
    assert all(stale(known, asset) == {} for asset in DAILY)
    edit_a_quantity(known, DAY)
    build(known, BRONZE, SILVER, first=DAY, last=DAY)
    data = {StaleCauseCategory.DATA.value}
    assert stale(known, BRONZE) == stale(known, SILVER) == {}
    assert stale(known, DAILY_SALES) == {DAY: data}
    build(known, DAILY_SALES, first=DAY, last=DAY)
    assert stale(known, DAILY_SALES) == {}
    assert stale(known, SALES_7D) == dict.fromkeys(LATER, data)
    build(known, SALES_7D, first=DAY, last=DAYS[-1])
    assert all(stale(known, asset) == {} for asset in DAILY)


def test_a_day_that_was_made_again_with_the_same_content_makes_nothing_out_of_date(known):
    build(known, BRONZE, SILVER, first=DAY, last=DAY)
    assert all(stale(known, asset) == {} for asset in DAILY)


def test_changed_code_makes_every_day_out_of_date_until_it_is_made_again(known):
    another = dg.AssetKey(SILVER.split("/"))
    changed = known.defs.map_asset_specs(
        func=lambda spec: spec.replace_attributes(code_version="another") if spec.key == another else spec
    )
    assert stale(known, SILVER, changed) == {day: {StaleCauseCategory.CODE.value} for day in DAYS}
    assert stale(known, BRONZE, changed) == stale(known, DAILY_SALES, changed) == {}


def test_a_day_is_told_once_in_a_run_with_its_own_content(known):
    key = dg.AssetKey(SILVER.split("/"))
    records = known.instance.fetch_materializations(key, limit=100).records
    assert sorted(record.partition_key or "" for record in records) == list(DAYS)
    versions = {r.asset_materialization.tags["dagster/data_version"] for r in records if r.asset_materialization}
    assert len(versions) == len(DAYS)
