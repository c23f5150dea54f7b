"""Where the lake and the landing zone are, and how large a slice is, as the environment says.

Without Dagster, so that work can begin before it is imported.
"""

import os

from medallion.errors import ConfigurationError
from medallion.lake import Lake
from medallion.refine import Run
from medallion.sources import LandingZone

DEFAULT_LAKE = "lake"
DEFAULT_LANDING = "landing"


def open_lake(root: str = "", *, durable: bool | None = None) -> Lake:
    """The lake in a folder; in ``MEDALLION_LAKE`` of the environment, or ``lake``, if none is given.

    Raises:
        ConfigurationError: if the folder cannot be used.
    """
    return Lake(root or os.environ.get("MEDALLION_LAKE", DEFAULT_LAKE), durable=durable)


def open_landing(root: str = "") -> LandingZone:
    """The landing zone in a folder; in ``MEDALLION_LANDING`` of the environment, or ``landing``, if none is given.

    Raises:
        ConfigurationError: if the folder is not there.
    """
    return LandingZone(root or os.environ.get("MEDALLION_LANDING", DEFAULT_LANDING))


def slice_bytes(mib: int | None = None) -> int:
    """The bytes of a slice of so many MiB; of ``MEDALLION_SLICE_MIB`` of the environment, or 512, if none is given.

    Raises:
        ConfigurationError: if the environment names no positive number.
    """
    given = str(mib or os.environ.get("MEDALLION_SLICE_MIB") or Run.slice_bytes // 2**20)
    if not given.isdecimal() or int(given) < 1:
        raise ConfigurationError(f"MEDALLION_SLICE_MIB is {given!r}, and has to be a positive number of MiB.")
    return int(given) * 2**20
