"""What answers most of the paper's claims on this machine within a budget: `suite=all budget_min=60`.

What serves a claim of the answers' file is each judged claim that it names, and of that each group of values,
from whatever variants are planned on this machine. Runs no cell.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from harness.claims.load import load_claims
from harness.claims.model import Claim, Interpretation
from harness.claims.paper import load_answers
from harness.config.run import Run, automatic, load
from harness.config.validation import ConfigError
from harness.preset.claim_coverage import ClaimTarget, Coverage, GpuHost, Hindrance, Lack, variants_of
from harness.preset.programme import Programme, claimed, estimated, scheduled
from harness.preset.request import Preset, PresetRequest, load_preset
from harness.preset.work_order import Task
from harness.sweep.environment import describe
from harness.sweep.plan import is_planned

HOST = "host"
"""The preset for any machine."""


def planned_for_host(request: PresetRequest) -> Programme:
    """Return what the request runs on this machine; raises ConfigError where that is nothing.

    The time that planning takes counts as part of the budget.
    """
    began_s = time.monotonic()
    if automatic() != "local":
        raise ConfigError(f"preset={HOST}: it starts its own ranks; run it without torchrun or srun")
    environment = describe()
    gpus = environment.gpus
    name = gpus[0].name if gpus else environment.cpu
    memory_B = min((gpu.memory_B for gpu in gpus), default=environment.memory_B)
    host = GpuHost(name, len(gpus), memory_B, environment.memory_B)
    preset = load_preset(request.preset)
    runs, coverages, works, first_s = _works(request, preset, bool(gpus))
    if not works:
        raise ConfigError(f"preset={HOST}: no claim can be given a value on this machine")
    used_min = (time.monotonic() - began_s) / 60
    left = request._replace(budget_min=request.budget_min - used_min)
    if left.budget_min <= 0:
        raise ConfigError(f"budget_min={request.budget_min:g}: planning alone took {used_min:.1f} min")
    return scheduled(left, preset, host, runs, coverages, works, first_s)


def _works(
    request: PresetRequest, preset: Preset, gpu: bool
) -> tuple[dict[str, Run], dict[str, Coverage], list[Task], dict[str, float]]:
    """Return by suite its run and what it can answer, all works, and each suite's fixed seconds."""
    runs: dict[str, Run] = {}
    coverages: dict[str, Coverage] = {}
    works: list[Task] = []
    first_s: dict[str, float] = {}
    for suite, asked in asked_claims().items():
        given = preset.suites[suite]
        full = replace(load([f"suite={suite}", *given.overrides])[0], out=request.out / suite)
        claims = [one for one in load_claims(suite) if one.id in asked and not one.not_judged]
        coverages[suite] = host_coverage(claims, full, gpu)
        if not coverages[suite].targets:
            continue
        runs[suite] = claimed(full, coverages[suite].targets)
        own, first_s[suite] = estimated(runs[suite], given)
        works += own
    return runs, coverages, works, first_s


def asked_claims() -> Mapping[str, set[str]]:
    """Return, by suite, the judged claims that the answers' file names."""
    asked: dict[str, set[str]] = defaultdict(set)
    for claim in load_answers().claims:
        for name in claim.judged:
            suite, _, id = name.partition("/")
            asked[suite].add(id)
    return asked


def host_coverage(claims: Sequence[Claim], run: Run, gpu: bool) -> Coverage:
    """Return which groups of values the run's workloads can give the claims here, and what needs a GPU."""
    targets, hindrances = [], []
    for claim in claims:
        groups: dict[str, dict[str, frozenset[str]]] = defaultdict(dict)
        values: Counter[str] = Counter()
        for one in claim.interpretations:
            if lacking := list(_lacking(claim, one, run, gpu)):
                hindrances += lacking
                continue
            values[one.group] += 1
            own = groups[one.group]
            own[one.workload] = own.get(one.workload, frozenset()) | variants_of(one)
        targets += [
            ClaimTarget(run.suite, claim.id, group, workloads, values[group])
            for group, workloads in groups.items()
        ]
    return Coverage(tuple(targets), tuple(hindrances))


def _lacking(claim: Claim, one: Interpretation, run: Run, gpu: bool) -> Iterator[Hindrance]:
    """Yield which of the interpretation's variants cannot be planned here."""
    for variant in sorted(variants_of(one)):
        alike = [own for own in run.variants if own.name == variant]
        if any(is_planned(run, own, one.workload, gpu) for own in alike):
            continue
        needs_gpu = any(is_planned(run, own, one.workload, True) for own in alike)
        lack, reason = (Lack.HARDWARE, "needs a GPU") if needs_gpu else (Lack.SUITE, "does not apply")
        yield Hindrance(claim.id, one.workload, lack, f"{variant} {reason}" if not needs_gpu else reason)
