"""Whether the interruptions of this session reached everything. Named to be collected last."""

import pytest

from medallion.attempts import COMMITTED, INTERRUPTED, SUPERSEDED
from tests.protocol.counts import MATRIX


def _needs(total: int) -> None:
    if MATRIX.total == 0:
        pytest.skip("no operation was interrupted in this session")
    assert MATRIX.total >= total


def test_every_kind_of_recovery_was_reached_by_at_least_sixty_interruptions():
    _needs(60)
    assert MATRIX.recoveries.keys() == {COMMITTED, INTERRUPTED, SUPERSEDED}, MATRIX.recoveries
    assert MATRIX.outcomes["Superseded"] > 0


@pytest.mark.slow
def test_at_least_five_hundred_interruptions_were_made():
    _needs(500)
