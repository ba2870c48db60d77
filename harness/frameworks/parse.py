"""Texts of files to their values by dotted key: TOML, YAML, JSON, command lines and shell scripts."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

from harness.frameworks.shell import LARGEST_FILE_B, command_line
from harness.frameworks.table import flattened


def parsed_file(path: Path) -> dict[str, Any]:
    """Return the values of a file; raises ValueError with one line that names the file and what is wrong."""
    try:
        if path.is_dir():
            raise ValueError(f"{path}: is a folder; give the configuration file in it")
        if path.stat().st_size > LARGEST_FILE_B:
            raise ValueError(f"{path}: larger than {LARGEST_FILE_B // 10**6} MB, so it is no configuration")
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not text in UTF-8, so it is no configuration") from error
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from error
    try:
        return parsed_text(text, path.suffix.lower())
    except ValueError as error:
        raise ValueError(f"{path}: {error}"[:300]) from error


def parsed_text(text: str, suffix: str = "") -> dict[str, Any]:
    """Return the values of a text; `suffix`: of its file's name, which decides where it is known."""
    if not text.strip():
        raise ValueError("is empty")
    if suffix == ".toml":
        return _toml(text)
    if suffix == ".json" or (not suffix and text.lstrip().startswith("{")):
        return _json(text)
    if suffix in (".yaml", ".yml"):
        return _yaml(text)
    if suffix in (".sh", ".bash", ".slurm", ".sbatch") or re.search(r"(?:^|\s)--[a-z][\w.-]+", text):
        return command_line(text)
    for read in (_toml, _yaml, command_line):
        try:
            return read(text)
        except ValueError:
            continue
    raise ValueError("is neither TOML, YAML, JSON nor a command line")


def _toml(text: str) -> dict[str, Any]:
    try:
        return flattened(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"not TOML: {error}") from error


def _json(text: str) -> dict[str, Any]:
    try:
        tree = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON at line {error.lineno}, column {error.colno}: {error.msg}") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return _mapping(tree, "JSON")


class _OwnYaml(yaml.SafeLoader):
    """Reads YAML with tags of other tools as plain values."""


def _plain(loader: yaml.SafeLoader, _suffix: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return node.value


_OwnYaml.add_multi_constructor("!", _plain)
_OwnYaml.add_multi_constructor("tag:", _plain)


def _yaml(text: str) -> dict[str, Any]:
    try:
        tree = yaml.load(text, _OwnYaml)  # a SafeLoader: builds plain values alone
    except yaml.MarkedYAMLError as error:
        at = f" at line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ValueError(f"not YAML{at}: {error.problem}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"not YAML: {' '.join(str(error).split())}") from error
    return _mapping(tree, "YAML")


def _mapping(tree: Any, kind: str) -> dict[str, Any]:
    if not isinstance(tree, dict) or not tree:
        raise ValueError(f"its {kind} is no mapping of keys to values")
    return flattened(tree)
