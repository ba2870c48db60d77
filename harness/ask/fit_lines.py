"""The lines that `harness.fit` prints of a dry run: the verdict at once, the rest when it is known."""

from __future__ import annotations

from collections.abc import Iterator

from harness.answer import Answer, Memory, Peak
from harness.ask.certainty import peak_at
from harness.ask.lines import (
    CHOICES,
    GB,
    WIDTH,
    GB_interval,
    GiB,
    devices_of,
    engine,
    model_title,
    parameters,
    table,
    turns,
    wrapped,
)
from harness.question import Question
from harness.units import counted

KINDS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer_states": "optimizer state",
    "activations": "activations",
    "temporaries": "temporaries",
    "communication": "collectives' buffers",
}
OUTSIDE = {"cuda_context": "CUDA context", "nccl_buffers": "NCCL buffers"}

RANKS_PER_HOST = 8
"""Most devices of one machine; fewer are taken to be in one."""

MOST_TENSORS = 4
"""Live tensors that are listed."""


def first_lines(answer: Answer, question: Question, techniques: str) -> Iterator[str]:
    """Yield the verdict, what it depends on, and what was asked."""
    memory = answer.memory
    assert memory is not None
    asked = peak_at(memory, question.micro_batch_size)
    assert asked is not None
    reserves = (
        "" if asked.allocated_B > memory.room_B else f", for which torch reserves {GB(asked.reserved_B)}"
    )
    yield (
        f"{answer.verdict}: {GB(asked.allocated_B)} of {GB(memory.room_B)} GB per GPU at micro-batch "
        f"{asked.micro_batch_size:,} ({GB_interval(memory.allocated_B)}){reserves}"
    )
    yield from turns(answer)
    yield from wrapped(
        f"{model_title(question)}, {parameters(answer.parameters or 0.0)}; {devices_of(question)}, "
        f"{question.seq_len:,} tokens per sequence, {answer.conditions.get('optimizer', question.optimizer)}."
    )
    yield from wrapped(f"Techniques: {techniques}.")
    for note in answer.notes:
        yield from wrapped(note)


def later_lines(answer: Answer, question: Question) -> Iterator[str]:
    """Yield the largest micro-batch, the peak by kind, what decides and what would change it."""
    memory = answer.memory
    assert memory is not None
    yield from largest(memory, question.micro_batch_size)
    yield from other_choices(answer)
    yield from on_the_host(memory, question)
    yield ""
    yield from by_kind(memory, question.micro_batch_size)
    yield ""
    yield from what_decides(memory, question.micro_batch_size)
    if answer.changes:
        yield ""
        yield from changes(answer, question)
    yield ""
    yield from conditions(answer, memory)


def largest(memory: Memory, asked: int) -> Iterator[str]:
    """Yield the largest micro-batch that fits, and how the allocator has it."""
    most = memory.largest_micro_batch
    if most is None:
        return
    peak = peak_at(memory, most)
    if peak is None:
        yield "No micro-batch fits."
    else:
        size = f"{GB(peak.allocated_B)} of {GB(memory.room_B)} GB"
        yield f"Micro-batch {most:,} at most ({size}); {asked:,} was asked."
        if peak.retries:
            yield from wrapped(
                f"At {most:,} the allocator frees its cache {counted(peak.retries, 'time')} in two steps to "
                "make room, which slows them."
            )
    beyond = beyond_the_largest(memory, asked)
    if beyond is not None and beyond.fits_expandable:
        yield from wrapped(
            f"With PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True micro-batch {beyond.micro_batch_size:,} "
            "fits too."
        )


def beyond_the_largest(memory: Memory, asked: int) -> Peak | None:
    """Return the smallest dry run, from the asked one on, that does not fit."""
    above = [one for one in memory.peaks if not one.fits and one.micro_batch_size >= asked]
    return min(above, key=lambda one: one.micro_batch_size, default=None)


def other_choices(answer: Answer) -> Iterator[str]:
    """Yield what is assumed where another choice changes the largest micro-batch and not the verdict."""
    most = answer.memory.largest_micro_batch if answer.memory else None
    turning = {(turn.name, turn.other) for turn in answer.turns}
    for other in answer.others:
        name, _, value = other.choice.partition("=")
        if (name, value) in turning or other.largest_micro_batch in (None, most):
            continue
        assumed, choice = CHOICES.get((name, value), ("as the recipe has it", other.choice))
        count = other.largest_micro_batch
        yield from wrapped(
            f"Assumed: {assumed}. With {choice} about {count:,} fit at most."
            if count
            else f"Assumed: {assumed}. With {choice} none fits.",
            "  ",
        )


