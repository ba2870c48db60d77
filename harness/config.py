"""Command line and conf/ to one checked `Run`; every mistake of the user's is a ConfigError in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple, cast

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harness.executors.start import automatic
from harness.hf_config import workload_from_file
from harness.optimizations import CONF, Variant, optimizations, variants, with_yaml
from harness.overrides import apply_override, first_line, parse
from harness.records import Limits, Sampling
from harness.validation import ConfigError, check_fields, check_relations, check_value, shown, unknown

GROUPS = ("suite", "executor", "hardware")


@dataclass
class LimitsSchema:
    """What one cell may take."""

    timeout_s: float = 600.0
    memory_B: float | None = None


@dataclass
class OptimizationSchema:
    """One optimization's YAML; see `harness.optimizations`.

    `fields` declares what `settings` allow. `techniques` are applied in order. A variant has settings of its
    own, and may have `title` and `techniques`.
    """

    title: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    techniques: list[Any] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)
    variants: dict[str, Any] = field(default_factory=dict)


@dataclass
class SamplingSchema:
    """How a timed suite samples: see `records.Sampling`."""

    rounds: int = 6
    target_ci_half_width: float = 0.01
    budget_s: float = 1.0


@dataclass
class SuiteSchema:
    """One suite's YAML."""

    question: str = ""
    baseline_title: str = "Baseline"
    baseline_again: bool = False  # also where cells are not interleaved
    isolate_if: str = ""
    interleave: bool = False
    rounds_field: str = (
        ""  # of suites timed together: the field that says how many rounds, neither more nor less
    )
    repeats: int = 1
    sampling: SamplingSchema = field(default_factory=SamplingSchema)
    size_fields: list[str] = field(default_factory=list)
    reference_workloads: list[str] = field(default_factory=list)
    workload_from: str | None = None
    hf_defaults: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    workloads: dict[str, Any] = field(default_factory=dict)
    slow_bf16_workloads: dict[str, Any] = field(default_factory=dict)
    optimizations: dict[str, OptimizationSchema] = field(default_factory=dict)


@dataclass
class HardwareSchema:
    """One device's datasheet."""

    name: str = MISSING
    memory_B: float = MISSING
    device: str = ""  # a pattern of the name that the driver reports
    matmul_FLOP_per_s: dict[str, float] = field(default_factory=dict)  # dense, by precision
    source: str = MISSING


@dataclass
class ExecutorSchema:
    """Where children run: conf/executor/<executor>.yaml names the module of harness/executors/."""

    workers: int = 1


@dataclass
class RunSchema:
    """conf/config.yaml."""

    suite: SuiteSchema = field(default_factory=SuiteSchema)
    executor: ExecutorSchema = field(default_factory=ExecutorSchema)
    hardware: HardwareSchema = field(default_factory=HardwareSchema)
    only: list[str] = field(default_factory=list)
    workloads: list[str] = field(default_factory=list)
    repeats: int | None = None
    seed: int = 0
    out: str | None = None
    plan: bool = False
    limits: LimitsSchema = field(default_factory=LimitsSchema)


@dataclass(frozen=True, slots=True)
class Run:
    """Everything that one sweep of one suite is told, checked."""

    suite: str
    question: str
    workloads: Mapping[str, Mapping[str, Any]]
    variants: tuple[Variant, ...]
    isolate_if: str
    sampling: Sampling | None  # where cells are timed together
    rounds_field: str  # a field of the workloads that says how many rounds; "": `sampling` does
    size_fields: tuple[str, ...]
    repeats: int
    seed: int
    limits: Limits
    executor: str
    workers: int
    out: Path
    reference_workloads: tuple[str, ...] = ()  # measured of the baseline alone: bounds of the others
    plan_only: bool = False  # print the plan, run nothing
    slow_bf16_workloads: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict
    )  # these where bf16 is slow


def names(group: str) -> list[str]:
    """The options of a group: the YAML files of conf/<group>/."""
    return sorted(p.stem for p in (CONF / group).glob("*.yaml"))


class Choice(NamedTuple):
    """What the words of a command choose: a suite or "all", options of other groups, values to change."""

    suite: str
    groups: Mapping[str, str]
    values: Sequence[Override]


