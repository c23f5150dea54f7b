"""Every operation, killed at every boundary of the path: readers see the old or the new, and replay makes it whole."""

import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from medallion.attempts import COMMITTED, INTERRUPTED, SUPERSEDED, records
from medallion.errors import HeldCandidate
from medallion.held import approve
from medallion.lake import Lake
from medallion.outcomes import Report
from medallion.refine import refine
from tests.protocol.conftest import MATRIX
from tests.protocol.shop import DAY, DAYS, TABLES, Shop, build, contents, expected, held_by, land, make_run
from tests.protocol.workers import Nursery, nursery, until

FIRST, SECOND, THIRD, FOURTH, FIFTH, _ = DAYS
LOADED = {FIRST: [1, 2, -3], SECOND: [4, 5], THIRD: [6], FOURTH: [-7, 8]}
_BEFORE_COMMIT = {
    "recorded", "identified", "transformed", "judged", "staged", "quarantine files written", "quarantine committed",
    "quarantine log synced", "evidence written", "table files written",
}  # fmt: skip


@dataclass(frozen=True)
class Scenario:
    """An operation on a lake: what is delivered before it and for it, and what must be accepted when it is through."""

    operation: str
    before: Mapping[str, list[int]]
    delivered: Mapping[str, list[int]]
    keys: tuple[str, ...]
    accepted: Mapping[str, list[int]]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    blocked_before: Mapping[str, list[int]] = field(default_factory=dict)


_LOADED_TWO = {FIRST: LOADED[FIRST], SECOND: LOADED[SECOND]}
_CORRECTION = {FIRST: [1, -2, 9]}
_RANGE = {FIRST: [10, -1], SECOND: [-11, 12], THIRD: [13, -14], FOURTH: [15]}
_BAD = {SECOND: [5000, 1]}

SCENARIOS = {
    "first load": Scenario("build", {}, _LOADED_TWO, (FIRST, SECOND), _LOADED_TWO),
    "replay": Scenario("build", _LOADED_TWO, {}, (FIRST, SECOND), _LOADED_TWO),
    "correction": Scenario("build", _LOADED_TWO, _CORRECTION, (FIRST,), {**_LOADED_TWO, **_CORRECTION}),
    "range of slices": Scenario("build", LOADED, _RANGE, DAYS[:4], _RANGE, {"slice_bytes": 1}),
    "blocked partition": Scenario("build", _LOADED_TWO, _BAD, (SECOND,), _LOADED_TWO),
    "approval": Scenario("approve", _LOADED_TWO, {}, (SECOND,), {**_LOADED_TWO, **_BAD}, {}, _BAD),
}


@dataclass
class Prepared:
    """A scenario's lake before the operation, and what is true of it after an uninterrupted one."""

    scenario: Scenario
    base: Path
    old: dict[str, dict[str, str | None]]
    new: dict[str, dict[str, str | None]]
    epochs: dict[str, dict[str, int]]
    points: Counter[str]


@cache
def shop() -> Shop:
    return Shop()


@pytest.fixture(scope="module")
def workers() -> Iterator[Nursery]:
    with nursery() as opened:
        yield opened


@pytest.fixture(scope="module")
def prepared(workers: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Prepared]:
    @cache
    def prepare(name: str) -> Prepared:
        scenario, folder = SCENARIOS[name], tmp_path_factory.mktemp("base")
        base, whole = folder / "base", folder / "whole"
        (base / "landing").mkdir(parents=True)
        for deliveries in (scenario.before, scenario.blocked_before):
            for day, quantities in deliveries.items():
                land(base / "landing", day, quantities)
            if deliveries:
                build(shop(), list(deliveries), make_run(base / "lake", base / "landing"))
        old = contents(base / "lake") if scenario.before else {path: {} for path in TABLES}
        for day, quantities in scenario.delivered.items():
            land(base / "landing", day, quantities)
        shutil.copytree(base, whole)
        worker = _start(workers, scenario, whole, f"any=trace({folder / 'points'})")
        assert worker.wait() == 0
        points = Counter((folder / "points").read_text().splitlines())
        return Prepared(scenario, base, old, contents(whole / "lake"), _epochs(whole / "lake"), points)

    return prepare


def _start(workers: Nursery, scenario: Scenario, folder: Path, points: str) -> Any:
    return workers.start(scenario.operation, folder, points=points, keys=list(scenario.keys), **scenario.arguments)


def _epochs(lake: Path) -> dict[str, dict[str, int]]:
    opened = Lake(lake, durable=False)
    return {path: opened.pin(path, DAY).epochs(DAYS) for path in TABLES}


