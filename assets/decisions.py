"""Jobs with a form, for what an operator decides or asks: approve, discard, verify, and tell Dagster again.

A job's Launchpad shows its form. Each does what the command of the same name does, and tells Dagster what came of it.
"""

from collections.abc import Collection, Iterator

import dagster as dg
from dagster_duckdb import DuckDBResource
from pydantic import Field

from assets import report as reporting
from assets.operations import differences_table, reconciled
from checks.translate import APPROVE, DISCARD
from medallion.differences import Verification
from medallion.errors import MedallionError
from medallion.held import approve, discard
from medallion.inspection import held_report, live_report
from medallion.lake import Lake
from medallion.outcomes import Committed, Report
from medallion.project import Project
from medallion.refine import Run
from medallion.tables import Table
from medallion.verify import verify
from resources.lake import LakeResource
from resources.telling import tell

VERIFY, REPORT = "verify", "report"


class Candidate(dg.Config):
    """Which blocked candidate is meant, and why."""

    table: str = Field(description="Table of the blocked partition, as layer/name.")
    partition: str = Field("all", description="The blocked partition's key; all for an unpartitioned table.")


class Approval(Candidate):
    """The form of ``approve_candidate``."""

    reason: str = Field(description="Why it is published although its gate refused it. Kept for good.")


class Discarding(Candidate):
    """The form of ``discard_candidate``."""

    reason: str = Field("", description="Why it is forgotten. Kept for good.")


class Verifying(dg.Config):
    """The form of ``verify_lake``. Left as it is, everything is verified."""

    table: str = Field("", description="Table to verify, as layer/name. Empty: all tables.")
    partitions: list[str] = Field(
        [],
        description="Partitions of the table: keys, or ranges as 2017-03-01..2017-03-31, of which both ends count and "
        "either may be left out. Empty: all of them.",
    )


class Telling(dg.Config):
    """The form of ``report_from_lake``. Left as it is, everything that the lake holds is told."""

    tables: list[str] = Field([], description="Tables to tell of, as layer/name. Empty: all of them.")


def build_decisions(project: Project) -> list[dg.JobDefinition]:
    """The jobs ``approve_candidate``, ``discard_candidate``, ``verify_lake`` and ``report_from_lake``."""
    return [_approving(project), _discarding(project), _verifying(project), _telling(project)]


def _job(name: str, description: str, op: dg.OpDefinition) -> dg.JobDefinition:
    @dg.job(
        name=name, description=description, tags={"dagster/max_retries": "0"}, executor_def=dg.in_process_executor
    )  # fmt: skip
    def job() -> None:
        op()

    return job


def _failure(error: MedallionError) -> dg.Failure:
    return dg.Failure(str(error), allow_retries=False)


def _tell(context: dg.OpExecutionContext, table: Table, lake: Lake, live: Report, held: Report | None = None) -> None:
    """What is committed, and then what is blocked, since a blocked partition may well have a version."""
    built_from = reporting.provenance(context.instance, table)
    tell(context, reporting.materializations(table, live, lake, built_from))
    for report in filter(None, (live, held)):
        tell(context, reporting.evaluations(context.instance, context.run.run_id, table, report))


def _approving(project: Project) -> dg.JobDefinition:
    @dg.op(name=APPROVE, out=dg.Out(str, description="what was published"))
    def publish(context: dg.OpExecutionContext, config: Approval, lake: LakeResource) -> Iterator[dg.Output[str]]:
        """Publish a blocked candidate as it was judged."""
        opened = lake.open()
        try:
            table = project.table(config.table)
            run = Run(opened, run_id=context.run.run_id)
            outcome = approve(table, config.partition, run, reason=config.reason)
        except MedallionError as error:
            raise _failure(error) from error
        report = Report(table.path, {config.partition: outcome})
        _tell(context, table, opened, report)
        said = f"{table.path} {config.partition}: {type(outcome).__name__}"
        context.log.info(said)
        metadata: dict[str, dg.MetadataValue] = {
            "next": dg.MetadataValue.md(
                f"What is built from it: `medallion replay {table.path} {config.partition}`, or the job "
                "[planned_backfill](/locations/medallion/jobs/planned_backfill/playground)."
            )
        }
        if isinstance(outcome, Committed):
            metadata["verdict"] = dg.MetadataValue.md(outcome.verdict.to_markdown())
        yield dg.Output(said, metadata=metadata)

    return _job(
        "approve_candidate",
        "Publishes a blocked candidate as it was judged, with the reason. Look at the partition's gate first. It is "
        "refused if the partition was committed since, or if the source, an input or the feed has changed.",
        publish,
    )


