"""The operator's words: what a table holds, from the lake alone. Works where Dagster is down.

A command is a function in a module of ``medallion.commands``, which is imported when the command is asked for.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from medallion.errors import MedallionError

if TYPE_CHECKING:
    from medallion.lake import Lake
    from medallion.project import Project
    from medallion.sources import LandingZone

__all__ = ["Settings", "cli", "main", "only_partition"]

_COMMANDS: Mapping[str, str] = {
    "approve": "medallion.commands.held",
    "backup": "medallion.commands.backup",
    "check-lake": "medallion.commands.damage",
    "clean": "medallion.commands.look",
    "diff": "medallion.commands.recover",
    "discard": "medallion.commands.held",
    "execute": "medallion.commands.backfill",
    "inspect": "medallion.commands.look",
    "ledger": "medallion.commands.standing",
    "plan": "medallion.commands.backfill",
    "promote": "medallion.commands.backup",
    "quarantine": "medallion.commands.quarantine",
    "recover": "medallion.commands.backup",
    "replay": "medallion.commands.backfill",
    "restore": "medallion.commands.recover",
    "retention": "medallion.commands.retention",
    "savepoint": "medallion.commands.recover",
    "status": "medallion.commands.standing",
    "summary": "medallion.commands.look",
    "vacuum": "medallion.commands.retention",
    "verify": "medallion.commands.prove",
}
"""Where each command is; a function of the command's name."""


@dataclass(frozen=True)
class Settings:
    """Where things lie, as the options or the environment say. Opened when a command needs them."""

    lake_root: str
    landing_root: str

    def lake(self) -> Lake:
        """The lake, which has to be there."""
        from medallion.lake import Lake
        from medallion.store import is_address

        if not is_address(self.lake_root) and not Path(self.lake_root).is_dir():
            raise click.ClickException(
                f"there is no lake at {Path(self.lake_root).absolute()}. Build one with `make run UI=0`, or set "
                "MEDALLION_LAKE."
            )
        return Lake(self.lake_root)

    def landing(self) -> LandingZone:
        """The landing zone, which has to be there.

        Raises:
            ConfigurationError: if it is not.
        """
        from medallion.sources import LandingZone

        return LandingZone(self.landing_root)

    def project(self) -> Project:
        """The declared tables of the project in the working directory."""
        from medallion.project import feeds_of, load_project

        folder = Path.cwd()
        feeds = feeds_of(folder)
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))  # feeds are modules of the project's folder, which is not installed
        return load_project(feeds)


def only_partition(table: str, keys: Sequence[str]) -> str:
    """The one partition of an unpartitioned table, which nobody has to name; of another, one has to be named.

    Raises:
        click.UsageError: with the partitions that there are.
    """
    if list(keys) == ["all"]:
        return keys[0]
    some = f"{len(keys)} partitions, {keys[0]} to {keys[-1]}" if keys else "no partitions yet"
    raise click.UsageError(f"{table} has {some}." + (f" Name one, as in {table} {keys[0]}." if keys else ""))


class _LazyGroup(click.Group):
    """Imports the module of a command when it is needed (click's documentation, "Lazily Loading Subcommands")."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(_COMMANDS[cmd_name]), cmd_name.replace("-", "_"))
        return command


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--lake",
    envvar="MEDALLION_LAKE",
    default="lake",
    show_default=True,
    help="Folder of the lake, or s3://bucket/prefix; MEDALLION_LAKE in the environment.",
)
@click.option(
    "--landing",
    envvar="MEDALLION_LANDING",
    default="landing",
    show_default=True,
    help="Folder in which sources deliver; MEDALLION_LANDING in the environment.",
)
@click.pass_context
def cli(context: click.Context, lake: str, landing: str) -> None:
    """Look at and act on a medallion lake. Run it in the project's folder, where pyproject.toml names the feeds."""
    context.obj = Settings(lake, landing)


def main() -> None:
    """Run the command; an error of the engine is one message and exit status 2."""
    try:
        cli(prog_name="medallion", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except click.Abort:
        sys.exit(130)
    except MedallionError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
