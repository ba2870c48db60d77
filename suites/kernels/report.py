"""Make what the report of this suite alone shows: times next to this host's bounds, operations in a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from harness.report.axes import LIGHT, SMALL, Tip, logarithmic, x_title
from harness.report.block_tables import timed_variants
from harness.report.comparison import SIGNS_LEGEND, speed_up_cell
from harness.report.figure import Drawing, Figure, alt_text, name_points, origins, y_title
from harness.report.results import ResultIndex, Value
from harness.report.spec import OwnFigureBlock, OwnTableBlock, Pairing, Spec
from harness.report.tables import DASH, Table, TableCell, missing, percent, reasoned, show, word
from harness.sweep.preflight import SLOW_BF16
from harness.units import human, marked

TIMED = Pairing("time", "warm", "baseline", "baseline_again")
BYTES, FLOPS = "bytes_moved", "flops"
"""Metrics that count the bytes that must move, and floating-point operations."""

COPYING = ("copy_gpu", "copy")
"""Workloads that copy: the first that was timed gives the bandwidth."""

MULTIPLYING = {
    "fp32": ("matmul_fp32_gpu", "matmul_fp32"),
    "bf16": ("matmul_bf16_gpu", "matmul_bf16", "matmul_bf16_small"),
}
"""Precision to workloads that multiply matrices: the first that was timed gives its rate."""

ALONE_AND_IN_THE_STEP = {
    "RMSNorm, small": ("rms_norm_small", "step_5m_1k_rms_norm"),
    "RMSNorm, 8 M": ("rms_norm_8m", "step_5m_1k_rms_norm"),
    "SwiGLU, small": ("swiglu_small", "step_5m_1k_swiglu"),
    "SwiGLU, 8 M": ("swiglu_8m", "step_5m_1k_swiglu"),
    "Rotary embedding": ("rotary_8m", "step_5m_1k_rotary"),
    "Attention, 64, 1k": ("attention_causal_64_1k", "step_5m_1k_attention"),
    "Linear + cross-entropy": ("linear_cross_entropy_32k", "step_5m_1k_linear_cross_entropy"),
    "AdamW": ("adamw_8m", "step_5m_1k_adamw"),
    "RMSNorm, 300M": ("rms_norm_64m_gpu", "step_300m_2k_rms_norm_gpu"),
    "SwiGLU, 300M": ("swiglu_64m_gpu", "step_300m_2k_swiglu_gpu"),
    "Attention, 300M": ("attention_causal_64_4k_gpu", "step_300m_2k_attention_gpu"),
    "Linear + cross-entropy, 300M": ("linear_cross_entropy_gpu", "step_300m_2k_linear_cross_entropy_gpu"),
}
"""Operation to its workload in isolation, and to the step in which it alone is replaced."""


class RooflineBound(NamedTuple):
    """The shortest time in which the work can be done here, in seconds, and what limits it."""

    time_s: float
    by: str  # memory | compute


class Rates(NamedTuple):
    """What the host reached in the same run: B/s, and FLOP/s by precision; None where not measured."""

    bandwidth: float | None
    compute: Mapping[str, float | None]

    def bound(self, moved_B: float, flops: float, precision: str) -> RooflineBound | str:
        """Return the bound of such work, or why it is unknown."""
        rate = self.compute.get(precision)
        if self.bandwidth is None or rate is None:
            product = f"matmul rate in {precision or 'its precision'}"
            absent = "copy bandwidth" if self.bandwidth is None else product
            return f"the {absent} was not measured in this run"
        memory, compute = moved_B / self.bandwidth, flops / rate
        return max(RooflineBound(memory, "memory"), RooflineBound(compute, "compute"))


def rates(index: ResultIndex) -> Rates:
    """Return the median rates of the baseline on the workloads that copy and that multiply."""
    compute = {name: _rate(index, workloads, FLOPS) for name, workloads in MULTIPLYING.items()}
    return Rates(_rate(index, COPYING, BYTES), compute)


def matmul_rates(index: ResultIndex) -> dict[str, float]:
    """Return the FLOP/s that this host reached, by precision: the peaks of this run's training steps."""
    return {name: rate for name, rate in rates(index).compute.items() if rate}


