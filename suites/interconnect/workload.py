"""Workloads of the interconnect suites: a training step over nodes, measured here or calculated."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from harness.bounds import Bounds, PositiveInt
from suites.training import workload as training
from suites.training.step_time.collectives import Cluster
from suites.training.workload import TextVocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload(training.StepWorkload):
    """A training step over nodes."""

    strategy: Literal["ddp", "fsdp2", "zero3"]
    vocab_size: TextVocabulary
    loss_steps: Annotated[int, Bounds(at_least=8)] = 32  # micro-batches per rank before the loss is read
    ranks_per_node: PositiveInt = 1
    nodes: Annotated[int, Bounds(at_least=2)] = 2
    # Of the paper's run, scaled to this host: one node's link, each way.
    link_B_per_s: Annotated[float, Bounds(at_least=1)] = 1.25e9
    source: str = ""

    @property
    def ranks(self) -> int:
        """Return the number of ranks on all nodes."""
        return self.nodes * self.ranks_per_node

    @property
    def training(self) -> training.Workload:
        """Return the workload of `suites.training`."""
        return training.Workload.of({**asdict(self), "dp_size": self.ranks})


@dataclass(frozen=True, slots=True, kw_only=True)
class InterconnectFormulaWorkload:
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