class _Reader(threading.Thread):
    """Somebody who reads all the time."""

    def __init__(self, lake: Path) -> None:
        super().__init__(daemon=True)
        self._lake, self._ended = Lake(lake, durable=False), threading.Event()
        self.seen: set[tuple[str, str, str | None]] = set()
        self.error: BaseException | None = None

    def look(self) -> None:
        for path in TABLES:
            snapshot = self._lake.pin(path, DAY)
            assert all(len(files) == 1 for files in snapshot.files.values()), f"{path}: a partition is there twice"
            self.seen |= {(path, day, snapshot.content(day)) for day in DAYS}
            snapshot.scan(list(snapshot.files), []).collect()

    def run(self) -> None:
        try:
            while not self._ended.is_set():
                self.look()
        except BaseException as error:  # noqa: BLE001 - raised again where the reader is let go
            self.error = error

    def __enter__(self) -> "_Reader":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self.join()
        if self.error is not None:
            raise self.error
        self.look()


def _replay(scenario: Scenario, folder: Path) -> list[str | None]:
    """Do the operation again, to its end; what it says was recovered."""
    run = make_run(folder / "lake", folder / "landing")
    found: list[str | None] = []
    reports: list[Report]
    if scenario.operation == "approve":
        for key in scenario.keys:
            try:
                found.append(approve(shop().orders, key, run, reason="checked by hand").recovery)
            except HeldCandidate:  # it had been approved, to the end
                found += [each.recovery for each in refine(shop().orders, [key], run).outcomes.values()]
        reports = [refine(shop().totals, scenario.keys, run)]
    else:
        reports = build(shop(), scenario.keys, run)
    return found + [each.recovery for report in reports for each in report.outcomes.values()]


def _check_after(name: str, case: Prepared, folder: Path, reader: _Reader, where: str) -> list[str | None]:
    """The laws that hold after any interruption of an operation."""
    for path, day, content in reader.seen:
        allowed = (case.old[path].get(day), case.new[path].get(day))
        assert content in allowed, f"{name}, {where}: a reader saw {path} {day} neither old nor new"
    found = _replay(case.scenario, folder)
    assert contents(folder / "lake") == case.new, f"{name}, {where}: replay made something else"
    rows = held_by(folder / "lake")
    for path, days in expected(case.scenario.accepted).items():
        assert rows[path] == days, f"{name}, {where}: {path}"
    epochs = _epochs(folder / "lake")
    for path in ("bronze/orders", "silver/orders", "gold/totals"):
        assert epochs[path] == case.epochs[path], f"{name}, {where}: {path} was committed twice, or not at all"
        assert records(folder / "lake" / path) == [], f"{name}, {where}: {path} keeps the record of a dead attempt"
    for kind in filter(None, found):
        MATRIX.recoveries[kind] += 1
    return found


def _interrupt(name: str, case: Prepared, workers: Nursery, folder: Path, at: tuple[str, int]) -> None:
    point, nth = at
    shutil.copytree(case.base, folder)
    with _Reader(folder / "lake") as reader:
        status = _start(workers, case.scenario, folder, f"{point}:{nth}=kill").wait()
    assert status == -9, f"{name}, {point}:{nth}: {status}"
    MATRIX.interruptions[name, point] += 1
    found = _check_after(name, case, folder, reader, f"{point}:{nth}")
    if point in {"table committed", "table log synced"}:
        assert COMMITTED in found, f"{name}, {point}:{nth}: {found}"
    elif point in _BEFORE_COMMIT:
        assert INTERRUPTED in found, f"{name}, {point}:{nth}: {found}"
    elif point in {"pinned", "acknowledged"}:
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
    paused = _start(workers, case.scenario, folder, f"{point}:{nth}=pause({go})")
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
@pytest.mark.parametrize("resume", [True, False], ids=["resumed", "killed"])
def test_an_attempt_paused_anywhere_past_its_replacement_writes_nothing(resume, prepared, workers, tmp_path):
    case = prepared("correction")
    for point, count in sorted(case.points.items()):
        for nth in range(1, count + 1):
            _overtake(case, workers, tmp_path / f"{point}-{nth}", point, nth, resume=resume)


def test_every_kind_of_recovery_was_reached_and_at_least_sixty_interruptions_were_made():
    assert MATRIX.recoveries.keys() == {COMMITTED, INTERRUPTED, SUPERSEDED}, MATRIX.recoveries
    assert MATRIX.total >= 60