def choose(words: Sequence[str]) -> Choice:
    """Return what the words choose, each name checked; raises ConfigError."""
    for word in words:
        if "=" not in word and (near := get_close_matches(word, names("suite"), n=1)):
            raise ConfigError(f"{word}: expected KEY=VALUE; did you mean suite={near[0]}?")
    overrides = parse(words)
    groups = {"executor": automatic()}
    groups |= {o.key_or_group: str(o.value()) for o in overrides if o.key_or_group in GROUPS}
    values = [o for o in overrides if o.key_or_group not in GROUPS]
    suite = groups.pop("suite", None)
    if suite is None:
        raise ConfigError(f"suite: missing; say suite=NAME, one of {', '.join([*names('suite'), 'all'])}")
    for group, name in groups.items():
        if name not in names(group):
            raise unknown(f"{group}={name}", name, names(group))
    if groups["executor"] != automatic() != "local":
        raise ConfigError(
            f"executor={groups['executor']}: a launcher started this process with others: leave executor out"
        )
    if suite not in [*names("suite"), "all"]:
        raise unknown(f"suite={suite}", suite, [*names("suite"), "all"])
    return Choice(suite, groups, values)


def load(words: Sequence[str]) -> list[Run]:
    """Return one checked `Run` per suite (several for `suite=all`); raises ConfigError."""
    suite, groups, values = choose(words)
    if suite != "all":
        return [load_suite(suite, groups, values)]
    special = [
        o.key_or_group for o in values if o.key_or_group.split(".")[0] in ("suite", "only", "workloads")
    ]
    if special:
        raise ConfigError(
            f"{special[0]}: suite=all runs every suite whole; name one suite to choose within it"
        )
    runs = [load_suite(name, groups, values) for name in names("suite")]
    below = any(override.key_or_group == "out" for override in values)
    return [replace(run, out=run.out / run.suite) if below else run for run in runs]


def load_suite(name: str, groups: Mapping[str, str], values: Sequence[Override]) -> Run:
    """Return the checked run of one suite."""
    config = compose_run(name, groups, values)
    try:
        plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key or 'conf/'}: {first_line(error)}") from None
    return checked(cast("dict[str, Any]", plain), name, groups.get("executor", "local"))


def compose_run(name: str, groups: Mapping[str, str], values: Sequence[Override]) -> DictConfig:
    """Return conf/ composed for one suite, with `values` applied and not yet checked."""
    config = compose_suite(name, groups)
    fill_defaults(config)
    for override in values:
        apply_override(config, override)
        if override.is_add() or override.is_force_add():
            fill_defaults(config)
    return config


def compose_suite(name: str, chosen: Mapping[str, str]) -> DictConfig:
    """conf/ as it stands, composed for one suite; a new optimization's YAML is taken in by its presence."""
    store = ConfigStore.instance()
    store.store(name="run_schema", node=RunSchema)
    every = [f"{o}@optimizations.{o}" for o in with_yaml(name)]
    store.store(group=f"suite/{name}", name="every", node={"defaults": every})
    groups = [f"suite={name}", *(f"{group}={option}" for group, option in chosen.items())]
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = compose("config", groups)
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        raise ConfigError(f"conf/: {first_line(error)}") from None
    for one in optimizations(name):  # those with a module alone
        if one not in config.suite.optimizations:
            config.suite.optimizations[one] = OmegaConf.structured(OptimizationSchema)
    return config


def fill_defaults(config: DictConfig) -> None:
    """Let every workload have every field that has a default, so that a word may change it."""
    fields = config.suite.fields
    for name, workload in config.suite.workloads.items():
        if not isinstance(workload, DictConfig):
            continue  # refused later, by name
        given = {field: spec["default"] for field, spec in fields.items() if "default" in spec}
        config.suite.workloads[name] = {**given, **workload}


