"""The two figures of the page as plotly's JSON: timeline and memory, with a row per pipeline rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from harness.report.axes import FAMILY, LIGHT
from harness.units import human

Json = dict[str, Any]


class ShownKind(NamedTuple):
    """One kind of seconds or bytes as it is drawn."""

    title: str
    colour: str


TIMES: Mapping[str, ShownKind] = {
    "forward": ShownKind("Forward", LIGHT["s0"]),
    "recompute": ShownKind("Recompute", "#f0c43c"),
    "backward": ShownKind("Backward", "#56b4e9"),
    "exposed_communication": ShownKind("Exposed communication", LIGHT["s1"]),
    "optimizer": ShownKind("Optimizer", LIGHT["s2"]),
    "other": ShownKind("Stragglers and other", LIGHT["s6"]),
    "idle": ShownKind("Idle (pipeline bubble)", "#e4e8ee"),
}
"""Kinds of a timeline. Okabe and Ito's colours, dark next to light, so that they differ without their hue."""

BYTES: Mapping[str, ShownKind] = {
    "parameters": ShownKind("Parameters", LIGHT["s0"]),
    "gradients": ShownKind("Gradients", "#56b4e9"),
    "optimizer": ShownKind("Optimizer states", LIGHT["s2"]),
    "activations": ShownKind("Activations", "#f0c43c"),
    "logits": ShownKind("Logits and loss", LIGHT["s1"]),
    "communication": ShownKind("Communication buffers", "#cc79a7"),
    "workspaces": ShownKind("Workspaces", LIGHT["s7"]),
    "fragmentation": ShownKind("Fragmentation", "#c3cad4"),
    "outside": ShownKind("CUDA context, NCCL", LIGHT["s6"]),
}
"""Kinds of memory, in the order of the stack."""

MOST_LABELS = 24
"""Rows that are labelled at most."""

TALLEST_PX, LOWEST_PX, USUAL_PX = 44, 12, 380
"""Height of a row at most and at least, and of all rows together between these."""

Spans = Sequence[tuple[str, float, float]]


def figure(title: str, rows: int, traces: Sequence[Json], ends: Sequence[float], **layout: Any) -> Json:
    """Return a figure with a row per pipeline rank, rank 0 at the top; `ends`: of its horizontal axis."""
    labelled = list(range(0, rows, -(-rows // MOST_LABELS)))
    stacked = layout["barmode"] == "stack"
    base: Json = {
        "bargap": 0.18 if rows <= MOST_LABELS else 0.05,
        "height": round(rows * min(max(USUAL_PX / rows, LOWEST_PX), TALLEST_PX)) + 66,
        "margin": {"l": 62, "r": 16, "t": 26 if stacked else 8, "b": 50},
        "showlegend": False,
        "font": {"family": FAMILY, "size": 13, "color": LIGHT["ink"]},
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
        "hoverlabel": {"font": {"family": FAMILY, "size": 13}},
        "xaxis": {
            "showgrid": True, "gridcolor": LIGHT["faint"], "zeroline": False, "fixedrange": False,
            "title": {"text": title, "standoff": 8},
            "range": ends, "rangemode": "tozero" if stacked else "normal",
        },
        "yaxis": {
            "range": [rows - 0.5, -0.5], "fixedrange": True, "showgrid": False, "zeroline": False,
            "tickvals": labelled, "ticktext": [f"Rank {rank}" for rank in labelled],
        },
    }  # fmt: skip
    return {"data": traces, "layout": base | layout}


def timeline_figure(ranks: Sequence[Spans]) -> Json:
    """Return the timeline: seconds from the start of the step."""
    traces = []
    edge = 0.6 if sum(map(len, ranks)) < 400 else 0
    for kind, look in TIMES.items():
        every = ((rank, *span) for rank, row in enumerate(ranks) for span in row)
        spans = [(rank, start, end) for rank, name, start, end in every if name == kind]
        if spans:
            rows, starts, ends = map(list, zip(*spans, strict=True))
            lengths = [end - start for start, end in zip(starts, ends, strict=True)]
            said = [f"{human(end - at, 's')}, from {at:.4g} s to {end:.4g} s" for _, at, end in spans]
            traces.append(bars(look, rows, lengths, said, edge) | {"base": starts})
    low = min((row[0][1] for row in ranks if row), default=0.0)
    high = max((row[-1][2] for row in ranks if row), default=1.0)
    return figure("Seconds", len(ranks), traces, [low, high], barmode="overlay")


def memory_figure(kinds: Mapping[str, Sequence[float]], usable_B: float) -> Json:
    """Return the memory of each pipeline rank as a stack, with what a process can use of the device."""
    rows = len(kinds["parameters"])
    traces = []
    for kind, look in BYTES.items():
        sizes = [size_B / 1e9 for size_B in kinds[kind]]
        if max(sizes) > 0:
            traces.append(bars(look, list(range(rows)), sizes, [f"{size:.2f} GB" for size in sizes], 0.6))
    largest, usable = max(map(sum, zip(*kinds.values(), strict=True))) / 1e9, usable_B / 1e9
    line = {
        "type": "line", "x0": usable, "x1": usable, "y0": 0, "y1": 1, "yref": "paper",
        "line": {"color": LIGHT["ink"], "width": 2, "dash": "dash"},
    }  # fmt: skip
    label = {
        "x": usable, "y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False,
        "text": f"usable: {usable:.1f} GB", "xanchor": "right" if largest <= 1.3 * usable else "center",
        "font": {"size": 12},
    }  # fmt: skip
    ends = [0, 1.04 * max(largest, usable)]
    return figure("GB per GPU", rows, traces, ends, barmode="stack", shapes=[line], annotations=[label])


def bars(
    look: ShownKind, rows: Sequence[int], sizes: Sequence[float], said: Sequence[str], edge: float
) -> Json:
    """Return one kind's bars, each with what is said of it under the pointer."""
    return {
        "type": "bar",
        "orientation": "h",
        "name": look.title,
        "y": rows,
        "x": sizes,
        "customdata": said,
        "marker": {"color": look.colour, "line": {"width": edge, "color": LIGHT["ground"]}},
        "hovertemplate": "<b>%{fullData.name}</b>, rank %{y}<br>%{customdata}<extra></extra>",
    }
