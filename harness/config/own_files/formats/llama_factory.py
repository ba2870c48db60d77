"""LLaMA-Factory's YAML: TrainingArguments with arguments of its own.

Sources: LLaMA-Factory commit ff6d4d1 of August 2026 (hparams/model_args.py, finetuning_args.py, data_args.py,
training_args.py, megatron_bridge_args.py; model/patcher.py and model/model_utils/checkpointing.py for its
defaults).
"""

from __future__ import annotations

from dataclasses import replace

from harness.config.own_files.formats import hugging_face
from harness.config.own_files.formats.words import targets_of
from harness.config.own_files.models import hub_name
from harness.config.own_files.setup import Adapters, NotUnderstood, OwnSetup
from harness.config.own_files.table import Fields, Flat

NAME = "llama_factory"
TITLE = "LLaMA-Factory's YAML"
SOURCE = "LLaMA-Factory ff6d4d1"


def recognised(flat: Flat) -> int:
    """Return how many keys only LLaMA-Factory has."""
    own = {
        "finetuning_type",
        "cutoff_len",
        "template",
        "stage",
        "lora_target",
        "plot_loss",
        "dataset_dir",
        "quantization_bit",
        "lora_rank",
        "pure_bf16",
        "flash_attn",
    }
    found = len(own & flat.keys())
    return 2 * found if {"finetuning_type", "cutoff_len", "template", "stage"} & flat.keys() else 0


prepared = hugging_face.prepared


def settle(fields: Fields, flat: Flat) -> Fields:
    """Return fields of OwnSetup."""
    unclear: list[NotUnderstood] = []
    found = hugging_face.trainer_fields(fields, flat, unclear)
    found["cp"] = fields.get("_cp") or found["cp"]
    found["attention"] = fields["_flash"]
    found["fused_loss"] = found["fused_loss"] or fields["_liger_"]
    found["recompute"] = "full" if fields["_recompute"] and not fields["_no_recompute"] else "none"
    if fields["_pure"]:
        found |= {"precision": "bf16", "states": "bf16"}
    if fields["_fp8"]:
        found["precision"] = "fp8"
    if fields["_stage"] not in ("pt", "sft"):
        why = "a second model, or its log probabilities; supervised fine-tuning is taken"
        unclear.append(NotUnderstood("stage", fields["_stage"], why))
    if fields["_type"] in ("freeze", "oft"):
        unclear.append(
            NotUnderstood("finetuning_type", fields["_type"], "not modelled; full fine-tuning is taken")
        )
    if fields["_type"] == "lora":
        found["adapters"] = _adapters(fields, unclear)
    elif fields.get("_bits"):
        raise ValueError(
            f"quantization_bit is {fields['_bits']}; only finetuning_type lora trains on quantized weights"
        )
    if fields.get("_distributed") is not None or found["tp"] * found["pp"] * found["ep"] > 1:
        found |= {"engine": "megatron", "zero": 1 if fields.get("_distributed") else 0}
        found["recompute"] = fields.get("_granularity") or "none"
    return {**found, "not_understood": unclear}


def _adapters(fields: Fields, unclear: list[NotUnderstood]) -> Adapters:
    bits, method = fields.get("_bits"), fields["_method"]
    if bits is not None and (bits not in (4, 8) or method not in ("bnb", "bitsandbytes")):
        unclear.append(
            NotUnderstood("quantization_bit", f"{bits} by {method}", "other weights than nf4 and int8")
        )
    return Adapters(
        rank=fields["_rank"],
        targets=targets_of(fields["_modules"]),
        base={4: "nf4", 8: "int8"}.get(bits, "bf16") if bits else "bf16",
        dora=fields["_dora"],
    )


def written(setup: OwnSetup) -> Flat:
    """Return LLaMA-Factory's keys of a set-up; raises ValueError where it cannot express it."""
    narrow = setup.precision == "fp8"
    flat = hugging_face.trainer_written(replace(setup, precision="bf16") if narrow else setup)
    flat |= {
        "fp8": narrow or None,
        "model_name_or_path": hub_name(setup.model_name, setup.format),
        "stage": "sft",
        "finetuning_type": "lora" if setup.adapters is not None else "full",
        "cutoff_len": setup.seq_len or 2048,
        "flash_attn": "disabled" if setup.attention == "explicit" else "auto",
        "disable_gradient_checkpointing": setup.recompute == "none",
    }
    flat.pop("gradient_checkpointing")
    flat["enable_liger_kernel"] = flat.pop("use_liger_kernel")
    if setup.states == "bf16":
        flat["pure_bf16"] = True
        flat["bf16"] = False
    if setup.adapters is not None:
        flat |= {
            "lora_rank": setup.adapters.rank,
            "lora_target": ",".join(setup.adapters.targets) or "all",
            "use_dora": setup.adapters.dora,
            "quantization_bit": {"nf4": 4, "int8": 8}.get(setup.adapters.base),
        }
    return flat
