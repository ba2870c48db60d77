"""Hugging Face's TrainingArguments: JSON, YAML, or the command line of a training script.

Sources: transformers 5.23.0 (training_args.py) and, for the arguments of scripts, transformers' run_clm.py
(block_size, model_name_or_path) and TRL's ModelConfig (lora_r, load_in_4bit); trl.py reads TRL's own files.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress

from harness.config.hf_config import TOWERS
from harness.frameworks import deepspeed, fsdp_section, words
from harness.frameworks.models import published_model
from harness.frameworks.table import Fields, Flat, Parts, is_off, yaml_tree
from harness.question import Direction, Question

OF_LAUNCH = {
    "zero_stage": "deepspeed.zero_optimization.stage",
    "offload_optimizer_device": "deepspeed.zero_optimization.offload_optimizer.device",
    "offload_param_device": "deepspeed.zero_optimization.offload_param.device",
}
"""Options of `accelerate launch`, and what they are in the sections of TrainingArguments."""

KNOWN_BY = {"deepspeed"} | {
    f"launcher.{name}" for name in ("nproc_per_node", "num_gpus", "multi_gpu", "distributed_type")
}
"""Keys next to which no other file shares the model."""

NOT_GIVEN = "no accelerate or DeepSpeed file, which may shard the model: give it too, as config=[FILE,FILE]"
NOT_FOUND = "{} was not found, which may shard the model: give it too, as config=[FILE,FILE]"

CORRECTION = "vllm_importance_sampling_correction"
"""TRL's switch, on by default, of a pass for the old log-probabilities (f2cd577, trainer/grpo_trainer.py)."""

QUANTIZED = re.compile(r"(?i)\b(gptq|awq|aqlm|bnb-4bit|nf4|int4|w4a16|4bit|8bit|fp8|int8|w8a8)\b")
"""Words in the names of models whose weights are quantized."""


def prepared(flat: Flat) -> Flat:
    """Return the values with FSDP's keys under one name, and a command line's with underscores."""
    values = {}
    for key, value in flat.items():
        launcher, _, name = (key := key.replace("-", "_")).rpartition(".")
        if key.startswith("no_") and value is True:  # of a flag that is on by default
            key, value = key.removeprefix("no_"), False
        if launcher == "launcher" and name.startswith("fsdp_"):
            key = f"fsdp_config.{name}"
        elif launcher == "launcher" and name.startswith("parallelism_config_"):
            key = f"parallelism_config.{name}"
        elif launcher == "launcher":
            key = OF_LAUNCH.get(name, key)
        values[key] = value
        if key.endswith("_checkpointing_kwargs") and isinstance(value, str):
            with suppress(ValueError, TypeError):  # JSON on a command line
                values |= {f"{key}.{name}": one for name, one in dict(json.loads(value)).items()}
    return fsdp_section.without_prefix(values)


def settle(parts: Parts) -> Fields:
    """Return fields of Question."""
    fields = trainer_fields(parts)
    if parts.get("_kept_on_host") and fields["recompute"] == "full":
        fields["offload"] = tuple(sorted({*fields.get("offload", ()), "activations"}))
    if "sharing" in parts.assumed:
        file = parts.flat.get("launcher.config_file")
        why = NOT_FOUND.format(file) if file else NOT_GIVEN
        parts.assume("sharing", why)
        parts.leave_out("launcher.config_file", file, why, "lowers", field="sharing")
    dtype = str(parts.get("_dtype")).lower()
    if fields["sharing"] == "ddp" and dtype in ("bfloat16", "bf16", "auto"):
        fields["states"] = "bf16"  # FSDP and DeepSpeed keep fp32 masters of weights that are loaded in bf16
        if dtype == "auto":
            parts.assume("states", "dtype is auto, so the checkpoint decides; bf16 is taken")
    elif fields["sharing"] == "ddp" and dtype == "none":
        parts.assume("states", "the program loads the model, in a type that no key says; fp32 is taken")
    if parts.get("_attention"):
        fields["attention"] = words.attention_of("attn_implementation", parts["_attention"], parts)
    if parts.get("_peft", parts["_4bit"] or parts["_8bit"] or "lora_r" in parts.flat):
        own = {"targets": _targets(parts), **base_of(parts)}
        parts.assumed.pop("states", None)
        if not {"lora_r", "lora_target_modules"} <= parts.flat.keys():
            parts.assume("adapters", "the program decides what is not given: rank 16, and PEFT's own layers")
        fields |= {"adapters": words.adapters_of(parts, **own), "states": "fp32"}
    if parts.get("_completion") and "seq_len" not in parts:
        with_prompt(parts, fields)
    return words.with_sequence_ranks(fields, parts)


