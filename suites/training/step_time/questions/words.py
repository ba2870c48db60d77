"""What the words of a question mean: model, framework, precision, network, sharding, recompute."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from harness.instruments.transformer.shape import TransformerShape
from suites.training.layouts.architectures.dense import latent
from suites.training.layouts.architectures.experts import moe_layers
from suites.training.layouts.layout import ProgramName
from suites.training.layouts.shape_of_sizes import shape_of_sizes

Json = Mapping[str, Any]

PROGRAMS: tuple[tuple[tuple[str, ...], ProgramName], ...] = (
    (("nanotron",), "nanotron"),
    (("composer", "foundry"), "composer"),
    (("megatron", "nemo"), "megatron"),
    (("deepspeed", "intern", "colossal"), "deepspeed"),
    (("titan", "fsdp", "fms", "torch", "accelerate"), "torchtitan"),
)
"""Parts of frameworks' names, and whose code stands for them; the last for a name that none of them has."""

NETWORK_B_PER_S: Mapping[str, float] = {"volta": 12.5e9, "ampere": 25e9, "hopper": 50e9, "blackwell": 50e9}
"""Per GPU where a question states none: an adapter per GPU, as in DGX-1 (100 Gbit/s), DGX A100 (200), DGX
H100, DGX B200 and DGX GB200 (400); their user guides, https://docs.nvidia.com/dgx/."""

GB300_NETWORK_B_PER_S = 100e9
"""ConnectX-8, 800 Gbit/s per GPU: https://docs.nvidia.com/dgx/dgxgb200-user-guide/ and its GB300 edition."""

FIRST_MLPERF_IN_FP4 = (5, 1)
"""NVIDIA's submissions on Blackwell train in NVFP4 from then on:
https://blogs.nvidia.com/blog/mlperf-training-benchmark-blackwell-ultra/"""

SIZES_NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads")
"""Sizes without which a question's model has no shape."""

NVLINK_DOMAIN = 64
"""GPUs of GB200 and GB300 that share NVLink and are asked for together: of 72, the largest power of two."""


def shape_of_question(model: Json) -> TransformerShape:
    """Return the shape of a question's model, which has names of a Hugging Face config; raises KeyError.

    Questions name no architecture: what its sizes show is taken, and no biases or inner norms.
    """
    parsed = SimpleNamespace(
        **{
            "model_type": "",
            "qk_nope_head_dim": 128,
            "v_head_dim": 0,
            "tie_word_embeddings": False,
            **model,
            **{name: int(model[name]) for name in SIZES_NEEDED},
            "qk_rope_head_dim": _first(model, "qk_rope_head_dim") or 64,
            "q_lora_rank": _first(model, "q_lora_rank"),
            "vocab_size": int(model.get("vocab_size") or 32000),
        },
        **_windows(model),
    )
    gated = "glu" in str(model.get("mlp") or "swiglu").lower()
    own = {"gated": gated, "layer_norm": not gated, **_experts(model)}
    return shape_of_sizes(parsed, {**own, **latent(parsed)} if model.get("kv_lora_rank") else own)


def _first(model: Json, *names: str) -> int:
    return next((int(model[name]) for name in names if model.get(name)), 0)


def _experts(model: Json) -> dict[str, Any]:
    """Return what a mixture of experts has besides, by the names of Mixtral, Qwen, DeepSeek and gpt-oss."""
    count = _first(model, "num_experts", "num_local_experts", "n_routed_experts", "num_moe_experts")
    if not count:
        return {}
    width = _first(model, "moe_intermediate_size", "moe_ffn_hidden_size", "intermediate_size")
    dense, step = _first(model, "first_k_dense_replace"), _first(model, "decoder_sparse_step") or 1
    shared = _first(model, "n_shared_experts", "num_shared_experts") * width
    return {
        "num_experts": count,
        "experts_per_token": _first(model, "num_experts_per_tok", "experts_per_token", "moe_router_topk")
        or 1,
        "moe_intermediate_size": width,
        "shared_intermediate_size": shared or _first(model, "shared_expert_intermediate_size"),
        "moe_layers": moe_layers(int(model["num_hidden_layers"]), dense, step),
        "num_nextn_predict_layers": _first(model, "num_nextn_predict_layers"),
    }


def _windows(model: Json) -> dict[str, Any]:
    """Return which layers see a window alone: those of gpt-oss alternate."""
    window, kinds = _first(model, "sliding_window"), model.get("layer_types")
    named = "gpt-oss" in str(model.get("name") or "").lower().replace("_", "-")
    if kinds and window:
        seen = ["full" not in str(one) for one in kinds]
    else:
        seen = [named and layer % 2 == 0 for layer in range(int(model["num_hidden_layers"]))]
    return {
        "sliding_window": window or 128,
        "layer_types": ["sliding_attention" if one else "full_attention" for one in seen],
    }


def program_of(framework: str) -> ProgramName:
    """Return whose code a framework's name stands for."""
    name = framework.lower()
    for parts, program in PROGRAMS:
        if any(part in name for part in parts):
            return program
    return PROGRAMS[-1][1]


