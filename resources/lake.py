"""The lake and the landing zone as Dagster resources, and the reader that gives tables to other assets.

One set of resources a deployment. Folders come from the resource's own configuration, or from the environment when a
run starts; nothing is read at import.
"""

import os
from collections.abc import Sequence
from typing import Any

import dagster as dg
import duckdb
import polars as pl
from dagster_duckdb import DuckDBResource

from medallion.errors import InputNotCommitted
from medallion.lake import Lake
from medallion.partitions import Whole
from medallion.project import Project
from medallion.sources import LandingZone

DEFAULT_LAKE = "lake"
DEFAULT_LANDING = "landing"


class LakeResource(dg.ConfigurableResource[None]):
    """Where the tables lie."""

    root: str = ""
    """Folder of the lake; ``MEDALLION_LAKE`` from the environment, or ``lake``, if empty."""
    durable: bool | None = None
    """Flush every commit to the disk; ``MEDALLION_DURABLE`` from the environment, or yes, if not given. Without it a
    commit survives a killed process, and perhaps not a power cut."""

    def open(self) -> Lake:
        """The lake.

        Raises:
            ConfigurationError: if the folder cannot be used.
        """
        return Lake(self.root or os.environ.get("MEDALLION_LAKE", DEFAULT_LAKE), durable=self.durable)


class LandingResource(dg.ConfigurableResource[None]):
    """Where sources deliver their files."""

    root: str = ""
    """Folder of the landing zone; ``MEDALLION_LANDING`` from the environment, or ``landing``, if empty."""

    def open(self) -> LandingZone:
        """The landing zone.

        Raises:
            ConfigurationError: if the folder is not there.
        """
        return LandingZone(self.root or os.environ.get("MEDALLION_LANDING", DEFAULT_LANDING))


class LakeReader(dg.IOManager):
    """Gives a committed table to any asset that takes it as an argument; writes nothing.

    What the argument gets follows from its annotation: ``pl.LazyFrame`` (also without one), ``pl.DataFrame``, or
    ``duckdb.DuckDBPyRelation``. It holds the partitions that the asset's partition mapping asks for, at the version
    that was committed when the argument was loaded.
    """

    def __init__(self, lake: LakeResource, database: DuckDBResource, project: Project) -> None:
        """Read from a lake.

        Args:
            lake: where tables lie.
            database: opens the DuckDB connection on which relations live.
            project: the declared tables.
        """
        self._lake, self._database, self._project = lake, database, project

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Refuse: tables are written by the gate alone."""
        raise dg.DagsterInvariantViolationError(
            f"{context.asset_key.to_user_string()} returned a value to the lake reader, which only reads. Tables of "
            "the lake are declared in assets/feeds and written through the gate; give your own asset another "
            "io_manager_key, or return None."
        )

    def load_input(self, context: dg.InputContext) -> Any:
        """The committed rows.

        Raises:
            InputNotCommitted: naming the partitions that have no committed version.
        """
        path = "/".join(context.asset_key.path)
        table = self._project.table(path)
        snapshot = self._lake.open().pin(path, table.partition)
        keys: Sequence[str] = (
            table.partition.keys() if isinstance(table.partition, Whole) else context.asset_partition_keys
        )
        missing = tuple((path, key, "not committed") for key in keys if snapshot.content(key) is None)
        if missing:
            asset = context.step_context.job_def.name if context.has_asset_key is False else "this asset"
            raise InputNotCommitted(asset, "/".join(keys[:1]), missing)
        rows = snapshot.scan(keys)
        wanted = context.dagster_type.typing_type
        if wanted is pl.DataFrame:
            return rows.collect()
        if wanted is duckdb.DuckDBPyRelation:
            # The relation keeps its connection open; it is closed when the relation is let go.
            connection = duckdb.connect()
            connection.register(table.name, rows)
            return connection.table(table.name)
        return rows
