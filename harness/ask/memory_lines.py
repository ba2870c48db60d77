"""The lines that `harness.fit` prints: of a dry run, the verdict before the rest, or of an account."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.answer import Answer, Interval, Memory, Peak, TriedChange
from harness.ask.lines import (
    CHOICES,
    GB,
    WIDTH,
    adapted,
    apart,
    asked,
    engine,
    room,
    table,
    trainer,
    turns,
    wrapped,
)
from harness.question import Question
from harness.units import counted

KINDS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer_states": "optimizer state",
    "reference": "reference model",
    "activations": "activations",
    "temporaries": "temporaries",
    "communication": "collectives' buffers",
}
"""Of the live tensors of a dry run."""

SHOWN_B = 5e7
"""The least that a table of GB shows."""

OUTSIDE = {"cuda_context": "CUDA context", "nccl_buffers": "NCCL buffers"}

PARTS = {
    "states": "parameters, gradients, optimizer state",
    "activations": "activations",
    "logits": "logits and the loss",
    "communication": "gathered parameters, buckets, what stages receive",
    "workspaces": "workspaces",
}
"""Of an account's peak."""

RANKS_PER_HOST = 8
"""Most devices of one machine; fewer are taken to be in one."""

MOST_TENSORS, MOST_LAYOUTS = 4, 16
"""Live tensors, and layouts, that are listed; the other layouts are in answer.json."""


def first_lines(answer: Answer, question: Question, techniques: str) -> Iterator[str]:
    """Yield a dry run's verdict, what it depends on, and what was asked."""
    memory = answer.memory
    assert memory is not None
    peak = memory.peak_at(question.micro_batch_size)
    assert peak is not None
    reserves = "" if peak.allocated_B > memory.room_B else f", for which torch reserves {GB(peak.reserved_B)}"
    at = f" at micro-batch {peak.micro_batch_size:,}"
    yield verdict_line(answer.verdict, memory, peak.allocated_B, memory.allocated_B, at) + reserves
    yield from turns(answer)
    yield from asked(answer, question, question.optimizer)
    for said in (f"Techniques: {techniques}.", *answer.notes):
        yield from wrapped(said)


def verdict_line(verdict: str, memory: Memory, size_B: float, ends: Interval, at: str = "") -> str:
    """Return a verdict with the bytes that it rests on; `ends`: their interval.

    One that the interval of reserved bytes leaves open comes with its chance.
    """
    chance, interval = memory.chance_to_fit, f"90 %: {GB(ends.low)} … {GB(ends.high)}"
    if chance is not None and verdict.startswith("fits") and memory.reserved_B.high > memory.room_B:
        verdict += f" ({chance:.0%} likely)"
    return f"{verdict}: {GB(size_B)} of {GB(memory.room_B)} GB per GPU{at} ({interval})"


def later_lines(answer: Answer, question: Question) -> Iterator[str]:
    """Yield the largest micro-batch, the peak by kind, what decides and what would change it."""
    memory, size = answer.memory, question.micro_batch_size
    assert memory is not None
    too_large = [one for one in memory.peaks if not one.fits and one.micro_batch_size >= size]
    beyond = min(too_large, key=lambda one: one.micro_batch_size, default=None)
    yield from largest(memory, size, beyond)
    yield from other_choices(answer, memory)
    if memory.host is not None:
        ranks, rank_GB = min(question.devices or 1, RANKS_PER_HOST), memory.host.rank_B / 1e9
        yield from wrapped(
            f"Host memory: {ranks * rank_GB:,.0f} GB per host of {counted(ranks, 'rank')}, next to the GPUs' "
            f"({rank_GB:,.1f} GB per rank: weights, gradients, optimizer state). Weights and gradients are "
            "pinned; torch rounds each pinned block up to a power of two, so up to twice as much.",
            "  ",
        )
    sizes = {size, memory.largest_micro_batch, beyond.micro_batch_size if beyond else size}
    shown = [one for one in memory.peaks if one.micro_batch_size in sizes]
    yield from apart(
        by_kind(sorted(shown, key=lambda one: one.micro_batch_size), memory),
        what_decides(beyond or memory.peak_at(memory.largest_micro_batch or size)),
        *([changes(answer.changes, memory, size)] if answer.changes else []),
        simulated(answer, memory),
    )


def largest(memory: Memory, asked_size: int, beyond: Peak | None) -> Iterator[str]:
    """Yield the largest micro-batch that fits, and how the allocator has it; `beyond`: one that does not."""
    most = memory.largest_micro_batch
    if most is None:
        return
    peak = memory.peak_at(most)
    if peak is None:
        yield "No micro-batch fits."
    else:
        size = f"{GB(peak.allocated_B)} of {GB(memory.room_B)} GB"
        yield f"Micro-batch {most:,} at most ({size}); {asked_size:,} was asked."
        if peak.retries:
            yield from wrapped(
                f"At {most:,} the allocator frees its cache {counted(peak.retries, 'time')} in two steps to "
                "make room, which slows them."
            )
    if beyond is not None and beyond.fits_expandable:
        yield from wrapped(
            f"With PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True micro-batch {beyond.micro_batch_size:,} "
            "fits too."
        )


