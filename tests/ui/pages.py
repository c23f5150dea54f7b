"""Page objects for the Dagster UI: a test says what an operator does and sees, these know where it is on the page.

Belongs here: selectors, clicks and waits. Does not belong here: expectations about the pipeline, which are the tests'.

Selectors use what a person sees (roles, labels, placeholders, texts, `title`), because the class names carry hashes
that change with every build. Where there is nothing else, the stem of a class name is used: `BaseTag`,
`VirtualizedTable`, `LogsRowComponents`. Every wait is for a condition. Written against Dagster 1.13.27.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from playwright.sync_api import Locator, Page, Response, expect

Only = Literal["Latest", "All", "Failed", "Missing", "Failed and missing"]
"""The buttons of the launch dialog that choose partitions by their state."""

_RUN_STATUS = re.compile(r"^(Queued|Not started|Managed|Starting|Started|Success|Failure|Canceling|Canceled)$")
_FINISHED_RUN = frozenset({"Success", "Failure", "Canceled"})
_UNFINISHED_BACKFILL = frozenset({"In progress", "Queued", "Canceling", "Failing", "Requested"})
_RUN_LINK = re.compile(r"/runs/([0-9a-f-]{36})")


_PATIENCE_MS = 45_000
"""For `expect`, which does not know the patience given to the browser and would give up after 5 s."""


_SCROLLS = """
row => {
  let box = row;
  while (box.parentElement && !/auto|scroll/.test(getComputedStyle(box).overflowY)) box = box.parentElement;
  box.scrollTop = %s;
}
"""
_SCROLL_HALF_A_PAGE = _SCROLLS % "box.scrollTop + box.clientHeight / 2"
_SCROLL_UP = _SCROLLS % "0"


_CHECKS_AND_STATUSES = """
rows => rows.map(row => row.querySelector("[title]")).map(name => [name.title, name.nextElementSibling.textContent])
"""

_ALL_IN_VIEW = """
boxes => boxes.every(box => {
  const inner = box.getBoundingClientRect(), outer = box.closest("svg").parentElement.getBoundingClientRect();
  return inner.top >= Math.max(outer.top, 0) && inner.bottom <= Math.min(outer.bottom, window.innerHeight);
})
"""


class LaunchRefused(AssertionError):
    """The UI sent the launch and the server refused it."""


@dataclass(frozen=True)
class PartitionDetail:
    """What the partitions tab shows for one partition.

    `status` is Materialized, Materializing, Failed or Missing. A failed partition that was materialized before shows
    both: `metadata` and `run_id` then belong to the old materialization and `alert` tells of the failed run.
    """

    key: str
    status: str
    run_id: str | None
    metadata: Mapping[str, str] = field(default_factory=dict)
    alert: str | None = None


@dataclass(frozen=True)
class CheckResult:
    """What the checks tab shows for one check and one partition.

    `status` is Passed, Failed, Missing, Skipped, In Progress or Execution Failed; `target` is the time of the
    materialization that was checked, None if the evaluation named none.
    """

    check: str
    partition: str
    status: str
    run_id: str | None = None
    description: str | None = None
    target: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CheckExecution:
    """One row of a check's execution history."""

    status: str
    partition: str
    description: str


def dismiss_first_run(page: Page) -> None:
    """From now on skip the "Join the Dagster community" dialog that a deployment shows once, to its first visitor.

    It only appears where dagster.yaml does not say `nux: {enabled: false}`.
    """
    dialog = page.get_by_role("dialog").filter(has_text="Join the Dagster community")
    page.add_locator_handler(dialog, lambda: dialog.get_by_role("button", name="Skip").click())


class _DagsterPage:
    """What all pages share: the browser tab, where the UI is, and a picture of it."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url.rstrip("/")

    def screenshot(self, path: Path | str) -> Path:
        """Save what is visible now; return where."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=target, animations="disabled")
        return target

    def _goto(self, path: str, ready: Locator) -> None:
        # Not "load" or "networkidle": the page polls for ever, and what matters is only whether `ready` is there.
        self.page.goto(f"{self.url}{path}", wait_until="domcontentloaded")
        ready.first.wait_for()


