"""A variant of the interconnect suite, and the ranks that a workload's variants share, on any machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from harness.instruments.distributed.rank_pool import RankPool
from harness.instruments.distributed.remote_ranks import Launch, places
from harness.records import Unavailable
from suites.interconnect import on_rank
from suites.interconnect.workload import Workload
from suites.training.shared_trainers import SharedTrainers
from suites.training.step import TrainingStep
from suites.training.techniques import Techniques, apply_techniques, build_step, strategy_of


class TrainingCluster(SharedTrainers):
    """A pool, and the variants that have trainers on it; `close` ends the pool."""

    def __init__(self, pool: RankPool) -> None:
        super().__init__(pool, on_rank)
        self._known: dict[str, float] = {}
        self.call("use_ring")

    @contextmanager
    def trainer(self, key: str, step: TrainingStep) -> Iterator[None]:
        """Create a trainer of that name on every rank, unless there is one."""
        self.call("make", key=key, step=step.described)
        try:
            yield
        finally:
            if len(self.pool):
                self.call("drop", key=key)

    def once(self, key: str, work: Callable[[], float]) -> float:
        """Return what `work` gave the first time, for variants that differ in their link alone."""
        if key not in self._known:
            self._known[key] = work()
        return self._known[key]


STRATEGIES: dict[str, str] = {"ddp": "ddp", "fsdp2": "fsdp2", "zero3": "zero"}
"""The technique behind each strategy."""

SHARED: Techniques = [{"attention": {"kernel": "flash"}}]
"""Techniques that plain PyTorch has too where a strategy is compared with it."""


def strategy_techniques(workload: Workload) -> Techniques:
    """Return the workload's strategy as a technique, its messages scaled to the model.

    torch's buckets of 25 MiB and deepspeed's of 500 million elements are parts of a model of billions of
    parameters, and all of one that two cores train; here a bucket is one block.
    """
    settings = {
        "ddp": {"buckets": workload.num_hidden_layers},
        "fsdp2": {"reduce_every_micro_batch": False},
        "zero3": {"stage": 3, "buckets": "block"},
    }[workload.strategy]
    return [{STRATEGIES[workload.strategy]: settings}]


def strategy_step(workload: Workload, seed: int) -> TrainingStep:
    """Return the training step of the workload's strategy, without any further technique."""
    return build_step(workload.training, [*SHARED, *strategy_techniques(workload)], seed)


@dataclass(frozen=True, slots=True)
class Subject:
    """One variant: a training step and its link. `link_B_per_s` is at the scale of the paper's run."""

    workload: Workload
    seed: int
    step: TrainingStep
    link_B_per_s: float

    @property
    def strategy(self) -> str:
        """Return how ranks share the model: the workload's strategy, or what took its place."""
        technique = strategy_of(self.step)
        return self.step.features.sharding if technique == "zero" else str(technique)

    def with_techniques(self, techniques: Techniques) -> Subject:
        """Return the subject with further techniques of its step; raises `Unavailable`."""
        return replace(self, step=apply_techniques(self.step, techniques))


TIMEOUT_S = 300.0
"""Timeout of a call: NCCL sets up its channels in the first."""


class RealCluster(TrainingCluster):
    """One rank for each process that torchrun or srun started; nothing is shaped or predicted.

    `conditions` are those that a claim may name.
    """

    def __init__(self, here: Launch) -> None:
        backend = backend_of(here)
        super().__init__(RankPool(places(here, {}), here.address, backend, TIMEOUT_S))
        self.conditions = {"backend": backend, "device": "cuda" if backend == "nccl" else "cpu"}
        try:
            described = self.call("describe_rank")
            ranks = [(machine, local) for machine, local, _ in described]
            self.conditions["network"] = network_of(here, ranks)
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
    few = f"{seen} GPUs are too few for the {here.per_node} ranks of a node"
    raise Unavailable(f"{few}: start as many as there are")


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
