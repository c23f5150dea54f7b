"""The lake and the landing zone as Dagster resources, and the reader that gives tables to other assets.

One set of resources a deployment. Folders come from the resource's own configuration, or from the environment when a
run starts; nothing is read at import.
"""

from collections.abc import Sequence
from typing import Any

import dagster as dg
import duckdb
import polars as pl
from dagster_duckdb import DuckDBResource

from medallion.errors import InputNotCommitted
from medallion.evidence import read_held
from medallion.lake import Lake, Snapshot
from medallion.partitions import Whole
from medallion.project import load_project
from medallion.sources import LandingZone
from resources.places import open_lake, open_landing, slice_bytes


class LakeResource(dg.ConfigurableResource[None]):
    """Where the tables lie."""

    root: str = ""
    """Folder of the lake; ``MEDALLION_LAKE`` from the environment, or ``lake``, if empty."""
    durable: bool | None = None
    """Flush every commit to the disk; ``MEDALLION_DURABLE`` from the environment, or yes, if not given. Without it a
    commit survives a killed process, and perhaps not a power cut."""

    slice_mib: int | None = None
    """Estimated memory of a slice, which is one commit, in MiB: what bounds the memory of a run and what is done again
    after a crash. ``MEDALLION_SLICE_MIB`` from the environment, or 512, if not given."""

    @property
    def slice_bytes(self) -> int:
        """The bytes of a slice.

        Raises:
            ConfigurationError: if the environment names no positive number.
        """
        return slice_bytes(self.slice_mib)

    def open(self) -> Lake:
        """The lake.

        Raises:
            ConfigurationError: if the folder cannot be used.
        """
        return open_lake(self.root, durable=self.durable)


class LandingResource(dg.ConfigurableResource[None]):
    """Where sources deliver their files."""

    root: str = ""
    """Folder of the landing zone; ``MEDALLION_LANDING`` from the environment, or ``landing``, if empty."""

    def open(self) -> LandingZone:
        """The landing zone.

        Raises:
            ConfigurationError: if the folder is not there.
        """
        return open_landing(self.root)


class LakeReader(dg.ConfigurableIOManager):
    """Gives a committed table to any asset that takes it as an argument; writes nothing.

    What the argument gets follows from its annotation: ``pl.LazyFrame`` (also without one), ``pl.DataFrame``, or
    ``duckdb.DuckDBPyRelation``. It holds the partitions that the asset's partition mapping asks for, at the version
    that was committed when the argument was loaded.
    """

    lake: dg.ResourceDependency[LakeResource]
    database: dg.ResourceDependency[DuckDBResource]
    """Its settings hold for the connections on which relations live; those are always in memory."""
    feeds: str
    """The package in which the tables are declared."""

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Refuse a value: tables are written by the gate alone."""
        if obj is not None:
            raise dg.DagsterInvariantViolationError(
                f"{context.asset_key.to_user_string()} returned a value to the lake reader, which only reads. Tables "
                "of the lake are declared in assets/feeds and written through the gate; give your own asset another "
                "io_manager_key, or return None."
            )

    def load_input(self, context: dg.InputContext) -> Any:
        """The committed rows.

        Raises:
            InputNotCommitted: naming the partitions that have no committed version.
        """
        table = load_project(self.feeds).table("/".join(context.asset_key.path))
        snapshot = self.lake.open().pin(table.path, table.partition)
        whole = isinstance(table.partition, Whole)
        keys: Sequence[str] = table.partition.keys() if whole else context.asset_partition_keys
        missing = tuple((table.path, key, _why(snapshot, key)) for key in keys if snapshot.content(key) is None)
        if missing:
            raise InputNotCommitted(*_asker(context), missing)
        return self._given(snapshot.scan(keys), table.name, context.dagster_type.typing_type)

    def _given(self, rows: pl.LazyFrame, name: str, wanted: object) -> Any:
        if wanted is pl.DataFrame:
            return rows.collect()
        if wanted is duckdb.DuckDBPyRelation:
            # The relation keeps its connection open; it is closed when the relation is let go.
            connection = duckdb.connect(config=self.database.connection_config)
            connection.register(name, rows)
            return connection.table(name)
        return rows


def _why(snapshot: Snapshot, key: str) -> str:
    return "not committed" if read_held(snapshot.folder, key) is None else "blocked by its gate"


def _asker(context: dg.InputContext) -> tuple[str, str]:
    """Who asks for an input, and for which partitions of its own: an asset, an operation, or a person at a prompt."""
    try:
        step = context.step_context
    except dg.DagsterInvariantViolationError:
        return f"the value of {context.asset_key.to_user_string()}", Whole.KEY
    assets = sorted(key.to_user_string() for key in step.get_output_asset_keys())
    keys = step.partition_key_range if step.has_partition_key_range or step.has_partition_key else None
    own = Whole.KEY if keys is None else keys.start if keys.start == keys.end else f"{keys.start} to {keys.end}"
    return ", ".join(assets) or context.op_def.name, own
