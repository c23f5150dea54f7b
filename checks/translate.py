"""A verdict as Dagster asset check evaluations: the gate for every partition, and a check for each rule."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from urllib.parse import quote

import dagster as dg

from medallion.compiler import Rule
from medallion.contract import ERROR, Severity
from medallion.outcomes import Blocked, Committed, Failed, Outcome
from medallion.tables import Table
from medallion.verdict import Finding

GATE = "gate"
"""Name of the check that says whether a partition was published."""


LOCATION = "medallion"
"""Name of the code location in ``workspace.yaml``, which is part of the UI's addresses."""

APPROVE, DISCARD = "approve", "discard"
"""The operations of the jobs ``approve_candidate`` and ``discard_candidate``."""

_SHOWN = 5


def check_name(rule: str) -> str:
    """The check's name for a rule id: Dagster allows no dots."""
    return rule.replace(".", "__")


def check_specs(table: Table, partitions: dg.PartitionsDefinition | None) -> list[dg.AssetCheckSpec]:
    """The checks of a table: a blocking gate, and one for each rule of the contract."""
    asset = dg.AssetKey([table.layer, table.name])
    specs = [
        dg.AssetCheckSpec(
            GATE,
            asset=asset,
            blocking=True,
            partitions_def=partitions,
            description="Whether the partition was published. Red: nothing of it was, the version before stands.",
        )
    ]
    specs.extend(
        dg.AssetCheckSpec(
            check_name(rule.id),
            asset=asset,
            partitions_def=partitions,
            description=f"{rule.severity.name}: {rule.title}",
            metadata={"rule": rule.id, "severity": rule.severity.name, "scope": rule.scope},
        )
        for rule in rules(table)
    )
    return specs


def rules(table: Table) -> tuple[Rule, ...]:
    """The rules that have a check of their own."""
    return table.gate.compiled.rules if table.schema is not None else ()


def gate_evaluation(table: Table, key: str, outcome: Outcome) -> dict[str, object]:
    """What the gate's check says of a partition: arguments of ``AssetCheckEvaluation``."""
    if isinstance(outcome, Failed):
        return {
            "passed": False,
            "severity": dg.AssetCheckSeverity.ERROR,
            "description": str(outcome.error),
            "metadata": {
                "outcome": type(outcome).__name__,
                "error": type(outcome.error).__name__,
                "next": outcome.error.args[0],
            },
        }
    verdict = outcome.verdict
    warned = verdict.severity is not None and verdict.severity >= Severity.WARNING
    return {
        "passed": not isinstance(outcome, Blocked),
        "severity": dg.AssetCheckSeverity.ERROR if isinstance(outcome, Blocked) else dg.AssetCheckSeverity.WARN,
        "description": str(outcome.error) if isinstance(outcome, Blocked) else verdict.summary,
        "metadata": {
            "outcome": type(outcome).__name__,
            "verdict": dg.MetadataValue.md(verdict.to_markdown()),
            "read": verdict.read,
            "accepted": verdict.accepted,
            "quarantined": verdict.quarantined,
            "collapsed": verdict.collapsed,
            "warnings": warned,
            **({"next": dg.MetadataValue.md(next_steps(table.path, [key]))} if isinstance(outcome, Blocked) else {}),
        },
    }


def next_steps(table: str, blocked: Sequence[str]) -> str:
    """What can be done with blocked partitions, for people: the commands, and the forms of the jobs, filled in."""
    lines = []
    for key in blocked[:_SHOWN]:
        where = f"{table} {key}"
        lines += [
            f"**{where}** is held. Look at it: `medallion inspect {where}`",
            f"- mend the source or the feed, and materialize it again: `medallion replay {where}`",
            f"- publish it as it is: [approve]({_form(APPROVE, table, key)}), or "
            f'`medallion approve {where} --reason "..."`',
            f"- forget it: [discard]({_form(DISCARD, table, key)}), or `medallion discard {where}`",
            "",
        ]
    if len(blocked) > _SHOWN:
        lines.append(f"and {len(blocked) - _SHOWN} more")
    return "\n".join(lines)


def _form(job: str, table: str, key: str) -> str:
    """The Launchpad of a job, with the form filled in for a partition."""
    config = f'ops:\n  {job}:\n    config:\n      table: {table}\n      partition: "{key}"\n      reason: ""\n'
    return f"/locations/{LOCATION}/jobs/{job}_candidate/playground/setup?mode=default&config={quote(config)}"


def rule_evaluations(
    table: Table, outcome: Outcome, *, always: Collection[str]
) -> Iterator[tuple[str, dict[str, object]]]:
    """What the rules' checks say of a partition, as check names and arguments of ``AssetCheckEvaluation``.

    Args:
        table: whose rules they are.
        outcome: of the partition.
        always: the checks to report in any case; others only if they found something, or did so in the version before.
    """
    if isinstance(outcome, Failed):
        return
    found = {finding.rule: finding for finding in outcome.verdict.findings}
    before: Mapping[str, object] = {}
    if isinstance(outcome, Committed) and outcome.was is not None:
        before = {finding.rule: finding for finding in outcome.was.findings}
    for rule in rules(table):
        if check_name(rule.id) in always or rule.id in found or rule.id in before:
            yield check_name(rule.id), _evaluation(rule, found.get(rule.id))


def _evaluation(rule: Rule, finding: Finding | None) -> dict[str, object]:
    # INFO is counted and never red: Dagster has no weaker severity than WARN.
    passed = finding is None or rule.severity == Severity.INFO
    severe = finding is not None and (finding.severity >= ERROR)
    return {
        "passed": passed,
        "severity": dg.AssetCheckSeverity.ERROR
        if severe and finding and finding.blocks
        else dg.AssetCheckSeverity.WARN,
        "description": finding.message if finding else "found nothing",
        "metadata": {"rule": rule.id, "severity": rule.severity.name, "rows": finding.rows if finding else 0},
    }
