"""What the page shows of an answer: the headline, two figures with their legends, switches, numbers."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dash import html

from harness.answer import StepAnswer
from harness.ask.advise_lines import PARTS
from harness.ask.lines import GB, PROGRAMS, devices_of, link_title, parameters
from harness.ask.page.figures import BYTES, TIMES, ShownKind
from harness.ask.page.step import PageAnswer
from harness.question import Question
from harness.units import human, kept_together

Component = Any
"""One of dash's, whose types are made as it is imported."""


def headline(answer: PageAnswer, question: Question) -> list[Component]:
    """Return the layout, its seconds, rates and memory, each with its interval or margin."""
    one = answer.answer.layouts[0]
    assert one.step_s is not None
    low, step_s, high = one.step_s
    rate, tokens_per_s = (one.model_FLOP_per_s or 0.0) / 1e12, one.tokens_per_s_per_device or 0.0
    left_B = one.room_B - one.needed_B
    room = f"{GB(one.needed_B)} of {GB(one.room_B)} GB"
    state = "no" if not one.fits else "tight" if one.retries else "yes"
    verdict, margin = {
        "yes": ("fits", f"{GB(left_B)} GB left: {room}"),
        "tight": ("fits barely", f"{GB(left_B)} GB left: {room}; the allocator may retry"),
        "no": ("does not fit", f"{GB(-left_B)} GB too much: {room}"),
    }[state]
    tiles = [
        tile("step", "Time per step", human(step_s, "s"), f"90 %: {human(low, 's')} … {human(high, 's')}"),
        tile(
            "rate",
            "TFLOP/s per GPU",
            f"{rate:.0f}",
            f"90 %: {rate * step_s / high:.0f} … {rate * step_s / low:.0f}",
        ),
        tile("mfu", "MFU", f"{one.mfu or 0.0:.0%}", "of the dense bf16 rate"),
        tile(
            "tokens",
            "Tokens/s per GPU",
            f"{tokens_per_s:,.0f}",
            f"{human(tokens_per_s * (question.devices or 1), 'token/s')} in all",
        ),
        tile("memory", "Memory per GPU", verdict, margin, state),
    ]
    return [
        html.P(one.title, className="layout"),
        html.Div(tiles, className="tiles"),
        about(answer, question),
    ]


def tile(name: str, title: str, text: str, below: str, state: str = "") -> html.Div:
    """Return one number of the headline."""
    return html.Div(
        [
            html.Span(title),
            html.Strong(text, id=f"value-{name}"),
            html.Small(kept_together(below), id=f"below-{name}"),
        ],
        className=f"tile {state}".strip(),
    )


def about(answer: PageAnswer, question: Question) -> html.P:
    """Return the model, the batch and what the interval rests on."""
    batch, seq_len = question.global_batch_size, question.seq_len or 0
    tokens = f", {batch * seq_len:,} tokens per step" if batch else ""
    return html.P(
        f"{parameters(answer.answer.parameters or 0.0)}{tokens}, {devices_of(question)}, "
        f"{link_title(question)}, as {PROGRAMS[question.program_of()]} trains. Calculated. Interval: "
        f"{answer.answer.layouts[0].basis}.",
        className="soft",
    )


def legend(kinds: Mapping[str, ShownKind], sizes: Mapping[str, str]) -> list[html.Span]:
    """Return the kinds that are shown, each with its colour and its size."""
    return [
        html.Span([html.I(style={"background": look.colour}), look.title, html.B(sizes[kind])])
        for kind, look in kinds.items()
        if kind in sizes
    ]


def time_legend(answer: PageAnswer) -> list[html.Span]:
    """Return the kinds of seconds with their shares of what is shown."""
    seconds = [time_of_rank(row) for row in answer.timeline["ranks"]]
    total = {kind: sum(one.get(kind, 0.0) for one in seconds) for kind in TIMES}
    whole = sum(total.values())
    return legend(TIMES, {kind: share(each / whole) for kind, each in total.items() if each > 0})


def share(part: float) -> str:
    """Return a part of a whole in percent."""
    return f"{part:.1%}" if part >= 0.001 else "< 0.1%"


def time_of_rank(spans: Iterable[tuple[str, float, float]]) -> dict[str, float]:
    """Return the seconds of one rank by kind."""
    found: dict[str, float] = {}
    for kind, start, end in spans:
        found[kind] = found.get(kind, 0.0) + end - start
    return found


def fullest_rank(answer: PageAnswer) -> int:
    """Return the pipeline rank that needs the most memory."""
    totals = [sum(each) for each in zip(*answer.memory["kinds"].values(), strict=True)]
    return totals.index(max(totals))


