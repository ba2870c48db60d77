"""Plans toy cells and runs them; a script too, for the tests that kill a sweep: `sweep.py FOLDER JSON`."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from harness.records import Cell, Group, Limits, digest
from harness.sweep.environment import describe
from harness.sweep.executors.local import create
from harness.sweep.runner import run
from harness.sweep.store import Store

PACKAGE = "toy_suites"
LIMITS = Limits(20.0)


def cell(act="nothing", module="baseline", suite="faults", workload=None, repeat=0, **settings):
    if module == "baseline":
        settings = {"act": act, **settings}
    workload = {"name": act, **(workload or {})}
    config = {"workload": workload, "settings": settings}
    name = digest([suite, module, config, repeat])
    return Cell(name, suite, workload["name"], module, module, repeat, 7 + repeat, config)


def group(*cells):
    return Group(tuple(cells), PACKAGE)


def sweep(folder, groups, limits=LIMITS, workers=1, on_event=lambda event: None):
    """Run `groups` to records below `folder`; returns these by the cell's id."""
    with Store(Path(folder)) as store:
        run(groups, store, create(Path(folder), workers), limits, describe(), on_event)
        return dict(store.records)


def marked(folder):
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            temporary = process.environ().get("TMPDIR", "")
            ended = process.status() == psutil.STATUS_ZOMBIE
            if temporary.startswith(str(Path(folder).resolve())) and not ended:
                found.append(process)
    return found


def start(folder, groups, workers=1, **environment):
    """Start a sweep of these cells in a process of its own, whose errors can be read."""
    command = [sys.executable, __file__, str(folder), json.dumps({"groups": groups, "workers": workers})]
    return subprocess.Popen(command, env=environ() | environment, stderr=subprocess.PIPE, text=True)


def environ():
    root = Path(__file__).parents[3]
    return {**os.environ, "PYTHONPATH": f"{root}:{Path(__file__).parent}"}


if __name__ == "__main__":
    given = json.loads(sys.argv[2])
    plan = [Group(tuple(Cell(*fields) for fields in cells), PACKAGE) for cells in given["groups"]]
    sweep(sys.argv[1], plan, Limits(**given.get("limits", LIMITS._asdict())), given.get("workers", 1))
