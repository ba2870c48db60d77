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
from typing import Any

from harness.config_schema import SlurmSchema
from harness.executors import ExecutorError
from harness.executors.job_folder import JobFolder
from harness.executors.jobs import JobResources, JobsExecutor, QueueRefusal
from harness.executors.submitted_job import JobEnd
from harness.records import Status

ROOT = Path(__file__).parents[2]
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

NODE_ADDRESS = (
    'scontrol --oneliner show node "$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)" '
    "| grep -o ' NodeAddr=[^ ]*' | cut -d= -f2"
)
FIRST_PORT, PORTS = 20_000, 10_000
"""Of where ranks meet: below the ephemeral ports of Linux, different for jobs that share a node."""


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
            self._rows(())
        except OSError as error:
            raise ExecutorError(f"executor=slurm: the cluster cannot be reached: {error}") from None

    def submit(self, job: JobFolder, timed: bool) -> None:
        """Queue a job; raises QueueRefusal with sbatch's own message."""
        import submitit
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        executor = submitit.SlurmExecutor(folder=job.path)
        executor.update_parameters(**parameters(self._settings, job.name, timed))
        python = self._settings.python or shlex.quote(sys.executable)
        try:
            executor._submit_command(f"{python} -u -m harness.executors.job {shlex.quote(str(job.path))}")
        except (FailedJobError, FailedSubmissionError) as error:
            raise QueueRefusal(message(str(error))) from None

    def ends(self, jobs: Mapping[str, str]) -> dict[str, JobEnd | None]:
        """Return how jobs ended, as squeue reports it for minutes, then sacct where there is one."""
        rows = self._rows(tuple(jobs))
        left = [name for name in jobs if name not in {row[0] for row in rows}]
        rows += self._accounted(left) if left else []
        found: dict[str, JobEnd | None] = {}
        for name, by in jobs.items():
            own = [row for row in rows if row[0] == name and by in ("", row[1])]
            ends = [_end(*row[1:]) for row in own]
            if ends:
                found[name] = None if None in ends else ends[-1]
        return found

    def cancel(self, names: Sequence[str]) -> None:
        """End jobs with scancel."""
        ids = [row[1] for row in self._rows(tuple(names)) if row[2] not in ENDS] if names else []
        if ids:
            _call(["scancel", *ids])

    def close(self) -> None:
        """Nothing is held."""

    @staticmethod
    def _rows(names: Sequence[str]) -> list[list[str]]:
        """Return name, id, state, nodes and reason of this user's jobs, of a name if any; raises OSError."""
        states = ["--states=all", f"--name={','.join(names)}"] if names else []
        done = _call(["squeue", "--me", "--noheader", *states, "--format=%j|%A|%T|%N|%r"])
        if done.returncode:
            raise OSError(message(done.stderr))
        return [line.split("|") for line in done.stdout.splitlines()]

    @staticmethod
    def _accounted(names: Sequence[str]) -> list[list[str]]:
        """Return the same of jobs that ended long ago, from the accounting; nothing where there is none."""
        which = [f"--name={','.join(names)}", "--starttime=now-30days"]
        columns = ["--noheader", "--parsable2", "--format=JobName,JobID,State,NodeList"]
        done = _call(["sacct", "--allocations", *which, *columns])
        rows = [line.split("|") for line in done.stdout.splitlines()] if not done.returncode else []
        return [[name, number, state.split()[0], nodes, ""] for name, number, state, nodes in rows]


def _end(number: str, state: str, nodes: str, why: str) -> JobEnd | None:
    if state == "PENDING" and why in NEVER:
        return JobEnd(Status.UNAVAILABLE, f"{number} cannot start: Slurm's reason is {why}", never=True)
    if state not in ENDS:
        return None
    status, reason = ENDS[state]
    return JobEnd(status, reason.format(id=number, nodes=nodes or "its nodes"), state in ENDED_BY_ITSELF)


def parameters(settings: SlurmSchema, name: str, timed: bool) -> dict[str, Any]:
    """Return submitit's parameters of one job."""
    exclusive = timed if settings.exclusive is None else settings.exclusive
    memory = None if settings.memory_GB is None else f"{settings.memory_GB * 1000:.0f}M"
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    setup = [*settings.setup, f"export PYTHONPATH={shlex.quote(path)}"]
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


def message(text: str) -> str:
    """Return the first line of what a command of Slurm's reports as an error, without its own name."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no message"]
    errors = [line for line in lines if "error:" in line] or lines
    return re.sub(r"^\w+: (error: )?", "", errors[0])


def _call(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", f"{command[0]}: {error}")


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
    }
    words = [f"{key}={value}" for key, value in asked.items() if value]
    request = ", ".join([f"{slurm.nodes} x {slurm.ranks_per_node}", *words])
    resources = JobResources(f"slurm: {request}", slurm.gpus_per_node)
    return JobsExecutor(folder, SlurmQueue(slurm), workers, slurm.groups_per_job, resources)
