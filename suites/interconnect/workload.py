"""A workload of the interconnect suite: a training step over nodes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Literal

from harness.bounds import Bounds, PositiveInt
from suites.training import workload as training
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
