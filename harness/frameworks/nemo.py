"""NeMo's YAML up to version 1, and NeMo 2's recipes with what a command line or a script sets in them.

Sources: NeMo commit 8cfedd7 of September 2025 (examples/nlp/language_modeling/conf, nemo/collections/llm) and
NeMo-Framework-Launcher commit 26e42fa of April 2025 (launcher_scripts/conf). Most keys are Megatron-LM's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import yaml

from harness.frameworks import megatron, megatron_bridge
from harness.frameworks.models import published_model
from harness.frameworks.recipes import adapters, nemo_recipe, with_recipes_model
from harness.frameworks.table import Fields, Flat, Parts, flag_of, kind_of, yaml_tree
from harness.question import Question

SECTIONS = re.compile(
    r"^(?:trainer\.strategy\.ddp|trainer\.strategy|trainer\.plugins|trainer|model\.config|model|optim\.config)\."
    r"|^data\.(?=(?:seq_length|micro_batch_size|global_batch_size)\Z)|^pipeline\.(?=\w+\Z)"
)
"""Whose keys are Megatron-LM's arguments; of NeMo 2, strategy, plugins, config and data."""

OF_DATA = {
    "model.data.train_ds.max_seq_length": "seq_length",
    "model.data.train_ds.micro_batch_size": "micro_batch_size",
    "model.data.train_ds.global_batch_size": "global_batch_size",
    "model.data.seq_length": "seq_length",
}
"""Keys of data that decide the batch next to those of the model (megatron_gpt_sft_model.py,
megatron_gpt_model.py)."""

OVERWRITTEN = ("trainer.strategy.ddp.grad_reduce_in_fp32",)
"""Keys that another decides: this one the precision's plugin (lightning/pytorch/strategies)."""

REFERENCE = re.compile(r"\$\{([^${}]*)\}")

