"""`preset=NAME` and its other words, and conf/preset/<name>.yaml: what a preset may run, as checked data.

`preset=host`, or `suite=all` with a budget, asks for what answers most claims here, with or without a GPU.
A preset is no group of Hydra's: it composes no configuration, but chooses suites, which Hydra composes. What
they run follows from the claims: see `harness.preset.claim_coverage`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from harness.config.run import names
from harness.config.validation import ConfigError, Fields, as_mapping, check_fields, check_value, unknown
from harness.config.variants.optimizations import CONF, read_yaml
from harness.config.words import parts

ANY = "any"
"""The device of a preset whose values are worth having on any machine."""

FILE: Fields = {
    "device": {"type": "str"},
    "report_s": {"type": "float", "at_least": 0},
    "suites": {"type": "dict", "default": {}},
    "other_suites": {"type": "dict", "default": {}},
    "unavailable_suites": {"type": "dict", "default": {}},
}
_NAMES: Mapping[str, Any] = {"type": "list", "default": []}
_BY_NAME: Mapping[str, Any] = {"type": "dict", "default": {}}
SUITE: Fields = {
    "assumed_cell_s": {"type": "float", "above": 0},
    "assumed_cell_s_by_workload": _BY_NAME,
    "gpus_field": {"type": "str", "default": ""},
    "condition_fields": _BY_NAME,
    "read_when_run": _NAMES,
    "measured_methods": _NAMES,
    "least_device_memory_B": _BY_NAME,
    "least_host_memory_B": _BY_NAME,
    "unavailable_variants": _BY_NAME,
    "first": _NAMES,
    "overrides": _NAMES,
}
WORDS: Fields = {
    "preset": {"type": "str"},
    "budget_min": {"type": "float", "above": 0, "default": 60.0},
    "out": {"type": "str", "default": ""},
    "plan": {"type": "bool", "default": False},
}


class PresetRequest(NamedTuple):
    """What a command with `preset=` asks for."""

    preset: str
    budget_min: float
    out: Path
    plan_only: bool


@dataclass(frozen=True, slots=True)
class SuitePreset:
    """What the claims do not state of one suite on the preset's device."""

    assumed_cell_s: (
        float  # seconds per cell, its process's start included, where no run on such a GPU is known
    )
    assumed_cell_s_by_workload: Mapping[str, float]
    gpus_field: str  # a workload's field with the GPUs that it needs; "": it needs one
    condition_fields: Mapping[str, str]  # conditions of claims that a workload's field has the value of
    read_when_run: Sequence[str]  # conditions of claims that records have, and that only a run finds out
    measured_methods: Sequence[str]  # methods that measure, where others simulate; empty: all measure
    least_device_memory_B: Mapping[str, float]  # by workload
    least_host_memory_B: Mapping[str, float]
    unavailable_variants: Mapping[str, str]  # and why
    overrides: Sequence[str]  # KEY=VALUE, as on the command line
    first: Sequence[str] = ()  # workloads that are run before all others, with every variant


@dataclass(frozen=True, slots=True)
class Preset:
    """One file of conf/preset/."""

    name: str
    device: str  # the condition `device` of its claims
    report_s: float
    suites: Mapping[str, SuitePreset]  # with `other_suites` those that it names, and every other one
    unavailable_suites: Mapping[str, str]  # and why


def requested(words: Sequence[str]) -> PresetRequest:
    """Return what the words of a command ask for; raises ConfigError."""
    given: dict[str, Any] = {}
    for word in words:
        key, value = parts(word)
        if value is None or key not in WORDS:
            raise ConfigError(f"{word}: preset chooses what is run; allowed with it: {', '.join(WORDS)}")
        try:
            given[key] = value if WORDS[key]["type"] == "str" else yaml.safe_load(value)
        except yaml.YAMLError:
            given[key] = value
    preset = str(given["preset"])
    if preset not in names("preset"):
        raise unknown(f"preset={preset}", preset, names("preset"))
    checked = {name: field["default"] for name, field in WORDS.items() if "default" in field}
    checked |= {name: check_value(name, value, WORDS[name]) for name, value in given.items()}
    out = Path(checked["out"] or f"results/{preset}")
    return PresetRequest(preset, checked["budget_min"], out, checked["plan"])


def load_preset(name: str, conf: Path = CONF) -> Preset:
    """Return conf/preset/<name>.yaml; raises ConfigError naming the key."""
    where = f"conf/preset/{name}.yaml"
    data = check_fields(where, read_yaml(conf / "preset" / f"{name}.yaml"), FILE)
    every = names("suite")
    for suite in (*data["suites"], *data["unavailable_suites"]):
        if suite not in every:
            raise unknown(f"{where}: {suite}", str(suite), every)
    suites, given_suites = {}, dict(data["suites"])
    if data["other_suites"]:
        others = [suite for suite in every if suite not in data["unavailable_suites"]]
        given_suites = {suite: given_suites.get(suite, data["other_suites"]) for suite in others}
    for suite, given in given_suites.items():
        place = f"{where}.suites.{suite}"
        suites[suite] = SuitePreset(**check_fields(place, as_mapping(place, given), SUITE))
    return Preset(name, data["device"], data["report_s"], suites, data["unavailable_suites"])
