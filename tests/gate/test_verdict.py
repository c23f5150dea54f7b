"""A verdict is read by people, kept as JSON, and never loses a row."""

import json
import math

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from medallion.contract import CRITICAL, ERROR, INFO, WARNING, Contract, Severity, field, rule
from medallion.gate import Gate
from medallion.verdict import Finding, Verdict, worst_first


class Line(Contract):
    quantity: int = field(gt=0, le=100, severity={"le": WARNING})

    @rule(CRITICAL, table=True)
    def enough(rows):
        """A day has at least five lines | as a rule."""
        return pl.len() >= 5


VERDICT = Gate(Line, name="silver/lines").judge(pl.DataFrame({"quantity": [1, 0, 101, -1]})).verdict


def test_a_verdict_prints_as_markdown():
    assert VERDICT.to_markdown() == (
        "**blocked**: 4 read = 2 accepted + 2 quarantined + 0 collapsed\n"
        "\n"
        "| rule | severity | rows | found |\n"
        "| --- | --- | ---: | --- |\n"
        "| `table.enough` | CRITICAL | 0 | does not hold: A day has at least five lines \\| as a rule. |\n"
        "| `quantity.gt` | ERROR | 2 | greater_than(0) |\n"
        "| `quantity.le` | WARNING | 1 | less_than_or_equal_to(100) |"
    )


def test_a_verdict_prints_on_a_terminal():
    console = Console(width=100, record=True, color_system=None)
    console.print(VERDICT)
    text = console.export_text()
    assert "silver/lines all: blocked. 4 read = 2 accepted + 2 quarantined + 0 collapsed" in text
    assert "quantity.gt" in text
    assert text.index("CRITICAL") < text.index("ERROR") < text.index("WARNING")


def test_text_from_the_data_is_not_taken_for_markup():
    verdict = Verdict("t", "[bold]p[/]", 0, 0, findings=(Finding("a.b", INFO, "row", 0, "[red]x[/]"),))
    console = Console(width=100, record=True, color_system=None)
    console.print(verdict)
    assert "[red]x[/]" in console.export_text()


def test_a_verdict_survives_json():
    again = Verdict.from_json(VERDICT.to_json())
    assert again == VERDICT
    assert again.blocked
    assert json.loads(VERDICT.to_json())["reasons"] == [[["quantity.gt"], 2], [["quantity.le"], 1]]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_json_holds_no_figure_that_is_no_number(value):
    text = Verdict("t", "p", 0, 0, measures={"table.x": {"value": value, "list": [value, 1.0]}}).to_json()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert Verdict.from_json(text).measures == {"table.x": {"value": None, "list": [None, 1.0]}}


def test_what_is_lost_is_not_kept_quiet():
    with pytest.raises(AssertionError, match="3 rows read are not 1 accepted"):
        Verdict("t", "p", 3, 1, 1, 0)


def test_counts_by_rule_and_by_combination_come_without_reading_the_rows():
    class Two(Contract):
        a: int = field(gt=0)
        b: int = field(gt=0)

    verdict = Gate(Two).judge(pl.DataFrame({"a": [0, 0, 1], "b": [0, 1, 1]})).verdict
    assert verdict.quarantined_by_rule == {"a.gt": 2, "b.gt": 1}
    assert verdict.reasons == {("a.gt", "b.gt"): 1, ("a.gt",): 1}


@pytest.mark.parametrize(
    ("findings", "quarantined", "outcome", "passed"),
    [
        ((), 0, "published", True),
        ((Finding("a.b", WARNING, "row", 1, ""),), 0, "published", True),
        ((Finding("a.b", ERROR, "row", 1, ""),), 1, "published in part", False),
        ((Finding("a.b", CRITICAL, "row", 1, ""),), 1, "blocked", False),
        ((Finding("table.b", ERROR, "table", 0, ""),), 0, "blocked", False),
        ((Finding("table.b", WARNING, "table", 0, ""),), 0, "published", True),
    ],
)
def test_the_outcome_follows_from_the_findings(findings, quarantined, outcome, passed):
    verdict = Verdict("t", "p", 1, 1 - quarantined, quarantined, findings=findings)
    assert (verdict.outcome, verdict.passed) == (outcome, passed)


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from([*Severity]))))
def test_the_worst_comes_first(pairs):
    ordered = worst_first(Finding(name, severity, "row", 1, "") for name, severity in pairs)
    assert [finding.severity for finding in ordered] == sorted((severity for _, severity in pairs), reverse=True)
