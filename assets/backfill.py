"""The planned backfill: a job whose form asks what ``medallion plan`` asks, and whose run launches the plan.

The engine makes the plan; the run shows it and asks the daemon for one backfill of exactly its partitions. The backfill
has its own page, its runs carry the plan's id, and what failed in it can be executed again from there.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator

import dagster as dg
from dagster._core.definitions.assets.graph.asset_graph_subset import AssetGraphSubset
from dagster._core.execution.backfill import PartitionBackfill
from dagster._core.storage.tags import PRIORITY_TAG
from dagster._core.utils import make_new_backfill_id
from pydantic import Field

from assets.specs import asset_key, partitions_definition
from medallion import savepoints
from medallion.errors import MedallionError
from medallion.partitions import Whole
from medallion.plan import Plan, Select
from medallion.planning import plan
from medallion.project import Project
from resources.lake import LakeResource, LandingResource

PLAN_TAG = "medallion/plan"
"""Tag of runs and backfills: the id of the plan that they carry out."""
LIVE = {PRIORITY_TAG: "10"}
"""Tags of the runs that schedules and sensors ask for: they leave the queue before whatever somebody backfills."""
BEHIND = {PRIORITY_TAG: "-10"}
"""Tags of what a planned backfill asks for: it waits behind everything else."""
_SHOWN = 40


class PlannedBackfill(dg.Config):
    """The form. Left as it is, it finds and makes everything that is missing, failed or out of date."""

    table: str = Field("", description="Table that is asked for, as layer/name. Empty: all tables, to find every gap.")
    partitions: list[str] = Field(
        [],
        description="Partitions of the table: keys, or ranges as 2017-03-01..2017-03-31, of which both ends count and "
        "either may be left out. Empty: all of them.",
    )
    only: list[Select] = Field(
        [],
        description="Which of them: MISSING, FAILED, STALE (file, input or code changed), SOURCE (file changed), "
        "BLOCKED, ALL (replay). Empty: MISSING, FAILED and STALE.",
    )
    downstream: bool = Field(True, description="Visit what is built from them, too.")
    upstream: bool = Field(False, description="First make what they need, where it is missing or out of date.")
    dry_run: bool = Field(False, description="Only make the plan and show it.")


def build_planned_backfill(project: Project) -> dg.JobDefinition:
    """The job ``planned_backfill``."""

    @dg.op(name="plan", out=dg.Out(str, description="the plan's id"))
    def make_and_launch(
        context: dg.OpExecutionContext, config: PlannedBackfill, lake: LakeResource, landing: LandingResource
    ) -> Iterator[dg.Output[str]]:
        """Make the plan, show it, and launch it unless it is a dry run."""
        try:
            made = _plan(project, config, lake, landing)
            wanted = bool(made.partitions) and not config.dry_run
            if wanted:
                savepoints.before(project, lake.open(), f"the plan {made.id}", run_id=context.run.run_id)
        except MedallionError as error:
            raise dg.Failure(str(error), allow_retries=False) from error
        context.instance.add_run_tags(context.run.run_id, {PLAN_TAG: made.id})
        launched = launch(made, project, context.instance) if wanted else None
        metadata: dict[str, dg.MetadataValue] = {
            "plan": dg.MetadataValue.md(to_markdown(made)),
            "plan id": dg.MetadataValue.text(made.id),
            "partitions": dg.MetadataValue.int(made.partitions),
            "document": dg.MetadataValue.json(json.loads(made.to_json())),
        }
        if launched is not None:
            metadata["backfill"] = dg.MetadataValue.url(f"/runs/b/{launched}")
        context.log.info("plan %s: %s partitions; backfill: %s", made.id, made.partitions, launched or "none")
        yield dg.Output(made.id, metadata=metadata)

    @dg.job(
        name="planned_backfill",
        description="Finds out what has to be made again and why, shows it, and launches a backfill of exactly that. "
        "The Launchpad's form says what can be asked.",
        tags={"dagster/max_retries": "0"},
        executor_def=dg.in_process_executor,
    )
    def planned_backfill() -> None:
        make_and_launch()

    return planned_backfill


def _plan(project: Project, form: PlannedBackfill, lake: LakeResource, landing: LandingResource) -> Plan:
    keys = project.table(form.table).partition.select(form.partitions) if form.table and form.partitions else None
    more = {"select": form.only} if form.only else {}
    return plan(
        project,
        lake.open(),
        landing.open(),
        form.table or None,
        keys,
        downstream=form.downstream,
        upstream=form.upstream,
        slice_bytes=lake.slice_bytes,
        **more,  # type: ignore[arg-type]
    )


def launch(made: Plan, project: Project, instance: dg.DagsterInstance) -> str:
    """Ask the daemon for a backfill of a plan's partitions; returns the backfill's id."""
    tables = {project.table(each.table): each.keys for each in made.tables}
    target = AssetGraphSubset(  # type: ignore[call-arg]  # the checker does not see its defaults
        partitions_subsets_by_asset_key={
            asset_key(table): cut.subset_with_partition_keys(keys)
            for table, keys in tables.items()
            if (cut := partitions_definition(table.partition)) is not None
        },
        non_partitioned_asset_keys={asset_key(table) for table in tables if isinstance(table.partition, Whole)},
    )
    backfill_id = make_new_backfill_id()
    backfill = PartitionBackfill.from_asset_graph_subset(
        backfill_id=backfill_id,
        backfill_timestamp=time.time(),
        tags={PLAN_TAG: made.id, **BEHIND},
        dynamic_partitions_store=instance,
        asset_graph_subset=target,
        title=f"plan {made.id[:8]}",
        description=f"{made.partitions:,} partitions of {len(tables)} tables; "
        f"asked for: {made.asked.table or 'all tables'}",
        run_config=None,
    )
    instance.add_backfill(backfill)
    return backfill_id


def to_markdown(made: Plan) -> str:
    """A plan for people: the tables in order, and below each partition with its reasons, up to some."""
    if not made.partitions:
        waiting = Counter({path: len(keys) for path, keys in made.waiting.items()})
        return "Nothing is to be made. " + "; ".join(f"{count} of {path} wait" for path, count in waiting.items())
    lines = ["| table | partitions | first | last | why |", "|---|---:|---|---|---|"]
    for each in made.tables:
        why = ", ".join(f"{cause} ({count})" for cause, count in each.causes.items())
        keys = sorted(each.keys)
        lines.append(f"| {each.table} | {len(keys)} | {keys[0]} | {keys[-1]} | {why} |")
    steps = [(each.table, step) for each in made.tables for step in each.steps]
    lines += ["", "| partition | reasons |", "|---|---|"]
    lines += [
        f"| {table} {step.key} | {'; '.join(f'{r.cause}: {r.detail}'.rstrip(': ') for r in step.reasons)} |"
        for table, step in steps[:_SHOWN]
    ]
    if len(steps) > _SHOWN:
        lines.append(f"| and {len(steps) - _SHOWN:,} more: see the document | |")
    return "\n".join(lines)
