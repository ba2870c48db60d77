"""Predicted seconds of layouts, with 90 % intervals, and what a step's seconds are in the field's terms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from harness.instruments.transformer.flop import model_flop_per_token
from harness.records import Note, Origin, Reading, Unavailable
from suites.layouts.causes import asked_of, causes
from suites.layouts.nearest import nearest
from suites.layouts.subject import Subject, parts_note
from suites.training.layouts.divide import divides
from suites.training.layouts.layout import RECOMPUTES, Floats, Layouts
from suites.training.layouts.search import candidates, fits, title
from suites.training.step_time.questions.answers import PredictedSteps, predicted
from suites.training.step_time.questions.intervals import interval_of
from suites.training.step_time.questions.reader import AskedStep
from suites.training.step_time.rates.constants import GpuCluster, StepConstants
from suites.training.step_time.rates.gpu import gpu_of
from suites.training.step_time.whole_step.setting import StepSetting

MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
"""Sequences per micro-batch that are tried."""

LISTED = 40
"""Layouts that are returned, the fastest first."""

RETRIES_COST = 1.05
"""By how much a layout must be faster than another to be listed above it, if its allocator may retry: chosen,
since retries are not predicted but for nanotron, and differences below it are within the model's error."""

METHOD = "step_time"

COMPARED = ("a100_40gb", "a100_80gb", "h100_80gb", "b200", "gb200", "gb300")
"""GPUs, by their names in conf/hardware, on which predicted steps were compared with published ones."""


class RankedLayout(NamedTuple):
    """A layout that fits, with its predicted seconds."""

    layout: Layouts  # one
    seconds: float
    low: float
    high: float
    basis: str  # what the interval rests on


def setting_of(subject: Subject) -> StepSetting:
    """Return the model's setting; raises `Unavailable` for a device whose rates are not known."""
    workload = subject.workload
    gpu = gpu_of(workload.device)
    if gpu is None or not gpu.memory_B_per_s or not gpu.link_B_per_s or "bf16" not in gpu.matmul_FLOP_per_s:
        raise Unavailable(
            f"device={workload.device}: seconds need its rates of bf16 matmuls, memory and links, which "
            "conf/hardware does not have"
        )
    if workload.device not in COMPARED:
        raise Unavailable(
            f"device={workload.device}: seconds are not known; the model was compared with steps on "
            f"{', '.join(COMPARED)} alone"
        )
    gpu = replace(gpu, usable_memory_B=workload.usable_memory_B)
    cluster = GpuCluster(gpu, workload.gpus_per_node, workload.network_B_per_s, workload.network)
    constants = StepConstants.read()
    return StepSetting(subject.shape, subject.training, cluster, constants, compiled=workload.compiled)


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


def ranked(subject: Subject) -> tuple[list[RankedLayout], int]:
    """Return the layouts that fit, the fastest first, each with its fastest micro-batch and recompute.

    And how many were tried. Their memory has room for the allocator's fragmentation, see `search.fits`.
    """
    batch = subject.workload.global_batch_size
    setting = setting_of(subject)
    plain = candidates(subject.shape, subject.training, subject.cluster, batch)
    if not len(plain.tp):
        return [], 0
    every = with_micro_batches(plain, batch)
    of = fits(subject.shape, every, subject.training, subject.cluster)
    good = every.only(of.fits)
    if not len(good.tp):
        return [], len(every.tp)
    asked = asked_of(setting, good, batch)
    steps = predicted(asked)
    per_token = steps.seconds / tokens_of(subject, good) * np.where(of.retries[of.fits], RETRIES_COST, 1.0)
    chosen: dict[tuple[int, ...], RankedLayout] = {}
    for index in np.argsort(per_token):
        own = tuple(int(each[index]) for each in (good.tp, good.pp, good.cp, good.ep, good.dp))
        if own not in chosen and len(chosen) < LISTED:
            chosen[own] = one_of(asked, steps, int(index))
    return list(chosen.values()), len(every.tp)


