import medallion  # noqa: F401 - before polars, of whose allocator it says how to keep memory
