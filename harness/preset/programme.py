"""A preset's request to its programme on this host: GPUs, claims, how long each work takes, the order.

Runs no cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.claims.load import load_claims
from harness.config.run import Run, automatic, load
from harness.config.validation import ConfigError
from harness.config.variants.optimizations import BASELINES
from harness.preset.claim_coverage import ClaimTarget, Coverage, GpuHost, coverage, gpus_of
from harness.preset.request import ANY, Preset, PresetRequest, SuitePreset, load_preset
from harness.preset.visible_gpus import visible_gpus
from harness.preset.work_order import (
    Task,
    TimeBudget,
    WorkStep,
    ordered,
    steps_of,
    with_short_works_early,
    within,
)
from harness.records import Cell
from harness.sweep.environment import describe
from harness.sweep.estimate.estimate import CellEstimate, EstimateBasis
from harness.sweep.sweep import outlook, prepare, recorded

FIRST_VALUE = 5
"""What a first value in a claim's first group counts on any machine, where settling the claim counts 1.

It fills a row of a table that is empty otherwise.
"""


@dataclass(frozen=True, slots=True)
class Programme:
    """What a preset runs on this host, in order, and what it leaves out."""

    request: PresetRequest
    preset: Preset
    host: GpuHost
    runs: Mapping[str, Run]  # of each suite, with every workload that settles a claim here
    coverages: Mapping[str, Coverage]
    order: tuple[Task, ...]  # all of them, whether or not there is time
    fit: tuple[Task, ...]
    late: tuple[Task, ...]  # for which there is no time
    seconds: float  # of those that fit, with their reports
    first_s: Mapping[str, float]

    @property
    def targets(self) -> tuple[ClaimTarget, ...]:
        """Return what can be measured for claims here."""
        return tuple(target for one in self.coverages.values() for target in one.targets)

    @property
    def steps(self) -> list[WorkStep]:
        """Return what is run within the budget, with what each work settles."""
        return steps_of(self.fit, self.targets)


def gpu_host(request: PresetRequest) -> GpuHost:
    """Return the GPUs here; raises ConfigError where there is none, or a launcher started this process."""
    name = f"preset={request.preset}"
    if automatic() != "local":
        raise ConfigError(f"{name}: it starts its own ranks; run it without torchrun or srun")
    environment = describe()
    if not environment.gpus:
        raise ConfigError(
            f"{name}: no GPU here; looked for NVIDIA GPUs by the driver's NVML, which lists none"
        )
    found = visible_gpus()
    if not found:
        torch = environment.versions.get("torch", "is not installed")
        raise ConfigError(
            f"{name}: no GPU for torch; NVML lists {environment.gpus[0].name}, but torch {torch} sees no "
            "CUDA device: install torch with CUDA, and see CUDA_VISIBLE_DEVICES"
        )
    alike = [gpu for gpu in found if gpu.name == found[0].name]
    return GpuHost(found[0].name, len(alike), min(gpu.memory_B for gpu in alike), environment.memory_B)


def planned_programme(request: PresetRequest) -> Programme:
    """Return what the request runs on this host; runs no cell. Raises ConfigError where that is nothing."""
    host = gpu_host(request)
    preset = load_preset(request.preset)
    runs: dict[str, Run] = {}
    coverages: dict[str, Coverage] = {}
    works: list[Task] = []
    first_s: dict[str, float] = {}
    for suite, given in preset.suites.items():
        full = replace(load([f"suite={suite}", *given.overrides])[0], out=request.out / suite)
        coverages[suite] = coverage(load_claims(suite), full, given, preset.device, host)
        if not coverages[suite].targets:
            continue
        runs[suite] = claimed(full, coverages[suite].targets, given.first)
        own, first_s[suite] = estimated(runs[suite], given)
        works += own
    if not works:
        raise ConfigError(f"preset={preset.name}: no claim can be settled on {host.name}")
    return scheduled(request, preset, host, runs, coverages, works, first_s)


def scheduled(
    request: PresetRequest,
    preset: Preset,
    host: GpuHost,
    runs: Mapping[str, Run],
    coverages: Mapping[str, Coverage],
    works: Sequence[Task],
    first_s: Mapping[str, float],
) -> Programme:
    """Return the works in order, what the preset puts first before all; raises ConfigError if none fits."""
    targets = [target for one in coverages.values() for target in one.targets]
    fixed_s = {suite: preset.report_s + seconds for suite, seconds in first_s.items()}
    order = ordered(
        works, targets, fixed_s, 60 * request.budget_min, FIRST_VALUE if preset.device == ANY else 0
    )
    if preset.device == ANY:
        order = with_short_works_early(order)
    order.sort(key=lambda work: work.workload not in preset.suites[work.suite].first)
    budget = TimeBudget(60 * request.budget_min, first_s, preset.report_s)
    fit, late, seconds_of_fit = within(order, budget)
    if not fit:
        least = min(order, key=lambda work: work.seconds + first_s[work.suite])
        need_min = (least.seconds + first_s[least.suite] + preset.report_s) / 60
        raise ConfigError(
            f"budget_min={request.budget_min:g}: too small for anything; the shortest, {least.suite} "
            f"{least.workload}, takes about {need_min:.1f} min"
        )
    return Programme(
        request, preset, host, runs, coverages, tuple(order), tuple(fit), tuple(late), seconds_of_fit, first_s
    )


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
    cells = [cell for group in here.groups for cell in group.cells if cell.id in expected]

    def seconds_of(own: Sequence[Cell]) -> float:
        return sum(cell_seconds(cell, expected[cell.id], given) for cell in own) / run.workers

    works = []
    for name in run.variants_by_workload:
        own = [cell for cell in cells if cell.workload == name]
        assumed = any(is_assumed(expected[cell.id]) for cell in own)
        works.append(
            Task(run.suite, name, seconds_of(own), assumed, gpus_of(run.workloads[name], given.gpus_field))
        )
    return works, seconds_of([cell for cell in cells if cell.workload in run.reference_workloads])


def cell_seconds(cell: Cell, expected: CellEstimate, given: SuitePreset) -> float:
    """Return the estimate by earlier runs on such a GPU; where there is none, the preset's assumption."""
    if is_assumed(expected):
        return float(given.assumed_cell_s_by_workload.get(cell.workload, given.assumed_cell_s))
    return expected.seconds


def is_assumed(expected: CellEstimate) -> bool:
    """Return whether no earlier run says how long the cell takes."""
    return expected.basis in (EstimateBasis.BUDGET, EstimateBasis.LIMIT)
