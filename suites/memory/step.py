"""The memory suite's subject: one training step, described so that it can be built anew on any tensors.

An optimization changes the description; `suites.memory.walk` builds it on fake tensors,
`suites.memory.measure` on real ones, `suites.memory.formulas` reads `Features` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

Around = Callable[[str], AbstractContextManager[Any]]


def no_context(device_type: str) -> AbstractContextManager[Any]:
    """Nothing around the forward pass: the baseline's fp32."""
    return nullcontext()


@dataclass(frozen=True, slots=True)
class Workload:
    """One point at which memory is asked for; the fields of `conf/suite/memory.yaml`."""

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    vocab_size: int
    norm: str  # rms | layer
    mlp: str  # swiglu | gelu
    position: str  # rotary | learned
    max_position_embeddings: int  # the longest sequence, the rows of a learned position table
    tie_word_embeddings: bool
    bias: bool
    micro_batch_size: int
    seq_len: int
    optimizer: str  # adamw | sgd_momentum
    optimizer_impl: str  # default | for_loop | foreach | fused
    gradient_accumulation_steps: int  # of `batch` sequences each, gradients accumulated
    max_grad_norm: float | None
    dropout: float
    ranks: int  # over which sharding optimizations spread it
    tp_size: int  # over which tensor parallelism does: at most its heads, within a node as a rule
    nominal_parameters: float | None  # the paper's "7B"; None: the real count
    device_memory_B: float  # of one device, for the counts of devices
    train: bool  # small enough to be really trained here
    program: str  # host | cuda: whose operations `fake_step` walks
    hf_config: dict[str, Any] | None  # a Hugging Face config.json, instead of the shape above
    source: str


@dataclass(frozen=True, slots=True)
class Features:
    """What the closed formulas know of a step."""

    precision: str = "fp32"  # fp32 | autocast | bf16_grads (16 B/param) | fp32_grads (18 B/param)
    attention: str = "explicit"  # explicit | sdpa
    recompute: str = "none"  # none | selective | full
    sharding: str = "none"  # none | zero1 | zero2 | zero3 | tensor


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """One rank's training step. `ranks` > 1: one process stands for one rank, under the fake process group.

    `wrap`: done to the model in this order once it is built (checkpoint the blocks, shard, parallelise);
    each takes the model and returns it. `around(device_type)`: the context of forward and loss.
    `make_optimizer(parameters, workload)`: anything with `step()`, `zero_grad()` and `state_tensors()` or
    `.state`, and `clip_grad_norm(max_norm)` where gradients are not in `.grad`; None: torch's own.
    `make_model(step, layers)`: a module whose forward(tokens, targets) is the loss; None: `Transformer`.
    `layers_alike`: whether walking a few layers tells of the rest.
    `given`: the workload before any optimization changed it, for the check against the baseline.
    `model_dtype`: type of parameters as built. `walkable`: None, or why `fake_step` cannot honestly be had.
    """

    workload: Workload
    seed: int
    features: Features = Features()
    ranks: int = 1
    attention: str = "explicit"
    model_dtype: torch.dtype = torch.float32
    wrap: tuple[Callable[[nn.Module], nn.Module], ...] = ()
    around: Around = no_context
    make_optimizer: Callable[[Iterable[nn.Parameter], Workload], Any] | None = None
    make_model: Callable[[TrainingStep, int], nn.Module] | None = None
    layers_alike: bool = True
    walkable: str | None = None
    tolerance: float = 1e-5  # relative, of the loss after three steps against the baseline's
    notes: tuple[str, ...] = field(default=())  # which tensors are held in which type
    given: Workload | None = None
