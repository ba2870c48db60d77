"""Seconds of linear mixers: Mamba-2's state space, gated delta nets, and others whose state does not grow.

A chunk of tokens is computed at once by four products (arXiv 2405.21060, section 6), in kernels of which each
reads what the one before wrote, states of chunks among it. What they reach is published in tokens per second,
far below the rate of attention. No constant is fitted to steps of hybrids.
"""

from __future__ import annotations

import numpy as np

from suites.training.layouts.layout import Floats, Layouts
from suites.training.step_time.collectives import all_to_all_s
from suites.training.step_time.setting import StepSetting

ELEMENT_B = 2.0
"""Bytes of an activation: bf16."""

FULL_MEMORY_B_PER_S = 3.35e12
"""Of an H100, on which the scans were measured. They are bound by memory and latency, and no faster on
Blackwell (https://pytorch.org/blog/accelerating-mamba2-with-kernel-fusion; FlashQLA's benchmark folder)."""

SCAN_B = 4.0
"""Bytes of an element of a chunk's state: fp32."""


def mixer_s(setting: StepSetting, layouts: Layouts) -> tuple[Floats, Floats]:
    """Return the seconds of a layer's convolution, scan, gate and norm, forward and backward.

    Memory, forward: what is convolved is read and written; the result and its gate are read, and the gated
    result is written. Backward: twice as much, the convolution's repetition included.
    """
    mixer, tokens = setting.shape.mixer, setting.tokens(layouts) / layouts.tp
    assert mixer is not None
    moved_s = ELEMENT_B * (2 * mixer.convolved + 3 * mixer.inner) / setting.memory_B_per_s
    forward_s, backward_s = scan_s(setting)
    return np.asarray(tokens * (moved_s + forward_s)), np.asarray(tokens * (2 * moved_s + backward_s))


def scan_s(setting: StepSetting) -> tuple[float, float]:
    """Return the seconds of the scan per token, forward and backward.

    Where no rate of the kind is published, it takes as long as its inputs and states take to move, and then
    as its FLOP at the rate of attention.
    """
    mixer, cal = setting.shape.mixer, setting.constants
    assert mixer is not None
    if f"scan_per_s.{mixer.name}" in cal:
        slower = max(1.0, FULL_MEMORY_B_PER_S / setting.gpu.memory_B_per_s)
        forward = mixer.inner * mixer.state * slower / cal[f"scan_per_s.{mixer.name}"]
        return forward, cal["scan_backward"] * forward
    moved_B = ELEMENT_B * mixer.projected + 2 * SCAN_B * mixer.inner * mixer.state / mixer.chunk
    rate, _ = cal.attention_FLOP_per_s(
        setting.gpu, setting.facts.attention, setting.shape.head_dim, setting.training.seq_len
    )
    forward = moved_B / setting.memory_B_per_s + mixer.state_flop / rate
    return forward, 2 * forward


def mixer_context_s(setting: StepSetting, layouts: Layouts) -> Floats:
    """Return the seconds in which context-parallel ranks change parts of sequences for heads, and back.

    An all-to-all of what is projected and one of the result, forward and backward; nothing hides them
    (Megatron-LM, core/ssm/mamba_context_parallel.py).
    """
    mixer, cp = setting.shape.mixer, layouts.cp.astype(float)
    assert mixer is not None
    size_B = ELEMENT_B * setting.tokens(layouts) * (mixer.projected + mixer.inner) / layouts.tp
    one = all_to_all_s(size_B, cp, layouts.tp.astype(float), setting.links)
    return np.where(cp > 1, 2 * (one.bytes_s + 2 * one.latency_s), 0.0)
