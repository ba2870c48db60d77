"""Steps of transformers' code of which the account and the dry run give the peak: one question, two engines.

`row` is the layout and `training` the rest, as the account has them; `recipe` is the same as techniques.
Models have few layers, as layers repeat; with more than `FEW_LAYERS` a step is one of the long tests.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, NamedTuple

from suites.training import techniques
from suites.training.dry_run.dry_run import Device, dry_run
from suites.training.layouts.account import worst_peak
from suites.training.layouts.layout import Layouts, Training
from suites.training.layouts.shape_of_config import shape_of_config
from suites.training.workload import SIZES, Workload

FEW_LAYERS = 4


def model(model_type: str, hidden: int, inner: int, layers: int, heads: tuple[int, int], vocabulary: int,
          **more: Any) -> dict[str, Any]:  # fmt: skip
    """Return a config.json's content; `heads`: of queries, of keys and values."""
    own = {"model_type": model_type, "max_position_embeddings": 32768, **more}
    return own | dict(zip(SIZES, (layers, hidden, *heads, inner, vocabulary), strict=True))


TIED = {"tie_word_embeddings": True}
MODELS = {
    "llama 1B": model("llama", 2048, 8192, 16, (32, 8), 128256, head_dim=64, **TIED),
    "llama 8B": model("llama", 4096, 14336, 32, (32, 8), 128256),
    "llama 70B": model("llama", 8192, 28672, 80, (64, 8), 128256),
    "llama 2 7B": model("llama", 4096, 11008, 32, (32, 32), 32000),
    "qwen2 0.5B": model("qwen2", 896, 4864, 24, (14, 2), 151936, **TIED),
    "qwen2 7B": model("qwen2", 3584, 18944, 28, (28, 4), 152064),
    "qwen3 0.6B": model("qwen3", 1024, 3072, 28, (16, 8), 151936, head_dim=128, **TIED),
    "qwen3 8B": model("qwen3", 4096, 12288, 36, (32, 8), 151936, head_dim=128),
    "mistral 7B": model("mistral", 4096, 14336, 32, (32, 8), 32000, sliding_window=None),
    "gemma 2B": model("gemma", 2048, 16384, 18, (8, 1), 256000, head_dim=256),
    "mixtral 8x7B": model("mixtral", 4096, 14336, 32, (32, 8), 32000, num_local_experts=8,
                          num_experts_per_tok=2, sliding_window=None),
    "qwen3 30B-A3B": model("qwen3_moe", 2048, 6144, 48, (32, 4), 151936, head_dim=128, num_experts=128,
                           num_experts_per_tok=8, moe_intermediate_size=768),
}  # fmt: skip
"""Published sizes; each pair chooses the number of layers."""


class Pair(NamedTuple):
    """One step. `layers`: of the model; `row`, `training`: what differs from one sequence on one device."""

    name: str  # of MODELS
    layers: int
    row: dict[str, int]
    training: dict[str, Any]

    @property
    def config(self) -> dict[str, Any]:
        return {**MODELS[self.name], "num_hidden_layers": self.layers}

    def __str__(self) -> str:
        words = [f"{key}={value}" for key, value in {**self.row, **self.training}.items()]
        return " ".join([self.name, f"layers={self.layers}", *words])


def pair(name: str, layers: int, row: str = "", **training: Any) -> Pair:
    """Return a pair; `row`: as in "dp:8 zero:3"."""
    parts = (one.split(":") for one in row.split())
    return Pair(name, layers, {key: int(value) for key, value in parts}, {"seq_len": 4096, **training})


def recipe_of(one: Pair) -> list[Any]:
    row, training = one.row, one.training
    zero, ranks = row.get("zero", 0), row.get("dp", 1)
    if training.get("program") == "deepspeed":
        sharing: list[Any] = [{"zero": {"stage": zero}}]
    elif zero:
        sharing = [{"fsdp2": {"reshard_after_forward": False} if zero == 2 else {}}]
    else:
        sharing = ["ddp"] if ranks > 1 else []
    modes = ("", "selective", "full")
    recompute = modes[row.get("recompute", 0)]
    optimizer = training.get("optimizer", "adamw")
    chunks = training.get("loss_chunks", 1)
    return [
        *sharing,
        *(["mixed_precision"] if training.get("precision", "bf16") == "bf16" else []),
        *([{"attention": {"kernel": "flash"}}] if training.get("attention") != "unfused" else []),
        *([{"activation_checkpointing": {"mode": recompute}}] if recompute else []),
        *([{"optimizer": {"name": optimizer}}] if optimizer != "adamw" else []),
        *([{"loss": {"chunks": chunks, "chunked": "recompute"}}] if chunks > 1 else []),
        *([{"loss": {"fused": True}}] if training.get("fused_loss") else []),
        *(["fused_layers"] if training.get("fused_layers") else []),
    ]


