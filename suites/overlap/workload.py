"""Workloads of the overlap suites: one operation over ranks, of which a variant is one way to run it, or a
GEMM whose shards are exchanged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from harness.bounds import Bounds, OnlyWith, PositiveInt
from harness.records import Unavailable
from suites.training.step_time.collectives import roofline_s

DECODE_HEADS, DECODE_HEAD_SIZE = 8, 64  # shape of flash-decode's queries
PRODUCTS = ("ag_gemm", "gemm_rs", "ag_moe", "dispatch", "combine")  # operations of one product
TRAINING = ("training_step",)  # operations of a model

LINKED = ("ag_gemm", "gemm_rs", "ag_moe", "dispatch", "combine", "training_step")
"""Operations over shaped links."""

IN_MEMORY = ("all_gather", "flash_decode")  # operations between processes that share memory

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


ELEMENT_B = 2  # bytes of an element in bf16 or fp16

SCHEDULED = OnlyWith("kind", ("schedule",))
PUBLISHED = OnlyWith("kind", ("published",))


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapScheduleWorkload:
    """One GEMM with its collective on all GPUs of a machine, or a result that others published."""

    # schedule: the exchange is simulated by links. published: only the model is compared with the result.
    kind: Literal["schedule", "published"] = "schedule"
    # allgather_gemm: each rank multiplies all m rows by its n / ranks columns, and has m / ranks of the rows.
    # gemm_reduce_scatter: each rank has k / ranks of the inner dimension, and keeps m / ranks summed rows.
    operation: Annotated[Literal["allgather_gemm", "gemm_reduce_scatter"], SCHEDULED] = "allgather_gemm"
    m: Annotated[int, Bounds(at_least=1, multiple_of="ranks"), SCHEDULED] = 8192
    n: Annotated[PositiveInt, SCHEDULED] = 1
    k: Annotated[PositiveInt, SCHEDULED] = 1
    # switch: any pair at the full rate of a port. full_mesh: one link for each pair.
    topology: Annotated[Literal["switch", "full_mesh"], SCHEDULED] = "switch"
    ranks: Annotated[int, Bounds(at_least=2), SCHEDULED] = 8  # GPUs
    message_s: Annotated[float, Bounds(at_least=0), SCHEDULED] = 2e-6  # before a message's first byte

    device_name: str = ""
    peak_FLOP_per_s: Annotated[float, Bounds(above=0)] | None = None  # of one GPU, dense
    # Share of the peak that the GEMM reaches alone; assumed: the middle of 50 to 80 %.
    compute_share: Annotated[float, Bounds(above=0, at_most=1)] = 0.65
    # Of a port (switch) or of the link of one pair (full mesh), in each direction.
    rate_B_per_s: Annotated[float, Bounds(at_least=1)] | None = None

    flop: Annotated[float, Bounds(above=0), PUBLISHED] | None = None  # of one GPU
    compute_s: Annotated[float, Bounds(above=0), PUBLISHED] | None = None  # as published; None: by FLOP
    communication_B: Annotated[float, Bounds(above=0), PUBLISHED] | None = None  # into one GPU
    communication_s: Annotated[float, Bounds(above=0), PUBLISHED] | None = None  # as published; None: by B
    # Parts of the shorter of both, of which the first is exposed; where it is scheduled, its shards.
    chunks: Annotated[PositiveInt, PUBLISHED] = 8

    # As published; None: not published.
    published_sequential_s: Annotated[float, Bounds(above=0), PUBLISHED] | None = None
    published_overlapped_s: Annotated[float, Bounds(above=0), PUBLISHED] | None = None
    published_speedup: Annotated[float, Bounds(above=0)] | None = None
    flux_speedup: Annotated[float, Bounds(above=0), SCHEDULED] | None = None  # of FLUX, in the same chart
    published_by: str = ""
    provenance: Literal["stated", "secondary", "chart", "derived"] = "stated"
    source: str = ""

    @property
    def shard_B(self) -> float:
        """Return the bytes that one rank sends to one other rank: m / ranks rows."""
        width = self.k if self.operation == "allgather_gemm" else self.n
        return ELEMENT_B * self.m / self.ranks * width

    @property
    def speedup_of_source(self) -> float | None:
        """Return the published speed-up, or the ratio of both published times; None without them."""
        sequential_s, overlapped_s = self.published_sequential_s, self.published_overlapped_s
        if self.published_speedup is None and sequential_s is not None and overlapped_s is not None:
            return sequential_s / overlapped_s
        return self.published_speedup

    def compute_time_s(self, share: float | None = None) -> float:
        """Return the seconds of computation, as published or at a share of the peak; by default its own.

        Raises `Unavailable` where neither is known.
        """
        if self.compute_s is not None:
            return self.compute_s
        flop = 2.0 * self.m * self.n * self.k / self.ranks if self.kind == "schedule" else self.flop
        if flop is None or self.peak_FLOP_per_s is None:
            raise Unavailable("compute_s: missing; expected seconds, or FLOP and peak_FLOP_per_s")
        return float(roofline_s(flop, self.peak_FLOP_per_s, self.compute_share if share is None else share))

    @property
    def communication_time_s(self) -> float:
        """Return the seconds of communication, as published or at the best rate of the topology.

        Raises `Unavailable` where neither is known.
        """
        if self.communication_s is not None:
            return self.communication_s
        if self.rate_B_per_s is None or (self.kind == "published" and self.communication_B is None):
            raise Unavailable(
                "communication_s: missing; expected seconds, or rate_B_per_s with the bytes of one GPU"
            )
        if self.kind == "published":
            return (self.communication_B or 0.0) / self.rate_B_per_s
        shards = 1 if self.topology == "full_mesh" else self.ranks - 1
        return shards * self.shard_B / self.rate_B_per_s


@dataclass(frozen=True, slots=True)
class Subject:
    """One variant.

    `algorithm`: the collective and then computation, collectives of chunks, or puts with signals. `order`:
    puts to one peer after another or to all at once. `weight_gradient_overlaps`: in sequence, but a weight's
    gradient is computed during the reduce-scatter. `experts_by`: a loop over experts with masks, or grouped
    products.
    """

    workload: Workload
    seed: int
    algorithm: Literal["in_sequence", "decomposed", "symmetric"] = "in_sequence"
    order: Literal["ring", "full_mesh"] = "ring"
    weight_gradient_overlaps: bool = False
    experts_by: Literal["loop", "grouped"] = "loop"
    gather: Literal["gloo", "low_latency"] = "gloo"
