"""What a command prints that runs nothing: lists, the configuration, and the words that a shell completes."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap
from typing import Any, cast

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harness.commands.command_line import SHOWN, VALUES
from harness.config import techniques
from harness.config.code_fingerprint import ROOT, parsed
from harness.config.optimizations import CONF, code_of, question_of, read_yaml, suites_with
from harness.config.overrides import first_line, keys_of
from harness.config.protocols import SuiteCode, function_of, optimization_file
from harness.config.run import GROUPS, Choice, choose, compose_run, groups_of, load_suite, names
from harness.config.schema import RunSchema
from harness.config.validation import ConfigError, by_key, describe, key_and_value, shown, unknown
from harness.units import human

WHAT = ("suites", "workloads", "variants", "techniques", "hardware", "executors")

WIDTH = 110
"""Columns where there is no terminal. Longer lines are cut, those of techniques wrapped."""


def list_lines(words: Sequence[str]) -> Iterator[str]:
    """Yield a line per listed item: all suites without a word, the content of a suite with one."""
    what = [word for word in words if "=" not in word]
    given = dict(by_key(words))
    suite = given.pop("suite", "")
    for word in what:
        if word not in WHAT:
            raise unknown(f"list {word}", word, WHAT)
    if given:
        raise ConfigError(f"{next(iter(given))}: list takes suite=NAME alone")
    if suite and suite not in names("suite"):
        raise unknown(f"suite={suite}", suite, names("suite"))
    columns = get_terminal_size((WIDTH, 24)).columns
    kinds = what or (["workloads", "variants"] if suite else ["suites", "hardware", "executors"])
    for number, kind in enumerate(kinds):
        if len(kinds) > 1:
            yield from ["", f"{kind}:"] if number else [f"{kind}:"]
        rows = list(_rows(kind, [suite] if suite else names("suite")))
        width = max((len(name) for name, _ in rows), default=0)
        for name, text in rows:
            parts = wrap(text, max(columns - width - 2, 20)) if kind == "techniques" else [text]
            for part, label in zip_longest(parts, [name], fillvalue=""):
                line = f"{label:{width}}  {part}".rstrip()
                yield line if len(line) <= columns else f"{line[: columns - 1]}…"


def _rows(kind: str, suites: Sequence[str]) -> Iterator[tuple[str, str]]:
    match kind:
        case "hardware":
            yield from ((name, _device(CONF / f"hardware/{name}.yaml")) for name in names("hardware"))
        case "executors":  # a file's first comment says what it is
            texts = {name: (CONF / f"executor/{name}.yaml").read_text() for name in names("executor")}
            yield from ((name, text.removeprefix("# ").partition("\n")[0]) for name, text in texts.items())
        case "techniques":
            yield from (line for name in techniques.names() for line in technique_lines(name))
        case "suites":
            yield from ((suite, question_of(suite)) for suite in suites)
    for suite in suites if kind in ("workloads", "variants") else ():
        run, code = load_suite(suite, {}, ()), code_of(suite)
        if kind == "workloads":
            rows = [(name, str(one.get("source", ""))) for name, one in run.workloads.items()]
        else:
            rows = [(one.name, one.title or _about(code, one.module)) for one in run.variants]
        yield from ((f"{suite} {name}" if len(suites) > 1 else name, text) for name, text in rows)


def _about(code: SuiteCode, name: str) -> str:
    one, file = function_of(code, name), optimization_file(code, name)
    text = one.function.__doc__ if one else file and ast.get_docstring(parsed(file))
    return (text or "").partition("\n")[0]


def technique_lines(name: str) -> Iterator[tuple[str, str]]:
    """Yield a technique, then each of its settings with the default and what is allowed."""
    yield name, techniques.declared()[name].about
    for setting, allowed in techniques.settings_of(name).items():
        default = allowed.get("default", "...")
        value = default if isinstance(default, str) else shown(default)
        stated = allowed.keys() & {"type", "one_of"}
        see = techniques.file_of(name).relative_to(ROOT)
        yield f"  {setting}={value}", describe(allowed) if stated else f"see {see}"


def _device(file: Path) -> str:
    sheet = read_yaml(file)
    memory_B = float(sheet["memory_B"])
    usable_B = float(sheet.get("usable_memory_B") or memory_B)
    parts = [f"{memory_B / 1e9:g} GB ({usable_B / 2**30:.1f} GiB usable)"]
    rates = (
        ("bf16 ", sheet.get("matmul_FLOP_per_s", {}).get("bf16"), "FLOP/s"),
        ("", sheet.get("memory_bandwidth_B_per_s"), "B/s"),
        ("link ", sheet.get("link_B_per_s"), "B/s"),
    )
    parts += [f"{of}{human(float(rate), unit)}" for of, rate, unit in rates if rate]
    return f"{sheet['name']}: {', '.join(parts)}"


def config_yaml(words: Sequence[str], package: str = "", resolve: bool = False) -> str:
    """Return the configuration that the words mean as YAML, or the part of it at `package`.

    It is checked as a run's is; raises ConfigError.
    """
    choice = _one_suite(words)
    load_suite(*choice)
    config: Any = compose_run(*choice)
    for depth, part in enumerate(path := package.split(".") if package else []):
        if not isinstance(config, DictConfig) or part not in config:
            raise unknown(f"--package {'.'.join(path[: depth + 1])}", part, keys_of(config))
        config = config[part]
    header = f"# @package {package}\n" if package else ""
    if not isinstance(config, DictConfig):
        raise ConfigError(f"--package {package}: a value, not a part of the configuration")
    try:
        return header + OmegaConf.to_yaml(config, resolve=resolve)
    except OmegaConfBaseException as error:
        raise ConfigError(first_line(error)) from None


def info_lines(words: Sequence[str], kind: str) -> Iterator[str]:
    """Yield what Hydra's `--info` would: the files that the configuration is composed of, and from where."""
    choice = _one_suite(words)
    if kind in ("searchpath", "all"):
        schema = "structured://harness.config_schema  (run_schema: names and types)"
        yield from ("# Config search path", f"{CONF}", schema)
    if kind in ("defaults", "all"):
        yield "# Defaults list: file, package"
        yield from (f"conf/{path}.yaml  {package or '<root>'}" for path, package, _ in _defaults(choice))
    if kind in ("defaults-tree", "all"):
        yield from ("# Defaults tree", *_tree(_defaults(choice)))
    if kind in ("plugins", "all"):
        composes = "none: Hydra composes the configuration, the harness runs the cells (executor=NAME)"
        yield from ("# Plugins", composes)
    if kind in ("config", "all"):
        yield from ("# Config", config_yaml(words).rstrip())


