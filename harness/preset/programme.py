"""What a preset runs on this host, in the order of claims answered per minute. Runs no cell.

What can be measured here follows from the claims: the workloads and variants that they compare, where every
condition that they state is met. What is known before a run is looked up: the device's name, a workload's
fields, GPUs and memory, and which methods measure. `preset=host`, or `suite=all` with a budget, asks for what
answers most claims here, with or without a GPU.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import yaml

from harness.bounds import Bounds
from harness.claims.answers import FEWEST
from harness.claims.judge import is_met
from harness.claims.load import load_claims
from harness.claims.model import Claim, Interpretation
from harness.claims.paper import load_answers
from harness.config.optimizations import BASELINES, CONF, read_yaml
from harness.config.run import Run, automatic, load, names
from harness.config.validation import (
    ConfigError,
    as_mapping,
    check_fields,
    check_value,
    fields_of,
    key_and_value,
    unknown,
)
from harness.sweep.environment import Gpu, describe
from harness.sweep.in_child import ChildError, in_child
from harness.sweep.plan import Basis, is_planned
from harness.sweep.sweep import outlook, prepare, recorded
from harness.units import counted, human

ANY = "any"  # the device of a preset whose values are worth having on any machine


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
        key, value = key_and_value(word)
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

    def checked(place: str, own: Any) -> SuitePreset:
        return SuitePreset(**check_fields(place, as_mapping(place, own), fields_of(SuitePreset)))

    suites = {suite: checked(f"{where}.suites.{suite}", own) for suite, own in given.items()}
    return Preset(**{**data, "suites": suites})


GPUS_TIMEOUT_S = 120.0  # importing torch takes seconds, and starting CUDA some more


class PresetHost(NamedTuple):
    """The first GPU's name and memory, or the CPU's, how many GPUs are like it, the host's memory."""

    name: str
    gpus: int
    memory_B: int
    host_memory_B: int


class ClaimTarget(NamedTuple):
    """One group of values of a claim that can be measured here."""

    suite: str
    claim: str
    group: str
    workloads: Mapping[str, frozenset[str]]  # the variants to run
    sized: frozenset[str]  # those for such a device; small ones show a GPU's launches more than its work
    first: bool  # conf/claims lists what comes nearest to the claim first

    def values(self, done: Mapping[str, set[str]]) -> int:
        """Return on how many of its workloads there is a value, where those in `done` have run, by suite."""
        return len(self.workloads.keys() & done.get(self.suite, set()))

    def is_settled(self, done: Mapping[str, set[str]]) -> bool:
        """Return whether that is what an answer needs: `FEWEST`, or all where there are fewer."""
        return self.values(done) >= min(FEWEST, len(self.workloads))


class Hindrance(NamedTuple):
    """What a claim's value on one workload needs that is not here."""

    suite: str
    claim: str
    workload: str
    reason: str
    hardware: bool = False  # more GPUs or memory would do


class Task(NamedTuple):
    """One workload of a suite with the variants that claims compare on it, and how long that takes."""

    suite: str
    workload: str
    seconds: float
    assumed: bool = False  # no earlier run is known
    gpus: int = 1


@dataclass(frozen=True, slots=True)
class Programme:
    """What a preset runs on this host, in order, and what it leaves out."""

    request: PresetRequest
    preset: Preset
    host: PresetHost
    runs: Mapping[str, Run]  # of each suite, with every workload that answers a claim here
    targets: Sequence[ClaimTarget]
    hindrances: Sequence[Hindrance]
    fixed_s: Mapping[str, float]  # what the first task of a suite costs in addition: references, the report
    fit: Sequence[Task]
    late: Sequence[Task]  # for which there is no time
    planning_s: float = 0.0

    @property
    def budget_s(self) -> float:
        """Return the seconds that planning left of the budget."""
        return 60 * self.request.budget_min - self.planning_s

    @property
    def seconds(self) -> float:
        """Return how long that takes which fits the budget, with its reports."""
        return sum(task.seconds for task in self.fit) + sum(self.fixed_s[one] for one in done_by(self.fit))


