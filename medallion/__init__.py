"""The engine: declarations, contracts, the gate, the commit protocol. It knows no Dagster and no retail."""

import os

# Read by polars' allocator (jemalloc) once, when polars is loaded; set it yourself to have it otherwise. As shipped it
# has four arenas for each processor, and gives back whatever is freed in large pieces at once. Every query of a slice
# then takes its memory from the system anew: a tenth of the time of a backfill.
os.environ.setdefault(
    "_RJEM_MALLOC_CONF",
    f"narenas:{os.cpu_count() or 1},oversize_threshold:0,dirty_decay_ms:2000,muzzy_decay_ms:-1",
)
