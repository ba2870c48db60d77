"""The model that a framework's file names: a config.json, or the published shape of a well-known name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from harness.config.hf_config import read_workload_file
from harness.frameworks.table import models_of, yaml_tree

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
def published() -> Mapping[str, NamedModel]:
    """Return the published shapes by canonical name."""
    shapes = {}
    for name, entry in yaml_tree("models")["models"].items():
        source = f"the published shape of {name} (conf/frameworks/models.yaml: {entry['source']})"
        for one in (name, *entry.get("also", ())):
            shapes[canonical(one)] = NamedModel(entry["config"], source, entry["hub"])
    return shapes


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


def nearest_model(name: str) -> str:
    """Return the known name with which one without a shape begins, or that is most like it, or ""."""
    word, known = canonical(name.rpartition("/")[2]), published()
    begins = [one for one in known if word.startswith(f"{one}-")]
    return max(begins, key=len, default="") or next(iter(difflib.get_close_matches(word, known, n=1)), "")


def name_in(framework: str, name: str) -> str:
    """Return a framework's own name, after its family's, of what another name's published shape is.

    Raises ValueError where it has none.
    """
    listed, shape = models_of(framework), published_model(name)
    same = [one for one in listed if name in (one, one.rpartition("/")[2])]
    shapes = {one: published_model(one) for one in listed} if shape else {}
    alike = [one for one, other in shapes.items() if shape and other and other.config is shape.config]
    if not same and not alike:
        raise ValueError(f"{framework} has no name of {name or 'no model'}; it has {', '.join(listed)}"[:290])
    return (same or alike)[0]
