"""Anything, in any order: every table stays a pure function of the source files that were accepted."""

import shutil
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from medallion.errors import HeldCandidate, RevisionRefused
from medallion.evidence import EvidenceReader, read_held
from medallion.failpoints import POINTS, Interrupted, armed
from medallion.held import approve, discard
from medallion.lake import Lake
from medallion.refine import Run, refine
from medallion.strays import find_strays, remove_strays
from tests.protocol.scenarios import check_log
from tests.protocol.shop import DAY, DAYS, TABLES, Shop, build, expected, held_by, land, make_run
from tests.protocol.workers import until

SOME = DAYS[:3]
SHOPS = {revision: Shop(revision) for revision in (1, 2)}
_NEVER = {"pinned", "identified", "dagster told"}
_INTERRUPTIBLE = [point for point in POINTS if point not in _NEVER and not point.startswith("restore ")]

Rows = list[tuple[Any, ...]]


def _told_by(quantities: Sequence[int]) -> dict[str, Rows]:
    """What the tables hold for a delivery, by table."""
    return {table: days.get("x", []) for table, days in expected({"x": quantities}).items()}


def _is_bad(quantities: Sequence[int]) -> bool:
    return max(quantities) >= 1000


@dataclass
class _Zombie:
    """An attempt that was paused somewhere, in a thread of its own."""

    thread: threading.Thread
    go: Path
    table: str
    days: list[str]
    epochs: dict[str, int]
    """As they stood when it was paused; what it had committed by then is its own."""
    errors: list[BaseException]


