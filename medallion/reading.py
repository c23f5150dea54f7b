"""Plans and reports as people read them: ranges instead of lists, the commonest reason first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from medallion.outcomes import Report
from medallion.plan import Plan, TablePlan
from medallion.project import Project
from medallion.state import Cause

__all__ = ["plan_as_text", "ranges", "report_as_dict", "report_as_text"]

_SHOWN = 3
"""How many ranges, reasons or errors are shown before the rest is counted."""


def ranges(keys: Collection[str], among: Sequence[str]) -> list[str]:
    """Keys as ranges ``FIRST..LAST`` of consecutive ones."""
    places = {key: place for place, key in enumerate(among)}
    found: list[list[str]] = []
    last = -2
    for place, key in sorted((places[key], key) for key in keys):
        if place == last + 1:
            found[-1].append(key)
        else:
            found.append([key])
        last = place
    return [some[0] if len(some) == 1 else f"{some[0]}..{some[-1]}" for some in found]


def plan_as_text(plan: Plan, project: Project) -> RenderableType:
    """A plan for a terminal: a line for each table with its partitions and why, then what waits."""
    if not plan.tables:
        head = "Nothing is to be made: every partition that was asked for is what it should be."
        return Group(Text(head), *_waiting(plan, project))
    certain = "" if plan.certain == plan.partitions else f", {plan.certain:,} of them for certain"
    tables = "1 table" if len(plan.tables) == 1 else f"{len(plan.tables)} tables"
    head = f"Plan {plan.id}: {_count(plan.partitions, 'partition')} in {tables}{certain}{_about(plan.seconds)}"
    shown = RichTable(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    shown.add_column("table and partitions", no_wrap=True)
    shown.add_column("why", overflow="fold")
    for name in ("slices", "rows read"):
        shown.add_column(name, justify="right", no_wrap=True)
    for each in plan.tables:
        some = _some(ranges(each.keys, project.table(each.table).partition.keys()), len(each.keys))
        shown.add_row(
            "\n".join([each.table, *(f"  {one}" for one in some)]),
            "\n".join(_causes(each)),
            f"{len(each.slices):,}",
            "?" if each.rows is None else f"{each.rows:,}",
        )
    order = "newest" if plan.asked.newest_first else "oldest"
    size = _mib(plan.slice_bytes)
    foot = f"Table by table in this order, {order} partitions first; a slice is one commit, up to {size}."
    return Group(Text(head), Text(), shown, Text(), Text(foot), *_waiting(plan, project))


def _causes(planned: TablePlan) -> list[str]:
    """Each cause with how many partitions it has and, as far as they agree, what it was."""
    details: dict[Cause, Counter[str]] = {}
    for step in planned.steps:
        for reason in step.reasons:
            if reason.cause is not Cause.UPSTREAM or not step.is_certain:
                details.setdefault(reason.cause, Counter())[reason.detail] += 1
    return [_cause(cause, found, len(planned.steps)) for cause, found in details.items()]


def _cause(cause: Cause, details: Counter[str], partitions: int) -> str:
    count = details.total()
    if cause is Cause.UPSTREAM:
        tables = dict.fromkeys(detail.split()[0] for detail in details)
        said = f"if {' or '.join(tables)} changes"
    else:
        said = str(cause)
        if len(details) == 1 and (detail := next(iter(details))):
            said += f": {detail}"
    return said if count == partitions else f"{said} ({count:,})"


def _waiting(plan: Plan, project: Project) -> list[Text]:
    found = []
    for path, keys in plan.waiting.items():
        some = ", ".join(_some(ranges(keys, project.table(path).partition.keys()), len(keys)))
        first = next(iter(keys.values()))
        more = " and others" if len(set(keys.values())) > 1 else ""
        found.append(Text(f"waits: {path} {some} for {first.removeprefix('missing: ')}{more}", style="dim"))
    return found


def _some(names: list[str], count: int) -> list[str]:
    return names if len(names) <= _SHOWN else [*names[:_SHOWN], f"... {count:,} in all"]


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _about(seconds: float | None) -> str:
    return "" if seconds is None else f", about {max(seconds, 0.1):,.1f} s"


def _mib(size: int) -> str:
    return f"{size / 1024 / 1024:,.0f} MiB" if size >= 1024 * 1024 else f"{size:,} bytes"


def report_as_text(report: Report) -> Text:
    """A table's report as one line, and one for each refused partition up to a few."""
    counts = Counter(type(outcome).__name__.lower() for outcome in report.outcomes.values())
    told = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
    text = Text(f"{report.table}: {report.name}, {told}", style="" if report.name == "COMPLETE" else "yellow")
    errors = list(report.errors.values())
    for error in errors[:_SHOWN]:
        text.append(f"\n  {error}")
    if len(errors) > _SHOWN:
        text.append(f"\n  and {len(errors) - _SHOWN:,} more")
    return text


def report_as_dict(report: Report) -> dict[str, Any]:
    """A table's report for machines."""
    return {
        "table": report.table,
        "name": report.name,
        "outcomes": {key: type(outcome).__name__.lower() for key, outcome in report.outcomes.items()},
        "errors": {key: str(error) for key, error in report.errors.items()},
    }
