"""What would make a layout's step slower or faster, each with its seconds and where these would be seen.

Each kind of cause is predicted in sizes from little to much, by the model with that one part changed. Which
of them fits a user's own step is for `harness.advise` to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from harness.answer import StepCause
from harness.question import Rollout
from suites.training.layouts.chance import chance_without_retries
from suites.training.layouts.layout import RECOMPUTES, Layouts
from suites.training.layouts.search import LayoutSubject, fits
from suites.training.step_time.constants import StepConstants
from suites.training.step_time.layer import imbalance_of, send_exposed_s
from suites.training.step_time.prediction import PredictedSteps, planned, predicted
from suites.training.step_time.seconds import FORWARD_SHARE, passes_of
from suites.training.step_time.setting import StepSetting
from suites.training.step_time.timeline import rank_passes

SIZES = (1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0)
"""Sizes of a slower network and host, and of uneven experts: chosen, to span what a step can differ by."""

CLOCKS = (0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)
"""Shares of the usual clock. Below half of it GPUs are about to be swapped."""

WAITS = (0.05, 0.1, 0.2, 0.35, 0.5, 1.0, 2.0, 4.0)
"""Seconds in which a step waits for data, over its own."""

PAUSES = (0.1, 0.2, 0.35, 0.5, 1.0)
"""The same in which GPUs wait for a host that does something else: collecting garbage, other processes."""

SLOWEST_GPU = (0.05, 0.1, 0.2, 0.35, 0.5, 1.0)
"""By how much longer than the others one GPU computes."""

RETRIED = (0.1, 0.25, 0.5, 1.0)
"""Share of the micro-batches in which the allocator frees its cache."""

BATCHES = (0.5, 2.0)

NEARLY_FULL = 0.95
"""Chance without retries below which they are a cause."""

SEEN = 0.01
"""A cause that changes the step by less is none."""

PLACES: Mapping[str, tuple[str, ...]] = {
    "computing": ("matmul", "attention", "pointwise", "head", "update"),
    "communication": ("tensor", "context", "expert", "shard", "reduction"),
    "gaps": ("launch",),
    "ranks": ("bubble",),
}
"""Where a profiler shows the parts of a step, as `harness.profile` names them. The rest is idle."""


def places_of(steps: PredictedSteps, batches: float, rollout: Rollout = "none") -> dict[str, float]:
    """Return the seconds of a step by place.

    Generating with transformers waits for launches; an engine like vLLM keeps the GPU busy.
    """
    parts = steps.parts.by_name(0)
    found = {place: batches * sum(parts[name] for name in names) for place, names in PLACES.items()}
    found["gaps" if rollout == "transformers" else "computing"] += batches * parts.get("generation", 0.0)
    return {**found, "data": 0.0, "idle": max(float(steps.seconds[0]) - sum(found.values()), 0.0)}


def timers_of(
    setting: StepSetting, layout: Layouts, steps: PredictedSteps, batches: float
) -> dict[str, float]:
    """Return the seconds of a step that the timers of Megatron and DeepSpeed show, in the mean over ranks.

    What pipeline ranks send and wait for is in neither pass. `spread`: of the pipeline rank whose passes take
    longest over the one whose passes take least.
    """
    count = float(layout.micro_batches[0] * batches * passes_of(setting, layout)[0])
    passes, parts = rank_passes(setting, layout).times(count), steps.parts.by_name(0)
    sent_s = count * float(send_exposed_s(setting, layout)[0]) / 2
    return {
        "forward": float(passes.forward_s.mean()) - sent_s,
        "backward": float(passes.backward_s.mean()) - sent_s,
        "reduction": batches * parts["reduction"],
        "optimizer": batches * parts["update"],
        "spread": float(np.ptp(passes.forward_s + passes.backward_s)),
    }


def in_passes(added_s: float) -> dict[str, float]:
    """Return seconds as they lie in both passes of which nothing else is known: a third is forward."""
    return {"forward": FORWARD_SHARE * added_s, "backward": (1 - FORWARD_SHARE) * added_s}


def causes(subject: LayoutSubject, setting: StepSetting, layout: Layouts) -> Iterator[StepCause]:
    """Yield the causes that change the step by `SEEN` at least, each with the weight of its size.

    Of n such sizes from little to much the i-th has a weight of 1/i, over the sum of these; a family of
    several series of sizes has as much in all as one of a single one.
    """
    plain = _cause("", "as predicted", subject, setting, layout)
    every: dict[str, list[list[StepCause]]] = {}
    for source in (
        of_settings(subject, setting, layout),
        of_layout(subject, setting, layout),
        of_waiting(subject, setting, layout, plain),
    ):
        seen = [one for one in source if abs(one.step_s / plain.step_s - 1) >= SEEN]
        for family in dict.fromkeys(one.family for one in seen):
            every.setdefault(family, []).append([one for one in seen if one.family == family])
    for series in every.values():
        for sizes in series:
            for one, weight in zip(sizes, weights(len(sizes)), strict=True):
                yield msgspec.structs.replace(one, weight=weight / len(series))


def weights(count: int) -> Sequence[float]:
    """Return how likely each of so many sizes is, from little to much."""
    each = 1 / np.arange(1, count + 1)
    return [float(one) for one in each / each.sum()]


def _cause(
    family: str,
    title: str,
    subject: LayoutSubject,
    setting: StepSetting,
    layout: Layouts,
    batch: int | None = None,
) -> StepCause:
    steps = planned(setting, layout, batch or subject.batch)
    found = predicted(steps)
    batches = float(steps.batches[0])
    places = places_of(found, batches, setting.run.rollout) | timers_of(setting, layout, found, batches)
    return StepCause(family=family, title=title, step_s=float(found.seconds[0]), places_s=places)


def of_settings(subject: LayoutSubject, setting: StepSetting, layout: Layouts) -> Iterator[StepCause]:
    """Yield what another network, host, overlap, clock or routing would make of the step."""
    cluster, constants, program = setting.cluster, setting.constants, setting.training.program

    def cause(family: str, title: str, **changed: object) -> StepCause:
        return _cause(family, title, subject, replace(setting, **changed), layout)  # type: ignore[arg-type]

    def times(factor: float, *names: str) -> StepConstants:
        return StepConstants(constants | {name: factor * constants[name] for name in names})

    if int(layout.gpus[0]) > cluster.node_size:
        for size in SIZES:
            network = cluster._replace(network_B_per_s=cluster.network_B_per_s / size)
            yield cause("network", f"a network {size:g} times slower than its name", cluster=network)
    alone = setting.run._replace(tensor_overlap=False)
    shown = {"reduction_exposed", "expert_exposed", "expert_exposed_node", "send_exposed"}
    shown |= {f"{program}.shard_exposed"}
    exposed = StepConstants(constants | dict.fromkeys(shown, 1.0) | {f"{program}.tp_exposed": 1.0})
    if int(layout.tp[0]) > 1:
        title = "tensor-parallel communication that nothing overlaps"
        yield cause("overlap", title, run=alone)
    yield cause("overlap", "communication that nothing overlaps", run=alone, constants=exposed)
    launches = [name for name in constants if name.endswith("launch_s")]
    for size in SIZES:
        title = f"a host that launches kernels {size:g} times as slowly"
        yield cause("launches", title, constants=times(size, *launches))
    for share in CLOCKS:  # rates go with a power of the power, see `StepConstants.sustained`
        power = share ** (1 / constants["power_exponent"])
        gpu = replace(cluster.gpu, power_share=cluster.gpu.power_share * power)
        yield cause("clocks", f"GPUs at {share:.0%} of their usual clock", cluster=cluster._replace(gpu=gpu))
    if setting.shape.num_experts:
        usual = float(imbalance_of(setting, layout)[0])
        for size in SIZES[1:6]:
            title = f"an expert rank with {size:g} times as many tokens as here assumed"
            yield cause("imbalance", title, run=setting.run._replace(imbalance=size * usual))


def of_layout(subject: LayoutSubject, setting: StepSetting, layout: Layouts) -> Iterator[StepCause]:
    """Yield what other recomputation and another batch than was asked would make of the step."""
    for index, recompute in enumerate(RECOMPUTES):
        if index != int(layout.recompute[0]):
            other = layout._replace(recompute=np.array([index]))
            yield _cause("recompute", f"{recompute} recompute", subject, setting, other)
    for factor in BATCHES:
        count = np.maximum((layout.micro_batches * factor).astype(layout.micro_batches.dtype), 1)
        if count[0] == layout.micro_batches[0] * factor:
            batch = None if subject.batch is None else int(subject.batch * factor)
            other = layout._replace(micro_batches=count)
            title = f"{factor:g} times as many tokens per step"
            yield _cause("batch", title, subject, setting, other, batch)


def of_waiting(
    subject: LayoutSubject, setting: StepSetting, layout: Layouts, plain: StepCause
) -> Iterator[StepCause]:
    """Yield what the loader, one slow GPU and the allocator add: no part of the model's own step has them.

    All ranks wait for the slowest GPU, so that what it computes longer is added. An allocator that frees its
    cache takes `allocator.retry_s` per micro-batch, which was fitted to nanotron's runs near the limit.
    """

    def longer(family: str, title: str, place: str, added_s: float) -> StepCause:
        added = {place: added_s, **({} if place == "data" else in_passes(added_s))}
        places = {name: seconds + added.get(name, 0.0) for name, seconds in plain.places_s.items()}
        return StepCause(family=family, title=title, step_s=plain.step_s + added_s, places_s=places)

    for share in WAITS:
        title = f"a loader for which the step waits {share:.0%} longer"
        yield longer("loader", title, "data", share * plain.step_s)
    for share in PAUSES:
        title = f"a host whose pauses between launches make the step {share:.0%} longer"
        yield longer("launches", title, "gaps", share * plain.step_s)
    for share in SLOWEST_GPU:
        title = f"one GPU that computes {share:.0%} longer, for which all wait"
        yield longer("imbalance", title, "computing", share * plain.places_s["computing"])
    room, steps = fits(subject, layout), planned(setting, layout, subject.batch)
    smooth = chance_without_retries(setting.training.program, layout, room.needed / room.room)
    if smooth[0] < NEARLY_FULL:
        each_s = setting.constants["allocator.retry_s"] * float(layout.micro_batches[0] * steps.batches[0])
        for share in RETRIED:
            often = "each micro-batch" if share == 1 else f"{share:.0%} of the micro-batches"
            title = f"an allocator that frees its cache in {often}, with memory nearly full"
            yield longer("allocator", title, "idle", share * each_s)
