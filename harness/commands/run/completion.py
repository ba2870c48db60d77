"""What a shell may complete in `python -m harness ...`: suites, workloads, variants, and every key."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from harness.commands.listing import WHAT
from harness.commands.run.command_line import SHOWN, VALUES
from harness.config.run import GROUPS, compose_run, load_suite, names
from harness.config.schema import RunSchema
from harness.config.validation import ConfigError
from harness.config.variants import techniques
from harness.config.variants.optimizations import suites_with_techniques
from harness.config.words import by_key, parts

OTHERS = {"suite": ["all"]}

BASH = """\
# eval "$(python -m harness --shell-completion install=bash)"; `python` keeps completing files elsewhere.
_harness_completion() {{
    local line="${{COMP_LINE:0:COMP_POINT}}" word
    [[ "$line" =~ -m[[:space:]]+harness[[:space:]] ]] || return
    word="${{line##*[[:space:]]}}"
    local IFS=$'\\n' choices
    choices=($(COMP_LINE="$line" "$1" -m harness --shell-completion query=bash 2>/dev/null))
    COMPREPLY=("${{choices[@]#"${{word%"$2"}}"}}")
}}
complete -o nospace -o default -F _harness_completion {commands}"""

REMOVAL = "complete -r python python3; unset -f _harness_completion"


def answer(value: str) -> list[str]:
    """Return what `--shell-completion VALUE` prints."""
    action, _, shell = value.partition("=")
    if action == "query":
        return choices(os.environ.get("COMP_LINE", ""))
    return [script(shell) if action == "install" else REMOVAL]


def script(shell: str) -> str:
    """Return what a shell is to evaluate so that it completes the harness's words."""
    commands = " ".join(dict.fromkeys(["python", "python3", Path(sys.executable).name, sys.executable]))
    start = "autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    return start + BASH.format(commands=commands)


def choices(line: str) -> list[str]:
    """Return the words that may stand where the last word of `line` has begun, each in full."""
    before, _, word = line.rpartition(" ")
    typed = before.split()
    if typed and typed[-1] in VALUES:
        return sorted(_beginning(word, VALUES[typed[-1]]))
    if "list" in typed:
        return sorted(_beginning(word, [*WHAT, *(f"suite={name}" for name in names("suite"))]))
    if word.startswith("-"):
        return sorted(_beginning(word, SHOWN))
    return sorted(_beginning(word, _words(word, by_key(typed))))


def _beginning(word: str, all_words: Any) -> list[str]:
    return [one for one in all_words if one.startswith(word)]


def _words(word: str, typed: Mapping[str, str]) -> list[str]:
    key, value = parts(word.lstrip("+~"))
    sign = word[: len(word) - len(word.lstrip("+~"))]
    suite = typed.get("suite", "")
    config = _config(suite, typed.get("executor", ""))
    if value is None:
        matches = [f"{sign}{one}" for one in _keys(config, key)]
        return matches if "." in key else [*matches, "list", "from_results=", "preset="]
    if key == "preset":
        return [f"preset={name}" for name in names("preset")]
    if key in GROUPS:
        return [f"{sign}{key}={name}" for name in [*names(key), *OTHERS.get(key, [])]]
    if key in ("only", "techniques", "workloads") and suite in names("suite"):
        head, _, last = value.rpartition(",") if "," in value else ("", "", value.removeprefix("["))
        head = f"{head}," if head else "["
        return [f"{key}={head}{one}" for one in _names(suite, key) if one.startswith(last)]
    return [f"{sign}{key}={one}" for one in _values(config, key)]


def _config(suite: str, executor: str) -> DictConfig:
    """Return the configuration of a suite with the executor's keys, or that of none where none is named."""
    if suite in names("suite"):
        try:
            return compose_run(suite, {"executor": executor} if executor in names("executor") else {}, ())
        except ConfigError:
            pass
    return cast("DictConfig", OmegaConf.structured(RunSchema))


def _names(suite: str, key: str) -> list[str]:
    """Return the workloads, the techniques with their choices, or the optimizations with their variants."""
    if key == "techniques":
        return _techniques() if suite in suites_with_techniques() else []
    run = load_suite(suite, {}, ())
    if key == "workloads":
        return list(run.workloads)
    return list(dict.fromkeys(name for one in run.variants for name in (one.module, one.name)))


def _techniques() -> list[str]:
    """Return each technique, and with each value among whose choices it is."""
    found = []
    for name in techniques.names():
        fields = techniques.settings_of(name).values()
        values = [str(value) for field in fields for value in field.get("one_of", ())]
        found += [name, *(f"{name}.{value}" for value in values if values.count(value) == 1)]
    return found


def _values(config: DictConfig, key: str) -> list[str]:
    """Return the values that a key may have, where they are few: of a switch, or of a workload's field."""
    if isinstance(OmegaConf.select(config, key), bool):
        return ["true", "false"]
    field = config.suite.fields.get(key.rpartition(".")[2], {}) if key.startswith("suite.workloads.") else {}
    return [str(one) for one in field.get("one_of", [])]


def _keys(config: DictConfig, key: str) -> list[str]:
    """Return the keys next to the last part of `key`: `NAME=` of a value or a group, `NAME.` of a part."""
    path = key.split(".")[:-1]
    node = OmegaConf.select(config, ".".join(path)) if path else config
    if not isinstance(node, DictConfig):
        return []
    keys = []
    for name in node:
        key = ".".join([*path, str(name)])
        part = not OmegaConf.is_missing(node, name) and isinstance(node[name], DictConfig)
        keys += [f"{key}="] if key in GROUPS or not part else []
        keys += [f"{key}."] if part else []
    return keys
