"""Kill sweeps of every suite at random instants: is anything lost, doubled or left?

python tests/benchmarks/random_kills.py 100 [SEED] [SUITE...]

Each suite runs the baseline and a variant of its first tiny workload. What is killed, with signal 9, is
the parent, one of its children or a process below these (a rank, Ray's, a loader's); or the disk of the
results is filled at that instant, for which root mounts one of its own. Then the same command runs until
it ends. Of each kill it is checked that each result stands as it was, that no cell has two (but in a group
of cells that was cut short, which is sampled anew), that the sweep can be finished, and that no process,
file of /dev/shm or named network namespace is left, for which nothing else may run meanwhile. Prints a line
for each kill, and counts; exit status 1 where something was found.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import psutil
from omegaconf import OmegaConf

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support" / "processes")]

from marked import MARK, bearing, left  # noqa: E402

from harness.config.run import compose_suite, load, names  # noqa: E402
from harness.records import Status  # noqa: E402

VICTIMS = ("parent", "child", "below", "disk")
DISK_MIB = 1024
ENDS_WITHIN_S = 30
SWEEP_WITHIN_S = 600
FINISHES = (0, 2, 4)
"""A sweep's exit statuses that are an answer: 2 where every cell is unavailable."""


def words_of(suite: str, out: Path) -> list[str]:
    """Return a command that runs the baseline and one variant of the suite's first tiny workload."""
    config = OmegaConf.to_container(compose_suite(suite, {"executor": "local"}).suite, resolve=True)
    assert isinstance(config, dict)
    name, changes = next(iter(config["tiny"].items()))
    words = [f"suite={suite}", f"workloads=[{name}]", f"out={out}"]
    words += [f"suite.workloads.{name}.{key}={json.dumps(value)}" for key, value in changes.items()]
    variants = [
        one.name for one in load([f"suite={suite}"])[0].variants if one.name.partition(".")[0] != "baseline"
    ]
    others = [one for one in variants if one != "baseline_again"]
    return words + ([f"only=[{others[0]}]"] if others else [])


def started(words: list[str], mark: str) -> psutil.Popen:
    command = [sys.executable, "-m", "harness", *words]
    environment = {**os.environ, MARK: mark, "OMP_NUM_THREADS": "1"}
    nothing = subprocess.DEVNULL
    return psutil.Popen(command, cwd=ROOT, env=environment, stdout=nothing, stderr=nothing)


def victim_of(parent: psutil.Popen, kind: str) -> Any:
    """Return a process to kill; the parent where there is no such process."""
    with suppress(psutil.Error):
        children = parent.children()
        below = [one for child in children for one in child.children(recursive=True)]
        choice = {"child": children, "below": below}.get(kind, [])
        if choice:
            return random.choice(choice)
    return parent


class Result(NamedTuple):
    """A line of records.jsonl with a cell's result. `group`: the cells that are sampled together."""

    cell: str
    group: tuple[str, int]
    line: str


def results(out: Path) -> list[Result]:
    """Return each result; a last line may have been cut."""
    if not (out / "records.jsonl").exists():
        return []
    found = []
    for line in (out / "records.jsonl").read_text().splitlines():
        with suppress(json.JSONDecodeError):
            record = json.loads(line)
            if record.get("status") == Status.OK:
                cell = record["cell"]
                found.append(Result(cell["id"], (cell["workload"], cell["repeat"]), line))
    return found


@contextmanager
def disk(folder: Path, kind: str) -> Iterator[None]:
    """Make the folder a disk of its own where one is to be filled."""
    folder.mkdir()
    if kind != "disk":
        yield
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


def fill(folder: Path) -> Path:
    """Fill the folder's disk; return the file that does."""
    with suppress(OSError), (file := folder / "filler").open("wb", buffering=0) as filler:
        while filler.write(bytes(1 << 16)):
            pass
    return file


