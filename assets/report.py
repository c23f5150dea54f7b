"""What the engine did, told to Dagster: materializations, quarantine, and checks, per partition.

Dagster is the witness. Everything here comes from outcomes; nothing decides.
"""

import base64
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import dagster as dg
import polars as pl
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationTargetMaterializationData
from dagster._core.definitions.data_version import (
    CODE_VERSION_TAG,
    DATA_VERSION_IS_USER_PROVIDED_TAG,
    DATA_VERSION_TAG,
    DEFAULT_DATA_VERSION,
    NULL_EVENT_POINTER,
    extract_data_version_from_entry,
    get_input_data_version_tag,
    get_input_event_pointer_tag,
)
from dagster._core.definitions.source_asset import SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION

from assets.specs import asset_key, code_version, dependencies, quarantine_key
from checks.translate import GATE, check_specs, gate_evaluation, next_steps, rule_evaluations
from medallion.failpoints import reach
from medallion.lake import Lake
from medallion.outcomes import Blocked, Committed, Failed, Outcome, Report, Unchanged
from medallion.partitions import Whole
from medallion.tables import Table
from resources.telling import tell, withdraw_planned

_CHANGED = "changed meanwhile"
"""Stands for an input that is not what a partition was built from."""
_FIRST_EVENT = "1"
"""Comes before whatever was told of an input."""
_CHART_POINTS = 28
_IN_FULL = 31
"""Partitions of a run up to which every planned rule is told of each of them: a month by day."""


def provenance(instance: dg.DagsterInstance, table: Table, among: Collection[Table] | None = None) -> dict[str, str]:
    """What a table is about to be built from, as Dagster knows it: the tags by which it sees that an input has changed.

    To be asked before the inputs are pinned. What is told of an input later counts as a change: rather a partition that
    is shown as out of date and is not than the other way round.

    Args:
        instance: which is asked.
        table: the table.
        among: only of these inputs; of all if not given.
    """
    found: dict[str, str] = {}
    wanted = None if among is None else {asset_key(each) for each in among}
    keys = [each.asset_key for each in dependencies(table) if wanted is None or each.asset_key in wanted]
    newest = {each.asset_entry.asset_key: each.asset_entry for each in instance.get_asset_records(keys)} if keys else {}
    for key in keys:
        record = newest[key].last_materialization_record if key in newest else None
        version = extract_data_version_from_entry(record.event_log_entry) if record else None
        found[get_input_data_version_tag(key)] = (version or DEFAULT_DATA_VERSION).value
        found[get_input_event_pointer_tag(key)] = str(record.storage_id) if record else NULL_EVENT_POINTER
    return found


def outdated(table: Table, built_from: Mapping[str, str], changed: Collection[str]) -> dict[str, str]:
    """A table's ``provenance`` as of before some inputs changed, given by path: Dagster shows it as out of date."""
    inputs = (*table.inputs.values(), *table.references.values())
    keys = [asset_key(each.table) for each in inputs if each.table.path in changed]
    # Dagster compares the versions of what has no partitions, and looks for newer events of what has.
    before = {get_input_data_version_tag(key): _CHANGED for key in keys}
    before |= {get_input_event_pointer_tag(key): _FIRST_EVENT for key in keys}
    return {name: before.get(name, value) for name, value in built_from.items()}


def events(
    context: dg.AssetExecutionContext, table: Table, report: Report, lake: Lake, built_from: Mapping[str, str]
) -> Iterator[dg.Output[None]]:
    """Tell of one table's report, in the order that Dagster needs, and give the step's results.

    Args:
        context: of the run.
        table: the table.
        report: what became of its partitions.
        lake: where it lies.
        built_from: its ``provenance``.
    """
    # A table that the run was not asked for has no result to give, only news.
    complete = not report.refused and asset_key(table) in context.selected_asset_keys
    tell(context, materializations(table, report, lake, built_from))
    if complete:
        # The step's result. Dagster would make materializations of it, with one data version for all partitions of a
        # range; they have been told above, each with its own.
        told = {SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION: True}
        yield dg.Output(None, asset_key(table).to_python_identifier(), metadata=told)
    tell(context, evaluations(context.instance, context.run.run_id, table, report, _planned(context, table, report)))
    if complete and dg.AssetCheckKey(asset_key(table), GATE) in context.selected_asset_check_keys:
        # Evaluations of single partitions are no result of the step; without one Dagster warns that nothing was gated.
        yield dg.Output(None, f"{asset_key(table).to_python_identifier()}_{GATE}")
    reach("dagster told")


def _planned(context: dg.AssetExecutionContext, table: Table, report: Report) -> set[str]:
    """The checks that Dagster waits to hear of for every partition.

    In a long range the rules are withdrawn from what is planned: thousands of times "found nothing" would take longer
    than the work.
    """
    keys = {check for check in context.selected_asset_check_keys if check.asset_key == asset_key(table)}
    rules = {check for check in keys if check.name != GATE}
    if len(report.outcomes) > _IN_FULL and withdraw_planned(context.instance, context.run.run_id, rules):
        keys -= rules
    return {check.name for check in keys}


