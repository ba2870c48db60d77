"""Texts of files to their values by dotted key: TOML, YAML, JSON, command lines and shell scripts."""

from __future__ import annotations

import json
import math
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from harness.config.own_files.table import flattened

LARGEST_FILE_B = 10_000_000
"""No configuration comes near this size."""

ASSIGNED = re.compile(
    r"""^\s*(?:export\s+)?(\w+\+?)=(\((?:[^()]|\([^()]*\))*\)|"[^"]*"|'[^']*'|[^\s#;]*)""", re.MULTILINE
)
"""A shell's assignment of a word, a quoted text or an array."""

USED = re.compile(r"\$\{(\w+)(?:\[@\]|\[\*\])?(?::-([^}]*))?\}|\$(\w+)")
"""A use of a shell's variable, with the value it has when it is not set."""

LAUNCHERS = ("torchrun", "deepspeed", "accelerate", "torch.distributed.run", "torch.distributed.launch")
"""Programs whose options, before the script's name, say how many processes there are."""

PRODUCT = re.compile(r"\$\(\(\s*(\d+(?:\s*\*\s*\d+)*)\s*\)\)")
"""A shell's product of whole numbers."""

DOTTED = re.compile(r"\+{0,2}[A-Za-z]\w*(\.\w+)+\Z")
"""A key of Hydra's command line, as in model.hidden_size=4096."""

STARTS = re.compile(r"""(?:^|[\s"'(])(?:--[A-Za-z]|\+{0,2}[A-Za-z]\w*(?:\.\w+)+=)""")
"""The begin of an option or of Hydra's key."""

UNDOTTED = ("mixed_precision",)
"""Such keys of Megatron Bridge without a section."""

OPTION = re.compile(r"--?[A-Za-z][\w.-]*\Z")


class Parsed(NamedTuple):
    """A file's values, and the kind of text it was."""

    flat: dict[str, Any]
    kind: str  # toml, yaml, json, command


def parsed_file(path: Path) -> Parsed:
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


def parsed_text(text: str, suffix: str = "") -> Parsed:
    """Return the values of a text; `suffix`: of its file's name, which decides where it is known."""
    if not text.strip():
        raise ValueError("is empty")
    if suffix == ".toml":
        return Parsed(_toml(text), "toml")
    if suffix == ".json" or (not suffix and text.lstrip().startswith("{")):
        return Parsed(_json(text), "json")
    if suffix in (".yaml", ".yml"):
        return Parsed(_yaml(text), "yaml")
    if suffix in (".sh", ".bash", ".slurm", ".sbatch") or re.search(r"(?:^|\s)--[a-z][\w.-]+", text):
        return Parsed(command_line(text), "command")
    for kind, read in (("toml", _toml), ("yaml", _yaml), ("command", command_line)):
        try:
            return Parsed(read(text), kind)
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


def command_line(text: str) -> dict[str, Any]:
    """Return the options of a command line or of a shell script; an option without a value is True.

    Variables that the script assigns are filled in; of several commands with options, all are read, and
    torchrun's own are named `torchrun.…`.
    """
    text = re.sub(r"\\\s*\n", " ", text)
    text = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    variables: dict[str, str] = {}
    for name, value in _assigned(text):
        added = name.endswith("+")
        name = name.rstrip("+")
        own = re.compile(r"\$\{" + name + r"(?::-([^}]*))?\}|\$" + name + r"\b")
        value = own.sub(lambda found: variables.get(name, found.group(1) or ""), value)  # noqa: B023
        variables[name] = f"{variables.get(name, '')} {value}" if added else value
    flat: dict[str, Any] = {}
    for words in _commands(_filled(text, variables)):
        launcher = any(Path(word).name in LAUNCHERS for word in words)
        script = next((at for at, word in enumerate(words) if word.endswith(".py")), -1)
        if launcher and script > 0:
            flat |= {f"launcher.{name}": value for name, value in _options(words[:script])}
        flat |= dict(_options(words[script + 1 :] if script >= 0 else words))
    if not flat:
        raise ValueError("no option such as --micro-batch-size 1 is in it")
    return flat


def _assigned(text: str) -> Iterator[tuple[str, str]]:
    for found in ASSIGNED.finditer(text):
        name, value = found.group(1), found.group(2)
        if value[:1] in "\"'" or (value.startswith("(") and value.endswith(")")):
            value = value[1:-1]
        yield name, " ".join(line.partition(" #")[0] for line in value.splitlines())


def _filled(text: str, variables: dict[str, str]) -> str:
    def product(found: re.Match[str]) -> str:
        return str(math.prod(map(int, found.group(1).split("*"))))

    def value(found: re.Match[str]) -> str:
        name = found.group(1) or found.group(3)
        return variables.get(name, found.group(2) or found.group())

    for _ in range(5):  # variables of variables
        filled = PRODUCT.sub(product, USED.sub(value, text))
        if filled == text:
            break
        text = filled[:LARGEST_FILE_B]
    return text


def _commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command; assignments are no commands, unless nothing else has options."""
    without = ASSIGNED.sub("", text)
    for part in (without, text):
        found = [line for line in re.split(r"[\n;]|&&|\|\|", part) if STARTS.search(line)]
        if found:
            for line in found:
                if part is text:
                    line = line.replace('"', " ").replace("'", " ")
                try:
                    yield shlex.split(line.replace("(", " ").replace(")", " "), comments=True)
                except ValueError:
                    yield line.replace('"', " ").replace("'", " ").split()
            return


def _begins(word: str) -> bool:
    """Return whether a word is an option, or Hydra's key with a value, and so ends the values before it."""
    name, equals, _ = word.partition("=")
    return bool(OPTION.match(name) or (equals and (DOTTED.match(name) or name in UNDOTTED)))


def _options(words: list[str]) -> Iterator[tuple[str, Any]]:
    words = [word for word in words if word.strip() and not re.fullmatch(r"\$\{\w+\[[@*]\]\}", word.strip())]
    words = [part for word in words for part in (word.split() if word.strip().startswith("--") else [word])]
    at = 0
    while at < len(words):
        name, equals, value = words[at].partition("=")
        at += 1
        if equals and (DOTTED.match(name) or name in UNDOTTED):
            yield name.lstrip("+"), yaml.safe_load(value) if value else None
            continue
        if not OPTION.match(name):
            continue
        values = [value] if equals else []
        while not equals and at < len(words) and not _begins(words[at]):
            values.append(words[at])
            at += 1
        yield name.lstrip("-"), True if not values else values[0] if len(values) == 1 else values
