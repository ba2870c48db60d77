"""The portability suite's types: a workload, an engine, and how a variant compiles the captured graph.

Shape suffixes: B batch, T tokens, N rows, D hidden size, H heads, K size of a head, F width of the
feed-forward layer, V vocabulary, E experts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor

from harness.bounds import Bounds, OnlyWith, PositiveInt
from harness.records import Note, Reading
from suites.training.workload import AttentionHeads, HiddenSize

OF_STEPS = OnlyWith("operation", ("training_step",))
OF_HEADS = OnlyWith("operation", ("attention", "block", "training_step"))
OF_WIDTHS = OnlyWith("operation", ("matmul", "block", "training_step"))


@dataclass(frozen=True, slots=True)
class Workload:
    """One operation, block or training step at one shape."""

    operation: Literal[
        "softmax", "rms_norm", "matmul", "attention", "cross_entropy", "swiglu", "block", "training_step"
    ]
    # How much is captured: forward; the gradient of every input; of a step AdamW's update too.
    passes: Literal["forward", "backward", "update"] = "backward"
    micro_batch_size: PositiveInt = 1
    # Rows of a row-wise operation: micro_batch_size * seq_len.
    seq_len: Annotated[int, Bounds(at_least=1, not_above="max_position_embeddings")] = 1
    hidden_size: HiddenSize = 1  # columns; of attention all heads' together
    num_attention_heads: Annotated[AttentionHeads, OF_HEADS] = 1
    num_key_value_heads: Annotated[PositiveInt, OF_HEADS] = 1
    intermediate_size: Annotated[PositiveInt, OF_WIDTHS] = 1  # of matmul the columns of the result
    vocab_size: Annotated[
        int, Bounds(at_least=2), OnlyWith("operation", ("cross_entropy", "training_step"))
    ] = 2
    num_hidden_layers: Annotated[PositiveInt, OF_STEPS] = 1
    dtype: Literal["fp32", "bf16"] = "fp32"  # of weights, activations and moments
    # A Hugging Face config.json, whose model of transformers takes the place of these sizes.
    hf_config: Annotated[dict[str, Any] | None, OF_STEPS] = field(default=None, hash=False)
    max_position_embeddings: Annotated[PositiveInt | None, OF_STEPS] = (
        None  # of hf_config: the longest sequence
    )
    source: str = ""

    @property
    def torch_dtype(self) -> torch.dtype:
        """Return the type of weights and activations."""
        return {"fp32": torch.float32, "bf16": torch.bfloat16}[self.dtype]


class Compiled(NamedTuple):
    """What an engine made of a graph.

    `call` computes once, with inputs that are on the device already, and waits; None where the target's
    device is not here. `tensors` converts what `call` returns. `size_B`: of the compiled program, None where
    the engine does not give it. `readings`: further ones, such as registers; an iterator reads them once
    compiling is over. `compile_method`: "cached"
    where the engine found its code on disk, "cold" where it could have. `call_with`: computes once with other
    inputs, which may be of another length where the graph leaves that open.
    """

    call: Callable[[], Any] | None
    tensors: Callable[[Any], Sequence[Tensor]] = list
    size_B: int | None = None
    readings: Iterable[Reading | Note] = ()
    compile_method: str = ""
    call_with: Callable[[Sequence[Tensor]], Any] | None = None


@dataclass(frozen=True, slots=True)
class Engine:
    """One compiler with one target.

    - `compile(capture)`: takes a `capture.graph.Capture`. It raises `Unavailable` where the engine is missing
      or another version, and whatever the compiler raises where it has no code for the graph.
    - `rewritten`: operators that are written differently for this engine, see `capture.rewrites`.
    - `version`: of its package, as installed.
    - `takes_graph`: False where it replaces operators of the eager step.
    - `timed`: False where what runs here says nothing about speed.
    - `any_length`: True where it compiles a graph that leaves the sequence length open.
    """

    name: str
    compile: Callable[[Any], Compiled]
    target: str = "host"
    rewritten: tuple[str, ...] = ()
    version: str = ""
    takes_graph: bool = True
    timed: bool = True
    any_length: bool = False


@dataclass(frozen=True, slots=True)
class Subject:
    """One workload under one engine; None: eager PyTorch, which is the baseline."""

    workload: Workload
    seed: int
    engine: Engine | None = None
