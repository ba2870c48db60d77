"""What the offload suite hands around: a workload, and the plan of one variant that its ranks carry out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from suites.training.model import ModelShape, llama

DEVICE, HOST, DISK = "device", "host", "disk"
"""The floors of memory, from fast to large. Without a GPU each is emulated by the one beneath it: private
memory stands for the device, files that are mapped into memory for the host."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A training step over ranks on one machine; the fields of `conf/suite/offload.yaml`.

    With `budget_B` its layers are sought: as many as train in so many bytes of device memory a rank.
    """

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    vocab_size: int
    micro_batch_size: int  # sequences a rank takes at once
    seq_len: int
    precision: str  # bf16: mixed | fp32
    ranks: int
    learning_rate: float
    loss_steps: int
    folder: str = ""  # where files lie that stand for host or disk; "": the system's for temporary files
    budget_B: float | None = None
    gpu: bool = False  # too large for anything else
    recompute: bool = False  # activations, in the variants that say nothing of them
    epsilon: float = 1e-8  # of AdamW; the check sets another
    source: str = ""

    @property
    def shape(self) -> ModelShape:
        """Of the model."""
        return llama(self)


@dataclass(frozen=True, slots=True)
class Plan:
    """What every rank of one variant does; plain data, for it travels to them as JSON.

    `engine` names the module of `suites.offload.engines`. `stage` is ZeRO's. `optimizer` and `parameters`
    name the floor on which fp32 states and parameters lie; of the states, only the share `ratio` goes down.
    `activations`: kept | recomputed | offloaded | offloaded_ahead. `delay`: updates take gradients that are
    so many steps old, after the first `delay_after` steps. `resident`: bytes of device memory for each byte
    of parameters, gradients and states, where the engine has all of them in managed memory; None: no bound.
    """

    engine: str = "ddp"
    stage: int = 0
    optimizer: str = DEVICE
    parameters: str = DEVICE
    ratio: float = 1.0
    activations: str = "kept"
    delay: int = 0
    delay_after: int = 0
    resident: float | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """One variant: its plan, and how closely its losses must be the baseline's.

    `tolerance` is relative, of each loss; None: the variant changes the mathematics, and only has to learn.
    """

    workload: Workload
    seed: int
    plan: Plan
    tolerance: float | None
    held: dict[str, Any] = field(default_factory=dict)
