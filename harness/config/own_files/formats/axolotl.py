"""axolotl's YAML.

Sources: axolotl commit 067b021 of July 2026 (utils/schemas/config.py, training.py, peft.py, fsdp.py,
enums.py, integrations/liger/args.py, cut_cross_entropy/args.py, expert_parallel/args.py).
"""

from __future__ import annotations

from harness.config.own_files.formats import deepspeed, fsdp_section
from harness.config.own_files.formats.words import (
    attention_of,
    implementation_of,
    optimizer_of,
    optimizer_written,
    targets_of,
)
from harness.config.own_files.models import hub_name
from harness.config.own_files.setup import Adapters, NotUnderstood, OwnSetup
from harness.config.own_files.table import Fields, Flat

NAME = "axolotl"
TITLE = "axolotl's YAML"
SOURCE = "axolotl 067b021"


def recognised(flat: Flat) -> int:
    """Return how many keys only axolotl has."""
    own = {
        "base_model",
        "sequence_len",
        "sample_packing",
        "lora_target_linear",
        "lora_r",
        "dataset_prepared_path",
        "val_set_size",
        "pad_to_sequence_len",
        "saves_per_epoch",
        "fsdp_version",
        "load_in_4bit",
    }
    return len(own & flat.keys()) + ("base_model" in flat) if "base_model" in flat else 0


def prepared(flat: Flat) -> Flat:
    """Return the values with FSDP's keys under one name."""
    return fsdp_section.without_prefix(
        {("fsdp_config.version" if k == "fsdp_version" else k): v for k, v in flat.items()}
    )


