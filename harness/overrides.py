"""The words KEY=VALUE of the command line, in Hydra's grammar, and how each changes a composed config."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harness.validation import ConfigError, unknown


def parse(words: Sequence[str]) -> list[Override]:
    """The overrides that the words are, in Hydra's grammar; raises ConfigError."""
    parser = OverridesParser.create()
    found = []
    for word in words:
        try:
            override = parser.parse_override(word)
        except HydraException as error:
            raise ConfigError(f"{word!r}: not KEY=VALUE ({first_line(error)})") from None
        if override.is_sweep_override():
            raise ConfigError(f"{word!r}: a list of choices; the harness makes the matrix, use only=[a,b]")
        if "claims" in override.key_or_group.split("."):
            raise ConfigError(f"{override.key_or_group}: claims are read-only; they are the paper's figures")
        found.append(override)
    return found


def apply_override(config: DictConfig, override: Override) -> None:
    """One KEY=VALUE onto the config; a key that is not there is refused by name.

    `+suite.workloads.NAME={...}` brings a workload, `~suite.workloads.NAME` leaves one out.
    """
    key, value = override.key_or_group, override.value()
    holder: Any = config
    if key in ("suite.interleave", "suite.rounds_field"):
        raise ConfigError(f"{key}: a suite says itself whether its cells are timed together, and how often")
    if key.startswith("suite.sampling") and config.suite.rounds_field:
        raise ConfigError(
            f"{key}: here suite.workloads.NAME.{config.suite.rounds_field} says how many rounds"
        )
    *path, leaf = key.split(".")
    if (override.is_add() or override.is_delete()) and path != ["suite", "workloads"]:
        raise ConfigError(
            f"{override.input_line}: + and ~ bring or leave out suite.workloads.NAME, nothing else"
        )
    for depth, part in enumerate(path):
        if not isinstance(holder, DictConfig) or part not in holder:
            raise unknown(".".join(path[: depth + 1]), part, keys_of(holder))
        holder = holder[part]
    if not isinstance(holder, DictConfig) or (leaf not in holder and not override.is_add()):
        raise unknown(key, leaf, [*keys_of(holder), *(["from_results"] if holder is config else [])])
    if isinstance(OmegaConf.select(config, key), ListConfig) and not isinstance(value, list):
        raise ConfigError(f"{key}={value!r}: expected a list, as in {key}=[{value}]")
    try:
        if override.is_delete():
            OmegaConf.set_struct(holder, False)
            del holder[leaf]
        else:
            OmegaConf.update(config, key, value, merge=True, force_add=override.is_add())
    except OmegaConfBaseException as error:
        raise ConfigError(f"{key}: {first_line(error)}") from None


def keys_of(node: Any) -> list[str]:
    """The keys of a node of the config, none where it is no mapping."""
    return [str(k) for k in node] if isinstance(node, DictConfig) else []


def first_line(error: Exception) -> str:
    """What an exception of a library says, in one line."""
    return " ".join(str(error).split("\n")[0].split()) or type(error).__name__
