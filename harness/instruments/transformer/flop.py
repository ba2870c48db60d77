"""FLOP of a transformer's training step per token: this project's count, and those of frameworks' logs.

All count three times the forward pass and none counts recomputation. They differ in whether attention is
halved for its causal mask, in whether the embedding's lookup counts as a product, and in what peak MFU is a
share of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from harness.instruments.transformer.shape import TransformerShape

FORWARD_FLOP = 2
"""Per parameter and token: one multiplication, one addition (Kaplan et al., arXiv 2001.08361)."""

BACKWARD_FLOP = 4
"""Per parameter and token: twice the forward pass (the same paper, section 2.1)."""

TRAINING_FLOP = FORWARD_FLOP + BACKWARD_FLOP
"""Per parameter and token of a step."""

SCORES_FLOP = 2 * TRAINING_FLOP
"""Per token, layer, position and element of the heads: queries by keys, and scores by values, without a
mask (arXiv 2204.02311, appendix B)."""

CAUSAL_SCORES_FLOP = SCORES_FLOP // 2
"""The same where a causal mask saves half."""


def scores_flop_per_token(shape: TransformerShape, seen: float) -> float:
    """Return the FLOP of attention's scores per token, where layers see `seen` positions in sum."""
    return TRAINING_FLOP * seen * (shape.query_size + shape.attention_size)


def model_flop_per_token(shape: TransformerShape, seq_len: int) -> float:
    """Return the FLOP per token of this project's MFU: 6 per matmul parameter, and 12 Lsh of attention.

    A causal mask saves nothing, as in nanotron, torchtitan and, before core 0.12, Megatron-LM; of a layer
    that sees a window, s is that window.
    """
    lookup = 0 if shape.tie_word_embeddings else shape.embedding_parameters
    window = min(seq_len, shape.sliding_window or seq_len)
    seen = sum(window if windowed else seq_len for windowed in shape.layers_are_windowed)
    return TRAINING_FLOP * (shape.active_parameters - lookup) + scores_flop_per_token(shape, seen)


class FlopConvention(NamedTuple):
    """A framework's formula of FLOP per token, with its source."""

    framework: str
    formula: str
    source: str
    causal_halved: bool  # whether attention counts half of its scores
    embedding_counted: bool  # whether the embedding's parameters count as a product
    peak: str  # what MFU is a share of


CONVENTIONS: Mapping[str, FlopConvention] = {
    "torchtitan": FlopConvention(
        "torchtitan",
        "6 × (parameters − embedding) + 12 × layers × heads × head size × sequence; active experts alone",
        "torchtitan v0.2.2, torchtitan/models/utils.py, get_dense_model_nparams_and_flops",
        causal_halved=False,
        embedding_counted=False,
        peak="the datasheet's dense bf16 rate, also for float8 (torchtitan/tools/utils.py, get_peak_flops)",
    ),
    "megatron": FlopConvention(
        "megatron",
        "6 × (matrices + output layer) + 6 × layers × heads × head size × sequence (half of the scores)",
        "Megatron-LM d98e8a6, megatron/training/training.py, num_floating_point_operations; before core "
        "0.12.0 all scores were counted",
        causal_halved=True,
        embedding_counted=False,
        peak="no MFU is printed",
    ),
    "nanotron": FlopConvention(
        "nanotron",
        "6 × (matrices + output layer) + 12 × layers × hidden size × sequence",
        "nanotron 2411b02, src/nanotron/models/qwen.py, get_flops",
        causal_halved=False,
        embedding_counted=False,
        peak="no MFU is printed",
    ),
    "llm_foundry": FlopConvention(
        "llm_foundry",
        "6 × all parameters + 12 × layers × hidden size × sequence",
        "llm-foundry 8c8dd48, llmfoundry/models/mpt/modeling_mpt.py, flops_per_batch",
        causal_halved=False,
        embedding_counted=True,
        peak="the datasheet's dense rate of the precision (Composer 003ec03, callbacks/speed_monitor.py)",
    ),
}


def convention_of(framework: str) -> FlopConvention | None:
    """Return how a framework's log counts FLOP; None where its log has none."""
    return CONVENTIONS.get(framework)


def flop_per_token(
    framework: str, shape: TransformerShape, seq_len: int, older_megatron: bool = False
) -> float:
    """Return the FLOP of one token in training by a framework's own formula.

    `older_megatron`: Megatron-Core before 0.12.0. Raises ValueError for a framework whose log counts none.
    """
    convention = CONVENTIONS.get(framework)
    if convention is None:
        raise ValueError(f"{framework}'s log counts no FLOP; those that do: {', '.join(CONVENTIONS)}")
    scores = scores_flop_per_token(shape, shape.num_hidden_layers * seq_len)
    halved = convention.causal_halved and not older_megatron
    return TRAINING_FLOP * _counted_parameters(framework, shape) + (scores / 2 if halved else scores)


def _counted_parameters(framework: str, shape: TransformerShape) -> int:
    """Return the parameters that a formula counts; norms are in torchtitan's and LLM Foundry's sums."""
    if framework in ("megatron", "nanotron"):
        matrices = sum(shape.active_matrix_parameters(moe) for moe in shape.layers_are_moe)
        return matrices + shape.embedding_parameters
    if framework == "llm_foundry":
        return shape.active_parameters
    # Tied embeddings are one parameter, which torchtitan takes off as the embedding's.
    return shape.active_parameters - shape.embedding_parameters


def reconciled(flop_per_s: float, framework: str, shape: TransformerShape, seq_len: int) -> float:
    """Return a rate or MFU that a framework's formula gave as this project's would give it."""
    theirs = flop_per_token(framework, shape, seq_len)
    return flop_per_s * model_flop_per_token(shape, seq_len) / theirs
