"""The KEY=VALUE arguments of the command line, in Hydra's grammar, applied to a composed config."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import (
    BooleanNode,
    DictConfig,
    FloatNode,
    IntegerNode,
    ListConfig,
    Node,
    OmegaConf,
    StringNode,
    open_dict,
)
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from harness.config.schema import NOT_IN_YAML
from harness.config.validation import ConfigError, describe, refuse_unknown, shown, unknown

WORKLOADS = ["suite", "workloads"]  # path of what `+` may add to and `~` may leave out of

OF_SUITE = (
    *("hf_defaults", "model", "optimizations", "sampling", "trace", "trace_defaults", "workload_from"),
    "workloads",
)
"""What a command may change of a suite; the rest decides what its results mean."""

MEANT = {"model": "suite.workload_from", "workload_from": "suite.workload_from", "device": "hardware"}
"""Keys of harness.fit and short forms, and which keys do the same here."""


def parse(words: Sequence[str]) -> list[Override]:
    """Return the overrides of the command line, in Hydra's grammar; raises ConfigError."""
    parser = OverridesParser.create()
    overrides = []
    for word in words:
        try:
            override = parser.parse_override(word)
        except HydraException as error:
            detail = f" ({first_line(error)})" if "=" in word else ""
            raise ConfigError(f"{word!r}: expected KEY=VALUE{detail}") from None
        except (ValueError, RecursionError):  # of Python, for a number of 5,000 digits or as many brackets
            raise ConfigError(f"{word}: expected a shorter value") from None
        key = override.key_or_group
        path = key.replace("/", ".").split(".")
        if override.is_sweep_override():
            use = "suite=all, or one command for each" if key == "suite" else "one command for each"
            if key in ("only", "techniques", "workloads"):
                use = f"{key}=[{word.partition('=')[2]}]"
            raise ConfigError(f"{word}: expected one value, not several choices: use {use}")
        if path[0] == "hydra":
            raise ConfigError(
                f"{key}: Hydra composes the configuration and runs nothing; results go to out=FOLDER"
            )
        if override.package is not None:
            raise ConfigError(f"{word}: where a group goes is fixed; use {key}=NAME")
        if override.is_delete() and path[:-1] != WORKLOADS:
            raise ConfigError(f"{word}: only a workload can be left out, by ~suite.workloads.NAME")
        if "claims" in path:
            raise ConfigError(f"{key}: claims are read-only; they quote the paper")
        overrides.append(override)
    return overrides


def apply_override(config: DictConfig, override: Override) -> None:
    """Apply one KEY=VALUE to the config; an unknown key is refused by name.

    `+suite.workloads.NAME={...}` adds a workload, `~suite.workloads.NAME` removes one.
    """
    key, value = override.key_or_group, override.value()
    holder: Any = config
    if key.startswith("suite.sampling"):
        if not config.suite.interleave:
            raise ConfigError(f"{key}: the cells of this suite are not timed together, so nothing is sampled")
        if field := config.suite.rounds_field:
            raise ConfigError(f"{key}: here suite.workloads.NAME.{field} says how many rounds")
    *path, leaf = key.split(".")
    if path[:1] == ["suite"] and (own := [*path, leaf][1]) in config.suite and own not in OF_SUITE:
        allowed = ", ".join(f"suite.{one}" for one in OF_SUITE)
        raise ConfigError(f"{key}: fixed by the suite; a command may change {allowed} and repeats")
    adds = path == WORKLOADS and (override.is_add() or override.is_force_add())
    for depth, part in enumerate(path):
        if not isinstance(holder, DictConfig) or part not in holder:
            raise unknown(".".join(path[: depth + 1]), part, keys_of(holder))
        holder = holder[part]
    if holder is config and leaf not in holder:
        field = "hf_defaults" if config.suite.workload_from else "workloads.NAME"
        of_workload = f"suite.{field}.{leaf}" if leaf in config.suite.fields else ""
        raise unknown_key(override, [*keys_of(config), "from_results", "budget_min"], of_workload)
    if path == WORKLOADS and leaf not in holder and isinstance(value, dict) and not adds:
        names = ", ".join(keys_of(holder))
        raise ConfigError(f"{key}: no such workload; to add one: +{key}={{...}}; allowed: {names}")
    if not isinstance(holder, DictConfig) or (leaf not in holder and not adds):
        raise unknown(key, leaf, keys_of(holder))
    if override.is_add() and not adds:
        word = str(override.input_line)
        raise ConfigError(f"{word}: {key} exists already: use {word.removeprefix('+')}")
    if path == WORKLOADS and isinstance(value, dict):
        refuse_unknown(key, value, keys_of(config.suite.fields))
    if isinstance(OmegaConf.select(config, key), ListConfig) and not isinstance(value, list):
        if not isinstance(value, str):
            raise ConfigError(f"{key}={shown(value)}: expected a list, as in {key}=[a,b]")
        value = [value]
    try:
        if override.is_delete():
            _leave_out(config.suite, leaf)
        else:
            OmegaConf.update(config, key, value, merge=True, force_add=adds)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{key}={shown(value)}: {_expected(holder, key) or first_line(error)}") from None


