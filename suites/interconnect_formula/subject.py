"""The interconnect_formula suite's types: a training step on a cluster, and a variant's communication."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from harness.bounds import Bounds, PositiveInt
from harness.records import Unavailable
from suites.training.step_time import published_run
from suites.training.step_time.node_traffic import Cluster, Exchange

STATE_B = 16
"""Bytes per parameter in mixed precision with Adam: arXiv 1910.02054, section 3.1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """An FSDP2 step on nodes of GPUs."""

    parameters: Annotated[float, Bounds(at_least=1)] | None  # None: those of `hf_config`
    # Of a mixture of experts: those that one token uses. None: all, or as `hf_config` has them.
    active_parameters: Annotated[float, Bounds(at_least=1, not_above="parameters")] | None = None
    num_hidden_layers: PositiveInt = 32  # each is gathered and reduced separately: it multiplies `latency_s`
    micro_batch_size: PositiveInt = 1  # sequences of one micro-batch on one GPU
    seq_len: PositiveInt = 2048
    # Model FLOP utilization: FLOP/s of 6 per active parameter and token, over the peak. None: the rate that
    # the published run achieved. PaLM reports 46 % (arXiv 2204.02311, table 3), Llama 3 38 to 43 % (arXiv
    # 2407.21783, table 4).
    mfu: Annotated[float, Bounds(above=0, at_most=1)] | None = 0.4
    nodes: PositiveInt = 2
    ranks_per_node: PositiveInt = 8  # GPUs
    link_B_per_s: Annotated[float, Bounds(at_least=1)] = 1.25e9  # one node's link, in each direction
    latency_s: Annotated[float, Bounds(at_least=0)] = 0.0  # of a collective between nodes, without its bytes
    device_name: str = ""
    peak_FLOP_per_s: Annotated[float, Bounds(above=0)] | None = None  # of one GPU, dense bf16
    device_memory_B: Annotated[float, Bounds(at_least=1)]
    usable_memory_B: Annotated[float, Bounds(at_least=1)] | None = None  # of it; None: all
    hf_config: dict[str, Any] | None = field(default=None, hash=False)  # a Hugging Face config.json
    source: str = ""

    @property
    def cluster(self) -> Cluster:
        """Return the nodes that the step runs on."""
        return Cluster(self.nodes, self.ranks_per_node, self.latency_s)

    @property
    def tokens_per_gpu(self) -> int:
        """Return the tokens of one micro-batch on one GPU."""
        return self.micro_batch_size * self.seq_len

    @property
    def room_B(self) -> float:
        """Return the memory of one GPU that a process can use."""
        return self.device_memory_B if self.usable_memory_B is None else self.usable_memory_B


@dataclass(frozen=True, slots=True)
class Subject:
    """One variant: a workload behind a link, with what the variant changes in its communication."""

    workload: Workload
    parameters: float
    active_parameters: float  # those that one token uses
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
            self.parameters,
            "hybrid" if self.hybrid_shard else "fsdp",
            published_run.ELEMENT_B,
            published_run.ELEMENT_B / self.gradient_accumulation_steps,
            self.workload.num_hidden_layers,
        )

    @property
    def state_B(self) -> float:
        """Return the bytes of one GPU's share of parameters, gradients and optimizer states."""
        cluster = self.workload.cluster
        shards = cluster.gpus_per_node if self.hybrid_shard else cluster.gpus
        return STATE_B * self.parameters / shards

    @property
    def tokens_per_update(self) -> int:
        """Return the tokens of all GPUs per update of the parameters."""
        return self.workload.tokens_per_gpu * self.workload.cluster.gpus * self.gradient_accumulation_steps


def validate_states(subject: Subject) -> None:
    """Raise `Unavailable` where the states of a variant do not fit its GPUs; activations are not counted."""
    if subject.state_B > subject.workload.room_B:
        shards = "a node's" if subject.hybrid_shard else "all"
        cluster = subject.workload.cluster
        gpus = cluster.gpus_per_node if subject.hybrid_shard else cluster.gpus
        raise Unavailable(
            f"parameters={subject.parameters:g}: {subject.state_B / 1e9:.0f} GB of states for each of "
            f"{shards} {gpus} devices, which have {subject.workload.room_B / 1e9:.0f} GB"
        )