def on_the_host(memory: Memory, question: Question) -> Iterator[str]:
    """Yield what the ranks of one machine keep in its memory, where the recipe offloads states."""
    if memory.host is None:
        return
    ranks = min(question.devices or 1, RANKS_PER_HOST)
    rank_GB = memory.host.rank_B / 1e9
    yield from wrapped(
        f"Host memory: {ranks * rank_GB:,.0f} GB per host of {counted(ranks, 'rank')}, next to the GPUs' "
        f"({rank_GB:,.1f} GB per rank: weights, gradients, optimizer state). Weights and gradients are "
        "pinned; torch rounds each pinned block up to a power of two, so up to twice as much.",
        "  ",
    )


def shown_peaks(memory: Memory, asked: int) -> list[Peak]:
    """Return the dry runs that matter: the asked one, the largest that fits, the first that does not."""
    beyond = beyond_the_largest(memory, asked)
    sizes = {asked, memory.largest_micro_batch, beyond.micro_batch_size if beyond else asked}
    return sorted(
        (one for one in memory.peaks if one.micro_batch_size in sizes), key=lambda one: one.micro_batch_size
    )


def by_kind(memory: Memory, asked: int) -> Iterator[str]:
    """Yield the table of the peak by kind at the micro-batches that matter."""
    peaks = shown_peaks(memory, asked)
    rows: list[list[str]] = [["GB per GPU, at micro-batch", *(f"{one.micro_batch_size:,}" for one in peaks)]]
    for kind, title in KINDS.items():
        if any(one.by_kind_B.get(kind) for one in peaks):
            rows.append([f"  {title}", *(GB(one.by_kind_B.get(kind, 0)) for one in peaks)])
    rows.append(["peak of live tensors", *(GB(one.allocated_B) for one in peaks)])
    rows.append(["reserved by torch's allocator, had it no limit", *(GB(one.reserved_B) for one in peaks)])
    rows.append(["room for the allocator", *(GB(memory.room_B) for _ in peaks)])
    rows.append(["", *("fits" if one.fits else "does not fit" for one in peaks)])
    yield from table(rows)


def what_decides(memory: Memory, asked: int) -> Iterator[str]:
    """Yield what takes most of the peak at the micro-batch that does not fit, or the largest."""
    peak = beyond_the_largest(memory, asked) or peak_at(memory, memory.largest_micro_batch or asked)
    if peak is None or not peak.live_B:
        return
    of: dict[str, float] = {}
    for label, size_B in peak.live_B.items():
        subject = label.partition(": ")[0]
        of[subject] = of.get(subject, 0.0) + size_B
    subject, most_B = max(of.items(), key=lambda one: one[1])
    yield f"What decides at {peak.micro_batch_size:,}: {subject}, {GB(most_B)} of {GB(peak.allocated_B)} GB"
    yield f"  {'GB':>6}  largest at the peak"
    for label, size_B in list(peak.live_B.items())[:MOST_TENSORS]:
        yield f"  {GB(size_B):>6}  {label}"[:WIDTH]


def changes(answer: Answer, question: Question) -> Iterator[str]:
    """Yield each change of the recipe with its peak, and those that were not tried with the reason."""
    memory = answer.memory
    assert memory is not None
    asked = peak_at(memory, question.micro_batch_size)
    assert asked is not None
    heads = [f"peak GB at {question.micro_batch_size:,}", "fits", "largest micro-batch"]
    rows = [
        ["What would change it", *heads],
        [
            "  nothing changed",
            GB(asked.allocated_B),
            word(asked.fits, bool(asked.retries)),
            f"{memory.largest_micro_batch or 0:,}",
        ],
    ]
    not_tried: dict[str, list[str]] = {}
    for change in answer.changes:
        if change.peak_B is None:
            not_tried.setdefault(change.reason, []).append(change.title)
            continue
        largest = change.largest_micro_batch
        rows.append(
            [
                f"  {change.title}",
                GB(change.peak_B),
                word(bool(change.fits), change.retries),
                f"about {largest:,}" if largest else "none",
            ]
        )
    yield from table(rows)
    for reason, titles in not_tried.items():
        yield from wrapped(f"  not tried: {', '.join(titles)}: {reason}", indent="    ")


def word(fits: bool, retries: bool) -> str:
    """Return whether a step fits, in a word."""
    return ("slowly" if retries else "yes") if fits else "no"


def conditions(answer: Answer, memory: Memory) -> Iterator[str]:
    """Yield the headroom and how the answer was found."""
    outside = " and ".join(
        f"{GB(size_B)} GB of {OUTSIDE.get(name, name)}" for name, size_B in memory.outside_B.items() if size_B
    )
    yield from wrapped(
        f"Room: {GB(memory.room_B)} GB = {GB(memory.usable_B)} GB ({memory.usable_B / GiB:.1f} GiB) usable, "
        f"less {outside}. 1 GB = 10^9 B."
    )
    tried = ", ".join(f"{one.micro_batch_size:,}" for one in memory.peaks)
    yield from wrapped(f"Simulated, nothing was allocated: dry runs at micro-batch {tried}. {engine(answer)}")