def unknown_key(override: Override, known: Iterable[str], field: str = "") -> ConfigError:
    """Return the error for a key that a run does not have, with the one that was meant.

    `field`: the key of a workload's field of that name, "" for none.
    """
    key = override.key_or_group
    meant = [one for one in (MEANT.get(key, ""), field) if one]
    if not meant:
        return unknown(key, key.partition(".")[0], known)
    what = "no such name" if key in MEANT else "is a field of a workload"
    return ConfigError(
        f"{key}: {what}; use " + " or ".join(f"{one}={shown(override.value())}" for one in meant)
    )


def _leave_out(suite: DictConfig, workload: str) -> None:
    """Remove a workload, also from the lists of what others need; and what then replaces no other."""
    with open_dict(suite):
        del suite.workloads[workload]
        suite.reference_workloads.pop(workload, None)
        suite.slow_bf16_workloads.pop(workload, None)
        for smaller, larger in list(suite.slow_bf16_workloads.items()):
            if list(larger) == [workload]:
                _leave_out(suite, smaller)
            else:
                suite.slow_bf16_workloads[smaller] = [name for name in larger if name != workload]


def _expected(holder: DictConfig, key: str) -> str:
    """Return what a key of the schema allows, in words."""
    node = holder._get_node(key.rpartition(".")[2])
    if isinstance(node, DictConfig):
        return f"expected {key}.NAME=VALUE; names: {', '.join(keys_of(node)) or 'none'}"
    return _kind(node)


def refuse_kinds(where: str, holder: DictConfig, given: Mapping[str, Any]) -> None:
    """Raise ConfigError where a value of a YAML is not of the kind that its key has in `holder`."""
    for key, value in given.items():
        node = holder._get_node(key) if key in holder else None
        if isinstance(node, DictConfig) and isinstance(value, Mapping):
            refuse_kinds(f"{where}{key}.", node, value)
        elif node is not None:
            try:
                OmegaConf.update(holder, key, value, merge=True)
            except OmegaConfBaseException:
                expected = "expected KEY: VALUE lines" if isinstance(node, DictConfig) else _kind(node)
                raise ConfigError(f"{where}{key}={shown(value)}: {expected}") from None


def _kind(node: Any) -> str:
    """Return what kind of value a key of the schema has, in words; "" where any is allowed."""
    if isinstance(node, ListConfig):
        return "expected a list"
    kinds = {IntegerNode: "int", FloatNode: "float", BooleanNode: "bool", StringNode: "str"}
    kind = next((word for of, word in kinds.items() if isinstance(node, of)), None)
    optional = isinstance(node, Node) and node._is_optional()
    return f"expected {describe({'type': kind, 'optional': optional})}" if kind else ""


def keys_of(node: Any) -> list[str]:
    """Return the keys of a node of the config, none where it is not a mapping."""
    return [str(k) for k in node] if isinstance(node, DictConfig) else []


def composition_error(error: Exception) -> str:
    """Return in one line why Hydra could not compose YAML files: the file and its line, or the key."""
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        return f"{mark.name}:{mark.line + 1}: {getattr(error, 'problem', '') or first_line(error)}"
    cause = error.__context__
    key = re.search(r"full_key: (\S+)", str(error))
    if isinstance(cause, ConfigKeyError) and key and is_dataclass(cause.object_type):
        allowed = [one.name for one in fields(cause.object_type) if one.metadata != NOT_IN_YAML]
        return str(unknown(key[1], key[1].rpartition(".")[2], allowed))
    return " ".join(str(error).split("\n")[:2])


def first_line(error: Exception) -> str:
    """Return a library exception's message in one line."""
    return " ".join(str(error).split("\n")[0].split()) or type(error).__name__
