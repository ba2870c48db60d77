"""What a step would take if one thing were otherwise: switches of its layout, and causes of another speed.

A cause is predicted in several sizes. Which of them fits a user's own step is for `harness.advise` to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from harness.answer import StepCause
from suites.training.layouts.divide import divides
from suites.training.layouts.layout import RECOMPUTES, Layouts
from suites.training.layouts.search import LayoutSubject, fits
from suites.training.step_time.prediction import planned, predicted
from suites.training.step_time.rates.constants import StepConstants
from suites.training.step_time.whole_step.setting import StepSetting

SLOWER_NETWORKS = (1.5, 2.0, 4.0, 10.0)
SLOWER_LAUNCHES = (1.5, 2.0, 4.0)
LESS_POWER = (0.85, 0.7, 0.5)
SLOWEST_GPU = (0.1, 0.25, 0.5)
WAITS = (0.1, 0.25, 0.5, 1.0)
BATCHES = (0.5, 2.0)
"""Sizes in which causes are predicted: chosen, to span what a step can differ by."""


def step_s(setting: StepSetting, layout: Layouts, batch: int | None) -> float:
    """Return the seconds of one layout for a batch."""
    return float(predicted(planned(setting, layout, batch)).seconds[0])


def causes(subject: LayoutSubject, setting: StepSetting, layout: Layouts) -> Iterator[StepCause]:
    """Yield causes of a slower or faster step, each with the seconds that it predicts."""
    yield from of_settings(subject, setting, layout)
    yield from of_layout(subject, setting, layout)
    yield from of_waiting(subject, setting, layout)


def of_settings(subject: LayoutSubject, setting: StepSetting, layout: Layouts) -> Iterator[StepCause]:
    """Yield what another network, host, overlap or power would make of the step."""
    cluster, program = setting.cluster, setting.training.program

    def cause(family: str, title: str, other: StepSetting) -> StepCause:
        return StepCause(family=family, title=title, step_s=step_s(other, layout, subject.batch))

    if int(layout.gpus[0]) > cluster.node_size:
        for slower in SLOWER_NETWORKS:
            network = cluster._replace(network_B_per_s=cluster.network_B_per_s / slower)
            title = f"a network {slower:g} times slower than its name"
            yield cause("network", title, replace(setting, cluster=network))
    if int(layout.tp[0]) > 1 and setting.run.tensor_overlap and setting.own.tp_exposed < 1:
        title = "tensor-parallel communication that nothing overlaps"
        yield cause("overlap", title, replace(setting, run=setting.run._replace(tensor_overlap=False)))
    launch_s = setting.constants.program(program).layer_launch_s
    for slower in SLOWER_LAUNCHES:
        constants = StepConstants(setting.constants | {f"{program}.layer_launch_s": slower * launch_s})
        title = f"a host that launches kernels {slower:g} times as slowly"
        yield cause("launches", title, replace(setting, constants=constants))
    for share in LESS_POWER:
        if share < cluster.gpu.power_share:
            gpu = replace(cluster.gpu, power_share=share)
            title = f"GPUs at {share:.0%} of their power"
            yield cause("power", title, replace(setting, cluster=cluster._replace(gpu=gpu)))


def of_layout(subject: LayoutSubject, setting: StepSetting, layout: Layouts) -> Iterator[StepCause]:
    """Yield what other recomputation and another batch than was asked would make of the step."""
    batch = subject.batch
    for index, recompute in enumerate(RECOMPUTES):
        if index != int(layout.recompute[0]):
            other = layout._replace(recompute=np.array([index]))
            title = f"{recompute} recompute"
            yield StepCause(family="recompute", title=title, step_s=step_s(setting, other, batch))
    for factor in BATCHES:
        count = np.maximum((layout.micro_batches * factor).astype(layout.micro_batches.dtype), 1)
        if count[0] != layout.micro_batches[0] * factor:
            continue
        seconds = step_s(
            setting,
            layout._replace(micro_batches=count),
            None if batch is None else int(batch * factor),
        )
        yield StepCause(family="batch", title=f"{factor:g} times as many tokens per step", step_s=seconds)


def of_waiting(subject: LayoutSubject, setting: StepSetting, layout: Layouts) -> Iterator[StepCause]:
    """Yield what the loader, one slow GPU and the allocator add: no part of the model's own step has them.

    All ranks wait for the slowest GPU, so that what it computes longer is added. An allocator that frees its
    cache takes `allocator.retry_s` per micro-batch, which was fitted to nanotron's runs near the limit.
    """
    of = predicted(planned(setting, layout, subject.batch))
    seconds, parts, layers = float(of.seconds[0]), of.parts, of.parts.layers
    for share in WAITS:
        title = f"a loader for which the step waits {share:.0%} longer"
        yield StepCause(family="loader", title=title, step_s=seconds * (1 + share))
    computing = float((layers.matmul + layers.attention + layers.pointwise + parts.head)[0])
    steps = seconds / float(parts.total[0])  # of the layout in the batch
    for share in SLOWEST_GPU:
        title = f"one GPU that computes {share:.0%} longer, for which all wait"
        yield StepCause(family="straggler", title=title, step_s=seconds + share * computing * steps)
    room = fits(subject, layout)
    if room.retries[0] or not room.fits[0]:
        retries_s = setting.constants["allocator.retry_s"] * float(layout.micro_batches[0]) * steps
        title = "an allocator that frees its cache in each micro-batch, with memory nearly full"
        yield StepCause(family="allocator", title=title, step_s=seconds + retries_s)


def switches(
    subject: LayoutSubject, setting: StepSetting, layout: Layouts
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return the seconds per token with one switch changed, over the layout's own: above 1 it costs.

    And the switches whose layout does not fit. One that does not divide is left out.
    """

    def token_s(of: StepSetting, layout: Layouts) -> float:
        return step_s(of, layout, subject.batch) / float(subject.tokens(layout)[0])

    own, worth, without = token_s(setting, layout), {}, []
    for title, other, changed in alternatives(subject, setting, layout):
        if fits(subject._replace(training=other.training), changed).fits[0]:
            worth[title] = token_s(other, changed) / own
        else:
            without.append(title)
    return worth, tuple(without)


