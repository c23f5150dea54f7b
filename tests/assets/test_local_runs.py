"""What ``make run`` does: everything that is pending is made ahead, and told by Dagster runs in this process."""

import shutil
import threading
from collections.abc import Collection, Iterator
from pathlib import Path

import dagster as dg
import pytest

from assets.ahead import Ahead
from assets.chains import Chain, chains
from assets.local_runs import run_chain
from medallion.errors import TableUnreadable
from medallion.evidence import EvidenceReader
from medallion.lake import Lake
from medallion.project import load_project
from medallion.refine import Run
from medallion.sources import LandingZone
from medallion.tables import Table
from medallion.verify import verify
from tests.assets.conftest import DAYS
from tests.assets.deployment import DAILY, REFERENCES, Deployment, cut_short, instance_in
from tests.assets.test_materialize import edit_a_quantity
from tests.assets.test_staleness import build, stale

BRONZE, SILVER, DAILY_SALES, SALES_7D = DAILY
DAY, CLOSED = "2017-01-03", "2017-12-25"


def tables(*paths: str) -> list[Table]:
    """Declared tables, in the project's order."""
    return [table for table in load_project("assets.feeds").tables if table.path in paths]


def ahead_of(deployment: Deployment, chosen: Collection[Table]) -> Ahead:
    """What is made ahead for a deployment; nobody watches."""
    run = Run(Lake(deployment.lake), LandingZone(deployment.landing))
    return Ahead(chosen, run, lambda table, settled: None)


def everything(deployment: Deployment, *paths: str) -> tuple[dict[str, set[str]], list[str]]:
    """Make and tell what is pending of some tables: what was run of each, and what was refused."""
    chosen, ran, refused = tables(*paths), dict[str, set[str]](), list[str]()
    with ahead_of(deployment, chosen) as ahead:
        for chain in chains(chosen):
            keys, failures = told_of(deployment, chain, ahead)
            ran.update((table.path, keys) for table in chain)
            refused += failures
    return ran, refused


def told_of(deployment: Deployment, chain: Chain, ahead: Ahead) -> tuple[set[str], list[str]]:
    """Run a chain with the deployment's folders in the environment, where its resources look for them."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in deployment.environment().items():
            patch.setenv(name, value)
        return run_chain(chain, ahead, deployment.instance)


@pytest.fixture(scope="module")
def made(delivered: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Deployment, list[str]]]:
    """The few days made ahead and told, with the rest of the year not delivered; and what was refused."""
    root = tmp_path_factory.mktemp("made") / "retail"
    shutil.copytree(delivered, root)
    with instance_in(root.parent / "home") as instance:
        deployment = Deployment(root, instance)
        yield deployment, everything(deployment, *REFERENCES, *DAILY)[1]


def test_what_is_made_ahead_is_what_runs_make_themselves(made, built, instance):
    (deployment, refused), other = made, Deployment(built, instance)
    assert len(refused) == 3  # the days that were not delivered keep bronze and silver, and gold, from the year's end
    for table in DAILY:
        assert deployment.materialized(table) - {CLOSED} == set(DAYS), table
        assert deployment.files(table, DAYS) == other.files(table, DAYS), table
    assert verify(load_project("assets.feeds"), Lake(deployment.lake)).reconciled


def test_the_evidence_names_the_run_that_has_told_of_it(made):
    deployment, _ = made
    for table in tables(*DAILY):
        snapshot = Lake(deployment.lake).pin(table.path, table.partition)
        evidence_of = EvidenceReader(snapshot.folder)
        told = deployment.instance.fetch_materializations(dg.AssetKey(table.path.split("/")), limit=1000).records
        runs = {record.partition_key: record.run_id for record in told}
        for day in DAYS:
            evidence = evidence_of(snapshot.batch_id(day) or "")
            assert evidence is not None
            assert evidence.run_id == runs[day]


def test_what_stands_is_not_run_again_and_a_corrected_day_with_what_is_built_from_it(fresh):
    everything(fresh, *REFERENCES, *DAILY)
    before = {table: fresh.standing(table, DAYS) for table in DAILY}
    ran, _ = everything(fresh, *REFERENCES, *DAILY)
    assert not any(keys & set(DAYS) for keys in ran.values())
    assert {table: fresh.standing(table, DAYS) for table in DAILY} == before
    edit_a_quantity(fresh, DAY)
    ran, _ = everything(fresh, *REFERENCES, *DAILY)
    later = {day for day in DAYS if day >= DAY}
    assert {table: keys & set(DAYS) for table, keys in ran.items() if table in DAILY} == {
        BRONZE: {DAY}, SILVER: {DAY}, DAILY_SALES: {DAY}, SALES_7D: later
    }  # fmt: skip
    assert all(stale(fresh, asset) == {} for asset in DAILY)


def test_a_new_instance_is_told_of_what_stands_without_a_commit(finished):
    before = {table: finished.standing(table, DAYS) for table in DAILY}
    ran, _ = everything(finished, *REFERENCES, *DAILY)
    assert all(keys >= set(DAYS) for table, keys in ran.items() if table in DAILY)
    for table in DAILY:
        assert finished.materialized(table) - {CLOSED} == set(DAYS)
        assert finished.standing(table, DAYS) == before[table]


def test_a_day_whose_gate_is_closed_fails_its_run_with_the_message_and_keeps_no_other_out(fresh):
    cut_short(fresh.file(DAY), rows=900)
    _, refused = everything(fresh, *REFERENCES, *DAILY[:2])
    assert any(f"{SILVER} {DAY}" in message for message in refused)
    assert fresh.materialized(SILVER) - {CLOSED} == set(DAYS) - {DAY}
    assert fresh.colours(SILVER, "gate")[DAY] == "FAILED"


def test_what_others_commit_between_making_and_telling_is_shown_as_a_change(fresh):
    build(fresh, BRONZE, SILVER)
    chosen = tables(DAILY_SALES)
    with ahead_of(fresh, chosen) as ahead:
        (piece, *_) = ahead.pieces((chosen[0],))
        made = piece.reports[chosen[0]].result()
        edit_a_quantity(fresh, DAY)
        build(fresh, BRONZE, SILVER, first=DAY, last=DAY)
        told_of(fresh, (chosen[0],), ahead)
    assert set(made.published) == set(DAYS)
    assert DAY in stale(fresh, DAILY_SALES)


def test_a_table_that_cannot_be_read_is_said_to_whoever_asks_and_keeps_no_other_from_being_made(fresh):
    log = fresh.lake / SILVER / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text("{ not a log")
    chosen = tables(*DAILY)
    with ahead_of(fresh, chosen) as ahead:
        source = chains(chosen)[0]
        with pytest.raises(TableUnreadable, match="silver/transactions"):
            told_of(fresh, source, ahead)
        assert fresh.materialized(BRONZE) == set()


def test_what_has_not_begun_when_the_block_is_left_is_not_made(fresh):
    chosen, begun = tables(*REFERENCES, *DAILY), threading.Event()
    run = Run(Lake(fresh.lake), LandingZone(fresh.landing))

    def stop_at(table: str, settled: int) -> None:
        if table == BRONZE:
            begun.set()

    with pytest.raises(KeyboardInterrupt), Ahead(chosen, run, stop_at):  # noqa: PT012 - as somebody presses Ctrl-C
        assert begun.wait(60)
        raise KeyboardInterrupt
    assert Lake(fresh.lake).pin(SILVER, tables(SILVER)[0].partition).version is not None  # what had begun is whole
    assert Lake(fresh.lake).pin(DAILY_SALES, tables(DAILY_SALES)[0].partition).version is None