def planned_programme(request: PresetRequest) -> Programme:
    """Return what the request runs on this host; raises ConfigError where that is nothing."""
    began_s = time.monotonic()
    name, preset = request.preset, load_preset(request.preset)
    if automatic() != "local":
        raise ConfigError(f"preset={name}: it starts its own ranks; run it without torchrun or srun")
    host = preset_host(name, preset)
    runs: dict[str, Run] = {}
    targets: list[ClaimTarget] = []
    hindrances: list[Hindrance] = []
    tasks: list[Task] = []
    fixed_s: dict[str, float] = {}
    for suite, claims in claims_of(preset).items():
        given = preset.suites[suite]
        full = replace(load([f"suite={suite}", *given.overrides])[0], out=request.folder / suite)
        own, lacking = coverage(claims, full, preset, host)
        targets += own
        hindrances += lacking
        if own:
            runs[suite] = claimed(full, own, given.first)
            works, first_s = estimated(runs[suite], given)
            tasks += works
            fixed_s[suite] = first_s + preset.report_s
    if not tasks:
        raise ConfigError(f"preset={name}: no claim can be given a value on {host.name}")
    planning_s = time.monotonic() - began_s
    budget_s = 60 * request.budget_min - planning_s
    first = {(suite, workload) for suite in runs for workload in preset.suites[suite].first}
    fit, late = ordered(tasks, targets, fixed_s, budget_s, first)
    if not fit:
        least = min(tasks, key=lambda task: task.seconds + fixed_s[task.suite])
        need_min = (least.seconds + fixed_s[least.suite]) / 60
        raise ConfigError(
            f"budget_min={request.budget_min:g}: too small for anything; planning took {planning_s / 60:.1f} "
            f"min, and the shortest, {least.suite} {least.workload}, takes about {need_min:.1f} min"
        )
    return Programme(request, preset, host, runs, targets, hindrances, fixed_s, fit, late, planning_s)


def preset_host(name: str, preset: Preset) -> PresetHost:
    """Return this machine as the preset needs it; raises ConfigError where it needs a GPU and has none."""
    environment = describe()
    gpus = environment.gpus
    if preset.device != ANY:
        if not gpus:
            raise ConfigError(
                f"preset={name}: no GPU here; looked for NVIDIA GPUs by the driver's NVML, which lists none"
            )
        listed, gpus = gpus[0].name, visible_gpus()
        if not gpus:
            torch = environment.versions.get("torch", "is not installed")
            raise ConfigError(
                f"preset={name}: no GPU for torch; NVML lists {listed}, but torch {torch} sees no "
                "CUDA device: install torch with CUDA, and see CUDA_VISIBLE_DEVICES"
            )
        gpus = tuple(gpu for gpu in gpus if gpu.name == gpus[0].name)
    device = gpus[0].name if gpus else environment.cpu
    memory_B = min((gpu.memory_B for gpu in gpus), default=environment.memory_B)
    return PresetHost(device, len(gpus), memory_B, environment.memory_B)


def visible_gpus() -> tuple[Gpu, ...]:
    """Return what CUDA_VISIBLE_DEVICES leaves; none where torch sees none, or cannot be imported."""
    try:
        found = in_child(__name__, torch_gpus.__name__, None, GPUS_TIMEOUT_S)
    except ChildError:
        return ()
    return tuple(Gpu(*one) for one in found)


def torch_gpus(_: None) -> list[tuple[str, int]]:
    """Return names and bytes of the GPUs that torch sees; runs in a child."""
    import torch

    found = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return [(one.name, one.total_memory) for one in found]


def claims_of(preset: Preset) -> dict[str, list[Claim]]:
    """Return by suite the claims that the preset serves.

    They are those about its device that a value of ours could be evidence of; of `ANY` device, each judged
    claim that an answer names.
    """
    if preset.device != ANY:
        return {suite: claims_about(load_claims(suite), preset.device) for suite in preset.suites}
    asked: dict[str, set[str]] = defaultdict(set)
    for answer in load_answers().claims:
        for name in answer.judged:
            suite, _, claim = name.partition("/")
            asked[suite].add(claim)
    return {
        suite: [one for one in load_claims(suite) if one.id in own and not one.not_judged]
        for suite, own in asked.items()
    }


