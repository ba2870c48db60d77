"""Small training steps for tests: a Llama and a GPT of a few hundred thousand parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from suites.memory import activation_checkpointing, flash_attention, mixed_precision
from suites.memory.step import TrainingStep, Workload

LLAMA = Workload(
    layers=4,
    hidden=64,
    heads=4,
    kv_heads=4,
    ffn=176,
    vocab=500,
    norm="rms",
    mlp="swiglu",
    position="rotary",
    positions=256,
    tied=False,
    bias=False,
    batch=2,
    seq_len=48,
    optimizer="adamw",
    optimizer_loop="default",
    micro_batches=1,
    clip_norm=None,
    dropout=0.0,
    ranks=1,
    tensor_ranks=1,
    nominal_parameters=None,
    device_memory_B=80e9,
    train=True,
    program="host",
    hf_config=None,
    source="a test",
)

GPT = replace(LLAMA, norm="layer", mlp="gelu", position="learned", ffn=256, tied=True, bias=True, dropout=0.1)

LLAMA_7B = replace(
    LLAMA,
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=32,
    ffn=11008,
    vocab=32000,
    positions=4096,
    seq_len=2048,
    batch=1,
    train=False,
)

TECHNIQUES = {
    "flash": (flash_attention, flash_attention.Settings()),
    "full": (activation_checkpointing, activation_checkpointing.Settings("full")),
    "selective": (activation_checkpointing, activation_checkpointing.Settings("selective")),
    "autocast": (mixed_precision, mixed_precision.Settings("autocast")),
    "bf16_grads": (mixed_precision, mixed_precision.Settings("bf16_grads")),
    "fp32_grads": (mixed_precision, mixed_precision.Settings("fp32_grads")),
}


def make_step(workload: Workload, techniques: str = "", **changes: Any) -> TrainingStep:
    """`workload`, changed, with techniques applied in order ("flash full")."""
    step = TrainingStep(replace(workload, **changes), seed=0)
    for name in techniques.split():
        module, settings = TECHNIQUES[name]
        step = module.apply(step, settings)
    return step
