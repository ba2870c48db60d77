"""One job on a cluster's node: run its groups as the local executor does, and write the events to its folder.

`python -m harness.sweep.executors.job FOLDER` is what a Slurm job runs, under srun once per rank. Ray calls
`run_job`.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from harness.records import LOST, Status
from harness.sweep.environment import Environment, describe, from_dict
from harness.sweep.executors import CellFinished, CellStarted, now
from harness.sweep.executors.child import kill_by_tmpdir
from harness.sweep.executors.job_folder import (
    JOB,
    UNSEEN,
    EventFile,
    JobFolder,
    JobSpec,
    nodes_file,
    write_once,
)
from harness.sweep.executors.local import LocalExecutor
from harness.sweep.executors.torchrun import executor_context

DECISIVE = ("cpu", "cores", "gpus", "driver", "python", "versions")
"""Fields of an environment, besides its memory, by which the values of two nodes may differ."""


def run_job(path: Path, by: str) -> None:
    """Run the job of a folder, unless another has claimed it; raises OSError where it cannot be read."""
    job = JobFolder(path)
    spec = job.spec()
    if spec is None:
        raise FileNotFoundError(f"{socket.gethostname()} {UNSEEN} {path}")
    environment = describe(spec.ranks)
    if not job.claim(by, environment):
        return
    different = _difference(job, spec, environment)
    with EventFile(job) as events:
        if different:
            for cell in (cell for group in spec.groups for cell in group.cells):
                events.write(CellStarted(cell.id, now()))
                events.write(CellFinished(cell.id, Status.UNAVAILABLE, different, 0.0))
            return
        with _node_folder() as folder:
            for event in LocalExecutor(folder).run(spec.groups, spec.limits, len(spec.groups) > 1):
                events.write(event)


def _difference(job: JobFolder, spec: JobSpec, environment: Environment) -> str:
    """Return in what this node differs from the first one that ran cells of this folder; empty: in nothing.

    Reports pool the repeats of a cell, so that those of unlike nodes must not be in one folder.
    """
    path = nodes_file(job.path.parent, spec.kind)
    if write_once(path, environment.to_dict()):
        return ""
    first = from_dict(json.loads(path.read_text()))
    if first.host == environment.host:
        return ""
    names = (name for name in DECISIVE if getattr(first, name) != getattr(environment, name))
    name = next(names, "memory_B")
    return (
        f"{LOST}ran on a node unlike the first of this folder ({name}: {getattr(environment, name)}, "
        f"there {getattr(first, name)}); choose alike nodes, or another out="
    )


@contextmanager
def _node_folder() -> Iterator[Path]:
    """Yield a folder on the node's own disk for what the children leave, and remove it."""
    begin = f"harness-{os.getuid()}-"
    for old in Path(tempfile.gettempdir()).glob(f"{begin}*"):
        with suppress(OSError):
            _remove_if_left(old)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=begin))
        lock = os.open(folder, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():  # no other job took it for one that was left
            break
        os.close(lock)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_if_left(folder: Path) -> None:
    """Remove the folder of a job that was killed: nobody holds its lock. Raises OSError where one does."""
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        kill_by_tmpdir(folder)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    """End as Slurm requests with SIGTERM; what the children left is removed on the way."""
    raise SystemExit(128 + number)


def main() -> None:
    """Run the job of the folder in the first argument; under srun, rank 0 runs it and the others serve it."""
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGUSR2, lambda number, frame: None)  # submitit makes Slurm announce the end with it
    path = Path(sys.argv[1])
    if not (path / JOB).exists():
        sys.exit(f"{socket.gethostname()} {UNSEEN} {path}")
    with executor_context():
        run_job(path, os.environ.get("SLURM_JOB_ID", ""))


if __name__ == "__main__":
    main()
