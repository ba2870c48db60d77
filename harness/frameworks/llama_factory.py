"""LLaMA-Factory's YAML: TrainingArguments with arguments of its own.

Sources: LLaMA-Factory commit ff6d4d1 of August 2026 (hparams/model_args.py, finetuning_args.py, data_args.py,
training_args.py, megatron_bridge_args.py; model/patcher.py and model/model_utils/checkpointing.py for its
defaults).
"""

from __future__ import annotations

from harness.frameworks import hugging_face, words
from harness.frameworks.table import Fields, Parts
from harness.frameworks.words import adapters_of
from harness.question import Adapters, Question

prepared = hugging_face.prepared

BASES = {"nf4": 4, "int8": 8}
"""The bits of bitsandbytes' quantized weights."""


OTHER_LAUNCHERS = {f"launcher.{name}" for name in ("nproc_per_node", "num_processes", "distributed_type")}
"""Keys of torchrun and accelerate, which start its trainer without its own launcher.py."""


def settle(parts: Parts) -> Fields:
    """Return fields of Question."""
    fields = hugging_face.trainer_fields(parts, "llama_factory")
    fields["cp"] = parts.get("_cp") or parts["cp"]
    of_tokens = parts["_stage"] in ("pt", "sft")  # other stages need the logits
    fields["fused_loss"] = fields["fused_loss"] and of_tokens
    if not parts["_no_recompute"]:  # else TrainingArguments may switch it on
        fields["recompute"] = "full"
    if parts["_pure"]:  # DeepSpeed keeps fp32 masters all the same
        fields |= {"precision": "bf16", "states": "fp32" if fields["sharing"] == "zero" else "bf16"}
    if parts["_fp8"]:
        fields["precision"] = "fp8"
    if parts["_type"] in ("oft", "freeze"):
        parts["_rank"] = 32 * abs(parts["_layers"]) or 8 if parts["_type"] == "freeze" else 8
        parts |= {"_modules": None, "_adapter_dropout": 0.0}
    if parts["_type"] != "full":
        fields["adapters"] = _adapters(parts)
    elif parts.get("_bits"):
        raise ValueError(
            f"quantization_bit is {parts['_bits']}; only finetuning_type lora trains on quantized weights"
        )
    stage = parts["_stage"]
    with_reference = stage != "dpo" or str(parts.flat.get("pref_loss")) not in ("orpo", "simpo")
    hugging_face.with_method(parts, fields, stage, "stage", with_reference)
    copied = fields["forward_passes"] and parts["_type"] != "lora"  # trainer_utils.py, create_ref_model
    fields["reference_weight_B"] = 2 if copied else 0  # loader.py, load_model: in the step's type
    packed = words.is_on(parts.flat.get("packing", stage == "pt")) or words.is_on(
        parts.flat.get("neat_packing")
    )
    fields["shorter"] = not packed and fields["rollout"] == "none"
    if words.is_on(parts.flat.get("neat_packing")) and parts.flat.get("flash_attn") in ("fa2", "fa3"):
        words.name_documents("neat_packing", parts)
    elif words.is_on(parts.flat.get("neat_packing")):  # data/collator.py, prepare_4d_attention_mask
        words.name_mask("neat_packing", 2, parts)
    if parts.get("_distributed") is not None or parts["tp"] * parts["pp"] * parts["ep"] > 1:
        fields |= {"sharing": "megatron", "zero": 1 if parts.get("_distributed") else 0}
        fields["recompute"] = parts.get("_granularity") or "none"
        parts.assumed.pop("sharing", None)
    with_kt = words.is_on(parts.flat.get("use_kt"))
    if fields["sharing"] == "fsdp2" or with_kt:  # prepare_model_for_training and model_args.py
        fields["reentrant"] = False
    alone = fields["devices"] == 1 and fields["sharing"] != "megatron"  # which launcher.py starts by torchrun
    if "launcher.expandable_segments" not in parts.flat:
        fields["expandable_segments"] = not (alone or with_kt or OTHER_LAUNCHERS & parts.flat.keys())
    return words.with_sequence_ranks(fields, parts)


def _adapters(parts: Parts) -> Adapters:
    bits, method = parts.get("_bits"), parts["_method"]
    if bits is not None and (bits not in BASES.values() or method not in ("bnb", "bitsandbytes")):
        parts.leave_out("quantization_bit", f"{bits} by {method}", "other weights than nf4 and int8")
    base = next((base for base, own in BASES.items() if own == bits), "bf16")
    return adapters_of(parts, **({"base": base} | hugging_face.base_of(parts)))


def parts_of(question: Question) -> Fields:
    """Return LLaMA-Factory's parts of a question; raises ValueError where it cannot express it."""
    adapters = question.adapters
    parts = hugging_face.trainer_parts(question) | {
        "_bf16": question.precision in ("bf16", "fp8") and question.states != "bf16",
        "_fp8": question.precision == "fp8" or None,
        "_pure": question.states == "bf16" or None,
        "_stage": "sft",
        "_type": "full" if adapters is None else "lora",
        "_recompute": None,
        "_no_recompute": question.recompute == "none",
    }
    if adapters is not None:
        modules = ",".join(adapters.targets) or "all"
        parts |= {"_modules": modules, "_bits": BASES.get(adapters.base)}
    return parts