def one_of(asked: AskedStep, steps: PredictedSteps, index: int) -> RankedLayout:
    """Return one of the layouts that were asked for."""
    interval = interval_of(asked, float(steps.filled[index]), index)
    seconds = float(steps.seconds[index])
    layout = asked.layouts.only(np.array([index]))
    return RankedLayout(layout, seconds, seconds * interval.low, seconds * interval.high, interval.words())


def tokens_of(subject: Subject, layouts: Layouts) -> Floats:
    """Return the tokens of the seconds that are predicted: of the batch, or of one step."""
    batch = subject.workload.global_batch_size
    sequences = layouts.dp * layouts.micro_batch_size * layouts.micro_batches if batch is None else batch
    return np.asarray(sequences * subject.workload.seq_len * np.ones(len(layouts.dp)), dtype=float)


def of_seconds(subject: Subject) -> Iterator[Reading | Note]:
    """Return the fastest layouts with their seconds, what switches are worth, and causes of a slower step."""
    if subject.workload.search:
        found, tried = ranked(subject)
        yield Reading("layouts_tried", "1", tried, Origin.CALCULATED, METHOD)
        yield Reading("layouts_that_fit", "1", len(found), Origin.CALCULATED, METHOD)
    else:
        asked = asked_of(setting_of(subject), subject.layout, subject.workload.global_batch_size)
        found = [one_of(asked, predicted(asked), 0)]
    for one in found:
        yield from of_one(subject, one, words_of(one.layout))
    if found:
        yield from parts_of(subject, found[0])
        yield from switches(subject, found[0])
        if not subject.workload.search:
            yield from causes(subject, setting_of(subject), found[0].layout, found[0].seconds)
        yield from nearest(setting_of(subject), found[0].layout)
        yield Note(f"interval: {found[0].basis}")
        yield parts_note(found[0].layout)


def words_of(layout: Layouts) -> str:
    """Return a layout in words, with its micro-batch."""
    size, count = int(layout.micro_batch_size[0]), int(layout.micro_batches[0])
    return f"{title(layout)}, micro-batch {size} × {count}"


def of_one(subject: Subject, one: RankedLayout, name: str) -> Iterator[Reading]:
    """Return one layout's seconds, what they are in tokens and FLOP, and its memory."""
    gpus, tokens = int(one.layout.gpus[0]), float(tokens_of(subject, one.layout)[0])
    rate = tokens * model_flop_per_token(subject.shape, subject.workload.seq_len) / one.seconds / gpus
    gpu = gpu_of(subject.workload.device)
    assert gpu is not None
    of = fits(subject.shape, one.layout, subject.training, subject.cluster)
    values: list[tuple[str, str, float]] = [
        ("step_time", "s", one.seconds),
        ("step_time/low", "s", one.low),
        ("step_time/high", "s", one.high),
        ("tokens_per_s_per_device", "token/s", tokens / one.seconds / gpus),
        ("model_flop_rate", "FLOP/s", rate),
        ("mfu", "1", rate / gpu.peak_FLOP_per_s("bf16")),
        ("needed_memory", "B", float(of.needed[0])),
        ("room_for_allocator", "B", float(of.room[0])),
        ("retries", "1", int(of.retries[0])),
    ]
    for metric, unit, value in values:
        yield Reading(metric, unit, value, Origin.CALCULATED, name)


def parts_of(subject: Subject, one: RankedLayout) -> Iterator[Reading]:
    """Return the fastest layout's seconds by part."""
    asked = asked_of(setting_of(subject), one.layout, subject.workload.global_batch_size)
    parts = predicted(asked).parts
    for name, value in parts.layers._asdict().items():
        yield Reading(f"part/{name}", "s", float(value[0]), Origin.CALCULATED, METHOD)
    for name in ("head", "bubble", "reduction", "update", "rest"):
        yield Reading(f"part/{name}", "s", float(getattr(parts, name)[0]), Origin.CALCULATED, METHOD)


