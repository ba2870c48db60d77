"""Kill sweeps of every suite at random instants: is anything lost, doubled or left?

python tests/benchmarks/random_kills.py 100 [SEED] [SUITE[@EXECUTOR]...]

Each suite runs the baseline and a variant of its first tiny workload; `memory@ray` and `memory@slurm` do so
on a Ray, and on a Slurm cluster of two nodes, of this machine. What is killed, with signal 9, is the
parent, one of its children or a process below these (a rank, Ray's, Slurm's, a loader's); or the disk of
the results is filled (by a disk of its own, which root mounts), or no file may grow any more
(RLIMIT_FSIZE). A sweep that ends before that is not counted, and is tried again. Then the same command runs
until it ends. Of each kill it is checked that each result stands as it was, that no cell has two (but in a
group of cells that was cut short, which is sampled anew), that the sweep can be finished, and that no
process, file of /dev/shm or named network namespace is left. Root runs it where nothing else is seen, by
unshare(1); others need a machine where nothing else runs. Prints a line for each kill, and counts; exit
status 1 where something was found.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import psutil
from omegaconf import OmegaConf

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support" / "processes")]

from marked import MARK, bearing, left  # noqa: E402
from slurm_cluster import SlurmCluster, why_not  # noqa: E402

from harness.config.run import compose_suite, load, names  # noqa: E402
from harness.records import Status  # noqa: E402

KILLED = ("parent", "child", "below")
DISK, FILE_SIZE = "disk full", "file size"
DISK_MIB = 1024
ENDS_WITHIN_S = 30
SWEEP_WITHIN_S = 900
TRIES = 20
FINISHES = (0, 2, 4)  # a sweep's exit statuses that are an answer: 2 where every cell is unavailable
ALONE = "RANDOM_KILLS_ALONE"  # set where this process sees no others


def words_of(asked: str, out: Path) -> list[str]:
    """Return a command that runs the baseline and one variant of the suite's first tiny workload."""
    suite, _, executor = asked.partition("@")
    config = OmegaConf.to_container(compose_suite(suite, {"executor": "local"}).suite, resolve=True)
    assert isinstance(config, dict)
    name, changes = next(iter(config["tiny"].items()))
    words = [f"suite={suite}", f"workloads=[{name}]", f"out={out}"]
    words += [f"executor={executor}"] if executor else []
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


def alive(process: Any) -> bool:
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def victims(parent: psutil.Popen, kind: str, mark: str) -> list[Any]:
    if kind == "parent":
        return [parent] if alive(parent) else []
    with suppress(psutil.Error):
        children = parent.children()
        below = [one for one in bearing(mark) if one != parent and one not in children]
        return [one for one in (children if kind == "child" else below) if alive(one)]
    return []


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
    folder.mkdir()
    if kind != DISK:
        yield
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


def fill(folder: Path) -> Path:
    with suppress(OSError), (file := folder / "filler").open("wb", buffering=0) as filler:
        while filler.write(bytes(1 << 16)):
            pass
    return file


def limit_files(folder: Path, processes: list[Any]) -> None:
    """Let no process write beyond what the file of results has now, as if the disk were full."""
    records = folder / "out" / "records.jsonl"
    size_B = records.stat().st_size if records.exists() else 0
    for one in processes:
        with suppress(OSError):
            resource.prlimit(one.pid, resource.RLIMIT_FSIZE, (size_B, size_B))


def strike(parent: psutil.Popen, kind: str, folder: Path, mark: str) -> bool:
    """Kill a victim, or take its disk, and wait until the sweep has ended; False where there was none."""
    if kind in KILLED:
        while alive(parent) and not victims(parent, kind, mark):
            time.sleep(0.02)
    found = victims(parent, kind if kind in KILLED else "parent", mark)
    if not found:
        return False
    victim, within_s = random.choice(found), SWEEP_WITHIN_S
    if kind == DISK:
        file = fill(folder)
    elif kind == FILE_SIZE:
        limit_files(folder, [parent, *bearing(mark)])
    else:
        within_s = ENDS_WITHIN_S if victim == parent else SWEEP_WITHIN_S
        with suppress(psutil.Error):
            victim.kill()
    with suppress(psutil.TimeoutExpired):
        parent.wait(within_s)
    if kind == DISK:
        file.unlink()
    return True


def killed_once(asked: str, kinds: list[str], lasts_s: float, folder: Path) -> tuple[str, list[str]]:
    for _ in range(TRIES):
        own, kind = folder / uuid4().hex, random.choice(kinds)
        with disk(own, kind):
            wrong = finished_after(asked, kind, lasts_s, own)
        shutil.rmtree(own)
        if wrong is not None:
            return kind, wrong
    raise RuntimeError(f"{asked}: ended before any of {TRIES} kills")


