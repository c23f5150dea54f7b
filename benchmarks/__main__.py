"""Lists the benchmarks."""

import importlib
import pkgutil

import benchmarks

if __name__ == "__main__":
    for module in pkgutil.iter_modules(benchmarks.__path__):
        if not module.name.startswith("_") and not module.name.startswith("peer_"):
            doc = (importlib.import_module(f"benchmarks.{module.name}").__doc__ or "").splitlines()[0]
            print(f"python -m benchmarks.{module.name:10} {doc}")
