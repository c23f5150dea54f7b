"""Measurements, each as ratios in one run against a named peer or limit on the same data.

``python -m benchmarks.NAME`` prints a table for people and, as its last line, one JSON object; ``--quick`` takes less
data. What is timed is never asserted by a test.
"""
