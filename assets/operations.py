"""The operations group: how the lake stands, as assets that anybody can open, and the checks of gold that prove it.

Nothing is decided here: ``ops/health`` shows what ``medallion status`` says, ``ops/attempts`` what the ledger holds,
and the check ``reconciled`` what ``medallion verify`` finds.
"""

import datetime as dt
from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg
import polars as pl
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    PARTITION_NAME_TAG,
)

from assets.report import bar_chart
from assets.specs import asset_key
from medallion import ledger
from medallion.differences import Difference, Verification
from medallion.lake import Lake
from medallion.project import Project
from medallion.state import Standing, fold
from medallion.status import Status, status
from medallion.status_view import answers
from medallion.tables import Table
from medallion.verify import verify
from medallion.watermarks import watermarks
from resources.lake import LakeResource, LandingResource

GROUP = "ops"
ATTEMPTS, HEALTH = dg.AssetKey([GROUP, "attempts"]), dg.AssetKey([GROUP, "health"])
RECONCILED, FRESH = "reconciled", "fresh"

_SHOWN = 50
_BARS = 28
_NEWEST = 31
"""Partitions that are read back in the run that made them; the job ``verify_lake`` reads all of them."""


def build_operations(project: Project) -> list[dg.AssetsDefinition]:
    """The assets ``ops/attempts`` and ``ops/health``."""

    @dg.asset(
        key=ATTEMPTS,
        group_name=GROUP,
        kinds={"deltalake"},
        description="What was attempted, by whom, when, and what came of it: the newest rows of the ledger.",
    )
    def attempts(lake: LakeResource) -> dg.MaterializeResult[None]:
        return dg.MaterializeResult(metadata=_attempts(ledger.read(lake.open())))

    @dg.asset(
        key=HEALTH,
        group_name=GROUP,
        kinds={"deltalake"},
        description="Where am I? What have I committed? Where can I safely return? Can I prove that it is correct?",
    )
    def health(lake: LakeResource, landing: LandingResource) -> dg.MaterializeResult[None]:
        opened, now = lake.open(), dt.datetime.now(dt.UTC)
        found = status(project, opened, landing.open(), now=now)
        return dg.MaterializeResult(metadata=_health(found, ledger.read(opened)))

    return [attempts, health]


def build_refresh() -> tuple[Any, dg.ScheduleDefinition]:
    """The job that looks again, and the schedule that asks for it every ten minutes once it is switched on."""
    job = dg.define_asset_job(
        "refresh_operations",
        selection=dg.AssetSelection.assets(ATTEMPTS, HEALTH),
        description="Looks at the lake again and shows how it stands in the group ops.",
    )
    return job, dg.ScheduleDefinition(job=job, cron_schedule="*/10 * * * *")


def _attempts(rows: pl.DataFrame) -> dict[str, Any]:
    newest = rows.tail(_SHOWN).reverse()
    counts = dict(rows.get_column("status").value_counts().iter_rows()) if rows.height else {}
    columns = [
        dg.TableColumn(name, kind)
        for name, kind in (
            ("completed", "timestamp"), ("table", "text"), ("partition", "text"), ("status", "text"),
            ("read", "integer"), ("accepted", "integer"), ("quarantined", "integer"), ("released", "integer"),
            ("seconds", "number"), ("why", "text"), ("run", "text"),
        )
    ]  # fmt: skip
    records = [
        dg.TableRecord({
            "completed": row["completed_at"].isoformat(timespec="seconds"),
            "table": row["pipeline_name"],
            "partition": row["partition"],
            "status": row["status"],
            "read": row["source_rows"] or 0,
            "accepted": row["target_rows"] or 0,
            "quarantined": row["quarantine_count"] or 0,
            "released": row["released_count"] or 0,
            "seconds": round((row["completed_at"] - row["started_at"]).total_seconds(), 2),
            "why": (row["error"] or row["reason"] or "")[:200],
            "run": row["pipeline_run_id"] or "",
        })
        for row in newest.iter_rows(named=True)
    ]  # fmt: skip
    return {
        "dagster/row_count": rows.height,
        **{status: int(count) for status, count in sorted(counts.items())},
        "newest": dg.MetadataValue.table(records, dg.TableSchema(columns)),
    }


def _health(found: Status, rows: pl.DataFrame) -> dict[str, Any]:
    standing = {
        name: sum(each.standings.get(name, 0) for each in found.tables)
        for name in ("current", "stale", "missing", "blocked", "failed")
    }
    schema = dg.TableSchema([dg.TableColumn(name) for name in ("table", "what", "partitions", "reason", "next")])
    concerns = [
        dg.TableRecord({
            "table": each.table,
            "what": each.kind,
            "partitions": len(each.partitions),
            "reason": f"{each.partitions[0] if each.partitions else ''} {each.reason}".strip()[:300],
            "next": each.then,
        })
        for each in found.concerns
    ]  # fmt: skip
    return {
        # Dagster shows a text at once, and markdown when it is asked for.
        **{question: " ".join(line.strip() for line in lines) for question, lines in answers(found).items()},
        "with charts": dg.MetadataValue.md(_four_questions(found, rows)),
        "needs somebody": any(each.needs_person for each in found.concerns),
        **standing,
        "quarantined rows": sum(each.quarantined for each in found.tables),
        "attempts under way": sum(len(each.running) for each in found.tables),
        **({"concerns": dg.MetadataValue.table(concerns, schema)} if concerns else {}),
    }