def materializations(
    table: Table, report: Report, lake: Lake, built_from: Mapping[str, str]
) -> Iterator[dg.AssetMaterialization]:
    """What stands of a table after a report, and of its quarantine, for every partition that is in place."""
    charts = _charts(table, report, lake)
    for key, outcome in report.published.items():
        yield from materialized(table, key, outcome, built_from, charts.get(key, {}))


def materialized(
    table: Table, key: str, outcome: Committed | Unchanged, built_from: Mapping[str, str], more: Mapping[str, Any]
) -> Iterator[dg.AssetMaterialization]:
    """What is told of a partition that is in place, and of its quarantine.

    Args:
        table: the table.
        key: the partition.
        outcome: what is live, and how it was judged.
        built_from: the table's ``provenance``.
        more: metadata besides what the outcome says.
    """
    partition = None if isinstance(table.partition, Whole) else key
    if table.quarantine_path is not None:
        yield _quarantine(table, partition, outcome)
    metadata = {**_metadata(table, outcome), **more}
    tags = {**built_from, **_version(table, outcome)}
    yield dg.AssetMaterialization(asset_key(table), partition=partition, metadata=metadata, tags=tags)


def _version(table: Table, outcome: Committed | Unchanged) -> dict[str, str]:
    """The tags by which Dagster compares contents: the same rows made again are no change."""
    return {
        CODE_VERSION_TAG: code_version(table),
        DATA_VERSION_TAG: outcome.evidence.content or outcome.evidence.batch_id,
        DATA_VERSION_IS_USER_PROVIDED_TAG: "true",
    }


def _metadata(table: Table, outcome: Committed | Unchanged) -> dict[str, Any]:
    evidence, verdict = outcome.evidence, outcome.verdict
    count = "dagster/row_count" if isinstance(table.partition, Whole) else "dagster/partition_row_count"
    metadata: dict[str, Any] = {
        count: verdict.accepted,
        "outcome": type(outcome).__name__,
        "table version": outcome.version,
        "batch id": evidence.batch_id,
        "content digest": evidence.content,
    }
    if table.schema is not None:
        metadata |= {"read": verdict.read, "quarantined": verdict.quarantined, "collapsed": verdict.collapsed}
        metadata["verdict"] = dg.MetadataValue.md(verdict.to_markdown())
    if verdict.quarantined:
        metadata["quarantined by reason"] = _reasons(verdict.quarantined_by_rule)
    if evidence.closed is not None:
        metadata["closed"] = evidence.closed
    for source in evidence.sources:
        metadata |= {"source file": source.name, "source sha256": source.sha256, "source bytes": source.size}
    return metadata


def _reasons(by_rule: Mapping[str, int]) -> dg.TableMetadataValue:
    schema = dg.TableSchema([dg.TableColumn("rule", "string"), dg.TableColumn("rows", "int")])
    rows = sorted(by_rule.items(), key=lambda item: -item[1])
    return dg.MetadataValue.table([dg.TableRecord({"rule": rule, "rows": count}) for rule, count in rows], schema)


def _quarantine(table: Table, key: str | None, outcome: Committed | Unchanged) -> dg.AssetMaterialization:
    verdict = outcome.verdict
    count = "dagster/row_count" if key is None else "dagster/partition_row_count"
    metadata: dict[str, Any] = {count: verdict.quarantined, "batch id": outcome.evidence.batch_id}
    if verdict.quarantined:
        metadata["by reason"] = _reasons(verdict.quarantined_by_rule)
    return dg.AssetMaterialization(quarantine_key(table), partition=key, metadata=metadata)


def evaluations(
    instance: dg.DagsterInstance,
    run_id: str,
    table: Table,
    report: Report,
    planned: Collection[str] = (),
) -> Iterator[dg.AssetCheckEvaluation]:
    """To be told after the materializations, because an evaluation names the one that it judges.

    What Dagster planned is answered for every partition: without an answer it shows the partition as skipped, or, if
    the run fails, as failed, and draws both in red. What it did not plan is reported where it found something or has
    recovered, and in full for the newest partition, which speaks for the check in lists.

    Args:
        instance: which has been told of the materializations.
        run_id: of the run that told it; empty if it was none.
        table: the table.
        report: what became of its partitions.
        planned: names of the checks that are answered for every partition.
    """
    key_of = asset_key(table)
    unpartitioned = isinstance(table.partition, Whole)
    targets = _targets(instance, run_id, table, report)
    every = {spec.name for spec in check_specs(table, None)}
    judged = [key for key, outcome in report.outcomes.items() if not isinstance(outcome, Failed)]
    for key, outcome in report.outcomes.items():
        partition = None if unpartitioned else key
        said = rule_evaluations(table, outcome, always=every if key in judged[-1:] else planned)
        for name, evaluation in ((GATE, gate_evaluation(table, key, outcome)), *said):
            yield dg.AssetCheckEvaluation(
                asset_key=key_of,
                check_name=name,
                partition=partition,
                blocking=name == GATE,
                target_materialization_data=targets.get(key),
                **evaluation,  # type: ignore[arg-type]
            )


