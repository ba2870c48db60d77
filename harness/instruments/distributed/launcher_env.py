"""The environment that torchrun or srun gives a process: its rank, the number of ranks, where they meet.

Standard library only, because the parent imports it first.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NamedTuple
from uuid import uuid4

from harness.instruments.distributed.rank_pool import RankLocation
from harness.instruments.distributed.rank_worker import POOL, STORE

REMOTE = "harness.instruments.distributed.remote_ranks"
RUN = "HARNESS_RUN"
"""Distinguishes the keys of one start of a job from those of another in the same store."""

READY = "ready"
PATIENCE_S = 30.0


class LaunchError(ValueError):
    """A launcher's variables are unusable; the text names which, and what to do."""


class Launch(NamedTuple):
    """This process among all: `local` of `per_node` on its node. `hosts`: this process must open the store.

    `run` names this start of the job.
    """

    rank: int
    world: int
    local: int
    per_node: int
    address: str
    port: int
    hosts: bool
    run: str

    @property
    def nodes(self) -> int:
        """Return the number of nodes."""
        return self.world // self.per_node

    @property
    def store(self) -> str:
        """Return the address of the common store."""
        return f"{self.address}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of a process of `REMOTE`: where to meet."""
        return {STORE: self.store, RUN: self.run}


def launch(environ: Mapping[str, str] | None = None) -> Launch | None:
    """Return the launch that the environment describes; None for a process started alone. Raises
    LaunchError.
    """
    environ = os.environ if environ is None else environ
    if "TORCHELASTIC_RUN_ID" in environ:
        numbers = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        rank, world, local, per_node = (int(environ[name]) for name in numbers)
        hosts = environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        run = f"{environ['TORCHELASTIC_RUN_ID']}/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        nodes = world // per_node
    elif "SLURM_STEP_NUM_TASKS" in environ and "SLURM_PROCID" in environ:
        numbers = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_NUM_NODES")
        rank, world, local, nodes = (int(environ[name]) for name in numbers)
        per_node, hosts = -(-world // nodes), True
        run = f"{environ.get('SLURM_JOB_ID', '')}.{environ.get('SLURM_STEP_ID', '')}"
    else:
        return None
    if world == 1:
        return None
    if world != nodes * per_node:
        raise LaunchError(f"{world} processes are spread unevenly over the nodes: {per_node} are on one")
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if name not in environ:
            raise LaunchError(
                f"{name} is missing: started as process {rank} of {world}, and these meet at the first node: "
                "export MASTER_ADDR (its name) and MASTER_PORT (a free port)"
            )
    port = int(environ["MASTER_PORT"])
    return Launch(rank, world, local, per_node, environ["MASTER_ADDR"], port, hosts, run)


def places(launch: Launch, environment: Mapping[str, str]) -> list[RankLocation]:
    """Return where the ranks of one pool run: rank 0 here, the others where they were started."""
    relay = (sys.executable, "-u", "-m", REMOTE, "relay")
    given = {**environment, **launch.environment, POOL: uuid4().hex}
    here = RankLocation((), {**given, "LOCAL_RANK": str(launch.local)})
    return [here, *(RankLocation(relay, given) for _ in range(1, launch.world))]


def serve(launch: Launch) -> None:
    """Run this rank whenever rank 0 asks for it; does not return."""
    os.environ.update(launch.environment)
    os.execv(
        sys.executable, [sys.executable, "-u", "-m", REMOTE, "serve", str(launch.rank), str(launch.local)]
    )


@contextmanager
def attended(launch: Launch | None) -> Iterator[None]:
    """Keep the other ranks alive inside the block and shut them down on exit, however it exits.

    Raises LaunchError where they cannot meet.
    """
    if launch is None:
        yield
        return
    role = "host" if launch.hosts else "visit"
    words = [sys.executable, "-u", "-m", REMOTE, "keep", role, str(launch.world - 1)]
    environment = {**os.environ, **launch.environment}
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        reply = process.stdout.readline().decode().strip() if process.stdout else ""
        if reply != READY:
            raise LaunchError(f"ranks cannot meet at {launch.store}: {reply}")
        try:
            yield
        finally:
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=2 * PATIENCE_S)
            process.kill()
            if process.wait() and not launch.hosts:  # it was killed without notice
                subprocess.run(words, stdin=subprocess.DEVNULL, env=environment, check=False)
