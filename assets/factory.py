"""Turns declared tables into Dagster assets. Bodies load, call the engine and report; they decide nothing."""

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import dagster as dg
from dagster_duckdb import DuckDBResource

from assets import report as reporting
from assets.ahead import made_ahead, versions_of
from assets.backfill import PLAN_TAG
from assets.chains import Chain, chains
from assets.specs import asset_key, asset_spec, partitions_definition, quarantine_spec
from checks.translate import check_specs
from medallion.errors import MedallionError
from medallion.evidence import read_held
from medallion.lake import Lake
from medallion.outcomes import Report
from medallion.partitions import Whole
from medallion.pipeline import refine_in_order
from medallion.refine import Run
from medallion.tables import Table
from resources.lake import LakeResource, LandingResource

_UNIT_OF_BACKFILL = 366
"""Gold is backfilled in runs of up to a year; any number that differs from bronze's and silver's policy serves, so that
Dagster starts gold only where its parents stand."""


def build_assets(tables: Iterable[Table]) -> list[dg.AssetsDefinition | dg.AssetSpec]:
    """The assets of a project: one operation for a source and what is refined from it, one for each gold table."""
    tables = list(tables)
    built: list[dg.AssetsDefinition | dg.AssetSpec] = [_operation(chain) for chain in chains(tables)]
    built.extend(quarantine_spec(table) for table in tables if table.quarantine_path is not None)
    return built


def _operation(chain: Chain) -> dg.AssetsDefinition:
    first = chain[0]
    partitions = partitions_definition(first.partition)
    single = dg.BackfillPolicy.single_run()
    own = dg.BackfillPolicy.multi_run(_UNIT_OF_BACKFILL)

    @dg.multi_asset(
        name=f"{first.layer}__{first.name}",
        specs=[asset_spec(table) for table in chain],
        check_specs=[spec for table in chain for spec in check_specs(table, partitions)],
        can_subset=True,
        backfill_policy=None if partitions is None else (own if first.layer == "gold" else single),
        description=first.description or None,
    )
    def operation(
        context: dg.AssetExecutionContext, lake: LakeResource, landing: LandingResource, duckdb: DuckDBResource
    ) -> Iterator[Any]:
        with _clearly():
            run = _run(context, lake, duckdb)
            asked = {table: asset_key(table) in context.selected_asset_keys for table in chain}
            wanted = {
                table: _keys(context, table) if asked[table] else _to_read_again(context, chain, table, run.lake)
                for table in chain
            }
            wanted = {table: keys for table, keys in wanted.items() if keys}
            if any(table.source for table in wanted):
                run = replace(run, landing=landing.open())
            failed = []
            built_from, reports = _refined(context, chain, wanted, run)
            for table, report in reports:
                # What this very run has made of its other tables has been told meanwhile.
                known = built_from[table] | reporting.provenance(context.instance, table, among=chain)
                told = report if asked[table] else reporting.news(report)
                yield from reporting.events(context, table, told, run.lake, known)
                context.log.info(reporting.summary(report))
                if report.refused:
                    failed.append(reporting.failure(report))
            if failed:
                raise failed[0] if len(failed) == 1 else reporting.together(failed)

    return operation


def _refined(
    context: dg.AssetExecutionContext, chain: Chain, wanted: Mapping[Table, Sequence[str]], run: Run
) -> tuple[dict[Table, dict[str, str]], Iterable[tuple[Table, Report]]]:
    """What each table is built from, and the reports as they come: of what was made ahead, or is made now."""
    built_from = {table: reporting.provenance(context.instance, table) for table in wanted}
    piece = made_ahead(context.run.run_id)
    if piece is None:
        return built_from, zip(wanted, refine_in_order(wanted, run), strict=True)
    # It was read before Dagster was asked: what others have committed since must not count as what it is built from.
    now = versions_of(chain, run)
    moved = {path for path, version in piece.versions.items() if now[path] != version}
    told = {table: reporting.outdated(table, tags, moved) for table, tags in built_from.items()}
    return told, ((table, piece.reports[table].result()) for table in wanted)


def _keys(context: dg.AssetExecutionContext, table: Table) -> list[str]:
    if isinstance(table.partition, Whole):
        return list(table.partition.keys())
    return list(context.partition_keys)


def _to_read_again(context: dg.AssetExecutionContext, chain: Chain, source: Table, lake: Lake) -> list[str]:
    """The partitions of a source that were refused further on, where the source itself is not asked for.

    What the gate refused is repaired where it came from. "Re-execute from failure", and anybody who materializes what
    is red, ask for the refinement alone, since the source did not fail; so its file is looked at again.
    """
    if source.source is None:
        return []
    asked = [table for table in chain if asset_key(table) in context.selected_asset_keys]
    return [
        key
        for key in _keys(context, source)
        if any(read_held(lake.root / table.path, key) is not None for table in asked)
    ]


def _run(context: dg.AssetExecutionContext, lake: LakeResource, database: DuckDBResource) -> Run:
    return Run(
        lake=lake.open(),
        run_id=context.run.run_id,
        started_at=dt.datetime.now(dt.UTC),
        connect=database.get_connection,
        slice_bytes=lake.slice_bytes,
        plan_id=context.run.tags.get(PLAN_TAG),
    )


@contextmanager
def _clearly() -> Iterator[None]:
    """An error of the engine says all that there is to say: people see its message, and it is not retried."""
    try:
        yield
    except MedallionError as error:
        raise dg.Failure(str(error), allow_retries=False) from error
