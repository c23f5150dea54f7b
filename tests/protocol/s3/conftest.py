"""The store, the proxy before it, and the table of lost acknowledgements that is printed at the end."""

import uuid
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.protocol.s3.counts import LOST
from tests.protocol.s3.server import Proxy, environment, seaweed


@pytest.fixture(scope="session")
def store_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The S3 port of a SeaweedFS of this session; an error that says what to install if there is none."""
    with seaweed(tmp_path_factory.mktemp("seaweed")) as port:
        yield port


@pytest.fixture(scope="session")
def proxy(store_port: int) -> Iterator[Proxy]:
    """A proxy that can lose acknowledgements."""
    opened = Proxy(store_port)
    yield opened
    opened.close()


@pytest.fixture
def bucket(store_port: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of an empty lake, with the environment that reaches it."""
    for name, value in environment(store_port).items():
        monkeypatch.setenv(name, value)
    return f"s3://lakes/{uuid.uuid4().hex}"


@pytest.fixture
def lossy(bucket: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same, reached through the proxy."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
    proxy.reset()
    return bucket


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not LOST:
        return
    terminalreporter.section(f"{LOST.total()} lost acknowledgements")
    width = max(len(what) for what, _, _ in LOST) + 2
    terminalreporter.write_line("PUT of".ljust(width) + "the attempt said".ljust(46) + "times")
    for (what, told, _), times in sorted(LOST.items()):
        terminalreporter.write_line(what.ljust(width) + told.ljust(46) + str(times))
    recovered = Counter[str]()
    for (_, _, how), times in LOST.items():
        recovered[how] += times
    terminalreporter.write_line(", ".join(f"{times} {how}" for how, times in sorted(recovered.items())))
