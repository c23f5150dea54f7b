"""The retail project on a landing zone and a lake of its own, run in this process, and what a test asks of it.

Belongs here: which days there are, running assets, and reading what Dagster recorded and what the Delta tables hold.
Does not belong here: what is right; that is said by the tests.
"""

import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import dagster as dg
import polars as pl
import pytest
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG
from deltalake import DeltaTable

from assets.definitions import build_definitions
from checks.translate import GATE

Standing: TypeAlias = dict[str, tuple[tuple[str, ...], int | None]]
"""By partition: the names of its live files, and its fence."""

ROOT = Path(__file__).resolve().parents[2]
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
REFERENCES = ("bronze/products", "silver/products", "bronze/households", "silver/households")
GARBAGE = bytes(range(128, 256)) * 40
DAILY = ("bronze/transactions", "silver/transactions", "gold/daily_sales", "gold/sales_7d")


def deliver(year: Path, landing: Path, days: Iterable[str], weeks: Iterable[str] = ()) -> Path:
    """A landing zone with the references and some days and weeks of the retail year."""
    names = [*(f"transactions/{day}.csv" for day in days), *(f"promotions/{week}.parquet" for week in weeks)]
    for name in ("products.parquet", "households.csv", *names):
        (landing / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(year / name, landing / name)
    return landing


@contextmanager
def instance_in(home: Path) -> Iterator[dg.DagsterInstance]:
    """A Dagster instance as the project configures it, which knows nothing yet."""
    home.mkdir(parents=True)
    shutil.copyfile(ROOT / "resources" / "dagster.yaml", home / "dagster.yaml")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGSTER_HOME", str(home))
        instance = dg.DagsterInstance.from_config(str(home))
    with instance:
        yield instance


def cut_short(file: Path, rows: int) -> None:
    """Leave a CSV file's header and first rows, as an export that broke off would."""
    file.write_text("".join(file.read_text().splitlines(keepends=True)[: rows + 1]))


class Told(dg.ExecuteInProcessResult):
    """A run's result with the events that its instance was told of, rather than those that its steps have yielded."""

    def __init__(self, done: dg.ExecuteInProcessResult, instance: dg.DagsterInstance) -> None:
        """Take everything else of ``done``."""
        self.__dict__.update(vars(done))
        self._event_list = [each.dagster_event for each in instance.all_logs(done.run_id) if each.dagster_event]


class Deployment:
    """The project's definitions with folders and a Dagster instance of their own."""

    def __init__(self, root: Path, instance: dg.DagsterInstance, **mine: Any) -> None:
        """Take the landing zone and the lake below ``root``; ``mine`` is what a user defines beside the project."""
        self.landing, self.lake, self.instance = root / "landing", root / "lake", instance
        project = build_definitions()
        self.defs = dg.Definitions.merge(project, dg.Definitions(**mine)) if mine else project

    def environment(self) -> dict[str, str]:
        """The variables by which a deployment is told its folders."""
        return {"MEDALLION_LAKE": str(self.lake), "MEDALLION_LANDING": str(self.landing)}

    def file(self, day: str) -> Path:
        """The stores' export of a day."""
        return self.landing / "transactions" / f"{day}.csv"

    def run(
        self, *assets: str, first: str | None = None, last: str | None = None, gates_only: bool = False
    ) -> dg.ExecuteInProcessResult:
        """Materialize assets in one run, for one partition, a range of them, or as a whole; the result as it is told.

        All checks are planned, as the UI and the daemon do, or the gates alone, as `make run` does.
        """
        keys = [dg.AssetKey(path.split("/")) for path in assets]
        whole = self.defs.resolve_implicit_job_def_def_for_assets(keys)
        assert whole is not None
        gates = {dg.AssetCheckKey(key, GATE) for key in keys} if gates_only else None
        job = whole.get_subset(asset_selection=set(keys), asset_check_selection=gates)
        ends = {ASSET_PARTITION_RANGE_START_TAG: first, ASSET_PARTITION_RANGE_END_TAG: last}
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.environment().items():
                patch.setenv(name, value)
            done = job.execute_in_process(
                run_config=QUIET,
                instance=self.instance,
                partition_key=first if last is None else None,
                tags={name: key for name, key in ends.items() if key} if last else {},
                raise_on_error=False,
            )
        return Told(done, self.instance)

    def materialized(self, asset: str) -> set[str]:
        """The partitions that Dagster shows as materialized."""
        return set(self.instance.get_materialized_partitions(dg.AssetKey(asset.split("/"))))

    def colours(self, asset: str, check: str) -> dict[str, str]:
        """What the UI shows for a check by partition: SUCCEEDED, FAILED, ...; what it calls missing is left out."""
        key = dg.AssetCheckKey(dg.AssetKey(asset.split("/")), check)
        cut = self.defs.resolve_asset_graph().get(key).partitions_def
        state = self.instance.event_log_storage.get_asset_check_state([(key, cut)])[key]
        return {
            partition: status.value
            for status, subset in state.subsets.items()
            for partition in (() if subset.is_empty else subset.subset_value.get_partition_keys())
        }

    def rows(self, table: str) -> pl.DataFrame:
        """All rows of a table, as any reader of Delta would get them."""
        return pl.scan_delta(self.handle(table)).collect()

    def handle(self, table: str) -> DeltaTable:
        """The Delta table itself, opened behind the engine's back."""
        return DeltaTable(str(self.lake / table))

    def files(self, table: str, keys: Collection[str] = ()) -> dict[str, tuple[str, ...]]:
        """The live files of a table by partition, of these partitions or all."""
        actions = pl.DataFrame(self.handle(table).get_add_actions(flatten=True))
        column = next((name for name in actions.columns if name.startswith("partition.")), None)
        found: dict[str, tuple[str, ...]] = {}
        for row in actions.sort("path").iter_rows(named=True):
            key = str(row[column]) if column else "all"
            if not keys or key in keys:
                found[key] = (*found.get(key, ()), row["path"])
        return found

    def standing(self, table: str, keys: Iterable[str]) -> Standing:
        """What a commit would move of some partitions: the names of their live files, and their fence."""
        files, handle = self.files(table), self.handle(table)
        return {key: (files.get(key, ()), handle.transaction_version(f"medallion:{key}")) for key in keys}


def metadata(result: dg.ExecuteInProcessResult, asset: str) -> dict[str | None, Mapping[str, Any]]:
    """The plain values of an asset's materialization metadata in a run, by partition."""
    key = dg.AssetKey(asset.split("/"))
    events = [each for each in result.all_events if each.is_step_materialization and each.asset_key == key]
    found = [each.step_materialization_data.materialization for each in events]
    assert len({each.partition for each in found}) == len(found), f"{asset} was reported twice for a partition"
    return {each.partition: {name: _plain(value) for name, value in each.metadata.items()} for each in found}


def _plain(value: Any) -> Any:
    if isinstance(value, dg.TableMetadataValue):
        return [dict(record.data) for record in value.records]
    return value.value


def evaluations(
    result: dg.ExecuteInProcessResult, asset: str, check: str = "gate"
) -> dict[str | None, dg.AssetCheckEvaluation]:
    """What a check said in a run, by partition."""
    key = dg.AssetCheckKey(dg.AssetKey(asset.split("/")), check)
    found = [each for each in result.get_asset_check_evaluations() if each.asset_check_key == key]
    assert len({each.partition for each in found}) == len(found), f"{asset} {check} spoke twice of a partition"
    return {each.partition: each for each in found}


def told(result: dg.ExecuteInProcessResult) -> str:
    """The messages that the failed steps of a run have for people: no exception's name, no traceback."""
    found = []
    for event in result.all_events:
        if event.is_step_failure:
            data = event.step_failure_data
            assert data.user_failure_data is not None, f"no message for people, but: {data.error_display_string}"
            found.append(data.user_failure_data.description or "")
    return "\n".join(found)


def causes(result: dg.ExecuteInProcessResult) -> str:
    """The errors of the failed steps of a run, with what caused them."""
    return "\n".join(
        event.step_failure_data.error_display_string for event in result.all_events if event.is_step_failure
    )
