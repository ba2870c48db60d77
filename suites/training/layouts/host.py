"""Host memory of offloaded states: bytes of one rank, and what page-locked blocks take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from harness.instruments.transformer import TransformerShape
from suites.training.layouts.layout import OPTIMIZER_STATES_B, Floats, Ints, Layouts, Training
from suites.training.layouts.states import RankLayers, RankParameters, parameters_of, sharded


class HostBytes(NamedTuple):
    """Bytes of one rank in host memory, as arrays over layouts."""

    pageable: Floats
    pinned: Floats  # as they are asked for
    reserved: Floats  # all, with pinned blocks as torch reserves them

    @property
    def asked(self) -> Floats:
        """Return both as they are asked for."""
        return self.pageable + self.pinned


def host_B(
    shape: TransformerShape, layouts: Layouts, training: Training, layers: RankLayers, rank: Ints
) -> HostBytes:
    """Return what one rank has on its host.

    FSDP2 has fp32 weights and gradients (4 and 4 per parameter of a rank's part), page-locked, each tensor a
    block, and the optimizer's states: torch/distributed/fsdp/_fully_shard/_fsdp_param.py and
    _fsdp_collectives.py, foreach_reduce.
    """
    part = sharded(layouts, parameters_of(shape, layouts, layers, rank), 1)
    nothing = np.zeros_like(part)
    if training.offload == "none":
        return HostBytes(nothing, nothing, nothing)
    if training.program != "deepspeed":
        tensors = list(shards(shape, layouts, layers, rank))
        reserved = sum((2 * count * power_of_two(4 * size) for size, count in tensors), nothing)
        states_B = OPTIMIZER_STATES_B[training.optimizer] * part
        return HostBytes(states_B, 8 * part, states_B + reserved)
    return deepspeed_host_B(part, layouts.zero, training.offload == "parameters")


SUB_GROUP = 1e9
"""Elements of a sub-group of ZeRO-3 by default: deepspeed/runtime/zero/config.py, sub_group_size."""


def deepspeed_host_B(part: Floats, stage: Ints, with_parameters: bool) -> HostBytes:
    """Return what DeepSpeed has on the host, with pin_memory, of so many parameters of one rank.

    Stages 1 and 2: fp32 weights and gradients (4 and 4) and a bf16 copy (2), each one page-locked block
    (runtime/zero/stage_1_and_2.py, param_buffer_of_bit16_for_cpu_offload_groups). Stage 3: fp32 weights (4),
    pageable, and page-locked bf16 gradients in one block (2, grad_partitions_flat_buffer) and fp32 ones by
    sub-groups (4, initialize_optimizer_states); bf16 parameters (2, one block) where they are there, too
    (runtime/zero/stage3.py). Both have Adam's moments (8), pageable. As of 0.19.8.
    """
    third = stage >= 3
    blocks = [np.where(third, 0.0, 4 * part), 2 * part]
    blocks += [2 * part * with_parameters]
    whole = np.where(third, np.floor(part / SUB_GROUP), 0.0)
    rest = part - SUB_GROUP * whole
    pinned = sum(blocks, 4 * part)
    of_gradients = whole * power_of_two(np.full_like(part, 4 * SUB_GROUP)) + power_of_two(4 * rest)
    reserved = sum(map(power_of_two, blocks), of_gradients)
    pageable = 8 * part + np.where(third, 4 * part, 0.0)
    return HostBytes(pageable, pinned, pageable + reserved)


def power_of_two(size_B: Floats) -> Floats:
    """Return sizes rounded up to powers of two, as torch reserves page-locked blocks.

    aten/src/ATen/core/CachingHostAllocator.h, allocate (no threshold by default); github.com/pytorch/pytorch,
    issue 95823.
    """
    return np.where(size_B > 0, np.exp2(np.ceil(np.log2(np.maximum(size_B, 1.0)))), 0.0)


def shards(
    shape: TransformerShape, layouts: Layouts, layers: RankLayers, rank: Ints
) -> Iterator[tuple[Floats, Floats]]:
    """Yield a rank's shards of the model's matrices and norms: elements of one, and how many there are.

    Experts of a layer lie in one tensor per matrix. Biases are left out.
    """
    first, last = (rank == 0).astype(float), (rank == layouts.pp - 1).astype(float)
    vocabulary = shape.vocab_size * shape.hidden_size / layouts.tp
    untied = 1.0 - first * bool(shape.tie_word_embeddings)
    whole = [(vocabulary, first), (vocabulary, last * untied)]
    whole += [(size / layouts.tp, layers.all) for size in shape.attention_matrices]
    whole += [(np.full_like(first, shape.hidden_size), shape.norms_per_layer * layers.all + last)]
    each = shape.hidden_size / layouts.tp
    whole += [(each * shape.intermediate_size, shape.matrices_of_mlp * layers.dense)]
    if shape.num_experts:
        whole += [(each * shape.shared_intermediate_size, shape.matrices_of_mlp * layers.moe)]
        whole += [(np.full_like(first, shape.router_parameters), layers.moe)]
    for size, count in whole:
        yield sharded(layouts, RankParameters(size, np.zeros_like(size), np.zeros_like(size)), 1), count
    if shape.num_experts:
        size = shape.hidden_size * shape.moe_intermediate_size * shape.num_experts / layouts.ep / layouts.etp
        experts = RankParameters(np.zeros_like(size), size, np.zeros_like(size))
        yield sharded(layouts, experts, 1), shape.matrices_of_mlp * layers.moe
