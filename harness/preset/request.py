"""`preset=NAME` and its other words, and conf/preset/<name>.yaml: what a preset may run, as checked data.

`preset=host`, or `suite=all` with a budget, asks for what answers most claims here, with or without a GPU.
A preset is no group of Hydra's: it composes no configuration, but chooses suites, which Hydra composes. What
they run follows from the claims: see `harness.preset.programme`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import yaml

from harness.bounds import Bounds
from harness.config.declarations import fields_of
from harness.config.run import names
from harness.config.validation import ConfigError, as_mapping, check_fields, check_value, unknown
from harness.config.variants.optimizations import CONF, read_yaml
from harness.config.words import parts

ANY = "any"
"""The device of a preset whose values are worth having on any machine."""


@dataclass(frozen=True)
class PresetRequest:
    """What a command with `preset=` asks for: the words that it may have."""

    preset: str
    budget_min: Annotated[float, Bounds(above=0)] = 60.0
    out: str = ""
    plan: bool = False

    @property
    def folder(self) -> Path:
        """Return the folder of the results."""
        return Path(self.out or f"results/{self.preset}")


@dataclass(frozen=True)
class SuitePreset:
    """What the claims do not state of one suite on the preset's device."""

    overrides: list[Any] = field(default_factory=list)  # KEY=VALUE, as on the command line
    first: list[Any] = field(default_factory=list)  # workloads that come before all, with every variant
    gpus_field: str = ""  # a workload's field with the GPUs that it needs; "": it needs one
    condition_fields: dict[str, Any] = field(default_factory=dict)  # a claim's condition: a workload's field
    read_when_run: list[Any] = field(default_factory=list)  # conditions that only a run finds out
    measured_methods: list[Any] = field(default_factory=list)  # where others simulate; empty: all measure
    least_device_memory_B: dict[str, Any] = field(default_factory=dict)  # by workload
    least_host_memory_B: dict[str, Any] = field(default_factory=dict)
    unavailable_variants: dict[str, Any] = field(default_factory=dict)  # and why


@dataclass(frozen=True)
class Preset:
    """One file of conf/preset/."""

    device: str  # the condition `device` of its claims; `ANY`: the claims that conf/answers.yaml names
    report_s: Annotated[float, Bounds(at_least=0)]  # per suite, kept for its report at the end
    suites: dict[str, Any]  # a `SuitePreset` each
    other_suites: dict[str, Any] = field(default_factory=dict)  # one for every suite that is not named
    unavailable_suites: dict[str, Any] = field(default_factory=dict)  # and why


def requested(words: Sequence[str]) -> PresetRequest:
    """Return what the words of a command ask for; raises ConfigError."""
    allowed, given = fields_of(PresetRequest), dict[str, Any]()
    for word in words:
        key, value = parts(word)
        if value is None or key not in allowed:
            raise ConfigError(f"{word}: preset chooses what is run; allowed with it: {', '.join(allowed)}")
        try:
            given[key] = value if allowed[key]["type"] == "str" else yaml.safe_load(value)
        except yaml.YAMLError:
            given[key] = value
    if given["preset"] not in names("preset"):
        raise unknown(f"preset={given['preset']}", given["preset"], names("preset"))
    return PresetRequest(**{name: check_value(name, value, allowed[name]) for name, value in given.items()})


def load_preset(name: str, conf: Path = CONF) -> Preset:
    """Return conf/preset/<name>.yaml; raises ConfigError naming the key."""
    where = f"conf/preset/{name}.yaml"
    data = check_fields(where, read_yaml(conf / "preset" / f"{name}.yaml"), fields_of(Preset))
    every = names("suite")
    for suite in (*data["suites"], *data["unavailable_suites"]):
        if suite not in every:
            raise unknown(f"{where}: {suite}", str(suite), every)
    given: Mapping[str, Any] = data["suites"]
    if data["other_suites"]:
        given = {suite: given.get(suite, data["other_suites"]) for suite in every}
    suites = {}
    for suite, own in given.items():
        place = f"{where}.suites.{suite}"
        suites[suite] = SuitePreset(**check_fields(place, as_mapping(place, own), fields_of(SuitePreset)))
    return Preset(**{**data, "suites": suites})
