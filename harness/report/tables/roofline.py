"""Show each time next to the bound that this host sets: bytes over bandwidth, FLOPs over its matmul rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from harness.report.data.result_index import ResultIndex, Value
from harness.report.language.spec import ReportBlock, Spec
from harness.report.tables.tables import Footnotes, Table, TableCell, missing, percent, reasoned, show
from harness.sweep.host_probe import SLOW_BF16
from harness.units import human, marked


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
            absent = (
                "copy bandwidth"
                if self.bandwidth is None
                else f"matmul rate in {precision or 'its precision'}"
            )
            return f"the {absent} was not measured in this run"
        memory_s, compute_s = moved_B / self.bandwidth, flops / rate
        return (
            RooflineBound(memory_s, "memory")
            if memory_s >= compute_s
            else RooflineBound(compute_s, "compute")
        )


def rates(fields: Mapping[str, Any], index: ResultIndex) -> Rates:
    """Return the median rates of the baseline on the workloads that `fields` name."""
    compute = {
        name: _rate(index, workload, fields["flops"], fields) for name, workload in fields["rates"].items()
    }
    return Rates(_rate(index, fields["bandwidth"], fields["bytes"], fields), compute)


def roofline(block: ReportBlock, spec: Spec, index: ResultIndex) -> Table:
    """Return one row per workload and variant that was timed."""
    fields, notes = block.fields, Footnotes()
    measured = rates(fields, index)
    rows = []
    variants = index.names("optimization", fields["where"], fields["metric"])
    for workload in index.names("workload", fields["where"], fields["metric"]):
        for variant in variants:
            value = index.get(workload, variant, fields["metric"], fields["method"])
            if value is not None:
                name = TableCell(spec.name("workload", workload), look="word")
                cells = _row(index, notes, value, fields, measured)
                rows.append((name, TableCell(spec.name("optimization", variant), look="word"), *cells))
    header = (
        "Workload",
        "Optimization",
        "Min. bytes",
        "GFLOP",
        "Time",
        "Bound",
        "Limited by",
        "% of roofline",
    )
    text = f"{block.text} {_rates_text(measured)}".strip()
    return Table(block.id, block.title, text, header, tuple(rows), tuple(notes.texts))


def _row(
    index: ResultIndex, notes: Footnotes, value: Value, fields: Mapping[str, Any], measured: Rates
) -> tuple[TableCell, ...]:
    workload, variant = value.workload, value.optimization
    moved, flops = (index.first(workload, variant, fields[name]) for name in ("bytes", "flops"))
    slow = index.note(workload, variant, SLOW_BF16)
    time = TableCell(show(value, "auto"), value.cell, note=f" {notes.mark(slow)}" if slow else "")
    if moved is None or flops is None:
        name, heading = ("bytes", "Min. bytes") if moved is None else ("flops", "GFLOP")
        place = {"workload": workload, "optimization": variant, "metric": fields[name], "method": ""}
        absent = missing(index, notes, place, heading)
        return (
            absent,
            absent,
            time,
            TableCell("unknown", look="muted"),
            TableCell("–", look="muted"),
            TableCell("–", look="muted"),
        )
    work = TableCell(show(moved, "auto"), moved.cell), TableCell(show(flops, "GFLOP"), flops.cell)
    bound = measured.bound(
        moved.median, flops.median, index.condition(workload, variant, fields["precision"])
    )
    if isinstance(bound, str):
        unknown = reasoned(notes, ("unknown", bound))
        return *work, time, unknown, TableCell("–", look="muted"), TableCell("–", look="muted")
    shown = marked(human(bound.time_s, "s"), "calculated")
    share = marked(percent(bound.time_s / value.median), value.origin)
    return *work, time, TableCell(shown, value.cell), TableCell(bound.by), TableCell(share, value.cell)


def _rate(index: ResultIndex, workloads: Sequence[str], work: str, fields: Mapping[str, Any]) -> float | None:
    for workload in workloads:
        done = index.first(workload, fields["baseline"], work)
        time = index.get(workload, fields["baseline"], fields["metric"], fields["method"])
        if done and time and time.median > 0:
            return done.median / time.median
    return None


def _rates_text(measured: Rates) -> str:
    """Return the measured rates in a sentence."""
    known = [f"{human(measured.bandwidth, 'B/s')} copied"] if measured.bandwidth else []
    known += [f"{human(rate, 'FLOP/s')} in {name}" for name, rate in measured.compute.items() if rate]
    return f"Reached by this host: {', '.join(known)}." if known else "No rate of this host was measured."