class _LaunchDialog:
    """The dialog behind every Materialize button."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._box = page.get_by_role("dialog").filter(has_text="Partition selection")
        self._count = self._box.get_by_text(re.compile(r"^[1-9][\d,]* partitions?$"))

    def wait(self) -> "_LaunchDialog":
        """Return when the dialog is there, past the question that comes first while something upstream is missing."""
        _confirm_before(self._page, self._box)
        return self

    def choose(self, selection: str) -> None:
        """Type a selection: "2017-03-01", "2017-03-01, 2017-03-04" or "[2017-03-01...2017-03-05]"."""
        field = self._box.get_by_placeholder(re.compile("^ex: "))
        field.fill(selection)
        field.press("Enter")
        self._count.wait_for()

    def choose_by_state(self, only: Only) -> None:
        """Press one of the buttons that choose partitions by their state."""
        self._box.get_by_role("button", name=only, exact=True).click()
        self._count.wait_for()

    def only_failed_and_missing(self) -> None:
        """Tick the option that leaves the partitions that already stand alone."""
        # The input itself is hidden behind a drawn box; its label takes the click.
        self._box.get_by_text("Backfill only failed and missing partitions within selection").click()

    def launch_run(self) -> str:
        """Launch one run; return its id."""
        return _launched(self._page, self._box.get_by_role("button", name=re.compile("Launch 1 run")), "run")

    def launch_backfill(self) -> str:
        """Launch a backfill; return its id."""
        return _launched(self._page, self._box.get_by_role("button", name=re.compile("Launch backfill")), "backfill")


class LineageGraph(_DagsterPage):
    """The global asset lineage."""

    @property
    def _groups(self) -> Locator:
        return self.page.locator("foreignObject.group")

    @property
    def _assets(self) -> Locator:
        return self.page.locator("foreignObject:not(.group)").filter(has=self._names)

    @property
    def _names(self) -> Locator:
        return self.page.locator("[class*=AssetNode_assetName]")

    def open(self, assets: Sequence[str] = ()) -> "LineageGraph":
        """Show the graph with its groups, as the sidebar link does; of these assets alone, as typed into the search."""
        chosen = " or ".join(f'key:"{key}"' for key in assets)
        self._goto(f"/asset-groups~{quote(chosen, safe='')}/" if chosen else "/asset-groups", self._groups)
        return self

    def group_names(self) -> list[str]:
        """The groups drawn now, sorted. What lies outside the visible part of the graph is not drawn."""
        names = self._groups.locator("[data-tooltip]").evaluate_all("found => found.map(e => e.dataset.tooltip)")
        return sorted(set(names))

    def expand(self, groups: Sequence[str] | None = None) -> "LineageGraph":
        """Show the whole graph with groups opened, all of them unless told."""
        # By address, as a bookmark would: a click zooms in on the one group that it opens, and the rest is not drawn.
        wanted = self.group_names() if groups is None else list(groups)
        opened = ",".join(f"global@global:{name}" for name in wanted)
        self._goto(f"/asset-groups?expanded={quote(opened, safe='')}", self._names)
        for name in wanted:
            self._groups.filter(has=self.page.locator(f'[data-tooltip="{name}"]')).get_by_label(
                "unfold_less"
            ).wait_for()
        self._fit()
        expect(self._assets.filter(has_text="Loading")).to_have_count(0, timeout=_PATIENCE_MS)
        return self

    def _fit(self) -> None:
        """Zoom out until the opened groups are in view from top to bottom. Zoomed out far, names are shortened."""
        outlines, zoom = self.page.locator("[class*=groupOutlineBox]"), self.page.get_by_role("slider").last
        outlines.first.wait_for()
        while not outlines.evaluate_all(_ALL_IN_VIEW):
            before = zoom.get_attribute("aria-valuenow") or ""
            self.page.get_by_label("zoom_out").click()
            expect(zoom).not_to_have_attribute("aria-valuenow", before, timeout=_PATIENCE_MS)

    def asset_names(self) -> list[str]:
        """The last part of the key of every asset drawn in the opened groups, sorted."""
        self._names.first.wait_for()
        return sorted(self._names.all_inner_texts())

    def launch_backfill(self, first: str, last: str) -> str:
        """Materialize all drawn assets for the partitions first to last, by clicking; return the backfill's id."""
        self.page.get_by_role("button", name=re.compile("Materialize all")).click()
        dialog = _LaunchDialog(self.page).wait()
        dialog.choose(_range(first, last))
        return dialog.launch_backfill()


