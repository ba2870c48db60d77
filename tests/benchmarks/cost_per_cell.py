"""How long an executor takes per trivial cell, beyond the cell itself.

    python tests/benchmarks/cost_per_cell.py local|ray [--cells N] [--cells-per-group N] [--groups-per-job N]
    python tests/benchmarks/cost_per_cell.py --table results/reference/executors/cost_per_cell.jsonl

Two children at once run cells that do nothing. A group of one cell has a child of its own, as in suites that
isolate their cells; a larger group keeps its child. The child's own time is what the records have: from a
cell's start to its end. The cost per cell is the rest: the wall time of both children, less that, over the
cells. Prints one line of JSON, with the environment; `--table` prints a file of such lines for
docs/cluster.md.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from toy.sweep import LIMITS, cell, environ, group

from harness.sweep.environment import describe
from harness.sweep.executors import CellFinished
from harness.sweep.runner import run
from harness.sweep.store import Store

CHILDREN = 2
PART = 10
"""The first and the last of so many parts of the cells are reported, too."""

COLUMNS = ["executor", "cells", "per child", "children per job", "own time", "cost per cell"]
COLUMNS += ["first tenth", "last tenth"]
HEAD = f"| {' | '.join(COLUMNS)} |\n|---|{'---:|' * (len(COLUMNS) - 1)}"


class Ended(NamedTuple):
    """How a cell ended, and its own time."""

    status: str
    duration_s: float


def measured(given):
    """Run the cells; return the wall time, when each cell ended, and how."""
    cells = [cell("nothing", repeat=i) for i in range(given.cells)]
    groups = [
        group(*cells[i : i + given.cells_per_group]) for i in range(0, len(cells), given.cells_per_group)
    ]
    settings = [{"groups_per_job": given.groups_per_job}] if given.executor == "ray" else []
    ends_s = []
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder)) as store:
        module = import_module(f"harness.sweep.executors.{given.executor}")
        executor = module.create(Path(folder), CHILDREN, *settings)
        environment = executor.environment()

        def note(event):
            if isinstance(event, CellFinished):
                ends_s.append(time.monotonic() - begin_s)

        begin_s = time.monotonic()
        run(groups, store, executor, LIMITS, environment, note)
        wall_s = time.monotonic() - begin_s
        return wall_s, ends_s, [Ended(one.status, one.duration_s) for one in store.records.values()]


def summary(given):
    """Return times in seconds per cell, and the environment."""
    wall_s, ends_s, records = measured(given)
    own_s = sum(record.duration_s for record in records)
    part = max(1, given.cells // PART)
    return {
        "executor": given.executor,
        "cells": given.cells,
        "cells_per_group": given.cells_per_group,
        "groups_per_job": given.groups_per_job if given.executor == "ray" else None,
        "children": CHILDREN,
        "origin": "measured",
        "ok": sum(record.status == "ok" for record in records),
        "wall_s": wall_s,
        "own_per_cell_s": own_s / given.cells,
        "cost_per_cell_s": (wall_s * CHILDREN - own_s) / given.cells,
        "wall_per_cell_of_first_part_s": ends_s[part - 1] / part,
        "wall_per_cell_of_last_part_s": (ends_s[-1] - ends_s[-part - 1]) / part,
        "environment": describe().to_dict(),
    }


def rows(path):
    """Return the table of a file's lines; milliseconds, of the parts the wall time per cell."""
    lines = [HEAD]
    for one in map(json.loads, Path(path).read_text().splitlines()):
        times_s = ("own_per_cell_s", "cost_per_cell_s")
        times_s += ("wall_per_cell_of_first_part_s", "wall_per_cell_of_last_part_s")
        counts = [f"{one['cells']:,}", one["cells_per_group"], one["groups_per_job"] or "–"]
        lines.append(
            f"| {' | '.join(map(str, [one['executor'], *counts, *(ms(one[name]) for name in times_s)]))} |"
        )
    return "\n".join(lines)


def ms(time_s):
    """Return milliseconds with three digits."""
    return f"{time_s * 1e3:.3g} ms"


def read(argv):
    """Return the options of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("executor", choices=["local", "ray"], nargs="?")
    parser.add_argument("--table")
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--cells-per-group", type=int, default=1)
    parser.add_argument("--groups-per-job", type=int, default=1, help="of ray")
    return parser.parse_args(argv)


if __name__ == "__main__":
    chosen = read(sys.argv[1:])
    os.environ["PYTHONPATH"] = environ()["PYTHONPATH"]
    print(rows(chosen.table) if chosen.table else json.dumps(summary(chosen)))
