"""Words that people use for techniques, and how a list of techniques has what they mean."""

from __future__ import annotations

from collections.abc import Mapping

IN_LISTS: Mapping[str, str] = {
    "amp": "mixed_precision",
    "autocast": "mixed_precision",
    "bf16": "mixed_precision (fp32 weights) or bf16_states (everything in bf16)",
    "fp16": "mixed_precision, in bf16, whose tensors have the sizes of fp16",
    "fp8": "float8",
    "pure_bf16": "bf16_states",
    "qlora": "lora: {base: nf4}",
    "dora": "lora: {dora: true}",
    "deepspeed": "zero: {stage: 3}, or stage 1 or 2",
    "zero1": "zero: {stage: 1}",
    "zero2": "zero: {stage: 2}",
    "zero3": "zero: {stage: 3}",
    "zero_offload": "zero: {stage: 2, optimizer: host}",
    "zero_infinity": "zero: {stage: 3, optimizer: disk, parameters: disk}",
    "fsdp": "fsdp2, or fsdp1 for FullyShardedDataParallel",
    "hsdp": "fsdp1 or fsdp2, whose settings have hybrid sharding",
    "dp": "ddp",
    "cpu_offload": "fsdp2: {cpu_offload: true}",
    "offload": "fsdp2: {cpu_offload: true}, or activation_offload",
    "checkpointing": "activation_checkpointing",
    "gradient_checkpointing": "activation_checkpointing",
    "recompute": "activation_checkpointing",
    "flash": "attention",
    "flash_attention": "attention",
    "flash_attention_2": "attention",
    "flash_attn": "attention",
    "sdpa": "attention",
    "liger": "loss: {fused: true}",
    "fused_cross_entropy": "loss: {fused: true}",
    "chunked_loss": "loss: {chunks: 8}",
    "grad_accum": "gradient_accumulation",
    "torch_compile": "compile",
    "adam_8bit": "optimizer: {name: adamw_8bit}",
    "adamw_8bit": "optimizer: {name: adamw_8bit}",
    "tp": "tensor_parallel",
    "pp": "pipeline",
    "cp": "context_parallel",
    "ep": "expert_parallel",
    "diloco": "local_sgd",
}
"""A word -> the entry of `techniques=[...]` that means it."""


def meant_by(word: str) -> str:
    """Return the entry of a list that a word means, in any case and with `-` or `_`; "" where unknown."""
    plain = word.lower().replace("-", "_")
    return IN_LISTS.get(plain) or IN_LISTS.get(plain.replace("_", ""), "")
