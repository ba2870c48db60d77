"""torchtitan's TOML, its older names, and the Python registry that came after it, read as text.

Sources: torchtitan v0.2.2 (torchtitan/config/job_config.py, distributed/pipeline_parallel.py,
distributed/utils.py, models/llama3/infra/parallelize.py), v0.1.0 and the commit 3247841 of November 2024
(torchtitan/config_manager.py) for the older names; commits 9810191b of February and b5bcd76c of August 2026
(torchtitan/config/configs.py, trainer.py, models/*/config_registry.py, components/loss.py and lora.py) for
the registry.
"""

from __future__ import annotations

from typing import Any

from harness.frameworks.models import name_in
from harness.frameworks.python_text import Unresolved
from harness.frameworks.table import Fields, Flat, Parts, yaml_tree
from harness.frameworks.words import layers_named
from harness.question import Adapters, Question

ONE_STAGE = ("1f1b", "gpipe")
"""Schedules with one stage per rank where layers per stage are not given; others have two
(pipeline_parallel.py)."""

CONVERTERS = {"fp8": ["quantize.linear.float8"], "mxfp8": ["quantize.linear.mx"]}

POLICIES = {"SelectiveAC": "selective", "FullAC": "full", "MemoryBudgetAC": "memory_budget"}
"""The registry's classes of activation checkpointing, as modes."""


def prepared(flat: Flat) -> Flat:
    """Return the values by the TOML's names: the old switch of float8 is a converter."""
    values = dict(flat)
    if "model_spec._class" in values:
        values = _of_registry(values)
    elif "config" in values:
        raise ValueError(
            f"{values['config']} is a function of torchtitan's config_registry.py that is not here; give "
            "config=config_registry.py:NAME"
        )
    if values.pop("float8.enable_float8_linear", False):
        values["model.converters"] = [*values.get("model.converters", []), "float8"]
    return values


