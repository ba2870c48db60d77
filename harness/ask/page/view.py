"""What the page shows of an answer: the headline, two figures with their legends, switches, numbers."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from dash import html

from harness.answer import Answer, Interval, StepAnswer
from harness.ask.engines import ENGINES, answer_to
from harness.ask.lines import (
    GB,
    adapted,
    chance,
    devices_of,
    link_title,
    parameters,
    shares,
    trainer,
    worth_of,
)
from harness.ask.mine import FAMILIES, LISTED, OwnStep, likely_causes
from harness.ask.page.figures import BYTES, TIMES, ShownKind, memory_figure, timeline_figure
from harness.question import Question
from harness.units import human, kept_together

Component = Any
"""One of dash's, whose types are made as it is imported."""


def parts_of(question: Question, shown: str, mine: OwnStep | None = None) -> dict[str, Component]:
    """Return what the answer about one layout fills, by the names of the page's parts.

    `shown`: of the step; `mine`: the user's own, which is explained. Raises ConfigError where the question is
    refused.
    """
    answer, engine = answer_to(question), import_module(ENGINES["step time"])
    timeline, memory = engine.timeline_of(question, shown), engine.memory_of_ranks(question)
    ranks, kinds = timeline["ranks"], memory["kinds"]
    seconds: list[dict[str, float]] = [{} for _ in ranks]
    for of_rank, spans in zip(seconds, ranks, strict=True):
        for kind, start, end in spans:
            of_rank[kind] = of_rank.get(kind, 0.0) + end - start
    sizes_B = [dict(zip(kinds, row, strict=True)) for row in zip(*kinds.values(), strict=True)]
    totals_B = [sum(each.values()) for each in sizes_B]
    fullest = totals_B.index(max(totals_B))
    by_kind = {kind: sum(one.get(kind, 0.0) for one in seconds) for kind in TIMES}
    of_step = {kind: each / sum(by_kind.values()) for kind, each in by_kind.items() if each > 0}
    percent = {kind: f"{each:.1%}" if each >= 0.001 else "< 0.1%" for kind, each in of_step.items()}
    size = {kind: f"{GB(size_B)} GB" for kind, size_B in sizes_B[fullest].items() if size_B > 5e7}
    note = f"At each rank's peak; sizes are those of rank {fullest}, which needs the most."
    return {
        "headline": headline(answer, question),
        "timeline-legend": legend(TIMES, percent),
        "timeline-note": time_note(timeline, shown),
        "memory-legend": legend(BYTES, size),
        "memory-note": note if len(sizes_B) > 1 else "At the peak of a step.",
        "tables": [
            *([] if mine is None else causes(mine, answer)),
            *tables(answer.seconds or StepAnswer(), seconds, sizes_B),
        ],
        "timeline": timeline_figure(ranks),
        "memory": memory_figure(kinds, memory["usable_B"]),
    }


