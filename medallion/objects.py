"""S3-compatible object stores: the words of ``pathlib`` that the engine uses, said to a bucket.

The library is obstore, over the same Rust object_store as deltalake and polars. Credentials come from the environment
alone: each of the three reads them there itself, so that none is ever handed on, kept or printed by the engine.

An object is written by one PUT, which is whole or nothing, and lasts when it has been answered. There are no folders,
and nothing can be renamed.
"""

from __future__ import annotations

import datetime as dt
import fnmatch
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from medallion.errors import ConfigurationError

if TYPE_CHECKING:
    from obstore.store import S3Store

__all__ = [
    "VARIABLES",
    "Looked",
    "ObjectPath",
    "check_answers",
    "conceal",
    "is_address",
    "open_address",
    "options_for_scans",
    "options_for_tables",
]

_SCHEME = "s3://"
_SECRETS = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID")
VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_ALLOW_HTTP")
"""What says how a store is reached. A session token counts too, if there is one."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

_RETRIES = 3
_SECONDS = 15
"""The libraries' own patience is ten tries and three minutes for each request, in which a wrong endpoint looks like a
slow one. A partition that fails here is replayed by whoever runs the pipeline."""


def is_address(root: str) -> bool:
    """Whether a setting names an object store and not a folder."""
    return "://" in root


def conceal(text: str) -> str:
    """A message without the credentials, should one ever be quoted in it, and without colours for a terminal."""
    text = _COLOUR.sub("", text)
    for name in _SECRETS:
        value = os.environ.get(name, "")
        text = text.replace(value, f"<{name}>") if len(value) > 3 else text
    return text


def options_for_tables() -> dict[str, str]:
    """For deltalake: its patience, nothing else."""
    return {"max_retries": str(_RETRIES), "retry_timeout": f"{_SECONDS}s"}


def options_for_scans() -> Mapping[str, Any]:
    """For polars: its patience, and to look for credentials in the environment only."""
    return {"storage_options": {"max_retries": _RETRIES}, "credential_provider": None}


@dataclass(frozen=True)
class Looked:
    """What the store tells of an object, under the names of ``os.stat_result``.

    Attributes:
        st_ino: differs between two objects that were put under one name, if their bytes do.
    """

    st_size: int
    st_mtime_ns: int
    st_ino: int

    @property
    def st_mtime(self) -> float:
        """Seconds since 1970, by the clock of the store."""
        return self.st_mtime_ns / 1e9


def _looked(meta: Mapping[str, Any]) -> Looked:
    stamp = meta["last_modified"].timestamp()
    return Looked(meta["size"], int(stamp * 1e9), int.from_bytes((meta.get("e_tag") or "").encode(), "big"))


@dataclass(frozen=True)
class ObjectPath:
    """A name in a bucket; it stands for an object, or for all that is below it, as a folder.

    What was listed is remembered as it was then.
    """

    bucket: str
    key: str
    store: S3Store = field(repr=False, compare=False)
    _known: Looked | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return f"{_SCHEME}{self.bucket}/{self.key}" if self.key else f"{_SCHEME}{self.bucket}"

    def __truediv__(self, name: str | PurePosixPath) -> ObjectPath:
        return ObjectPath(self.bucket, f"{self.key}/{name}".strip("/"), self.store)

    @property
    def name(self) -> str:
        """The last part."""
        return PurePosixPath(self.key).name

    @property
    def stem(self) -> str:
        """The last part without its ending."""
        return PurePosixPath(self.key).stem

    @property
    def suffix(self) -> str:
        """The ending of the last part."""
        return PurePosixPath(self.key).suffix

    @property
    def parent(self) -> ObjectPath:
        """What it lies in."""
        return ObjectPath(self.bucket, self.key.rpartition("/")[0], self.store)

    def relative_to(self, other: object) -> PurePosixPath:
        """The name below another place."""
        assert isinstance(other, ObjectPath)
        return PurePosixPath(self.key).relative_to(other.key or ".")

    def write_bytes(self, data: bytes) -> int:
        """Put an object; what stood there is replaced in one step."""
        with _told(self):
            self.store.put(self.key, data, use_multipart=False)
        return len(data)

    def create_bytes(self, data: bytes) -> None:
        """Put an object where none stands.

        Raises:
            FileExistsError: if one does.
        """
        with _told(self):
            self.store.put(self.key, data, use_multipart=False, mode="create")

    def read_bytes(self) -> bytes:
        """The bytes.

        Raises:
            FileNotFoundError: if there is no such object.
        """
        with _told(self):
            return bytes(self.store.get(self.key).bytes())

    def read_text(self, encoding: str = "utf-8") -> str:
        """The text."""
        return self.read_bytes().decode(encoding)

    def stat(self) -> Looked:
        """Size and time.

        Raises:
            FileNotFoundError: if there is no such object.
        """
        if self._known is not None:
            return self._known
        with _told(self):
            return _looked(self.store.head(self.key))

    def is_file(self) -> bool:
        """Whether there is an object of this name."""
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    def is_dir(self) -> bool:
        """Whether there is anything below this name."""
        with _told(self):
            first = next(iter(self.store.list(self._prefix, chunk_size=1)), None)
        return bool(first)

    def exists(self) -> bool:
        """Whether there is an object of this name, or anything below it."""
        return self.is_file() or self.is_dir()

    def unlink(self, *, missing_ok: bool = False) -> None:
        """Delete the object. The store does not say whether there was one."""
        with _told(self), suppress(FileNotFoundError):
            self.store.delete(self.key)

    def mkdir(self, mode: int = 0o777, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Folders are not made: a name is enough."""

    def folders(self) -> list[ObjectPath]:
        """The names that lie directly below this one and have something below them."""
        with _told(self):
            found = self.store.list_with_delimiter(self.key or None)["common_prefixes"]
        return [ObjectPath(self.bucket, prefix.strip("/"), self.store) for prefix in found]

    def glob(self, pattern: str) -> Iterator[ObjectPath]:
        """The objects directly below, by a pattern for their names."""
        with _told(self):
            found = self.store.list_with_delimiter(self.key or None)["objects"]
        yield from self._below(found, pattern)

    def iterdir(self) -> Iterator[ObjectPath]:
        """The objects directly below."""
        return self.glob("*")

    def rglob(self, pattern: str) -> Iterator[ObjectPath]:
        """All objects below, by a pattern for their names."""
        with _told(self):
            found = [meta for some in self.store.list(self._prefix) for meta in some]
        yield from self._below(found, pattern)

    @property
    def _prefix(self) -> str | None:
        return f"{self.key}/" if self.key else None

    def _below(self, found: Iterable[Mapping[str, Any]], pattern: str) -> Iterator[ObjectPath]:
        for meta in found:
            # Some stores list an empty object in the place of a folder; the engine writes none that is empty.
            if meta["size"] and fnmatch.fnmatchcase(PurePosixPath(meta["path"]).name, pattern):
                yield ObjectPath(self.bucket, meta["path"], self.store, _looked(meta))


