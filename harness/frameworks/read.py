"""The entry points: a framework's own file to a Question, and a Question to a framework's file."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import msgspec
import yaml

from harness.frameworks.models import model_of
from harness.frameworks.parse import parsed_file, parsed_text
from harness.frameworks.table import (
    Flat,
    Framework,
    framework_named,
    frameworks,
    matches,
    nested,
    read_values,
    written_values,
    yaml_tree,
)
from harness.question import Question

REFERENCES = (
    "deepspeed",
    "deepspeed_config.deepspeed_config_file",
    "fsdp_config",
    "launcher.config_file",
)
"""Keys whose value may be another file with more of the configuration."""


def framework_of(flat: Flat) -> Framework:
    """Return the framework of a file's values; raises ValueError with what was seen instead."""
    other = other_file(flat)
    counts = {name: framework.recognised(flat) for name, framework in frameworks().items()}
    best = max(counts, key=lambda name: counts[name])
    if counts[best] and not other:
        return framework_named(best)
    keys = ", ".join(key[:24] for key in list(flat)[:3])
    seen, known = other or f"it has {keys}", ", ".join(frameworks())
    raise ValueError(f"no configuration of a known framework: {seen}; known are those of {known}")


def other_file(flat: Flat) -> str:
    """Return in a few words which other file has such keys; "" where none is known."""
    if "architectures" in flat and "model_type" in flat:
        return "it is a model's config.json; give it as model="
    for tool, patterns in yaml_tree("other_tools")["tools"].items():
        key = next((key for key in flat if matches(key, patterns.split())), None)
        if key is not None:
            return f"it is a file of {tool} ({key[:60]}), which is not read"
    return ""


def read_own_file(path: str | Path, format_: str | None = None) -> Question:
    """Return the question that a framework's own file asks.

    `format_`: its framework's name, where it shall not be recognised by its keys. Raises ValueError with one
    line that names the file, what was recognised, and what is wrong or missing.
    """
    file = Path(path)
    flat = parsed_file(file)
    try:
        return _question(flat, format_, file.parent, file.name)
    except ValueError as error:
        name = f"{file}: " if str(file) not in str(error) else ""
        raise ValueError(f"{name}{error}"[:300]) from error


def read_own_text(text: str, format_: str | None = None, suffix: str = "") -> Question:
    """Return the question that a text asks, such as a command line; see `read_own_file`."""
    return _question(parsed_text(text, suffix), format_, None)


def _question(flat: Flat, format_: str | None, folder: Path | None, name: str = "") -> Question:
    framework = framework_named(format_) if format_ else framework_of(flat)
    return _with_model(read_values(with_references(flat, folder), framework, name), folder)


def with_references(flat: Flat, folder: Path | None) -> Flat:
    """Return the values with those of files that they name.

    A file is looked for relative to its own folder and to this one. DeepSpeed's configurations that axolotl
    and LLaMA-Factory ship are known by their names (conf/frameworks/deepspeed_files.yaml).
    """
    for key in REFERENCES:
        name = flat.get(key)
        if not isinstance(name, str) or not name.endswith((".json", ".yaml", ".yml")):
            continue
        inner = _referenced(name, folder)
        if inner is None:
            continue
        section = key.partition(".")[0]
        of_accelerate = key == "launcher.config_file"
        named = _of_accelerate(inner) if of_accelerate else {f"{section}.{k}": v for k, v in inner.items()}
        flat = {other: value for other, value in flat.items() if other != key} | named
    return flat


def _of_accelerate(inner: Flat) -> dict[str, Any]:
    """Return accelerate's configuration by the names that TrainingArguments have."""
    names = {
        "num_processes": "launcher.num_processes",
        "deepspeed_config.zero_stage": "deepspeed.zero_optimization.stage",
        "deepspeed_config.offload_optimizer_device": "deepspeed.zero_optimization.offload_optimizer.device",
        "deepspeed_config.offload_param_device": "deepspeed.zero_optimization.offload_param.device",
    }
    sections = ("fsdp_config.", "parallelism_config.", "deepspeed_config.zero", "deepspeed_config.offload_")
    kept = {key: value for key, value in inner.items() if key in names or key.startswith(sections)}
    return {names.get(key, key): value for key, value in kept.items()}


def _referenced(name: str, folder: Path | None) -> Flat | None:
    places = [Path(name), *([folder / name, folder / Path(name).name] if folder else [])]
    for place in places:
        if place.is_file():
            return parsed_file(place)
    shipped = yaml_tree("deepspeed_files")["files"].get(Path(name).name)
    return dict(shipped["keys"]) if shipped else None


def _with_model(question: Question, folder: Path | None) -> Question:
    """Return the question with its model: the file's own sizes, a config.json, or the published shape."""
    if question.config is not None:
        source = question.model_source or "sizes in the file"
        return msgspec.structs.replace(question, model_source=source)
    model = model_of(question.model_name, folder) if question.model_name else None
    if model is None:
        return question
    origins = {**question.origins, "config": question.origin("model_name")}
    return msgspec.structs.replace(
        question, config=dict(model.config), model_source=model.source, origins=origins
    )


def write_own(question: Question, format_: str) -> str:
    """Return a framework's own file of a question; raises ValueError with what it cannot express."""
    framework = framework_named(format_)
    flat = {key: value for key, value in written_values(question, framework).items() if value is not None}
    if framework.suffix == ".toml":
        return _toml(flat)
    if framework.suffix == ".json":
        return json.dumps(nested(flat), indent=2) + "\n"
    if not framework.suffix:
        return " \\\n    ".join(_option(key, value) for key, value in flat.items()) + "\n"
    return yaml.safe_dump(nested(flat), sort_keys=False)


def read_back(question: Question, format_: str, text: str) -> dict[str, tuple[Any, Any]]:
    """Return what a written file says otherwise than the question: by field, what was asked and what it says.

    Raises ValueError where the file cannot be read.
    """
    again = read_own_text(text, format_, framework_named(format_).suffix)
    names = {name: getattr(question, name) for name in msgspec.structs.asdict(again) if name in again.origins}
    said = {name: getattr(again, name) for name in names}
    return {name: (names[name], said[name]) for name in names if names[name] != said[name]}


def _toml(flat: Flat) -> str:
    sections: dict[str, list[str]] = {}
    for key, value in flat.items():
        section, _, name = key.rpartition(".")
        sections.setdefault(section, []).append(f"{name} = {json.dumps(value)}")
    return "\n".join(f"[{name}]\n" + "\n".join(lines) + "\n" for name, lines in sections.items())


def _option(key: str, value: Any) -> str:
    if value is True:
        return f"--{key}"
    values = value if isinstance(value, list) else [value]
    return " ".join([f"--{key}", *(shlex.quote(str(one)) for one in values)])