def _targets(parts: Parts) -> tuple[str, ...]:
    """Return the layers with adapters: those that are named, or PEFT's own."""
    if parts.get("_modules"):
        return words.targets_of(parts["_modules"])
    shape = published_model(parts.get("model_name", ""))
    kind = shape.config.get("model_type") if shape else None
    return tuple(yaml_tree("words")["default_targets"].get(kind, "q_proj v_proj").split())


def base_of(parts: Parts, key: str = "model_name_or_path") -> Fields:
    """Return the type of frozen weights that were quantized beforehand, by the model's name; else nothing."""
    name = str(parts.get("model_name"))
    found = QUANTIZED.findall(name)
    if not found or parts.get("_4bit") or parts.get("_8bit") or parts.get("_bits"):
        return {}
    base = "int8" if any("8" in word for word in found) else "nf4"
    parts.leave_out(key, name, f"weights quantized beforehand; {base} is taken")
    return {"base": base}


def with_prompt(parts: Parts, fields: Fields, key: str = "max_prompt_length") -> None:
    """Set the sequence's length: what is generated, after a prompt, whose tokens `key` gives."""
    fields["seq_len"] = parts["_completion"] + parts.get("_prompt", 0)
    if "_prompt" not in parts:
        why = f"{key} is missing; the prompt's tokens are trained on, too"
        parts.leave_out(key, None, why, "raises", "raises")


def with_method(
    parts: Parts, fields: Fields, name: str, key: str, with_reference: bool, table: str = "trainer"
) -> None:
    """Set what a method of post-training takes: sequences per sample, passes; leave out its other models.

    `key` names the method. `with_reference`: a reference model is used during training; of adapters it is the
    model without them. `table`: which has the methods.
    """
    method = yaml_tree(table)["methods"][name]
    fields["objective"] = method.get("objective", "sft")
    fields["forward_passes"] = int(method.get("reference", 0)) * bool(with_reference) + method.get(
        "passes", 0
    )
    served = parts.flat.get("use_vllm", parts.flat.get("trl.use_vllm"))
    fields["rollout"] = words.rollout_of(served) if method.get("generates") else "none"
    correction = [parts.flat.get(one, True) for one in (CORRECTION, f"trl.{CORRECTION}")]
    if fields["rollout"] == "vllm" and not any(is_off(one) for one in correction):
        fields["forward_passes"] += method.get("corrected", 0)
    fields["micro_batch_size"] = parts["micro_batch_size"] * method.get("sequences", 1)
    directions: set[Direction] = {method["memory"]} if "memory" in method else set()
    means = [method["means"]] if "means" in method else []
    if method.get("reference") and with_reference and not fields.get("adapters"):
        sharing, wide = fields.get("sharing"), fields.get("states", "fp32") == "fp32"
        as_loaded = sharing == "ddp" or (sharing != "zero" and parts.get("_dtype") == "float32")
        fields["reference_weight_B"] = 4 if wide and as_loaded else 2  # TRL f2cd577, models/utils.py
    if fields["rollout"] == "transformers":
        means.append("generation by the model itself, with its cache")
        directions.add("raises")
    if means:
        memory: Direction = directions.pop() if len(directions) == 1 else "either"
        seconds: Direction = "lowers" if memory == "lowers" else "raises" if "means" in method else "none"
        parts.leave_out(key, name, "; ".join(means), memory, seconds)  # a reference's pass is in the seconds


def has_liger(parts: Parts, who: str) -> bool:
    """Return whether Liger's kernels are switched on, and `who` has some for the model's type, if known."""
    shape = published_model(parts.get("model_name", ""))
    kind = shape.config["model_type"] if shape and not {*TOWERS} & shape.config.keys() else None
    if not parts.get("_liger") or kind in (None, *yaml_tree("words")["liger"][who].split()):
        return bool(parts.get("_liger"))
    key = next((key for key in parts.flat if key.endswith("liger_kernel")), "use_liger_kernel")
    parts.leave_out(key, True, f"there are no kernels of Liger for {kind}", "none", "none")
    return False