def switches(subject: Subject, one: RankedLayout) -> Iterator[Reading | Note]:
    """Return the seconds per token with one switch changed, over the layout's own: above 1 it costs.

    A switch that does not divide is left out, and one whose layout does not fit is named.
    """
    batch = subject.workload.global_batch_size
    base = one.seconds / float(tokens_of(subject, one.layout)[0])
    for name, other, layout in alternatives(subject, one.layout):
        if not fits(other.shape, layout, other.training, other.cluster).fits[0]:
            yield Note(f"does not fit: {name}")
            continue
        asked = asked_of(setting_of(other), layout, batch)
        own = float(predicted(asked).seconds[0]) / float(tokens_of(other, layout)[0])
        yield Reading("switch", "1", own / base, Origin.CALCULATED, name)


def alternatives(subject: Subject, layout: Layouts) -> Iterator[tuple[str, Subject, Layouts]]:
    """Yield what differs by one switch: other layouts, and explicit attention in place of FlashAttention."""
    for name, row in neighbours(subject, layout):
        yield name, subject, Layouts.of([row])
    explicit = subject._replace(training=replace(subject.training, attention="unfused"))
    if not divides(subject.shape, layout, explicit.training)[0]:
        return
    yield "FlashAttention → explicit attention", explicit, layout
    if subject.training.program == "megatron" and RECOMPUTES[int(layout.recompute[0])] == "none":
        again = layout._replace(recompute=np.full_like(layout.recompute, RECOMPUTES.index("selective")))
        yield "FlashAttention → explicit attention, scores recomputed", explicit, again


def neighbours(subject: Subject, layout: Layouts) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield layouts that differ by one switch and divide, each with the switch in words."""
    now = {name: int(getattr(layout, name)[0]) for name in Layouts._fields}
    batch = subject.workload.global_batch_size or now["dp"] * now["micro_batch_size"] * now["micro_batches"]
    changes: list[tuple[str, dict[str, int]]] = []
    for name in ("tp", "pp", "cp"):
        for size in (now[name] * 2, now[name] // 2):
            if size >= 1 and size != now[name]:
                changes.append((f"{name} {now[name]} → {size}", {name: size}))
    for size in (now["micro_batch_size"] * 2, now["micro_batch_size"] // 2):
        if size >= 1:
            changes.append((f"micro-batch {now['micro_batch_size']} → {size}", {"micro_batch_size": size}))
    for index, recompute in enumerate(RECOMPUTES):
        if index != now["recompute"]:
            changes.append((f"{RECOMPUTES[now['recompute']]} → {recompute} recompute", {"recompute": index}))
    if subject.training.program in ("megatron", "nanotron"):
        changes.append((f"ZeRO-{now['zero']} → ZeRO-{1 - now['zero']}", {"zero": 1 - now["zero"]}))
    if now["pp"] > 1:
        for size in (now["virtual_stages"] * 2, now["virtual_stages"] // 2):
            if size >= 1:
                words = f"stages per rank {now['virtual_stages']} → {size}"
                changes.append((words, {"virtual_stages": size}))
    gpus = int(layout.gpus[0])
    for words, fields in changes:
        row = {**now, **fields}
        ranks = row["tp"] * row["pp"] * row["cp"]
        if gpus % ranks or row["tp"] > subject.cluster.gpus_per_node:
            continue
        row["dp"] = gpus // ranks
        row["shard_size"] = 0
        row["sequence_parallel"] = -1
        if batch % (row["dp"] * row["micro_batch_size"]):
            continue
        row["micro_batches"] = batch // (row["dp"] * row["micro_batch_size"])
        if divides(subject.shape, Layouts.of([row]), subject.training)[0]:
            yield words, row
