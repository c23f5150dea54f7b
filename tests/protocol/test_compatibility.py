"""What another version of the feed or of the engine has written."""

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable

from medallion import log
from medallion.errors import RevisionRefused, TableUnreadable
from medallion.inspection import inspect
from medallion.lake import Lake
from medallion.outcomes import Committed, Failed
from medallion.refine import Run, refine
from medallion.stale import stale_partitions
from tests.protocol.shop import DAY, DAYS, Shop, build, contents, land, make_run

FIRST, SECOND, *_ = DAYS


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A lake with two days, made by revision 2."""
    for day in (FIRST, SECOND):
        land(tmp_path / "landing", day, [1, -2])
    opened = make_run(tmp_path / "lake", tmp_path / "landing")
    build(Shop(revision=2), [FIRST, SECOND], opened)
    return opened


def test_a_lower_revision_is_refused_and_both_are_named(run):
    before = contents(run.lake.root)
    outcome = refine(Shop(revision=1).orders, [FIRST], run).outcomes[FIRST]
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, RevisionRefused)
    assert (outcome.error.mine, outcome.error.live) == (1, 2)
    assert contents(run.lake.root) == before


def test_a_downgrade_on_purpose_is_recorded_with_its_reason(run, tmp_path):
    back = make_run(run.lake.root, tmp_path / "landing", downgrade="revision 2 counts returns twice")
    outcome = refine(Shop(revision=1).orders, [FIRST], back).outcomes[FIRST]
    assert isinstance(outcome, Committed)
    want = {"from": 2, "reason": "revision 2 counts returns twice"}
    assert inspect(run.lake, "silver/orders", FIRST)["live"]["downgrade"] == want
    assert inspect(run.lake, "silver/orders", FIRST)["commit"]["downgrade"] == want["reason"]
    assert outcome.evidence.revision == 1


def test_a_table_is_stale_partition_by_partition_with_the_reason(run):
    assert stale_partitions(Shop(revision=2).orders, run.lake) == {}
    refine(Shop(revision=3).orders, [FIRST], run)
    assert stale_partitions(Shop(revision=3).orders, run.lake) == {SECOND: "revision 2 became 3"}
    assert stale_partitions(Shop(revision=2).orders, run.lake) == {
        FIRST: "made by revision 3, and 2 is declared: it is refused"
    }


def test_evidence_of_an_unknown_format_is_refused_with_what_to_do(run, monkeypatch):
    monkeypatch.setattr(log, "FORMAT", 0)
    with pytest.raises(TableUnreadable, match="format 1, and this version of medallion knows up to 0"):
        run.lake.pin("silver/orders", DAY)


def test_a_commit_of_an_unknown_format_is_refused(run):
    path = sorted((run.lake.root / "silver/orders/_delta_log").glob("*.json"))[-1]
    path.write_text(path.read_text().replace('\\"format\\": 1', '\\"format\\": 7'))
    with pytest.raises(TableUnreadable, match="format 7"):
        run.lake.pin("silver/orders", DAY).commits(0)


def test_evidence_of_a_newer_format_is_refused(run):
    for path in list((run.lake.root / "silver/orders/_evidence").iterdir()):
        path.write_text(path.read_text().replace('"format": 1', '"format": 7'))
    with pytest.raises(TableUnreadable, match="format 7"):
        refine(Shop(revision=2).orders, [FIRST], run)


def test_the_format_survives_a_commit_that_adds_a_column(run, tmp_path):
    (tmp_path / "landing/orders" / f"{FIRST}.csv").write_text("order_id,quantity,note\n1,2,new\n")
    refine(Shop().raw, [FIRST], run)
    assert DeltaTable(str(run.lake.root / "bronze/orders")).metadata().description == log.note()


def test_inspect_tells_the_whole_pinned_context_from_the_lake_alone(run):
    told = inspect(run.lake, "silver/orders", FIRST)
    live = told["live"]
    assert live["batch_id"] == told["live batch"]
    assert live["inputs"]["raw"]["table"] == "bronze/orders"
    assert live["inputs"]["raw"]["version"] == 1
    assert live["inputs"]["raw"]["partitions"] == {FIRST: contents(run.lake.root)["bronze/orders"][FIRST]}
    assert {"contract", "transform", "revision", "packages", "run_id", "attempt"} <= live.keys()
    assert told["commit"]["attempt"] == live["attempt"]
    assert told["commit"]["version"] == 1
    (source,) = inspect(run.lake, "bronze/orders", FIRST)["live"]["sources"]
    assert len(source["sha256"]) == 64


def test_inspect_tells_of_an_older_version(run, tmp_path):
    before = inspect(run.lake, "silver/orders", FIRST)
    land(tmp_path / "landing", FIRST, [9])
    build(Shop(revision=2), [FIRST], run)
    assert inspect(run.lake, "silver/orders", FIRST)["live batch"] != before["live batch"]
    again = inspect(run.lake, "silver/orders", FIRST, version=before["version"])
    assert again == before


def test_an_attempt_rebases_on_a_column_that_another_one_has_added_meanwhile(run, tmp_path):
    """A commit with a narrower schema would drop the column for all partitions."""
    lake = Lake(run.lake.root)
    bronze = Shop().raw
    stale = lake.pin("bronze/orders", DAY)
    (tmp_path / "landing/orders" / f"{FIRST}.csv").write_text("order_id,quantity,note\n1,2,new\n")
    refine(bronze, [FIRST], run)
    assert "note" not in stale.schema
    assert "note" in lake.pin("bronze/orders", DAY).schema
    land(tmp_path / "landing", SECOND, [3])
    refine(bronze, [SECOND], run)
    assert lake.pin("bronze/orders", DAY).scan([FIRST], ["note"]).collect()["note"].to_list() == ["new"]


def test_evidence_is_plain_json_and_says_its_format(run):
    for path in (run.lake.root / "silver/orders/_evidence").iterdir():
        for line in path.read_text().splitlines():
            assert json.loads(line)["format"] == log.FORMAT
