"""How long an executor takes per trivial cell: `python tests/benchmarks/cost_per_cell.py local|ray [CELLS]`.

The child's own time is what the records say, from a cell's start to its end. The cost is the rest: the wall
time of both children, less that. Cells are one group each, as those of a suite that isolates them.
"""

import json
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]
CHILDREN = 2
SETTINGS = {"ray": {"groups_per_job": 250}}


def main(name: str, number: int) -> None:
    """Run the cells and print one line of JSON: times in seconds per cell."""
    import os

    from toy.sweep import LIMITS, cell, environ, group

    from harness.runner import run
    from harness.store import Store

    os.environ["PYTHONPATH"] = environ()["PYTHONPATH"]
    groups = [group(cell("nothing", repeat=i)) for i in range(number)]
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder)) as store:
        module = import_module(f"harness.executors.{name}")
        executor = module.create(Path(folder), CHILDREN, *([SETTINGS[name]] if name in SETTINGS else []))
        environment = executor.environment()
        begin_s = time.monotonic()
        run(groups, store, executor, LIMITS, environment)
        wall_s = time.monotonic() - begin_s
        own_s = sum(record.duration_s for record in store.records.values())
        statuses = sorted({record.status for record in store.records.values()})
    print(
        json.dumps(
            {
                "executor": name,
                "cells": number,
                "statuses": statuses,
                "wall_s": round(wall_s, 2),
                "wall_per_cell_s": wall_s / number,
                "own_per_cell_s": own_s / number,
                "cost_per_cell_of_a_child_s": (wall_s * CHILDREN - own_s) / number,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10_000)
