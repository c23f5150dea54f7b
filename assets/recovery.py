"""Jobs with a form for making a savepoint and for going back to one. The engine does it; Dagster is told what is live.

After a restore every partition that was put back is reported as materialized again, with the content that it has now,
so that what is built from it is shown as out of date where it is. Dagster cannot take a materialization back: of a
partition that was dropped, the run says so, and ``medallion status`` shows it as missing.
"""

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import dagster as dg
from pydantic import Field

from assets import report as reporting
from assets.specs import asset_key
from checks.translate import GATE, gate_evaluation
from medallion import savepoints
from medallion.errors import MedallionError
from medallion.evidence import EvidenceReader
from medallion.lake import Lake
from medallion.outcomes import Unchanged
from medallion.partitions import Whole
from medallion.past_states import of_savepoint
from medallion.project import Project
from medallion.restore import INCOMPLETE, Restored, restore, resume
from medallion.restore_plan import RestorePlan, plan
from medallion.saved_state import Savepoint
from medallion.tables import Table
from resources.lake import LakeResource
from resources.telling import Told, tell


class NewSavepoint(dg.Config):
    """The form of ``create_savepoint``."""

    name: str = Field("", description="Letters, digits, '_', '.' and '-'; never used twice. Empty: by the time.")
    reason: str = Field("", description="Why; for people.")


class Restoration(dg.Config):
    """The form of ``restore_savepoint``. Left as it is but for the name, it only shows what would be done."""

    savepoint: str = Field("", description="Name of the savepoint; `medallion savepoint list` shows them.")
    tables: list[str] = Field([], description="Only these, as layer/name. Empty: all that the savepoint holds.")
    reason: str = Field("", description="Why; it is recorded.")
    dry_run: bool = Field(True, description="Only show what would be done. Untick it to restore.")
    interrupted: bool = Field(False, description="Complete a restore that was interrupted, instead of a new one.")


def build_recovery_jobs(project: Project) -> list[dg.JobDefinition]:
    """The jobs ``create_savepoint`` and ``restore_savepoint``."""
    return [_create_job(project), _restore_job(project)]


def _create_job(project: Project) -> dg.JobDefinition:
    @dg.op(name="create", out=dg.Out(str, description="the savepoint's name"))
    def make(context: dg.OpExecutionContext, config: NewSavepoint, lake: LakeResource) -> Iterator[dg.Output[str]]:
        """Write down what every table holds."""
        name = config.name or f"{dt.datetime.now(dt.UTC):%Y%m%dT%H%M%SZ}"
        try:
            made = savepoints.create(project, lake.open(), name, reason=config.reason, run_id=context.run.run_id)
        except MedallionError as error:
            raise dg.Failure(str(error), allow_retries=False) from error
        yield dg.Output(made.name, metadata={"savepoint": dg.MetadataValue.md(_of_savepoint(made))})

    @dg.job(
        name="create_savepoint",
        description="Writes down what every table holds at one consistent cut, so that it can be returned to. Copies "
        "nothing and stops nobody.",
        tags={"dagster/max_retries": "0"},
        executor_def=dg.in_process_executor,
    )
    def create_savepoint() -> None:
        make()

    return create_savepoint


def _restore_job(project: Project) -> dg.JobDefinition:
    @dg.op(name="restore", out=dg.Out(str, description="how it has ended"))
    def bring_back(context: dg.OpExecutionContext, config: Restoration, lake: LakeResource) -> Iterator[Any]:
        """Show what a restore would do, or do it, and tell Dagster what is live afterwards."""
        try:
            opened = lake.open()
            if config.dry_run and not config.interrupted:
                planned = plan(project, opened, of_savepoint(project, opened, config.savepoint, config.tables))
                yield dg.Output("planned", metadata={"plan": dg.MetadataValue.md(_of_plan(planned))})
                return
            told = _restored(project, opened, config, context.run.run_id)
        except MedallionError as error:
            raise dg.Failure(str(error), allow_retries=False) from error
        if told is None:
            yield dg.Output("nothing to complete")
            return
        tell_restored(context, project, opened, told)
        metadata = {"restore": dg.MetadataValue.md(_of_restored(told)), "document": dg.MetadataValue.json(asdict(told))}
        if told.outcome == INCOMPLETE:
            raise dg.Failure(f"the restore to {told.target} is incomplete", metadata=metadata, allow_retries=False)
        yield dg.Output(told.outcome, metadata=metadata)

    @dg.job(
        name="restore_savepoint",
        description="Makes the state of a savepoint current again by new commits, verifies it, and reports what is "
        "live. Nothing is forgotten: what stood before is a savepoint afterwards.",
        tags={"dagster/max_retries": "0"},
        executor_def=dg.in_process_executor,
    )
    def restore_savepoint() -> None:
        bring_back()

    return restore_savepoint


