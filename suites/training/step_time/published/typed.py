"""Published steps as questions: the one place where their free words are read.

`words.yaml` says what the words mean. What a row does not say is inferred here, or left to the defaults of
`Question`, whose origins then call it an assumption. `questions.py` makes questions of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from suites.training.step_time.gpu import RatedGpu, nvlink_domain
from suites.training.step_time.setting import RunFacts

Row = Mapping[str, Any]

TABLE = Path(__file__).with_name("words.yaml")

NETWORK_B_PER_S: Mapping[str, float] = {"volta": 12.5e9, "ampere": 25e9, "hopper": 50e9, "blackwell": 50e9}
"""Per GPU where a row states none: an adapter per GPU, as in DGX-1 (100 Gbit/s), DGX A100 (200), DGX H100,
DGX B200 and DGX GB200 (400); their user guides, https://docs.nvidia.com/dgx/."""

OTHER_NETWORK_B_PER_S = 25e9

GB300_NETWORK_B_PER_S = 100e9
"""ConnectX-8, 800 Gbit/s per GPU: https://docs.nvidia.com/dgx/dgxgb200-user-guide/ and its GB300 edition."""

PORTS_GBIT = (200.0, 400.0, 800.0)
"""Rates of ports between nodes: others that a text names are of storage or management."""

FIRST_MLPERF_IN_FP4 = (5, 1)
"""NVIDIA's submissions on Blackwell train in NVFP4 from then on:
https://blogs.nvidia.com/blog/mlperf-training-benchmark-blackwell-ultra/"""

NARROW = ("hopper", "blackwell", "ada", "cdna")
"""Architectures with matmuls in 8 bits."""

FLASH_ATTENTION = "2022-07"
"""FlashAttention's first release: arXiv 2205.14135. Before, attention was explicit."""


@cache
def table() -> Mapping[str, Any]:
    """Return the words by what they are of."""
    data: Mapping[str, Any] = yaml.safe_load(TABLE.read_text())
    return data


def meaning(kind: str, text: object, default: Any = None) -> Any:
    """Return what the first entry means one of whose words is in a text, else `default`."""
    lower = str(text or "").lower()
    for entry in table()[kind]:
        if any(str(word) in lower for word in entry["words"]):
            return entry["means"]
    return default


def letters(text: object) -> str:
    """Return a text in lower case without punctuation."""
    return re.sub(r"[^a-z0-9]", "", str(text or "").lower())


def common_fields(row: Row, gpu: RatedGpu, config: Row) -> dict[str, Any]:
    """Return the fields of a question that are not of its layout."""
    per_node = int(row.get("gpus_per_node") or 8)
    program = program_of(row)
    recipe = program == "megatron" and is_recipe(row)
    young = str(row.get("date") or FLASH_ATTENTION) >= FLASH_ATTENTION
    return {
        "config": config,
        "devices": int(row["gpus"]),
        "gpus_per_node": nvlink_domain(gpu.name, per_node),
        "network_B_per_s": network_B_per_s(row, gpu.architecture, per_node),
        "network": meaning("networks", row.get("network"), "infiniband"),
        "seq_len": row.get("seq_len"),
        "global_batch_size": row.get("global_batch_size"),
        "precision": precision_of(row, gpu.architecture),
        "gradients": "bf16" if recipe else "fp32",
        "master_remainders": recipe,
        "fp8_parameters": recipe,
        "attention": meaning("attention", row.get("attention"), "flash" if young else "explicit"),
        "compile": is_compiled(row),
        "program": program,
        "framework": f"{MLPERF if is_mlperf(row) else ''}{row.get('framework') or ''}",
    }