def other_choices(answer: Answer, memory: Memory) -> Iterator[str]:
    """Yield what is assumed where another choice changes the largest micro-batch and not the verdict."""
    turning = {(turn.name, turn.other) for turn in answer.turns}
    for other in answer.others:
        name, _, value = other.choice.partition("=")
        count = other.largest_micro_batch
        if (name, value) in turning or count in (None, memory.largest_micro_batch):
            continue
        assumed, choice = CHOICES.get((name, value), ("as the recipe has it", other.choice))
        fit = f"about {count:,} fit at most" if count else "none fits"
        yield from wrapped(f"Assumed: {assumed}. With {choice} {fit}.", "  ")


def by_kind(peaks: Sequence[Peak], memory: Memory) -> Iterator[str]:
    """Yield the table of the peak by kind at the micro-batches that matter."""
    rows = [["GB per GPU, at micro-batch", *(f"{one.micro_batch_size:,}" for one in peaks)]]
    for kind, title in KINDS.items():
        if any(one.by_kind_B.get(kind) for one in peaks):
            rows.append([f"  {title}", *(GB(one.by_kind_B.get(kind, 0)) for one in peaks)])
    rest_B = [one.allocated_B - sum(one.by_kind_B.values()) for one in peaks]
    if max(rest_B) >= SHOWN_B:
        rows.append(["  blocks beyond their tensors", *map(GB, rest_B)])
    rows.append(["peak that torch's allocator counts", *(GB(one.allocated_B) for one in peaks)])
    rows.append(["reserved by torch's allocator, had it no limit", *(GB(one.reserved_B) for one in peaks)])
    rows.append(["room for the allocator", *(GB(memory.room_B) for _ in peaks)])
    rows.append(["", *("fits" if one.fits else "does not fit" for one in peaks)])
    yield from table(rows)


def what_decides(peak: Peak | None) -> Iterator[str]:
    """Yield what takes most of the peak at the micro-batch that does not fit, or the largest."""
    if peak is None or not peak.live_B:
        return
    of: dict[str, float] = defaultdict(float)
    for label, size_B in peak.live_B.items():
        of[label.partition(": ")[0]] += size_B
    subject, most_B = max(of.items(), key=lambda one: one[1])
    yield f"What decides at {peak.micro_batch_size:,}: {subject}, {GB(most_B)} of {GB(peak.allocated_B)} GB"
    yield f"  {'GB':>6}  largest at the peak"
    for label, size_B in list(peak.live_B.items())[:MOST_TENSORS]:
        yield f"  {GB(size_B):>6}  {label}"[:WIDTH]


def changes(tried: Sequence[TriedChange], memory: Memory, size: int) -> Iterator[str]:
    """Yield each change of the recipe with its peak, and those that were not tried with the reason."""
    peak = memory.peak_at(size)
    assert peak is not None
    rows = [["What would change it", f"peak GB at {size:,}", "fits", "largest micro-batch"]]
    yes = {True: "slowly", False: "yes"}
    unchanged = yes[peak.retries > 0] if peak.fits else "no"
    most = f"{memory.largest_micro_batch or 0:,}"
    rows.append(["  nothing changed", GB(peak.allocated_B), unchanged, most])
    not_tried = defaultdict(list)
    for one in tried:
        if one.peak_B is None:
            not_tried[one.reason].append(one.title)
        else:
            most = f"about {one.largest_micro_batch:,}" if one.largest_micro_batch else "none"
            rows.append([f"  {one.title}", GB(one.peak_B), yes[one.retries] if one.fits else "no", most])
    yield from table(rows)
    for reason, titles in not_tried.items():
        yield from wrapped(f"  not tried: {', '.join(titles)}: {reason}", indent="    ")


def simulated(answer: Answer, memory: Memory) -> Iterator[str]:
    """Yield the headroom and how a dry run was found."""
    outside = " and ".join(
        f"{GB(size_B)} GB of {OUTSIDE.get(name, name)}" for name, size_B in memory.outside_B.items() if size_B
    )
    yield from wrapped(f"Room: {GB(memory.room_B)} GB = {room(memory.usable_B, outside)}")
    tried = ", ".join(f"{one.micro_batch_size:,}" for one in memory.peaks)
    yield from wrapped(f"Simulated, nothing was allocated: dry runs at micro-batch {tried}. {engine(answer)}")
    if answer.left_out:
        yield from wrapped(f"Not in the dry run: {'; '.join(answer.left_out)}.", "  ")