def strike(parent: psutil.Popen, kind: str, folder: Path) -> None:
    """Kill the victim, or fill the disk, and wait until the sweep has ended; then there is room again."""
    if kind == "disk":
        file = fill(folder)
        with suppress(psutil.TimeoutExpired):
            parent.wait(SWEEP_WITHIN_S)
        file.unlink()
        return
    victim = victim_of(parent, kind)
    with suppress(psutil.Error):
        victim.kill()
    with suppress(psutil.TimeoutExpired):
        parent.wait(ENDS_WITHIN_S if victim == parent else SWEEP_WITHIN_S)


def killed_once(suite: str, kind: str, lasts_s: float, folder: Path) -> list[str]:
    """Kill a sweep once, finish it, and return what is wrong."""
    own = folder / uuid4().hex
    with disk(own, kind):
        return finished_after(suite, kind, lasts_s, own)


def finished_after(suite: str, kind: str, lasts_s: float, folder: Path) -> list[str]:
    """Kill a sweep with results in the folder, finish it, and return what is wrong."""
    out, mark, wrong = folder / "out", uuid4().hex, []
    words, before = words_of(suite, out), left(mark)
    parent = started(words, mark)
    time.sleep(random.uniform(0.2, lasts_s))
    strike(parent, kind, folder)
    if parent.poll() is None:
        wrong.append("the sweep hangs")
        parent.kill()
    until_s = time.monotonic() + ENDS_WITHIN_S
    while bearing(mark) and time.monotonic() < until_s:
        time.sleep(0.1)
    wrong += [f"left: {one}" for one in left(mark) - before]
    stood = results(out)
    last = started(words, mark)
    status = last.wait(SWEEP_WITHIN_S)
    if status not in FINISHES:
        wrong.append(f"the next start ends with {status}")
    now = results(out)
    wrong += [f"lost or changed: {one.cell}" for one in stood if one not in now]
    wrong += [f"doubled: {cell}" for cell in doubled(stood, now)]
    wrong += [f"left: {one}" for one in left(mark) - before]
    return wrong


def doubled(stood: list[Result], now: list[Result]) -> list[str]:
    """Return cells with two results that need not have them.

    Of a group that was cut short, all are sampled anew: their ratios are of one process's rounds.
    """
    fresh = now[len(stood) :]
    before, after = ({one.cell for one in some} for some in (stood, fresh))
    again = []
    for one in fresh:
        whole = {other.cell for other in now if other.group == one.group}
        if one.cell in before and (whole <= before or not whole <= after):
            again.append(one.cell)
    return again + [cell for cell, times in Counter(one.cell for one in fresh).items() if times > 1]


def main(count: int, seed: int, suites: list[str]) -> int:
    random.seed(seed)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no disk stays mounted
    kinds = VICTIMS if os.geteuid() == 0 else VICTIMS[:-1]
    found, faults = Counter[tuple[str, str]](), 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lasts_s = {}
        for suite in suites:
            begin_s = time.monotonic()
            status = started(words_of(suite, folder / suite), uuid4().hex).wait(SWEEP_WITHIN_S)
            lasts_s[suite] = time.monotonic() - begin_s
            print(f"{suite}: undisturbed {lasts_s[suite]:.1f} s, exit status {status}", flush=True)
        for number in range(count):
            suite, kind = suites[number % len(suites)], random.choice(kinds)
            wrong = killed_once(suite, kind, lasts_s[suite], folder)
            found[suite, kind] += 1
            faults += len(wrong)
            print(
                f"{number + 1}/{count} {suite}, {kind}: {'; '.join(wrong) or 'as it should be'}", flush=True
            )
    for kind in kinds:
        print(f"{kind}: {sum(n for (_, one), n in found.items() if one == kind)} kills")
    print(f"{sum(found.values())} kills, {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    given = sys.argv[1:]
    sys.exit(main(int(given[0]), int(given[1]) if len(given) > 1 else 0, given[2:] or names("suite")))