class AssetPage(_DagsterPage):
    """The page of one asset, with its tabs."""

    def __init__(self, page: Page, url: str, key: str) -> None:
        super().__init__(page, url)
        self.key = key
        self._address = "/assets/" + "/".join(quote(part, safe="") for part in key.split("/"))

    @property
    def _materialize(self) -> Locator:
        # Not anchored: the name of the icon is part of the button's name.
        return self.page.get_by_role("button", name=re.compile(r"Materialize")).first

    def open(self) -> "AssetPage":
        """Show the overview tab."""
        self._goto(self._address, self.page.get_by_role("tab", name="Overview"))
        return self

    # Launching.

    def materialize(self) -> str:
        """Materialize an asset without partitions, by clicking; return the run's id. No dialog appears."""
        self.open()
        launched = self.page.get_by_text("Launched run")
        return _launched(self.page, self._materialize, "run", lambda: _confirm_before(self.page, launched))

    def materialize_partition(self, key: str) -> str:
        """Materialize one partition, by clicking; return the run's id."""
        dialog = self._open_dialog()
        dialog.choose(key)
        return dialog.launch_run()

    def launch_backfill(self, first: str, last: str, *, only_failed_and_missing: bool = False) -> str:
        """Launch a backfill of the partitions first to last, by clicking; return its id."""
        dialog = self._open_dialog()
        dialog.choose(_range(first, last))
        if only_failed_and_missing:
            dialog.only_failed_and_missing()
        return dialog.launch_backfill()

    def launch_backfill_of(self, only: Only) -> str:
        """Launch a backfill of the partitions in a state, by clicking; return its id. Needs more than one of them."""
        dialog = self._open_dialog()
        dialog.choose_by_state(only)
        return dialog.launch_backfill()

    def _open_dialog(self) -> _LaunchDialog:
        self.open()
        self._materialize.click()
        return _LaunchDialog(self.page).wait()

    # The partitions tab.

    def open_partitions(self) -> "AssetPage":
        """Show the partitions tab."""
        self.open()
        self.page.get_by_role("tab", name="Partitions").first.click()
        self._selected().wait_for()
        return self

    def partition_counts(self) -> dict[str, int]:
        """How many partitions are Failed, Materialized, Materializing and Missing."""
        self.open_partitions()
        return self._counts()

    def partition(self, key: str) -> PartitionDetail:
        """Select one partition on the partitions tab and read what it shows."""
        self.open_partitions()
        self._select_only(key)
        status = self._only_status()
        self.page.get_by_title(key, exact=True).first.click()
        panel = self._panel("Latest materialization", key)
        # The heading comes at once, the rest with an answer from the server: wait for what this status must show.
        alert = panel.get_by_text(re.compile(r"^Run \w+ (failed|was canceled|terminated)"))
        if status == "Materialized":
            panel.get_by_text("Materialized", exact=True).wait_for()
        elif status == "Failed":
            alert.first.wait_for()
        else:
            panel.wait_for()
        return PartitionDetail(
            key=key,
            status=status,
            run_id=_run_id(_beside(panel, "Run")),
            metadata=_table(panel),
            alert=alert.first.inner_text() if alert.count() else None,
        )

    # The checks tab.

    def open_checks(self) -> "AssetPage":
        """Show the checks tab."""
        self.open()
        self.page.get_by_role("tab", name="Checks").click()
        self.page.get_by_placeholder("Filter checks").wait_for()
        return self

    def checks(self) -> dict[str, str]:
        """Every check and the status in the list, which for a partitioned check speaks of all partitions together."""
        self.open_checks()
        heading = self.page.get_by_text(re.compile(r"^Checks \(\d+\)$"))
        wanted = int(re.sub(r"\D", "", heading.inner_text()))
        # The icon comes with the status: until then a row holds only the name.
        rows = self._check_list().filter(has=self.page.get_by_role("img"))
        rows.first.wait_for()
        found: dict[str, str] = {}
        deadline = time.monotonic() + _PATIENCE_MS / 1000
        # Only the rows in view are there at all, so the list is read while it moves past.
        while len(found) < wanted and time.monotonic() < deadline:
            found |= dict(rows.evaluate_all(_CHECKS_AND_STATUSES))
            rows.last.evaluate(_SCROLL_HALF_A_PAGE)
        rows.first.evaluate(_SCROLL_UP)  # as it was
        return found

    def check_counts(self, check: str) -> dict[str, int]:
        """How many partitions of a check are Passed, Failed, Missing, Skipped, In Progress and Execution Failed."""
        self._open_check(check, "Partitions")
        self._selected().wait_for()
        return self._counts()

    def check_result(self, check: str, partition: str) -> CheckResult:
        """Select one partition of a check and read its latest result."""
        self._open_check(check, "Partitions")
        self._selected().wait_for()
        self._select_only(partition)
        status = self._only_status()
        if status == "Missing":
            return CheckResult(check, partition, status)
        self.page.get_by_title(partition, exact=True).first.click()
        panel = self._panel("Latest execution", partition)
        panel.locator(".BaseTag").first.wait_for()
        return CheckResult(
            check=check,
            partition=partition,
            status=status,
            run_id=_run_id(_beside(panel, "Run")),
            description=_text(_beside(panel, "Description")),
            target=_text(_beside(panel, "Target materialization")),
            metadata=_table(panel),
        )

    def check_results(self, partition: str) -> dict[str, CheckResult]:
        """The latest result of every check of the asset for one partition."""
        return {check: self.check_result(check, partition) for check in self.checks()}

    def check_history(self, check: str) -> list[CheckExecution]:
        """The first page of a check's execution history, newest first."""
        self._open_check(check, "Execution history")
        table = self.page.get_by_role("table").filter(has_text="Evaluation result")
        table.get_by_role("row").nth(1).wait_for()
        headings = table.get_by_role("columnheader").all_inner_texts()
        at = {name: index for index, name in enumerate(heading.strip() for heading in headings)}
        history = []
        for row in table.get_by_role("row").all()[1:]:
            cells = [cell.strip() for cell in row.get_by_role("cell").all_inner_texts()]
            history.append(
                CheckExecution(cells[at["Evaluation result"]], cells[at["Partition"]], cells[at["Description"]])
            )
        return history

    def _open_check(self, check: str, tab: str) -> None:
        self.open_checks()
        # A long list holds only the rows in view.
        self.page.get_by_placeholder("Filter checks").fill(check)
        self._check_list().filter(has=self.page.get_by_title(check, exact=True)).click()
        self.page.get_by_placeholder("Filter checks").fill("")
        self.page.wait_for_url(re.compile(rf"checkDetail={re.escape(quote(check))}(&|$)"))
        # The asset's own tabs come first on the page, the check's after them.
        self.page.get_by_role("tab", name=tab).last.click()

    def _check_list(self) -> Locator:
        column = self.page.locator("div").filter(has=self.page.get_by_placeholder("Filter checks"))
        return column.last.locator("xpath=..").locator("[class*=VirtualizedTable_row]")

    # What the two partition lists share.

    def _selected(self) -> Locator:
        return self.page.get_by_text(re.compile(r"^[\d,]+ Partitions? Selected$"))

    def _select_only(self, key: str) -> None:
        field = self.page.get_by_placeholder(re.compile("^ex: ")).last
        field.fill(key)
        field.press("Enter")
        self.page.get_by_text(re.compile(r"^1 Partitions? Selected$")).wait_for()

    def _counts(self) -> dict[str, int]:
        header = self._selected().locator("xpath=..")
        texts = header.locator("label").all_inner_texts()
        pairs = (re.fullmatch(r"(.+?) \(([\d,]+)\)", text.strip()) for text in texts)
        return {pair[1]: int(pair[2].replace(",", "")) for pair in pairs if pair}

    def _only_status(self) -> str:
        (status,) = (name for name, count in self._counts().items() if count)
        return status

    def _panel(self, label: str, key: str) -> Locator:
        """The detail beside a list: the innermost box that holds both the label and the partition's key."""
        return self.page.locator(
            f"xpath=//*[normalize-space(text())='{label}']/ancestor::div[.//*[@title='{key}']][1]"
        ).last


