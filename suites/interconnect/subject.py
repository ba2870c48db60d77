"""What the interconnect suite hands around: a workload, and the plan of one variant that ranks carry out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from suites.training.model import ModelShape, llama


@dataclass(frozen=True, slots=True)
class Workload:
    """A training step over nodes; the fields of `conf/suite/interconnect.yaml`."""

    strategy: str  # ddp | fsdp2 | zero3
    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    vocab_size: int
    micro_batch_size: int  # sequences a rank takes at once
    seq_len: int
    learning_rate: float
    loss_steps: int  # batches a rank has seen when the loss is read
    ranks_per_node: int
    link_B_per_s: float  # of the paper's run: one node's link, each way
    source: str
    nodes: int = 2

    @property
    def shape(self) -> ModelShape:
        """Of the model."""
        return llama(self)


@dataclass(frozen=True, slots=True)
class Plan:
    """What every rank of one variant does; plain data, for it travels to them as JSON.

    `strategy` names the module of `suites.interconnect.strategies`. `accumulate` batches go into one update.
    `reduce_dtype` is that of gradients on the wire. `shard_within` is over how many ranks parameters are
    sharded, None: over all. `buckets` of gradients, None: one a block; `forward_prefetch`: a block's
    parameters while the one before computes. `changes`: modules whose `on_rank(trainer, settings)` changes
    the trainer once it is made, with their settings.
    """

    strategy: str
    accumulate: int = 1
    reduce_dtype: str = "fp32"
    shard_within: int | None = None
    buckets: int | None = None
    forward_prefetch: bool = False
    changes: tuple[tuple[str, Mapping[str, Any]], ...] = ()


@dataclass(frozen=True, slots=True)
class Subject:
    """One variant: its plan, its link, and how closely its losses must be plain PyTorch's.

    `link_B_per_s` is at the scale of the paper's run. `tolerance` is relative; None: the variant changes the
    mathematics, and only has to learn. `updates_together`: updates after which all ranks agree.
    """

    workload: Workload
    seed: int
    plan: Plan
    link_B_per_s: float
    tolerance: float | None = 1e-4
    updates_together: int = 1
    held: dict[str, Any] = field(default_factory=dict)
