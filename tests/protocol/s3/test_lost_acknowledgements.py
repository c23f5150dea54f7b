"""The store does what it is asked and its answer is lost, at every PUT of a commit."""

import itertools
from functools import partial
from pathlib import Path

import pytest

from medallion import ledger
from medallion.attempts import COMMITTED, records
from medallion.inspection import inspect
from medallion.lake import Lake
from medallion.outcomes import Committed, Outcome, Unchanged
from medallion.refine import Run, refine
from tests.protocol.s3.counts import LOST
from tests.protocol.s3.server import Proxy
from tests.protocol.shop import DAY, DAYS, TABLES, Shop, build, contents, expected, held_by, land, make_run

FIRST = DAYS[0]
LOADED, CORRECTED = [1, 2, -3], [4, -5]
OWNER = {"quarantine/orders": "silver/orders"}
"""By whose attempts a table is written, where that is not its own."""


def _kind(path: str) -> str:
    """What a PUT is, told from the name of the object."""
    for part, kind in (("_sources/", "source bytes"), ("_attempts/", "attempt record"), ("_evidence/", "evidence")):
        if part in path:
            return kind
    layer = "quarantine" if "/quarantine/" in path else "ledger" if f"/{ledger.PATH}/" in path else "table"
    if "_delta_log/" not in path:
        return f"{layer} data file"
    return f"{layer} made" if path.endswith(f"{0:020}.json") else f"{layer} log entry"


def _is_nth(number: int, count: int, path: str) -> bool:
    return count == number


def _table(path: str) -> str:
    return "/".join(path.split("/")[3:5])


def _told(outcome: Outcome) -> str:
    return f"{type(outcome).__name__}{f', {outcome.recovery}' if outcome.recovery else ''}"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, dict[str, str | None]]]:
    """What the tables hold after a first load, and after a correction, on a local lake that nothing has happened to."""
    folder = tmp_path_factory.mktemp("whole")
    found = {}
    for name, quantities in (("load", LOADED), ("correction", CORRECTED)):
        land(folder / "landing", FIRST, quantities)
        build(Shop(), [FIRST], make_run(folder / "lake", folder / "landing"))
        found[name] = contents(folder / "lake")
    return found


def _check(lake: str, want: dict[str, dict[str, str | None]], quantities: list[int], epoch: int) -> None:
    rows = held_by(lake)
    assert {path: rows[path] for path in expected({FIRST: quantities})} == expected({FIRST: quantities})
    opened = Lake(lake)
    for path in TABLES:
        stands = opened.pin(path, DAY)
        assert {day: stands.content(day) for day in stands.files} == want[path]
        assert stands.epoch(FIRST) == epoch, f"{path} was committed twice, or not at all"
        assert records(opened.root / path) == []


def test_a_lost_acknowledgement_of_any_put_of_a_first_load_has_no_second_effect_and_a_commits_is_recorded(
    lossy: str, proxy: Proxy, tmp_path: Path, uninterrupted
):
    land(tmp_path / "landing", FIRST, LOADED)
    shop, recovered = Shop(), set()
    for number in itertools.count(1):
        lake = f"{lossy}-{number}"
        proxy.reset(partial(_is_nth, number))
        attempt = {
            report.table: report.outcomes[FIRST]
            for report in build(shop, [FIRST], make_run(lake, tmp_path / "landing"))
        }
        lost = [put for put in proxy.puts if put.dropped]
        proxy.reset()
        if not lost:
            break
        (path,) = {put.path for put in lost}
        kind, table = _kind(path), OWNER.get(_table(path), _table(path))
        assert all(isinstance(outcome, Committed) for outcome in attempt.values()), path
        replay = build(shop, [FIRST], make_run(lake, tmp_path / "landing"))
        assert all(isinstance(report.outcomes[FIRST], Unchanged) for report in replay), path
        _check(lake, uninterrupted["load"], LOADED, 1)
        assert ledger.read(Lake(lake), {"committed"}).height == 3, path
        if table == ledger.PATH:
            assert [outcome.recovery for outcome in attempt.values()] == [None] * 3
            LOST[kind, "Committed", "found to be there" if "data" not in kind else "put again"] += 1
            continue
        noted = [each["was"] for each in inspect(Lake(lake), table, FIRST, partition=DAY)["recoveries"]]
        if kind.endswith("log entry"):
            assert attempt[table].recovery == COMMITTED
            assert noted == [COMMITTED]
            recovered.add(_table(path))
        else:
            assert [outcome.recovery for outcome in attempt.values()] == [None] * 3
            assert noted == []
        how = "recorded as recovered" if noted else "found to be there" if kind.endswith("made") else "put again"
        LOST[kind, _told(attempt[table]), how] += 1
    assert number > 18
    assert recovered == set(TABLES)


def test_acknowledgements_that_stay_lost_fail_the_attempt_or_are_found_in_the_log_and_replay_makes_it_whole(
    lossy: str, proxy: Proxy, tmp_path: Path, uninterrupted
):
    kinds = set()
    for number in itertools.count(1):
        lake, run = _loaded_and_delivered_anew(f"{lossy}-{number}", tmp_path)
        struck: list[str] = []

        def loses(count: int, path: str, number: int = number, struck: list[str] = struck) -> bool:
            struck += [path] if count == number else []
            return path in struck

        proxy.reset(loses)
        outcome = refine(Shop().orders, [FIRST], run).outcomes[FIRST]
        proxy.reset()
        if not struck:
            break
        kind = _kind(struck[0])
        committed = kind.endswith("log entry")
        told = kind.startswith("ledger")  # whatever becomes of that, the commit stands
        assert isinstance(outcome, Committed) == (committed or told), (kind, outcome)
        assert (outcome.recovery == COMMITTED) == (committed and not told)
        replay = build(Shop(), [FIRST], make_run(lake, tmp_path / "landing"))
        assert all(isinstance(report.outcomes[FIRST], Committed | Unchanged) for report in replay)
        opened = Lake(lake)
        assert opened.pin("silver/orders", DAY).epoch(FIRST) == 2
        assert contents(lake) == uninterrupted["correction"]
        assert held_by(lake)["silver/orders"] == expected({FIRST: CORRECTED})["silver/orders"]
        kinds.add(kind)
        LOST[
            f"{kind}, for good", _told(outcome), "recorded as recovered" if committed and not told else "replayed"
        ] += 1
    assert kinds == {
        "attempt record", "evidence", "table data file", "table log entry", "quarantine data file",
        "quarantine log entry", "ledger data file", "ledger log entry",
    }  # fmt: skip


def _loaded_and_delivered_anew(lake: str, folder: Path) -> tuple[str, Run]:
    """A lake with a first load, whose source has been delivered again and is in bronze already."""
    land(folder / "landing", FIRST, LOADED)
    build(Shop(), [FIRST], make_run(lake, folder / "landing"))
    land(folder / "landing", FIRST, CORRECTED)
    run = make_run(lake, folder / "landing")
    refine(Shop().raw, [FIRST], run)
    return lake, run