def settle(fields: Fields, flat: Flat) -> Fields:
    """Return fields of OwnSetup."""
    unclear: list[NotUnderstood] = []
    found = {name: value for name, value in fields.items() if not name.startswith("_")}
    if fields.get("_batch"):
        found["gradient_accumulation_steps"] = max(1, fields["_batch"] // found["micro_batch_size"])
    found |= fsdp_section.section_fields(fields, 1, unclear)
    section = deepspeed.own_section(fields)
    if any(key.startswith("deepspeed.") for key in flat):
        found |= deepspeed.section_fields(section, unclear) | {
            "tp": max(found["tp"], int(section.get("_tp") or 0))
        }
    found |= _mesh(fields, found)
    found["optimizer"] = optimizer_of("optimizer", fields["_optimizer"], unclear)
    found["optimizer_impl"] = implementation_of(fields["_optimizer"])
    found["recompute"] = "full" if fields["_recompute"] else found.get("recompute", "none")
    if fields["_selective"] and found["recompute"] == "full":
        found["recompute"] = "selective"
    if fields["_recompute"] in ("offload", "disk") or fields["_activations"]:
        found["offload"] = tuple(sorted({*found.get("offload", ()), "activations"}))
    found |= _precision(fields)
    if found.get("engine", "ddp") == "ddp" and not fields.get("_adapter") and found["precision"] != "fp32":
        found["states"] = "bf16"  # weights are loaded so, and nothing keeps fp32 masters
    found["attention"] = _attention(fields, unclear)
    found["adapters"] = _adapters(fields, found["precision"], unclear)
    plugins = " ".join(fields.get("_plugins") or ())
    found["fused_loss"] = bool(fields.get("_liger") or fields.get("_chunked") or fields.get("_cut")) or (
        "CutCrossEntropy" in plugins and fields.get("_cut") is not False
    )
    found["sequence_parallel"] = False
    return {**found, "not_understood": unclear}


def _mesh(fields: Fields, found: Fields) -> Fields:
    """Return data-parallel ranks where the file gives its mesh (dp_shard × dp_replicate × tp × cp)."""
    shard, replicas = fields.get("_shard"), fields.get("_replicas") or 1
    if shard is None:
        return {"replicas": replicas}
    if shard > 1 and not found.get("zero"):
        raise ValueError("dp_shard_size is given without fsdp_config; give fsdp_version and fsdp_config")
    return {"dp": shard * replicas * found["ep"], "replicas": replicas if shard > 1 else 1}


def _precision(fields: Fields) -> Fields:
    if fields.get("_fp8"):
        return {"precision": "fp8"}
    if fields.get("_bfloat16") or fields.get("_float16"):
        return {"precision": "bf16" if fields.get("_bfloat16") else "fp16", "states": "bf16"}
    if fields.get("_fp16"):
        return {"precision": "fp16"}
    return {"precision": "fp32" if fields.get("_bf16") is False else "bf16"}


def _attention(fields: Fields, unclear: list[NotUnderstood]) -> str:
    if fields.get("_attention"):
        return attention_of("attn_implementation", fields["_attention"], unclear)
    if fields.get("_eager"):
        return "explicit"
    return "flash"  # transformers takes sdpa where nothing is said


def _adapters(fields: Fields, precision: str, unclear: list[NotUnderstood]) -> Adapters | None:
    name = fields.get("_adapter")
    if name in (None, ""):
        if fields["_4bit"] or fields["_8bit"]:
            raise ValueError(
                "load_in_4bit or load_in_8bit without adapter: quantized weights cannot be trained"
            )
        return None
    if name not in ("lora", "qlora", "dora"):
        unclear.append(NotUnderstood("adapter", name, "adapters other than LoRA; LoRA's bytes are taken"))
    if "_rank" not in fields:
        raise ValueError(f"adapter is {name}, but lora_r is missing")
    return Adapters(
        rank=fields["_rank"],
        targets=() if fields.get("_linear") else targets_of(fields.get("_modules")),
        base="int8" if fields["_8bit"] else "nf4" if fields["_4bit"] or name == "qlora" else "bf16",
        dora=bool(fields.get("_dora")) or name == "dora",
    )


def written(setup: OwnSetup) -> Flat:
    """Return axolotl's keys of a set-up; raises ValueError where it cannot express it."""
    if setup.pp > 1:
        raise ValueError(f"axolotl has no pipeline; pp is {setup.pp}")
    fsdp_section.refuse_zero1(setup)
    flat: dict[str, object] = {
        "base_model": hub_name(setup.model_name, setup.format),
        "sequence_len": setup.seq_len or 512,
        "micro_batch_size": setup.micro_batch_size,
        "gradient_accumulation_steps": _steps(setup),
        "optimizer": optimizer_written(setup),
        "attn_implementation": "eager" if setup.attention == "explicit" else "flash_attention_2",
        "gradient_checkpointing": setup.recompute != "none",
        "torch_compile": setup.compile,
        "tensor_parallel_size": setup.tp,
        "context_parallel_size": setup.cp,
        "expert_parallel_size": setup.ep,
    }
    flat |= {"fp8": {"fp8": True}, "fp16": {"fp16": True}, "fp32": {"bf16": False}}.get(
        setup.precision, {"bf16": True}
    )
    if setup.states == "bf16":
        flat = {key: value for key, value in flat.items() if key not in ("bf16", "fp16")}
        flat["bfloat16" if setup.precision == "bf16" else "float16"] = True
    if setup.recompute == "selective":
        flat["selective_checkpointing"] = True
    if "activations" in setup.offload:
        flat["activation_offloading"] = True
    if setup.adapters is not None:
        flat |= _written_adapters(setup.adapters)
    if setup.fused_loss:
        flat["liger_fused_linear_cross_entropy"] = True
    if setup.engine == "zero":
        flat |= {
            f"deepspeed.{key}": value
            for key, value in deepspeed.section_written(_without_activations(setup)).items()
        }
    elif setup.engine in ("fsdp1", "fsdp2"):
        flat["fsdp_version"] = 1 if setup.engine == "fsdp1" else 2
        section = fsdp_section.section_written(setup)
        section.pop("fsdp_config.version")
        flat |= section
        if setup.dp is not None:
            flat |= {
                "dp_shard_size": setup.dp // setup.replicas // setup.ep,
                "dp_replicate_size": setup.replicas,
            }
    return flat


def _without_activations(setup: OwnSetup) -> OwnSetup:
    from dataclasses import replace

    return replace(setup, tp=1, offload=tuple(one for one in setup.offload if one != "activations"))


def _steps(setup: OwnSetup) -> int:
    if setup.gradient_accumulation_steps is None and setup.global_batch_size is not None:
        return setup.micro_batches()
    return setup.gradient_accumulation_steps or 1


def _written_adapters(adapters: Adapters) -> dict[str, object]:
    flat: dict[str, object] = {
        "adapter": "qlora" if adapters.base == "nf4" else "lora",
        "lora_r": adapters.rank,
    }
    if adapters.base != "bf16":
        flat["load_in_4bit" if adapters.base == "nf4" else "load_in_8bit"] = True
    if adapters.targets:
        flat["lora_target_modules"] = list(adapters.targets)
    else:
        flat["lora_target_linear"] = True
    if adapters.dora:
        flat["peft_use_dora"] = True
    return flat
