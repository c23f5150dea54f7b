"""Savepoints and restores in an object store: a name is given once, and an interrupted restore is completed."""

from contextlib import suppress
from pathlib import Path

import pytest

from medallion import savepoints
from medallion.errors import RestoreUnfinished, SavepointRefused
from medallion.failpoints import Interrupted, armed
from medallion.lake import Lake
from medallion.past_states import of_savepoint
from medallion.project import Project
from medallion.refine import refine
from medallion.restore import RECOVERED, restore, resume
from medallion.store import open_place, write_once
from tests.protocol.shop import DAYS, Shop, build, contents, land, make_run

FIRST, SECOND, *_ = DAYS


def test_a_bucket_goes_back_to_a_savepoint_through_an_interruption(bucket: str, tmp_path: Path):
    for day, quantities in {FIRST: [1, -2], SECOND: [3]}.items():
        land(tmp_path / "landing", day, quantities)
    run, shop = make_run(bucket, tmp_path / "landing"), Shop()
    build(shop, [FIRST, SECOND], run)
    project, good = Project(shop.tables), contents(bucket)
    savepoints.create(project, run.lake, "good")
    with pytest.raises(SavepointRefused, match="never overwritten"):
        savepoints.create(project, run.lake, "good")
    land(tmp_path / "landing", FIRST, [7, -8, -9])
    build(shop, [FIRST], run)
    with armed("table committed:2=raise"), suppress(Interrupted):
        restore(project, run.lake, of_savepoint(project, run.lake, "good"), reason="a test")
    with pytest.raises(RestoreUnfinished):
        refine(shop.orders, [FIRST], run)
    told = resume(project, Lake(bucket))
    assert told is not None
    assert told.outcome == RECOVERED, told.differences
    assert contents(bucket) == good


def test_an_object_that_is_written_once_is_not_overwritten_and_the_same_bytes_are_no_second_one(bucket: str):
    place = open_place(bucket) / "_savepoints" / "one.json"
    write_once(place, b"first", durable=True)
    write_once(place, b"first", durable=True)  # an answer that was lost, and the request sent again
    with pytest.raises(FileExistsError):
        write_once(place, b"second", durable=True)
    assert place.read_bytes() == b"first"
