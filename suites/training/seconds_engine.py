"""The engine of seconds: how fast layouts of a training step are, with 90 % intervals, and why.

`answer` ranks every layout that fits, or takes the one that was asked for. `timeline_of` and
`memory_of_ranks` are for a page that draws one layout. With numpy alone, in this process; nothing is run.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from harness.answer import Answer, Interval, RankedLayout, StepAnswer
from harness.instruments.transformer import model_flop_per_token
from harness.question import Question
from suites.training.account_engine import conditions, memory_of, ranked_layout, verdict
from suites.training.layouts.layout import Layouts
from suites.training.layouts.search import LayoutSubject, candidates, fits, memory_kinds
from suites.training.of_question import (
    left_out,
    seconds_left_out,
    seconds_subject_of,
    setting_of,
)
from suites.training.step_time.prediction import PlannedSteps, PredictedSteps, interval_of, planned, predicted
from suites.training.step_time.published.nearest import nearest
from suites.training.step_time.what_if import causes, switches
from suites.training.step_time.whole_step.setting import StepSetting
from suites.training.step_time.whole_step.timeline import View, timeline

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
    of = ranked_layout(subject, layout)
    gpus, tokens = int(layout.gpus[0]), float(subject.tokens(layout)[0])
    flop = model_flop_per_token(subject.shape, subject.training.seq_len) * tokens
    size, count = of.parts["micro_batch_size"], of.parts["micro_batches"]
    return msgspec.structs.replace(
        of,
        title=f"{of.title}, micro-batch {size} × {count}",
        step_s=Interval(seconds * interval.low, seconds, seconds * interval.high),
        basis=interval.words(),
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