def memory_legend(answer: PageAnswer) -> list[html.Span]:
    """Return the kinds of memory with their GB on the rank that needs the most."""
    rank = fullest_rank(answer)
    sizes = {kind: each[rank] for kind, each in answer.memory["kinds"].items()}
    return legend(BYTES, {kind: f"{GB(size_B)} GB" for kind, size_B in sizes.items() if size_B > 5e7})


def time_note(answer: PageAnswer, view: str) -> str:
    """Return how the timeline is drawn."""
    count, factor = answer.timeline["passes_per_span"], answer.timeline["drawn_over_stepped"]
    said = []
    if view == "totals":
        said.append("StepAnswer of each rank by kind, not in the order in which they are spent.")
    elif count == 0:
        said.append("Too many passes to draw one by one: totals of each rank, not in order.")
    elif count > 1:
        said.append(f"Up to {count} passes are drawn as one, with their idle time after them.")
    if abs(factor - 1) > 0.005:
        said.append(f"Passes are drawn {factor:.1%} as long as stepped, to end with the predicted step.")
    said.append(
        "Forward and backward include waits for the host; communication counts as far as nothing hides it."
    )
    return " ".join(said)


def memory_note(answer: PageAnswer) -> str:
    """Return which rank the sizes are of."""
    if len(answer.memory["kinds"]["parameters"]) == 1:
        return "At the peak of a step."
    return f"At each rank's peak; sizes are those of rank {fullest_rank(answer)}, which needs the most."


def tables(answer: PageAnswer) -> list[Component]:
    """Return what switches are worth, where the seconds go, and the figures' numbers."""
    step, memory = answer.answer.seconds or StepAnswer(), answer.memory["kinds"]
    seconds = [time_of_rank(row) for row in answer.timeline["ranks"]]
    sizes = [dict(zip(memory, row, strict=True)) for row in zip(*memory.values(), strict=True)]
    parts = [by_rank("StepAnswer", TIMES, seconds, 1.0), by_rank("GB", BYTES, sizes, 1e9)]
    numbers = html.Details([html.Summary("The figures as tables"), *parts])
    return [html.Div([switches(step), seconds_by_part(step)], className="pair"), numbers]


def switches(step: StepAnswer) -> html.Section:
    """Return what each single change is worth, the best first, and which do not fit."""
    rows = [
        [name, f"{'costs' if ratio > 1 else 'saves'} {abs(ratio - 1):.1%}"]
        for name, ratio in sorted(step.switches.items(), key=lambda one: one[1])
    ]
    rows += [[name, "does not fit"] for name in step.switches_that_do_not_fit]
    heads = ["What each switch is worth", "seconds per token"]
    return html.Section([table(heads, rows)])


def seconds_by_part(step: StepAnswer) -> html.Section:
    """Return where the seconds of a rank go, in the mean over ranks."""
    found = step.parts_s
    total = sum(found.values())
    rows = [
        [words, human(found[name], "s"), f"{found[name] / total:.1%}"]
        for name, words in PARTS.items()
        if found.get(name, 0.0) > 0.001 * total
    ]
    return html.Section([table(["Where the seconds go", "per step", "share"], rows)])


def by_rank(
    unit: str, kinds: Mapping[str, ShownKind], ranks: Sequence[Mapping[str, float]], scale: float
) -> Component:
    """Return a table with a row per pipeline rank and a column per kind."""
    present = [kind for kind in kinds if any(one.get(kind, 0.0) > 0 for one in ranks)]
    rows = [
        [f"Rank {rank}", *(f"{one.get(kind, 0.0) / scale:.3g}" for kind in present)]
        for rank, one in enumerate(ranks)
    ]
    return html.Div(table([unit, *(kinds[kind].title for kind in present)], rows), className="scroll")


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Component:
    """Return a table."""
    body = [html.Tr([html.Td(cell) for cell in row]) for row in rows]
    return html.Table([html.Thead(html.Tr([html.Th(head) for head in heads])), html.Tbody(body)])


def command(words: Sequence[str], config: Mapping[str, Any] | None) -> list[Component]:
    """Return the command that prints this answer, and a model's config.json that the page wrote."""
    line = "python -m harness.advise " + shlex.join(words)
    parts: list[Component] = [html.Summary("This answer as a command"), html.Pre(line)]
    if config is not None:
        parts += [html.P("The model's config.json is:"), html.Pre(json.dumps(config, indent=2))]
    return [html.Details(parts)]
