"""The project's tables in Dagster: assets, checks, schedules, and jobs with a form."""

import gc

import medallion  # noqa: F401 - before polars, of whose allocator it says how to keep memory

# Importing Dagster and the engine makes half a million objects. Walked as often as Python does by default, they cost a
# fifth of the start; `load_project` takes them out of the collector's sight when they are there.
gc.set_threshold(50_000, 20, 20)
