"""Rules of thumb for training steps: 40 % of the datasheet, and the layout that guides name first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.question import Question
from suites.step_time.scores import Predictions
from suites.training.step_time.published.steps import PublishedStep
from suites.training.step_time.published.typed import typed_step
from suites.training.step_time.rates.gpu import gpu_of

MFU = 0.4
"""Share of the datasheet's dense rate: a rule of thumb for well-tuned steps."""

GB = 1e9


def parameters_of(model: Mapping[str, Any]) -> float:
    """Return the parameters of layers and embeddings: 2 hd (H + K) of attention, 2 or 3 hi of the MLP."""
    hidden, heads = model["hidden_size"], model["num_attention_heads"]
    kv_heads = model.get("num_key_value_heads") or heads
    head_dim = model.get("head_dim") or hidden / heads
    attention = 2.0 * hidden * head_dim * (heads + kv_heads)
    matrices = 3 if model["gated_mlp"] else 2
    mlp = matrices * hidden * model["intermediate_size"]
    embeddings = model["vocab_size"] * hidden * (1 if model.get("tie_word_embeddings") else 2)
    return float(model["num_hidden_layers"] * (attention + mlp) + embeddings)


def has_experts(question: Question) -> bool:
    """Return whether a model is a mixture of experts, which the rules do not cover."""
    return bool((question.config or {}).get("num_experts"))


def forty_percent(steps: Sequence[PublishedStep]) -> Predictions:
    """Return the seconds at 40 % of the datasheet's rate; 6N + 12Lhs FLOP per token (arXiv 2204.02311)."""
    said = {}
    for row in steps:
        step = typed_step(row)
        question, gpu = step.questions[0], gpu_of(step.questions[0].device)
        if step.choose or gpu is None or has_experts(question):
            continue
        model: Mapping[str, Any] = question.config or {}
        attention = 12.0 * model["num_hidden_layers"] * model["hidden_size"] * row["seq_len"]
        FLOP = row["global_batch_size"] * row["seq_len"] * (6 * parameters_of(model) + attention)
        rate = MFU * row["gpus"] * gpu.peak_FLOP_per_s(question.precision)
        said[step.id] = {"step_s": FLOP / rate}
    return said


def guides(steps: Sequence[PublishedStep]) -> Predictions:
    """Return what a guide's reader would choose, and whether states, activations and logits fit.

    The largest data-parallel degree that fits, then tensor before pipeline parallelism, ZeRO-1, the largest
    micro-batch.
    """
    said: dict[str, dict[str, Any]] = {}
    for step in map(typed_step, steps):
        if has_experts(step.questions[0]):
            continue
        if step.choose:
            said[step.id] = {"index": step.indices[_first_of_guides(step.questions)]}
        else:
            said[step.id] = {"fits": fits(step.questions[0])}
    return said


def _first_of_guides(questions: Sequence[Question]) -> int:
    """Return which layout the guides' order names first."""
    good = [at for at, one in enumerate(questions) if fits(one)] or range(len(questions))

    def order(at: int) -> tuple[int, int, bool, int]:
        one = questions[at]
        return -(one.dp or 1), one.pp, one.zero != 1, -one.micro_batch_size

    return min(good, key=order)


def fits(question: Question) -> bool:
    """Return whether states, activations and logits fit into the GPU's memory."""
    gpu = gpu_of(question.device)
    return gpu is not None and memory_B(question) <= gpu.memory_B


def memory_B(question: Question) -> float:
    """Return states of 16 bytes per parameter, sbh (10 + 24/t) of activations per layer, and fp32 logits.

    States: 2 of weights, 2 of gradients and 12 of Adam, of which ZeRO-1 shards the 12 (arXiv 1910.02054).
    Activations: arXiv 2205.05198, table 2, without the attention's, which a fused kernel does not keep. The
    first stage of 1F1B keeps as many micro-batches as there are stages, so those of all layers.
    """
    model, tp, pp = question.config or {}, question.tp, question.pp
    per_rank = parameters_of(model) / tp / pp
    shard = (question.dp or 1) if question.zero else 1
    states = per_rank * (4 + 12 / shard)
    tokens = (question.seq_len or 1) * question.micro_batch_size
    kept = min(pp, question.gradient_accumulation_steps or pp) / pp
    layers = model["num_hidden_layers"] * kept
    activations = tokens * model["hidden_size"] * (10 + 24 / tp) * layers
    return float(states + activations + 4.0 * tokens * model["vocab_size"] / tp)