def _targets(
    instance: dg.DagsterInstance, mine: str, table: Table, report: Report
) -> dict[str, AssetCheckEvaluationTargetMaterializationData]:
    """The materialization that each partition's evaluations are about: this run's, or the one that still stands.

    Dagster shows an evaluation only as long as its target is the partition's newest materialization.
    """
    key_of = asset_key(table)
    if isinstance(table.partition, Whole):
        newest = instance.fetch_materializations(key_of, limit=1).records
        return {Whole.KEY: _target(newest[0])} if newest else {}
    kind = dg.DagsterEventType.ASSET_MATERIALIZATION
    ids = instance.event_log_storage.get_latest_storage_id_by_partition(key_of, kind, set(report.outcomes))
    # Reading the records of a whole range back would cost more than the time of an event is worth.
    now = time.time()
    found = {
        key: AssetCheckEvaluationTargetMaterializationData(storage_id=each, run_id=mine, timestamp=now)
        for key, each in ids.items()
        if key in report.published
    }
    standing = {each: key for key, each in ids.items() if key in report.refused}
    if standing:
        wanted = dg.AssetRecordsFilter(asset_key=key_of, storage_ids=list(standing))
        records = instance.fetch_materializations(wanted, limit=len(standing)).records
        found |= {standing[record.storage_id]: _target(record) for record in records}
    return found


def _target(record: dg.EventLogRecord) -> AssetCheckEvaluationTargetMaterializationData:
    return AssetCheckEvaluationTargetMaterializationData(
        storage_id=record.storage_id, run_id=record.run_id, timestamp=record.timestamp
    )


def _charts(table: Table, report: Report, lake: Lake) -> dict[str, dict[str, Any]]:
    """For a table with a chart column: its total, and a small picture of the totals of the partitions before."""
    if table.chart is None or not report.published:
        return {}
    snapshot = lake.pin(table.path, table.partition)
    column = table.partition.column
    keys = table.partition.keys()
    totals = snapshot.scan(keys).group_by(column).agg(pl.col(table.chart).sum()).collect()
    by_value = dict(totals.iter_rows())
    series = {key: float(by_value.get(table.partition.value(key), 0.0)) for key in keys}
    found = {}
    for key in report.published:
        at = keys.index(key)
        window = keys[max(0, at - _CHART_POINTS + 1) : at + 1]
        found[key] = {
            f"total {table.chart}": series[key],
            f"{table.chart} until here": dg.MetadataValue.md(
                f"![{table.chart} of {window[0]} to {key}]({bar_chart([series[each] for each in window])})"
            ),
        }
    return found


def bar_chart(values: list[float], width: int = 320, height: int = 60) -> str:
    """A bar chart as a data URI of an SVG image, short since every partition has one; the last bar stands out."""
    top = max([*values, 1e-9])
    *before, last = [f"M{i}.5 0v{round(max(value, 0) / top * height)}" for i, value in enumerate(values)]
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {len(values)} {height}" preserveAspectRatio="none">'
        f'<g stroke-width=".9" transform="matrix(1 0 0 -1 0 {height})">'
        f'<path stroke="#8aa4c8" d="{"".join(before)}"/><path stroke="#e07a1f" d="{last}"/></g></svg>'
    )
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def summary(report: Report) -> str:
    """One line on a run over a table."""
    return f"{report.table}: {report.name}, {len(report.published)} of {len(report.outcomes)} partitions in place"


def news(report: Report) -> Report:
    """The part of a report that Dagster does not know yet."""
    return replace(report, outcomes={k: each for k, each in report.outcomes.items() if not isinstance(each, Unchanged)})


def failure(report: Report) -> dg.Failure:
    """The failure that ends a run in which some partitions were refused. Retrying it would refuse them again."""
    refused: Mapping[str, Outcome] = report.refused
    lines = [str(error) for error in report.errors.values()]
    shown = "\n".join(lines[:5]) + (f"\n... and {len(lines) - 5} more" if len(lines) > 5 else "")
    blocked = [key for key, each in refused.items() if isinstance(each, Blocked)]
    return dg.Failure(
        f"{summary(report)}\n{shown}",
        metadata={
            "outcome": report.name,
            "refused": ", ".join(refused),
            "blocked": ", ".join(blocked) or "none",
            **({"next": dg.MetadataValue.md(next_steps(report.table, blocked))} if blocked else {}),
        },
        allow_retries=False,
    )


def together(failures: list[dg.Failure]) -> dg.Failure:
    """One failure for several tables of one operation."""
    return dg.Failure("\n".join(str(each.description) for each in failures), allow_retries=False)