def headline(answer: Answer, question: Question) -> list[Component]:
    """Return the layout, its seconds, rates and memory, each with an interval or a margin, and the model."""
    one = answer.layouts[0]
    assert one.step_s is not None
    low, step_s, high = one.step_s
    rate, tokens_per_s = (one.model_FLOP_per_s or 0.0) / 1e12, one.tokens_per_s_per_device or 0.0
    of_rate = f"90 %: {rate * step_s / high:.0f} … {rate * step_s / low:.0f}"
    in_all = f"{human(tokens_per_s * (question.devices or 1), 'token/s')} in all"
    left_B, room = one.room_B - one.needed_B, f"{GB(one.needed_B)} of {GB(one.room_B)} GB"
    memory = ("fits", f"{GB(left_B)} GB left: {room}", "yes")
    if answer.verdict == "depends":
        memory = ("depends", f"{room}, within how far off the prediction may be", "tight")
    elif not one.fits:
        memory = ("does not fit", f"{GB(-left_B)} GB too much: {room}", "no")
    elif one.retries:
        memory = ("fits barely", f"{GB(left_B)} GB left: {room}; the allocator may retry", "tight")
    tiles = [tile("step", "Time per step, as tuned", *seconds_words(one.step_s))]
    if one.as_run_s is not None:
        tiles.append(tile("as-run", "As others run it", *seconds_words(one.as_run_s)))
    tiles += [
        tile("rate", "TFLOP/s per GPU", f"{rate:.0f}", of_rate),
        tile("mfu", "MFU", f"{one.mfu or 0.0:.0%}", "of the dense bf16 rate"),
        tile("tokens", "Tokens/s per GPU", f"{tokens_per_s:,.0f}", in_all),
        tile("memory", "Memory per GPU", *memory),
        tile("chance", "Chance to run", chance(one), "by how far off bytes are"),
    ]
    batch = question.global_batch_size
    tokens = f", {batch * (question.seq_len or 0):,} tokens per step" if batch else ""
    about = (
        f"{parameters(answer.parameters or 0.0)}{tokens}, {devices_of(question)}, "
        f"{link_title(question)}, {trainer(question)}. {' '.join([*adapted(question), 'Calculated.'])} "
        f"Interval: {one.basis}."
    )
    return [
        html.P(one.title, className="layout"),
        html.Div(tiles, className="tiles"),
        html.P(about, className="soft"),
    ]


def seconds_words(interval: Interval) -> tuple[str, str]:
    """Return likely seconds, and the ends of their interval."""
    low, likely, high = (human(each, "s") for each in interval)
    return likely, f"90 %: {low} … {high}"


def causes(mine: OwnStep, answer: Answer) -> list[Component]:
    """Return what would explain the user's own step, the likeliest first."""
    rows = [
        (one.title, human(one.step_s, "s"), FAMILIES[one.family].find_out)
        for one in likely_causes((answer.seconds or StepAnswer()).causes, mine, answer)[:LISTED]
    ]
    heads = [f"What would explain {human(mine.seconds, 's')}, the likeliest first", "predicts", "to find out"]
    others = "Or another count of FLOP, tokens or steps. Seconds alone leave much of the order open; a trace "
    return [
        html.Div(table(heads, rows), className="scroll", id="causes"),
        html.P(f"{others} decides more: mine=trace.json on the command line.", className="soft"),
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


def legend(kinds: Mapping[str, ShownKind], sizes: Mapping[str, str]) -> list[html.Span]:
    """Return the kinds that are shown, each with its colour and its size."""
    named = [(look, sizes[kind]) for kind, look in kinds.items() if kind in sizes]
    return [
        html.Span([html.I(style={"background": look.colour}), look.title, html.B(size)])
        for look, size in named
    ]


def time_note(timeline: Mapping[str, Any], shown: str) -> str:
    """Return how the timeline is drawn."""
    count, factor = timeline["passes_per_span"], timeline["drawn_over_stepped"]
    said = []
    if shown == "totals":
        said.append("Seconds of each rank by kind, not in the order in which they are spent.")
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


RanksByKind = Sequence[Mapping[str, float]]
"""Seconds or bytes of each pipeline rank by kind."""


def tables(step: StepAnswer, seconds: RanksByKind, sizes_B: RanksByKind) -> list[Component]:
    """Return what switches are worth, where the seconds go, and the figures' numbers."""
    worth = [*worth_of(step), *((name, "does not fit") for name in step.switches_that_do_not_fit)]
    parts = [(words, human(part_s, "s"), f"{of:.1%}") for words, part_s, of in shares(step.parts_s)]
    pair = [
        html.Section([table(["What each switch is worth", "seconds per token"], worth)]),
        html.Section([table(["Where the seconds go", "per step", "share"], parts)]),
    ]
    numbers = [by_rank("Seconds", TIMES, seconds, 1.0), by_rank("GB", BYTES, sizes_B, 1e9)]
    return [html.Div(pair, className="pair"), html.Details([html.Summary("The figures as tables"), *numbers])]


def by_rank(unit: str, kinds: Mapping[str, ShownKind], ranks: RanksByKind, scale: float) -> Component:
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
