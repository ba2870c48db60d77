"""The engine of seconds: how fast layouts of a training step are, with 90 % intervals, and why.

`answer` ranks every layout that fits by its expected tokens/s, or takes the one that was asked for.
`timeline_of` and `memory_of_ranks` are for a page that draws one layout. With numpy alone, in this process;
nothing is run.

What a step would take if one thing were otherwise: switches of its layout, and `causes` of another speed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from harness.answer import Answer, Interval, RankedLayout, StepAnswer
from harness.instruments.transformer import model_flop_per_token
from harness.question import Extent, Question
from suites.training.account_engine import conditions, memory_of, ranked_layout, verdict
from suites.training.layouts.chance import REPLAYED, PeakError
from suites.training.layouts.layout import RECOMPUTES, Layouts
from suites.training.layouts.search import LayoutSubject, candidates, divides, fits, memory_kinds
from suites.training.of_question import (
    left_out,
    seconds_left_out,
    seconds_subject_of,
    setting_of,
)
from suites.training.step_time.causes import causes, places_of, timers_of
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
"""Layouts that are returned, the best first."""


def answer(question: Question, bytes_error: Interval | None = None, extent: Extent = "largest") -> Answer:
    """Return the seconds of a question's layout, or of all that fit, by the tokens/s to expect.

    `bytes_error`: reserved over predicted bytes of questions of its kind, for the chance that a layout runs.
    `extent`: "asked" leaves out what would make the step slower or faster, which takes most of the time.

    Of the first layout the answer also has memory, parts, switches and the nearest published steps, and of a
    layout that was asked for what would make it slower or faster. On a chip without published steps
    (`COMPARED_CHIPS`) the interval is wider. Raises `Unavailable` in one line.
    """
    subject = seconds_subject_of(question)
    setting = setting_of(subject)
    error = REPLAYED if bytes_error is None else PeakError.of(bytes_error)
    answered = Answer(
        verdict="does not fit",
        engine="step time",
        parameters=subject.shape.parameters,
        conditions=conditions(subject),
        left_out=(*left_out(subject.question), *seconds_left_out(subject.question)),
    )
    if subject.question.search:
        layouts, tried = ranked(subject, setting, error)
        answered = answered.with_(layouts_tried=tried, layouts_that_fit=len(layouts))
    else:
        steps = planned(setting, subject.layout, subject.batch, error)
        layouts = [with_seconds(subject, steps, predicted(steps), 0)]
    if not layouts:
        return answered
    first = Layouts.of([layouts[0].parts])
    return answered.with_(
        verdict=verdict(layouts[0]),
        memory=memory_of(subject, first),
        layouts=tuple(layouts),
        seconds=seconds_of(subject, setting, first, extent != "asked" and not subject.question.search),
    )


def ranked(subject: LayoutSubject, setting: StepSetting, error: PeakError) -> tuple[list[RankedLayout], int]:
    """Return the layouts that fit, those with the most expected tokens/s first, each once.

    And how many were tried. What is expected has the chance that a layout runs and that its allocator retries
    in it, see `prediction.expected`. Memory has room for fragmentation, see `search.fits`.
    """
    plain = candidates(subject)
    if not len(plain.tp):
        return [], 0
    every = with_micro_batches(plain, subject.batch)
    of = fits(subject, every)
    good = every.only(of.fits)
    if not len(good.tp):
        return [], len(every.tp)
    steps = planned(setting, good, subject.batch, error)
    found = predicted(steps)
    expected = found.rate * subject.tokens(good)
    chosen: dict[tuple[int, ...], RankedLayout] = {}
    for index in np.argsort(-expected, kind="stable"):
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
    own, asked = steps.setting.training.seq_len, subject.training.seq_len
    gpus, tokens = int(layout.gpus[0]), float(subject.tokens(layout)[0]) * own / asked
    flop = model_flop_per_token(subject.shape, own) * tokens
    least = fewest_s(steps.setting, tokens / gpus)
    longest = 1.0
    if own < asked:  # all sequences may be as long as asked for
        training = replace(steps.setting.training, seq_len=asked)
        longest = step_s(replace(steps.setting, training=training), layout, subject.batch) / seconds
    size, count = of.parts["micro_batch_size"], of.parts["micro_batches"]
    return msgspec.structs.replace(
        of,
        title=f"{of.title}, micro-batch {size} × {count}",
        step_s=bounded(least, seconds, (interval.low, 1.0, interval.high * longest)),
        basis=interval.words(),
        as_run_s=came_out and bounded(least, seconds, (*came_out[:2], came_out.high * longest)),
        chance_to_run=float(found.chance[index]),
        as_run_of="" if came_out is None else came_out.of,
        as_run_kind=kind,
        tokens_per_s_per_device=tokens / seconds / gpus,
        model_FLOP_per_s=flop / seconds / gpus,
        mfu=flop / seconds / gpus / steps.setting.gpu.peak_FLOP_per_s("bf16"),
    )


def fewest_s(setting: StepSetting, tokens: float) -> float:
    """Return the seconds of a device's tokens at the peak rate of its datasheet, which no step beats.

    A causal mask saves half of attention's FLOP at most, frozen weights a third: the gradients of weights.
    """
    plain, full = (model_flop_per_token(setting.shape, each) for each in (1, setting.training.seq_len))
    share = 2 / 3 if setting.run.adapters_alone else 1.0
    return share * tokens * (plain + full) / 2 / setting.gpu.peak_FLOP_per_s(setting.precision)


def bounded(least: float, seconds: float, ends: tuple[float, float, float]) -> Interval:
    """Return the interval of times as many seconds, none below the least."""
    low, likely = (max(least, seconds * end) for end in ends[:2])
    return Interval(low, likely, max(likely, seconds * ends[2]))


def seconds_of(
    subject: LayoutSubject, setting: StepSetting, layout: Layouts, with_causes: bool
) -> StepAnswer:
    """Return where a layout's seconds go, what switches are worth, what is like it, and causes of others."""
    steps = planned(setting, layout, subject.batch)
    found = predicted(steps)
    worth, without = switches(subject, setting, layout)
    batches = float(steps.batches[0])
    places_s = places_of(found, batches, setting.run.rollout)
    return StepAnswer(
        parts_s=found.parts.by_name(0),
        places_s=places_s | timers_of(setting, layout, found, batches),
        switches=worth,
        switches_that_do_not_fit=without,
        causes=tuple(causes(subject, setting, layout)) if with_causes else (),
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


def step_s(setting: StepSetting, layout: Layouts, batch: int | None) -> float:
    """Return the seconds of one layout for a batch."""
    return float(predicted(planned(setting, layout, batch)).seconds[0])


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
