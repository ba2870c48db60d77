"""Which claims about a GPU the workloads of a suite can settle on this one, and what the others need. Pure.

A claim gets a verdict only where every condition that it states is met. What is known before a run is looked
up here: the device's name, a workload's fields, GPUs and memory, and which methods measure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from harness.claims.answers import FEWEST
from harness.claims.judge import is_met
from harness.claims.model import Claim, Interpretation
from harness.config.run import Run
from harness.preset.request import SuitePreset
from harness.sweep.plan import is_planned
from harness.units import counted, human


class GpuHost(NamedTuple):
    """The GPUs that torch sees: the first one's name and memory, how many are like it, the host's memory."""

    name: str
    gpus: int
    memory_B: int
    host_memory_B: int


class Lack(IntEnum):
    """Why a value cannot be had here, from what other hardware changes to what no hardware does."""

    HARDWARE = 1  # more GPUs, or more memory
    DEVICE = 2  # another GPU
    SUITE = 3  # no suite measures it under the claim's conditions


class Hindrance(NamedTuple):
    """What a claim's value on one workload needs that is not here."""

    claim: str
    workload: str
    lack: Lack
    reason: str


class ClaimTarget(NamedTuple):
    """One group of values of a claim that can be measured here: the variants to run, by workload.

    It is settled once `needed` of the workloads are measured, and `needed_sized` of those that are `sized`
    for such a device: small ones, made for a CPU, show a GPU's launches more than its work.
    """

    suite: str
    claim: str
    group: str
    workloads: Mapping[str, frozenset[str]]
    values: int  # interpretations: several variants on one workload are several values
    sized: frozenset[str] = frozenset()

    @property
    def needed(self) -> int:
        """Return the number of workloads that are needed: `FEWEST`, or all where there are fewer."""
        return min(FEWEST, len(self.workloads))

    @property
    def needed_sized(self) -> int:
        """Return the same of the workloads that are sized for such a device."""
        return min(FEWEST, len(self.sized))

    def progress(self, done: Collection[str]) -> float:
        """Return what share of what is needed the workloads in `done` have; 1 where it is settled."""
        own = self.workloads.keys() & done
        has = min(len(own), self.needed) + min(len(own & self.sized), self.needed_sized)
        return has / (self.needed + self.needed_sized)


class Coverage(NamedTuple):
    """What can be measured for a suite's claims on this host, and what hinders the rest."""

    targets: tuple[ClaimTarget, ...]
    hindrances: tuple[Hindrance, ...]


def coverage(claims: Sequence[Claim], run: Run, preset: SuitePreset, device: str, host: GpuHost) -> Coverage:
    """Return what the run's workloads can settle of the claims whose condition `device` is `device`."""
    targets, hindrances = [], []
    sized = frozenset(name for name, fields in run.workloads.items() if fields.get("device") == device)
    for claim in claims_about(claims, device):
        groups: dict[str, dict[str, frozenset[str]]] = defaultdict(dict)
        values: Counter[str] = Counter()
        for one in claim.interpretations:
            if found := list(_hindrances(claim, one, run, preset, host)):
                hindrances.append(max(found, key=lambda hindrance: hindrance.lack))
                continue
            values[one.group] += 1
            workloads = groups[one.group]
            workloads[one.workload] = workloads.get(one.workload, frozenset()) | variants_of(one)
        targets += [
            ClaimTarget(run.suite, claim.id, group, workloads, values[group], sized & workloads.keys())
            for group, workloads in groups.items()
        ]
    return Coverage(tuple(targets), tuple(hindrances))


def claims_about(claims: Sequence[Claim], device: str) -> list[Claim]:
    """Return the claims about such a device that a value of ours could be evidence of."""
    return [one for one in claims if one.conditions.get("device") == device and not one.not_judged]


def variants_of(interpretation: Interpretation) -> frozenset[str]:
    """Return the variants whose records the interpretation compares."""
    return frozenset(filter(None, [*interpretation.variants, interpretation.relative_to]))


def gpus_of(fields: Mapping[str, Any], gpus_field: str) -> int:
    """Return the GPUs that a workload needs: what its field states, else one."""
    return int(fields[gpus_field]) if gpus_field else 1


def _hindrances(
    claim: Claim, one: Interpretation, run: Run, preset: SuitePreset, host: GpuHost
) -> Iterator[Hindrance]:
    """Yield what hinders a value as the claim states it."""

    def because(lack: Lack, reason: str) -> Hindrance:
        return Hindrance(claim.id, one.workload, lack, reason)

    fields = run.workloads[one.workload]
    if preset.measured_methods and one.method not in preset.measured_methods:
        yield because(Lack.SUITE, "its values are simulated or calculated, not measured")
    for variant in sorted(variants_of(one)):
        if variant in preset.unavailable_variants:
            yield because(Lack.SUITE, f"{variant}: {preset.unavailable_variants[variant]}")
        elif not any(is_planned(run, own, one.workload, True) for own in run.variants if own.name == variant):
            yield because(Lack.SUITE, f"{variant} does not apply to {one.workload}")
    for name, wanted in claim.conditions.items():
        if name == "device" or name in preset.read_when_run:
            continue
        if name == "device_name":
            if not is_met(host.name, wanted):
                yield because(Lack.DEVICE, f"it is about {wanted.replace('*', ' ').strip()}")
        elif name not in preset.condition_fields:
            yield because(Lack.SUITE, f"suite {run.suite} records no {name}, and it is about {wanted}")
        elif not is_met(str(value := fields[preset.condition_fields[name]]), wanted):
            yield because(Lack.SUITE, f"it is about {name} {wanted}, and {one.workload} has {value}")
    yield from (because(Lack.HARDWARE, reason) for reason in _needs(one.workload, fields, preset, host))


def _needs(workload: str, fields: Mapping[str, Any], preset: SuitePreset, host: GpuHost) -> Iterator[str]:
    """Yield what the workload needs more of than the host has."""
    gpus = gpus_of(fields, preset.gpus_field)
    if gpus > host.gpus:
        yield f"needs {counted(gpus, 'GPU')}"
    device_B = preset.least_device_memory_B.get(workload, 0.0)
    if device_B > host.memory_B:
        yield f"needs {human(device_B, 'B')} of memory per GPU"
    host_B = preset.least_host_memory_B.get(workload, 0.0)
    if host_B > host.host_memory_B:
        yield f"needs {human(host_B, 'B')} of host memory"
