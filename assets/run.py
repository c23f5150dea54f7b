"""``make run``: backfill everything that is pending, say what the lake holds, and serve Dagster's UI.

The runs are ordinary Dagster runs in this process, with all their events; a daemon would make the same ones. What they
tell of is made ahead of them (``assets/ahead.py``).
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

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from assets.ahead import Ahead
from assets.chains import chains
from medallion.errors import ConfigurationError, MedallionError
from medallion.project import Project, load_project
from medallion.refine import Run
from medallion.summary import render, summarize
from resources.places import open_lake, open_landing, slice_bytes

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
    run = Run(lake=open_lake(), landing=open_landing(), slice_bytes=slice_bytes())
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bars = {each.path: progress.add_task(each.path, total=len(each.partition.keys())) for each in project.tables}
        with Ahead(project.tables, run, lambda path, settled: progress.advance(bars[path], settled)) as ahead:
            unchanged, failures = _tell(ahead, project)
        for each in project.tables:  # with what there was nothing to do for
            progress.update(bars[each.path], completed=len(each.partition.keys()))
    _report(project, run, unchanged, failures, time.monotonic() - started)
    return len(failures)


def _tell(ahead: Ahead, project: Project) -> tuple[int, list[str]]:
    """Run in Dagster what is made ahead; how many partitions were left alone, and the messages of what was refused."""
    import dagster as dg  # noqa: PLC0415 - a second, in which the first tables are being made

    from assets.local_runs import run_chain  # noqa: PLC0415

    unchanged, failures = 0, list[str]()
    with dg.DagsterInstance.get() as instance:
        for chain in chains(project.tables):
            told, refused = run_chain(chain, ahead, instance)
            failures += refused
            unchanged += sum(len(table.partition.keys()) - len(told) for table in chain)
    return unchanged, failures


def _wanted(project: Project, names: Sequence[str]) -> Project:
    """The named tables and, again and again, what they are built from or refer to."""
    wanted = {project.table(name) for name in names}
    for table in reversed(project.tables):  # each comes after what it is built from
        if table in wanted:
            wanted.update(given.table for given in (*table.inputs.values(), *table.references.values()))
    return Project(tuple(table for table in project.tables if table in wanted)) if names else project


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