class LaunchpadPage(_DagsterPage):
    """The form of a job: its configuration, filled in with what it would be, beside what each field means."""

    def __init__(self, page: Page, url: str, job: str = "", location: str = "medallion") -> None:
        super().__init__(page, url)
        self._address = f"/locations/{location}/jobs/{job}/playground"

    def open(self) -> "LaunchpadPage":
        """Show the form of the job, with every field in it."""
        self._goto(self._address, self.page.get_by_role("button", name="Launch Run"))
        self.page.locator(".CodeMirror-line").filter(has_text="config:").first.wait_for()
        return self

    def wait(self) -> "LaunchpadPage":
        """Wait for a form that a link leads to; it need not be filled in yet."""
        expect(self._editor).to_contain_text("ops", timeout=_PATIENCE_MS)
        return self

    def fields(self) -> str:
        """The form as it is filled in, as YAML."""
        text: str = self._editor.evaluate("node => node.CodeMirror.getValue()")
        return text

    def wait_for_explanation(self, field: str, words: str) -> None:
        """Put the cursor into a field and wait until the pane beside the form says these words."""
        self._editor.evaluate(
            """(node, field) => {
                const form = node.CodeMirror;
                const line = form.getValue().split("\\n").findIndex(line => line.trim().startsWith(field));
                form.focus();
                form.setCursor(line, 8);
            }""",
            field,
        )
        self.page.get_by_text(re.compile(re.escape(words))).first.wait_for()

    def fill(self, form: str) -> "LaunchpadPage":
        """Write other YAML into the form, and wait until the UI has found no error in it."""
        self._editor.evaluate("(node, form) => node.CodeMirror.setValue(form)", form)
        self.page.get_by_text("No errors").wait_for()
        return self

    def type_at_the_end(self, text: str) -> None:
        """Type into the quotes with which the form ends."""
        self._editor.click()
        for key in ("Control+End", "ArrowUp", "End", "ArrowLeft"):
            self.page.keyboard.press(key)
        self.page.keyboard.type(text)
        expect(self._editor).to_contain_text(text)

    def launch(self) -> str:
        """Launch the job; returns the run's id, whose page is then shown."""
        button = self.page.get_by_role("button", name="Launch Run")
        expect(button).to_be_enabled(timeout=_PATIENCE_MS)
        with self.page.expect_response(_is_launch) as answer:
            button.click()
        run = _of_launch(answer.value.json(), "run")
        self.page.wait_for_url(f"**/runs/{run}*", wait_until="domcontentloaded")
        return run

    @property
    def _editor(self) -> Locator:
        return self.page.locator(".CodeMirror").first


