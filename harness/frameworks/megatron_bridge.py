"""Megatron Bridge's recipes by name, and what its YAML, a command line or a script sets in them.

Source: Megatron Bridge commit 067f987 of August 2026 (training/config.py, training/mixed_precision.py,
scripts/training/run_recipe.py). Most of its keys are Megatron-LM's arguments in sections.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.frameworks import megatron
from harness.frameworks.recipes import adapters, bridge_recipe, with_recipes_model
from harness.frameworks.table import Fields, Flat, Parts, flag_of, matches, yaml_tree
from harness.frameworks.words import filled
from harness.question import Question

TABLE = yaml_tree("megatron_bridge")
RECIPES = yaml_tree("recipes")

SECTIONS = ("model", "train", "ddp", "dist", "optimizer", "comm_overlap", "mixed_precision")
"""Whose keys are Megatron-LM's arguments."""

PRECISIONS = ("bf16_mixed", "fp16_mixed", "bf16_with_fp8", "bf16_with_mxfp8", "bf16_with_nvfp4")
"""How names of Megatron Bridge's mixed precision begin (training/mixed_precision.py)."""

LAYOUT = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")

DEVICES = ("launcher.nproc_per_node", "launcher.nnodes")


def prepared(flat: Flat) -> Flat:
    """Return the values without their sections, with references filled in, on top of a recipe's."""
    values: dict[str, Any] = {}
    for key, value in filled(flat).items():
        section, dot, name = key.partition(".")
        if not dot:
            name = key.lstrip("-").replace("-", "_")
            values[TABLE["short"].get(name, name)] = value
        elif key == "dataset.seq_length":
            values.setdefault("seq_length", value)
        elif value is not None or flat[key] is None:  # else a reference to what the file does not have
            name = name if section in SECTIONS and key != "ddp.grad_reduce_in_fp32" else key
            both = name == "use_distributed_optimizer" and values.get(name)  # of ddp, and of optimizer
            values[name] = both or value
    values = {key: value for key, value in values.items() if key != "fp8" or value}
    named = _recipe_name(values)
    recipe = bridge_recipe(named) if named else {}
    if any(values.get(key) for key in DEVICES) or any(key in values for key in LAYOUT):
        recipe.pop("world_size", None)
    real_tokens = values.get("tokenizer.tokenizer_model") or "vocab_size" in recipe
    real_tokens = real_tokens or matches(named, RECIPES["own_tokenizers"].split())
    if "pretrain" in named and not real_tokens:
        recipe["tokenizer.vocab_size"] = 32000
    return {**recipe, **values}


def _recipe_name(values: Flat) -> str:
    """Return the recipe: its name, or that of a model and a mode, of which LoRA's is called peft."""
    mode = str(values.get("mode") or "pretrain")
    if values.get("model") and not values.get("recipe"):
        return f"{values['model']}_{'peft' if mode in ('lora', 'dora') else mode}_config"
    return str(values.get("recipe") or "")


def spelled(flat: Flat) -> Flat:
    """Return the values in their sections, by Megatron-Core's names."""
    return in_sections(flat, TABLE)


def in_sections(flat: Flat, tree: Mapping[str, Any]) -> Flat:
    """Return the values by the names and in the sections of a table, those of the model where it has none."""
    sections = {key: section for section, keys in tree["sections"].items() for key in keys.split()}
    names = {key: f"{sections.get(key, 'model')}.{tree['names'].get(key, key)}" for key in flat}
    return {names[key].removeprefix("none."): value for key, value in flat.items()}


def settle(parts: Parts) -> Fields:
    """Return fields of Question."""
    precise(parts)
    recipe, more = str(parts.get("_recipe") or ""), {}
    if "fp8" in recipe and "subchannel" not in recipe and "fp8_parameters" not in parts:
        more["fp8_parameters"] = True  # fp8_param_gather of these, in training/mixed_precision.py
    sharded = parts.get("_distributed")
    parts["_distributed"] = sharded is None or flag_of("zero", sharded)
    if matches(_recipe_name(parts.flat), RECIPES["late"].split()):
        megatron.name_late_reduction(parts)
    parts.setdefault("_bias", str(parts.get("_norm")).lower() != "rmsnorm")  # as its models have it
    model = with_recipes_model(parts, "megatron_bridge")
    return megatron.settled(parts) | more | model | {"adapters": adapters(parts)}


def precise(parts: Parts) -> None:
    """Set Megatron-LM's parts of the precision by `mixed_precision`, or NeMo's `precision`."""
    recipe, precision = str(parts.get("_recipe") or ""), str(parts.get("_precision") or "").lower()
    recipe = recipe.replace("-", "_")
    if recipe and not any(name in recipe for name in (*PRECISIONS, "{")):
        raise ValueError(f"mixed_precision is {recipe!r}; its names begin with {', '.join(PRECISIONS)}")
    if (recipe or "bf16" in precision or not precision) and not parts["_fp16"]:
        parts["_bf16"] = "fp16" not in recipe or "bf16" in recipe
    parts["_fp16"] = not parts["_bf16"] and (parts["_fp16"] or "fp16" in recipe or precision.startswith("16"))
    if "fp8" in recipe or "nvfp4" in recipe:
        parts["_fp8"] = "hybrid"
        parts["_fp8_recipe"] = "mxfp8" if "mxfp8" in recipe else parts.get("_fp8_recipe")
        if "nvfp4" in recipe:
            parts["_fp4"] = "e2m1"


def parts_of(question: Question) -> Fields:
    """Return Megatron Bridge's parts of a question; raises ValueError where they cannot express it."""
    switches = dict.fromkeys(("_bf16", "_fp16", "_fp8", "_fp8_recipe", "_fp4"))
    parts = megatron.parts_of(question)
    return {
        **parts,
        **switches,
        "_grouped": None if parts["dispatcher"] is None else question.grouped_experts,
        "model_name": None,
        "_distributed": question.zero > 0 and question.sharing != "fsdp2",
        "_recipe": TABLE["recipes"][question.precision],
    }