def checked(config: Mapping[str, Any], name: str, executor: str) -> Run:
    """The run that a composed config means; raises ConfigError on any value that is not allowed."""
    suite, limits = config["suite"], config["limits"]
    check_value("limits.timeout_s", limits["timeout_s"], {"type": "float", "at_least": 0.1})
    check_value("limits.memory_B", limits["memory_B"], {"type": "float", "optional": True, "at_least": 1})
    check_value("seed", config["seed"], {"type": "int", "at_least": 0})
    check_names(suite)
    repeats = suite["repeats"] if config["repeats"] is None else config["repeats"]
    check_value("repeats", repeats, {"type": "int", "at_least": 1})
    for name_, low in (("rounds", 2), ("target_ci_half_width", 1e-4), ("budget_s", 0.01)):
        kind = "int" if name_ == "rounds" else "float"
        check_value(f"suite.sampling.{name_}", suite["sampling"][name_], {"type": kind, "at_least": low})
    check_value("executor.workers", config["executor"]["workers"], {"type": "int", "at_least": 1})
    check_value("hardware.memory_B", config["hardware"]["memory_B"], {"type": "float", "at_least": 1})
    picked = workloads(suite, config["workloads"], config["hardware"]["memory_B"])
    return Run(
        suite=name,
        question=suite["question"],
        workloads=picked,
        variants=variants(name, suite, config["only"]),
        isolate_if=suite["isolate_if"],
        sampling=Sampling(**suite["sampling"]) if suite["interleave"] else None,
        rounds_field=suite["rounds_field"],
        size_fields=tuple(suite["size_fields"]),
        repeats=repeats,
        seed=config["seed"],
        limits=Limits(limits["timeout_s"], None if limits["memory_B"] is None else int(limits["memory_B"])),
        executor=executor,
        workers=1 if suite["interleave"] else config["executor"]["workers"],  # timed: nothing beside it
        out=Path(config["out"] or f"results/{name}"),
        reference_workloads=tuple(suite["reference_workloads"]),
        plan_only=config["plan"],
        slow_bf16_workloads=slow_bf16_workloads(suite, picked),
    )


def workloads(
    suite: Mapping[str, Any], only: Sequence[str], device_memory_B: float
) -> dict[str, Mapping[str, Any]]:
    """The workloads asked for, each field checked; one alone where a file names the model."""
    fields = suite["fields"]
    if suite["workload_from"] is not None:
        return from_file(suite, device_memory_B)
    found: dict[str, Any] = suite["workloads"]
    for name in only:
        if name not in found:
            raise unknown(f"workloads=[{name}]", name, found)
    picked: dict[str, Mapping[str, Any]] = {}
    for name in [n for n in found if not only or n in only or n in suite["reference_workloads"]]:
        where = f"suite.workloads.{name}"
        if not isinstance(found[name], dict):
            raise ConfigError(f"{where}={shown(found[name])}: expected the fields of a workload")
        picked[name] = check_fields(where, found[name], fields)
        check_relations(where, picked[name], fields)
    return picked


def slow_bf16_workloads(
    suite: Mapping[str, Any], picked: Mapping[str, Mapping[str, Any]]
) -> dict[str, Mapping[str, Any]]:
    """Return what replaces some of the workloads where bf16 products are slow, each field checked."""
    found: dict[str, Mapping[str, Any]] = {}
    for name, changes in suite["slow_bf16_workloads"].items():
        where = f"suite.slow_bf16_workloads.{name}"
        if name not in suite["workloads"]:
            raise unknown(where, name, suite["workloads"])
        if name in picked:
            found[name] = check_fields(where, {**picked[name], **changes}, suite["fields"])
            check_relations(where, found[name], suite["fields"])
    return found


def check_names(suite: Mapping[str, Any]) -> None:
    """Refuse names of workloads and fields that the suite does not have."""
    for name in suite["reference_workloads"]:
        if name not in suite["workloads"]:
            raise unknown(f"suite.reference_workloads=[{name}]", name, suite["workloads"])
    numbers = [name for name, field in suite["fields"].items() if field["type"] in ("int", "float")]
    for name in suite["size_fields"]:
        if name not in numbers:
            raise unknown(f"suite.size_fields=[{name}]", name, numbers)
    rounds = suite["fields"].get(suite["rounds_field"], {})
    if suite["rounds_field"] and not (
        suite["interleave"] and rounds.get("type") == "int" and rounds.get("at_least", 0) >= 2
    ):
        raise ConfigError(
            f"suite.rounds_field={suite['rounds_field']}: expected an integer field of at least 2, "
            "in a suite with interleave: true"
        )


def from_file(suite: Mapping[str, Any], device_memory_B: float) -> dict[str, Mapping[str, Any]]:
    """The workload that `suite.workload_from` describes, with the rest as `suite.hf_defaults` says."""
    path = suite["workload_from"]
    try:
        name, shape = workload_from_file(Path(path))
    except ValueError as error:
        raise ConfigError(f"suite.workload_from: {error}") from None
    said = {k: v for k, v in suite["hf_defaults"].items() if v is not None}
    given = check_fields("suite.hf_defaults", said, {k: suite["fields"][k] for k in said})
    values = {**shape, **given, "device_memory_B": device_memory_B}
    values = check_fields("suite.hf_defaults", values, suite["fields"])
    free = {k: f for k, f in suite["fields"].items() if "multiple_of" not in f}  # a head's size is the file's
    check_relations("suite.hf_defaults", values, free)
    return {name: values}
