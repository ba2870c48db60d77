"""Recipes that NeMo 2 and Megatron Bridge have by name, and Python scripts that change one, read as text.

Sources: NeMo commit 8cfedd7 of September 2025 (nemo/collections/llm/recipes) and Megatron Bridge commit
067f987 of August 2026 (src/megatron/bridge/recipes); their values are in conf/frameworks/recipes.yaml.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import yaml

from harness.frameworks.models import published_model
from harness.frameworks.python_text import CONDITIONS, Unresolved, built_by, leaves_of
from harness.frameworks.table import Fields, Parts, framework_named, matches, yaml_tree
from harness.frameworks.words import layers_named, targets_of
from harness.question import Adapters

NUMBERED = re.compile(r"([a-z]+)(\d+)")
"""A word with a number, such as tp8."""

GPUS = re.compile(r"_(\d+)gpu(?=_|\Z)")
"""In names of Megatron Bridge's recipes: the devices."""

CALLED = re.compile(r"(?:\w+\.)*(\w+\.(?:pretrain|finetune)_recipe|\w+_config)\Z")
"""A recipe's function: llm.llama3_8b.pretrain_recipe, or llama3_8b_pretrain_config."""


def values_of(words: str) -> dict[str, Any]:
    """Return the keys of a recipe's words: `tp8`, `full`, `mtp_num_layers=1`; `no_full` takes some back."""
    tree = yaml_tree("recipes")
    values: dict[str, Any] = {}
    for word in words.split():
        name, equals, text = word.partition("=")
        found = NUMBERED.fullmatch(word)
        if equals:
            values[tree["words"].get(name, name)] = yaml.safe_load(text)
        elif found and found[1] in tree["words"]:
            values[tree["words"][found[1]]] = int(found[2])
        elif word.startswith("no_"):
            gone = tree["sets"].get(word[3:], {tree["words"].get(word[3:]): None})
            values = {key: value for key, value in values.items() if key not in gone}
        else:
            values |= tree["sets"][word]
    return values


@cache
def bridge_recipes() -> Mapping[str, tuple[str, str]]:
    """Return Megatron Bridge's recipes by all their names: the model, and words with the devices."""
    recipes = {}
    for model, listed in yaml_tree("recipes")["megatron_bridge"].items():
        for one in listed.split(";"):
            name, *words = one.split()
            given = [word for word in words if word.startswith("=")]
            others = [word for word in words if not word.startswith("=")]
            gpus = GPUS.search(name)
            full = re.sub(r"(_\d+gpu)(?!_(?:g?b\d+|h100))", r"\1_h100_bf16", name)
            usual = [re.sub(r"_\d+gpu_h100_bf16\Z", "", full)]
            text = " ".join([*others, *([f"world_size={gpus[1]}"] if gpus else [])])
            for alias in (full, *(usual if not given else [word[1:] for word in given])):
                recipes[alias] = (model, text)
    return recipes


def bridge_recipe(name: str) -> dict[str, Any]:
    """Return the keys of a recipe of Megatron Bridge; raises ValueError with what it is, or the nearest."""
    stem, known = name.removesuffix("_config"), bridge_recipes()
    if stem not in known:
        raise ValueError(_unknown(f"{name}", stem, known, "Megatron Bridge 067f987"))
    model, words = known[stem]
    return {"hf_path": model, **values_of(words)}


