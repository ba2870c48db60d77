"""The lines that `harness.advise` prints: layouts by predicted speed, switches, where the seconds go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from harness.answer import Answer, RankedLayout, StepAnswer
from harness.ask.lines import GB, PROGRAMS, devices_of, model_title, parameters, table, turns, wrapped
from harness.ask.words import link_title
from harness.question import Question

if TYPE_CHECKING:
    from harness.ask.mine import OwnStep

LISTED = 8
"""Layouts that are listed; the others are in answer.json."""

PARTS = {
    "matmul": "matmuls of layers",
    "attention": "attention",
    "pointwise": "norms, activations, residuals",
    "launch": "waiting for the host",
    "tensor": "tensor parallelism",
    "context": "context parallelism",
    "expert": "experts' all-to-all",
    "shard": "gathering sharded parameters",
    "head": "output layer and loss",
    "bubble": "pipeline bubble",
    "reduction": "reducing gradients",
    "update": "optimizer",
    "rest": "stragglers and others",
}
"""Parts of a step, in which communication counts as far as nothing hides it."""


def answer_lines(
    answer: Answer, question: Question, rate: float | None, mine: OwnStep | None
) -> Iterator[str]:
    """Yield the layouts, the switches, the parts and what it rests on; `rate`: dollars per GPU-hour."""
    if not answer.layouts:
        yield f"no layout fits; {answer.layouts_tried or 0:,} were tried"
        yield from what_was_asked(answer, question)
        return
    yield from of_layouts(answer, question)
    if rate is not None:
        yield from of_price(answer.layouts[0], rate)
    seconds = answer.seconds or StepAnswer()
    if mine is not None:
        from harness.ask.mine import lines

        yield ""
        yield from lines(mine, answer)
    yield ""
    yield from of_nearest(seconds)
    yield ""
    yield from switches(seconds)
    yield ""
    yield from parts(seconds)
    yield ""
    yield from conditions(answer, question)


def own_lines(name: str, answer: Answer, others: Answer, mine: OwnStep | None) -> Iterator[str]:
    """Yield the seconds of a file's own layout, how they compare, and how much others gain."""
    one = answer.layouts[0]
    step_s, tokens_per_s = one.step_s, one.tokens_per_s_per_device
    assert step_s is not None
    assert tokens_per_s
    no = "" if one.fits else ", which does not fit"
    interval = f"{step_s.low:.3g} … {step_s.high:.3g}"
    yield f"{name}: {one.title}: {step_s.likely:.3g} s per step (90 %: {interval})"
    yield (
        f"  {(one.model_FLOP_per_s or 0) / 1e12:.0f} TFLOP/s per GPU, {one.mfu or 0:.0%} MFU, "
        f"{tokens_per_s:,.0f} tokens/s per GPU; {GB(one.needed_B)} of {GB(one.room_B)} GB{no}"
    )
    yield from turns(answer)
    if mine is not None:
        from harness.ask.mine import lines

        yield from lines(mine, answer)
    yield from of_nearest(answer.seconds or StepAnswer())
    if others.layouts and others.layouts[0].tokens_per_s_per_device:
        gain = others.layouts[0].tokens_per_s_per_device / tokens_per_s
        yield from wrapped(
            f"The first of all layouts below has {gain:.2f} times its tokens/s."
            if gain > 1.005
            else "No layout below is predicted to be more than 0.5 % faster."
        )
    yield ""


def of_layouts(answer: Answer, question: Question) -> Iterator[str]:
    """Yield the fastest layouts with their rates, intervals and memory."""
    best = answer.layouts[0]
    assert best.step_s is not None
    low, likely, high = best.step_s
    lacks = "" if best.fits else "does not fit: "
    yield f"{lacks}{best.title}: {likely:.3g} s per step (90 %: {low:.3g} … {high:.3g})"
    yield from () if question.search else turns(answer)
    yield from what_was_asked(answer, question)
    yield ""
    rows = [["", "TFLOP/s per GPU", "90 %", "MFU", "s per step", "GB"]]
    for rank, one in enumerate(answer.layouts[:LISTED], 1):
        assert one.step_s is not None
        rate, step_s = (one.model_FLOP_per_s or 0.0) / 1e12, one.step_s
        span = f"{rate * step_s.likely / step_s.high:.0f} … {rate * step_s.likely / step_s.low:.0f}"
        memory = f"{GB(one.needed_B)} of {GB(one.room_B)}{' (retries)' if one.retries else ''}"
        rows.append(
            [
                f"{rank}. {one.title}",
                f"{rate:.0f}",
                span,
                f"{one.mfu or 0.0:.0%}",
                f"{step_s.likely:.3g}",
                memory,
            ]
        )
    yield from table(rows)