def bounds(block: OwnTableBlock, spec: Spec, index: ResultIndex) -> Table:
    """Return one row per workload and variant that was timed."""
    measured = rates(index)
    rows = []
    for workload in index.names("workload", block.where, TIMED.metric):
        for variant in index.names("optimization", block.where, TIMED.metric):
            if value := index.get(workload, variant, TIMED.metric, TIMED.method):
                names = spec.name("workload", workload), spec.name("optimization", variant)
                rows.append((*map(word, names), *_row(index, value, measured)))
    work = ("Min. bytes", "GFLOP", "Time", "Bound", "Limited by", "% of roofline")
    text = f"{block.text} {_rates_text(measured)}".strip()
    return Table(block.id, block.title, text, ("Workload", "Optimization", *work), tuple(rows))


def _row(index: ResultIndex, value: Value, measured: Rates) -> tuple[TableCell, ...]:
    workload, variant = value.workload, value.optimization
    moved, flops = (index.first(workload, variant, name) for name in (BYTES, FLOPS))
    slow = index.note(workload, variant, SLOW_BF16)
    time = TableCell(show(value, "auto"), value.cell, notes=(slow,) if slow else ())
    if moved is None or flops is None:
        name, heading = (BYTES, "Min. bytes") if moved is None else (FLOPS, "GFLOP")
        absent = missing(index, (workload, variant, name, ""), heading)
        return absent, absent, time, TableCell("unknown", look="muted"), DASH, DASH
    work = TableCell(show(moved, "auto"), moved.cell), TableCell(show(flops, "GFLOP"), flops.cell)
    bound = measured.bound(moved.median, flops.median, index.condition(workload, variant, "precision"))
    if isinstance(bound, str):
        unknown = reasoned(("unknown", bound))
        return *work, time, unknown, DASH, DASH
    shown = marked(human(bound.time_s, "s"), "calculated")
    share = marked(percent(bound.time_s / value.median), value.origin)
    return *work, time, TableCell(shown, value.cell), TableCell(bound.by), TableCell(share, value.cell)


def _rate(index: ResultIndex, workloads: Sequence[str], work: str) -> float | None:
    for workload in workloads:
        done = index.first(workload, TIMED.baseline, work)
        time = index.get(workload, TIMED.baseline, TIMED.metric, TIMED.method)
        if done and time and time.median > 0:
            return done.median / time.median
    return None


def _rates_text(measured: Rates) -> str:
    """Return the measured rates in a sentence."""
    known = [f"{human(measured.bandwidth, 'B/s')} copied"] if measured.bandwidth else []
    known += [f"{human(rate, 'FLOP/s')} in {name}" for name, rate in measured.compute.items() if rate]
    return f"Reached by this host: {', '.join(known)}." if known else "No rate of this host was measured."


def alone_and_in_the_step(block: OwnTableBlock, spec: Spec, index: ResultIndex) -> Table:
    """Return, per row and variant that was timed, the speed-up on one workload and that on another."""
    rows = []
    for label, both in ALONE_AND_IN_THE_STEP.items():
        where = {**block.where, "workload": list(both)}
        for variant in timed_variants(index, both, index.names("optimization", where), TIMED)[0]:
            cells = [speed_up_cell(index, workload, variant, TIMED) for workload in both]
            name = word(spec.name("optimization", variant))
            rows.append((word(label), name, *cells))
    header = ("Operation", "Optimization", "Isolated", "End to end")
    text = f"{block.text} {SIGNS_LEGEND}".strip()
    return Table(block.id, block.title, text, header, tuple(rows))


class RooflinePoint(NamedTuple):
    """One workload by one variant: FLOPs per byte, and FLOP/s reached."""

    intensity: float
    rate: float
    tip: Tip
    value: Value


TINY = 10.5
"""Size of the names next to points."""


