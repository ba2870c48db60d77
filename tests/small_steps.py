"""Small training steps for tests: a Llama and a GPT of a few hundred thousand parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from suites.memory import activation_checkpointing, flash_attention, mixed_precision
from suites.memory.step import TrainingStep, Workload

LLAMA = Workload(
    num_hidden_layers=4,
    hidden_size=64,
    num_attention_heads=4,
    num_key_value_heads=4,
    intermediate_size=176,
    vocab_size=500,
    norm="rms",
    mlp="swiglu",
    position="rotary",
    max_position_embeddings=256,
    tie_word_embeddings=False,
    bias=False,
    micro_batch_size=2,
    seq_len=48,
    optimizer="adamw",
    optimizer_impl="default",
    gradient_accumulation_steps=1,
    max_grad_norm=None,
    dropout=0.0,
    ranks=1,
    tp_size=1,
    nominal_parameters=None,
    device_memory_B=80e9,
    train=True,
    program="host",
    hf_config=None,
    source="a test",
)

GPT = replace(
    LLAMA,
    norm="layer",
    mlp="gelu",
    position="learned",
    intermediate_size=256,
    tie_word_embeddings=True,
    bias=True,
    dropout=0.1,
)

LLAMA_7B = replace(
    LLAMA,
    num_hidden_layers=32,
    hidden_size=4096,
    num_attention_heads=32,
    num_key_value_heads=32,
    intermediate_size=11008,
    vocab_size=32000,
    max_position_embeddings=4096,
    seq_len=2048,
    micro_batch_size=1,
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
