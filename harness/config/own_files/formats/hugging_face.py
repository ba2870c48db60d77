"""Hugging Face's TrainingArguments: JSON, YAML, or the command line of a training script.

Sources: transformers 5.23.0 (training_args.py) and, for the arguments of scripts, TRL's ModelConfig and
SFTConfig (lora_r, load_in_4bit, max_length) and transformers' run_clm.py (block_size, model_name_or_path).
"""

from __future__ import annotations

from harness.config.own_files.formats import deepspeed, fsdp_section
from harness.config.own_files.formats.words import (
    DTYPES,
    attention_of,
    implementation_of,
    optimizer_of,
    optimizer_written,
    targets_of,
)
from harness.config.own_files.models import hub_name
from harness.config.own_files.setup import Adapters, NotUnderstood, OwnSetup
from harness.config.own_files.table import Fields, Flat

NAME = "hugging_face"
TITLE = "Hugging Face's TrainingArguments"
SOURCE = "transformers 5.23.0"


def recognised(flat: Flat) -> int:
    """Return how many keys only TrainingArguments have."""
    own = {
        "per_device_train_batch_size",
        "num_train_epochs",
        "lr_scheduler_type",
        "logging_steps",
        "save_strategy",
        "gradient_checkpointing",
        "optim",
        "model_name_or_path",
        "fsdp_config",
        "per_gpu_train_batch_size",
    }
    names = {key.partition(".")[0].replace("-", "_") for key in flat}
    return len(own & names)


def prepared(flat: Flat) -> Flat:
    """Return the values with FSDP's keys under one name, and a command line's with underscores."""
    return fsdp_section.without_prefix({key.replace("-", "_"): value for key, value in flat.items()})


def settle(fields: Fields, flat: Flat) -> Fields:
    """Return fields of OwnSetup."""
    unclear: list[NotUnderstood] = []
    found = trainer_fields(fields, flat, unclear)
    found["devices"] = devices_of(fields)
    if found.get("engine", "ddp") == "ddp" and DTYPES.get(str(fields.get("_dtype")).lower()) == "bf16":
        found["states"] = "bf16"  # FSDP and DeepSpeed keep fp32 masters of weights that are loaded in bf16
    if fields.get("_attention"):
        found["attention"] = attention_of("attn_implementation", fields["_attention"], unclear)
    if fields.get("_peft") or fields["_4bit"] or fields["_8bit"] or "lora_r" in flat:
        found["adapters"] = Adapters(
            rank=fields["_rank"],
            targets=targets_of(fields.get("_modules")),
            base="nf4" if fields["_4bit"] else "int8" if fields["_8bit"] else "bf16",
            dora=bool(fields.get("_dora")),
        )
        found["states"] = "fp32"
    return {**found, "not_understood": unclear}


def devices_of(fields: Fields) -> int | None:
    """Return the devices that a launcher's options give; None without them."""
    nodes = fields.get("_nodes") or fields.get("_nodes_") or 1
    per_node = fields.get("_per_node") or fields.get("_gpus")
    return fields.get("_processes") or (per_node * nodes if per_node else None)


def trainer_fields(fields: Fields, flat: Flat, unclear: list[NotUnderstood]) -> Fields:
    """Return fields of OwnSetup from TrainingArguments."""
    found = {name: value for name, value in fields.items() if not name.startswith("_")}
    if fields["_bf16"] and fields["_fp16"]:
        raise ValueError("bf16 and fp16 are both true; TrainingArguments take one of them")
    found["precision"] = "bf16" if fields["_bf16"] else "fp16" if fields["_fp16"] else "fp32"
    found |= fsdp_section.section_fields(fields, 2, unclear)
    if any(key.startswith("deepspeed.") for key in flat):
        section = deepspeed.own_section(fields)
        found |= deepspeed.section_fields(section, unclear)
        if section.get("_bf16") or section.get("_fp16"):
            found["precision"] = "bf16" if section.get("_bf16") else "fp16"
    if "optimizer" not in found or "optim" in flat:
        found["optimizer"] = optimizer_of("optim", str(fields["_optimizer"]), unclear)
    found["optimizer_impl"] = implementation_of(str(fields["_optimizer"]))
    recompute = fields["_recompute"] or fields.get("_recompute_")
    found["recompute"] = "full" if recompute else found.get("recompute", "none")
    found["fused_loss"] = fields["_liger"]
    replicas = fields.get("_replicas") or 1
    if fields.get("_shard"):
        found["dp"] = fields["_shard"] * replicas
        found["replicas"] = replicas if fields["_shard"] > 1 else 1
    return found


def written(setup: OwnSetup) -> Flat:
    """Return TrainingArguments of a set-up; raises ValueError where they cannot express it."""
    flat = trainer_written(setup)
    flat["model_name_or_path"] = hub_name(setup.model_name, setup.format)
    flat["max_length"] = setup.seq_len
    flat["attn_implementation"] = "eager" if setup.attention == "explicit" else "flash_attention_2"
    if setup.states == "bf16":
        flat["dtype"] = "bfloat16"
    if setup.adapters is not None:
        flat["use_peft"] = True
        flat["lora_r"] = setup.adapters.rank
        flat["lora_target_modules"] = list(setup.adapters.targets) or ["all-linear"]
        flat["load_in_4bit"], flat["load_in_8bit"] = (
            setup.adapters.base == "nf4",
            setup.adapters.base == "int8",
        )
        flat["use_dora"] = setup.adapters.dora
    return flat


def trainer_written(setup: OwnSetup) -> dict[str, object]:
    """Return TrainingArguments' own keys of a set-up."""
    for name, value in (("pp", setup.pp), ("ep", setup.ep)):
        if value > 1:
            raise ValueError(f"TrainingArguments have no key for {name} {value}")
    if setup.precision not in ("bf16", "fp16", "fp32"):
        raise ValueError(f"TrainingArguments have no key for precision {setup.precision}")
    if "activations" in setup.offload:
        raise ValueError("TrainingArguments have no key for activations on the host")
    if setup.recompute == "selective":
        raise ValueError("TrainingArguments have no key for selective recomputation")
    fsdp_section.refuse_zero1(setup)
    steps = setup.gradient_accumulation_steps or (setup.micro_batches() if setup.global_batch_size else 1)
    flat: dict[str, object] = {
        "per_device_train_batch_size": setup.micro_batch_size,
        "gradient_accumulation_steps": steps,
        "optim": optimizer_written(setup),
        "bf16": setup.precision == "bf16",
        "fp16": setup.precision == "fp16",
        "gradient_checkpointing": setup.recompute == "full",
        "torch_compile": setup.compile,
        "use_liger_kernel": setup.fused_loss,
    }
    if setup.engine == "zero":
        flat |= {f"deepspeed.{key}": value for key, value in deepspeed.section_written(setup).items()}
    elif setup.engine in ("fsdp1", "fsdp2"):
        flat["fsdp"] = "full_shard auto_wrap" if setup.zero == 3 else "shard_grad_op auto_wrap"
        flat |= fsdp_section.section_written(setup)
        if setup.dp is not None:
            flat["parallelism_config.dp_shard_size"] = setup.dp // setup.replicas
            flat["parallelism_config.dp_replicate_size"] = setup.replicas
        flat["parallelism_config.tp_size"], flat["parallelism_config.cp_size"] = setup.tp, setup.cp
    return flat