def layout_fields(row: Row, common: Row) -> dict[str, Any]:
    """Return the fields of the layout, with what was not published inferred."""
    size = {name: int(row.get(name) or 1) for name in ("tp", "pp", "cp", "ep")}
    ranks = size["tp"] * size["pp"] * size["cp"]
    dp = int(row.get("dp") or max(1, common["devices"] // ranks))
    micro, batch = int(row.get("micro_batch_size") or 1), common["global_batch_size"]
    if batch and not row.get("dp") and dp > batch and dp % batch == 0 and micro == 1:
        size["cp"], dp = size["cp"] * dp // batch, batch  # a sequence has several ranks
    count = row.get("gradient_accumulation_steps")
    if batch and (not count or (not row.get("dp") and count * dp * micro != batch)):
        count = max(1, round(batch / dp / micro))
    zero, hybrid = sharding_of(row.get("sharding"), common["program"])
    within = int(row.get("gpus_per_node") or 8) if hybrid else 0
    return {
        **size,
        "dp": dp,
        "virtual_stages": virtual_stages_of(row.get("vp"), common, size["pp"]),
        "zero": zero,
        "shard_size": min(within, dp * size["cp"]) or None,
        "micro_batch_size": micro,
        "gradient_accumulation_steps": count,
        "sequence_parallel": size["tp"] > 1 and spreads_norms(row),
        "recompute": recompute_of(row.get("recompute")),
    }


SEQUENCE_PARALLEL = "2022-05"
"""arXiv 2205.05198."""


def spreads_norms(row: Row) -> bool:
    """Return whether a program spreads norms and residuals over its tensor-parallel ranks."""
    known = bool(meaning("sequence_parallel", row.get("framework"), True))
    return known and str(row.get("date") or SEQUENCE_PARALLEL) >= SEQUENCE_PARALLEL


def config_of_sizes(model: Row) -> dict[str, Any]:
    """Return the sizes of a model as a config without a type, see `shape_without_type`.

    Experts are named as Mixtral, Qwen, DeepSeek and gpt-oss name them.
    """
    layers = int(model["num_hidden_layers"])
    width = _first(model, "moe_intermediate_size", "moe_ffn_hidden_size", "intermediate_size")
    config = {
        **model,
        "gated_mlp": "glu" in str(model.get("mlp") or "swiglu").lower(),
        "num_experts": _first(
            model, "num_experts", "num_local_experts", "n_routed_experts", "num_moe_experts"
        ),
        "num_experts_per_tok": _first(model, "num_experts_per_tok", "experts_per_token", "moe_router_topk"),
        "moe_intermediate_size": width,
        "n_shared_experts": _first(model, "n_shared_experts", "num_shared_experts"),
    }
    kinds, window = model.get("layer_types"), _first(model, "sliding_window")
    if kinds and window:
        seen = ["full" not in str(kind) for kind in kinds]
    else:
        windowed = meaning("windowed", letters(model.get("name")), False)
        seen = [windowed and layer % 2 == 0 for layer in range(layers)]
    names = ["sliding_attention" if each else "full_attention" for each in seen]
    return {**config, "sliding_window": window or 128, "layer_types": names}


def _first(model: Row, *names: str) -> int:
    return next((int(model[name]) for name in names if model.get(name)), 0)


def refuse_hybrid(model: Row) -> None:
    """Raise ValueError for a model with layers of another kind: state spaces or linear attention."""
    keys = ("hybrid_override_pattern", "mamba_num_heads", "linear_num_value_heads")
    if meaning("hybrids", letters(model.get("name"))) or any(model.get(key) for key in keys):
        raise ValueError(f"model {model.get('name')!r}: layers other than attention and MLP are not modelled")


def program_of(row: Row) -> Any:
    """Return whose code trains: in MLPerf that of Megatron-Core, in NeMo or a fork of it."""
    return "megatron" if is_mlperf(row) else meaning("programs", row.get("framework"))


def precision_of(row: Row, architecture: str) -> str:
    """Return the precision of matmuls.

    MLPerf's language models train in FP8 on Hopper and later (Transformer Engine), whatever a table says of
    their weights. So do, by their seconds, those of Megatron Bridge where the precision is left out.
    """
    word = letters(row.get("precision"))
    stated = meaning("precisions", word, "bf16")
    if stated not in ("fp8", "mxfp8", "nvfp4"):
        bridge = not word and "bridge" in str(row.get("framework") or "").lower()
        found = re.search(r"mlperf/v(\d+)\.(\d+)", str(row.get("id") or ""))
        version = (int(found[1]), int(found[2])) if found else (0, 0)
        if version >= FIRST_MLPERF_IN_FP4 and architecture == "blackwell":
            stated = "nvfp4"
        elif is_mlperf(row) or bridge:
            stated = "fp8"
    if architecture == "cdna" and stated in ("mxfp8", "nvfp4"):
        stated = "fp8"  # AMD's matrices of 8 bits and fewer are not apart here
    wide = stated in ("bf16", "fp16", "fp32")
    return str(stated if wide or architecture in NARROW else "bf16")


MLPERF = "MLPerf: "
"""Before the framework of a submission, which is tuned as far as its submitter can."""


def is_mlperf(row: Row) -> bool:
    """Return whether a row is of a submission to MLPerf."""
    return str(row.get("source") or "").lower().startswith("mlperf")


def is_compiled(row: Row) -> bool:
    """Return whether torch.compile fuses operations: as stated or noted, and in fms-fsdp, as always there."""
    if row.get("compile") is not None:
        return bool(row["compile"])
    text = " ".join(str(row.get(key) or "") for key in ("notes", "framework", "source")).lower()
    without = re.search(r"(no|without|not)[ -]*(torch\.)?compile|compile[ d:=]*(off|false|none)", text)
    return ("compile" in text or re.search(r"fms\W?fsdp", text) is not None) and not without


def is_recipe(row: Row) -> bool:
    """Return whether a step of Megatron-Core is that of a recipe of NeMo or Megatron Bridge, or MLPerf's.

    These overlap tensor-parallel collectives (training/comm_overlap.py), add gradients up in bf16
    (perf_recipes/_common.py; NeMo, collections/llm/recipes, grad_reduce_in_fp32), keep FP8 parameters
    (NeMo, recipes/precision/mixed_precision.py, fp8_param_gather) and in bf16 half of each master weight
    (NeMo, scripts/performance/helpers.py, use_precision_aware_optimizer; before,
    megatron_base_model.py, store_param_remainders). Plain Megatron-LM does none of it by default.
    """
    return is_mlperf(row) or not meaning("plain_megatron", row.get("framework"), False)


def run_facts(row: Row) -> RunFacts:
    """Return what is known of a run besides its question."""
    texts = [row.get(key) for key in ("source", "framework", "model", "notes", "method")]
    return RunFacts(
        adapters_alone="lora" in " ".join(str(text) for text in texts).lower(),
        triton_attention="triton" in f"{row.get('attention')} {row.get('notes')}".lower(),
        tuned=is_mlperf(row),
        tensor_overlap=is_recipe(row),
        routing_forced="bridge" in str(row.get("framework") or "").lower(),
    )


def network_B_per_s(row: Row, architecture: str, gpus_per_node: int) -> float:
    """Return a GPU's share of the network in bytes per second, by the largest rate that the words name."""
    text = str(row.get("network") or "").lower()
    if "per node" in text and (node_gbit := node_rate_gbit(text)):
        return node_gbit * 1e9 / 8 / gpus_per_node
    named = [float(rate) for rate in re.findall(r"(\d{2,4})\s*g(?:b|bit)", text)]
    fast = [rate for rate in named if rate in PORTS_GBIT]
    port = max(fast) if fast else meaning("link_gbit", text)
    if port:
        return float(port) * 1e9 / 8
    if str(row.get("device") or "").lower().startswith("gb300"):
        return GB300_NETWORK_B_PER_S
    return NETWORK_B_PER_S.get(architecture, OTHER_NETWORK_B_PER_S)


def node_rate_gbit(text: str) -> float | None:
    """Return the rate of a node that a text names in all, or by its ports; None where it names none."""
    if whole := re.search(r"([\d.]+)\s*tb(?:it)?/s", text):
        return float(whole[1]) * 1e3
    ports = re.search(r"(\d+)x", text)
    named = re.search(r"(\d{2,4})\s*gb(?:it|ps)?", text)
    each = float(named[1]) if named else meaning("link_gbit", text)
    return (int(ports[1]) if ports else 1) * each if each else None


def sharding_of(text: object, program: str) -> tuple[int, bool]:
    """Return ZeRO's stage, and whether it shards within a node alone."""
    own = 3 if program in ("composer", "torchtitan") else 1
    return meaning("sharding", text, own), meaning("hybrid_sharding", text, False)


def recompute_of(text: object) -> str:
    """Return what is recomputed; none where nothing was published of it."""
    lower = str(text or "").lower()
    if lower in table()["nothing"]:
        return "none"
    part_of_layers = re.match(r"^\s*(0?\.\d+|\d+\s*/\s*\d+)", lower)
    return "selective" if part_of_layers else str(meaning("recompute", lower))


def virtual_stages_of(stated: object, common: Mapping[str, Any], pp: int) -> int:
    """Return the pipeline stages per rank; where none were published, a recipe's have two layers, or one.

    Embedding and output layer count as a layer each where the layers alone do not divide.
    """
    plain = meaning("plain_megatron", common["framework"], False)
    if stated or pp == 1 or common["program"] != "megatron" or plain:
        return int(str(stated or 1))
    count = int(common["config"]["num_hidden_layers"])
    for layers in (count, count + 2):
        for stage in (2, 1):
            if layers % (pp * stage) == 0:
                return layers // (pp * stage)
    return 1
