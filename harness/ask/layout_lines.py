"""The lines that `harness.fit` prints of an account: does a layout of parallelism fit, or which ones do?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from harness.answer import Answer, Memory
from harness.ask.certainty import needed
from harness.ask.lines import (
    GB,
    PROGRAMS,
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

PARTS = {
    "states": "parameters, gradients, optimizer state",
    "activations": "activations",
    "logits": "logits and the loss",
    "communication": "gathered parameters, buckets, what stages receive",
    "workspaces": "workspaces",
}

MOST = 16
"""Layouts that are listed; the others are in answer.json."""


def lines(answer: Answer, question: Question, file: Path) -> Iterator[str]:
    """Yield the answer in a sentence, a table, what would change it, and what it rests on."""
    if question.search or answer.memory is None:
        yield from of_search(answer, question, file)
    else:
        yield from of_layout(answer, answer.memory, question)
    yield ""
    yield from conditions(answer, question)


def of_layout(answer: Answer, memory: Memory, question: Question) -> Iterator[str]:
    """Yield whether one layout fits, its peak by part, and what would make it fit."""
    retries = ", but with retries" if answer.verdict == "fits" and answer.layouts[0].retries else ""
    yield (
        f"{answer.verdict}{retries}: {GB(memory.reserved_B.likely)} of {GB(memory.room_B)} GB per GPU "
        f"({GB_interval(memory.reserved_B)})"
    )
    yield from turns(answer)
    yield from what_was_asked(answer, question)
    largest = memory.largest_micro_batch
    most = f"Micro-batch {largest:,} fits at most" if largest else "No micro-batch fits"
    batch = question.global_batch_size
    rank = batch // question.dp_of() if batch else None
    why = ", which is all that the global batch leaves a rank" if largest and largest == rank else ""
    yield f"{most}{why}; {question.micro_batch_size:,} was asked."
    stages = answer.layouts[0].parts["pp"]
    if stages > 1 and memory.first_stage_B and memory.last_stage_B:
        yield (
            f"The rank that takes the most is of stage {memory.stage + 1} of {stages}; the first has "
            f"{GB(needed(memory, memory.first_stage_B))} GB, the last "
            f"{GB(needed(memory, memory.last_stage_B))} GB."
        )
    if memory.even_routing_B and memory.uneven_routing_B:
        yield from of_routing(needed(memory, memory.even_routing_B), needed(memory, memory.uneven_routing_B))
    yield from of_host(memory, question)
    yield ""
    yield from by_part(memory)
    yield from changes(answer)


def of_routing(even_B: float, uneven_B: float) -> Iterator[str]:
    """Yield what routing changes, where it does."""
    if GB(even_B) != GB(uneven_B):
        yield from wrapped(
            f"Routing decides: {GB(even_B)} GB where experts get equal shares, {GB(uneven_B)} GB where the "
            "busiest get half as much again; 1.2 times the mean is assumed."
        )


def what_was_asked(answer: Answer, question: Question) -> Iterator[str]:
    """Yield the model, the GPUs and the layout."""
    program = PROGRAMS[question.program_of()]
    yield from wrapped(
        f"{model_title(question)}, {parameters(answer.parameters or 0.0)}; {devices_of(question)}, "
        f"{question.seq_len:,} tokens per sequence, {question.optimizer}, {question.precision}, as {program} "
        "trains."
    )
    yield from wrapped(f"Layout: {answer.conditions.get('layout', 'searched')}.")


def of_host(memory: Memory, question: Question) -> Iterator[str]:
    """Yield what ranks have in host memory."""
    host = memory.host
    if host is None:
        return
    ranks = min(question.devices or 1, question.gpus_per_node)
    yield from wrapped(
        f"Host memory: {GB(host.rank_B)} GB per GPU, of which {GB(host.pinned_B)} GB are pinned; torch "
        f"rounds pinned blocks up to powers of two, so that it takes {GB(host.reserved_B)} GB per GPU and "
        f"{GB(ranks * host.reserved_B)} GB per node of {counted(ranks, 'GPU')}."
    )


def by_part(memory: Memory) -> Iterator[str]:
    """Yield the peak of the worst rank by part."""
    rows = [["GB per GPU", ""]]
    for part, words in PARTS.items():
        rows.append([f"  {words}", GB(memory.parts_B.get(part, 0.0))])
    rows.append(["peak that torch's allocator counts", GB(memory.allocated_B.likely)])
    rows.append(["needed, with fragmentation", GB(memory.reserved_B.likely)])
    rows.append(["room for the allocator", GB(memory.room_B)])
    yield from table(rows)


def changes(answer: Answer) -> Iterator[str]:
    """Yield what each change needs; those that fit first, the cheapest on top."""
    if not answer.changes:
        return
    rows = [["What would change it, the cheapest first", "GB", "fits", "largest micro-batch"]]
    for change in answer.changes:
        largest = f"{change.largest_micro_batch}" if change.largest_micro_batch else "none"
        rows.append([f"  {change.title}", GB(change.peak_B or 0.0), "yes" if change.fits else "no", largest])
    yield ""
    yield from table(rows)


def of_search(answer: Answer, question: Question, file: Path) -> Iterator[str]:
    """Yield how many layouts fit, and the first of them."""
    needed = "without more recompute or sharding than they need"
    yield (
        f"{answer.layouts_that_fit or 0:,} of {answer.layouts_tried or 0:,} layouts fit; "
        f"{len(answer.layouts):,} {needed}"
    )
    yield from what_was_asked(answer, question)
    if not answer.layouts:
        return
    yield ""
    rows = [["least recompute first, then the largest margin", "margin", "largest micro-batch", "GB there"]]
    for layout in answer.layouts[:MOST]:
        slow = " (retries)" if layout.retries else ""
        rows.append(
            [
                f"  {layout.title}",
                f"{layout.margin or 0.0:.0%}",
                f"{layout.largest_micro_batch or 0}{slow}",
                GB(layout.needed_B),
            ]
        )
    yield from table(rows)
    if len(answer.layouts) > MOST:
        yield f"  and {len(answer.layouts) - MOST} more: {file}"


def conditions(answer: Answer, question: Question) -> Iterator[str]:
    """Yield what the answer rests on."""
    margin = " Margin: what one sequence per micro-batch leaves." if question.search else ""
    usable_B = answer.memory.usable_B if answer.memory else answer.usable_B
    if usable_B:
        yield from wrapped(
            f"Room: {GB(usable_B)} GB ({usable_B / GiB:.1f} GiB) usable, less the CUDA context and NCCL's "
            f"buffers. 1 GB = 10^9 B.{margin}"
        )
    yield from wrapped(
        "Calculated, nothing was run: a closed account of what the program keeps. docs/commands/fit.md "
        f"reports how far off it is. {engine(answer)}"
    )
    if answer.left_out:
        yield from wrapped(f"Not in the account: {'; '.join(answer.left_out)}.", "  ")