def alternatives(
    subject: LayoutSubject, setting: StepSetting, layout: Layouts
) -> Iterator[tuple[str, StepSetting, Layouts]]:
    """Yield what differs by one switch: other layouts, and explicit attention in place of FlashAttention."""
    for title, row in neighbours(subject, layout):
        yield title, setting, Layouts.of([row])
    explicit = replace(setting, training=replace(subject.training, attention="unfused"))
    if setting.training.attention == "unfused" or not divides(subject.shape, layout, explicit.training)[0]:
        return
    yield "FlashAttention → explicit attention", explicit, layout
    if subject.training.program == "megatron" and RECOMPUTES[int(layout.recompute[0])] == "none":
        again = layout._replace(recompute=np.full_like(layout.recompute, RECOMPUTES.index("selective")))
        yield "FlashAttention → explicit attention, scores recomputed", explicit, again


def neighbours(subject: LayoutSubject, layout: Layouts) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield layouts that differ by one switch and divide, each with the switch in words."""
    now = layout.row()
    batch = subject.batch or now["dp"] * now["micro_batch_size"] * now["micro_batches"]
    gpus = int(layout.gpus[0])
    for title, fields in single_switches(subject, now):
        row = {**now, **fields, "shard_size": 0, "sequence_parallel": -1}
        ranks = row["tp"] * row["pp"] * row["cp"]
        if gpus % ranks or row["tp"] > subject.cluster.gpus_per_node:
            continue
        row["dp"] = gpus // ranks
        row["micro_batches"], rest = divmod(batch, row["dp"] * row["micro_batch_size"])
        if not rest and divides(subject.shape, Layouts.of([row]), subject.training)[0]:
            yield title, row


def single_switches(subject: LayoutSubject, now: dict[str, int]) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield one changed size at a time, whether or not it divides."""

    def halves_and_doubles(name: str, words: str) -> Iterator[tuple[str, dict[str, int]]]:
        for size in (now[name] * 2, now[name] // 2):
            if size >= 1:
                yield f"{words} {now[name]} → {size}", {name: size}

    for name in ("tp", "pp", "cp"):
        yield from halves_and_doubles(name, name)
    yield from halves_and_doubles("micro_batch_size", "micro-batch")
    for index, recompute in enumerate(RECOMPUTES):
        if index != now["recompute"]:
            yield f"{RECOMPUTES[now['recompute']]} → {recompute} recompute", {"recompute": index}
    if subject.training.program in ("megatron", "nanotron"):
        yield f"ZeRO-{now['zero']} → ZeRO-{1 - now['zero']}", {"zero": 1 - now["zero"]}
    if now["pp"] > 1:
        yield from halves_and_doubles("virtual_stages", "stages per rank")
