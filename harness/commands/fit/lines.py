"""The lines that `harness.fit` prints: sentences, a table by kind, what decides, what would change it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from harness.commands.fit.answer import GB, Answer, DryRunValues, WhatIfResult, dry_runs, value
from harness.config.variants.technique_list import title_of
from harness.records import Record, Status
from harness.units import counted, number

WIDTH = 96
"""Columns of the longest line."""

GiB = 2.0**30

BY_DEFAULT = "by default: "
"""Begin of the note about sizes that a config.json leaves to its library."""

KINDS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer_states": "optimizer state",
    "activations": "activations",
    "temporaries": "temporaries",
    "communication": "collectives' buffers",
}

CHOICES = {
    "optimizer_impl=default": ("a fused optimizer", "torch's default on CUDA (foreach)"),
    "optimizer_impl=for_loop": ("a fused optimizer", "a for-loop over parameters"),
    "keep_logits=model": ("logits released after the loss", "logits kept in a variable"),
}
"""By a choice: what is assumed, and the other choice, in words."""

RANKS_PER_HOST = 8
"""Most GPUs of one machine; fewer devices are taken to be in one."""

MOST_TENSORS = 4
"""Live tensors that are listed."""


def lines(answer: Answer, what_ifs: Sequence[WhatIfResult]) -> Iterator[str]:
    """Yield the answer: a sentence, a table, what decides, what would help, what it rests on."""
    yield from sentences(answer)
    yield ""
    yield from by_kind(answer)
    yield ""
    yield from what_decides(answer)
    if what_ifs:
        yield ""
        yield from what_would_help(answer, what_ifs)
    yield ""
    yield from conditions(answer)


def sentences(answer: Answer) -> Iterator[str]:
    """Yield the answer in a line, then what it is about and what else decides."""
    yield first_line(answer)
    yield from what_was_asked(answer)
    if answer.left_out:
        yield from wrapped(f"{answer.left_out}, so the default recipe goes without.")
    largest = answer.runs.get(answer.largest)
    if largest is not None and largest.retries:
        yield from wrapped(
            f"At {answer.largest:,} the allocator frees its cache {counted(largest.retries, 'time')} in two "
            "steps to make room, which slows them."
        )
    beyond = answer.runs[answer.first_that_does_not_fit]
    if beyond.fits_expandable and not beyond.fits:
        yield from wrapped(
            f"With PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True micro-batch {beyond.micro_batch_size:,} "
            "fits too."
        )
    yield from what_could_turn_it(answer)
    yield from on_the_host(answer)


def what_could_turn_it(answer: Answer) -> Iterator[str]:
    """Yield a line per assumption of the recipe under which the answer or the largest micro-batch differs."""
    for choice, fits, largest in answer.assumptions:
        if (fits, largest) == (answer.fits, answer.largest):
            continue
        assumed, other = CHOICES.get(choice, ("as the recipe has it", choice))
        most = f"about {largest:,} at most" if largest else "none at all"
        verb = "fits" if fits else "does not fit"
        yield from wrapped(
            f"Assumed: {assumed}. With {other} micro-batch {answer.asked:,} {verb}; {most}.", "  "
        )


def on_the_host(answer: Answer) -> Iterator[str]:
    """Yield what the ranks of one machine keep in its memory, where the recipe offloads states."""
    rank_B = value(answer.record, "host_memory")
    if not rank_B:
        return
    ranks = min(answer.question.devices, RANKS_PER_HOST)
    host_GB, rank_GB = ranks * rank_B / 1e9, rank_B / 1e9
    yield from wrapped(
        f"Host memory: {host_GB:,.0f} GB per host of {counted(ranks, 'rank')}, next to the GPUs' "
        f"({rank_GB:,.1f} GB per rank: weights, gradients, optimizer state). Weights and gradients are "
        "pinned; torch rounds each pinned block up to a power of two, so up to twice as much.",
        "  ",
    )


def what_was_asked(answer: Answer) -> Iterator[str]:
    """Yield the model, the devices and the recipe, and what the config.json leaves to its library."""
    record, question = answer.record, answer.question
    on = f"{question.devices} × {question.device}" if question.devices > 1 else question.device
    tokens = record.cell.config["workload"]["seq_len"]
    optimizer = record.conditions.get("optimizer", "")
    size = parameters(value(record, "parameters") or 0.0)
    yield from wrapped(f"{question.model}, {size}; {on}, {tokens:,} tokens per sequence, {optimizer}.")
    yield from wrapped(f"Techniques: {techniques(record)}.")
    for note in record.notes:
        yield from wrapped(note) if note.startswith(BY_DEFAULT) else ()


def parameters(count: float) -> str:
    """Return a number of parameters in billions or millions."""
    large = count >= 1e9
    return f"{number(count / (1e9 if large else 1e6))} {'B' if large else 'M'} parameters"


def techniques(record: Record) -> str:
    """Return the techniques of a record with their settings, without the optimizer's name."""
    given = record.cell.config.get("techniques", ())
    named = [title_of(((one, own),)) for one, own in given if (one, *own) != ("optimizer", "name")]
    return ", ".join(named) or "none, plain PyTorch"


