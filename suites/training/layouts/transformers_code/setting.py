"""Which steps of transformers' code the account follows: a layout and its training as a `CodeSetting`.

Raises `Unavailable` for others; docs/commands/fit.md lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from harness.instruments.transformer.shape import TransformerShape
from harness.records import Unavailable
from suites.training.layouts.layout import RECOMPUTES, Layouts, Training
from suites.training.layouts.transformers_code.loss import LossName
from suites.training.layouts.transformers_code.sizes import CodeName
from suites.training.layouts.transformers_code.step import CodeSetting
from suites.training.workload import Architecture

CODES: Mapping[str, CodeName] = {
    "gemma": "gemma",
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "mixtral",
    "qwen2": "llama",
    "qwen3": "llama",
    "qwen3_moe": "qwen3_moe",
}
"""Whose code a model_type has, of those that the account follows."""

Sharing = Literal["none", "ddp", "fsdp2", "zero"]


def setting_of(
    shape: TransformerShape, layouts: Layouts, index: int, training: Training, architecture: Architecture
) -> CodeSetting:
    """Return one of the layouts' steps; raises `Unavailable` where it is not followed."""
    if training.model_code not in CODES:
        raise Unavailable(
            f"model_type {training.model_code!r}: the account follows transformers' code of "
            f"{', '.join(CODES)}"
        )
    ranks = int(layouts.dp[index])
    sharing = sharing_of(training, int(layouts.zero[index]), ranks)
    recompute = RECOMPUTES[int(layouts.recompute[index])]
    if reason := refusal(shape, layouts, index, training, sharing):
        raise Unavailable(f"the account of transformers' code: {reason}")
    return CodeSetting(
        sequences=int(layouts.micro_batch_size[index]),
        seq_len=training.seq_len,
        sharing=sharing,
        ranks=ranks,
        zero_stage=int(layouts.zero[index]),
        precision="fp32" if training.precision == "fp32" else "bf16",
        recompute=recompute,  # type: ignore[arg-type]
        attention="explicit" if training.attention == "unfused" else "flash",
        code=CODES[training.model_code],
        loss=loss_of(training),
        loss_chunks=training.loss_chunks,
        stays_gathered=sharing == "fsdp2" and int(layouts.zero[index]) == 2,
        micro_batches=int(layouts.micro_batches[index]),
        optimizer=training.optimizer,
        optimizer_impl=training.optimizer_impl,
        architecture=architecture,
    )


def sharing_of(training: Training, zero: int, ranks: int) -> Sharing:
    """Return how a program shares the model; raises `Unavailable`."""
    if training.program == "torchtitan" and zero in (0, 2, 3):
        return "fsdp2" if zero else "ddp" if ranks > 1 else "none"
    if training.program == "deepspeed" and zero in (1, 2):
        return "zero"
    raise Unavailable(
        f"the account of transformers' code: {training.program} with zero:{zero} is not followed"
    )


def loss_of(training: Training) -> LossName:
    """Return how the loss is computed."""
    if training.fused_loss:
        return "fused"
    return "recomputed in chunks" if training.loss_chunks > 1 else "whole"


def refusal(
    shape: TransformerShape, layouts: Layouts, index: int, training: Training, sharing: Sharing
) -> str:
    """Return why a step is not followed; "" where it is."""
    explicit = training.attention == "unfused"
    narrow = sharing in ("fsdp2", "zero") and training.precision == "bf16"
    grouped = shape.num_key_value_heads < shape.num_attention_heads
    model_ranks = layouts.tp[index] * layouts.pp[index] * layouts.cp[index] * layouts.ep[index]
    selective = RECOMPUTES[int(layouts.recompute[index])] == "selective"
    reasons = {
        "tp, pp, cp and ep must be 1": model_ranks > 1,
        "hybrid sharding": layouts.shard_size[index] != layouts.dp[index],
        f"precision={training.precision}": training.precision not in ("bf16", "fp32"),
        f"offload={training.offload}": training.offload != "none",
        f"optimizer={training.optimizer} with deepspeed": sharing == "zero" and training.optimizer != "adamw",
        "several micro-batches with deepspeed": sharing == "zero" and layouts.micro_batches[index] > 1,
        "fp32 with FSDP2 or deepspeed": sharing in ("fsdp2", "zero") and training.precision == "fp32",
        "explicit attention but of FSDP2 or deepspeed in bf16, with as many key-value heads": explicit
        and (not narrow or grouped or selective),
        "a window of attention": shape.sliding_window > 0,
        "norms of heads in fp32": shape.qk_norm_size > 0 and training.precision == "fp32",
        "experts but of FSDP2": shape.num_experts > 0 and sharing != "fsdp2",
        "selective recompute of experts": shape.num_experts > 0 and selective,
        "layers without experts next to others": shape.num_experts > 0 and not all(shape.layers_are_moe),
        "shared experts": shape.shared_intermediate_size > 0,
        "dropout": shape.dropout > 0,
    }
    return next((f"{words}: not followed" for words, true in reasons.items() if true), "")
