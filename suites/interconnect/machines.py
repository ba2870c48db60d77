"""Ranks that torchrun or srun started, on the network that their machines have: none shaped or foretold."""

from __future__ import annotations

import torch

from harness.instruments.launched import Launch, places
from harness.instruments.ranks import Pool
from harness.records import Unavailable
from suites.interconnect.subject import Subject, Workload
from suites.interconnect.trainers import Trainers

TIMEOUT_S = 300.0
"""Of a call: NCCL finds its ways at the first."""


class Machines(Trainers):
    """One rank for each process that was started; NCCL where this node has a GPU for each of its ranks."""

    def __init__(self, here: Launch) -> None:
        super().__init__(Pool(places(here, {}), here.address, backend_of(here), TIMEOUT_S))


def backend_of(here: Launch) -> str:
    """The backend of torch.distributed."""
    return "nccl" if torch.cuda.device_count() >= here.per_node else "gloo"


def refuse_other(workload: Workload, here: Launch) -> None:
    """Raises `Unavailable` where the workload is for other nodes than were started."""
    asked = (workload.nodes, workload.ranks_per_node)
    if asked != (here.nodes, here.per_node):
        raise Unavailable(
            f"it is for {workload.nodes} nodes of {workload.ranks_per_node} ranks, and {here.nodes} of "
            f"{here.per_node} were started: set its nodes={here.nodes} and ranks_per_node={here.per_node}"
        )


def refuse_links(subject: Subject) -> None:
    """Raises `Unavailable` for an arm that is the same training behind another link."""
    if subject.link_B_per_s != subject.workload.link_B_per_s:
        raise Unavailable(
            "the network between these machines is what it is: no other link can be tried on it"
        )


def conditions(here: Launch) -> dict[str, str]:
    """What a claim may ask after."""
    backend = backend_of(here)
    device = (
        {"device": "cuda", "device_name": torch.cuda.get_device_name()}
        if backend == "nccl"
        else {"device": "cpu"}
    )
    return {**device, "backend": backend, "network": "real"}