class RunPage(_DagsterPage):
    """The page of one run."""

    def __init__(self, page: Page, url: str, run_id: str) -> None:
        super().__init__(page, url)
        self.run_id = run_id

    def open(self) -> "RunPage":
        """Show the run."""
        self._goto(f"/runs/{self.run_id}", self._status)
        return self

    @property
    def _status(self) -> Locator:
        return self.page.locator(".BaseTag").filter(has_text=_RUN_STATUS).first

    def status(self) -> str:
        """The word beside the run's id: Queued, Starting, Started, Success, Failure, Canceled."""
        return self._status.inner_text().strip()

    def wait_until_finished(self, timeout: float = 120) -> str:
        """Watch the page (it follows the run by itself) until the run has ended; return the status."""
        expect(self._status).to_have_text(re.compile("|".join(sorted(_FINISHED_RUN))), timeout=timeout * 1000)
        return self.status()

    def messages(self, event_type: str) -> list[str]:
        """What the run's log says in its events of one type, such as STEP_FAILURE; at least one is waited for."""
        self.open()
        field = self.page.get_by_placeholder("Filter…")
        field.fill(f"type:{event_type}")
        field.press("Enter")
        rows = self.page.locator("[class*=LogsRowComponents_row_]")
        wanted = rows.filter(has=self.page.get_by_text(event_type, exact=True))
        wanted.first.wait_for()
        expect(rows.filter(has_not=self.page.get_by_text(event_type, exact=True))).to_have_count(
            0, timeout=_PATIENCE_MS
        )
        return [row.inner_text().partition(f"{event_type}\n")[2].strip() for row in wanted.all()]


