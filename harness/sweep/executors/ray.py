"""Cells as actors of a Ray cluster: `executor=ray`, configured in conf/executor/ray.yaml.

Each job is one detached actor, which goes on where this process is killed. It reports by the files of its
folder, as a job of Slurm does, so that the nodes must share that.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.config.code_fingerprint import ROOT
from harness.config.schema import RaySchema
from harness.instruments.distributed.ray_session import NAMESPACE, RayError, RaySession
from harness.records import Status
from harness.sweep.executors import ExecutorError
from harness.sweep.executors.job_folder import JobEnd, JobFolder
from harness.sweep.executors.jobs import JobsExecutor, QueueRefusal

OUT_OF_MEMORY = "running low on memory"  # text in Ray's report on a worker that it ended for memory

NODE_LOST_S = 25.0
"""How long after a worker's death Ray may report that its node is lost: after five health checks of 3 s."""


class RayQueue:
    """The Ray cluster at an address, or one of this machine."""

    title = "ray"

    def __init__(self, settings: RaySchema) -> None:
        self._settings = settings
        self._session: RaySession | None = None
        self._actor: Any = None
        self._running: dict[str, Any] = {}  # by job, what is ready when it has ended
        self._died_s: dict[str, float] = {}  # when its worker was found dead

    def open(self) -> None:
        """Join the cluster, or start one; raises ExecutorError."""
        try:
            import ray
        except ImportError:
            raise ExecutorError("executor=ray: ray is not installed; the extra `ray` has it") from None
        try:
            self._session = RaySession(self._settings.address or "", environ={})
        except RayError as error:
            raise ExecutorError(f"executor=ray: {error}") from None
        self._actor = ray.remote(max_restarts=0)(_actor_class())

    def submit(self, jobs: Sequence[JobFolder], timed: bool) -> None:
        """Queue jobs; raises QueueRefusal where no node has what one needs."""
        settings = self._settings
        exclusive = timed if settings.exclusive is None else settings.exclusive
        cpus = max(node.get("CPU", 0) for node in _nodes().values()) if exclusive else settings.cpus_per_job
        if not any(
            node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= settings.gpus_per_job
            for node in _nodes().values()
        ):
            raise QueueRefusal(f"no node of the cluster has {cpus:g} CPUs and {settings.gpus_per_job} GPUs")
        for job in jobs:
            actor = self._actor.options(
                name=job.name,
                namespace=NAMESPACE,
                lifetime="detached",
                num_cpus=cpus,
                num_gpus=settings.gpus_per_job,
                scheduling_strategy="SPREAD",
            ).remote()
            self._running[job.name] = actor.run.remote(str(ROOT), str(job.path))

    def ends(self, jobs: Mapping[str, str]) -> dict[str, JobEnd | None]:
        """Return how jobs ended, as Ray reports it on their actors."""
        import ray

        found: dict[str, JobEnd | None] = {}
        for name, by in jobs.items():
            if name not in self._running:
                try:
                    self._running[name] = ray.get_actor(name, namespace=NAMESPACE).ended.remote()
                except ValueError:  # there is no such actor any more
                    if not self._settings.address and _is_running(by):
                        found[name] = None
                    continue
            ready, _ = ray.wait([self._running[name]], timeout=0)
            found[name] = self._end(name, by) if ready else None
        return found

    def _end(self, name: str, by: str) -> JobEnd | None:
        """Return how the actor of a job ended; None until it is known whether its node was lost, too."""
        import ray
        from ray.exceptions import RayActorError, RayTaskError

        try:
            ray.get(self._running[name])
        except RayTaskError as error:
            self.cancel([name])
            return JobEnd(Status.UNAVAILABLE, "failed", by_itself=True, cause=_last_line(str(error)))
        except RayActorError as error:
            text = str(error)
            if OUT_OF_MEMORY in text:
                return JobEnd(Status.OUT_OF_MEMORY, "was ended by Ray, whose node was running low on memory")
            if by and by.split(":")[0] not in _nodes():
                return JobEnd(Status.UNAVAILABLE, "ended when its Ray node was lost")
            if "exit_actor" in text:
                return JobEnd(Status.UNAVAILABLE, "ended", by_itself=True)
            if "ray.kill" in text:
                return JobEnd(Status.UNAVAILABLE, "was killed by `ray.kill`")
            if time.monotonic() < self._died_s.setdefault(name, time.monotonic()) + NODE_LOST_S:
                return None
            return JobEnd(Status.UNAVAILABLE, "ended when its Ray worker died")
        return JobEnd(Status.UNAVAILABLE, "ended", by_itself=True)

    def cancel(self, names: Sequence[str]) -> None:
        """Kill the actors of jobs."""
        import ray

        for name in names:
            with suppress(ValueError):
                ray.kill(ray.get_actor(name, namespace=NAMESPACE), no_restart=True)

    def close(self) -> None:
        """Leave the cluster, or end it if it was started here."""
        self._running.clear()
        if self._session is not None:
            self._session.close()
            self._session = None


def _actor_class() -> type:
    """Return the class of a job's actor. Of a class defined here Ray sends the code, which needs no path."""

    class JobActor:
        def run(self, root: str, path: str) -> None:
            import os
            import sys
            from pathlib import Path

            import ray

            sys.path.insert(0, root)
            os.environ.pop("OMP_NUM_THREADS", None)  # which Ray sets to 1, whatever the job has
            from harness.sweep.executors.job import run_job
            from harness.sweep.executors.ray import claim_of

            run_job(Path(path), claim_of(ray.get_runtime_context().get_node_id(), os.getpid()))
            ray.actor.exit_actor()

        def ended(self) -> None:
            """Return once `run` has: calls of an actor run one after another."""

    return JobActor


def claim_of(node: str, pid: int) -> str:
    """Return what identifies a worker: its node, its number, and when that process started."""
    return f"{node}:{pid}:{_started(pid)}"


def _started(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


def _is_running(by: str) -> bool:
    """Return whether the worker that claimed a job still runs on this machine."""
    _, _, process = by.partition(":")
    pid, _, started = process.partition(":")
    return started != "" and _started(int(pid)) == started


def _nodes() -> dict[str, Mapping[str, float]]:
    import ray

    return {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}


def _last_line(text: str) -> str:
    return [line.strip() for line in text.splitlines() if line.strip()][-1]


def create(folder: Path, workers: int, settings: Mapping[str, Any]) -> JobsExecutor:
    """Return the executor for a results folder, with at most `workers` jobs in Ray's queue."""
    ray = RaySchema(**settings)
    asked = {"cpus_per_job": ray.cpus_per_job, "gpus_per_job": ray.gpus_per_job, "exclusive": ray.exclusive}
    request = ", ".join(f"{key}={value}" for key, value in asked.items() if value)
    queue = RayQueue(ray)
    return JobsExecutor(folder, queue, workers, ray.groups_per_job, f"ray: {request}", ray.gpus_per_job)