def _one_suite(words: Sequence[str]) -> Choice:
    choice = choose(words)
    if choice.suite == "all":
        raise ConfigError("suite=all: a configuration is shown for one suite; name it")
    return choice


def _defaults(choice: Choice) -> list[tuple[str, str, str]]:
    """Return each file of the defaults list, with its package and the file that names it."""
    compose_run(choice.suite, choice.groups, ())  # registers the schema and the suite's optimizations
    groups = groups_of(choice.suite, choice.groups)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        defaults = loader.compute_defaults_list("config", groups, RunMode.RUN).defaults
    paths = [(str(one.config_path), str(one.package or ""), str(one.parent or "")) for one in defaults]
    return [one for one in paths if (CONF / f"{one[0]}.yaml").is_file()]


def _tree(defaults: Sequence[tuple[str, str, str]], parent: str = "config", depth: int = 0) -> Iterator[str]:
    """Yield the defaults as a tree; each suite's `every` includes the YAML files of its folder."""
    if not depth:
        yield "config"
    for path, _, named_by in defaults:
        if named_by.removesuffix("/every") == parent and path != parent:
            yield f"{'  ' * (depth + 1)}{path}"
            yield from _tree(defaults, path, depth + 1)


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


def completion_lines(value: str) -> list[str]:
    """Return what `--shell-completion VALUE` prints; a shell evaluates that of `install=`."""
    action, _, shell = value.partition("=")
    if action == "query":
        return choices(os.environ.get("COMP_LINE", ""))
    if action == "uninstall":
        return [REMOVAL]
    commands = " ".join(dict.fromkeys(["python", "python3", Path(sys.executable).name, sys.executable]))
    start = "autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    return [start + BASH.format(commands=commands)]


def choices(line: str) -> list[str]:
    """Return the words that may stand where the last word of `line` has begun, each in full."""
    before, _, word = line.rpartition(" ")
    typed = before.split()
    every: Sequence[str] = SHOWN
    if typed and typed[-1] in VALUES:
        every = VALUES[typed[-1]]
    elif "list" in typed:
        every = [*WHAT, *(f"suite={name}" for name in names("suite"))]
    elif not word.startswith("-"):
        every = _words(word, by_key(typed))
    return sorted(one for one in every if one.startswith(word))


def _words(word: str, typed: Mapping[str, str]) -> list[str]:
    key, value = key_and_value(word.lstrip("+~"))
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
        return _techniques() if suite in suites_with("takes_techniques") else []
    run = load_suite(suite, {}, ())
    if key == "workloads":
        return list(run.workloads)
    return list(dict.fromkeys(name for one in run.variants for name in (one.module, one.name)))


def _techniques() -> list[str]:
    """Return each technique, and with each value among whose choices it is."""
    found = []
    for name in techniques.names():
        values = [str(one) for of in techniques.settings_of(name).values() for one in of.get("one_of", ())]
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
