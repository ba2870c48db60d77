"""The engine of seconds: how fast layouts of a training step are, with 90 % intervals, and why.

`answer` ranks every layout that fits, or takes the one that was asked for. `timeline_of` and
`memory_of_ranks` are for a page that draws one layout. With numpy alone, in this process; nothing is run.

What a step would take if one thing were otherwise: switches of its layout, and causes of another speed. A
cause is predicted in several sizes. Which of them fits a user's own step is for `harness.advise` to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from harness.answer import Answer, Interval, RankedLayout, StepAnswer, StepCause
from harness.instruments.transformer import model_flop_per_token
from harness.question import Question
from suites.training.account_engine import conditions, memory_of, ranked_layout, verdict
from suites.training.layouts.layout import RECOMPUTES, Layouts
from suites.training.layouts.search import LayoutSubject, candidates, divides, fits, memory_kinds
from suites.training.of_question import (
    left_out,
    seconds_left_out,
    seconds_subject_of,
    setting_of,
)
from suites.training.step_time.constants import StepConstants
from suites.training.step_time.prediction import (
    PlannedSteps,
    PredictedSteps,
    as_run,
    interval_of,
    planned,
    predicted,
    run_kind,
)
from suites.training.step_time.published.steps import nearest
from suites.training.step_time.setting import StepSetting
from suites.training.step_time.timeline import View, timeline

MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
"""Sequences per micro-batch that are tried."""

LISTED = 40
"""Layouts that are returned, the fastest first."""

RETRIES_COST = 1.05
"""By how much a layout must be faster than another to be listed above it, if its allocator may retry: chosen,
since retries are not predicted but for nanotron, and differences below it are within the model's error."""


def answer(question: Question) -> Answer:
    """Return the seconds of a question's layout, or of all that fit, the fastest first.

    Of the first layout the answer also has memory, parts, switches and the nearest published steps, and of a
    layout that was asked for what would make it slower or faster. Raises `Unavailable` in one line, also for
    a device on which nothing was compared, see `COMPARED`.
    """
    subject = seconds_subject_of(question)
    setting = setting_of(subject)
    answered = Answer(
        verdict="does not fit",
        engine="step time",
        parameters=subject.shape.parameters,
        conditions=conditions(subject),
        left_out=(*left_out(subject.question), *seconds_left_out(subject.question)),
    )
    if subject.question.search:
        layouts, tried = ranked(subject, setting)
        answered = answered.with_(layouts_tried=tried, layouts_that_fit=len(layouts))
    else:
        steps = planned(setting, subject.layout, subject.batch)
        layouts = [with_seconds(subject, steps, predicted(steps), 0)]
    if not layouts:
        return answered
    first = Layouts.of([layouts[0].parts])
    return answered.with_(
        verdict=verdict(layouts[0]),
        memory=memory_of(subject, first),
        layouts=tuple(layouts),
        seconds=seconds_of(subject, setting, first),
    )


def ranked(subject: LayoutSubject, setting: StepSetting) -> tuple[list[RankedLayout], int]:
    """Return the layouts that fit, the fastest first, each with its fastest micro-batch and recompute.

    And how many were tried. Their memory has room for the allocator's fragmentation, see `search.fits`.
    """
    plain = candidates(subject)
    if not len(plain.tp):
        return [], 0
    every = with_micro_batches(plain, subject.batch)
    of = fits(subject, every)
    good = every.only(of.fits)
    if not len(good.tp):
        return [], len(every.tp)
    steps = planned(setting, good, subject.batch)
    found = predicted(steps)
    per_token = found.seconds / subject.tokens(good) * np.where(of.retries[of.fits], RETRIES_COST, 1.0)
    chosen: dict[tuple[int, ...], RankedLayout] = {}
    for index in np.argsort(per_token):
        ranks = tuple(int(each[index]) for each in (good.tp, good.pp, good.cp, good.ep, good.dp))
        if ranks not in chosen and len(chosen) < LISTED:
            chosen[ranks] = with_seconds(subject, steps, found, int(index))
    return list(chosen.values()), len(every.tp)


