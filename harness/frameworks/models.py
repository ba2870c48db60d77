"""The model that a framework's file names: a config.json, or the published shape of a well-known name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from harness.config.hf_config import TOWERS, read_workload_file
from harness.frameworks.table import models_of, yaml_tree
from harness.question import KeyRead, Question, whole_size

FAMILY = re.compile(r"\b(llama|gemma|qwen|phi|olmo|smollm|deepseek)-?v?(\d)")
SIZE = re.compile(r"-((?:\d+x)?\d+)-([bm])\b")  # "7 b", written apart
T5_BASE = re.compile(r"\bt5-base\b")  # T5's base is a size; elsewhere it is a model before tuning


class NamedModel(NamedTuple):
    """A model's Hugging Face config and where it comes from."""

    config: Mapping[str, Any]
    source: str
    hub: str = ""  # its name on the Hub


@cache
def canonical(name: str) -> str:
    """Return a model's name without its owner, case, punctuation and words that do not change the shape."""
    ignored = yaml_tree("models")["words_without_shape"].split()
    word = re.sub(r"[_.\s()]+", "-", name.lower())
    word = T5_BASE.sub("t5base", SIZE.sub(r"-\1\2", word))
    word = FAMILY.sub(r"\1\2", word)
    word = re.sub(r"-e(\d+b)\b", r"-\1", word)
    return "-".join(one for one in word.split("-") if one and one not in ignored)


@cache
def shapes() -> Mapping[str, Mapping[str, Any]]:
    """Return the rows of models.yaml by name, each with its whole `config`."""
    rows, tree = {}, yaml_tree("models")
    for model_type, family in tree["models"].items():
        names = family["sizes"].replace("usual", tree["usual"]).split()
        for name, row in family["rows"].items():
            sizes = dict(zip(names, row["sizes"], strict=True))
            config = {"model_type": model_type, **sizes, **family.get("same", {}), **row.get("more", {})}
            rows[name] = {**row, "config": config, "also": row.get("also", "").split()}
    return rows


@cache
def published() -> Mapping[str, NamedModel]:
    """Return the published shapes by canonical name."""
    found = {}
    for name, row in shapes().items():
        source = f"the published shape of {name} (conf/frameworks/models.yaml: {row['source']})"
        for one in (name, *row["also"]):
            found[canonical(one)] = NamedModel(row["config"], source, row["hub"])
    return found


def model_of(name: str, folder: Path | None = None) -> NamedModel | None:
    """Return the model of a name or path; None where neither a config.json nor a published shape is known.

    `folder`: of the framework's file, next to which a relative path is looked for, too.
    """
    places = [Path(name).expanduser(), *([folder / name] if folder else [])]
    for place in places:
        if (place.is_dir() and (place / "config.json").is_file()) or (
            place.is_file() and place.suffix == ".json"
        ):
            return NamedModel(read_workload_file(place), f"{place}")
    return published_model(name)


def published_model(name: str) -> NamedModel | None:
    """Return the published shape of a well-known name; None where it has none.

    Names are compared whole, but for words such as "instruct": models whose names begin with a known one
    often have another shape, as gpt2-medium has.
    """
    shapes = published()
    owner, _, last = name.rpartition("/")
    names = (canonical(last), canonical(f"{owner.rpartition('/')[2]}-{last}" if owner else last))
    return next((shapes[one] for one in names if one in shapes), None)


FREEZES = {"ms_swift": "freeze_vit", "llama_factory": "freeze_vision_tower"}
"""Formats that freeze a tower by default, and no adapters of every layer in it, by their key for it.

ms-swift 3602360, arguments/tuner_args.py; LLaMA-Factory, hparams/finetuning_args.py and
model/model_utils/misc.py, find_all_linear_modules.
"""

FROZEN_TOWER_B = 3e9
"""What a frozen tower adds at most: less than 1e9 weights in bf16, and what one layer of it computes."""


def has_frozen_tower(question: Question) -> bool:
    """Return whether no activations are kept in a model's tower: nothing in it is trained.

    With checkpointing its layers' inputs are (transformers, enable_input_require_grads).
    """
    if question.recompute != "none":
        return False
    switch = FREEZES.get(question.format)
    trained = any(key.key == switch and key.status == "not modelled" for key in question.keys)
    return switch is not None and not trained and not (question.adapters and question.adapters.targets)


def with_tower(question: Question, published: bool = False) -> Question:
    """Return the question with a key that names its model's tower, if it has one: its text is answered.

    `published`: the model is of models.yaml, whose towers have less than a billion weights and which says
    where the language model has more for them.
    """
    keys = tuple(key for key in question.keys if key.key not in TOWERS)
    tower = next((key for key in TOWERS if key in (question.config or {})), None)
    if tower is not None:
        bounded = published and has_frozen_tower(question) and not (question.config or {})[tower]
        what = "sound" if tower.startswith("audio") else "images"
        named = KeyRead(
            key=tower,
            status="not modelled",
            means=f"the tower for {what}, which comes on top of the language model that is answered",
            memory="raises",
            most_B=FROZEN_TOWER_B if bounded else None,
            seconds="raises",
        )
        keys = (*keys, named)
    return msgspec.structs.replace(question, keys=keys)


