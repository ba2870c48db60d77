"""The lines that `harness.fit layout=...` prints: whether a layout fits, or which layouts do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from harness.commands.fit.answer import GB, value
from harness.commands.fit.layouts import LayoutQuestion
from harness.commands.fit.lines import GiB, parameters, table, wrapped
from harness.records import Record
from harness.units import counted

if TYPE_CHECKING:
    from harness.config.own_files.setup import OwnSetup

PARTS = {
    "states": "parameters, gradients, optimizer state",
    "activations": "activations",
    "logits": "logits and the loss",
    "communication": "gathered parameters, buckets, what stages receive",
    "workspaces": "workspaces",
}

PROGRAMS = {
    "megatron": "Megatron-LM",
    "torchtitan": "torchtitan",
    "deepspeed": "DeepSpeed",
    "nanotron": "nanotron",
    "composer": "Composer",
}
"""Whose code trains."""

MOST = 16
"""Layouts that are listed; the others are in the records."""


def lines(record: Record, question: LayoutQuestion) -> Iterator[str]:
    """Yield the answer in a sentence, a table, what would change it, and what it rests on."""
    if question.search:
        yield from of_search(record, question)
    else:
        yield from of_layout(record, question)
    yield ""
    yield from conditions(record, question)


def number_of(record: Record, metric: str) -> float:
    """Return a metric that every such record has."""
    found = value(record, metric)
    assert found is not None, metric
    return found


def needed_of(record: Record, which: str) -> float:
    """Return bytes that another rank or routing needs, with fragmentation as the record's own peak has it."""
    fragmented = number_of(record, "needed_memory") / number_of(record, "peak_memory")
    return number_of(record, f"{which}/peak_memory") * fragmented


def of_layout(record: Record, question: LayoutQuestion) -> Iterator[str]:
    """Yield whether one layout fits, its peak by part, and what would make it fit."""
    needed_B, room_B = number_of(record, "needed_memory"), number_of(record, "room_for_allocator")
    largest = int(number_of(record, "largest_micro_batch"))
    fit, retries = number_of(record, "fits"), number_of(record, "fits_with_retries")
    verdict = "fits, but with retries" if retries else "fits" if fit else "does not fit"
    most = f"micro-batch {largest} at most" if largest else "no micro-batch does"
    asked = question.workload["micro_batch_size"]
    yield f"{verdict}: {GB(needed_B)} of {GB(room_B)} GB per GPU; {most}; {asked} was asked"
    yield from what_was_asked(record, question)
    stage, stages = int(number_of(record, "stage")), int(str(question.workload["pp"]))
    if stages > 1:
        first, last = (needed_of(record, f"{end}_stage") for end in ("first", "last"))
        yield (
            f"The rank that takes the most is of stage {stage + 1} of {stages}; the first has {GB(first)} "
            f"GB, the last {GB(last)} GB."
        )
    if value(record, "even_routing/peak_memory") is not None:
        even, uneven = needed_of(record, "even_routing"), needed_of(record, "uneven_routing")
        yield from wrapped(
            f"Routing decides: {GB(even)} GB where experts get equal shares, {GB(uneven)} GB where the "
            "busiest get half as much again; 1.2 times the mean is assumed."
        )
    yield from of_host(record, question)
    yield ""
    yield from by_part(record)
    yield from changes(record)


def what_was_asked(record: Record, question: LayoutQuestion) -> Iterator[str]:
    """Yield the model, the GPUs and the layout."""
    fields, of = question.workload, record.conditions
    size = parameters(number_of(record, "parameters"))
    yield from wrapped(
        f"{question.model}, {size}; {question.devices:,} × {question.device.title}, {fields['seq_len']:,} "
        f"tokens per sequence, {of['optimizer']}, {of['precision']}, as {PROGRAMS[of['program']]} trains."
    )
    yield from wrapped(f"Layout: {of['layout']}.")


def of_host(record: Record, question: LayoutQuestion) -> Iterator[str]:
    """Yield what ranks have in host memory."""
    rank_B = value(record, "host_memory")
    if rank_B is None:
        return
    ranks = min(question.devices, int(str(question.workload["gpus_per_node"])))
    reserved_B = number_of(record, "host_memory/reserved")
    pinned_B = number_of(record, "host_memory/pinned")
    yield from wrapped(
        f"Host memory: {GB(rank_B)} GB per GPU, of which {GB(pinned_B)} GB are pinned; torch rounds pinned "
        f"blocks up to powers of two, so that it takes {GB(reserved_B)} GB per GPU and "
        f"{GB(ranks * reserved_B)} GB per node of {counted(ranks, 'GPU')}."
    )


