"""Runs toy cells by an executor of jobs; a script too for tests that kill it: `jobs_sweep.py FOLDER JSON`."""

import json
import subprocess
import sys
import time
from collections import Counter
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from toy.sweep import LIMITS, PACKAGE, cell, environ

from harness.records import LOST, Cell, Group, Limits, Sampling
from harness.sweep.executors import jobs
from harness.sweep.runner import run
from harness.sweep.store import Store, read_records

jobs.SETTLE_S = 2.0  # one machine shares its files at once
LIMIT_S = 150  # for what takes seconds, and a lost node's half minute


def sweep(name, folder, groups, settings, limits=LIMITS, workers=2):
    """Run `groups` by executor `name` to records in `folder`; returns these by the cell's id."""
    module = import_module(f"harness.sweep.executors.{name}")
    with Store(Path(folder)) as store:
        executor = module.create(Path(folder), workers, settings)
        run(groups, store, executor, limits, executor.environment())
        return dict(store.records)


PATIENT = Limits(LIMIT_S)


class Sweep:
    """A sweep in a process of its own, with its results in `folder / "out"`."""

    def __init__(self, name, folder, groups, settings, limits=PATIENT, workers=2):
        said = {"name": name, "groups": groups, "settings": settings, "limits": limits, "workers": workers}
        command = [sys.executable, __file__, str(folder / "out"), json.dumps(said)]
        self.log = folder / "stderr"
        with open(self.log, "a") as file:
            self.process = subprocess.Popen(command, env=environ(), stderr=file)

    def end(self):
        return self.process.wait(LIMIT_S), self.log.read_text()

    def kill(self, number):
        self.process.send_signal(number)
        return self.process.wait(LIMIT_S)

    def wait_for(self, condition):
        def met():
            assert self.process.poll() is None, self.log.read_text()
            return condition()

        return wait_for(met)


def wait_for(condition):
    deadline_s = time.monotonic() + LIMIT_S
    while not (value := condition()):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    return value


def gated(folder, number, takes_s=0.0, suite="gated"):
    """Return cells that begin, and end `takes_s` after `folder / "gate"` is there."""
    fields = {"log": str(folder / "log"), "gate": str(folder / "gate"), "takes_s": takes_s}
    return [cell(suite=suite, workload={**fields, "name": f"gated{i}"}) for i in range(number)]


def lines(folder, word="begin"):
    """Return what gated cells logged: name and process."""
    log = folder / "log"
    said = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return [(name, int(pid)) for first, name, pid in said if first == word]


def begun(folder):
    return Counter(name for name, _ in lines(folder))


def assert_truthful(folder, cells):
    """Assert that each record is ok, or lost with its process; only a lost cell may be tried again."""
    written = [json.loads(line) for line in (folder / "out/records.jsonl").read_text().splitlines()]
    records = {record.cell.id: record for record in read_records(folder / "out")}
    assert records.keys() == {one.id for one in cells}
    for cell_id, record in records.items():
        *earlier, last = [one["status"] for one in written if one["cell"]["id"] == cell_id]
        assert last == record.status
        assert set(earlier) <= {"unavailable"}
    ended = Counter(name for name, _ in lines(folder, "end"))
    for record in records.values():
        name = record.cell.workload
        if record.status == "ok":
            assert ended[name] >= 1
        else:
            lost = record.status == "unavailable" and record.reason.startswith(LOST)
            assert lost, (record.status, record.reason)
            assert not [pid for begun, pid in lines(folder) if begun == name and is_running(pid)]


def is_running(pid):
    """Return whether a process runs, and is not one that has ended and waits for its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ends(folder):
    """Return status and reason of each workload's only record."""
    written = (folder / "out/records.jsonl").read_text().splitlines()
    records = read_records(folder / "out")
    assert len(written) == len(records), written
    return {record.cell.workload: (record.status, record.reason) for record in records}


if __name__ == "__main__":
    given = json.loads(sys.argv[2])
    planned = [
        Group(tuple(Cell(*one) for one in cells), PACKAGE, Sampling(*sampling) if sampling else None)
        for cells, _, sampling in given["groups"]
    ]
    try:
        sweep(
            given["name"], sys.argv[1], planned, given["settings"], Limits(*given["limits"]), given["workers"]
        )
    except jobs.ExecutorError as error:
        sys.exit(str(error))
