"""The engine: declarations, contracts, the gate, the commit protocol. It knows no Dagster and no retail."""
