"""What the tests of lost acknowledgements count."""

from collections import Counter

LOST: Counter[tuple[str, str, str]] = Counter()
"""By what was put, what the attempt said of it, and what became of it in the end."""