@contextmanager
def _told(place: ObjectPath) -> Iterator[None]:
    """Raise what the library raises as the ``OSError`` that a disk would raise, without credentials."""
    from obstore.exceptions import AlreadyExistsError, BaseError  # noqa: PLC0415 - only where there is an object store

    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(2, "there is no such object", str(place)) from error
    except AlreadyExistsError as error:
        raise FileExistsError(17, "there is such an object", str(place)) from error
    except (BaseError, OSError) as error:
        raise OSError(5, _shown(error), str(place)) from None


def _shown(error: BaseException) -> str:
    """The first sentence of an error: what follows in the library's is its inner structure, or the server's markup."""
    return conceal(" ".join(str(error).partition("Debug source")[0].partition("<?xml")[0].split())).rstrip(" :")


def open_address(root: str) -> ObjectPath:
    """The place that an address names, after a look at whether it can be reached.

    Raises:
        ConfigurationError: if it is no address, the library is missing, or the store refuses or does not answer.
    """
    bucket, _, prefix = root.removeprefix(_SCHEME).partition("/")
    if not root.startswith(_SCHEME) or not bucket:
        raise ConfigurationError(f"{root!r} names no lake: write a folder, or s3://bucket/prefix.")
    missing = [name for name in VARIABLES[:2] if not os.environ.get(name)]
    if missing:
        raise _unusable(root, f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set")
    try:
        from obstore.store import S3Store  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        raise ConfigurationError(
            f"the lake {root} lies in an object store, which needs the extra: pip install 'medallion[s3]'."
        ) from error
    settled = ObjectPath(bucket, prefix.strip("/"), S3Store(bucket, **_patience()))
    check_answers(settled)
    return settled


def check_answers(root: ObjectPath, refusal: OSError | None = None) -> None:
    """Ask the store for something, unless it has refused something already.

    Raises:
        ConfigurationError: if it refuses or does not answer.
    """
    try:
        root.is_dir()
        if refusal is not None:
            raise OSError(5, _shown(refusal))
    except OSError as error:
        raise _unusable(str(root), error.strerror or "it does not answer") from None


def _patience() -> dict[str, Any]:
    return {
        "retry_config": {
            "max_retries": _RETRIES,
            "retry_timeout": dt.timedelta(seconds=_SECONDS),
            "backoff": {
                "init_backoff": dt.timedelta(milliseconds=50),
                "max_backoff": dt.timedelta(seconds=2),
                "base": 2,
            },
        }
    }


def _unusable(root: str, reason: str) -> ConfigurationError:
    first, *rest = VARIABLES
    return ConfigurationError(
        f"the lake {root} cannot be opened: {reason}. Set {first}, {', '.join(rest[:-1])} "
        f"and {rest[-1]} in the environment as the store wants them (the endpoint and AWS_ALLOW_HTTP=true only for one "
        "that is not AWS's own), and see that the bucket is there."
    )