def _four_questions(found: Status, rows: pl.DataFrame) -> str:
    lines: list[str] = []
    for question, answer in answers(found).items():
        lines += [f"### {question}", "", *(f"- {line.strip()}" for line in answer), ""]
    commits = rows.filter(pl.col("status").is_in(["committed", "approved"])).tail(_BARS)
    attempts = rows.unique("attempt", keep="last", maintain_order=True).tail(_BARS)
    seconds = (attempts.get_column("completed_at") - attempts.get_column("started_at")).dt.total_milliseconds() / 1000
    pictures = {
        f"Rows accepted by the last {commits.height} commits": commits.get_column("target_rows").fill_null(0).to_list(),
        f"Seconds that the last {attempts.height} attempts took": seconds.to_list(),
    }
    for title, values in pictures.items():
        if any(values):
            lines += [f"**{title}**", "", f"![{title}]({bar_chart([float(value) for value in values])})", ""]
    return "\n".join(lines)


def build_gold_checks(project: Project) -> list[dg.AssetChecksDefinition]:
    """The checks ``reconciled`` and ``fresh`` of every gold table."""
    golden = [table for table in project.tables if table.layer == "gold"]
    return [_checks(project, table) for table in golden]


def _checks(project: Project, table: Table) -> dg.AssetChecksDefinition:
    @dg.multi_asset_check(
        name=f"gold__{table.name}__proof",
        specs=[
            dg.AssetCheckSpec(
                RECONCILED,
                asset=asset_key(table),
                description="Files, evidence, fence and ledger agree. In a run that makes the table, of up to "
                f"{_NEWEST} of the partitions that it made; in the job verify_lake, of all of them.",
            ),
            dg.AssetCheckSpec(
                FRESH,
                asset=asset_key(table),
                description="Everything that its inputs hold is in the table, too.",
            ),
        ],
        can_subset=True,
    )
    def proof(context: dg.AssetCheckExecutionContext, lake: LakeResource) -> Iterator[dg.AssetCheckResult]:
        opened = lake.open()
        wanted = {key.name for key in context.selected_asset_check_keys}
        if RECONCILED in wanted:
            found = verify(project, opened, [table.path], _made(table, context.run.tags), run_id=context.run.run_id)
            yield dg.AssetCheckResult(**reconciled(table, found))
        if FRESH in wanted:
            yield dg.AssetCheckResult(**_fresh(project, table, opened))

    return proof


def _made(table: Table, tags: Mapping[str, str]) -> tuple[str, ...] | None:
    """The partitions that a run is about, the newest of them; None for all."""
    first = tags.get(ASSET_PARTITION_RANGE_START_TAG) or tags.get(PARTITION_NAME_TAG)
    if first is None or first not in table.partition.keys():  # noqa: SIM118 - a method of partitionings
        return None
    return table.partition.select([f"{first}..{tags.get(ASSET_PARTITION_RANGE_END_TAG, first)}"])[-_NEWEST:]


def reconciled(table: Table, found: Verification) -> dict[str, Any]:
    """What a verification says of a table, as the arguments of a check's result."""
    differences = found.of(table.path)
    counts = next(each for each in found.tables if each.table == table.path)
    return {
        "asset_key": asset_key(table),
        "check_name": RECONCILED,
        "passed": not differences,
        "severity": dg.AssetCheckSeverity.ERROR,
        "description": str(differences[0])
        if differences
        else f"{counts.partitions:,} partitions, {counts.rows:,} rows",
        "metadata": {
            "partitions": counts.partitions,
            "rows": counts.rows,
            "differences": len(differences),
            **({"what differs": differences_table(differences)} if differences else {}),
        },
    }


def differences_table(differences: tuple[Difference, ...]) -> dg.TableMetadataValue:
    """Differences for people."""
    names = ("what", "table", "partition", "file", "expected", "found", "next")
    records = [
        dg.TableRecord(dict(zip(names, (
            str(each.kind), each.table, each.partition, each.file or "", each.expected, each.found, each.then
        ), strict=True)))
        for each in differences[:_SHOWN]
    ]  # fmt: skip
    return dg.MetadataValue.table(records, dg.TableSchema([dg.TableColumn(name) for name in names]))


def _fresh(project: Project, table: Table, lake: Lake) -> dict[str, Any]:
    marks = watermarks(project, lake)
    lags = [each for each in marks.behind(table.path) if each.partitions]
    states = fold(project, lake, tables=[table.path])[table.path].values()
    stale = {each.key for each in states if each.standing is Standing.STALE}
    waiting = sorted({key for each in lags for key in each.partitions} | stale)
    newest = marks.of(table.path).newest
    return {
        "asset_key": asset_key(table),
        "check_name": FRESH,
        "passed": not waiting,
        "severity": dg.AssetCheckSeverity.WARN,
        "description": f"{len(waiting):,} partitions wait, {waiting[0]} to {waiting[-1]}"
        if waiting
        else f"up to {newest}",
        "metadata": {
            "partitions that wait": len(waiting),
            "of them out of date": len(stale),
            "rows that wait": sum(each.rows or 0 for each in lags),
            "newest partition": newest or "none",
            **({"next": f"medallion replay {table.path} {waiting[0]}..{waiting[-1]}"} if waiting else {}),
        },
    }
