"""Command line and conf/ to one checked `Run`; every mistake of the user's is a ConfigError in one line.

A command chooses workloads and variants: all, a suite's quick selection, or those that it names.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harness.config.optimizations import (
    CONF,
    Alternatives,
    Variant,
    checked_alternatives,
    code_of,
    entry_of,
    optimizations,
    package_of,
    read_yaml,
    rows_of,
    suites_with,
    variants,
    workload_fields,
)
from harness.config.overrides import (
    apply_override,
    composition_error,
    first_line,
    parse,
    refuse_kinds,
    unknown_key,
)
from harness.config.schema import EXECUTORS, ExecutorSchema, OptimizationSchema, RunSchema, SuiteSchema
from harness.config.validation import (
    NUMBERS,
    ConfigError,
    as_mapping,
    check_value,
    fields_of,
    nearest,
    refuse_unknown,
    shown,
    unknown,
)
from harness.config.workloads import check_names, file_messages, workloads
from harness.instruments.distributed.remote_ranks import LaunchError, launch
from harness.instruments.process import memory_bytes
from harness.records import Limits, Sampling, Status

KEYS = ("first", "workloads", "only")
"""Keys of a suite's `quick`: workloads that are reported before the others run, these others, variants."""


class Selection(NamedTuple):
    """Requested names, empty for all; `first` are reported before the others are run."""

    workloads: tuple[str, ...]
    only: tuple[str, ...]
    first: tuple[str, ...] = ()
    quick: bool = False


def select(name: str, config: Mapping[str, Any]) -> Selection:
    """Return what a composed config chooses of suite `name`; raises ConfigError."""
    selection, quick = config["selection"], config["suite"]["quick"]
    if selection not in ("full", "quick"):
        raise unknown(f"selection={selection}", str(selection), ["full", "quick"])
    file = next((key for key in ("workload_from", "trace") if config["suite"][key] is not None), "")
    if config["workloads"] and file:
        raise ConfigError(f"workloads: suite.{file} names the only workload; leave out one of the two")
    if selection == "full":
        return Selection(tuple(config["workloads"]), tuple(config["only"]))
    if not quick:
        raise ConfigError(f"selection=quick: suite {name} has no quick selection; allowed: full")
    if file:
        raise ConfigError(f"selection=quick: suite.{file} names the only workload; allowed: full")
    for key in ("workloads", "only"):
        if config[key]:
            raise ConfigError(f"{key}: selection=quick chooses; leave out one of the two")
    check_quick(name, config["suite"])
    first, others, only = (tuple(quick.get(key, ())) for key in KEYS)
    return Selection(tuple(dict.fromkeys([*first, *others])), only, first, quick=True)


def check_quick(name: str, suite: Mapping[str, Any]) -> None:
    """Refuse names that a suite's quick selection has and the suite has not; raises ConfigError."""
    refuse_unknown("suite.quick", suite["quick"], KEYS)
    for key, chosen in suite["quick"].items():
        where = f"suite.quick.{key}"
        if not isinstance(chosen, list) or not chosen:
            raise ConfigError(f"{where}: expected a list of names, such as [a,b]")
        for one in chosen if key != "only" else ():  # those of variants are looked up with the others
            if one not in suite["workloads"]:
                raise unknown(f"{where}=[{one}]", one, suite["workloads"])
    if suite["quick"] and not {"first", "workloads"} & suite["quick"].keys():
        raise ConfigError(f"suite.quick: expected workloads: the ones that suite {name} runs quickly")


def left_out(
    name: str,
    selection: Selection,
    workloads: Sequence[str],
    variants: Sequence[str],
    taken: Collection[str],
    out: str,
) -> tuple[str, ...]:
    """Return in sentences what a quick selection leaves out and the command that runs it; none of a full one.

    `workloads`, `variants`: all that there are; `taken`: those that are run, of both.
    """
    if not selection.quick:
        return ()
    lines = []
    for noun, every in (("workloads", workloads), ("variants", variants)):
        if missing := [one for one in every if one not in taken]:
            count = f"{len(missing)} of {len(every)} {noun}"
            lines.append(f"selection=quick leaves out {count}: {', '.join(missing)}")
    where = f" out={out}" if out else ""
    return (*lines, f"the rest: python -m harness suite={name}{where}") if lines else ()


logger = logging.getLogger("harness.sweep.progress")

GROUPS = ("suite", "executor", "hardware")

