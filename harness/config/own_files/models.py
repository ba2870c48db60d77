"""The model that a framework's file names: a config.json, or the published shape of a well-known name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from harness.config.code_fingerprint import ROOT
from harness.config.user_inputs.hf_config import read_workload_file

TABLE = ROOT / "conf" / "own_files" / "models.yaml"

NO_SHAPE = frozenset(
    [
        "meta",
        "hf",
        "instruct",
        "chat",
        "it",
        "base",
        "bnb",
        "nf4",
        "bf16",
        "fp16",
        "4bit",
        "8bit",
        "awq",
        "gptq",
        "int4",
        "int8",
        "fp8",
        "dynamic",
        "unsloth",
        "text",
        "thinking",
        "sft",
        "dpo",
        "1124",
        "2407",
        "2411",
        "2501",
        "2503",
        "2507",
        "2512",
        "4k",
        "8k",
        "32k",
        "128k",
        "1m",
        "flex",
        "varlen",
        "irope",
        "deduped",
        "smashed",
        "merged",
        "model",
        "instruct4k",
    ]
)
"""Words of a name that do not change the shape."""

FAMILY = re.compile(r"\b(llama|gemma|qwen|phi|olmo|smollm|deepseek)-?v?(\d)")


class NamedModel(NamedTuple):
    """A model's Hugging Face config and where it comes from."""

    config: Mapping[str, Any]
    source: str
    hub: str = ""  # its name on the Hub


def canonical(name: str) -> str:
    """Return a model's name without its owner, case, punctuation and words that do not change the shape."""
    word = re.sub(r"[_.\s]+", "-", name.lower())
    word = FAMILY.sub(r"\1\2", word)
    word = re.sub(r"-e(\d+b)\b", r"-\1", word)
    return "-".join(one for one in word.split("-") if one and one not in NO_SHAPE)


@cache
def published() -> Mapping[str, NamedModel]:
    """Return the published shapes by canonical name."""
    table = yaml.safe_load(TABLE.read_text())
    found = {}
    for name, entry in table["models"].items():
        source = f"the published shape of {name} (conf/own_files/models.yaml: {entry['source']})"
        for one in (name, *entry.get("also", ())):
            found[canonical(one)] = NamedModel(entry["config"], source, entry["hub"])
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

    A name that begins with a known one, as fine-tuned models' do, has that one's shape, and its source says
    so.
    """
    shapes = published()
    owner, _, last = name.rpartition("/")
    for one in (canonical(last), canonical(f"{owner.rpartition('/')[2]}-{last}" if owner else last)):
        if one in shapes:
            return shapes[one]
    word = canonical(last)
    begins = [known for known in shapes if word.startswith(f"{known}-")]
    if not begins:
        return None
    known = max(begins, key=len)
    return shapes[known]._replace(source=f"{shapes[known].source}, with which {last!r} begins")


def name_among(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate that has the published shape of a name: itself, or another framework's name."""
    listed = list(candidates)
    if name in listed:
        return name
    shape = published_model(name)
    return next((one for one in listed if shape is not None and same(published_model(one), shape)), None)


def same(one: NamedModel | None, other: NamedModel) -> bool:
    """Return whether two names have one published shape."""
    return one is not None and one.config is other.config


def hub_name(name: str, format_: str) -> str:
    """Return a model's name on the Hub; names of formats that use such names stay as they are."""
    shape = None if format_ in HUB_FORMATS or not name else published_model(name)
    return shape.hub if shape is not None else name


HUB_FORMATS = ("axolotl", "llama_factory", "hugging_face", "llm_foundry", "megatron_bridge")
"""Formats whose models are named as on the Hub, or by a path."""
