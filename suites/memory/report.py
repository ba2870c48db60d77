"""Draw what the report of this suite alone shows: live bytes over one run of a step."""

from __future__ import annotations

from collections.abc import Mapping

from harness.records import Record
from harness.report.axes import LETTER, LIGHT, SERIES, SMALL, WIDTH, Tip, apart, linear, x_title
from harness.report.figure import Drawing, Figure, alt_text, origins, y_title
from harness.report.results import ResultIndex
from harness.report.spec import OwnFigureBlock, Spec
from harness.units import human

KINDS = ("Parameters", "Optimizer states", "Gradients", "Activations", "Temporaries", "Communication")
"""Kinds of live bytes in the order of the stack: `live_memory/optimizer_states`."""

INNER_PX = 0.9 * WIDTH
"""About the width between the axes' ends."""


def timeline_baseline(block: OwnFigureBlock, spec: Spec, index: ResultIndex) -> Figure | None:
    """Draw the live bytes over a step of plain PyTorch; None where none was recorded."""
    return _timeline(block, spec, index, "baseline")


def timeline_checkpointed(block: OwnFigureBlock, spec: Spec, index: ResultIndex) -> Figure | None:
    """Draw the live bytes over a step with mixed precision, flash attention and checkpointing."""
    return _timeline(block, spec, index, "mixed_checkpointed")


def _timeline(block: OwnFigureBlock, spec: Spec, index: ResultIndex, variant: str) -> Figure | None:
    """Draw the first record of a variant that has bytes by kind, stacked, with its phases and its peak."""
    for record in index.right(block.where["workload"], variant)[:1]:
        samples = {one.metric: tuple(one.samples) for one in record.measurements}
        series = {
            kind: samples[metric]
            for kind, metric in ((kind, f"live_memory/{kind.lower().replace(' ', '_')}") for kind in KINDS)
            if metric in samples and max(samples[metric]) > 0
        }
        if series:
            return _drawn(block, spec.name("optimization", variant), record, series)
    return None


def _drawn(
    block: OwnFigureBlock, variant: str, record: Record, series: Mapping[str, tuple[float, ...]]
) -> Figure:
    drawing = Drawing(block.id, 360)
    axes = drawing.axes
    totals = [sum(point) for point in zip(*series.values(), strict=True)]
    points = range(len(totals))
    colours = [SERIES[i % len(SERIES)] for i in range(len(series))]
    axes.stackplot(points, *series.values(), labels=list(series), colors=colours, linewidth=0)
    peak = max(points, key=totals.__getitem__)
    one = next(m for m in record.measurements if m.metric.startswith("live_memory/"))
    text = f"peak: {human(totals[peak], one.unit)}{_explained(record)}"
    drawing.points([(peak, totals[peak])], [Tip(text, record.cell.id)], len(series))
    _name_peak(drawing, text, peak / max(len(totals) - 1, 1), (peak, totals[peak]))
    linear(axes, "y", 0, max(totals) * 1.18, one.unit)
    axes.set_xlim(0, len(totals) - 1)
    phases = _phases(record)
    named = apart({
        begins: ((begins / len(totals) + 0.5 * share) * INNER_PX, share * INNER_PX)
        for name, begins in phases.items()
        for share in [LETTER * SMALL * len(name) / INNER_PX]
    })  # fmt: skip
    for name, begins in phases.items():
        axes.axvline(begins, color=LIGHT["soft"], linewidth=0.8, linestyle=(0, (2, 3)))
        if begins not in named:
            continue
        axes.annotate(name, (begins, 1), xycoords=("data", "axes fraction"), xytext=(4, -6),
                      textcoords="offset points", fontsize=SMALL, color=LIGHT["soft"], va="top")  # fmt: skip
    axes.set_xticks([])
    x_title(axes, "Allocations and releases of one step, in order")
    y_title(drawing, f"Live bytes ({origins([one.origin])})")
    drawing.legend("outside lower left", len(series))
    return drawing.finish(block.title, block.text, alt_text(f"{block.title}, {variant}, {text}", series))


def _name_peak(drawing: Drawing, text: str, share: float, place: tuple[float, float]) -> None:
    """Write the text above the peak, which lies at `share` of the width, on the side where it has room."""
    wide = LETTER * SMALL * len(text) / INNER_PX
    if share + wide < 1:
        drawing.name(text, place, 10, 12)
    elif share > wide:
        drawing.name(text, place, -10, 12)
    else:
        drawing.name(text, (0, place[1]), 4, 14)


def _explained(record: Record) -> str:
    """Return what a note of the record says of the peak, if it has one."""
    about = "fake_step: the peak is"
    notes = [note.removeprefix(about) for note in record.notes if note.startswith(about)]
    return f", {notes[0].strip()}" if notes else ""


def _phases(record: Record) -> dict[str, float]:
    """Return where each phase begins, of those phases that are wide enough for their names."""
    begins = {
        one.metric.removeprefix("live_memory_phase/"): one.samples[0]
        for one in record.measurements
        if one.metric.startswith("live_memory_phase/")
    }
    if not any(name.endswith(" 1") for name in begins):  # one micro-batch
        begins = {name.removesuffix(" 0"): at for name, at in begins.items()}
    ordered = sorted(begins.items(), key=lambda phase: phase[1])
    following = [begin for _, begin in ordered[1:]] + [float("inf")]
    return {name: at for (name, at), end in zip(ordered, following, strict=True) if end - at > 12}
