"""The engine: declarations, contracts, the gate, the commit protocol. It knows no Dagster and no retail."""

import os

# Read by polars' allocator (jemalloc) once, when polars is loaded; set it yourself to have it otherwise. As shipped it
# has four arenas for each processor; it gives back at once what is freed in large pieces, so that every query of a
# slice takes its memory from the system anew (a tenth of a backfill's time); and it leaves the rest to the system to
# take when it needs it, so that it counts as used. Here all of it is kept for five seconds and then given back.
os.environ.setdefault(
    "_RJEM_MALLOC_CONF",
    f"narenas:{os.cpu_count() or 1},oversize_threshold:0,dirty_decay_ms:5000,muzzy_decay_ms:0",
)
