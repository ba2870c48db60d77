"""The interconnect_formula suite's types: a training step on a cluster, and a variant's communication."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from harness.bounds import Bounds, PositiveInt
from suites.interconnect_formula.comm_model import Cluster, Exchange
from suites.training import published_run


@dataclass(frozen=True, slots=True)
class Workload:
    """An FSDP2 step on nodes of GPUs."""

    parameters: Annotated[float, Bounds(at_least=1)]
    num_hidden_layers: PositiveInt  # each layer is gathered and reduced separately
    nodes: PositiveInt = 2
    ranks_per_node: PositiveInt = 8  # GPUs
    link_B_per_s: Annotated[float, Bounds(at_least=1)] = 1.25e9  # one node's link, in each direction
    latency_s: Annotated[float, Bounds(at_least=0)] = 0.0  # of a collective between nodes, without its bytes
    source: str = ""

    @property
    def cluster(self) -> Cluster:
        """Return the nodes that the step runs on."""
        return Cluster(self.nodes, self.ranks_per_node, self.latency_s)


@dataclass(frozen=True, slots=True)
class Subject:
    """One variant: a workload behind a link, with what the variant changes in its communication."""

    workload: Workload
    link_B_per_s: float
    gradient_accumulation_steps: int = 1
    hybrid_shard: bool = False  # shard within a node, replicate across nodes

    @property
    def exchange(self) -> Exchange:
        """Return what a micro-batch sends: two bytes per parameter, and gradients once per update.

        Each layer is gathered and reduced separately; latency counts as if gradients were reduced per
        micro-batch.
        """
        return Exchange(
            self.workload.parameters,
            "hybrid" if self.hybrid_shard else "fsdp",
            published_run.ELEMENT_B,
            published_run.ELEMENT_B / self.gradient_accumulation_steps,
            self.workload.num_hidden_layers,
        )