def _of_registry(values: dict[str, Any]) -> dict[str, Any]:
    """Return what a function of the registry builds, by the names of the TOML."""
    if any(key.startswith("generator.") for key in values):  # experiments/rl
        raise ValueError("it generates and trains on separate devices (RL), which is not read")
    function, module = values.pop("config"), values.pop("_module", "")
    families = sorted((*yaml_tree("torchtitan")["models"], "qwen3_5", "kimi_k2_7"), key=len, reverse=True)
    values["_by_name"] = module not in families
    in_name = (one for one in families if one.replace("qwen3_5", "qwen35") in function)
    values["model.name"] = module if module in families else next(in_name, function)
    values["model.flavor"] = values.pop("model_spec.0", values.pop("model_spec.flavor", function))
    values["parallelism.enable_async_tensor_parallel"] = values.pop(
        "compile.enable_async_tensor_parallel",
        values.pop("parallelism.enable_async_tensor_parallel", False)
        or values.pop("model_spec.tp_gemm_backend", "default") != "default",
    )
    _convert(values)
    policy = values.pop("activation_checkpoint._class", "SelectiveAC")
    if "activation_checkpoint" in values:
        values["activation_checkpoint.mode"] = "none"
    elif policy in POLICIES:
        values["activation_checkpoint.mode"] = POLICIES[policy]
        values["activation_checkpoint.selective_ac_option"] = "op"
    if "Chunked" in str(values.get("loss._class")):
        values.setdefault("loss.num_chunks", 8)
    if "InBackward" in str(values.pop("optimizer._class", "")):
        values["optimizer.early_step_in_backward"] = True
    names = [value for key, value in values.items() if key.endswith(".optimizer_name")]
    values["_muon"] = any("Muon" in str(name) for name in names)
    if values["_muon"] or all(name in ("Adam", "AdamW") for name in names):
        values.pop("optimizer.param_groups", None)
    tokens, length = (
        values.pop(f"training.{name}", None)
        for name in ("num_tokens_per_microbatch_per_dp_rank", "max_context_length")
    )
    if tokens is None and length is None and "training.seq_len" in values:
        return values  # the registry until August 2026
    if isinstance(tokens, Unresolved) or isinstance(length, Unresolved):
        unknown = Unresolved(f"{tokens} // {length}")
        return values | {"training.seq_len": length, "training.local_batch_size": unknown}
    length, whole = length or 2048, values.pop("training.num_tokens_per_train_step", -1)
    micro, batches = max(1, (tokens or 16384) // length), values.pop("parallelism.num_pp_microbatches", 1)
    if values.get("parallelism.pipeline_parallel_degree", 1) > 1:
        values["parallelism.pipeline_parallel_microbatch_size"] = micro
        micro *= batches
    others = {"training.local_batch_size": micro, "training.seq_len": min(length, tokens or 16384)}
    return values | others | {"training.global_batch_size": whole if whole == -1 else whole // length}


def _convert(values: dict[str, Any]) -> None:
    """Name converters of linear layers, their settings and adapters as the TOML has them."""
    converters = []
    for section in ("model_spec.converters", "model_converters.converters"):
        for name in values.pop(section, None) or ():
            kind = name.lower().replace("mxfp8", "mx")
            what = next((one for one in ("float8", "mx", "nvfp4", "lora") if kind.startswith(one)), kind)
            place = "grouped_mm" if "grouped" in kind else "linear"
            target = "lora." if what == "lora" else f"quantize.{place}.{what}."
            converters += [] if what == "lora" else [f"quantize.{place}.{what}"]
            for key in [key for key in values if key.startswith(f"{section}.{name}.")]:
                values[target + key.removeprefix(f"{section}.{name}.")] = values.pop(key)
    values["model.converters"] = converters


def settle(parts: Parts) -> Fields:
    """Return fields of Question."""
    if "flux" in parts["_name"]:
        raise ValueError("flux makes pictures; language models alone are read")
    fields = _data_parallel(parts) | _batches(parts) | _recompute(parts)
    if parts.flat.get("_muon"):
        fields["optimizer"] = "muon"
    if parts["pp"] == 1:
        fields |= {"schedule": "1f1b", "layers_per_stage": None}
    elif parts["schedule"] not in ONE_STAGE:
        fields["virtual_stages"] = 2
    fields["model_name"] = f"{parts['_name']}/{parts['_flavor']}"
    if parts.flat.get("_by_name"):
        parts.assume(
            "model_name", "the family of model_registry is not in the file; its function's name says it"
        )
    if parts.get("_hub") and "debug" not in parts["_flavor"]:  # of transformers, by its own sizes
        fields["model_name"] = parts["_hub"]
    fields["sequence_parallel"] = parts["tp"] > 1 and parts["_sequence"]
    converters = parts["_converters"]
    listed = converters.split(",") if isinstance(converters, str) else converters
    linear = " ".join(one for one in listed if "grouped_mm" not in one).replace("mm", "")
    for word, precision in (("float8", "fp8"), ("mx", "mxfp8"), ("nvfp4", "nvfp4")):
        if word in linear:
            fields["precision"] = precision
    if len(linear.split()) < len(listed):
        why = "the experts' products in lower precision; bf16 is taken"
        parts.leave_out("model.converters", converters, why, "either", "lowers")
    if "_rank" in parts:
        names = layers_named(parts.get("_modules") or ("attention", "mlp"))
        fields["adapters"] = Adapters(rank=parts["_rank"], targets=tuple(sorted(names)))
        if parts["states"] == "fp32":
            why = "frozen weights stay in fp32, of which bf16 is taken"
            parts.leave_out("training.dtype", "float32", why, "raises", "none")
    fields["compile"] = parts["compile"] and "model" in parts["_components"]
    return fields


def _data_parallel(parts: Parts) -> Fields:
    replicas, shard = parts["_replicas"], parts["_shard"]
    if shard == 0 or shard < -1:
        raise ValueError(f"parallelism.data_parallel_shard_degree is {shard}; it must be -1 or at least 1")
    sharded = shard != 1 or parts["cp"] > 1
    reshard = parts["_reshard"]
    kept = reshard == "never" or (reshard == "default" and parts["pp"] > 1)
    return {
        "dp": None if shard == -1 else replicas * shard,
        "zero": (2 if kept else 3) if sharded else 0,
        "sharing": "fsdp2" if sharded else "ddp",
        "replicas": replicas if sharded else 1,
    }


def _batches(parts: Parts) -> Fields:
    local, micro = parts["_local"], parts["_pp_micro"] if parts["pp"] > 1 else parts["_local"]
    if local % micro:
        raise ValueError(
            f"training.local_batch_size is {local}; it must be a multiple of "
            f"parallelism.pipeline_parallel_microbatch_size, {micro}"
        )
    if parts["_global"] != -1:
        return {"micro_batch_size": micro, "global_batch_size": parts["_global"]}
    return {"micro_batch_size": micro, "gradient_accumulation_steps": local // micro}


def _recompute(parts: Parts) -> Fields:
    mode, every = parts["_recompute"], parts["_every"]
    if mode == "selective" and every != "op":
        if not every.isdigit() or int(every) < 1:
            raise ValueError(
                f"activation_checkpoint.selective_ac_option is {every!r}; it must be op or at least 1"
            )
        return {"recompute": "full", "recompute_every": int(every)}
    return {"recompute": mode}


def parts_of(question: Question) -> Fields:
    """Return torchtitan's parts of a question; raises ValueError where it cannot express it."""
    name = question.model_name
    if name and question.format != "torchtitan":
        name = name_in("torchtitan", name)
    family, _, flavor = name.partition("/")
    dp, replicas = question.dp, question.replicas
    alike = question.zero == 0 and dp is not None  # no rank shards
    every = question.recompute == "full" and question.recompute_every > 1
    return {
        "_name": family if flavor else None,
        "_flavor": flavor or None,
        "_converters": CONVERTERS.get(question.precision),
        "precision": "bf16" if question.precision in CONVERTERS else question.precision,
        "_replicas": dp if alike else replicas,
        "_shard": 1 if alike else dp // replicas if dp else -1,
        "_reshard": {2: "never", 3: "always"}.get(question.zero, "default"),
        "_recompute": "selective" if every else question.recompute,
        "_every": str(question.recompute_every) if every else "op",
        **_batch_parts(question),
    }


def _batch_parts(question: Question) -> Fields:
    micro, steps = question.micro_batch_size, question.gradient_accumulation_steps
    if question.pp > 1:
        return {
            "_local": micro * (steps or question.pp),
            "_global": question.global_batch_size,
            "_pp_micro": micro,
        }
    whole = question.global_batch_size
    if whole is None and (steps or 1) > 1:
        if question.dp is None:
            raise ValueError("torchtitan's gradient accumulation needs global_batch_size, so dp, too")
        whole = micro * (steps or 1) * question.dp
    return {"_local": micro, "_global": whole, "schedule": None, "layers_per_stage": None}
