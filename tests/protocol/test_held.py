"""Blocked candidates that somebody approves or discards."""

import json
from pathlib import Path

import pytest

from medallion.errors import HeldCandidate, RevisionRefused
from medallion.evidence import EvidenceReader, read_held
from medallion.held import approve, discard
from medallion.lake import Lake
from medallion.outcomes import Blocked, Committed, Unchanged
from medallion.refine import Run, refine
from tests.protocol.shop import DAY, DAYS, Shop, build, contents, held_by, land, make_run

FIRST, SECOND, *_ = DAYS
BAD = [5000, 1, -2]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A lake with a good day, whose second delivery is blocked."""
    land(tmp_path / "landing", FIRST, [1, 2])
    opened = make_run(tmp_path / "lake", tmp_path / "landing")
    build(Shop(), [FIRST], opened)
    land(tmp_path / "landing", FIRST, BAD)
    _, orders, _ = build(Shop(), [FIRST], opened)
    assert isinstance(orders.outcomes[FIRST], Blocked)
    return opened


def _table(run: Run) -> Path:
    return Path(str(run.lake.root), "silver/orders")


def test_approving_publishes_the_bytes_that_were_judged_and_records_who_and_why(run):
    held = read_held(_table(run), FIRST)
    assert held is not None
    outcome = approve(Shop().orders, FIRST, run, reason="a real bulk order")
    assert isinstance(outcome, Committed)
    assert contents(run.lake.root)["silver/orders"][FIRST] == held.content
    assert contents(run.lake.root)["quarantine/orders"][FIRST] == held.refused
    assert held_by(run.lake.root)["silver/orders"][FIRST] == [(1, 5000), (2, 1)]
    assert held_by(run.lake.root)["quarantine/orders"][FIRST] == [("3", "-2")]
    evidence = EvidenceReader(_table(run))(held.batch_id)
    assert evidence is not None
    assert evidence.approval is not None
    assert evidence.approval["reason"] == "a real bulk order"
    assert evidence.approval["rules"] == ["table.few_are_refused"]
    assert run.lake.pin("silver/orders", DAY).commits(0, partial=True)[0].metadata["approval"] == evidence.approval
    assert read_held(_table(run), FIRST) is None


def test_a_replay_after_an_approval_is_unchanged(run):
    approve(Shop().orders, FIRST, run, reason="checked")
    assert isinstance(refine(Shop().orders, [FIRST], run).outcomes[FIRST], Unchanged)


def test_a_candidate_whose_source_was_corrected_since_is_not_approved(run, tmp_path):
    before = contents(run.lake.root)["silver/orders"]
    land(tmp_path / "landing", FIRST, [3])
    refine(Shop().raw, [FIRST], run)
    with pytest.raises(HeldCandidate, match="its input bronze/orders has changed since"):
        approve(Shop().orders, FIRST, run, reason="checked")
    assert contents(run.lake.root)["silver/orders"] == before


def test_a_candidate_of_a_partition_that_was_committed_since_is_gone(run, tmp_path):
    land(tmp_path / "landing", FIRST, [3])
    build(Shop(), [FIRST], run)
    with pytest.raises(HeldCandidate, match="no blocked candidate"):
        approve(Shop().orders, FIRST, run, reason="checked")


def test_a_candidate_of_another_revision_of_the_feed_is_not_approved(run):
    with pytest.raises(HeldCandidate, match="revision 1 became 2"):
        approve(Shop(revision=2).orders, FIRST, run, reason="checked")


def test_a_candidate_below_the_live_revision_is_not_approved(tmp_path):
    land(tmp_path / "landing", FIRST, [1])
    run = make_run(tmp_path / "lake", tmp_path / "landing")
    low = Shop(revision=1)
    build(low, [FIRST], run)
    land(tmp_path / "landing", FIRST, BAD)
    build(low, [FIRST], run)
    held = (tmp_path / "lake/silver/orders/_held" / FIRST / "evidence.json").read_bytes()
    land(tmp_path / "landing", FIRST, [1, 1])
    build(Shop(revision=2), [FIRST], run)
    folder = tmp_path / "lake/silver/orders/_held" / FIRST
    folder.mkdir()
    (folder / "evidence.json").write_bytes(held)  # as a slow writer might leave it
    with pytest.raises(RevisionRefused):
        approve(low.orders, FIRST, run, reason="checked")


def test_a_candidate_whose_file_was_changed_is_not_approved(run):
    path = _table(run) / "_held" / FIRST / "accepted.parquet"
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(HeldCandidate, match="is not what was judged"):
        approve(Shop().orders, FIRST, run, reason="checked")


def test_an_approval_needs_a_reason(run):
    with pytest.raises(HeldCandidate, match="Say why"):
        approve(Shop().orders, FIRST, run, reason=" ")


def test_a_discarded_candidate_is_gone_recorded_and_comes_back_with_a_replay(run):
    before = contents(run.lake.root)
    gone = discard(Shop().orders, FIRST, run, reason="a test delivery")
    assert gone.batch_id
    assert read_held(_table(run), FIRST) is None
    assert contents(run.lake.root) == before
    (note,) = (_table(run) / "_held/.discarded").glob("*.json")
    assert json.loads(note.read_bytes())["reason"] == "a test delivery"
    with pytest.raises(HeldCandidate):
        discard(Shop().orders, FIRST, run)
    assert isinstance(refine(Shop().orders, [FIRST], run).outcomes[FIRST], Blocked)


def test_a_refused_approval_is_not_taken_for_an_interruption(run, tmp_path):
    land(tmp_path / "landing", FIRST, [3])
    refine(Shop().raw, [FIRST], run)
    with pytest.raises(HeldCandidate):
        approve(Shop().orders, FIRST, run, reason="checked")
    assert refine(Shop().orders, [FIRST], run).outcomes[FIRST].recovery is None


def test_readers_of_the_lake_see_no_half_of_a_held_candidate(run):
    assert sorted(path.name for path in (_table(run) / "_held" / FIRST).iterdir()) == [
        "accepted.parquet", "evidence.json", "quarantined.parquet",
    ]  # fmt: skip
    assert isinstance(Lake(run.lake.root).pin("silver/orders", DAY).batch_id(FIRST), str)
