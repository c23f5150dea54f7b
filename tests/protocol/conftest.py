"""What the tests of the commit protocol share."""

from collections.abc import Callable, Iterator
from functools import cache

import pytest

from tests.protocol.scenarios import Prepared, prepare
from tests.protocol.workers import Nursery, nursery


@pytest.fixture(scope="session")
def workers() -> Iterator[Nursery]:
    """A nursery of real processes."""
    with nursery() as opened:
        yield opened


@pytest.fixture(scope="session")
def prepared(workers: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Prepared]:
    """Gives a scenario's lake by name; each is built once."""
    return cache(lambda name: prepare(name, workers, tmp_path_factory.mktemp("base")))
