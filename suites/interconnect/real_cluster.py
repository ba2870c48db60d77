"""Ranks that torchrun or srun started, on their machines' own network: nothing is shaped or predicted."""

from __future__ import annotations

import torch

from harness.instruments.distributed.launcher_env import Launch, places
from harness.instruments.distributed.rank_pool import RankPool
from harness.records import Unavailable
from suites.interconnect.subject import Subject
from suites.interconnect.training_cluster import TrainingCluster
from suites.interconnect.workload import Workload

TIMEOUT_S = 300.0
"""Timeout of a call: NCCL sets up its channels in the first."""


class RealCluster(TrainingCluster):
    """One rank for each process that was started; `conditions` are those that a claim may name."""

    def __init__(self, here: Launch) -> None:
        backend = backend_of(here)
        super().__init__(RankPool(places(here, {}), here.address, backend, TIMEOUT_S))
        self.conditions = {"backend": backend, "device": "cuda" if backend == "nccl" else "cpu"}
        try:
            described = self.call("describe_rank")
            self.conditions["network"] = network_of(
                here, [(machine, local) for machine, local, _ in described]
            )
            if backend == "nccl":
                self.conditions["device_name"] = ", ".join(sorted({device for _, _, device in described}))
        except BaseException:
            self.close()
            raise


def backend_of(here: Launch) -> str:
    """Return NCCL where each rank has a GPU, one that only it sees or one of its node's; else gloo.

    Raises `Unavailable` for GPUs that do not suffice.
    """
    seen = torch.cuda.device_count()
    if seen == 0:
        return "gloo"
    if seen == 1 or seen >= here.per_node:
        return "nccl"
    raise Unavailable(
        f"{seen} GPUs are too few for the {here.per_node} ranks of a node: start as many as there are"
    )


def network_of(here: Launch, ranks: list[tuple[str, int]]) -> str:
    """Return `real`, or `loopback` where nodes share a machine; by each rank's machine and number there.

    Raises `Unavailable` where neighbours in rank are not neighbours in a node.
    """
    nodes = [ranks[first : first + here.per_node] for first in range(0, here.world, here.per_node)]
    for node in nodes:
        machines = {machine for machine, _ in node}
        if len(machines) != 1 or [local for _, local in node] != list(range(here.per_node)):
            raise Unavailable(
                "ranks must be numbered node by node (srun --distribution=block, as many on each): "
                f"{here.per_node} in a row are on {len(machines)} machines"
            )
    return "real" if len({node[0][0] for node in nodes}) == here.nodes else "loopback"


def validate_nodes(workload: Workload, here: Launch) -> None:
    """Raise `Unavailable` where the workload needs other nodes than the launcher started."""
    requested = (workload.nodes, workload.ranks_per_node)
    if requested != (here.nodes, here.per_node):
        raise Unavailable(
            f"nodes={workload.nodes}, ranks_per_node={workload.ranks_per_node}: the launcher started "
            f"nodes={here.nodes}, ranks_per_node={here.per_node}; set these on the workload"
        )


def validate_link(subject: Subject) -> None:
    """Raise `Unavailable` for a variant that is the same training behind another link."""
    if subject.link_B_per_s != subject.workload.link_B_per_s:
        raise Unavailable("the network between these machines cannot be shaped: no other link can be tried")
