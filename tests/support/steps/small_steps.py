"""Small training steps for tests: a Llama and a GPT of a few hundred thousand parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from suites.training.dry_run.dry_run import Device
from suites.training.step import TrainingStep
from suites.training.techniques import build_step
from suites.training.workload import Workload

HOST = Device("host", measured=True)
CUDA = Device("cuda")

LLAMA = Workload(
    num_hidden_layers=4,
    hidden_size=64,
    num_attention_heads=4,
    num_key_value_heads=4,
    intermediate_size=176,
    vocab_size=500,
    max_position_embeddings=256,
    micro_batch_size=2,
    seq_len=48,
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
)

TECHNIQUES = {
    "flash": "attention",
    "full": "activation_checkpointing",
    "selective": {"activation_checkpointing": {"mode": "selective"}},
    "autocast": "mixed_precision",
    "bf16_grads": {"mixed_precision": {"gradients": "bf16"}},
    "fp32_grads": {"mixed_precision": {"gradients": "fp32"}},
}


def make_step(workload: Workload, techniques: str = "", **changes: Any) -> TrainingStep:
    """Return the step of a changed `workload` with techniques ("flash full")."""
    return build_step(replace(workload, **changes), [TECHNIQUES[name] for name in techniques.split()])
