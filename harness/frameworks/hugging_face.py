"""Hugging Face's TrainingArguments: JSON, YAML, or the command line of a training script.

Sources: transformers 5.23.0 (training_args.py) and, for the arguments of scripts, TRL's ModelConfig,
SFTConfig and GRPOConfig (lora_r, load_in_4bit, max_length, max_completion_length) and transformers'
run_clm.py (block_size, model_name_or_path).
"""

from __future__ import annotations

from harness.frameworks import deepspeed, fsdp_section, words
from harness.frameworks.table import Fields, Flat, Parts
from harness.question import Question


def prepared(flat: Flat) -> Flat:
    """Return the values with FSDP's keys under one name, and a command line's with underscores."""
    return fsdp_section.without_prefix({key.replace("-", "_"): value for key, value in flat.items()})


def settle(parts: Parts) -> Fields:
    """Return fields of Question."""
    fields = trainer_fields(parts)
    fields["devices"] = words.devices_of(parts)
    if fields["sharing"] == "ddp" and str(parts.get("_dtype")).lower() in ("bfloat16", "bf16"):
        fields["states"] = "bf16"  # FSDP and DeepSpeed keep fp32 masters of weights that are loaded in bf16
    if parts.get("_attention"):
        fields["attention"] = words.attention_of("attn_implementation", parts["_attention"], parts)
    if parts.get("_peft") or parts["_4bit"] or parts["_8bit"] or "lora_r" in parts.flat:
        fields |= {"adapters": words.adapters_of(parts), "states": "fp32"}
    if parts.get("_completion") and "seq_len" not in parts:
        fields["seq_len"] = parts["_completion"] + parts.get("_prompt", 0)
        if "_prompt" not in parts:
            why = "is missing; the prompt's tokens are trained on, too"
            parts.leave_out("max_prompt_length", None, why, "raises", "raises")
    return fields


def trainer_fields(parts: Parts) -> Fields:
    """Return fields of Question from TrainingArguments."""
    fields: Fields = {
        "sharing": "ddp",
        "recompute": "none",
        "precision": words.precision_of(parts),
        "fused_loss": parts["_liger"],
        **fsdp_section.section_fields(parts, 2),
    }
    section = fields["sharing"] != "ddp" or any(name.startswith("_fsdp") for name in parts)
    if not section and not deepspeed.is_contained(parts):
        parts.assume("sharing", "the launcher's file, which may shard the model, is not given")
    if deepspeed.is_contained(parts):
        fields |= deepspeed.section_fields(parts, parts["_ds_zero"])
        if parts.get("_ds_bf16") or parts.get("_ds_fp16"):
            fields["precision"] = words.precision_of(parts, "_ds_")
    if "optimizer" not in fields or "optim" in parts.flat:
        fields["optimizer"] = words.optimizer_of("optim", parts["_optimizer"], parts)
    fields["optimizer_impl"] = words.implementation_of(parts["_optimizer"])
    if parts["_recompute"] or parts.get("_recompute_"):
        fields["recompute"] = "full"
    return fields | words.mesh_fields(parts)


def parts_of(question: Question) -> Fields:
    """Return TrainingArguments and a script's arguments; raises ValueError where they cannot express it."""
    parts = trainer_parts(question) | {
        "_attention": words.attention_word(question),
        "_dtype": "bfloat16" if question.states == "bf16" else None,
        "_peft": question.adapters is not None or None,
        **words.adapter_parts(question.adapters),
    }
    if question.adapters is not None and not question.adapters.targets:
        parts["_modules"] = ["all-linear"]
    return parts


def trainer_parts(question: Question) -> Fields:
    """Return the parts of TrainingArguments themselves."""
    parts: Fields = {
        "gradient_accumulation_steps": words.steps_of(question),
        "_optimizer": words.optimizer_word(question),
        "_bf16": question.precision == "bf16",
        "_fp16": question.precision == "fp16",
        "_recompute": question.recompute == "full",
        "_liger": question.fused_loss,
        **fsdp_section.section_parts(question),
    }
    if question.sharing == "zero":
        return parts | deepspeed.section_parts(question) | {"tp": None}
    if question.sharing in ("fsdp1", "fsdp2"):
        parts |= {"_fsdp": f"{fsdp_section.strategy_of(question)} auto_wrap", **words.mesh(question)}
    return parts