class BackfillPage(_DagsterPage):
    """The page of one backfill."""

    def __init__(self, page: Page, url: str, backfill_id: str) -> None:
        super().__init__(page, url)
        self.backfill_id = backfill_id

    def open(self) -> "BackfillPage":
        """Show the overview of the backfill."""
        self._goto(f"/runs/b/{self.backfill_id}", self._status)
        return self

    @property
    def _status(self) -> Locator:
        return self.page.get_by_text("Status", exact=True).locator("xpath=..").locator(".BaseTag")

    def status(self) -> str:
        """The word under "Status": In progress, Succeeded, Failed, Canceled."""
        return self._status.inner_text().strip()

    def wait_until_finished(self, timeout: float = 180) -> str:
        """Watch the page (it follows the backfill by itself) until the backfill has ended; return the status."""
        unfinished = re.compile("|".join(sorted(_UNFINISHED_BACKFILL)))
        expect(self._status).not_to_have_text(unfinished, timeout=timeout * 1000)
        return self.status()

    def assets(self) -> dict[str, dict[str, int]]:
        """Per asset the numbers under "Partitions targeted", "In progress", "Succeeded" and "Failed".

        An asset without partitions has a 1 under what became of it and 0 elsewhere.
        """
        rows = self.page.locator("[class*=VirtualizedTable_row]").filter(has_text="completed")
        rows.first.wait_for()
        headings = self.page.locator("[class*=VirtualizedTable_headerCell]").all_inner_texts()[1:]
        found = {}
        for row in rows.all():
            name = (row.locator("[title]").first.get_attribute("title") or "").replace(" / ", "/")
            cells = row.locator("[class*=VirtualizedTable_cell]").all_inner_texts()[1:]
            found[name] = {heading: _number(cell) for heading, cell in zip(headings, cells, strict=True)}
        return found


def _confirm_before(page: Page, awaited: Locator) -> None:
    """Wait for something to appear, agreeing to "Are you sure?" if the UI asks before.

    It asks when an asset upstream has never been materialized at all.
    """
    sure = page.get_by_role("dialog").filter(has_text="Are you sure?").get_by_role("button", name="Confirm")
    sure.or_(awaited).first.wait_for()
    if sure.is_visible():
        sure.click()
        awaited.first.wait_for()


def _launched(
    page: Page, button: Locator, kind: Literal["run", "backfill"], after: Callable[[], None] = lambda: None
) -> str:
    """Click, wait until the server has answered and the UI has said so; return the id of what was launched."""
    with page.expect_response(_is_launch) as answer:
        button.click()
        after()
    found = _of_launch(answer.value.json(), kind)
    page.get_by_text(re.compile(f"(Launched run|Created backfill) {found[:8]}")).first.wait_for()
    return found


def _of_launch(answer: Any, kind: Literal["run", "backfill"]) -> str:
    """The id of what was launched, from the server's answer."""
    result = next(iter(answer["data"].values()))
    run_id = (result.get("run") or {}).get("id")
    backfill_id = result.get("backfillId")
    found: str | None = {"run": run_id, "backfill": backfill_id}[kind]
    if found is None:
        raise LaunchRefused(f"wanted a {kind}, the server answered {result}")
    return found


def _is_launch(response: Response) -> bool:
    """Whether this answers a launch. `LaunchAssetLoaderQuery`, which only looks, must not count."""
    if "/graphql" not in response.url:
        return False
    sent: Any = response.request.post_data_json
    return isinstance(sent, dict) and bool(re.search(r"\bmutation Launch", sent.get("query", "")))


def _number(cell: str) -> int:
    """A cell of a backfill's table: a number, a dash, or (asset without partitions) the word for its one run."""
    text = cell.strip().replace(",", "")
    if text.isdigit():
        return int(text)
    return 0 if text == "-" else 1


def _range(first: str, last: str) -> str:
    return f"[{first}...{last}]"


def _beside(panel: Locator, label: str) -> Locator:
    """The small box that starts with a label, label included."""
    return panel.get_by_text(label, exact=True).first.locator("xpath=..")


def _text(box: Locator) -> str | None:
    """The text of a labelled box without its label; None if it says None or is not there."""
    if not box.count():
        return None
    text = box.inner_text().partition("\n")[2].strip()
    return None if text in ("", "None") else text


def _run_id(box: Locator) -> str | None:
    links = box.locator("a[href*='/runs/']")
    match = _RUN_LINK.search(links.first.get_attribute("href") or "") if links.count() else None
    return match[1] if match else None


def _table(panel: Locator) -> dict[str, str]:
    """A metadata table as key -> text."""
    # Only the outermost table: a value may be a table itself.
    found = panel.locator("xpath=.//table[not(ancestor::table)]/tbody/tr")
    rows = (row.locator("xpath=./td").all_inner_texts() for row in found.all())
    return {cells[0].strip(): cells[1].strip() for cells in rows if len(cells) > 1}