def _restored(project: Project, lake: Lake, form: Restoration, run_id: str) -> Restored | None:
    if form.interrupted:
        return resume(project, lake)
    goal = of_savepoint(project, lake, form.savepoint, form.tables)
    return restore(project, lake, goal, reason=form.reason, run_id=run_id)


def tell_restored(context: dg.OpExecutionContext, project: Project, lake: Lake, told: Restored) -> None:
    """Report every partition that a restore has put back, as it is now; upstream first."""
    for table in project.tables:
        if told.replaced.get(table.path):
            built_from = reporting.provenance(context.instance, table)
            tell(context, _of_table(table, lake, told, built_from))
    for path, keys in told.dropped.items():
        if keys:
            context.log.warning("%s %s: not committed any more; Dagster still shows them", path, ", ".join(keys))


def _of_table(table: Table, lake: Lake, told: Restored, built_from: Mapping[str, str]) -> Iterator[Told]:
    snapshot = lake.pin(table.path, table.partition)
    evidence_of = EvidenceReader(snapshot.folder)
    moved = reporting.outdated(table, built_from, {each.table.path for each in table.inputs.values()})
    stale = told.stale.get(table.path, {})
    for key in told.replaced[table.path]:
        evidence = evidence_of(snapshot.batch_id(key) or "")
        if evidence is None or snapshot.version is None:
            continue
        outcome = Unchanged(evidence, snapshot.version)
        more = {"restored by": f"restore {told.number} to {told.target}"}
        yield from reporting.materialized(table, key, outcome, moved if key in stale else built_from, more)
        yield dg.AssetCheckEvaluation(
            asset_key=asset_key(table),
            check_name=GATE,
            partition=None if isinstance(table.partition, Whole) else key,
            blocking=True,
            **gate_evaluation(table, key, outcome),  # type: ignore[arg-type]
        )


def _of_savepoint(made: Savepoint) -> str:
    lines = ["| table | version | partitions | rows | stale |", "|---|---:|---:|---:|---:|"]
    lines += [
        f"| {path} | {each.version} | {len(each.files)} | {each.rows:,} | {len(made.stale.get(path, ()))} |"
        for path, each in made.tables.items()
    ]
    return "\n".join(lines)


def _of_plan(planned: RestorePlan) -> str:
    files, rows = planned.volume
    lines = [f"{files:,} files with {rows:,} rows would be put back. Nothing was changed.", ""]
    lines += _by_table(planned.replaced, planned.dropped, planned.stale)
    lines += ["", *(f"- not possible: {each}" for each in planned.damaged)]
    return "\n".join(lines)


def _of_restored(told: Restored) -> str:
    lines = [
        f"{told.outcome}, {told.seconds:.1f} s from the decision to the proof; before: {told.savepoint_before}",
        "",
    ]
    lines += _by_table(told.replaced, told.dropped, told.stale)
    lines += ["", *(f"- differs: {each}" for each in told.differences)]
    lines += [
        f"- not restored: {path} {key} {what}" for path, keys in told.overtaken.items() for key, what in keys.items()
    ]
    return "\n".join(lines)


def _by_table(
    replaced: Mapping[str, Any], dropped: Mapping[str, Any], stale: Mapping[str, Mapping[str, str]]
) -> list[str]:
    lines = ["| table | replaced | dropped | stale | because |", "|---|---:|---:|---:|---|"]
    for path in dict.fromkeys([*replaced, *dropped, *stale]):
        counts = [len(each.get(path, ())) for each in (replaced, dropped, stale)]
        lines.append(f"| {path} | {' | '.join(map(str, counts))} | {next(iter(stale.get(path, {}).values()), '')} |")
    return lines
