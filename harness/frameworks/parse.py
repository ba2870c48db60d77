"""Texts of files to their values by dotted key: TOML, YAML, JSON, command lines and shell scripts."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from harness.frameworks.python_text import python_values
from harness.frameworks.recipes import NoRecipeError, script_values
from harness.frameworks.shell import command_line
from harness.frameworks.shell_variables import LARGEST_FILE_B
from harness.frameworks.sourced import unset, with_sourced
from harness.frameworks.table import flattened, refusal

SHELLS = (".sh", ".bash", ".slurm", ".sbatch")

SOURCED = "launcher.sourced"
"""The key of a file that a script sources, which is not there and may have its options."""


def parsed_file(path: Path, beside: Sequence[Path] = ()) -> dict[str, Any]:
    """Return the values of a file; raises ValueError with one line that names the file and what is wrong.

    A file of Python may have the name of a function behind a colon. `beside`: files that a script may source.
    """
    name, _, function = str(path).rpartition(".py:")
    path = Path(f"{name}.py") if name else path
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
        with of_its_kind():
            if path.suffix == ".py":
                return of_python(text, function if name else "", path)
            if path.suffix in SHELLS:
                return _of_script(text, path, beside)
            return parsed_text(text, path.suffix.lower())
    except ValueError as error:
        raise ValueError(refusal(path, str(error))) from error


def _of_script(text: str, path: Path, beside: Sequence[Path]) -> dict[str, Any]:
    """Return the options of a script and of those that it sources, with the name of one that is not there."""
    whole, _, missing = with_sourced(text, path.parent, beside)
    lost = {SOURCED: missing[0]} if missing and (unset(whole) or ".py" not in whole) else {}
    try:
        return parsed_text(whole, path.suffix) | lost
    except ValueError:
        if not lost:
            raise
        return lost


OF_VALUES = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    yaml.YAMLError,
)
"""What a value of another kind than a key takes leads to, somewhere in a reader."""


@contextmanager
def of_its_kind() -> Iterator[None]:
    """Raise ValueError in one line where a value of a file is of another kind than its key takes."""
    try:
        yield
    except OF_VALUES as error:
        words = " ".join(str(error).split()) or "too large"
        raise ValueError(
            f"a value in it is of another kind than its key takes ({type(error).__name__}: {words})"[:240]
        ) from error


def parsed_text(text: str, suffix: str = "") -> dict[str, Any]:
    """Return the values of a text; `suffix`: of its file's name, which decides where it is known."""
    if not text.strip():
        raise ValueError("is empty")
    if suffix in KINDS:
        return _tree(KINDS[suffix], text)
    if suffix == ".py":
        return of_python(text)
    if not suffix and text.lstrip().startswith("{"):
        return _tree("JSON", text)
    if suffix in SHELLS or re.search(r"(?:^|\s)--[a-z][\w.-]+", text):
        return command_line(text)
    for read in (partial(_tree, "TOML"), partial(_tree, "YAML"), command_line):
        try:
            return read(text)
        except ValueError:
            continue
    raise ValueError("is neither TOML, YAML, JSON nor a command line")


WITHOUT_RECIPES = re.compile(
    r"^\s*(?:from|import)\s+(?:torchtitan|olmo_core|nanotron|trl|transformers)\b", re.MULTILINE
)
"""In scripts whose functions are named like Megatron Bridge's recipes."""


def of_python(text: str, function: str = "", path: Path | None = None) -> dict[str, Any]:
    """Return the values of a script that calls a recipe of NeMo or Megatron Bridge, or of a configuration."""
    if not function and not WITHOUT_RECIPES.search(text):
        with suppress(NoRecipeError):
            return script_values(text)
    return python_values(text, function, path)


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

KINDS = {".toml": "TOML", ".json": "JSON", ".yaml": "YAML", ".yml": "YAML"}

LOADERS: Mapping[str, Callable[[str], Any]] = {
    "TOML": tomllib.loads,
    "JSON": json.loads,
    "YAML": partial(yaml.load, Loader=_OwnYaml),  # a SafeLoader: builds plain values alone
}


COMMENTED = re.compile(r"^#[# ]*(tune run .+)$", re.MULTILINE)
"""The command that starts a torchtune recipe, which its file has in a comment."""


def _tree(kind: str, text: str) -> dict[str, Any]:
    """Return the values of TOML, JSON or YAML; raises ValueError with where it is none."""
    try:
        tree = LOADERS[kind](text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON at line {error.lineno}, column {error.colno}: {error.msg}") from error
    except yaml.MarkedYAMLError as error:
        at = f" at line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ValueError(f"not YAML{at}: {error.problem}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"not {kind}: {' '.join(str(error).split())}") from error
    if not isinstance(tree, dict) or not tree:
        raise ValueError(f"its {kind} is no mapping of keys to values")
    command = COMMENTED.search(text) if kind == "YAML" else None
    return flattened(tree) | ({"launcher.comment": command[1]} if command else {})
