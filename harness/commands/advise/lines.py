"""The lines that `harness.advise` prints: layouts by predicted speed, switches, where the seconds go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harness.commands.advise.explained import of_mine, of_nearest
from harness.commands.advise.question import AdviseQuestion
from harness.commands.fit.answer import GB, value
from harness.commands.fit.layout_lines import PROGRAMS
from harness.commands.fit.lines import parameters, table, wrapped
from harness.records import Record

LISTED = 8
"""Layouts that are listed; the others are in the records."""

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


def lines(record: Record, question: AdviseQuestion) -> Iterator[str]:
    """Yield the layouts, the switches, the parts and what it rests on."""
    found = layouts_of(record)
    if not found:
        tried = int(value(record, "layouts_tried") or 0)
        yield f"no layout fits; {tried:,} were tried"
        yield from what_was_asked(record, question)
        return
    yield from of_layouts(record, question, found)
    if question.mine_s is not None:
        yield ""
        yield from question.mine_said
        yield from of_mine(record, question.mine_s, next(iter(found.values())))
    yield ""
    yield from of_nearest(record)
    yield ""
    yield from switches(record)
    yield ""
    yield from parts(record)
    yield ""
    yield from conditions(record, question)


Values = Mapping[str, float]


def layouts_of(record: Record) -> Mapping[str, Values]:
    """Return the values of each layout by its words, the fastest first."""
    found: dict[str, dict[str, float]] = {}
    for one in record.measurements:
        if one.metric == "step_time":
            found[one.method] = {}
    for one in record.measurements:
        if one.method in found:
            found[one.method][one.metric] = one.samples[-1]
    return found


def fits(one: Values) -> bool:
    """Return whether a layout has room."""
    return one["needed_memory"] <= one["room_for_allocator"]


def of_layouts(record: Record, question: AdviseQuestion, found: Mapping[str, Values]) -> Iterator[str]:
    """Yield the fastest layouts with their rates, intervals and memory."""
    name, best = next(iter(found.items()))
    low, high = best["step_time/low"], best["step_time/high"]
    lacks = "" if fits(best) else "does not fit: "
    yield f"{lacks}{name}: {best['step_time']:.3g} s per step (90 %: {low:.3g} … {high:.3g})"
    yield from what_was_asked(record, question)
    yield ""
    rows = [["", "TFLOP/s per GPU", "90 %", "MFU", "s per step", "GB"]]
    for rank, (words, one) in enumerate(list(found.items())[:LISTED], 1):
        rate, step_s = one["model_flop_rate"] / 1e12, one["step_time"]
        span = f"{rate * step_s / one['step_time/high']:.0f} … {rate * step_s / one['step_time/low']:.0f}"
        memory = f"{GB(one['needed_memory'])} of {GB(one['room_for_allocator'])}"
        slow = " (retries)" if one["retries"] else ""
        rows.append(
            [f"{rank}. {words}", f"{rate:.0f}", span, f"{one['mfu']:.0%}", f"{step_s:.3g}", memory + slow]
        )
    yield from table(rows)
    if question.price is not None:
        per_step = best["step_time"] * question.gpus * question.price / 3600
        tokens = best["tokens_per_s_per_device"] * question.gpus * best["step_time"]
        low_price, high_price = (per_step / tokens * 1e12 * end / best["step_time"] for end in (low, high))
        yield (
            f"At ${question.price:g} per GPU-hour the first costs ${per_step / tokens * 1e12:,.0f} per 10^12 "
            f"tokens (90 %: {low_price:,.0f} … {high_price:,.0f})."
        )


def what_was_asked(record: Record, question: AdviseQuestion) -> Iterator[str]:
    """Yield the model, the cluster and the batch."""
    fields, of = question.workload, record.conditions
    size = parameters(value(record, "parameters") or 0.0)
    batch = fields["global_batch_size"]
    tokens = f"{int(str(batch)) * int(str(fields['seq_len'])):,} tokens per step" if batch else "any batch"
    yield from wrapped(
        f"{question.model}, {size}; {question.gpus:,} × {question.device.title}, {question.link}; "
        f"{fields['seq_len']:,} tokens per sequence, {tokens}, {of['precision']}, "
        f"as {PROGRAMS[of['program']]} trains."
    )


def switches(record: Record) -> Iterator[str]:
    """Yield what each single switch of the first layout is worth, the best first."""
    found = [(one.method, one.samples[-1]) for one in record.measurements if one.metric == "switch"]
    if not found:
        return
    yield "What each switch of the first is worth, in seconds per token"
    for name, ratio in sorted(found, key=lambda one: one[1]):
        effect = "costs" if ratio > 1 else "saves"
        yield f"  {name}: {effect} {abs(ratio - 1):.1%}"
    without = [note.partition(": ")[2] for note in record.notes if note.startswith("does not fit: ")]
    if without:
        yield from wrapped(f"  do not fit: {', '.join(without)}", "    ")


def parts(record: Record) -> Iterator[str]:
    """Yield where the seconds of the first layout go."""
    found = {
        one.metric.removeprefix("part/"): one.samples[-1]
        for one in record.measurements
        if one.metric.startswith("part/")
    }
    total = sum(found.values())
    if not total:
        return
    yield "Where its seconds go; communication as far as nothing hides it"
    for name, words in PARTS.items():
        if found.get(name, 0.0) > 0.001 * total:
            yield f"  {found[name] / total:>4.0%}  {words}"


def conditions(record: Record, question: AdviseQuestion) -> Iterator[str]:
    """Yield what the answer rests on."""
    kind = next((note.partition(": ")[2] for note in record.notes if note.startswith("interval: ")), "")
    yield from wrapped(
        f"Calculated. Interval: {kind}. Assumed: tensor parallelism overlaps its communication "
        "(--tp-comm-overlap). FLOP: 6 per matmul parameter and token and 12 Lsh of attention, without a "
        "mask's saving; MFU is of the datasheet's bf16 rate. Memory has the allocator's fragmentation. "
        "docs/commands/advise.md reports how far off it is."
    )
