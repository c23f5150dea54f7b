"""The table of guarantees names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_guarantee_names_a_test_that_exists():
    tests = "\n".join(path.read_text() for path in Path(__file__).parent.rglob("test_*.py"))
    rows = [line for line in (ROOT / "docs/guarantees.md").read_text().splitlines() if line.startswith("| ")][1:]
    for row in rows:
        (name,) = re.findall(r"`(test_\w+)`", row)
        assert f"def {name}(" in tests, name
