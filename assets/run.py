"""``make run``: backfill everything that is pending, say what the lake holds, and serve Dagster's UI.

The runs are ordinary Dagster runs in this process, with all their events; a daemon would make the same ones.
"""

import argparse
import logging
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import dagster as dg
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from assets.automation import neighbours
from assets.factory import chains
from assets.specs import asset_key
from checks.translate import GATE
from medallion.errors import ConfigurationError, MedallionError
from medallion.partitions import Whole
from medallion.project import Project, load_project
from medallion.refine import Run, pending, watching
from medallion.summary import render, summarize
from medallion.tables import Table
from resources.lake import LakeResource, LandingResource

ROOT = Path(__file__).resolve().parent.parent
console = Console()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 1 if a partition was refused and 2 if the configuration is unusable."""
    parser = argparse.ArgumentParser(prog="python -m assets.run", description=__doc__)
    parser.add_argument("tables", nargs="*", metavar="LAYER/NAME", help="only these and what they are built from")
    parser.add_argument("--ui", action=argparse.BooleanOptionalAction, default=True, help="serve the UI afterwards")
    parser.add_argument("--port", type=int, default=3000, help="port of the UI on 127.0.0.1")
    options = parser.parse_args(arguments)
    try:
        if options.ui:
            check_port(options.port)
        prepare_home()
        refused = backfill(options.tables)
    except MedallionError as error:
        console.print(f"[red]error:[/] {error}", highlight=False)
        return 2
    if options.ui:
        serve(options.port)
    return 1 if refused else 0


def check_port(port: int) -> None:
    """Refuse a port that something else listens on, before hours of work.

    Raises:
        ConfigurationError: saying how to choose another one.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigurationError(
                f"port {port} on 127.0.0.1 is taken: {error.strerror}. Choose another one: make run PORT={port + 1}"
            ) from error


def prepare_home() -> Path:
    """Make Dagster's home, with the project's ``dagster.yaml``, and name it in the environment."""
    home = Path(os.environ.get("DAGSTER_HOME") or ROOT / ".dagster").absolute()
    try:
        home.mkdir(parents=True, exist_ok=True)
        if not (home / "dagster.yaml").exists():
            shutil.copyfile(ROOT / "resources" / "dagster.yaml", home / "dagster.yaml")
    except OSError as error:
        raise ConfigurationError(
            f"DAGSTER_HOME {home} cannot be used: {error.strerror}. Set it to another folder."
        ) from error
    os.environ["DAGSTER_HOME"] = str(home)
    return home


def backfill(names: Sequence[str] = ()) -> int:
    """Run everything that is pending, in order, and print what the lake holds. Returns how many partitions failed.

    Args:
        names: of the tables to look at, with everything that they are built from; all if there are none.

    Raises:
        UnknownTable: if one is not declared.
    """
    started = time.monotonic()
    logging.getLogger("medallion").setLevel(logging.ERROR)  # refused partitions are listed at the end
    project = _wanted(load_project("assets.feeds"), names)
    run = Run(lake=LakeResource().open(), landing=LandingResource().open(), run_id="plan")
    failures: list[str] = []
    unchanged = 0
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with dg.DagsterInstance.get() as instance, Progress(*columns, console=console) as progress:
        for chain in chains(project.tables):
            keys, waiting = chain[0].partition.keys(), _waiting(chain, run, instance)
            unchanged += (len(keys) - len(waiting)) * len(chain)
            tasks = {
                table.path: progress.add_task(table.path, total=len(keys), completed=len(keys) - len(waiting))
                for table in chain
            }
            with watching(lambda path, settled, tasks=tasks: progress.advance(tasks[path], settled)):  # type: ignore[misc]
                for piece in neighbours(chain[0].partition, waiting):
                    failures += _execute(chain, piece, instance)
    _report(project, run, unchanged, failures, time.monotonic() - started)
    return len(failures)


def _wanted(project: Project, names: Sequence[str]) -> Project:
    """The named tables and, again and again, what they are built from or refer to."""
    wanted = {project.table(name) for name in names}
    for table in reversed(project.tables):  # each comes after what it is built from
        if table in wanted:
            wanted.update(given.table for given in (*table.inputs.values(), *table.references.values()))
    return Project(tuple(table for table in project.tables if table in wanted)) if names else project


def _waiting(chain: Sequence[Table], run: Run, instance: dg.DagsterInstance) -> list[str]:
    """Partitions that one of the tables has to do, or that Dagster does not know of (its instance may be new)."""
    cut = chain[0].partition
    wanted: set[str] = set()
    for table in chain:
        wanted.update(pending(table, cut.keys(), run))
        if isinstance(cut, Whole):
            known = set(cut.keys()) if instance.get_latest_materialization_event(asset_key(table)) else set()
        else:
            known = set(instance.get_materialized_partitions(asset_key(table)))
        wanted.update(set(cut.keys()) - known)
    return [key for key in cut.keys() if key in wanted]  # noqa: SIM118 - not a dictionary


def _execute(chain: Sequence[Table], keys: Sequence[str], instance: dg.DagsterInstance) -> list[str]:
    """One Dagster run for a row of neighbouring partitions; the messages of what was refused."""
    from assets.definitions import defs  # noqa: PLC0415 - a feed with an error is to be one message, not a traceback

    assets = [asset_key(table) for table in chain]
    whole = defs.resolve_implicit_job_def_def_for_assets(assets)
    assert whole is not None
    # Of the checks only the gates are planned: Dagster would have to be told of each rule for each of hundreds of
    # partitions (10 ms each on SQLite), most of which found nothing. Those that did are reported all the same.
    gates = {dg.AssetCheckKey(key, GATE) for key in assets}
    job = whole.get_subset(asset_selection=set(assets), asset_check_selection=gates)
    tags = (
        {}
        if isinstance(chain[0].partition, Whole)
        else {ASSET_PARTITION_RANGE_START_TAG: keys[0], ASSET_PARTITION_RANGE_END_TAG: keys[-1]}
    )
    # Every event goes to the instance, where the UI shows it; the terminal is for progress and the summary.
    quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    result = job.execute_in_process(run_config=quiet, instance=instance, tags=tags, raise_on_error=False)
    return [_message(event) for event in result.all_events if event.is_step_failure]


def _message(event: dg.DagsterEvent) -> str:
    """What a failed step says to people: the engine's own message if there is one."""
    data = event.step_failure_data
    if data.user_failure_data is not None and data.user_failure_data.description:
        return data.user_failure_data.description
    return data.error_display_string


def _report(project: Project, run: Run, unchanged: int, failures: Sequence[str], seconds: float) -> None:
    console.print(*render(summarize(project.tables, run.lake)))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    console.print(
        f"{unchanged:,} partitions were unchanged and not run again. {seconds:.1f} s, peak memory {peak:,.0f} MiB."
    )
    for message in failures:
        console.print(f"[red]{message}[/]", highlight=False)


def serve(port: int) -> None:
    """Serve the UI and run the daemon until Ctrl-C."""
    command = [sys.executable, "-m", "dagster", "dev", "-w", "workspace.yaml", "-h", "127.0.0.1", "-p", str(port)]
    console.print(f"Dagster is at [bold]http://127.0.0.1:{port}[/]; Ctrl-C stops it.")
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        process.wait()
    except KeyboardInterrupt:
        # Ctrl-C in a terminal reaches the whole process group; this one waits until dagster has stopped.
        process.send_signal(signal.SIGINT)
        process.wait()


if __name__ == "__main__":
    sys.exit(main())
