"""Derive what the field compares training steps by: tokens/s, FLOP/s and MFU per device.

- tokens/s per device = tokens per step / (time of a step x devices)
- FLOP/s per device = FLOPs per step / (time of a step x devices); FLOPs as the suite counts them, else
  6 x parameters x tokens (Kaplan et al. 2020, arXiv 2001.08361, section 2.1), which leaves attention out
- MFU = FLOP/s per device / the peak of the device: a GPU's dense matmul rate by its datasheet. All ranks of
  one CPU share it, so there it is the FLOP/s of all ranks over the matmul rate measured on the same host
  (one thread's times the cores), headed "% of measured matmul peak".

Read what a report needs in addition to records: datasheets of devices, and the host's measured rates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from harness.claims.load import read_yaml
from harness.config.optimizations import CONF
from harness.records import Record
from harness.report.results import ResultIndex, Value
from harness.report.spec import Block, EffectsBlock, TableBlock, Where
from harness.units import human

TOKENS, RATE, MFU = "tokens_per_s_per_device", "flops_per_s_per_device", "mfu"
DERIVED = (TOKENS, RATE, MFU)
TITLES = {TOKENS: "Tokens/s per device", RATE: "TFLOP/s per device", MFU: "MFU"}
ON_CPU = "% of measured matmul peak"
SHOWN_IN = {TOKENS: "token/s", RATE: "TFLOP/s", MFU: "%"}

MATMUL_PRECISION = {
    "fp32": "fp32",
    "tf32": "tf32",
    "fp16": "fp16",
    "bf16": "bf16",
    "autocast": "bf16",
    "bf16_grads": "bf16",
    "fp32_grads": "bf16",
}
"""A step's condition `precision` -> the precision of its matrix products."""


class Datasheet(NamedTuple):
    """A device of conf/hardware/: a pattern of its name, and its dense matmul rates in FLOP/s."""

    pattern: str
    name: str
    rates: Mapping[str, float]


class PeakRates(NamedTuple):
    """What FLOP/s are compared with: datasheets of GPUs, and rates that were measured on this host's CPU."""

    datasheets: tuple[Datasheet, ...] = ()
    measured: Mapping[str, float] = {}

    def of(self, conditions: Mapping[str, str]) -> tuple[float, str] | str:
        """Return the peak for a cell in FLOP/s with its name, or the reason why there is none."""
        precision = MATMUL_PRECISION.get(conditions.get("precision", ""), "")
        if not precision:
            return "the precision of its matrix products was not recorded, so no peak is known"
        if conditions.get("device") == "cpu":
            rate = self.measured.get(precision, 0.0)
            name = f"the matmul rate measured on this host in {precision}"
            return (rate, name) if rate else f"no matmul rate of this host was measured in {precision}"
        device = conditions.get("device_name", "")
        for sheet in self.datasheets:
            if sheet.pattern and fnmatchcase(device, sheet.pattern) and precision in sheet.rates:
                return sheet.rates[precision], f"{sheet.name}'s datasheet, dense {precision}"
        return f"conf/hardware/ has no {precision} rate of {device or 'this device'}"


def add_training_metrics(index: ResultIndex, peaks: PeakRates) -> None:
    """Add the derived metrics of every cell with tokens per step, or the reason why one is missing."""
    timed: dict[tuple[str, str], list[Value]] = {}
    for value in index.table.values():
        if value.metric == "time":
            timed.setdefault((value.workload, value.optimization), []).append(value)
    added = []
    for place, records in index.cells.items():
        tokens = index.first(*place, "tokens_per_step")
        if tokens is None:
            continue
        for value in timed.get(place, ()):
            derived, reasons = of_step(value, tokens.median, records[0], index, peaks)
            added += derived
            for metric, reason in reasons.items():
                for method in (value.method, ""):
                    index.lacks(*place, metric, method, reason)
        if place not in timed:
            for metric in DERIVED:
                index.lacks(*place, metric, "", "no time of a step was recorded")
    index.add(added)


