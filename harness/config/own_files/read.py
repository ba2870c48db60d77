"""The entry points: a framework's own file to an OwnSetup, and an OwnSetup to a framework's file."""

from __future__ import annotations

import importlib
import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import yaml

from harness.config.own_files.other_tools import other_tool
from harness.config.own_files.parse import Parsed, parsed_file, parsed_text
from harness.config.own_files.setup import OwnSetup
from harness.config.own_files.table import TABLES, Format, flattened, nested, understand

FORMATS = (
    "torchtitan",
    "axolotl",
    "llama_factory",
    "hugging_face",
    "accelerate",
    "deepspeed",
    "megatron",
    "megatron_bridge",
    "llm_foundry",
    "torchtune",
    "nanotron",
)
"""Modules of `formats/`, in the order in which equally well recognised ones are taken."""

REFERENCES = (
    "deepspeed",
    "deepspeed_config.deepspeed_config_file",
    "fsdp_config",
    "launcher.config_file",
)
"""Keys whose value may be another file with more of the configuration."""


def format_named(name: str) -> Format:
    """Return a format's module; raises ValueError with the names there are."""
    if name not in FORMATS:
        raise ValueError(f"format {name!r} is none of: {', '.join(FORMATS)}")
    return cast(Format, importlib.import_module(f"harness.config.own_files.formats.{name}"))


def format_of(parsed: Parsed) -> Format:
    """Return the format of a file's values; raises ValueError with what was seen instead."""
    other = other_tool(parsed.flat)
    found = {name: format_named(name).recognised(parsed.flat) for name in FORMATS}
    best = max(FORMATS, key=lambda name: found[name])
    if found[best] and not other:
        return format_named(best)
    keys = ", ".join(key[:24] for key in list(parsed.flat)[:3])
    known = ", ".join(FORMATS)
    seen = other or f"it has {keys}"
    raise ValueError(f"no configuration of a known framework: {seen}; known are those of {known}")


def read_own_file(path: str | Path, format_: str | None = None) -> OwnSetup:
    """Return the set-up of a framework's own file.

    `format_`: its framework's name, where it shall not be recognised by its keys. Raises ValueError with one
    line that names the file, what was recognised, and what is wrong or missing.
    """
    file = Path(path)
    parsed = parsed_file(file)
    try:
        module = format_named(format_) if format_ else format_of(parsed)
        flat = with_references(parsed.flat, file.parent)
        return _with_model(understand(flat, module), file.parent)
    except ValueError as error:
        name = f"{file}: " if str(file) not in str(error) else ""
        raise ValueError(f"{name}{error}"[:300]) from error


def read_own_text(text: str, format_: str | None = None, suffix: str = "") -> OwnSetup:
    """Return the set-up of a text, such as a command line; see `read_own_file`."""
    parsed = parsed_text(text, suffix)
    module = format_named(format_) if format_ else format_of(parsed)
    return _with_model(understand(with_references(parsed.flat, None), module), None)


def with_references(flat: dict[str, Any], folder: Path | None) -> dict[str, Any]:
    """Return the values with those of files that they name.

    A file is looked for relative to its own folder and to this one. DeepSpeed's configurations that axolotl
    and LLaMA-Factory ship are known by their names (conf/own_files/deepspeed_files.yaml).
    """
    for key in REFERENCES:
        name = flat.get(key)
        if not isinstance(name, str) or not name.endswith((".json", ".yaml", ".yml")):
            continue
        inner = _referenced(name, folder)
        if inner is None:
            continue
        section = key.partition(".")[0]
        rest = {one: value for one, value in flat.items() if one != key}
        flat = rest | (
            _of_accelerate(inner)
            if key == "launcher.config_file"
            else {f"{section}.{one}": value for one, value in inner.items()}
        )
    return flat


def _of_accelerate(inner: dict[str, Any]) -> dict[str, Any]:
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


def _referenced(name: str, folder: Path | None) -> dict[str, Any] | None:
    places = [Path(name), *([folder / name, folder / Path(name).name] if folder else [])]
    for place in places:
        if place.is_file():
            return parsed_file(place).flat
    shipped = yaml.safe_load((TABLES / "deepspeed_files.yaml").read_text())["files"].get(Path(name).name)
    return dict(shipped["keys"]) if shipped else None


def _with_model(setup: OwnSetup, folder: Path | None) -> OwnSetup:
    """Return the set-up with its model: the file's own sizes, a config.json, or the published shape."""
    from harness.config.own_files.models import model_of

    if setup.model is not None:
        return setup if setup.model_source else replace(setup, model_source="sizes in the file")
    found = model_of(setup.model_name, folder) if setup.model_name else None
    if found is None:
        return setup
    return replace(setup, model=found.config, model_source=found.source)


WRITERS = {"torchtitan": "toml", "deepspeed": "json", "hugging_face": "json", "megatron": "command"}
"""How a format's file is written, where it is not YAML."""


def write_own(setup: OwnSetup, format_: str) -> str:
    """Return a framework's own file of a set-up; raises ValueError with what it cannot express."""
    module = format_named(format_)
    flat = {key: value for key, value in module.written(setup).items() if value is not None}
    kind = WRITERS.get(format_, "yaml")
    if kind == "toml":
        return _toml(flat)
    if kind == "json":
        return json.dumps(nested(flat), indent=2) + "\n"
    if kind == "command":
        return _command(flat)
    return yaml.safe_dump(nested(flat), sort_keys=False)


def _toml(flat: dict[str, Any]) -> str:
    sections: dict[str, list[str]] = {}
    for key, value in flat.items():
        section, _, name = key.rpartition(".")
        sections.setdefault(section, []).append(f"{name} = {json.dumps(value)}")
    return "\n".join(f"[{name}]\n" + "\n".join(lines) + "\n" for name, lines in sections.items())


def _command(flat: dict[str, Any]) -> str:
    words = [_option(key, value) for key, value in flat.items() if value is not False]
    return " \\\n    ".join(words) + "\n"


def _option(key: str, value: Any) -> str:
    if value is True:
        return f"--{key}"
    values = value if isinstance(value, list) else [value]
    return " ".join([f"--{key}", *(shlex.quote(str(one)) for one in values)])


__all__ = ["FORMATS", "flattened", "format_of", "read_own_file", "read_own_text", "write_own"]