def accounted_B(one: Pair) -> float:
    training = Training(**{"program": "torchtitan", "imbalance": 1.0, **one.training,
                           "model_code": one.config["model_type"]})  # fmt: skip
    return float(worst_peak(shape_of_config(one.config), Layouts.of([one.row]), training).total_B[0])


def dry_run_B(one: Pair) -> float:
    training = one.training
    workload = Workload(
        hf_config=one.config,
        **dict.fromkeys(SIZES, 1),  # which the config's take the place of
        seq_len=training["seq_len"],
        dp_size=one.row.get("dp", 1),
        micro_batch_size=one.row.get("micro_batch_size", 1),
        gradient_accumulation_steps=one.row.get("micro_batches", 1),
        optimizer_impl=training.get("optimizer_impl", "default"),
    )
    step = techniques.build_step(asdict(workload), recipe_of(one), 0)
    few = one.layers <= FEW_LAYERS
    return float(dry_run(step, Device("cuda"), few, reserved=False).peak_B)


ZERO = {"program": "deepspeed"}

PAIRS = [
    # one device, torch's autocast
    pair("llama 1B", 3),
    pair("llama 1B", 4, "micro_batch_size:2 recompute:2", seq_len=16384, loss_chunks=8),
    pair("llama 1B", 3, "micro_batch_size:4 recompute:1", seq_len=2048),
    pair("llama 1B", 2, "micro_batch_size:2", loss_chunks=8),
    pair("llama 1B", 3, "micro_batch_size:8", seq_len=512, optimizer="sgd_momentum"),
    pair("llama 1B", 3, seq_len=2048, optimizer="adamw_8bit"),
    pair("llama 8B", 2, seq_len=512, optimizer_impl="fused"),
    pair("llama 2 7B", 3, "recompute:2 micro_batches:3", seq_len=8192),
    pair("qwen2 0.5B", 4, "micro_batch_size:2"),
    pair("qwen3 0.6B", 3, "micro_batch_size:8", seq_len=2048),
    pair("gemma 2B", 3),
    # DDP
    pair("llama 1B", 3, "dp:8 recompute:2 micro_batch_size:4"),
    pair("qwen2 0.5B", 4, "dp:4 recompute:2 micro_batch_size:8", seq_len=1024),
    # FSDP2
    pair("llama 1B", 3, "dp:8 zero:3 micro_batch_size:2"),
    pair("llama 1B", 3, "dp:8 zero:3 micro_batch_size:8", optimizer="adamw_8bit"),
    pair("llama 8B", 2, "dp:8 zero:3 recompute:2", seq_len=16384, loss_chunks=8),
    pair("llama 8B", 3, "dp:8 zero:2"),
    pair("llama 8B", 3, "dp:8 zero:3 recompute:1", seq_len=8192),
    pair("llama 70B", 2, "dp:64 zero:3 recompute:2"),
    pair("llama 2 7B", 3, "dp:4 zero:3", seq_len=2048, attention="unfused"),
    pair("llama 2 7B", 3, "dp:2 zero:3", seq_len=512, optimizer_impl="fused"),
    pair("gemma 2B", 2, "dp:4 zero:3 recompute:2 micro_batch_size:2", fused_loss=True),
    pair("mixtral 8x7B", 2, "dp:64 zero:3 recompute:2"),
    pair("qwen3 30B-A3B", 2, "dp:32 zero:3 micro_batch_size:2", seq_len=2048),
    pair("llama 8B", 2, "dp:8 zero:3 recompute:2", seq_len=16384, fused_loss=True, fused_layers=True),
    pair("llama 70B", 2, "dp:64 zero:3 recompute:2", seq_len=8192, fused_layers=True),
    # deepspeed's ZeRO
    pair("llama 1B", 3, "dp:8 zero:1", **ZERO),
    pair("llama 1B", 3, "dp:2 zero:2", seq_len=512, **ZERO),
]

LONG = [
    pair("llama 1B", 16, "micro_batch_size:2 recompute:1"),
    pair("llama 8B", 32, "dp:8 zero:3 recompute:2", seq_len=16384, loss_chunks=8),
    pair("llama 8B", 32, "dp:64 zero:2 recompute:2"),
    pair("llama 70B", 80, "dp:64 zero:3 recompute:2"),
    pair("llama 2 7B", 32, "dp:4 zero:3", seq_len=2048, attention="unfused"),
    pair("qwen2 0.5B", 24, "dp:8"),
    pair("qwen3 8B", 36, "dp:8 zero:3"),
    pair("mistral 7B", 32, "dp:8 zero:3 micro_batch_size:8 recompute:2"),
    pair("mixtral 8x7B", 32, "dp:64 zero:3"),
    pair("qwen3 30B-A3B", 48, "dp:32 zero:3 recompute:2"),
    pair("llama 8B", 32, "dp:64 zero:2 recompute:2", seq_len=1024, **ZERO),
]
