"""A source that says what it sent is taken at its word."""

import hashlib
import json

import polars as pl
import pytest

from medallion.errors import DeclarationError, SourceIncomplete, SourceMissing
from medallion.lake import Lake
from medallion.outcomes import Failed
from medallion.partitions import Daily
from medallion.refine import Run, refine
from medallion.sources import LandingZone
from medallion.tables import bronze

DAY = Daily("day", start="2024-01-01", end="2024-01-05")
DAYS = ["2024-01-01", "2024-01-02"]


@pytest.fixture
def landing(tmp_path):
    (tmp_path / "landing").mkdir()
    return tmp_path / "landing"


def ingest(table, tmp_path, days=DAYS):
    return refine(table, days, Run(Lake(tmp_path / "lake"), LandingZone(tmp_path / "landing"))).outcomes


def test_a_file_with_fewer_rows_than_its_manifest_says_fails_alone(landing, tmp_path):
    table = bronze("orders", source="{day}.csv", manifest="{day}.json", partition=DAY)
    for day, rows in zip(DAYS, (2, 3), strict=True):
        data = b"id,price\n1,2\n2,3\n"
        (landing / f"{day}.csv").write_bytes(data)
        (landing / f"{day}.json").write_text(json.dumps({"rows": rows, "sha256": hashlib.sha256(data).hexdigest()}))
    outcomes = ingest(table, tmp_path)
    assert outcomes[DAYS[0]].verdict.accepted == 2
    failed = outcomes[DAYS[1]]
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, SourceIncomplete)
    assert "it has 2 rows, and the manifest says 3" in str(failed.error)


def test_a_file_that_is_not_the_one_of_its_manifest_fails(landing, tmp_path):
    table = bronze("orders", source="{day}.csv", manifest="{day}.json", partition=DAY)
    (landing / "2024-01-01.csv").write_text("id\n1\n")
    (landing / "2024-01-01.json").write_text('{"sha256": "0000"}')
    (error,) = [each.error for each in ingest(table, tmp_path, DAYS[:1]).values()]
    assert "the manifest says 0000" in str(error)


def test_a_file_without_its_manifest_is_not_taken(landing, tmp_path):
    table = bronze("orders", source="{day}.csv", manifest="{day}.json", partition=DAY)
    (landing / "2024-01-01.csv").write_text("id\n1\n")
    (error,) = [each.error for each in ingest(table, tmp_path, DAYS[:1]).values()]
    assert isinstance(error, SourceMissing)
    assert "2024-01-01.json" in str(error)


def test_a_trailer_is_checked_and_is_no_row(landing, tmp_path):
    table = bronze("orders", source="{day}.csv", trailer="END", partition=DAY)
    (landing / "2024-01-01.csv").write_text("id,price\n1,2\n2,3\nEND,2\n")
    (landing / "2024-01-02.csv").write_text("id,price\n7,8\nEND,1\n")
    outcomes = ingest(table, tmp_path)
    assert [each.verdict.accepted for each in outcomes.values()] == [2, 1]
    rows = pl.read_delta(str(tmp_path / "lake/bronze/orders")).sort("day", "_source_row")
    assert rows.select("id", "_source_row").rows() == [("1", 1), ("2", 2), ("7", 1)]


@pytest.mark.parametrize("text", ["id,price\n1,2\n2,3\n", "id,price\n1,2\nEND,2\n", "id,price\n"])
def test_a_file_that_was_cut_short_is_told_by_its_trailer(landing, tmp_path, text):
    table = bronze("orders", source="{day}.csv", trailer="END", partition=DAY)
    (landing / "2024-01-01.csv").write_text("id,price\n1,2\nEND,1\n")
    (landing / "2024-01-02.csv").write_text(text)
    outcomes = ingest(table, tmp_path)
    assert outcomes["2024-01-01"].verdict.accepted == 1
    assert isinstance(outcomes["2024-01-02"].error, SourceIncomplete)


def test_a_manifest_that_all_partitions_would_share_is_refused_when_declared():
    with pytest.raises(DeclarationError, match="does not contain"):
        bronze("orders", source="{day}.csv", manifest="manifest.json", partition=DAY)
