"""The operations that are interrupted, and what holds after every interruption."""

from __future__ import annotations

import json
import shutil
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from medallion.attempts import records
from medallion.errors import HeldCandidate
from medallion.held import approve
from medallion.lake import Lake
from medallion.outcomes import Report
from medallion.refine import refine
from tests.protocol.counts import MATRIX
from tests.protocol.shop import DAY, DAYS, TABLES, Shop, build, contents, expected, held_by, land, make_run
from tests.protocol.workers import Nursery, Worker

FIRST, SECOND, THIRD, FOURTH, *_ = DAYS
LOADED = {FIRST: [1, 2, -3], SECOND: [4, 5], THIRD: [6], FOURTH: [-7, 8]}


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


def start(workers: Nursery, scenario: Scenario, folder: Path, points: str, **more: Any) -> Worker:
    """Begin a scenario's operation in a process of its own."""
    arguments = {"keys": list(scenario.keys), **scenario.arguments, **more}
    return workers.start(scenario.operation, folder, points=points, **arguments)


def epochs(lake: Path) -> dict[str, dict[str, int]]:
    opened = Lake(lake, durable=False)
    return {path: opened.pin(path, DAY).epochs(DAYS) for path in TABLES}


class Reader(threading.Thread):
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

    def __enter__(self) -> Reader:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self.join()
        if self.error is not None:
            raise self.error
        self.look()


def replay(scenario: Scenario, folder: Path) -> list[str | None]:
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


def check_log(lake: Path) -> None:
    """No version both adds and removes a file: readers may take it either way."""
    for entry in lake.glob("*/*/_delta_log/*.json"):
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        added, removed = ({each[kind]["path"] for each in actions if kind in each} for kind in ("add", "remove"))
        assert not added & removed, f"{entry} adds and removes {added & removed}"


def check_after(name: str, case: Prepared, folder: Path, reader: Reader, where: str) -> list[str | None]:
    """The laws that hold after any interruption of an operation."""
    for path, day, content in reader.seen:
        allowed = (case.old[path].get(day), case.new[path].get(day))
        assert content in allowed, f"{name}, {where}: a reader saw {path} {day} neither old nor new"
    found = replay(case.scenario, folder)
    assert contents(folder / "lake") == case.new, f"{name}, {where}: replay made something else"
    rows = held_by(folder / "lake")
    for path, days in expected(case.scenario.accepted).items():
        assert rows[path] == days, f"{name}, {where}: {path}"
    check_log(folder / "lake")
    stands = epochs(folder / "lake")
    for path in ("bronze/orders", "silver/orders", "gold/totals"):
        assert stands[path] == case.epochs[path], f"{name}, {where}: {path} was committed twice, or not at all"
        assert records(folder / "lake" / path) == [], f"{name}, {where}: {path} keeps the record of a dead attempt"
    for kind in filter(None, found):
        MATRIX.recoveries[kind] += 1
    return found


def prepare(name: str, workers: Nursery, folder: Path) -> Prepared:
    """Build a scenario's lake, and look at what an uninterrupted operation makes of it."""
    scenario = SCENARIOS[name]
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
    worker = start(workers, scenario, whole, f"any=trace({folder / 'points'})")
    assert worker.wait() == 0
    points = Counter((folder / "points").read_text().splitlines())
    return Prepared(scenario, base, old, contents(whole / "lake"), epochs(whole / "lake"), points)
