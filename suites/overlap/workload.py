"""A workload of the overlap suite: one operation over ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from harness.bounds import Bounds, OnlyWith, PositiveInt

DECODE_HEADS, DECODE_HEAD_SIZE = 8, 64
"""Shape of flash-decode's queries."""

PRODUCTS = ("ag_gemm", "gemm_rs", "ag_moe", "dispatch", "combine")
"""Operations of one product."""

TRAINING = ("training_step",)
"""Operations of a model."""

LINKED = ("ag_gemm", "gemm_rs", "ag_moe", "dispatch", "combine", "training_step")
"""Operations over shaped links."""

IN_MEMORY = ("all_gather", "flash_decode")
"""Operations between processes that share memory."""

EXPERTS = ("ag_moe", "dispatch", "combine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """An operation over ranks. Sizes are those of all ranks together; every tensor is in fp32."""

    operation: Literal[
        "ag_gemm", "gemm_rs", "ag_moe", "dispatch", "combine", "training_step", "all_gather", "flash_decode"
    ]
    ranks: Annotated[int, Bounds(at_least=2, at_most=8)] = 2
    # Rows of x, or tokens; divided over the ranks and then into chunks.
    m: Annotated[int, Bounds(multiple_of="ranks"), OnlyWith("operation", LINKED)] = 4096
    # Inner size of one rank's product.
    k: Annotated[PositiveInt, OnlyWith("operation", PRODUCTS)] = 512
    # Columns of one rank's product.
    n: Annotated[PositiveInt, OnlyWith("operation", PRODUCTS)] = 2048
    experts: Annotated[PositiveInt, OnlyWith("operation", EXPERTS)] = 8
    top_k: Annotated[int, Bounds(at_least=1, not_above="experts"), OnlyWith("operation", EXPERTS)] = 2
    # Ranks that share the model's weights, neighbours; groups of them have a share of the tokens each.
    tp_size: Annotated[int, Bounds(at_least=2, at_most=8), OnlyWith("operation", TRAINING)] = 2
    num_hidden_layers: Annotated[PositiveInt, OnlyWith("operation", TRAINING)] = 2
    hidden_size: Annotated[
        int, Bounds(at_least=1, multiple_of="num_attention_heads"), OnlyWith("operation", TRAINING)
    ] = 512
    intermediate_size: Annotated[
        int, Bounds(at_least=1, multiple_of="tp_size"), OnlyWith("operation", TRAINING)
    ] = 1408
    num_attention_heads: Annotated[
        int, Bounds(at_least=1, multiple_of="tp_size"), OnlyWith("operation", TRAINING)
    ] = 8
    # The link's rate follows: how long the bytes take on it, over how long computation takes alone.
    communication_to_computation: Annotated[float, Bounds(above=0), OnlyWith("operation", LINKED)] = 1.0
    # A link per rank to a switch, or one per pair of ranks.
    topology: Annotated[Literal["switch", "full_mesh"], OnlyWith("operation", LINKED)] = "switch"
    # Bytes that a rank contributes.
    message_B: Annotated[int, Bounds(at_least=4, divisible_by=4), OnlyWith("operation", IN_MEMORY)] = 1024
    # Of a rank's keys and values; queries have 8 heads of 64.
    kv_len: Annotated[PositiveInt, OnlyWith("operation", IN_MEMORY)] = 4096
    batch: Annotated[PositiveInt, OnlyWith("operation", IN_MEMORY)] = 4
    source: str = ""

    @property
    def parameters(self) -> int:
        """Return the parameters of a training step's blocks, over all tensor-parallel ranks."""
        hidden, between = self.hidden_size, self.intermediate_size
        return self.num_hidden_layers * (4 * hidden**2 + 3 * hidden * between)

    @property
    def message_elements(self) -> int:
        """Return the fp32 numbers that a rank gathers in shared memory."""
        decode = self.operation == "flash_decode"
        return self.batch * DECODE_HEADS * (DECODE_HEAD_SIZE + 1) if decode else self.message_B // 4

    @property
    def is_linked(self) -> bool:
        """Return whether the ranks meet over links, not in shared memory."""
        return self.operation in LINKED