def of_step(
    time: Value, tokens: float, record: Record, index: ResultIndex, peaks: PeakRates
) -> tuple[list[Value], dict[str, str]]:
    """Return the derived metrics of one step time, and the reasons for those that are missing."""
    count = devices(record.conditions)
    per_device = _over(time, TOKENS, "token/s", tokens / count)
    flops, _ = flops_per_step(index, time.workload, time.optimization)
    if not flops:
        reason = "neither FLOPs per step nor parameters were recorded"
        return [per_device], {RATE: reason, MFU: reason}
    rate = _over(time, RATE, "FLOP/s", flops / count)
    peak = peaks.of(record.conditions)
    if isinstance(peak, str):
        return [per_device, rate], {MFU: peak}
    share = count if record.conditions.get("device") == "cpu" else 1
    return [per_device, rate, _over(time, MFU, "1", flops / count * share / peak[0])], {}


def _over(time: Value, metric: str, unit: str, work: float) -> Value:
    if time.min <= 0:
        raise ValueError(f"{time.workload}, {time.optimization}: a step took {time.min} s")
    return time._replace(
        metric=metric,
        unit=unit,
        median=work / time.median,
        mean=work / time.mean,
        min=work / time.max,
        max=work / time.min,
    )


def devices(conditions: Mapping[str, str]) -> int:
    """Return how many devices a step runs on: its ranks, or one where it does not state them."""
    if conditions.get("ranks"):
        return int(conditions["ranks"])
    if "nodes" in conditions and "ranks_per_node" in conditions:
        return int(conditions["nodes"]) * int(conditions["ranks_per_node"])
    return 1


def flops_per_step(index: ResultIndex, workload: str, variant: str) -> tuple[float, str]:
    """Return the FLOPs of a step over all devices and how they were counted; 0 where they are unknown."""
    recorded, tokens, parameters = (
        index.first(workload, variant, name) for name in ("flops", "tokens_per_step", "parameters")
    )
    if recorded is not None:
        return recorded.median, "as the suite counts them from the shapes"
    count = parameters.median if parameters else float(index.condition(workload, variant, "parameters") or 0)
    if tokens is None or not count:
        return 0.0, ""
    return 6 * count * tokens.median, "6 × parameters × tokens per step"


def title(metric: str, index: ResultIndex, where: Where) -> str:
    """Return the heading of a derived metric: on CPUs alone, MFU is a share of what was measured there."""
    cells = {(v.workload, v.optimization) for v in index.select(MFU, where)}
    on_cpu = cells and all(index.condition(*cell, "device") == "cpu" for cell in cells)
    return ON_CPU if metric == MFU and on_cpu else TITLES[metric]


def basis(block: Block, index: ResultIndex, peaks: PeakRates) -> str:
    """Return the sentences that name the FLOP count and the peaks, if the block shows what rests on them."""
    columns = {one.metric for one in block.columns} if isinstance(block, TableBlock) else set()
    if not (isinstance(block, EffectsBlock) and block.training) and not columns & {RATE, MFU}:
        return ""
    cells = dict.fromkeys((v.workload, v.optimization) for v in index.select(RATE, block.where))
    if not cells:
        return "Tokens/s, TFLOP/s and MFU per device are left out: no time of these steps was recorded."
    counts = sorted({flops_per_step(index, *cell)[1] for cell in cells})
    known = [peaks.of(index.cells[cell][0].conditions) for cell in cells]
    used = sorted({f"{one[1]}, {human(one[0], 'FLOP/s')}" for one in known if not isinstance(one, str)})
    parts = [f"FLOPs per step: {'; '.join(counts)}."]
    parts += [f"Peak: {'; '.join(used)}."] if used else []
    if not index.select("peak_memory", block.where):
        parts.append("Peak memory per device was not recorded.")
    return " ".join(parts)


def peaks(environments: Iterable[Any] = ()) -> PeakRates:
    """Return the datasheets of conf/hardware/, and the matmul rates that the records' environments have."""
    sheets = []
    for data in map(read_yaml, sorted((CONF / "hardware").glob("*.yaml"))):
        if data.get("device"):
            rates = {name: float(rate) for name, rate in data["matmul_FLOP_per_s"].items()}
            sheets.append(Datasheet(str(data["device"]), str(data["name"]), rates))
    measured: dict[str, float] = {}  # of the first environment that has any: one thread's times the cores
    for one in environments:
        rates = one.get("matmul_FLOP_per_s", {}) if isinstance(one, Mapping) else {}
        measured = measured or {name: float(rate) * int(one["cores"]) for name, rate in rates.items() if rate}
    return PeakRates(tuple(sheets), measured)