LEAST = {"gpus_per_node": 0, "gpus_per_job": 0, "memory_GB": 0.1}  # of keys of executors; of others 1

AGAIN = {"type": "str", "one_of": [status.value for status in Status if status != Status.OK]}
"""What `retry` may list."""

MEMORY_OF_CHILD_B = 6_000_000_000
"""Memory of this machine per child at once: the largest cells of suites that are not timed take 5 to 6 GB."""


@dataclass(frozen=True, slots=True)
class Run:
    """The checked configuration of one sweep of one suite."""

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
    usual_cell_s: float = 5.0  # where no record of an earlier run says how long a cell takes
    reference_workloads: tuple[str, ...] = ()  # measured once, with the baseline: bounds of the others
    applies_to: Alternatives = ()  # which workloads are planned
    # Of these workloads only these variants, and the baselines; of others all.
    variants_by_workload: Mapping[str, Collection[str]] = field(default_factory=dict)
    retry: tuple[str, ...] = ()  # cells that ended so are run again
    plan_only: bool = False  # print the plan, run nothing
    show_all: bool = False  # print every table at the end
    # Where bf16 products are slow, variants that compute any run on these instead of those listed for each.
    slow_bf16_workloads: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    executor_settings: Mapping[str, Any] = field(default_factory=dict)  # its keys, of executors that have any
    first: tuple[str, ...] = ()  # workloads that are reported before the others are run
    left_out: tuple[str, ...] = ()  # what a quick selection does not run, in sentences
    messages: tuple[str, ...] = ()  # what a user needs to know of the configuration before the run
    builds_first: bool = False  # every cell is built before any is run: harness.sweep.preflight
    loads: tuple[str, ...] = ()  # files and folders that its code reads or loads by name