def precision_of(question: Json, architecture: str) -> str:
    """Return the precision of a question's matmuls.

    MLPerf's language models train in FP8 on Hopper and later (Transformer Engine), whatever a table says of
    their weights. So do, by their seconds, those of Megatron Bridge where the precision is left out.
    """
    word = re.sub(r"[^a-z0-9]", "", str(question.get("precision") or "").lower())
    narrow = architecture in ("hopper", "blackwell", "ada", "cdna")
    if not narrow:
        return "bf16"
    if "fp4" in word:
        return "nvfp4"
    if "mx" in word:
        return "mxfp8"
    if "fp8" in word or "float8" in word:
        return "fp8"
    version = re.search(r"mlperf/v(\d+)\.(\d+)", str(question.get("id") or ""))
    if version and (int(version[1]), int(version[2])) >= FIRST_MLPERF_IN_FP4 and architecture == "blackwell":
        return "nvfp4"
    bridge = "bridge" in str(question.get("framework") or "").lower()
    return "fp8" if is_mlperf(question) or (not word and bridge) else "bf16"


def is_hybrid(model: Json) -> bool:
    """Return whether a model has layers of another kind: state spaces or linear attention."""
    name = re.sub(r"[^a-z0-9]", "", str(model.get("name") or "").lower())
    named = any(
        part in name for part in ("mamba", "nemotronh", "nemotron3", "jamba", "qwen3next", "kimilinear")
    )
    return named or any(
        model.get(key) for key in ("hybrid_override_pattern", "mamba_num_heads", "linear_num_value_heads")
    )


def is_mlperf(question: Json) -> bool:
    """Return whether a question is of a submission to MLPerf."""
    return str(question.get("source") or "").lower().startswith("mlperf")


def is_compiled(question: Json) -> bool:
    """Return whether torch.compile fuses operations: where it is noted, and in fms-fsdp, as always there."""
    said = " ".join(str(question.get(key) or "") for key in ("notes", "framework", "source")).lower()
    without = re.search(r"(no|without|not)[ -]*(torch\.)?compile|compile[ d:=]*(off|false|none)", said)
    return ("compile" in said or "fms" in said) and not without


def is_recipe(question: Json) -> bool:
    """Return whether a step of Megatron-Core is that of a recipe of NeMo or Megatron Bridge, or MLPerf's.

    These overlap tensor-parallel collectives (training/comm_overlap.py), add gradients up in bf16
    (perf_recipes/_common.py; NeMo, collections/llm/recipes, grad_reduce_in_fp32), keep FP8 parameters
    (NeMo, recipes/precision/mixed_precision.py, fp8_param_gather) and in bf16 half of each master weight
    (NeMo, scripts/performance/helpers.py, use_precision_aware_optimizer; before,
    megatron_base_model.py, store_param_remainders). Plain Megatron-LM does none of it by default.
    """
    framework = str(question.get("framework") or "").lower()
    plain = "megatron" in framework and not any(word in framework for word in ("nemo", "bridge"))
    return not plain or is_mlperf(question)


def is_lora(question: Json) -> bool:
    """Return whether only adapters are trained."""
    model = question["model"].get("name") if isinstance(question.get("model"), Mapping) else ""
    said = (question.get("source"), question.get("framework"), model, question.get("notes"))
    return "lora" in " ".join(str(one) for one in said).lower()


def network_B_per_s(question: Json, architecture: str, gpus_per_node: int) -> float:
    """Return a GPU's share of the network in bytes per second, by the largest rate that the words name."""
    text = str(question.get("network") or "")
    whole = re.search(r"([\d.]+)\s*Tbit/s per node", text, re.IGNORECASE)
    if whole:
        return float(whole[1]) * 1e12 / 8 / gpus_per_node
    named = [float(rate) for rate in re.findall(r"(\d{2,4})\s*G(?:b|bit)", text, re.IGNORECASE)]
    fast = [rate for rate in named if rate in (200.0, 400.0, 800.0)]
    if fast:
        return max(fast) * 1e9 / 8
    if str(question.get("device") or "").startswith("gb300"):
        return GB300_NETWORK_B_PER_S
    return NETWORK_B_PER_S.get(architecture, 25e9)


def network_kind(question: Json) -> str:
    """Return whether the network is AWS's EFA or taken for InfiniBand."""
    return "efa" if "efa" in str(question.get("network") or "").lower() else "infiniband"


def sharding_of(layout: Json, program: ProgramName, gpus_per_node: int) -> tuple[int, int]:
    """Return ZeRO's stage, and over how many ranks it shards; 0: over all."""
    word = str(layout.get("sharding") or "").lower().replace("_", " ")
    size = gpus_per_node if "hybrid" in word or "hsdp" in word else 0
    stage = re.search(r"zero[- ]?(\d)", word)
    if stage:
        return int(stage[1]), size
    if "grad op" in word:
        return 2, size
    if "distributed optimizer" in word:
        return 1, 0
    if "no shard" in word or word == "ddp":
        return 0, 0
    if any(part in word for part in ("fsdp", "full shard", "hybrid", "hsdp")):
        return 3, size
    return (3 if program in ("composer", "torchtitan") else 1), size


def recompute_of(layout: Json) -> int | None:
    """Return the index of what is recomputed, or None where it was not published."""
    word = layout.get("recompute")
    if word is None:
        return None
    text = str(word).lower()
    if text in ("none", "no", "false", ""):
        return 0
    part = re.match(r"^\s*(0?\.\d+|\d+\s*/\s*\d+)", text)  # of the layers
    return 1 if "select" in text or part else 2
