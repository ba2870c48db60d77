"""FLOP per token by this project's formula and by those of frameworks, against sums of products by hand."""

from dataclasses import replace

import pytest

from harness.instruments.transformer import TransformerShape, flop_per_token, model_flop_per_token

LLAMA = TransformerShape(
    num_hidden_layers=32, hidden_size=4096, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
    intermediate_size=14336, vocab_size=128256,
)  # fmt: skip
"""Llama-3.1-8B."""
MATRICES = 8_030_261_248 - 128256 * 4096  # its published parameters but for the embedding


def test_megatrons_formula_is_its_closed_form_with_half_of_the_scores():
    """Core 0.6 to 0.11 count 12 · L · h² · (1 + kv/heads + s/h + 1.5 · ffn/h + V/(2 L h)) per token."""
    seq, hidden, layers = 8192, 4096, 32
    inner = 1 + 8 / 32 + seq / hidden / 2 + 1.5 * 14336 / hidden + 128256 / (2 * layers * hidden)
    closed = 12 * layers * hidden**2 * inner
    assert flop_per_token("megatron", LLAMA, seq) == pytest.approx(closed, rel=1e-12)


def test_torchtitans_formula_and_this_projects_are_those_of_the_published_parameters():
    expected = 6 * MATRICES + 12 * 32 * 32 * 128 * 8192
    assert flop_per_token("torchtitan", LLAMA, 8192) == model_flop_per_token(LLAMA, 8192) == expected
    half = replace(LLAMA, sliding_window=1024, windowed_layers=(True, False) * 16)
    scores = 12 * 32 * 128 * (16 * 1024 + 16 * 8192)
    assert model_flop_per_token(half, 8192) == 6 * MATRICES + scores


def test_nanotron_is_the_sum_of_its_products():
    """Each product of the forward pass by its shape, times three (nanotron's get_flops adds them up so)."""
    seq, d, kv = 4096, 4096, 1024
    layer = 2 * d * d + 2 * d * 2 * kv + 2 * d * seq * 2 + 2 * d * d + 6 * d * 14336
    assert flop_per_token("nanotron", LLAMA, seq) == 3 * (32 * layer + 2 * d * 128256)


def test_of_experts_those_count_that_a_token_passes():
    """Two of eight experts per token, a shared MLP, a dense first layer: products by their shapes."""
    shape = TransformerShape(
        num_hidden_layers=3, hidden_size=64, num_attention_heads=4, num_key_value_heads=4, head_dim=16,
        intermediate_size=256, vocab_size=1000, num_experts=8, experts_per_token=2, moe_intermediate_size=32,
        shared_intermediate_size=48, moe_layers=(False, True, True),
    )  # fmt: skip
    matrices = 3 * 4 * 64 * 64 + 3 * 64 * 256 + 2 * 3 * 64 * (2 * 32 + 48) + 1000 * 64
    assert flop_per_token("megatron", shape, 128) == 6 * matrices + 6 * 3 * 128 * 64