def with_micro_batches(layouts: Layouts, batch: int | None) -> Layouts:
    """Return every layout with every micro-batch that divides its part of the batch."""
    parts = []
    for size in MICRO_BATCHES:
        of_rank = layouts.micro_batches if batch is None else batch // layouts.dp
        divides = np.ones_like(of_rank, dtype=bool) if batch is None else of_rank % size == 0
        count = of_rank if batch is None else of_rank // size
        interleaved = (layouts.virtual_stages == 1) | (count % layouts.pp == 0)
        sized = layouts._replace(micro_batch_size=np.full_like(of_rank, size), micro_batches=count)
        parts.append(sized.only(divides & (count > 0) & interleaved))
    return Layouts(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def with_seconds(
    subject: LayoutSubject, steps: PlannedSteps, found: PredictedSteps, index: int
) -> RankedLayout:
    """Return one of the layouts with its seconds, what they are in tokens and FLOP, and its memory."""
    layout, seconds = steps.layouts.only(np.array([index])), float(found.seconds[index])
    interval = interval_of(steps, float(found.filled[index]), index)
    kind = run_kind(steps.setting)
    of, came_out = ranked_layout(subject, layout), as_run(kind)
    gpus, tokens = int(layout.gpus[0]), float(subject.tokens(layout)[0])
    flop = model_flop_per_token(subject.shape, subject.training.seq_len) * tokens
    size, count = of.parts["micro_batch_size"], of.parts["micro_batches"]
    return msgspec.structs.replace(
        of,
        title=f"{of.title}, micro-batch {size} × {count}",
        step_s=Interval(seconds * interval.low, seconds, seconds * interval.high),
        basis=interval.words(),
        as_run_s=came_out and Interval(*(seconds * one for one in came_out[:3])),
        as_run_of="" if came_out is None else came_out.of,
        as_run_kind=kind,
        tokens_per_s_per_device=tokens / seconds / gpus,
        model_FLOP_per_s=flop / seconds / gpus,
        mfu=flop / seconds / gpus / steps.setting.gpu.peak_FLOP_per_s("bf16"),
    )


def seconds_of(subject: LayoutSubject, setting: StepSetting, layout: Layouts) -> StepAnswer:
    """Return where a layout's seconds go, what switches are worth, and what is like it."""
    parts = predicted(planned(setting, layout, subject.batch)).parts
    worth, without = switches(subject, setting, layout)
    return StepAnswer(
        parts_s=parts.by_name(0),
        switches=worth,
        switches_that_do_not_fit=without,
        causes=() if subject.question.search else tuple(causes(subject, setting, layout)),
        nearest=tuple(nearest(setting, layout)),
    )


def timeline_of(question: Question, view: View = "step") -> dict[str, Any]:
    """Return the spans of each pipeline rank of a question's layout in seconds; raises `Unavailable`."""
    subject = seconds_subject_of(question)
    setting = setting_of(subject)
    steps = predicted(planned(setting, subject.layout, subject.batch))
    drawn = timeline(setting, subject.layout, steps.parts, float(steps.seconds[0]), view)
    return {**drawn._asdict(), "ranks": [[list(span) for span in rank] for rank in drawn.ranks]}


def memory_of_ranks(question: Question) -> dict[str, Any]:
    """Return the bytes of each pipeline rank of a question's layout by kind, and those that a device has."""
    subject = seconds_subject_of(question)
    kinds = memory_kinds(subject)
    by_kind = {name: values.tolist() for name, values in kinds.items()}
    return {"usable_B": subject.cluster.usable_B, "kinds": by_kind}


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
    cluster = setting.cluster

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
    launches = [name for name in setting.constants if name.endswith("launch_s")]
    for slower in SLOWER_LAUNCHES:
        of_host = {name: slower * setting.constants[name] for name in launches}
        constants = StepConstants(setting.constants | of_host)
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