def workers_of(suite: Mapping[str, Any], requested: int | None, executor: str = "local") -> int:
    """Return how many children run at once: as asked; else one, or one per core and `MEMORY_OF_CHILD_B`.

    Interleaved cells always run alone on this machine. Of a cluster's executor: how many jobs.
    """
    if executor in EXECUTORS:
        return requested or 1
    if suite["interleave"]:
        return 1
    here = max(1, min(len(os.sched_getaffinity(0)), memory_bytes() // MEMORY_OF_CHILD_B))
    return requested or (here if suite["parallel"] else 1)


def automatic() -> str:
    """Return the executor where none is named: `torchrun` under a launcher of ranks, else `local`.

    Raises ConfigError where the launcher's variables contradict each other.
    """
    try:
        return "local" if launch() is None else "torchrun"
    except LaunchError as error:
        raise ConfigError(str(error)) from None


def names(group: str) -> list[str]:
    """Return the options of a group: the YAML files of conf/<group>/."""
    return sorted(p.stem for p in (CONF / group).glob("*.yaml"))


class Choice(NamedTuple):
    """What the words of a command choose: a suite or "all", options of other groups, values to change."""

    suite: str
    groups: Mapping[str, str]
    values: Sequence[Override]


def choose(words: Sequence[str]) -> Choice:
    """Return what the words choose, each name checked; raises ConfigError."""
    known = {*GROUPS, *OmegaConf.structured(RunSchema)}
    for word in words:
        if "=" in word or word in known or word.startswith("~"):
            continue
        if near := nearest(word, names("suite")):
            raise ConfigError(f"{word}: expected KEY=VALUE; did you mean suite={near}?")
    overrides = parse(words)
    chosen = {one.key_or_group: one.value() for one in overrides if one.key_or_group in GROUPS}
    named = {group: value if isinstance(value, str) else shown(value) for group, value in chosen.items()}
    groups = {"executor": automatic(), **named}
    values = [o for o in overrides if o.key_or_group not in GROUPS]
    if any(one.key_or_group == "techniques" and one.value() == [] for one in values):
        raise ConfigError("techniques=[]: lists no technique; only=[baseline] runs plain PyTorch alone")
    suite = groups.pop("suite", None)
    if suite is None:
        for override in values:
            if override.key_or_group.partition(".")[0] not in known:
                raise unknown_key(override, known)
        raise ConfigError(f"suite: missing; give suite=NAME, one of {', '.join([*names('suite'), 'all'])}")
    for group, name in groups.items():
        if name not in names(group):
            raise unknown(f"{group}={name}", name, names(group))
    if groups["executor"] != automatic() != "local":
        raise ConfigError(
            f"executor={groups['executor']}: torchrun or srun started this process: remove executor="
        )
    if suite not in [*names("suite"), "all"]:
        raise unknown(f"suite={suite}", suite, [*names("suite"), "all"])
    return Choice(_answering(suite, values), groups, values)


def _answering(suite: str, values: Sequence[Override]) -> str:
    """Return the suite that answers for the user's model: the requested one, or the one that it names."""
    if not any(one.key_or_group == "suite.workload_from" and one.value() is not None for one in values):
        return suite
    other = str(read_yaml(CONF / f"suite/{suite}.yaml").get("workload_from_suite", ""))
    if not other:
        return suite
    logger.info(
        "suite.workload_from: suite %s calculates the steps of your own model; %s runs none", other, suite
    )
    return other


def load(words: Sequence[str]) -> list[Run]:
    """Return one checked `Run` per suite (several for `suite=all`); raises ConfigError."""
    suite, groups, values = choose(words)
    if suite != "all":
        run = load_suite(suite, groups, values)
        several = any(o.key_or_group == "executor.workers" and o.value() not in (None, 1) for o in values)
        if several and run.sampling is not None and run.executor not in EXECUTORS:
            raise ConfigError(
                f"executor.workers: the cells of suite {suite} are timed, so one runs at a time"
            )
        return [run]
    keys = [one.key_or_group for one in values]
    for key in keys:
        if key.split(".")[0] in ("suite", "only", "techniques", "workloads"):
            raise ConfigError(
                f"{key}: suite=all runs every suite in full; name one suite to choose within it"
            )
    runs = [load_suite(name, groups, values) for name in names("suite")]
    return [replace(run, out=run.out / run.suite) for run in runs] if "out" in keys else runs


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
    for override in values:
        apply_override(config, override)
        if override.is_add() or override.is_force_add():
            fill_defaults(config)
    return config


def groups_of(name: str, chosen: Mapping[str, str]) -> list[str]:
    """Return what Hydra composes: a suite, its optimizations where it has any, and the chosen groups."""
    every = [f"+suite/{name}@suite=every"] if optimizations(name) else []
    return [f"suite={name}", *(f"{group}={option}" for group, option in chosen.items()), *every]


def compose_suite(name: str, chosen: Mapping[str, str]) -> DictConfig:
    """Return conf/ composed for one suite, with the fields of its workloads from their class.

    The YAML of a new optimization is found by its presence.
    """
    store = ConfigStore.instance()
    keys = EXECUTORS.get(chosen.get("executor", ""), ExecutorSchema)
    store.store(name="run_schema", node=RunSchema(executor=keys()))
    every = [f"{o}@optimizations.{o}" for o in optimizations(name)]
    store.store(group=f"suite/{name}", name="every", node={"defaults": every})
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = compose("config", groups_of(name, chosen))
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        if not isinstance(error, yaml.YAMLError):
            _refuse_kinds(name)
        raise ConfigError(f"conf/: {composition_error(error)}") from None
    _refuse_elsewhere(name, read_yaml(CONF / f"suite/{name}.yaml"))
    config.suite.fields = workload_fields(name)
    if config.suite.rows:
        config.suite.workloads = rows_of(name)
    for one in optimizations(name):
        entry_of(name, one, CONF)
    fill_defaults(config)
    return config


def _refuse_kinds(name: str) -> None:
    """Raise ConfigError where a key of the suite's YAMLs has a value of another kind than its schema."""
    schemas: dict[str, type] = {f"suite/{name}.yaml": SuiteSchema}
    schemas |= {f"suite/{name}/{one}.yaml": OptimizationSchema for one in optimizations(name)}
    for file, schema in schemas.items():
        where = f"conf/{file}"
        given = as_mapping(where, yaml.safe_load((CONF / file).read_text()) or {})
        if schema is SuiteSchema:
            _refuse_elsewhere(name, given)
        refuse_kinds(f"{where}: ", OmegaConf.structured(schema), given)


def _refuse_elsewhere(name: str, given: Mapping[str, Any]) -> None:
    """Raise ConfigError where a suite's own YAML has what belongs elsewhere."""
    declares = f"the class {code_of(name).workload} of suites/{package_of(name)}/workload.py declares them"
    places = {
        "optimizations": f"the settings of each belong in a file of its own, conf/suite/{name}/<it>.yaml",
        "fields": declares,
    }
    for key in places.keys() & given.keys():
        raise ConfigError(f"conf/suite/{name}.yaml: {key}: {places[key]}")


def fill_defaults(config: DictConfig) -> None:
    """Let every workload have every field that has a default, so that an override can change it."""
    given = {field: spec["default"] for field, spec in config.suite.fields.items() if "default" in spec}
    given |= cast("dict[str, Any]", OmegaConf.to_container(config.suite.workload_defaults))
    workloads = cast("dict[str, Any]", OmegaConf.to_container(config.suite.workloads))
    config.suite.workloads = {  # what is no mapping is refused later, by name
        name: {**given, **workload} if isinstance(workload, dict) else workload
        for name, workload in workloads.items()
    }


def check_show(value: Any) -> None:
    """Refuse what `show` does not allow; raises ConfigError."""
    check_value("show", value, {"type": "str", "one_of": ["answer", "all"]})


def checked(config: Mapping[str, Any], name: str, executor: str) -> Run:
    """Return the run that a composed config describes; raises ConfigError on a value that is not allowed."""
    suite, limits = config["suite"], config["limits"]
    check_value("limits.timeout_s", limits["timeout_s"], {"type": "float", "at_least": 0.1})
    check_value("limits.memory_B", limits["memory_B"], {"type": "float", "optional": True, "at_least": 1})
    check_value("seed", config["seed"], {"type": "int", "at_least": 0})
    check_show(config["show"])
    if suite["package"] not in ("", package_of(name)):
        raise ConfigError(f"suite.package: conf/suite/{name}.yaml says where the suite's code is")
    check_names(suite)
    repeats = suite["repeats"] if config["repeats"] is None else config["repeats"]
    check_value("repeats", repeats, {"type": "int", "at_least": 1})
    for name_, low in (("rounds", 2), ("target_ci_half_width", 1e-4), ("budget_s", 0)):
        kind = "int" if name_ == "rounds" else "float"
        check_value(f"suite.sampling.{name_}", suite["sampling"][name_], {"type": kind, "at_least": low})
    for key, allowed in fields_of(EXECUTORS.get(executor, ExecutorSchema), any_type=True).items():
        if allowed.get("type") in NUMBERS:
            check_value(
                f"executor.{key}", config["executor"][key], {**allowed, "at_least": LEAST.get(key, 1)}
            )
    check_value("hardware.memory_B", config["hardware"]["memory_B"], {"type": "float", "at_least": 1})
    if config["techniques"] and name not in (able := suites_with("takes_techniques")):
        raise ConfigError(f"techniques: suite {name} takes none; suites that do: {', '.join(able)}")
    selection = select(name, config)
    picked = workloads(suite, selection.workloads, config["hardware"]["memory_B"])
    only = () if selection.quick and config["techniques"] else selection.only
    chosen = variants(name, suite, only, techniques=config["techniques"])
    return Run(
        suite=name,
        question=suite["question"],
        workloads=picked,
        variants=chosen,
        isolate_if=suite["isolate_if"],
        sampling=Sampling(**suite["sampling"]) if suite["interleave"] else None,
        rounds_field=suite["rounds_field"],
        size_fields=tuple(suite["size_fields"]),
        builds_first=suite["builds_first"],
        loads=tuple(suite["loads"]),
        repeats=repeats,
        seed=config["seed"],
        limits=Limits(limits["timeout_s"], None if limits["memory_B"] is None else int(limits["memory_B"])),
        usual_cell_s=suite["usual_cell_s"],
        executor=executor,
        workers=workers_of(suite, config["executor"]["workers"], executor),
        executor_settings=config["executor"] if executor in EXECUTORS else {},
        out=Path(config["out"] or f"results/{name}"),
        reference_workloads=tuple(suite["reference_workloads"]),
        applies_to=checked_alternatives("suite.applies_to", suite["applies_to"], suite["fields"]),
        retry=tuple(check_value("retry", one, AGAIN) for one in config["retry"]),
        plan_only=config["plan"],
        show_all=config["show"] == "all",
        slow_bf16_workloads={
            name: tuple(larger)
            for name, larger in suite["slow_bf16_workloads"].items()
            if name not in selection.workloads  # those are run wherever they are asked for
        },
        first=selection.first,
        left_out=left_out(
            name,
            selection,
            list(suite["workloads"]),
            [variant.name for variant in variants(name, suite, ())],
            [*picked, *(variant.name for variant in chosen)],
            config["out"] or "",
        ),
        messages=file_messages(suite),
    )
