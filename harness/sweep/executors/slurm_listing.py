"""Jobs as Slurm lists them: squeue those that wait, run or ended a short while ago, sacct older ones."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from harness.records import Status
from harness.sweep.executors.job_folder import TASK, array_of
from harness.sweep.executors.submitted_job import JobEnd

COMMAND_S = 120.0
"""How long a command of Slurm's may take; it tries for a while to reach the controller."""

ENDED_BY_ITSELF = frozenset({"COMPLETED", "FAILED"})

ENDS: Mapping[str, tuple[Status, str]] = {
    "COMPLETED": (Status.UNAVAILABLE, "{id} ended"),
    "FAILED": (Status.UNAVAILABLE, "{id} failed on {nodes}"),
    "CANCELLED": (Status.UNAVAILABLE, "{id} was cancelled"),
    "PREEMPTED": (Status.UNAVAILABLE, "{id} was preempted"),
    "NODE_FAIL": (Status.UNAVAILABLE, "{id} ended when a node of {nodes} failed"),
    "BOOT_FAIL": (Status.UNAVAILABLE, "{id} ended when a node of {nodes} failed to boot"),
    "TIMEOUT": (Status.TIMED_OUT, "{id} exceeded Slurm's time limit (executor.time_limit_min)"),
    "DEADLINE": (Status.TIMED_OUT, "{id} exceeded Slurm's deadline"),
    "OUT_OF_MEMORY": (Status.OUT_OF_MEMORY, "{id} exceeded Slurm's memory limit (executor.memory_GB)"),
}
"""States in which a job has ended (squeue(1), JOB STATE CODES); in any other it waits or runs."""

NEVER = frozenset(
    {
        "AccountNotAllowed",
        "AssocMaxWallDurationPerJobLimit",
        "BadConstraints",
        "InvalidAccount",
        "InvalidQOS",
        "PartitionNodeLimit",
        "PartitionTimeLimit",
        "QOSMaxWallDurationPerJobLimit",
        "QOSNotAllowed",
    }
)
"""Reasons for which a job waits and will not start (squeue(1), JOB REASON CODES)."""


class SlurmJobRow(NamedTuple):
    """A job as Slurm lists it.

    `title` is its id in words, `12` or `12_3`; `number` its own SLURM_JOB_ID once it has begun.
    """

    title: str
    number: str
    state: str
    nodes: str
    why: str
    name: str


def listed(names: Sequence[str]) -> list[SlurmJobRow]:
    """Return this user's jobs of these names in any state, with the other tasks of their arrays.

    Raises OSError where Slurm does not answer.
    """
    which = ["--states=all", f"--name={_arrays(names)}"]
    done = call(["squeue", "--me", "--noheader", *which, "--format=%i|%A|%T|%N|%r|%j"])
    if done.returncode:
        raise OSError(message(done.stderr))
    return [row for line in done.stdout.splitlines() for row in _tasks(SlurmJobRow(*line.split("|")))]


def accounted(names: Sequence[str]) -> list[SlurmJobRow]:
    """Return the same of jobs that ended long ago, from the accounting; nothing where there is none."""
    which = [f"--name={_arrays(names)}", "--starttime=now-30days"]
    columns = ["--noheader", "--parsable2", "--format=JobID,JobIDRaw,State,NodeList,JobName"]
    done = call(["sacct", "--allocations", *which, *columns])
    found = []
    for line in [] if done.returncode else done.stdout.splitlines():
        title, number, state, nodes, name = line.split("|")
        found += _tasks(SlurmJobRow(title, number, state.split()[0], nodes, "", name))
    return found


def _arrays(names: Sequence[str]) -> str:
    """Return what Slurm calls these jobs: all tasks of an array have its name."""
    return ",".join(sorted({array_of(name) for name in names}))


def _tasks(row: SlurmJobRow) -> list[SlurmJobRow]:
    """Return one row per job: Slurm lists tasks that have not begun as one, with title `12_[3-9:2,14%4]`."""
    number, _, tasks = row.title.partition("_")
    found = []
    for part in tasks.strip("[]").partition("%")[0].split(",") if tasks else ():
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        for task in range(int(first), int(last or first) + 1, int(step or 1)):
            found.append(row._replace(title=f"{number}_{task}", name=f"{row.name}{TASK}{task}"))
    return found or [row]


def end_of(row: SlurmJobRow) -> JobEnd | None:
    """Return how a job ended; None while it waits or runs."""
    if row.state == "PENDING" and row.why in NEVER:
        reason = f"{row.title} cannot start: Slurm's reason is {row.why}"
        return JobEnd(Status.UNAVAILABLE, reason, never=True)
    if row.state not in ENDS:
        return None
    status, reason = ENDS[row.state]
    text = reason.format(id=row.title, nodes=row.nodes or "its nodes")
    return JobEnd(status, text, row.state in ENDED_BY_ITSELF)


def message(text: str) -> str:
    """Return the first line of what a command of Slurm's reports as an error, without its own name."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no message"]
    errors = [line for line in lines if "error:" in line] or lines
    return re.sub(r"^\w+: (error: )?", "", errors[0])


def call(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command of Slurm's; one that cannot be run has failed."""
    environ = {**os.environ, "SLURM_BITSTR_LEN": "0"}  # lists of an array's tasks are not cut
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=COMMAND_S, check=False, env=environ
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", f"{command[0]}: {error}")