def claims_about(claims: Sequence[Claim], device: str) -> list[Claim]:
    """Return the claims about such a device that a value of ours could be evidence of."""
    return [one for one in claims if one.conditions.get("device") == device and not one.not_judged]


def coverage(
    claims: Sequence[Claim], run: Run, preset: Preset, host: PresetHost
) -> tuple[list[ClaimTarget], list[Hindrance]]:
    """Return what the run's workloads can give the claims on this host, and what hinders the rest."""
    targets, hindrances = [], []
    sized = frozenset(name for name, fields in run.workloads.items() if fields.get("device") == preset.device)
    for claim in claims:
        groups: dict[str, dict[str, frozenset[str]]] = {}
        for one in claim.interpretations:
            if found := list(_hindrances(claim, one, run, preset, host)):
                hindrances.append(min(found, key=lambda hindrance: hindrance.hardware))
                continue
            workloads = groups.setdefault(one.group, {})
            workloads[one.workload] = workloads.get(one.workload, frozenset()) | _variants_of(one)
        targets += [
            ClaimTarget(run.suite, claim.id, group, workloads, sized & workloads.keys(), first=number == 0)
            for number, (group, workloads) in enumerate(groups.items())
        ]
    return targets, hindrances


def _hindrances(
    claim: Claim, one: Interpretation, run: Run, preset: Preset, host: PresetHost
) -> Iterator[Hindrance]:
    """Yield what hinders a value as the claim states it."""

    def because(reason: str, hardware: bool = False) -> Hindrance:
        return Hindrance(run.suite, claim.id, one.workload, reason, hardware)

    given: SuitePreset = preset.suites[run.suite]
    fields = run.workloads[one.workload]
    if given.measured_methods and one.method not in given.measured_methods:
        yield because("its values are simulated or calculated, not measured")
    for variant in sorted(_variants_of(one)):
        alike = [own for own in run.variants if own.name == variant]
        if variant in given.unavailable_variants:
            yield because(f"{variant}: {given.unavailable_variants[variant]}")
        elif not any(is_planned(run, own, one.workload, True) for own in alike):
            yield because(f"{variant} does not apply to {one.workload}")
        elif not any(is_planned(run, own, one.workload, bool(host.gpus)) for own in alike):
            yield because("needs a GPU", hardware=True)
    if preset.device == ANY:
        return
    for name, wanted in sorted(claim.conditions.items(), key=lambda one: one[0] == "device_name"):
        if name == "device" or name in given.read_when_run:
            continue
        if name == "device_name":
            if not is_met(host.name, wanted):
                yield because(f"it is about {wanted.replace('*', ' ').strip()}")
        elif name not in given.condition_fields:
            yield because(f"suite {run.suite} records no {name}, and it is about {wanted}")
        elif not is_met(str(value := fields[given.condition_fields[name]]), wanted):
            yield because(f"it is about {name} {wanted}, and {one.workload} has {value}")
    if (gpus := gpus_of(fields, given)) > host.gpus:
        yield because(f"needs {counted(gpus, 'GPU')}", hardware=True)
    for least_B, has_B, where in (
        (given.least_device_memory_B, host.memory_B, "memory per GPU"),
        (given.least_host_memory_B, host.host_memory_B, "host memory"),
    ):
        if (need_B := least_B.get(one.workload, 0.0)) > has_B:
            yield because(f"needs {human(need_B, 'B')} of {where}", hardware=True)


def gpus_of(fields: Mapping[str, Any], given: SuitePreset) -> int:
    """Return the GPUs that a workload needs: what its field states, else one."""
    return int(fields[given.gpus_field]) if given.gpus_field else 1


