"""Every operation, killed at every boundary of the path: readers see the old or the new, and replay makes it whole."""

import shutil
from pathlib import Path

import pytest

from medallion.attempts import COMMITTED, INTERRUPTED
from tests.protocol.counts import MATRIX
from tests.protocol.scenarios import FIRST, LOADED, SCENARIOS, Prepared, Reader, check_after, shop, start
from tests.protocol.shop import build, contents, expected, held_by, land, make_run
from tests.protocol.workers import Nursery, until

_BEFORE_COMMIT = {
    "recorded", "transformed", "judged", "staged", "quarantine files written", "quarantine committed",
    "quarantine log synced", "evidence written", "table files written",
}  # fmt: skip


def _interrupt(name: str, case: Prepared, workers: Nursery, folder: Path, at: tuple[str, int]) -> None:
    point, nth = at
    shutil.copytree(case.base, folder)
    with Reader(folder / "lake") as reader:
        status = start(workers, case.scenario, folder, f"{point}:{nth}=kill").wait()
    assert status == -9, f"{name}, {point}:{nth}: {status}"
    MATRIX.interruptions[name, point] += 1
    found = check_after(name, case, folder, reader, f"{point}:{nth}")
    if point in {"table committed", "table log synced"}:
        assert COMMITTED in found, f"{name}, {point}:{nth}: {found}"
    elif point in _BEFORE_COMMIT:
        assert INTERRUPTED in found, f"{name}, {point}:{nth}: {found}"
    elif point in {"pinned", "identified", "acknowledged"}:
        assert set(found) == {None}, f"{name}, {point}:{nth}: {found}"
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", SCENARIOS)
def test_an_operation_killed_at_any_boundary_leaves_old_or_new_and_replay_makes_it_whole(
    name, prepared, workers, tmp_path
):
    case = prepared(name)
    for turn, (point, count) in enumerate(sorted(case.points.items())):
        _interrupt(name, case, workers, tmp_path / f"{turn}", (point, 1 + turn % count))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", SCENARIOS)
def test_an_operation_killed_each_time_it_reaches_a_boundary_leaves_old_or_new(name, prepared, workers, tmp_path):
    case = prepared(name)
    for point, count in sorted(case.points.items()):
        for nth in range(1, count + 1):
            _interrupt(name, case, workers, tmp_path / f"{point}-{nth}", (point, nth))


def _overtake(case: Prepared, workers: Nursery, folder: Path, point: str, nth: int, *, resume: bool) -> None:
    """Pause a correction, put another correction in its place, and let the paused one go on or die."""
    shutil.copytree(case.base, folder)
    go, newer = folder / "go", {FIRST: [21, -22, 23, -24]}
    paused = start(workers, case.scenario, folder, f"{point}:{nth}=pause({go})")
    until((folder / "go.reached").exists)
    land(folder / "landing", FIRST, newer[FIRST])
    build(shop(), [FIRST], make_run(folder / "lake", folder / "landing", run_id="replacement"))
    stands = contents(folder / "lake")
    where = f"overtaken at {point}:{nth}"
    MATRIX.interruptions["overtaken", point] += 1
    if resume:
        go.touch()
        assert paused.wait() == 0
        told = paused.report()
        for path in ("bronze/orders", "silver/orders", "gold/totals"):
            ((outcome, _),) = told[path].values()
            MATRIX.outcomes[outcome] += 1
    else:
        assert paused.kill() == -9
    assert contents(folder / "lake") == stands, f"{where}: what had been overtaken wrote something"
    for report in build(shop(), [FIRST], make_run(folder / "lake", folder / "landing")):
        ((_, outcome),) = report.outcomes.items()
        assert type(outcome).__name__ == "Unchanged", f"{where}: {report.table} {outcome}"
        if outcome.recovery is not None:
            MATRIX.recoveries[outcome.recovery] += 1
    assert contents(folder / "lake") == stands
    rows = held_by(folder / "lake")
    for path, days in expected({**LOADED, **newer}).items():
        assert rows[path][FIRST] == days[FIRST], f"{where}: {path}"
    shutil.rmtree(folder)


@pytest.mark.parametrize("resume", [True, False], ids=["resumed", "killed"])
def test_an_attempt_paused_past_its_replacement_writes_nothing(resume, prepared, workers, tmp_path):
    case = prepared("correction")
    for turn, (point, count) in enumerate(sorted(case.points.items())):
        _overtake(case, workers, tmp_path / f"{turn}", point, 1 + turn % count, resume=resume)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("resume", [True, False], ids=["resumed", "killed"])
def test_an_attempt_paused_anywhere_past_its_replacement_writes_nothing(resume, prepared, workers, tmp_path):
    case = prepared("correction")
    for point, count in sorted(case.points.items()):
        for nth in range(1, count + 1):
            _overtake(case, workers, tmp_path / f"{point}-{nth}", point, nth, resume=resume)
