"""Jobs, the daily schedule, and the sensor that notices new and changed files in the landing zone."""

import json
from collections.abc import Iterator, Mapping

import dagster as dg
from dagster._core.definitions.partitions.partitioned_schedule import UnresolvedPartitionedAssetScheduleDefinition
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG

from assets.backfill import LIVE
from assets.chains import neighbours
from assets.specs import asset_key
from medallion.digests import digest
from medallion.partitions import Daily, Monthly, Partitioning, Weekly, Whole
from medallion.project import Project
from resources.lake import LandingResource

Schedule = dg.ScheduleDefinition | UnresolvedPartitionedAssetScheduleDefinition
_NAMES: Mapping[type[Partitioning], str] = {Daily: "daily", Weekly: "weekly", Monthly: "monthly", Whole: "references"}


def build_jobs(project: Project) -> dict[Partitioning, UnresolvedAssetJobDefinition]:
    """One job for all tables with the same partitions, by their partitions."""
    jobs: dict[Partitioning, UnresolvedAssetJobDefinition] = {}
    for cut in dict.fromkeys(table.partition for table in project.tables):
        base = _NAMES.get(type(cut), cut.column)
        taken = {job.name for job in jobs.values()}
        name = base if base not in taken else f"{base}_by_{cut.column}"
        tables = [table for table in project.tables if table.partition == cut]
        jobs[cut] = dg.define_asset_job(
            name,
            selection=dg.AssetSelection.assets(*(asset_key(table) for table in tables)),
            description=f"Everything that is cut like {tables[0].path}: " + ", ".join(table.path for table in tables),
        )
    return jobs


def build_schedules(jobs: Mapping[Partitioning, UnresolvedAssetJobDefinition]) -> list[Schedule]:
    """A schedule for each time-partitioned job: two hours after its window ends, when the stores have exported."""
    return [
        dg.build_schedule_from_partitioned_job(job, hour_of_day=2, minute_of_hour=0, tags=LIVE)
        for cut, job in jobs.items()
        if isinstance(cut, Daily | Weekly | Monthly)
    ]


def build_landing_sensor(
    project: Project, jobs: Mapping[Partitioning, UnresolvedAssetJobDefinition]
) -> dg.SensorDefinition:
    """Asks for a run of every partition whose file is new or has changed since it was last asked for."""
    sources = [table for table in project.tables if table.layer == "bronze"]

    @dg.sensor(
        name="landing_files",
        jobs=[jobs[cut] for cut in dict.fromkeys(table.partition for table in sources)],
        minimum_interval_seconds=30,
        description="New and changed files in the landing zone: one run for each row of neighbouring partitions.",
    )
    def landing_files(context: dg.SensorEvaluationContext, landing: LandingResource) -> dg.SensorResult:
        seen: dict[str, list[int]] = json.loads(context.cursor or "{}")
        zone = landing.open()
        now: dict[str, list[int]] = {}
        changed: dict[Partitioning, dict[str, dict[str, list[int]]]] = {}
        for table in sources:
            for key, state in zone.present(table).items():
                name, now_at = f"{table.name}/{key}", list(state)
                now[name] = now_at
                if seen.get(name) != now_at:
                    changed.setdefault(table.partition, {}).setdefault(key, {})[table.path] = now_at
        requests = [each for cut, keys in changed.items() for each in _requests(cut, keys, jobs[cut].name)]
        return dg.SensorResult(run_requests=requests, cursor=json.dumps(now))

    return landing_files


def _requests(cut: Partitioning, changed: Mapping[str, Mapping[str, list[int]]], job: str) -> Iterator[dg.RunRequest]:
    for keys in neighbours(cut, changed):
        # The same files in the same state are asked for once, however often the sensor looks.
        run_key = digest(job, {key: changed[key] for key in keys})
        if isinstance(cut, Whole):
            yield dg.RunRequest(run_key=run_key, job_name=job, tags=LIVE)
        elif len(keys) == 1:
            yield dg.RunRequest(run_key=run_key, job_name=job, partition_key=keys[0], tags=LIVE)
        else:
            tags = {**LIVE, ASSET_PARTITION_RANGE_START_TAG: keys[0], ASSET_PARTITION_RANGE_END_TAG: keys[-1]}
            yield dg.RunRequest(run_key=run_key, job_name=job, tags=tags)