def first_line(answer: Answer) -> str:
    """Return whether the asked micro-batch fits, and the largest that does, with its peak."""
    fits = "fits" if answer.fits else "does not fit"
    room = f"{GB(answer.room_B)} GB per GPU"
    if not answer.largest:
        one = answer.runs[min(answer.runs)]
        return (
            f"{fits}: no micro-batch does; {one.micro_batch_size} {what_is_too_much(one, answer)} of {room}"
        )
    most = f"micro-batch {answer.largest:,} at most ({GB(answer.runs[answer.largest].peak_B)} of {room})"
    return f"{fits}: {most}; {answer.asked:,} was asked"


def what_is_too_much(run: DryRunValues, answer: Answer) -> str:
    """Return the size that decides: live tensors, or what the allocator reserves for them."""
    if run.peak_B > answer.room_B:
        return f"has a peak of {GB(run.peak_B)}"
    return f"has a peak of {GB(run.peak_B)}, for which torch reserves {GB(run.reserved_B)}"


def wrapped(text: str, indent: str = "") -> list[str]:
    """Return prose in lines; `indent`: before all but the first."""
    return wrap(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def by_kind(answer: Answer) -> Iterator[str]:
    """Yield the table of the peak by kind at the micro-batches that matter."""
    wanted = sorted({answer.asked, answer.largest, answer.first_that_does_not_fit} & answer.runs.keys())
    runs = [answer.runs[size] for size in wanted]
    rows: list[list[str]] = [["GB per GPU, at micro-batch", *(f"{size:,}" for size in wanted)]]
    for kind, title in KINDS.items():
        if any(run.by_kind_B.get(kind) for run in runs):
            rows.append([f"  {title}", *(GB(run.by_kind_B.get(kind, 0)) for run in runs)])
    rows.append(["peak of live tensors", *(GB(run.peak_B) for run in runs)])
    rows.append(["reserved by torch's allocator, had it no limit", *(GB(run.reserved_B) for run in runs)])
    rows.append(["room for the allocator", *(GB(answer.room_B) for _ in runs)])
    rows.append(["", *("fits" if run.fits else "does not fit" for run in runs)])
    yield from table(rows)


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield aligned lines; the first column is text, the others numbers."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        first, *others = row
        cells = [
            first.ljust(widths[0]),
            *(text.rjust(width) for text, width in zip(others, widths[1:], strict=True)),
        ]
        yield "  ".join(cells).rstrip()


def what_decides(answer: Answer) -> Iterator[str]:
    """Yield what takes most of the peak at the micro-batch that does not fit, or the largest."""
    size = answer.first_that_does_not_fit
    run = answer.runs[size]
    of: dict[str, float] = {}
    for label, size_B in run.live_B.items():
        subject = label.partition(": ")[0]
        of[subject] = of.get(subject, 0.0) + size_B
    if not of:
        return
    subject, most_B = max(of.items(), key=lambda one: one[1])
    yield f"What decides at {size:,}: {subject}, {GB(most_B)} of {GB(run.peak_B)} GB"
    yield f"  {'GB':>6}  largest at the peak"
    for label, size_B in list(run.live_B.items())[:MOST_TENSORS]:
        yield f"  {GB(size_B):>6}  {label}"[:WIDTH]


def what_would_help(answer: Answer, what_ifs: Sequence[WhatIfResult]) -> Iterator[str]:
    """Yield each change of the recipe with its peak, and those that were not tried with the reason."""
    asked = answer.runs[answer.asked]
    heads = [f"peak GB at {answer.asked:,}", "fits", "largest micro-batch"]
    rows = [
        ["What would change it", *heads],
        ["  nothing changed", GB(asked.peak_B), verdict(asked), f"{answer.largest:,}"],
    ]
    not_tried: dict[str, list[str]] = {}
    for title, reason, record in what_ifs:
        if record is None or record.status != Status.OK:
            not_tried.setdefault(reason or _why(record), []).append(title)
            continue
        run = dry_runs(record)[0]
        largest = int(value(record, "largest_micro_batch_predicted") or 0)
        rows.append([f"  {title}", GB(run.peak_B), verdict(run), f"about {largest:,}" if largest else "none"])
    yield from table(rows)
    for reason, titles in not_tried.items():
        yield from wrapped(f"  not tried: {', '.join(titles)}: {reason}", indent="    ")


def _why(record: Record | None) -> str:
    """Return why a cell has no result, in a line."""
    return (record.reason.split("\n")[0] or record.status) if record else "it was not run"


def verdict(run: DryRunValues) -> str:
    """Return whether a dry run fits, in a word or two."""
    if not run.fits:
        return "no"
    return "slowly" if run.retries else "yes"


def conditions(answer: Answer) -> Iterator[str]:
    """Yield the headroom and how the answer was found."""
    yield from wrapped(
        f"Room: {GB(answer.room_B)} GB = {GB(answer.usable_B)} GB ({answer.usable_B / GiB:.1f} GiB) usable, "
        f"less {answer.outside}. 1 GB = 10^9 B."
    )
    tried = ", ".join(f"{size:,}" for size in answer.runs)
    yield f"Simulated, nothing was allocated: dry runs at micro-batch {tried}."
