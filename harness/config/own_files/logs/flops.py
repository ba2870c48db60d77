"""How frameworks count the FLOPs of a token, so that their TFLOP/s and MFU can be compared.

All count three times the forward pass and none counts recomputation. They differ in whether attention is
halved for its causal mask, in whether the embedding's lookup counts as a product, and in what peak MFU is a
share of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from harness.config.own_files.oom.sizes import StepSizes


class FlopConvention(NamedTuple):
    """A framework's formula of FLOPs per token, with its source."""

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
    """Return how a framework's log counts FLOPs; None where its log has none."""
    return CONVENTIONS.get(framework)


def flops_per_token(framework: str, sizes: StepSizes, seq_len: int, older_megatron: bool = False) -> float:
    """Return the FLOPs of one token in training by a framework's own formula.

    `older_megatron`: Megatron-Core before 0.12.0. Raises ValueError for a framework whose log counts none.
    """
    convention = CONVENTIONS.get(framework)
    if convention is None:
        raise ValueError(f"{framework}'s log counts no FLOPs; those that do: {', '.join(CONVENTIONS)}")
    scores = 12 * sizes.layers * sizes.heads * sizes.head_dim * seq_len
    if convention.causal_halved and not older_megatron:
        scores //= 2
    return 6 * _parameters(framework, sizes) + scores


def _parameters(framework: str, sizes: StepSizes) -> int:
    """Return the parameters that a formula counts; norms are in torchtitan's and LLM Foundry's sums."""
    mlp = sizes.mlp
    if sizes.experts:
        mlp = sizes.experts_per_token * sizes.expert + sizes.hidden * sizes.experts
    matrices = sizes.layers * (sizes.attention + mlp)
    norms = sizes.layers * 2 * sizes.hidden + sizes.hidden
    if framework in ("megatron", "nanotron"):
        router = sizes.layers * sizes.hidden * sizes.experts
        return matrices - router + sizes.table
    if framework == "llm_foundry":
        return matrices + norms + sizes.table * (1 if sizes.tied else 2)
    # Tied embeddings are one parameter, which torchtitan takes off as the embedding's.
    return matrices + norms + (0 if sizes.tied else sizes.table)


def reconciled(flop_per_s: float, framework: str, to: str, sizes: StepSizes, seq_len: int) -> float:
    """Return TFLOP/s or MFU that one framework's formula gave as another's would give it."""
    return flop_per_s * flops_per_token(to, sizes, seq_len) / flops_per_token(framework, sizes, seq_len)
