"""What sends tokens to the ranks of their experts in Megatron-LM, and the bytes that each way keeps.

Facts: NVIDIA/Megatron-LM commit d98e8a64, core/transformer/moe/token_dispatcher.py and moe_utils.py (permute,
unfused); deepseek-ai/DeepEP commit dd758caf.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from harness.instruments.transformer import TransformerShape
from suites.training.layouts.layout import Floats, Layouts, Training, parts_of_sequence, tokens_of_rank

MiB = 2**20

SCORES_B = 4
"""Bytes per token and expert of the fp32 scores that the auxiliary loss keeps: moe_utils.py,
compute_routing_scores_for_aux_loss."""

ALLTOALL_B = 12
"""More with all-to-all: the sorted map of tokens, 8, of which permute's index keeps all entries, the mask
and the probabilities (MoEAlltoAllTokenDispatcher, dispatch_preprocess)."""

ALLGATHER_B = 4
"""More per gathered token and expert of this rank with allgather: the mask twice and bf16 probabilities
(MoEAllGatherTokenDispatcher, dispatch_postprocess: local_map, and both inputs of masked_select)."""

INDEX_B = 8
"""Of one int64 index."""

TORCH_CHOICE_B = 3 * INDEX_B + 3 * 4
"""Per token and chosen expert in torch: which expert, its place in their order and its token; its probability
as chosen, scaled and ordered (suites/training/models/mixture.py)."""


def routing_kept(shape: TransformerShape, layouts: Layouts, training: Training) -> Floats:
    """Return the bytes per token that routing and dispatching keep besides the experts' inputs."""
    experts, chosen, spread = shape.num_experts, shape.experts_per_token, parts_of_sequence(layouts)
    arrived = training.imbalance * chosen * layouts.etp
    if training.program != "megatron":
        kept = SCORES_B * experts + TORCH_CHOICE_B * chosen * np.ones_like(spread)
    elif training.dispatcher == "allgather":
        kept = SCORES_B * experts + ALLGATHER_B * experts * layouts.etp + INDEX_B * arrived
    elif training.dispatcher == "deepep":
        received = np.minimum(distinct_tokens(shape, layouts) * training.imbalance, arrived)
        sent = (INDEX_B + 4) * chosen * layouts.etp  # indices and fp32 probabilities
        kept = SCORES_B * experts + sent + received * INDEX_B * experts / layouts.ep + 3 * INDEX_B * arrived
    else:
        kept = (SCORES_B + ALLTOALL_B) * experts * np.ones_like(spread)
    return np.asarray(kept / spread, dtype=float)


def distinct_tokens(shape: TransformerShape, layouts: Layouts) -> Floats:
    """Return how many tokens reach a rank per token that it has, where routing is even.

    A token that several experts of a rank get is sent there once.
    """
    ranks = layouts.etp * layouts.ep
    return np.asarray(ranks * (1 - (1 - 1 / layouts.ep) ** shape.experts_per_token), dtype=float)


def summed_kept(shape: TransformerShape, layouts: Layouts, training: Training) -> Floats:
    """Return the bytes per token of experts' results that are kept for the sum over each token's experts.

    With --deterministic-mode Megatron-LM sums by index_add, whose backward pass keeps what it adds; otherwise
    by scatter_add, which keeps none (moe_utils.py, unpermute, since commit 56818f9e50 of October 2025).
    All-to-all has returned the results to each token's rank before. torchtitan multiplies them by their
    probabilities there, in fp32 (commit b5bcd76c, models/common/token_dispatcher.py, combine).
    """
    rows = shape.experts_per_token / parts_of_sequence(layouts)
    if training.program != "megatron":
        return np.asarray(4 * shape.expert_input_size * rows, dtype=float)
    if not training.deterministic:
        return np.zeros_like(layouts.tp, dtype=float)
    if training.dispatcher != "alltoall":
        rows = rows * training.imbalance * layouts.etp
    return np.asarray(2 * shape.expert_input_size * rows, dtype=float)


def gathered_tokens_B(shape: TransformerShape, layouts: Layouts, training: Training) -> Floats:
    """Return the bytes of the tokens of all ranks that share a layer's experts, 0 unless all are gathered.

    They lie in a buffer that stays from step to step (token_dispatch, use_global_buffer; core/utils.py,
    GlobalMemoryBuffer) and that the output layer's input shares.
    """
    ranks = layouts.etp * layouts.ep
    gathers = (training.dispatcher == "allgather") & (ranks > 1) & (shape.num_experts > 0)
    tokens = tokens_of_rank(layouts, training) / parts_of_sequence(layouts) * ranks
    return np.where(gathers, 2 * tokens * shape.expert_input_size, 0.0)


class DeepEpSetting(NamedTuple):
    """Tokens per chunk of DeepEP's buffers."""

    nvlink: int  # received over NVLink
    network: int  # received over RDMA, a multiple of those that are sent at once


DEEP_EP = {
    **dict.fromkeys((2, 4, 8), DeepEpSetting(256, 132)),
    16: DeepEpSetting(288, 140),
    **dict.fromkeys((24, 32, 48, 64), DeepEpSetting(288, 128)),
    96: DeepEpSetting(480, 132),
    128: DeepEpSetting(560, 132),
    **dict.fromkeys((144, 160), DeepEpSetting(720, 132)),
}
"""By ranks: the larger of dispatching and combining (deep_ep/buffers/legacy.py, get_dispatch_config and
get_combine_config; csrc/legacy/config.hpp rounds up)."""

DEEP_EP_CHANNELS = 10
"""Half of 20 multiprocessors: _DeepepManager, set_deepep_num_sms."""

DEEP_EP_NODE = 8
"""Ranks with NVLink: csrc/kernels/legacy/compiled.cuh."""

DEEP_EP_TOKEN_B = 8 + 128 * (8 + 4 + 4)
"""Bytes per token besides its hidden state: where it comes from, 128 indices, weights and scales."""

DEEP_EP_WORKSPACE_B = 32 * MiB


def deep_ep_B(shape: TransformerShape, layouts: Layouts, training: Training) -> Floats:
    """Return the bytes of DeepEP's buffers, which lie outside of torch's allocator; 0 without it.

    csrc/legacy/config.hpp, get_nvl_buffer_size_hint and get_rdma_buffer_size_hint, without some kilobytes of
    counters; csrc/legacy/buffer.hpp has the workspace.
    """
    if training.dispatcher != "deepep" or not shape.num_experts:
        return np.zeros_like(layouts.tp, dtype=float)
    ranks = layouts.etp * layouts.ep
    setting = [DEEP_EP.get(int(one), DeepEpSetting(0, 0)) for one in ranks]
    token_B = 2 * shape.expert_input_size + DEEP_EP_TOKEN_B
    nvlink = np.minimum(ranks, DEEP_EP_NODE) * np.array([one.nvlink for one in setting])
    network = 2 * (ranks // DEEP_EP_NODE) * np.array([one.network for one in setting])
    network = np.where(ranks > DEEP_EP_NODE, network * (token_B + 16), 0)
    total = DEEP_EP_CHANNELS * (nvlink * token_B + network) + DEEP_EP_WORKSPACE_B
    return np.asarray(np.where(ranks > 1, total, 0.0), dtype=float)