def by_part(record: Record) -> Iterator[str]:
    """Yield the peak of the worst rank by part."""
    rows = [["GB per GPU", ""]]
    for part, words in PARTS.items():
        rows.append([f"  {words}", GB(number_of(record, f"peak_memory/{part}"))])
    peak_B, needed_B = number_of(record, "peak_memory"), number_of(record, "needed_memory")
    rows.append(["peak that torch's allocator counts", GB(peak_B)])
    rows.append(["needed, with fragmentation", GB(needed_B)])
    rows.append(["room for the allocator", GB(number_of(record, "room_for_allocator"))])
    yield from table(rows)


def changes(record: Record) -> Iterator[str]:
    """Yield what each change needs; those that fit first, the cheapest on top."""
    found = [one for one in record.measurements if one.metric == "with_change/needed_memory"]
    if not found:
        return
    of: dict[str, tuple[float, float, float]] = {}
    for one in found:
        fit, largest = (
            next(
                other.samples[-1]
                for other in record.measurements
                if other.metric == f"with_change/{metric}" and other.method == one.method
            )
            for metric in ("fits", "largest_micro_batch")
        )
        of[one.method] = (one.samples[-1], fit, largest)
    rows = [["What would change it, the cheapest first", "GB", "fits", "largest micro-batch"]]
    for change, (needed_B, fit, largest) in of.items():
        rows.append(
            [f"  {change}", GB(needed_B), "yes" if fit else "no", f"{int(largest)}" if largest else "none"]
        )
    yield ""
    yield from table(rows)


def of_search(record: Record, question: LayoutQuestion) -> Iterator[str]:
    """Yield how many layouts fit, and the first of them."""
    tried = int(number_of(record, "layouts_tried"))
    fit = int(value(record, "layouts_that_fit") or 0)
    listed = [one for one in record.measurements if one.metric == "margin"]
    needed = "without more recompute or sharding than they need"
    yield f"{fit:,} of {tried:,} layouts fit; {len(listed):,} {needed}"
    yield from what_was_asked(record, question)
    if not listed:
        return
    yield ""
    rows = [["least recompute first, then the largest margin", "margin", "largest micro-batch", "GB there"]]
    for one in listed[:MOST]:
        largest, needed_B, retries = (
            next(
                other.samples[-1]
                for other in record.measurements
                if other.metric == metric and other.method == one.method
            )
            for metric in ("largest_micro_batch", "needed_memory", "retries")
        )
        slow = " (retries)" if retries else ""
        rows.append([f"  {one.method}", f"{one.samples[-1]:.0%}", f"{int(largest)}{slow}", GB(needed_B)])
    yield from table(rows)
    if len(listed) > MOST:
        yield f"  and {len(listed) - MOST} more: {question.run.out / 'records.jsonl'}"


def conditions(record: Record, question: LayoutQuestion) -> Iterator[str]:
    """Yield what the answer rests on."""
    usable_B = number_of(record, "usable_memory")
    margin = " Margin: what one sequence per micro-batch leaves." if question.search else ""
    yield from wrapped(
        f"Room: {GB(usable_B)} GB ({usable_B / GiB:.1f} GiB) usable, less the CUDA context and NCCL's "
        f"buffers. 1 GB = 10^9 B.{margin}"
    )
    yield from wrapped(
        "Calculated, nothing was run: a closed account of what the program keeps. docs/commands/fit.md "
        "reports how far off it is."
    )


def written(record: Record, question: LayoutQuestion, setup: OwnSetup | None, format_: str) -> Iterator[str]:
    """Yield the layout at its largest micro-batch, or the first that fits, as a framework's file."""
    from harness.commands.fit.written_layout import answered_setup, written_layout

    found = answered_setup(record, question.workload, setup)
    if found is None:
        yield f"write={format_}: no layout fits, so that there is nothing to write."
        return
    if not question.search:
        largest = int(number_of(record, "largest_micro_batch"))
        batch = question.workload["global_batch_size"]
        found = with_largest(found, largest, int(str(batch)) if batch else None)
    yield from written_layout(found, format_)


def with_largest(setup: OwnSetup, largest: int, batch: int | None) -> OwnSetup:
    """Return a set-up with the largest micro-batch that fits and divides its part of the batch."""
    from dataclasses import replace

    of_rank = batch // setup.dp_of() if batch else None
    sizes = [size for size in range(1, largest + 1) if of_rank is None or of_rank % size == 0]
    size = max(sizes, default=setup.micro_batch_size)
    steps = of_rank // size if of_rank else setup.gradient_accumulation_steps
    return replace(setup, micro_batch_size=size, gradient_accumulation_steps=steps)