def trainer_fields(parts: Parts, who: str = "trainer") -> Fields:
    """Return fields of Question from TrainingArguments; `who` applies Liger's kernels."""
    liger = has_liger(parts, who)
    launched = any(by_fsdp(key, value) for key, value in parts.flat.items() if key.startswith("launcher."))
    by_file = launched and not fsdp_section.options_of(parts.get("_fsdp"))
    fields: Fields = {
        "sharing": "ddp",
        "devices": words.devices_of(parts),
        "recompute": "none",
        "precision": words.precision_of(parts),
        "fused_loss": liger,
        "fused_layers": liger,
        **fsdp_section.section_fields(parts, 1 if by_file else 2, by_file),
    }
    section = "zero" in fields or "_fsdp" in parts
    if not section and not deepspeed.is_contained(parts) and not KNOWN_BY & parts.flat.keys():
        parts.assume("sharing", NOT_GIVEN)
    if deepspeed.is_contained(parts):
        fields |= deepspeed.section_fields(parts, parts["_ds_zero"])
        fields |= _same_batch(parts)
        if parts.get("_ds_bf16") or parts.get("_ds_fp16"):
            fields["precision"] = words.precision_of(parts, "_ds_")
    if parts.get("_launched") and not (parts["_bf16"] or parts["_fp16"]):
        fields["precision"] = parts["_launched"]
    if "optim" in parts.flat:
        fields["optimizer"] = parts["optimizer"]
    fields["optimizer_impl"] = words.implementation_of(parts.flat.get("optim"))
    if parts.get("_recompute_", parts["_recompute"]):
        fields["recompute"] = "full"
    fields["reentrant"] = parts.get("_reentrant_", parts["reentrant"])
    fields["compile"] = any(parts.get(one) for one in ("compile", "_compile_backend", "_compile_mode"))
    if parts.get("_compile_mode"):
        parts.leave_out("torch_compile_mode", parts["_compile_mode"], "torch.compile's mode")
    words.note_compile("torch_compile", fields["compile"], fields, parts)
    return fields | words.mesh_fields(parts)


def by_fsdp(key: str, value: object) -> bool:
    """Return whether an option of `accelerate launch`, or a value of its file, switches FSDP on."""
    return (key == "launcher.use_fsdp" and words.is_on(value)) or str(value).upper() == "FSDP"


def _same_batch(parts: Parts) -> Fields:
    """Return the sizes that a ds_config gives; raises ValueError where TrainingArguments give another."""
    keys = {
        "micro_batch_size": ("per_device_train_batch_size", "train_micro_batch_size_per_gpu"),
        "gradient_accumulation_steps": ("gradient_accumulation_steps", "gradient_accumulation_steps"),
    }
    for field, (key, theirs) in keys.items():
        size = parts.get(f"_ds_{field}")
        if size and key in parts.flat and parts[field] != size:
            raise ValueError(
                f"{key} is {parts[field]}, and DeepSpeed's {theirs} {size}: give one value, or auto there"
            )
        if size:
            parts[field] = size
    return {field: parts[field] for field in keys if field in parts}


def parts_of(question: Question) -> Fields:
    """Return TrainingArguments and a script's arguments; raises ValueError where they cannot express it."""
    parts = trainer_parts(question) | {
        "_attention": words.attention_word(question),
        "_dtype": "bfloat16" if question.states == "bf16" else None,
    }
    if question.adapters is not None and not question.adapters.targets:
        parts["_modules"] = ["all-linear"]
    return parts


def trainer_parts(question: Question) -> Fields:
    """Return the parts of TrainingArguments themselves."""
    parts: Fields = {
        "gradient_accumulation_steps": words.steps_of(question),
        "optimizer": words.optimizer_word(question),
        "_bf16": question.precision == "bf16",
        "_fp16": question.precision == "fp16",
        "_recompute": question.recompute == "full",
        "_liger": question.fused_layers or question.fused_loss,
        **fsdp_section.section_parts(question),
    }
    if question.sharing == "zero":
        return parts | deepspeed.section_parts(question) | {"tp": None}
    if question.sharing in ("fsdp1", "fsdp2"):
        parts |= {"_fsdp": fsdp_section.words_of(question), **words.mesh(question)}
    return parts
