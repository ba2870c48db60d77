"""Seconds of attention from a score matrix in memory, without FlashAttention."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from suites.training.layouts.layout import Floats, Layouts
from suites.training.step_time.whole_step.setting import StepSetting

ELEMENT_B = 2.0
"""Bytes of a score: bf16."""

SOFTMAX_FORWARD_B, SOFTMAX_BACKWARD_B = 4.0, 6.0
"""Bytes per score that softmax moves: read and written; its result and a gradient read, another written."""

MASK_B = 4.0
"""Of a mask that is added before softmax: read and written."""

FUSED_UP_TO = 16384
"""Keys up to which Transformer Engine's softmax has scale and mask in it: is_kernel_available in
pytorch/attention/dot_product_attention/softmax.py. Other programs add the mask."""


class ScoreOperators(NamedTuple):
    """Operators on a score matrix of one pass."""

    products: int  # matmuls that read or write all scores once
    moved_B: float  # of the others, per score


def operators(setting: StepSetting) -> tuple[ScoreOperators, ScoreOperators]:
    """Return the operators of the forward and of the backward pass.

    Forward: queries with keys, softmax, its result with values. Backward: the gradients of values and of the
    softmax's result, softmax, the gradients of queries and keys (torch/nn/functional.py,
    scaled_dot_product_attention; Transformer Engine's UnfusedDotProductAttention).
    """
    fused = setting.training.program == "megatron" and setting.training.seq_len < FUSED_UP_TO
    forward = ScoreOperators(2, SOFTMAX_FORWARD_B + (0.0 if fused else MASK_B))
    return forward, ScoreOperators(4, SOFTMAX_BACKWARD_B)


def scores_s(setting: StepSetting, layouts: Layouts) -> tuple[Floats, Floats]:
    """Return the seconds of explicit attention, forward and backward, of one layer on one micro-batch.

    Each operator takes as long as its FLOP or its bytes do. Masked scores are computed, too, and so are those
    outside of a window. Keys and values that groups of heads share are few next to scores.
    """
    gpu, shape = setting.gpu, setting.shape
    scores = setting.tokens(layouts) * setting.training.seq_len * shape.num_attention_heads / layouts.tp
    rate = gpu.memory_B_per_s * setting.constants.scores_share(gpu)
    size = max(shape.head_dim, shape.value_dim)
    peak = gpu.peak_FLOP_per_s("bf16") * setting.matmul_rates("bf16").peak_share
    product_s = max(ELEMENT_B / rate, 2.0 * size / peak)
    forward, backward = (
        np.asarray(scores * (each.products * product_s + each.moved_B / rate), dtype=float)
        for each in operators(setting)
    )
    return forward, backward