def of_price(best: RankedLayout, rate: float) -> Iterator[str]:
    """Yield what tokens cost at the first layout, at a rate in dollars per GPU-hour."""
    assert best.step_s is not None
    per_token = rate / 3600 / (best.tokens_per_s_per_device or 1.0)
    low, high = (per_token * 1e12 * end / best.step_s.likely for end in (best.step_s.low, best.step_s.high))
    yield (
        f"At ${rate:g} per GPU-hour the first costs ${per_token * 1e12:,.0f} per 10^12 tokens "
        f"(90 %: {low:,.0f} … {high:,.0f})."
    )


def what_was_asked(answer: Answer, question: Question) -> Iterator[str]:
    """Yield the model, the cluster and the batch."""
    batch, seq_len = question.global_batch_size, question.seq_len or 0
    if batch is None and not question.search and question.gradient_accumulation_steps:
        batch = question.micro_batch_size * question.micro_batches() * question.dp_of()
    tokens = f"{batch * seq_len:,} tokens per step" if batch else "any batch"
    yield from wrapped(
        f"{model_title(question)}, {parameters(answer.parameters or 0.0)}; {devices_of(question)}, "
        f"{link_title(question)}; {seq_len:,} tokens per sequence, {tokens}, {question.precision}, as "
        f"{PROGRAMS[question.program_of()]} trains."
    )


def switches(seconds: StepAnswer) -> Iterator[str]:
    """Yield what each single switch of the first layout is worth, the best first."""
    if not seconds.switches:
        return
    yield "What each switch of the first is worth, in seconds per token"
    for name, ratio in sorted(seconds.switches.items(), key=lambda one: one[1]):
        yield f"  {name}: {'costs' if ratio > 1 else 'saves'} {abs(ratio - 1):.1%}"
    if seconds.switches_that_do_not_fit:
        yield from wrapped(f"  do not fit: {', '.join(seconds.switches_that_do_not_fit)}", "    ")


def parts(seconds: StepAnswer) -> Iterator[str]:
    """Yield where the seconds of the first layout go."""
    total = sum(seconds.parts_s.values())
    if not total:
        return
    yield "Where its seconds go; communication as far as nothing hides it"
    for name, words in PARTS.items():
        if seconds.parts_s.get(name, 0.0) > 0.001 * total:
            yield f"  {seconds.parts_s[name] / total:>4.0%}  {words}"


def of_nearest(seconds: StepAnswer) -> Iterator[str]:
    """Yield the published steps that are the nearest, with what the model predicts for them."""
    for step in seconds.nearest:
        published, predicted = (
            step.FLOP_per_device / one / 1e12 for one in (step.published_s, step.predicted_s)
        )
        yield from wrapped(
            f"Nearest published: {step.title}: {step.published_s:.3g} s, {published:.0f} TFLOP/s per GPU; "
            f"predicted for it {step.predicted_s:.3g} s, {predicted:.0f}."
        )


def conditions(answer: Answer, question: Question) -> Iterator[str]:
    """Yield what the answer rests on."""
    overlap = (
        " Assumed: tensor parallelism overlaps its communication (--tp-comm-overlap)."
        if question.program_of() == "megatron"
        else ""
    )
    yield from wrapped(
        f"Calculated. Interval: {answer.layouts[0].basis}.{overlap} FLOP: 6 per matmul parameter and token "
        "and 12 Lsh of attention, without a mask's saving; MFU is of the datasheet's bf16 rate. Memory has "
        "the allocator's fragmentation. docs/commands/advise.md reports how far off it is."
    )