FUNCTIONS: Mapping[str, Callable[[int, int], int]] = {
    "multiply": lambda a, b: a * b,
    "divide_ceil": lambda a, b: -(-a // b),
    "divide_floor": lambda a, b: a // b,
    "sum": lambda a, b: a + b,
}
"""What NeMo and its launcher register as resolvers of OmegaConf."""

FACTORY = re.compile(r"\s*([\w.]+)\W?\s*(.*)", re.DOTALL)
ARGUMENT = re.compile(r"(\w+)\s*=\s*('[^']*'|\"[^\"]*\"|[^\s,()]+)")


def prepared(flat: Flat) -> Flat:
    """Return the values without their sections, references filled in, on top of a recipe's."""
    recipe = _recipe(flat)
    values: dict[str, Any] = {}
    for key, value in resolved(flat).items():
        if value is None or value == "???":
            continue
        name = key if key in OVERWRITTEN else OF_DATA.get(key) or SECTIONS.sub("", key)
        if key in OF_DATA or name not in values:
            values[name] = value
    if "model.activations_checkpoint_granularity" in flat and not values.get(
        "activations_checkpoint_granularity"
    ):
        values.pop("activations_checkpoint_method", None)  # without a granularity nothing is recomputed
    if not values.get("fsdp"):
        values = {f"model.{key}" if key.startswith("fsdp_") else key: one for key, one in values.items()}
    if "seq_length" in values and "encoder_seq_length" in values:
        values["model.encoder_seq_length"] = values.pop("encoder_seq_length")  # sequences are as long as data
    if not values.get("fp8", True):
        values.pop("fp8")
    if values.get("etp"):
        values["expert_tensor_parallel_size"] = values.pop("etp")
    return {**recipe, **values}


def _recipe(flat: Flat) -> dict[str, Any]:
    """Return the values of the recipe that a command line or a script names; nothing without one."""
    name, factory = str(flat.get("recipe", "")), flat.get("factory")
    if factory:
        found = FACTORY.match(" ".join(factory) if isinstance(factory, list) else str(factory))
        if found is None:
            raise ValueError(f"factory is {factory!r}; it must be a recipe's name")
        arguments = {key: yaml.safe_load(text) for key, text in ARGUMENT.findall(found[2])}
        task = "pretrain" if flat.get("launcher.nemo", "pretrain") == "pretrain" else "finetune"
        name = f"{found[1]}.{task}_recipe"
    elif not name.endswith("_recipe"):
        return {}
    else:
        arguments = {key[7:]: value for key, value in flat.items() if key.startswith("recipe.")}
    module, _, function = name.rpartition(".")
    return nemo_recipe(module.rpartition(".")[2], function.removesuffix("_recipe"), arguments)


def resolved(flat: Flat) -> dict[str, Any]:
    """Return the values with OmegaConf's references filled in; None where one has no value in the file."""

    def looked_up(name: str, key: str) -> Any:
        dots = len(name) - len(name.lstrip("."))
        if dots:
            section = key.split(".")[: -dots or None]
            return flat.get(".".join([*section, name.lstrip(".")]))
        return flat.get(name, flat.get(name.partition(".")[2]))

    def value(one: Any, key: str, deep: int = 12) -> Any:
        if not isinstance(one, str) or "${" not in one or not deep:
            return one
        whole = REFERENCE.fullmatch(one)
        if whole and ":" not in whole[1]:
            return value(looked_up(whole[1].strip(), key), key, deep - 1)
        text = REFERENCE.sub(lambda found: _called(found[1], lambda name: looked_up(name, key)), one)
        with suppress(yaml.YAMLError):
            return value(text if "${" in text else yaml.safe_load(text), key, deep - 1)
        return text

    return {key: value(one, key) for key, one in flat.items()}


def _called(text: str, looked_up: Callable[[str], Any]) -> str:
    """Return what a reference stands for: a key's value, or a function of two numbers."""
    name, colon, rest = text.partition(":")
    if not colon:
        return str(looked_up(text.strip()))
    with suppress(ValueError, KeyError, ZeroDivisionError, TypeError):
        first, second = (int(part) for part in rest.split(","))
        return str(FUNCTIONS[name](first, second))
    return "null"


def settle(parts: Parts) -> Fields:
    """Return fields of Question."""
    if found := kind_of(parts.flat, yaml_tree("nemo")["others"]):
        kind, key, _ = found
        raise ValueError(
            f"a file of {kind} ({key[:60]}): decoders of text alone have layouts that are modelled"
        )
    tests, trains = (any(f"data.{one}_ds." in key for key in parts.flat) for one in ("test", "train"))
    if tests and not trains:
        raise ValueError(
            "model.data.test_ds without train_ds: it generates text or evaluates, and trains nothing"
        )
    _model(parts)
    amp = str(parts.get("_amp", "")).lower()
    megatron_bridge.precise(parts)
    if parts["_bf16"] and amp == "false":
        why = "weights stay in fp32 and are cast for each product; bf16 weights with fp32 masters are taken"
        parts.leave_out("megatron_amp_O2", False, why)
    name = str(parts.get("_optim") or parts["_optimizer"]).lower()
    parts["_optimizer"] = "adam" if "adam" in name or name == "mcore_distributed_optim" else name
    if parts.get("_distributed") is None:  # NeMo 2's recipes set it, NeMo 1 has names of optimizers
        parts["_distributed"] = "distributed" in name or "_optim" not in parts
    parts["_distributed"] = flag_of("use_distributed_optimizer", parts["_distributed"])
    if parts.get("_nemo_fsdp"):
        parts["_torch_fsdp2"] = True
    trained = str("" if "_num_hidden_layers" in parts else parts.get("_trained") or "")
    name = parts.get("model_name") or yaml_tree("nemo")["names_of_shapes"].get(trained.lower(), trained)
    parts["model_name"] = str(name)
    model = with_recipes_model(parts, "nemo")
    parts.setdefault("_wide_grads", True)  # NeMo 2's default, in fp16, too; NeMo 1's differs by optimizer
    return megatron.settled(parts) | {"adapters": adapters(parts), "model_name": str(name)} | model


def _model(parts: Parts) -> None:
    """Set what decides the model: its activation and norm, and the vocabulary by a tokenizer or a name."""
    if "_activation" in parts:
        parts["_gated"] = "glu" in str(parts["_activation"])
    if str(parts.get("_norm", "")).lower().startswith("layernorm"):
        parts["_norm"] = "LayerNorm"
    shapes = yaml_tree("nemo")["names_of_shapes"]
    given = (str(parts.get(one) or "") for one in ("_tokenizer", "_tokenizer_model", "_trained", "_run"))
    names = [shapes.get(name.rpartition("/")[2].lower(), name) for name in given]
    known = next((found for name in names if (found := published_model(name))), None)
    if known and "_vocab" not in parts:
        parts["_vocab"] = int(known.config["vocab_size"])


def spelled(flat: Flat) -> Flat:
    """Return the values in their sections, by NeMo 1's names."""
    return megatron_bridge.in_sections(flat, yaml_tree("nemo"))


def parts_of(question: Question) -> Fields:
    """Return NeMo 1's parts of a question; raises ValueError where it cannot express it."""
    if question.precision in ("mxfp8", "nvfp4"):
        raise ValueError(f"NeMo 1 has no key for precision {question.precision}")
    switches = dict.fromkeys(("_bf16", "_fp16", "_fp8_recipe", "_fp4", "_distributed", "_optimizer"))
    sharded = question.zero > 0 and question.sharing != "fsdp2"
    return {
        **megatron.parts_of(question),
        **switches,
        "model_name": None,
        "_accumulated": None,
        "_narrow_grads": question.gradients == "bf16" or None,
        "_fp8": "hybrid" if question.precision == "fp8" else None,
        "_precision": {"fp8": "bf16", "fp16": "16", "fp32": "32"}.get(question.precision, question.precision),
        "_optim": "mcore_distributed_optim" if sharded else "fused_adam",
        "_per_node": question.devices,
    }
