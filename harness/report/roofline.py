"""Times beside the bound that this host sets: bytes over its copy bandwidth, FLOPs over its matrix rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from harness.report.frame import Figure, Frame
from harness.report.spec import Block, Spec
from harness.report.tables import Notes, Table, Text, missing, percent, reasoned, show
from harness.units import human, marked


class Bound(NamedTuple):
    """The least time in which a variant's work can be done here, in seconds, and what sets it."""

    time_s: float
    by: str  # memory | compute


class Rates(NamedTuple):
    """What the host reached in the same run: B/s, and FLOP/s by precision; None where not measured."""

    bandwidth: float | None
    compute: Mapping[str, float | None]

    def bound(self, moved_B: float, flops: float, precision: str) -> Bound | str:
        """The bound of such work, or why it is unknown."""
        rate = self.compute.get(precision)
        if self.bandwidth is None or rate is None:
            lacking = (
                "copy bandwidth"
                if self.bandwidth is None
                else f"matrix rate in {precision or 'its precision'}"
            )
            return f"the {lacking} was not measured in this run"
        memory_s, compute_s = moved_B / self.bandwidth, flops / rate
        return Bound(memory_s, "memory") if memory_s >= compute_s else Bound(compute_s, "compute")


def rates(fields: Mapping[str, Any], frame: Frame) -> Rates:
    """The median rates of the baseline on the workloads that `fields` name."""
    compute = {
        name: _rate(frame, workload, fields["flops"], fields) for name, workload in fields["rates"].items()
    }
    return Rates(_rate(frame, fields["bandwidth"], fields["bytes"], fields), compute)


def roofline(block: Block, spec: Spec, frame: Frame) -> Table:
    """One row a workload and variant that was timed."""
    fields, notes = block.fields, Notes()
    measured = rates(fields, frame)
    rows = []
    variants = frame.values("optimization", fields["where"], fields["metric"])
    for workload in frame.values("workload", fields["where"], fields["metric"]):
        for variant in variants:
            figure = frame.get(workload, variant, fields["metric"], fields["method"])
            if figure is not None:
                name = Text(spec.name("workload", workload), look="word")
                cells = _row(frame, notes, figure, fields, measured)
                rows.append((name, Text(spec.name("optimization", variant), look="word"), *cells))
    header = (
        "Workload",
        "Optimization",
        "Moves at least",
        "GFLOP",
        "Time",
        "Bound",
        "Set by",
        "Share of it reached",
    )
    text = f"{block.text} {_told(measured)}".strip()
    return Table(block.id, block.title, text, header, tuple(rows), tuple(notes.texts))


def _row(
    frame: Frame, notes: Notes, figure: Figure, fields: Mapping[str, Any], measured: Rates
) -> tuple[Text, ...]:
    workload, variant = figure.workload, figure.optimization
    moved, flops = (frame.first(workload, variant, fields[name]) for name in ("bytes", "flops"))
    time = Text(show(figure, "auto"), figure.cell)
    if moved is None or flops is None:
        place = {"workload": workload, "optimization": variant, "method": ""}
        lacking = missing(frame, notes, {**place, "metric": fields["bytes" if moved is None else "flops"]})
        return (
            lacking,
            lacking,
            time,
            Text("unknown", look="muted"),
            Text("–", look="muted"),
            Text("–", look="muted"),
        )
    work = Text(show(moved, "auto"), moved.cell), Text(show(flops, "GFLOP"), flops.cell)
    bound = measured.bound(moved.value, flops.value, frame.condition(workload, variant, fields["precision"]))
    if isinstance(bound, str):
        unknown = reasoned(notes, ("unknown", bound))
        return *work, time, unknown, Text("–", look="muted"), Text("–", look="muted")
    shown = marked(human(bound.time_s, "s"), "calculated")
    share = marked(percent(bound.time_s / figure.value), figure.origin)
    return *work, time, Text(shown, figure.cell), Text(bound.by), Text(share, figure.cell)


def _rate(frame: Frame, workloads: Sequence[str], work: str, fields: Mapping[str, Any]) -> float | None:
    for workload in workloads:
        done = frame.first(workload, fields["baseline"], work)
        time = frame.get(workload, fields["baseline"], fields["metric"], fields["method"])
        if done and time and time.value > 0:
            return done.value / time.value
    return None


def _told(measured: Rates) -> str:
    """The measured rates in a sentence."""
    known = [f"{human(measured.bandwidth, 'B/s')} copied"] if measured.bandwidth else []
    known += [f"{human(rate, 'FLOP/s')} in {name}" for name, rate in measured.compute.items() if rate]
    return f"Reached by this host: {', '.join(known)}." if known else "No rate of this host was measured."
