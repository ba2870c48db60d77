"""Cells as jobs of a Slurm cluster: `executor=slurm`, configured in conf/executor/slurm.yaml.

submitit writes the batch script and calls sbatch. Its pickles are not used: the job gets a command, and
reports by the files of its folder.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness.config.schema import SlurmSchema
from harness.records import Status, digest
from harness.sweep.executors import ExecutorError
from harness.sweep.executors.job_folder import TASK, JobEnd, JobFolder, array_of
from harness.sweep.executors.jobs import JobsExecutor, QueueRefusal
from harness.sweep.in_child import python_path

COMMAND_S = 120.0  # how long a command of Slurm's may take; it tries for a while to reach the controller

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
    """A job as Slurm lists it."""

    title: str  # its id in words, `12` or `12_3`
    number: str  # its own SLURM_JOB_ID once it has begun
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


NODE_ADDRESS = (
    'scontrol --oneliner show node "$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)" '
    "| grep -o ' NodeAddr=[^ ]*' | cut -d= -f2"
)
FIRST_PORT, PORTS = 20_000, 10_000
"""Ports where ranks meet: below Linux's ephemeral ports, different for jobs that share a node."""

FOLDERS = re.compile(r"[^\s='\"]*/")
"""Matches all but the last part of a path, or of an image's address, in a command."""


class SlurmQueue:
    """The cluster of this login node."""

    title = "slurm"

    def __init__(self, settings: SlurmSchema) -> None:
        self._settings = settings

    def open(self) -> None:
        """See whether jobs can be submitted from here; raises ExecutorError."""
        try:
            import submitit  # noqa: F401
        except ImportError:
            raise ExecutorError(
                "executor=slurm: submitit is not installed; the extra `slurm` has it"
            ) from None
        for program in ("sbatch", "squeue", "srun"):
            if shutil.which(program) is None:
                raise ExecutorError(
                    f"executor=slurm: no {program} here; run this on a login node of the cluster"
                )
        try:
            listed(["none"])
        except OSError as error:
            raise ExecutorError(f"executor=slurm: the cluster cannot be reached: {error}") from None

    def submit(self, jobs: Sequence[JobFolder], timed: bool) -> None:
        """Queue a job, or several as an array; raises QueueRefusal with sbatch's own message."""
        import submitit
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        array = jobs[0].array
        given = parameters(self._settings, array.name, timed)
        path = shlex.quote(str(array))
        if len(jobs) > 1:
            given = _as_array(given, array, len(jobs), self._settings.array_parallelism)
            path += f"{TASK}$SLURM_ARRAY_TASK_ID"
        executor = submitit.SlurmExecutor(folder=jobs[0].path)
        executor.update_parameters(**given)
        python = self._settings.python or shlex.quote(sys.executable)
        try:
            executor._submit_command(f"{python} -u -m harness.sweep.executors.job {path}")
        except (FailedJobError, FailedSubmissionError) as error:
            raise QueueRefusal(message(str(error))) from None

    def ends(self, jobs: Mapping[str, str]) -> dict[str, JobEnd | None]:
        """Return how jobs ended, as squeue reports it for minutes, then sacct where there is one."""
        rows = listed(tuple(jobs))
        left = [*(jobs.keys() - {row.name for row in rows})]
        rows += accounted(left) if left else []
        found: dict[str, JobEnd | None] = {}
        for name, by in jobs.items():
            ends = [end_of(row) for row in rows if row.name == name and by in ("", row.number)]
            if ends:
                found[name] = None if None in ends else ends[-1]
        return found

    def cancel(self, names: Sequence[str]) -> None:
        """End jobs with scancel."""
        rows = listed(names) if names else []
        titles = [row.title for row in rows if row.name in names and row.state not in ENDS]
        if titles:
            call(["scancel", *titles])

    def close(self) -> None:
        """Nothing is held."""


def parameters(settings: SlurmSchema, name: str, timed: bool) -> dict[str, Any]:
    """Return submitit's parameters of one job."""
    exclusive = timed if settings.exclusive is None else settings.exclusive
    memory = None if settings.memory_GB is None else f"{settings.memory_GB * 1000:.0f}M"
    setup = [*settings.setup, f"export PYTHONPATH={shlex.quote(python_path())}"]
    per_task = "${SLURM_CPUS_PER_TASK:-$((SLURM_CPUS_ON_NODE / " + str(settings.ranks_per_node) + "))}"
    setup += [f"export SRUN_CPUS_PER_TASK={per_task}"]  # which srun does not take over from sbatch
    if settings.nodes * settings.ranks_per_node > 1:
        port = f"$(({FIRST_PORT} + SLURM_JOB_ID % {PORTS}))"
        setup += [f"export MASTER_ADDR=$({NODE_ADDRESS})", f"export MASTER_PORT={port}"]
    given = {
        "job_name": name,
        "partition": settings.partition,
        "account": settings.account,
        "qos": settings.qos,
        "constraint": settings.constraint,
        "time": settings.time_limit_min,
        "nodes": settings.nodes,
        "ntasks_per_node": settings.ranks_per_node,
        "gpus_per_node": settings.gpus_per_node or None,
        "cpus_per_task": settings.cpus_per_task,
        "mem": memory or ("0" if exclusive else None),  # 0: all that the node has
        "exclusive": exclusive or None,
        "setup": setup,
        "srun_args": settings.srun_args,
        "use_srun": settings.nodes * settings.ranks_per_node > 1 or bool(settings.srun_args),
        "additional_parameters": {"no-requeue": True},
    }
    return {key: value for key, value in given.items() if value is not None} | {"wckey": None}


def _as_array(given: Mapping[str, Any], array: Path, tasks: int, at_once: int | None) -> dict[str, Any]:
    """Return the parameters of one job as those of an array, whose tasks print into their own folders.

    `array`: the path of these without their numbers; `at_once`: how many tasks may run at once, None: all.
    """
    logs = f"{array}{TASK}%a/%j"
    batch = {
        "array": f"0-{tasks - 1}" + (f"%{at_once}" if at_once else ""),
        "output": f"{logs}_0_log.out",
        "error": f"{logs}_0_log.err",
    }
    ranks = [f"--output={logs}_%t_log.out", f"--error={logs}_%t_log.err"]
    additional = {**given["additional_parameters"], **batch}
    return {**given, "additional_parameters": additional, "srun_args": [*ranks, *given["srun_args"]]}


def _named(command: str) -> str:
    """Return a command without its folders, which may name a user, but with a digest of all of it.

    It has the image of a container, so that cells in two images never count as the same.
    """
    return f"{FOLDERS.sub('', command)} ({digest(command)})" if command else ""


def create(folder: Path, workers: int, settings: Mapping[str, Any]) -> JobsExecutor:
    """Return the executor for a results folder, with at most `workers` jobs in the queue."""
    slurm = SlurmSchema(**settings)
    asked = {
        "partition": slurm.partition,
        "constraint": slurm.constraint,
        "gpus_per_node": slurm.gpus_per_node,
        "cpus_per_task": slurm.cpus_per_task,
        "memory_GB": slurm.memory_GB,
        "exclusive": slurm.exclusive,
        "python": _named(slurm.python or ""),
        "srun_args": _named(" ".join(slurm.srun_args)),
    }
    words = [f"{key}={value}" for key, value in asked.items() if value]
    request = ", ".join([f"{slurm.nodes} x {slurm.ranks_per_node}", *words])
    queue = SlurmQueue(slurm)
    return JobsExecutor(
        folder, queue, workers, slurm.groups_per_job, f"slurm: {request}", slurm.gpus_per_node
    )
