"""A backup or a recovery killed anywhere: what stood before stands, nothing publishes, asking again completes it."""

from pathlib import Path

import pytest

from medallion.errors import BackupRefused, IsolatedCopy
from medallion.evidence import EvidenceReader
from medallion.failpoints import UPKEEP_POINTS
from medallion.isolation import isolation, promote
from medallion.lake import Lake
from medallion.manifests import check_backup, manifests, read_manifest
from medallion.recovery import restore_backup, verify_copy
from medallion.refine import refine
from tests.protocol.shop import DAYS, Shop, build, contents, land, make_run
from tests.protocol.workers import Nursery

FIRST, SECOND, *_ = DAYS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A lake with two days, the first of which was corrected."""
    for quantities in ([1, -2], [3, -4]):
        land(tmp_path / "landing", FIRST, quantities)
        land(tmp_path / "landing", SECOND, [5])
        build(Shop(), [FIRST, SECOND], make_run(tmp_path / "lake", tmp_path / "landing"))
    return tmp_path


@pytest.mark.parametrize("point", [point for point in UPKEEP_POINTS if point.startswith("backup")])
def test_a_backup_killed_anywhere_leaves_the_ones_before_and_the_next_goes_on(folder: Path, workers: Nursery, point):
    assert workers.start("backup", folder).wait() == 0
    before = manifests(folder / "backup")
    land(folder / "landing", SECOND, [6, -1])
    build(Shop(), [SECOND], make_run(folder / "lake", folder / "landing"))
    assert workers.start("backup", folder, points=f"{point}=kill").wait() == -9
    assert manifests(folder / "backup") == before
    assert check_backup(folder / "backup", read_manifest(folder / "backup")) == []
    assert workers.start("backup", folder).wait() == 0
    restore_backup(folder / "backup", folder / "copy")
    assert contents(folder / "copy") == contents(folder / "lake")


@pytest.mark.parametrize("point", [point for point in UPKEEP_POINTS if point.startswith("copy")])
def test_a_recovery_killed_anywhere_publishes_nothing_and_is_gone_on_with(folder: Path, workers: Nursery, point):
    assert workers.start("backup", folder).wait() == 0
    assert workers.start("recover", folder, points=f"{point}=kill").wait() == -9
    told = isolation(folder / "copy")
    assert told is not None
    with pytest.raises(IsolatedCopy):
        refine(Shop().orders, [FIRST], make_run(folder / "copy", folder / "landing"))
    if told["verified"] is None:
        with pytest.raises(BackupRefused, match="not trusted"):
            promote(folder / "copy", reason="hurry", at="2017-03-02T00:00:00+00:00")
        assert workers.start("recover", folder).wait() == 0
    assert verify_copy(folder / "copy", read_manifest(folder / "backup")) == []
    promote(folder / "copy", reason="the disk is gone", at="2017-03-02T00:00:00+00:00")
    assert contents(folder / "copy") == contents(folder / "lake")


def test_a_backup_of_a_lake_that_is_written_to_holds_nothing_that_is_built_from_what_it_lacks(
    folder: Path, workers: Nursery
):
    """Closed under lineage: the input versions that live batches were made from are not newer than those of the cut."""
    for number in range(6):
        for day in DAYS:
            land(folder / "landing", day, [number + 1, 2, -3])
        writer = workers.start("build", folder, keys=list(DAYS))
        backing = workers.start("backup", folder)
        assert (writer.wait(), backing.wait()) == (0, 0)
    looked = 0
    for name in manifests(folder / "backup"):
        copy = folder / f"copy-{name}"
        restore_backup(folder / "backup", copy, manifest=name)
        lake = Lake(copy, durable=False)
        for table in Shop().tables[1:]:
            snapshot = lake.pin(table.path, table.partition)
            read = EvidenceReader(snapshot.folder)
            for day in snapshot.files:
                told = read(snapshot.batch_id(day) or "")
                assert told is not None
                for each in told.inputs.values():
                    assert each["version"] <= (lake.open(each["table"]).version or 0)
                    looked += 1
    assert looked >= 6 * 2 * 2
