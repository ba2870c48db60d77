"""What a step would take if something were otherwise than was asked: causes of a slower or a faster step.

Each is predicted in several sizes. Which of them fits a user's own step is for `harness.advise` to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from harness.records import Origin, Reading
from suites.layouts.subject import Subject
from suites.training.layouts.layout import RECOMPUTES, Layouts
from suites.training.layouts.search import fits
from suites.training.step_time.questions.answers import predicted
from suites.training.step_time.questions.reader import AskedStep
from suites.training.step_time.rates.constants import StepConstants
from suites.training.step_time.whole_step.setting import StepSetting

SLOWER_NETWORKS = (1.5, 2.0, 4.0, 10.0)
SLOWER_LAUNCHES = (1.5, 2.0, 4.0)
LESS_POWER = (0.85, 0.7, 0.5)
SLOWEST_GPU = (0.1, 0.25, 0.5)
WAITS = (0.1, 0.25, 0.5, 1.0)
BATCHES = (0.5, 2.0)
"""Sizes in which causes are predicted: chosen, to span what a step can differ by."""


class SlowCause(NamedTuple):
    """One thing that is otherwise, and the step's seconds then."""

    family: str
    title: str
    seconds: float


def asked_of(setting: StepSetting, layouts: Layouts, batch: int | None) -> AskedStep:
    """Return layouts as the model's questions have them; a batch may take several steps."""
    held = layouts.dp * layouts.micro_batch_size * layouts.micro_batches
    batches = np.ones(len(held)) if batch is None else batch / held
    return AskedStep(setting, layouts, batches, True, setting.cluster.node_size)


def causes(subject: Subject, setting: StepSetting, layout: Layouts, seconds: float) -> Iterator[Reading]:
    """Return the seconds of a layout by cause, `cause/<family>`, whose method is the cause in words."""
    for one in [
        *of_settings(subject, setting, layout),
        *of_layout(subject, setting, layout),
        *of_waiting(subject, setting, layout, seconds),
    ]:
        yield Reading(f"cause/{one.family}", "s", one.seconds, Origin.CALCULATED, one.title)


def of_settings(subject: Subject, setting: StepSetting, layout: Layouts) -> Iterator[SlowCause]:
    """Yield what another network, host, overlap or power would make of the step."""
    cluster, batch = setting.cluster, subject.workload.global_batch_size
    program = setting.training.program

    def seconds_of(other: StepSetting) -> float:
        return float(predicted(asked_of(other, layout, batch)).seconds[0])

    if int(layout.gpus[0]) > cluster.node_size:
        for slower in SLOWER_NETWORKS:
            network = cluster._replace(network_B_per_s=cluster.network_B_per_s / slower)
            title = f"a network {slower:g} times slower than its name"
            yield SlowCause("network", title, seconds_of(replace(setting, cluster=network)))
    if int(layout.tp[0]) > 1 and setting.tensor_overlap and setting.own.tp_exposed < 1:
        title = "tensor-parallel communication that nothing overlaps"
        yield SlowCause("overlap", title, seconds_of(replace(setting, tensor_overlap=False)))
    launch_s = setting.constants.program(program).layer_launch_s
    for slower in SLOWER_LAUNCHES:
        constants = StepConstants(setting.constants | {f"{program}.layer_launch_s": slower * launch_s})
        title = f"a host that launches kernels {slower:g} times as slowly"
        yield SlowCause("launches", title, seconds_of(replace(setting, constants=constants)))
    for share in LESS_POWER:
        if share < cluster.gpu.power_share:
            gpu = replace(cluster.gpu, power_share=share)
            title = f"GPUs at {share:.0%} of their power"
            yield SlowCause("power", title, seconds_of(replace(setting, cluster=cluster._replace(gpu=gpu))))


def of_layout(subject: Subject, setting: StepSetting, layout: Layouts) -> Iterator[SlowCause]:
    """Yield what other recomputation and another batch than was asked would make of the step."""
    batch = subject.workload.global_batch_size
    for index, recompute in enumerate(RECOMPUTES):
        if index != int(layout.recompute[0]):
            other = layout._replace(recompute=np.array([index]))
            seconds = float(predicted(asked_of(setting, other, batch)).seconds[0])
            yield SlowCause("recompute", f"{recompute} recompute", seconds)
    for factor in BATCHES:
        count = np.maximum((layout.micro_batches * factor).astype(layout.micro_batches.dtype), 1)
        if count[0] != layout.micro_batches[0] * factor:
            continue
        other = layout._replace(micro_batches=count)
        held = None if batch is None else int(batch * factor)
        seconds = float(predicted(asked_of(setting, other, held)).seconds[0])
        yield SlowCause("batch", f"{factor:g} times as many tokens per step", seconds)


def of_waiting(
    subject: Subject, setting: StepSetting, layout: Layouts, seconds: float
) -> Iterator[SlowCause]:
    """Yield what the loader, one slow GPU and the allocator add: no part of the model's own step has them.

    All ranks wait for the slowest GPU, so that what it computes longer is added. An allocator that frees its
    cache takes `allocator.retry_s` per micro-batch, which was fitted to nanotron's runs near the limit.
    """
    for share in WAITS:
        title = f"a loader for which the step waits {share:.0%} longer"
        yield SlowCause("loader", title, seconds * (1 + share))
    parts = predicted(asked_of(setting, layout, subject.workload.global_batch_size)).parts
    layers = parts.layers
    computing = float((layers.matmul + layers.attention + layers.pointwise + parts.head)[0])
    steps = seconds / float(parts.total[0])  # of the layout in the batch
    for share in SLOWEST_GPU:
        title = f"one GPU that computes {share:.0%} longer, for which all wait"
        yield SlowCause("straggler", title, seconds + share * computing * steps)
    room = fits(subject.shape, layout, subject.training, subject.cluster)
    if room.retries[0] or not room.fits[0]:
        retries_s = setting.constants["allocator.retry_s"] * float(layout.micro_batches[0]) * steps
        title = "an allocator that frees its cache in each micro-batch, with memory nearly full"
        yield SlowCause("allocator", title, seconds + retries_s)