def _discarding(project: Project) -> dg.JobDefinition:
    @dg.op(name=DISCARD, out=dg.Out(str, description="what was forgotten"))
    def forget(context: dg.OpExecutionContext, config: Discarding, lake: LakeResource) -> str:
        """Forget a blocked candidate."""
        try:
            run = Run(lake.open(), run_id=context.run.run_id)
            gone = discard(project.table(config.table), config.partition, run, reason=config.reason)
        except MedallionError as error:
            raise _failure(error) from error
        rules = ", ".join(finding.rule for finding in gone.verdict.blocking)
        said = f"{config.table} {config.partition}: the candidate that {rules} had blocked is gone"
        context.log.info(said)
        return said

    return _job(
        "discard_candidate",
        "Forgets a blocked candidate; the version before stands. It comes back with the next replay, unless the "
        "source, an input or the feed has changed.",
        forget,
    )


def _verifying(project: Project) -> dg.JobDefinition:
    @dg.op(name=VERIFY, out=dg.Out(str, description="reconciled or differs"))
    def recompute(
        context: dg.OpExecutionContext, config: Verifying, lake: LakeResource, duckdb: DuckDBResource
    ) -> Iterator[dg.AssetCheckEvaluation | dg.Output[str]]:
        """Recompute what the lake says of itself, and name every difference."""
        try:
            chosen = [config.table] if config.table else None
            keys = project.table(config.table).partition.select(config.partitions) if config.partitions else None
            found = verify(
                project, lake.open(), chosen, keys, run_id=context.run.run_id, connect=duckdb.get_connection
            )  # fmt: skip
        except MedallionError as error:
            raise _failure(error) from error
        if keys is None:
            yield from _golden(project, found)
        counts = {
            "partitions": sum(each.partitions for each in found.tables),
            "rows": sum(each.rows for each in found.tables),
            "out of date": len(found.outdated),
        }
        if found.reconciled:
            yield dg.Output(found.status, metadata=counts)
            return
        lines = "\n".join(map(str, found.differences[:10]))
        raise dg.Failure(
            f"Not reconciled: {len(found.differences)} differences.\n{lines}",
            metadata={**counts, "what differs": differences_table(found.differences)},
            allow_retries=False,
        )

    return _job(
        "verify_lake",
        "Reads the lake back and holds files, rows, evidence, quarantine, fences, kept sources and the ledger against "
        "each other. Fails if anything differs, and names it; sets the check reconciled of every gold table.",
        recompute,
    )


def _golden(project: Project, found: Verification) -> Iterator[dg.AssetCheckEvaluation]:
    for each in found.tables:
        table = project.table(each.table)
        if table.layer == "gold":
            yield dg.AssetCheckEvaluation(**reconciled(table, found))


def _telling(project: Project) -> dg.JobDefinition:
    @dg.op(name=REPORT, out=dg.Out(int, description="partitions"))
    def tell_again(context: dg.OpExecutionContext, config: Telling, lake: LakeResource) -> int:
        """Tell Dagster what the lake holds."""
        opened, count = lake.open(), 0
        try:
            tables: Collection[Table] = [project.table(path) for path in config.tables] or project.tables
            for table in tables:
                live, held = live_report(opened, table), held_report(opened, table)
                count += len(live.outcomes)
                _tell(context, table, opened, live, held)
                context.log.info("%s: %s committed, %s blocked", table.path, len(live.outcomes), len(held.outcomes))
        except MedallionError as error:
            raise _failure(error) from error
        return count

    return _job(
        "report_from_lake",
        "Tells Dagster what stands in the lake: a materialization for every committed partition, its checks, and what "
        "is blocked. For a Dagster instance that was lost or is new; nothing is computed, and no table is changed.",
        tell_again,
    )