class Protocol(RuleBasedStateMachine):
    """A lake of three days, several writers, and whatever happens to them."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="protocol-"))
        self.lake = self.folder / "lake"
        self.numbers = count(1)
        self.delivered: dict[str, list[list[int]]] = {day: [] for day in SOME}
        self.unsettled: set[str] = set()
        self.zombies: list[_Zombie] = []
        for day in SOME:
            self._land(day, [3, -1])

    def teardown(self) -> None:
        for zombie in list(self.zombies):
            self._resume(zombie)
        shutil.rmtree(self.folder, ignore_errors=True)

    # What happens.

    @rule(day=st.sampled_from(SOME), more=st.lists(st.sampled_from([-5, 2, 7]), max_size=2), bad=st.booleans())
    def land(self, day, more, bad):
        self._land(day, [*more, *([5000] if bad and len(more) == 1 else [])])

    @rule(days=st.sets(st.sampled_from(SOME), min_size=1), small=st.booleans(), revision=st.sampled_from([1, 1, 1, 2]))
    def replay(self, days, small, revision):
        self._settle(sorted(days), self._run(slice_bytes=1 if small else 2**29), revision)

    @rule(day=st.sampled_from(SOME))
    def downgrade(self, day):
        self._settle([day], self._run(downgrade="to see what happens"), 1)

    @rule(days=st.sets(st.sampled_from(SOME), min_size=1), at=st.sampled_from(_INTERRUPTIBLE), nth=st.integers(1, 3))
    def crash(self, days, at, nth):
        with armed(f"{at}:{nth}=raise"), suppress(Interrupted):
            build(SHOPS[2], sorted(days), self._run(slice_bytes=1))
        self.unsettled |= days

    @precondition(lambda self: len(self.zombies) < 2)
    @rule(
        which=st.integers(0, 2),
        days=st.sets(st.sampled_from(SOME), min_size=1),
        at=st.sampled_from(_INTERRUPTIBLE),
        nth=st.integers(1, 2),
    )
    def pause(self, which, days, at, nth):
        table = SHOPS[2].tables[which]
        go = self.folder / f"go-{next(self.numbers)}"
        errors: list[BaseException] = []

        def work() -> None:
            try:
                refine(table, sorted(days), self._run(slice_bytes=1))
            except BaseException as error:  # noqa: BLE001 - looked at when the thread is joined
                errors.append(error)

        thread = threading.Thread(target=work, daemon=True)
        with armed(f"{at}:{nth}=pause({go})"):
            thread.start()
            until(lambda: go.with_name(f"{go.name}.reached").exists() or not thread.is_alive())
        self.zombies.append(_Zombie(thread, go, table.path, sorted(days), self._epochs()[table.path], errors))
        self.unsettled |= days

    @precondition(lambda self: self.zombies)
    @rule(which=st.integers(0, 1))
    def resume(self, which):
        zombie = self.zombies[which % len(self.zombies)]
        now, before = self._epochs()[zombie.table], held_by(self.lake)[zombie.table]
        self._resume(zombie)
        after = held_by(self.lake)[zombie.table]
        for day in zombie.days:
            if now[day] > zombie.epochs[day]:
                assert after.get(day) == before.get(day), f"{zombie.table} {day} was overtaken"

    @rule(days=st.sets(st.sampled_from(SOME), min_size=1), others=st.sets(st.sampled_from(SOME), min_size=1))
    def two_writers_at_once(self, days, others):
        errors: list[BaseException] = []

        def work() -> None:
            try:
                build(SHOPS[2], sorted(others), self._run())
            except BaseException as error:  # noqa: BLE001 - looked at when the thread is joined
                errors.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        build(SHOPS[2], sorted(days), self._run())
        thread.join()
        assert not errors, errors
        self._settle(sorted(days | others), self._run(), 2)

    @rule(day=st.sampled_from(SOME))
    def approve(self, day):
        held = read_held(self.lake / "silver/orders", day)
        before = held_by(self.lake)
        shop = SHOPS[held.revision if held is not None else 1]
        try:
            approve(shop.orders, day, self._run(), reason="to see what happens")
        except (HeldCandidate, RevisionRefused):
            assert held_by(self.lake)["silver/orders"] == before["silver/orders"]
            return
        assert held is not None
        assert Lake(self.lake).pin("silver/orders", DAY).content(day) == held.content
        refine(shop.totals, [day], self._run())

    @rule(day=st.sampled_from(SOME))
    def discard(self, day):
        before = held_by(self.lake)
        with suppress(HeldCandidate):
            discard(SHOPS[1].orders, day, self._run())
        assert held_by(self.lake) == before

    @rule()
    def clean(self):
        before, lake = held_by(self.lake), Lake(self.lake)
        remove_strays(lake, find_strays(lake, older_than=0), older_than=0)
        assert held_by(self.lake) == before

    # What is always true.

    @invariant()
    def every_table_is_a_function_of_delivered_files(self):
        for table, days in held_by(self.lake).items():
            for day, rows in days.items():
                if table != "bronze/orders":
                    assert rows in self._possible(table, day), f"{table} {day} holds {rows}"

    @invariant()
    def the_quarantine_tells_of_the_live_batch_where_nothing_was_interrupted(self):
        lake = Lake(self.lake)
        silver, quarantine = lake.pin("silver/orders", DAY), lake.pin("quarantine/orders", DAY)
        evidence_of = EvidenceReader(silver.folder)
        for day in set(silver.files) - self.unsettled:
            evidence = evidence_of(silver.batch_id(day) or "")
            assert evidence is not None
            wanted = evidence.batch_id if evidence.verdict.quarantined else None
            assert quarantine.batch_id(day) == wanted, f"the quarantine of {day} tells of another batch"

    @invariant()
    def no_version_adds_and_removes_the_same_file(self):
        check_log(self.lake)

    # How it is done.

    def _land(self, day: str, more: Sequence[int]) -> None:
        quantities = [100 + next(self.numbers), *more]  # the first number names the delivery
        self.delivered[day].append(quantities)
        land(self.folder / "landing", day, quantities)

    def _run(self, **more: Any) -> Run:
        return make_run(self.lake, self.folder / "landing", **more)

    def _epochs(self) -> dict[str, dict[str, int]]:
        lake = Lake(self.lake)
        return {table: lake.pin(table, DAY).epochs(SOME) for table in TABLES}

    def _possible(self, table: str, day: str) -> list[Rows]:
        return [_told_by(quantities)[table] for quantities in self.delivered[day]]

    def _resume(self, zombie: _Zombie) -> None:
        zombie.go.touch()
        zombie.thread.join(30)
        assert not zombie.thread.is_alive()
        assert not zombie.errors, zombie.errors
        self.zombies.remove(zombie)

    def _live_revision(self, day: str) -> int:
        silver = Lake(self.lake).pin("silver/orders", DAY)
        batch_id = silver.batch_id(day)
        evidence = EvidenceReader(silver.folder)(batch_id) if batch_id else None
        return evidence.revision if evidence else 0

    def _settle(self, days: list[str], run: Run, revision: int) -> None:
        """Replay to the end, with nobody in the way: now each table holds exactly what it must."""
        before = held_by(self.lake)
        live = {day: self._live_revision(day) for day in days}
        build(SHOPS[revision], days, run)
        after = held_by(self.lake)
        for day in days:
            want = _told_by(self.delivered[day][-1])
            refused = live[day] > revision and run.downgrade is None
            stays = refused or _is_bad(self.delivered[day][-1])
            silver = after["silver/orders"].get(day)
            assert silver in ([before["silver/orders"].get(day)] if stays else [want["silver/orders"]]), day
            for quantities in self.delivered[day]:
                if _told_by(quantities)["silver/orders"] == silver:
                    told = _told_by(quantities)
                    assert after["quarantine/orders"].get(day, []) == told["quarantine/orders"], day
                    assert after["gold/totals"].get(day, []) == told["gold/totals"], day
        if not self.zombies:
            self.unsettled -= set(days)


def _check(machine: type[Protocol], examples: int, steps: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_whatever_happens_every_table_is_a_function_of_the_accepted_files():
    _check(Protocol, examples=8, steps=12)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_whatever_happens_for_longer_every_table_is_a_function_of_the_accepted_files():
    _check(Protocol, examples=60, steps=25)