def nemo_recipe(name: str, task: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a recipe of NeMo 2. `task`: pretrain or finetune; `arguments`: of its function.

    Raises ValueError with what it is, or the nearest.
    """
    tree = yaml_tree("recipes")
    if name not in tree["nemo"]:
        raise ValueError(_unknown(name, name, tree["nemo"], "NeMo 8cfedd7"))
    model, *listed = (part.strip() for part in tree["nemo"][name].split(";"))
    tasks = dict(part.partition(" ")[::2] for part in listed)
    scheme = str(arguments.get("peft_scheme", "lora" if "lora" in tasks else "none")).lower()
    of = task if task == "pretrain" else "full" if scheme in ("none", "null") else "lora"
    if of not in tasks:
        raise ValueError(f"NeMo's {name} has no recipe of {of}; it has {', '.join(tasks)}")
    usual, _, faster = tasks[of].partition("+")
    performance = str(arguments.get("performance_mode", False)).lower()
    words = usual + (faster if performance == "true" else "")
    known = tree["arguments"]
    given = {known[key]: value for key, value in arguments.items() if key in known and value is not None}
    dora = {"peft.dora": True} if scheme == "dora" and of == "lora" else {}
    mock = {"tokenizer.vocab_size": 50257} if of == "pretrain" and matches(name, tree["mock"].split()) else {}
    packed = of == "pretrain" or str(arguments.get("packed_sequence", performance)).lower() == "true"
    mock |= {} if packed else {"dataset.unpacked": True}  # recipes/finetune_default.py
    usual_keys = {"devices": 8, "num_nodes": 1, "cross_entropy_loss_fusion": True, "moe_grouped_gemm": True}
    return {"hf_path": model, **usual_keys, **mock, **values_of(words), **dora, **given}


def _unknown(name: str, stem: str, known: Mapping[str, Any], whose: str) -> str:
    kinds: Mapping[str, str] = yaml_tree("recipes")["others"]
    patterns = {pattern: why for listed, why in kinds.items() for pattern in listed.split()}
    if pattern := matches(stem, patterns):
        return f"{name} trains {patterns[pattern]}, whose layouts are not modelled"
    near = ", ".join(difflib.get_close_matches(stem, known, n=3)) or ", ".join(list(known)[:3])
    return f"{name} is no recipe of {whose} that is known here; the nearest are {near}"


def named_recipe(text: str) -> dict[str, Any] | None:
    """Return a recipe's name as a file's values, such as llama3_8b_pretrain_config; None for another text."""
    found = CALLED.fullmatch(text.removesuffix("()"))
    return {"recipe": found[1]} if found else None


class NoRecipeError(ValueError):
    """A script calls no recipe."""


def script_values(text: str) -> dict[str, Any]:
    """Return a Python script's recipe with what the script sets in it; nothing of it runs.

    Raises NoRecipeError where it calls none, ValueError where several. Values that only a run knows are kept
    as `$` with their text.
    """
    try:
        tree = ast.parse(text)
        calls = [ast.unparse(one.func) for one in ast.walk(tree) if isinstance(one, ast.Call)]
        names = list(dict.fromkeys(found[1] for one in calls if (found := CALLED.fullmatch(one))))
        if not names:
            raise NoRecipeError("no recipe such as llm.llama3_8b.pretrain_recipe() is called in it")
        if len(names) > 1:
            raise ValueError(f"it calls several recipes, {names[0]} and {names[1]}; give one by name")
        recipes, conditions = built_by(tree, CALLED)
    except (SyntaxError, RecursionError) as error:
        raise ValueError(f"not Python: {error}") from error
    values: dict[str, Any] = {"recipe": names[0]}
    for one in recipes:
        for key, value in leaves_of(one):
            name = f"recipe.{key}" if key.partition(".")[0] in one.arguments else key
            unknown = isinstance(value, Unresolved) and not value.startswith("torch.")
            if not unknown:
                values[name] = value
            else:  # of a function that is followed with and without its arguments, the known value counts
                values.setdefault(name, f"${value}")
    return values | ({CONDITIONS: conditions} if conditions else {})


AMENDED = {
    "_num_hidden_layers": "num_hidden_layers",
    "_hidden_size": "hidden_size",
    "_intermediate_size": "intermediate_size",
    "_num_attention_heads": "num_attention_heads",
    "_num_key_value_heads": "num_key_value_heads",
    "_head_dim": "head_dim",
    "_experts_per_token": "num_experts_per_tok",
}
"""Sizes that replace those of a recipe's model, and their names in its config.json."""

EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


def with_recipes_model(parts: Parts, framework: str) -> Fields:
    """Return the config of a recipe's model with the sizes that the file sets in it, which parts loses.

    Nothing where it sets none. Sets the model's layers too, from which its stages follow. A dense model of
    Llama's kind that gets experts is Mixtral's (NeMo 8cfedd7, llm/gpt/model/mixtral.py).
    """
    shape = published_model(str(parts.get("model_name") or ""))
    parts["_layers"] = int(shape.config.get("num_hidden_layers", 0)) if shape else None
    rows = framework_named(framework).keys
    given = {rows[key].field for key, value in parts.flat.items() if key in rows and value is not None}
    if shape is None or not given & {*AMENDED, "_num_experts"}:
        return {}
    config = dict(shape.config)
    if config.get("head_dim") == config["hidden_size"] // config["num_attention_heads"]:
        del config["head_dim"]  # it follows the others
    config |= {name: parts.pop(part) for part, name in AMENDED.items() if part in given}
    experts = parts.pop("_num_experts") if "_num_experts" in given else None
    if experts:
        name = next((one for one in EXPERTS if one in config), "")
        if not name and config["model_type"] not in ("llama", "mistral"):
            raise ValueError(f"num_moe_experts={experts} in a recipe without experts has no model here")
        config |= {name or EXPERTS[0]: experts} | ({} if name else {"model_type": "mixtral"})
        config.setdefault("num_experts_per_tok", 2)  # Megatron-Core's moe_router_topk
    kinds = config.get("layer_types")
    if kinds and len(kinds) != config["num_hidden_layers"]:
        config["layer_types"] = (kinds * config["num_hidden_layers"])[: config["num_hidden_layers"]]
    parts["_layers"] = config["num_hidden_layers"]
    return {"config": config, "model_source": f"{shape.source}, with sizes of the file"}


def adapters(parts: Parts) -> Adapters | None:
    """Return the adapters: of NeMo 1 by its scheme, of NeMo 2 and Megatron Bridge where they have a rank."""
    scheme = str(parts.get("_scheme") or ("lora" if parts.get("_rank") else "none")).lower()
    if scheme in ("none", "null"):
        return None
    rank, modules = parts.get("_lora_rank") or parts.get("_rank"), parts.get("_lora_modules")
    if scheme not in ("lora", "dora", "qlora"):
        why = "other weights of a frozen model are trained; LoRA of rank 32 on every linear layer is taken"
        parts.leave_out("peft.peft_scheme", scheme, why)
        rank, modules = 32, None
    elif parts.get("_lora_rank") and not modules:
        modules = ["attention_qkv"]  # NeMo 1's own default
    modules = modules or parts.get("_modules_of_adapters") or ()
    listed = modules.split(",") if isinstance(modules, str) else modules
    names = layers_named(str(one).strip() for one in listed)
    return Adapters(
        rank=int(rank or 32),
        targets=() if names >= layers_named(("attention", "mlp")) else targets_of(sorted(names)),
        base="nf4" if scheme == "qlora" else "bf16",
        dora=scheme == "dora" or bool(parts.get("_dora")),
    )