def finished_after(asked: str, kind: str, lasts_s: float, folder: Path) -> list[str] | None:
    """Kill a sweep with results in the folder, finish it, and return what is wrong; None if it had ended."""
    out, mark, wrong = folder / "out", uuid4().hex, []
    words, before = words_of(asked, out), present(mark)
    parent = started(words, mark)
    time.sleep(random.uniform(0.2, lasts_s))
    if not strike(parent, kind, folder, mark):
        parent.wait(SWEEP_WITHIN_S)
        return None
    if parent.poll() is None:
        wrong.append("the sweep hangs")
        parent.kill()
    if not asked.endswith("@slurm"):  # whose jobs go on without the sweep
        wrong += left_over(mark, before)
    stood = results(out)
    status = started(words, mark).wait(SWEEP_WITHIN_S)
    if status not in FINISHES:
        wrong.append(f"the next start ends with {status}")
    now = results(out)
    wrong += [f"lost or changed: {one.cell}" for one in stood if one not in now]
    wrong += [f"doubled: {cell}" for cell in doubled(stood, now)]
    return wrong + left_over(mark, before)


def left_over(mark: str, before: set[str]) -> list[str]:
    until_s = time.monotonic() + ENDS_WITHIN_S
    while (added := present(mark) - before) and time.monotonic() < until_s:
        time.sleep(0.2)
    return [f"left: {one}" for one in sorted(added)]


def present(mark: str) -> set[str]:
    """Return all other processes where this one is alone, else those of the mark; and shared files."""
    if not os.environ.get(ALONE):
        return left(mark)
    ours = {1, os.getpid()}
    processes = {f"process {one.pid}" for one in psutil.process_iter() if one.pid not in ours and alive(one)}
    return processes | {one for one in left(mark) if not one.startswith("process")}


def doubled(stood: list[Result], now: list[Result]) -> list[str]:
    """Return cells with two results, but for groups that were cut short, which are sampled anew."""
    fresh = now[len(stood) :]
    before, after = ({one.cell for one in some} for some in (stood, fresh))
    again = []
    for one in fresh:
        whole = {other.cell for other in now if other.group == one.group}
        if one.cell in before and (whole <= before or not whole <= after):
            again.append(one.cell)
    return again + [cell for cell, times in Counter(one.cell for one in fresh).items() if times > 1]


def undisturbed_s(asked: str, folder: Path) -> float:
    """Return how long the sweep takes; raises RuntimeError where it cannot be killed, as it does not run."""
    begin_s = time.monotonic()
    status = started(words_of(asked, folder / asked), uuid4().hex).wait(SWEEP_WITHIN_S)
    lasts_s = time.monotonic() - begin_s
    print(f"{asked}: undisturbed {lasts_s:.1f} s, exit status {status}", flush=True)
    if status not in FINISHES:
        raise RuntimeError(f"{asked}: an undisturbed sweep ends with {status}")
    return lasts_s


@contextmanager
def cluster(asked: list[str], folder: Path) -> Iterator[None]:
    needed = any(one.endswith("@slurm") for one in asked)
    if needed and (reason := why_not()):
        sys.exit(f"no Slurm: {reason}")
    with SlurmCluster(folder / "cluster") if needed else nullcontext() as slurm:
        os.environ.update(slurm.environ if slurm else {})
        yield


def main(count: int, seed: int, asked: list[str]) -> int:
    random.seed(seed)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no disk stays mounted
    kinds = [*KILLED, FILE_SIZE, *([DISK] if os.geteuid() == 0 else [])]
    found, faults = Counter[str](), 0
    with tempfile.TemporaryDirectory() as name, cluster(asked, folder := Path(name)):
        lasts_s = {one: undisturbed_s(one, folder) for one in asked}
        for number in range(count):
            one = asked[number % len(asked)]
            kind, wrong = killed_once(one, kinds, lasts_s[one], folder)
            found[kind] += 1
            faults += len(wrong)
            said = "; ".join(wrong) or "as it should be"
            print(f"{number + 1}/{count} {one}, {kind}: {said}", flush=True)
    print(", ".join(f"{kind}: {found[kind]}" for kind in kinds))
    print(f"{sum(found.values())} kills, {faults} faults")
    return 1 if faults else 0


def alone() -> None:
    """Start this program again where it sees no other's processes and shared files; root can."""
    shared = [one for one in ("/dev/shm", "/run/netns") if Path(one).is_dir()]
    mounts = "; ".join(f"mount -t tmpfs none {one}" for one in shared)
    command = f'{mounts}; "$@"; exit $?'  # the shell stays, to take in processes without a parent
    environment = {**os.environ, ALONE: "1"}
    program = ["sh", "-c", command, "sh", sys.executable, *sys.argv]
    os.execvpe("unshare", ["unshare", "--pid", "--fork", "--mount", "--mount-proc", *program], environment)


if __name__ == "__main__":
    if os.geteuid() == 0 and shutil.which("unshare") and not os.environ.get(ALONE):
        alone()
    given = sys.argv[1:]
    sys.exit(main(int(given[0]), int(given[1]) if len(given) > 1 else 0, given[2:] or names("suite")))
