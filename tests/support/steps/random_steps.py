"""A hundred random recipes of small models, the same ones each time; a dry run compared with a real step."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from small_steps import HOST

from harness.records import Unavailable
from suites.memory.live_bytes import measure_peak
from suites.training.dry_run.dry_run import dry_run
from suites.training.step import TrainingStep
from suites.training.techniques import build_step

SEED, COUNT = 7, 100

ALLOWED = 5e-4  # relative. What is missing are numbers that torch makes tensors of: 8 bytes each.
NOTHING: dict[str, Any] = {}

TECHNIQUES: dict[str, list[dict[str, Any] | None]] = {
    "mixed_precision": [None, NOTHING, NOTHING, {"gradients": "bf16"}, {"gradients": "fp32"}],
    "bf16_states": [None, None, None, None, NOTHING],
    "attention": [None, NOTHING, NOTHING],
    "activation_checkpointing": [
        None,
        None,
        NOTHING,
        {"mode": "selective"},
        {"mode": "per_op"},
        {"every": 2},
    ],
    "activation_offload": [None] * 9 + [{"prefetch": True}],
    "lora": [None] * 4 + [NOTHING, {"rank": 4, "base": "nf4"}, {"targets": ["query", "value"]}],
    "loss": [None, None, {"chunks": 4}, {"chunks": 4, "chunked": "recompute"}, {"keep_logits": "model"}],
    "optimizer": [
        *(None, {"impl": "foreach"}, {"impl": "fused"}),
        *({"name": name} for name in ("sgd_momentum", "adafactor", "adamw_8bit", "muon")),
    ],
    "optimizer_in_backward": [None] * 7 + [NOTHING],
    "gradient_accumulation": [None, None, {"steps": 2}, {"steps": 2, "split": False}],
}
"""The settings of each technique that is drawn; None: without it."""

SHARED = [
    {"fsdp2": NOTHING},
    {"fsdp2": {"keep_last_block": True}},
    {"fsdp2": {"reshard_after_forward": False, "head": "apart"}},
    {"fsdp2": {"reduce_every_micro_batch": False, "reduce_dtype": "bf16"}},
    {"fsdp2": {"cpu_offload": True}},
    {"fsdp2": {"forward_prefetch": True}},
    {"fsdp1": NOTHING},
    {"ddp": NOTHING},
]
"""How several ranks share a model."""

MODEL_TYPES = ("llama", "mistral", "qwen2")
"""Architectures of transformers that are drawn, besides this project's own model."""


def workload(draw: random.Random) -> dict[str, Any]:
    kv_heads, groups = draw.choice([1, 2, 4]), draw.choice([1, 2])
    hidden_size = kv_heads * groups * draw.choice([16, 32])
    fields: dict[str, Any] = {
        "num_hidden_layers": draw.randint(6, 9),
        "hidden_size": hidden_size,
        "num_attention_heads": kv_heads * groups,
        "num_key_value_heads": kv_heads,
        "intermediate_size": draw.choice([64, 96, 176, 320]),
        "vocab_size": draw.choice([200, 500, 3000]),
        "max_position_embeddings": 256,
        "seq_len": draw.choice([24, 48, 96]),
        "micro_batch_size": draw.choice([1, 2, 3, 5]),
        "dp_size": draw.choice([1, 1, 2, 3, 4, 8]),
        "tie_word_embeddings": draw.random() < 0.3,
        "max_grad_norm": draw.choice([None, None, 1.0]),
        "optimizer_impl": draw.choice(["default", "fused", "fused", "for_loop"]),
    }
    if draw.random() < 0.5:
        names = (
            *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads"),
            *("intermediate_size", "vocab_size", "max_position_embeddings", "tie_word_embeddings"),
        )
        sizes = {name: fields[name] for name in names}
        return fields | {"hf_config": {"model_type": draw.choice(MODEL_TYPES), **sizes}}
    own = {
        "norm": draw.choice(["rms", "layer"]),
        "mlp": draw.choice(["swiglu", "gelu"]),
        "position": draw.choice(["rotary", "learned"]),
        "bias": draw.random() < 0.3,
        "dropout": draw.choice([0.0, 0.0, 0.1]),
    }
    return fields | own


def recipe(draw: random.Random, ranks: int) -> list[dict[str, Any]]:
    """Return a random list of techniques, which need not combine."""
    drawn = [(name, draw.choice(settings)) for name, settings in TECHNIQUES.items()]
    chosen = [{name: settings} for name, settings in drawn if settings is not None]
    return chosen + ([draw.choice(SHARED)] if ranks > 1 else [])


def random_steps(count: int = COUNT, seed: int = SEED) -> Iterator[TrainingStep]:
    """Yield that many steps; those whose techniques do not combine are drawn again."""
    draw = random.Random(seed)
    while count:
        fields = workload(draw)
        techniques = recipe(draw, fields["dp_size"])
        try:
            step = build_step(fields, techniques)
        except Unavailable:
            continue
        if step.no_dry_run is None and not fails(step):
            count -= 1
            yield step


def fails(step: TrainingStep) -> bool:
    """Return whether torch refuses the step: per-operation recomputation of nf4, or Muon for adapters."""
    lora, checkpointing = step.settings_of("lora"), step.settings_of("activation_checkpointing")
    if lora is None:
        return False
    per_op = checkpointing is not None and checkpointing.get("mode") == "per_op"
    return step.workload.optimizer == "muon" or (per_op and lora.get("base") == "nf4")


def assert_as_measured(step, found=None):
    found = found or dry_run(step, HOST)
    for peak in measure_peak(step).peaks:
        assert found.peak_B == pytest.approx(peak.live_B, rel=ALLOWED)
