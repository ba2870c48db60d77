"""LLaMA-Factory's YAML: TrainingArguments with arguments of its own.

Sources: LLaMA-Factory commit ff6d4d1 of August 2026 (hparams/model_args.py, finetuning_args.py, data_args.py,
training_args.py, megatron_bridge_args.py; model/patcher.py and model/model_utils/checkpointing.py for its
defaults).
"""

from __future__ import annotations

import msgspec

from harness.frameworks import hugging_face
from harness.frameworks.table import Fields, Parts
from harness.frameworks.words import targets_of
from harness.question import Adapters, Question

prepared = hugging_face.prepared


def settle(parts: Parts) -> Fields:
    """Return fields of Question."""
    fields = hugging_face.trainer_fields(parts)
    fields["cp"] = parts.get("_cp") or parts["cp"]
    fields["attention"] = parts["_flash"]
    fields["fused_loss"] = fields["fused_loss"] or parts["_liger_"]
    fields["recompute"] = "full" if parts["_recompute"] and not parts["_no_recompute"] else "none"
    if parts["_pure"]:
        fields |= {"precision": "bf16", "states": "bf16"}
    if parts["_fp8"]:
        fields["precision"] = "fp8"
    stage, kind = parts["_stage"], parts["_type"]
    if stage not in ("pt", "sft"):
        why = "a second model, or its log probabilities; supervised fine-tuning is taken"
        pairs = stage in ("dpo", "kto")  # and a second, frozen model, unless adapters are switched off
        parts.leave_out("stage", stage, why, "raises" if pairs else "either", "raises")
    if kind in ("freeze", "oft"):
        why = "not modelled; full fine-tuning is taken"
        parts.leave_out("finetuning_type", kind, why, "lowers", "either")
    if kind == "lora":
        fields["adapters"] = _adapters(parts)
    elif parts.get("_bits"):
        raise ValueError(
            f"quantization_bit is {parts['_bits']}; only finetuning_type lora trains on quantized weights"
        )
    if parts.get("_distributed") is not None or parts["tp"] * parts["pp"] * parts["ep"] > 1:
        fields |= {"sharing": "megatron", "zero": 1 if parts.get("_distributed") else 0}
        fields["recompute"] = parts.get("_granularity") or "none"
    return fields


def _adapters(parts: Parts) -> Adapters:
    bits, method = parts.get("_bits"), parts["_method"]
    if bits is not None and (bits not in (4, 8) or method not in ("bnb", "bitsandbytes")):
        parts.leave_out("quantization_bit", f"{bits} by {method}", "other weights than nf4 and int8")
    return Adapters(
        rank=parts["_rank"],
        targets=targets_of(parts["_modules"]),
        base="nf4" if bits == 4 else "int8" if bits == 8 else "bf16",
        dora=parts["_dora"],
    )


def parts_of(question: Question) -> Fields:
    """Return LLaMA-Factory's parts of a question; raises ValueError where it cannot express it."""
    narrow = question.precision == "fp8"
    base = msgspec.structs.replace(question, precision="bf16") if narrow else question
    parts = hugging_face.trainer_parts(base) | {
        "seq_len": question.seq_len or 2048,
        "_fp8": narrow or None,
        "_stage": "sft",
        "_type": "lora" if question.adapters is not None else "full",
        "_flash": question.attention,
        "_recompute": None,
        "_no_recompute": question.recompute == "none",
        "_liger": None,
        "_liger_": question.fused_loss,
    }
    if question.states == "bf16":
        parts |= {"_pure": True, "_bf16": False}
    if question.adapters is not None:
        parts |= {
            "_rank": question.adapters.rank,
            "_modules": ",".join(question.adapters.targets) or "all",
            "_dora": question.adapters.dora,
            "_bits": {"nf4": 4, "int8": 8}.get(question.adapters.base),
        }
    return parts
