"""Rows that left the quarantine because their partition was replayed: how many, by which rules, and why.

Rows have no identity of their own across versions, so they are told by what they broke: a combination of rules that
fewer rows break than before has lost rows. Those that still break one of its rules have not been released.
"""

from __future__ import annotations

from collections import Counter

from medallion.evidence import Evidence
from medallion.severity import ERROR
from medallion.verdict import Verdict

__all__ = ["refused_by_reasons", "released", "why_released"]

Reasons = frozenset[str]


def refused_by_reasons(verdict: Verdict) -> Counter[Reasons]:
    """Refused rows by the refusing rules that they broke together."""
    refusing = {each.rule for each in verdict.findings if each.scope == "row" and each.severity >= ERROR}
    found: Counter[Reasons] = Counter()
    for rules, rows in verdict.reasons.items():
        if mine := frozenset(refusing.intersection(rules)):
            found[mine] += rows
    return found


def released(was: Verdict | None, now: Verdict) -> Counter[Reasons]:
    """Rows that were refused and are not any more, by the rules that they had broken.

    Never fewer than the quarantine has shrunk by: rows that are refused for the first time are not set off against
    them.
    """
    if was is None:
        return Counter()
    before, after = refused_by_reasons(was), refused_by_reasons(now)
    lost, gained = before - after, after - before
    for reasons in sorted(lost, key=lambda each: (-len(each), sorted(each))):
        # Mended in part: what it still breaks are some of the rules that it broke.
        for left in sorted((each for each in gained if each & reasons), key=sorted):
            kept = min(lost[reasons], gained[left])
            lost[reasons] -= kept
            gained[left] -= kept
    return +lost


def why_released(before: Evidence | None, after: Evidence) -> str | None:
    """What was released and what has changed, for the ledger; None if nothing was released."""
    rows = released(None if before is None else before.verdict, after.verdict)
    if before is None or not rows:
        return None
    by_rule: Counter[str] = Counter()
    for reasons, count in rows.items():
        by_rule.update(dict.fromkeys(reasons, count))
    rules = ", ".join(
        f"{rule} {count}" for rule, count in sorted(by_rule.items(), key=lambda item: (-item[1], item[0]))
    )
    what = "1 row" if rows.total() == 1 else f"{rows.total()} rows"
    return f"released {what} ({rules}): {', '.join(_changes(before, after)) or 'replayed'}"


def _changes(before: Evidence, after: Evidence) -> list[str]:
    """What differs between what two batches of a partition were made of."""
    found = [f"revision {before.revision} became {after.revision}"] if before.revision != after.revision else []
    found += ["the transform changed"] if before.transform != after.transform else []
    found += ["the contract changed"] if before.contract != after.contract else []
    for was, now, what in (
        (before.inputs, after.inputs, "partitions"),
        (before.references, after.references, "used"),
    ):
        changed = [name for name, each in now.items() if was.get(name, {}).get(what) != each[what]]
        found += dict.fromkeys(f"{now[name]['table']} changed" for name in changed)
    return list(dict.fromkeys(found))