def account_lines(answer: Answer, question: Question, file: Path) -> Iterator[str]:
    """Yield an account in a sentence, a table, what would change it, and what it rests on."""
    if question.search or answer.memory is None:
        yield from of_search(answer, question, file)
    else:
        yield from of_layout(answer, answer.memory, question)
    yield ""
    margin = " Margin: what one sequence per micro-batch leaves." if question.search else ""
    usable_B = answer.memory.usable_B if answer.memory else answer.usable_B
    if usable_B:
        less = "the CUDA context and NCCL's buffers"
        yield from wrapped(f"Room: {room(usable_B, less)}{margin}")
    yield from wrapped(
        "Calculated, nothing was run: a closed account of what the program keeps. docs/commands/fit.md "
        f"reports how far off it is. {engine(answer)}"
    )
    if answer.left_out:
        yield from wrapped(f"Not in the account: {'; '.join(answer.left_out)}.", "  ")


def of_layout(answer: Answer, memory: Memory, question: Question) -> Iterator[str]:
    """Yield whether one layout fits, its peak by part, and what would make it fit."""
    one = answer.layouts[0]
    retries = ", but with retries" if answer.verdict == "fits" and one.retries else ""
    reserved_B = memory.reserved_B
    yield verdict_line(f"{answer.verdict}{retries}", memory, reserved_B.likely, reserved_B)
    yield from turns(answer)
    yield from layout_asked(answer, question)
    most, batch = memory.largest_micro_batch, question.global_batch_size
    fits = f"Micro-batch {most:,} fits at most" if most else "No micro-batch fits"
    of_rank = batch // question.dp_of() if batch else None
    why = ", which is all that the global batch leaves a rank" if most and most == of_rank else ""
    yield f"{fits}{why}; {question.micro_batch_size:,} was asked."
    if one.parts["pp"] > 1 and memory.first_stage_B and memory.last_stage_B:
        first, last = (GB(memory.needed(size_B)) for size_B in (memory.first_stage_B, memory.last_stage_B))
        yield (
            f"The rank that takes the most is of stage {memory.stage + 1} of {one.parts['pp']}; the first "
            f"has {first} GB, the last {last} GB."
        )
    if memory.even_routing_B and memory.uneven_routing_B:
        both = (memory.even_routing_B, memory.uneven_routing_B)
        even, uneven = (GB(memory.needed(size_B)) for size_B in both)
        if even != uneven:
            yield from wrapped(
                f"Routing decides: {even} GB where experts get equal shares, {uneven} GB where the busiest "
                "get half as much again; 1.2 times the mean is assumed."
            )
    if memory.host is not None:
        host, ranks = memory.host, min(question.devices or 1, question.gpus_per_node)
        yield from wrapped(
            f"Host memory: {GB(host.rank_B)} GB per GPU, of which {GB(host.pinned_B)} GB are pinned; torch "
            f"rounds pinned blocks up to powers of two, so that it takes {GB(host.reserved_B)} GB per GPU "
            f"and {GB(ranks * host.reserved_B)} GB per node of {counted(ranks, 'GPU')}."
        )
    rows = [["GB per GPU", ""]]
    rows += [[f"  {words}", GB(memory.parts_B.get(part, 0.0))] for part, words in PARTS.items()]
    rows.append(["peak that torch's allocator counts", GB(memory.allocated_B.likely)])
    rows.append(["needed, with fragmentation", GB(memory.reserved_B.likely)])
    rows.append(["room for the allocator", GB(memory.room_B)])
    yield from apart(table(rows))
    if answer.changes:
        rows = [["What would change it, the cheapest first", "GB", "fits", "largest micro-batch"]]
        for change in answer.changes:
            fitting, count = "yes" if change.fits else "no", change.largest_micro_batch
            rows.append([f"  {change.title}", GB(change.peak_B or 0.0), fitting, str(count or "none")])
        yield from apart(table(rows))


def layout_asked(answer: Answer, question: Question) -> Iterator[str]:
    """Yield the model, the GPUs and the layout."""
    yield from asked(answer, question, question.optimizer, question.precision, trainer(question))
    yield from adapted(question)
    yield from wrapped(f"Layout: {answer.conditions.get('layout', 'searched')}.")


def of_search(answer: Answer, question: Question, file: Path) -> Iterator[str]:
    """Yield how many layouts fit, and the first of them."""
    yield (
        f"{answer.layouts_that_fit or 0:,} of {answer.layouts_tried or 0:,} layouts fit; "
        f"{len(answer.layouts):,} without more recompute or sharding than they need"
    )
    yield from layout_asked(answer, question)
    if not answer.layouts:
        return
    rows = [["least recompute first, then the largest margin", "margin", "largest micro-batch", "GB there"]]
    for one in answer.layouts[:MOST_LAYOUTS]:
        most = f"{one.largest_micro_batch or 0}{' (retries)' if one.retries else ''}"
        rows.append([f"  {one.title}", f"{one.margin or 0.0:.0%}", most, GB(one.needed_B)])
    yield from apart(table(rows))
    if len(answer.layouts) > MOST_LAYOUTS:
        yield f"  and {len(answer.layouts) - MOST_LAYOUTS} more: {file}"
