"""The Dagster project: what ``workspace.yaml`` and ``dg`` load."""

import warnings

import dagster as dg
from dagster_duckdb import DuckDBResource

from assets.automation import build_jobs, build_landing_sensor, build_schedules
from assets.backfill import build_planned_backfill
from assets.decisions import build_decisions
from assets.factory import build_assets
from assets.operations import build_gold_checks, build_operations, build_refresh
from assets.recovery import build_recovery_jobs
from medallion.project import Project, load_project
from resources.lake import LakeReader, LakeResource, LandingResource

FEEDS = "assets.feeds"


def build_definitions(feeds: str = FEEDS) -> dg.Definitions:
    """The definitions of all feeds of a package.

    Raises:
        DeclarationError: naming the feed file that is at fault.
    """
    project = load_project(feeds)
    with warnings.catch_warnings():
        # Partitioned checks and clipped windows are previews in Dagster 1.13; both are pinned and tested here.
        warnings.simplefilter("ignore", dg.PreviewWarning)
        warnings.simplefilter("ignore", dg.BetaWarning)
        # Gold has another policy than what it is built from on purpose: see assets/factory.py.
        warnings.filterwarnings("ignore", r"Asset job \w+ materializes assets with varying BackfillPolicies")
        definitions = _definitions(project, feeds)
        definitions.get_repository_def()  # jobs are resolved, and warn, only here; Dagster keeps what it has resolved
        return definitions


def _definitions(project: Project, feeds: str) -> dg.Definitions:
    jobs = build_jobs(project)
    refresh, refreshing = build_refresh()
    lake, duckdb = LakeResource(), DuckDBResource(database=":memory:")
    return dg.Definitions(
        assets=[*build_assets(project.tables), *build_operations(project)],
        asset_checks=build_gold_checks(project),
        jobs=[
            *jobs.values(),
            refresh,
            build_planned_backfill(project),
            *build_decisions(project),
            *build_recovery_jobs(project),
        ],
        schedules=[*build_schedules(jobs), refreshing],
        sensors=[build_landing_sensor(project, jobs)],
        resources={
            "lake": lake,
            "landing": LandingResource(),
            "duckdb": duckdb,
            "lake_reader": LakeReader(lake=lake, database=duckdb, feeds=feeds),
        },
        executor=dg.in_process_executor,
    )


defs = build_definitions()