def roofs(block: OwnFigureBlock, spec: Spec, index: ResultIndex) -> Figure | None:
    """Return the figure, both axes logarithmic; None with fewer than two times."""
    variants = index.names("optimization", block.where, TIMED.metric)
    series = {variant: list(_points(block, spec, index, variant)) for variant in variants}
    series = {variant: points for variant, points in series.items() if points}
    every = [point for points in series.values() for point in points]
    if len(every) < 2:
        return None
    measured = rates(index)
    drawing = Drawing(block.id, 470)
    axes = drawing.axes
    known = [rate for rate in measured.compute.values() if rate]
    x_ends = min(p.intensity for p in every) / 1.5, max(p.intensity for p in every) * 1.8
    y_ends = min(p.rate for p in every) / 1.5, max([*(p.rate for p in every), *known]) * 1.6
    logarithmic(axes, "y", *y_ends, "FLOP/s")
    logarithmic(axes, "x", *x_ends, "1")
    for name, corners in _roofs(measured, *x_ends, y_ends[0]):
        axes.plot([x for x, _ in corners], [y for _, y in corners], color=LIGHT["ink"], linewidth=1.3,
                  dashes=(5, 4))  # fmt: skip
        drawing.name(name, corners[-1], 8)
    if measured.bandwidth:
        ridge = max(known, default=y_ends[1]) / measured.bandwidth
        x = (x_ends[0] * min(ridge, x_ends[1]) ** 2) ** (1 / 3)
        if x > x_ends[0]:  # else the slope lies left of every point
            drawing.name(f"copy: {human(measured.bandwidth, 'B/s')}", (x, x * measured.bandwidth), -8, 4)
    for i, (variant, points) in enumerate(series.items()):
        drawing.points([(p.intensity, p.rate) for p in points], [p.tip for p in points], i)
        axes.lines[-1].set_label(spec.name("optimization", variant))
    fastest = {point.value.workload: point for point in sorted(every, key=lambda point: point.rate)}
    names = [
        (spec.name("workload", workload), (point.intensity, point.rate))
        for workload, point in sorted(fastest.items(), key=lambda one: -one[1].rate)
    ]
    name_points(drawing, names, [(point.intensity, point.rate) for point in every], TINY)
    x_title(axes, "Arithmetic intensity, FLOP per byte")
    y_title(drawing, f"FLOP/s reached ({origins(p.value.origin for p in every)})")
    drawing.canvas.legend(loc="outside lower left", ncols=4, frameon=False, fontsize=SMALL, columnspacing=1.4)
    return drawing.finish(block.title, block.text, alt_text(block.title, series))


def _points(block: OwnFigureBlock, spec: Spec, index: ResultIndex, variant: str) -> Iterator[RooflinePoint]:
    for workload in index.names("workload", block.where, TIMED.metric):
        time = index.get(workload, variant, TIMED.metric, TIMED.method)
        moved, flops = (index.first(workload, variant, name) for name in (BYTES, FLOPS))
        if time and moved and flops and min(time.median, moved.median, flops.median) > 0:
            rate = flops.median / time.median
            name = f"{spec.name('optimization', variant)}, {spec.name('workload', workload)}"
            tip = Tip(f"{name}: {human(rate, 'FLOP/s')}", time.cell)
            yield RooflinePoint(flops.median / moved.median, rate, tip, time)


def _roofs(
    measured: Rates, x_low: float, x_high: float, y_low: float
) -> Iterator[tuple[str, list[tuple[float, float]]]]:
    """Yield for each precision whose rate is known its roof: up the bandwidth to the rate, then level."""
    for name, rate in measured.compute.items():
        if rate and measured.bandwidth:
            begin = max(x_low, y_low / measured.bandwidth)
            ridge = min(max(rate / measured.bandwidth, begin), x_high)
            corners = [(x, min(x * measured.bandwidth, rate)) for x in (begin, ridge, x_high)]
            yield f"{name}: {human(rate, 'FLOP/s')}", corners
