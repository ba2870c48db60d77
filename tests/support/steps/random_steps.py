"""Small steps drawn at random, and how a dry run of one is compared with its real run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import strategies as st
from small_steps import GPT, HOST

from suites.memory.live_bytes import measure_peak
from suites.training.dry_run.dry_run import dry_run

ALLOWED = 5e-4
"""Relative. What is missing are numbers that torch makes tensors of: 8 bytes each."""

WORKLOADS = st.builds(
    lambda num_attention_heads, groups, size, **rest: replace(
        GPT,
        num_key_value_heads=num_attention_heads,
        num_attention_heads=num_attention_heads * groups,
        hidden_size=num_attention_heads * groups * size,
        **rest,
    ),
    num_attention_heads=st.integers(1, 3),
    groups=st.integers(1, 3),
    size=st.sampled_from([8, 16, 24]),
    num_hidden_layers=st.integers(1, 4),
    intermediate_size=st.integers(16, 200),
    vocab_size=st.integers(30, 700),
    micro_batch_size=st.integers(1, 5),
    seq_len=st.integers(3, 90),
    norm=st.sampled_from(["rms", "layer"]),
    mlp=st.sampled_from(["swiglu", "gelu"]),
    position=st.sampled_from(["rotary", "learned"]),
    tie_word_embeddings=st.booleans(),
    bias=st.booleans(),
    dropout=st.sampled_from([0.0, 0.2]),
    optimizer=st.sampled_from(["adamw", "sgd_momentum"]),
    optimizer_impl=st.sampled_from(["default", "for_loop", "foreach", "fused"]),
    gradient_accumulation_steps=st.integers(1, 2),
    max_grad_norm=st.sampled_from([None, 0.5]),
)
TECHNIQUES = st.tuples(
    st.sampled_from(["", "flash"]),
    st.sampled_from(["", "full", "selective"]),
    st.sampled_from(["", "autocast", "bf16_grads", "fp32_grads"]),
)


def assert_as_measured(step, found=None):
    found = found or dry_run(step, HOST)
    for peak in measure_peak(step).peaks:
        assert found.peak_B == pytest.approx(peak.live_B, rel=ALLOWED)