def _variants_of(interpretation: Interpretation) -> frozenset[str]:
    return frozenset(filter(None, [*interpretation.variants, interpretation.relative_to]))


def claimed(run: Run, targets: Sequence[ClaimTarget], first: Sequence[str] = ()) -> Run:
    """Return the run with the workloads and variants of the targets, and its reference workloads.

    The workloads in `first` have every variant.
    """
    pairs = {name: frozenset(one.name for one in run.variants) for name in first}
    for target in targets:
        for workload, variants in target.workloads.items():
            pairs[workload] = pairs.get(workload, frozenset()) | variants
    every = frozenset[str]().union(*pairs.values())
    kept = [name for name in run.workloads if name in pairs or name in run.reference_workloads]
    return replace(
        run,
        workloads={name: run.workloads[name] for name in kept},
        variants=tuple(one for one in run.variants if one.name in every or one.module in BASELINES),
        variants_by_workload=pairs,
    )


def estimated(run: Run, given: SuitePreset) -> tuple[list[Task], float]:
    """Return each workload with the seconds of its cells still to be run, and those of its references."""
    here = prepare(run)
    expected = outlook(here, recorded(run)).estimate.cells
    seconds, assumed = defaultdict[str, float](float), set[str]()
    for cell in (cell for group in here.groups for cell in group.cells if cell.id in expected):
        seconds[cell.workload] += expected[cell.id].seconds / run.workers
        if expected[cell.id].basis == Basis.DEFAULT:
            assumed.add(cell.workload)
    tasks = [
        Task(run.suite, name, seconds[name], name in assumed, gpus_of(run.workloads[name], given))
        for name in run.variants_by_workload
    ]
    return tasks, sum(seconds[name] for name in run.reference_workloads)


def ordered(
    tasks: Sequence[Task],
    targets: Sequence[ClaimTarget],
    fixed_s: Mapping[str, float],
    budget_s: float,
    first: Collection[tuple[str, str]] = (),
) -> tuple[list[Task], list[Task]]:
    """Return the tasks that fit the budget in the order in which they are run, and those left out.

    Again and again the task is taken that is worth most per second. A value is worth half of the one before
    it in its group, half where the claim lists another group first, and half where the workload is not sized
    for the device and others are. `fixed_s`: what the first task of a suite costs in addition. The suites and
    workloads in `first` come before all.
    """
    served: dict[tuple[str, str], list[ClaimTarget]] = defaultdict(list)
    for target in targets:
        for workload in target.workloads:
            served[target.suite, workload].append(target)
    order: list[Task] = []
    left, elapsed_s = list(tasks), 0.0
    done: dict[str, set[str]] = {}

    def cost_s(task: Task) -> float:
        return task.seconds + (0.0 if task.suite in done else fixed_s.get(task.suite, 0.0))

    def rate(task: Task) -> tuple[bool, float]:
        halvings = [
            one.values(done) + (not one.first) + (bool(one.sized) and task.workload not in one.sized)
            for one in served[task.suite, task.workload]
        ]
        worth = sum(0.5**number for number in halvings)
        return (task.suite, task.workload) in first, worth / max(cost_s(task), 1.0)

    while fitting := [task for task in left if cost_s(task) <= budget_s - elapsed_s]:
        best = max(fitting, key=rate)
        elapsed_s += cost_s(best)
        done.setdefault(best.suite, set()).add(best.workload)
        order.append(best)
        left.remove(best)
    return order, left


def done_by(tasks: Sequence[Task]) -> dict[str, set[str]]:
    """Return the workloads of the tasks by suite."""
    done: dict[str, set[str]] = defaultdict(set)
    for task in tasks:
        done[task.suite].add(task.workload)
    return done


def settled(targets: Sequence[ClaimTarget], done: Mapping[str, set[str]]) -> dict[tuple[str, str], bool]:
    """Return for each suite and claim whether every group of its values has what an answer needs."""
    groups: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for one in targets:
        groups[one.suite, one.claim].append(one.is_settled(done))
    return {claim: all(ends) for claim, ends in groups.items()}
