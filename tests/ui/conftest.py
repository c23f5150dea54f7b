"""Fixtures for tests that drive the real UI in a real browser."""

import shutil
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.assets.deployment import Deployment
from tests.ui.pages import dismiss_first_run
from tests.ui.retail import served
from tests.ui.server import DagsterServer

# No sandbox: it needs privileges that containers do not have. The rest keeps the browser from talking to anybody but
# the server under test, and from using a GPU that is not there.
_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

_TIMEOUT_MS = 45_000
"""A page takes 5 to 7 s on a quiet machine; waiting longer costs nothing when things go well."""


@pytest.fixture(scope="session")
def retail(
    retail_landing: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[DagsterServer, Deployment]]:
    """The retail project served for the whole session. Each test changes other days than the others do."""
    with served(tmp_path_factory.mktemp("served"), retail_landing) as found:
        yield found


@pytest.fixture(scope="session")
def server(retail: tuple[DagsterServer, Deployment]) -> DagsterServer:
    """The deployment's webserver and daemon."""
    return retail[0]


@pytest.fixture(scope="session")
def deployment(retail: tuple[DagsterServer, Deployment]) -> Deployment:
    """The deployment's landing zone and lake."""
    return retail[1]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """One headless Chromium for the whole session."""
    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if executable is None:
        pytest.fail(
            "These tests drive the Dagster UI in a real browser, and no chromium is on the PATH. "
            "Install it: apt-get install chromium",
            pytrace=False,
        )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=_ARGUMENTS)
        yield browser
        browser.close()


_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tell the `page` fixture whether its test failed."""
    report = yield
    if report.when == "call":
        item.stash[_FAILED] = report.failed
    return report


@pytest.fixture
def page(chromium: Browser, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Page]:
    """A fresh browser profile with one tab of 1600x1000. A test that fails leaves a picture of it in `tmp_path`."""
    # UTC and English, so that what the pages say does not depend on the machine.
    context = chromium.new_context(viewport={"width": 1600, "height": 1000}, locale="en-US", timezone_id="UTC")
    context.set_default_timeout(_TIMEOUT_MS)
    tab = context.new_page()
    dismiss_first_run(tab)
    yield tab
    if request.node.stash.get(_FAILED, False):
        picture = tmp_path / "failed.png"
        tab.screenshot(path=picture)
        print(f"{tab.url} looked like this: {picture}")
    context.close()