TRAINERS = ("hugging_face", "trl", "axolotl", "llama_factory", "ms_swift")
"""Formats of transformers' Trainer."""


def with_embedding(question: Question) -> Question:
    """Return the question with a key that names what its program keeps of the embedding and is not modelled.

    transformers 5.23.0, trainer.py, create_optimizer: bitsandbytes' 8-bit optimizers keep their states in
    fp32. litgpt 2685705, finetune/lora.py: on a quantized base the embedding has a gradient of its own.
    """
    words = {str(key.value).lower() for key in question.keys if key.key in ("optim", "optimizer")}
    in_torch = any("torch" in word or word.startswith("ao_") for word in words)
    eight_bit = question.optimizer == "adamw_8bit" and question.adapters is None and not in_torch
    if question.format in TRAINERS and eight_bit:
        each_B, means = 6.0, "states of the embedding, which the Trainer keeps in fp32"
    elif question.format == "litgpt" and question.adapters and question.adapters.base != "bf16":
        each_B, means = 2.0, "a gradient of the embedding, which litgpt keeps next to a quantized base"
    else:
        return question
    config = question.config or {}
    hidden, words_ = whole_size(config, "hidden_size", "n_embd"), whole_size(config, "vocab_size")
    size_B = each_B * hidden * words_ if hidden and words_ else None
    key = KeyRead(
        key="embedding", status="not modelled", means=means, memory="raises", most_B=size_B, seconds="none"
    )
    kept = tuple(one for one in question.keys if one.key != key.key)
    return msgspec.structs.replace(question, keys=(*kept, key))


SAVED = ("lora_modules_to_save", "modules_to_save", "peft_config.modules_to_save", "additional_target")
"""Keys of modules that are trained in full next to adapters."""

SAVED_B, DDP_BUCKET_B = 18.0, 4.0
"""Of an element of such a module at most: weight, gradient and AdamW's states in fp32, and a bf16 copy.

Where nothing shards it, DDP's bucket holds the gradient again (torch/nn/parallel/distributed.py,
gradient_as_bucket_view=False, which accelerate keeps). FSDP has no buckets, and those of ZeRO are counted.
"""


def with_saved(question: Question) -> Question:
    """Return the question with the bytes that a trained embedding and output layer add at most."""
    config = question.config or {}
    hidden = whole_size(config, "hidden_size", "n_embd") or 0
    each_B = SAVED_B + (0 if question.zero else DDP_BUCKET_B)

    def bounded(key: KeyRead) -> KeyRead:
        names = set(re.findall(r"\w+", str(key.value)))
        if key.key not in SAVED or not names <= {"embed_tokens", "lm_head"}:
            return key
        most_B = each_B * len(names) * hidden * (whole_size(config, "vocab_size") or 0)
        return msgspec.structs.replace(key, most_B=most_B or None)

    return msgspec.structs.replace(question, keys=tuple(map(bounded, question.keys)))


def with_bucket(question: Question) -> Question:
    """Return the question with the bytes of a second bucket of DeepSpeed's, where the model decides them."""
    elements = question.bucket_elements() if question.reduce_bucket == 0 else None
    if elements is None:
        return question

    def bounded(key: KeyRead) -> KeyRead:
        second = key.key == "overlap_comm" and key.status == "not modelled"
        return msgspec.structs.replace(key, most_B=4.0 * elements) if second else key

    return msgspec.structs.replace(question, keys=tuple(map(bounded, question.keys)))


def with_model_parts(question: Question, published: bool = False) -> Question:
    """Return the question with keys that name what of its model is not modelled; see `with_tower`."""
    return with_bucket(with_saved(with_embedding(with_tower(question, published))))


def is_mixture(name: str) -> bool:
    """Return whether a name is that of a published shape with experts."""
    shape = published_model(name) if name else None
    return shape is not None and Question(config=dict(shape.config)).has_experts


def nearest_model(name: str) -> str:
    """Return the known name with which one without a shape begins, or that is most like it, or ""."""
    word, known = canonical(name.rpartition("/")[2]), published()
    begins = [one for one in known if word.startswith(f"{one}-")]
    return max(begins, key=len, default="") or next(iter(difflib.get_close_matches(word, known, n=1)), "")


def text_of(model: NamedModel) -> dict[str, Any]:
    """Return a model's config without its towers."""
    return {key: value for key, value in model.config.items() if key not in TOWERS}


def name_in(framework: str, name: str) -> str:
    """Return a framework's own name, after its family's, of what another name's published shape is.

    Raises ValueError where it has none.
    """
    listed, shape = models_of(framework), published_model(name)
    same = [one for one in listed if name in (one, one.rpartition("/")[2])]
    shapes = {one: published_model(one) for one in listed} if shape else {}
    alike = [one for one, other in shapes.items() if shape and other and text_of(other) == text_of(shape)]
    if not same and not alike:
        raise ValueError(f"{framework} has no name of {name or 'no model'}; it has {', '.join(listed)}"[:290])
    return (same or alike)[0]
