"""What tests of every room share."""

from pathlib import Path

import pytest

from resources import retail


@pytest.fixture(scope="session")
def retail_landing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The landing zone of the whole retail year, built once; to read only."""
    landing = tmp_path_factory.mktemp("retail") / "landing"
    retail.build(landing)
    return landing
