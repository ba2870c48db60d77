"""Hugging Face's TrainingArguments: JSON, YAML, or the command line of a training script.

Sources: transformers 5.23.0 (training_args.py) and, for the arguments of scripts, TRL's ModelConfig,
SFTConfig and GRPOConfig (lora_r, load_in_4bit, max_length, max_completion_length) and transformers'
run_clm.py (block_size, model_name_or_path).
"""

from __future__ import annotations

from harness.frameworks import deepspeed, fsdp_section, words
from harness.frameworks.table import Fields, Flat, Parts
from harness.question import Adapters, Question


def prepared(flat: Flat) -> Flat:
    """Return the values with FSDP's keys under one name, and a command line's with underscores."""
    return fsdp_section.without_prefix({key.replace("-", "_"): value for key, value in flat.items()})


def settle(parts: Parts) -> Fields:
    """Return fields of Question."""
    fields = trainer_fields(parts)
    nodes = parts.get("_nodes") or parts.get("_nodes_") or 1
    per_node = parts.get("_per_node") or parts.get("_gpus")
    fields["devices"] = parts.get("_processes") or (per_node * nodes if per_node else None)
    if fields["sharing"] == "ddp" and str(parts.get("_dtype")).lower() in ("bfloat16", "bf16"):
        fields["states"] = "bf16"  # FSDP and DeepSpeed keep fp32 masters of weights that are loaded in bf16
    if parts.get("_attention"):
        fields["attention"] = words.attention_of("attn_implementation", parts["_attention"], parts)
    if parts.get("_peft") or parts["_4bit"] or parts["_8bit"] or "lora_r" in parts.flat:
        fields["adapters"] = Adapters(
            rank=parts["_rank"],
            targets=words.targets_of(parts.get("_modules")),
            base="nf4" if parts["_4bit"] else "int8" if parts["_8bit"] else "bf16",
            dora=bool(parts.get("_dora")),
        )
        fields["states"] = "fp32"
    if parts.get("_completion") and "seq_len" not in parts:
        fields["seq_len"] = parts["_completion"] + parts.get("_prompt", 0)
        if "_prompt" not in parts:
            why = "is missing; the prompt's tokens are trained on, too"
            parts.leave_out("max_prompt_length", None, why, "raises", "raises")
    return fields


def trainer_fields(parts: Parts) -> Fields:
    """Return fields of Question from TrainingArguments."""
    if parts["_bf16"] and parts["_fp16"]:
        raise ValueError("bf16 and fp16 are both true; TrainingArguments take one of them")
    fields: Fields = {
        "sharing": "ddp",
        "recompute": "none",
        "precision": "bf16" if parts["_bf16"] else "fp16" if parts["_fp16"] else "fp32",
        **fsdp_section.section_fields(parts, 2),
    }
    if deepspeed.is_contained(parts):
        section = deepspeed.own_section(parts)
        fields |= deepspeed.section_fields(section, parts)
        if section.get("_bf16") or section.get("_fp16"):
            fields["precision"] = "bf16" if section.get("_bf16") else "fp16"
    if "optimizer" not in fields or "optim" in parts.flat:
        fields["optimizer"] = words.optimizer_of("optim", str(parts["_optimizer"]), parts)
    fields["optimizer_impl"] = words.implementation_of(str(parts["_optimizer"]))
    if parts["_recompute"] or parts.get("_recompute_"):
        fields["recompute"] = "full"
    fields["fused_loss"] = parts["_liger"]
    if parts.get("_shard"):
        replicas = parts.get("_replicas") or 1
        fields |= {"dp": parts["_shard"] * replicas, "replicas": replicas if parts["_shard"] > 1 else 1}
    return fields


def parts_of(question: Question) -> Fields:
    """Return TrainingArguments and a script's arguments; raises ValueError where they cannot express it."""
    parts = trainer_parts(question) | {
        "_attention": words.attention_word(question),
        "_dtype": "bfloat16" if question.states == "bf16" else None,
    }
    if question.adapters is not None:
        parts |= {
            "_peft": True,
            "_rank": question.adapters.rank,
            "_modules": list(question.adapters.targets) or ["all-linear"],
            "_4bit": question.adapters.base == "nf4",
            "_8bit": question.adapters.base == "int8",
            "_dora": question.adapters.dora,
        }
    return parts


def trainer_parts(question: Question) -> Fields:
    """Return the parts of TrainingArguments themselves."""
    if question.precision not in ("bf16", "fp16", "fp32"):
        raise ValueError(f"TrainingArguments have no key for precision {question.precision}")
    if "activations" in question.offload:
        raise ValueError("TrainingArguments have no key for activations on the host")
    if question.recompute == "selective":
        raise ValueError("TrainingArguments have no key for selective recomputation")
    parts: Fields = {
        "model_name": words.hub_name(question),
        "gradient_accumulation_steps": words.steps_of(question),
        "_optimizer": words.optimizer_word(question),
        "_bf16": question.precision == "bf16",
        "_fp16": question.precision == "fp16",
        "_recompute": question.recompute == "full",
        "_liger": question.fused_loss,
        **fsdp_section.section_parts(question),
    }
    if question.sharing == "zero":
        return parts | deepspeed.contained(deepspeed.section_parts(question)) | {"tp": None}
    if question.sharing in ("fsdp1", "fsdp2"):
        strategy = "full_shard" if question.zero == 3 else "shard_grad_op"
        parts |= {"_fsdp": f"{strategy} auto_wrap", **words.mesh(question)}
    return parts
