"""What tokens cost at the throughput of any suite's records: a table per price list, and what was not priced.

A record has a throughput by its metrics: `tokens_per_s_per_device`; `tokens_per_step` of all devices or
`tokens_per_gpu` of one, with `time`; or `throughput` of all devices, with the time of a training step. A
`throughput` without one is that of loading data alone, and is no cost of training.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from harness.ask.lines import table
from harness.ask.prices import HOUR_S, KINDS
from harness.config.optimizations import BASELINE
from harness.instruments.prices import PriceList
from harness.records import Origin, Record, Status, measurement, without_wrong
from harness.report.results import Value, summarize
from harness.report.training import TOKENS, devices
from harness.units import counted, human, legend, marked, number

BAND = "band"
"""Method whose samples are the ends of a range, not repeats."""

STEP_TIMES = ("time", "step_time")
"""Metrics of the seconds of a training step: those of a suite that trains."""

HEADS = (
    *("Workload", "Variant", "Tokens/s per device", "$/h"),
    *("$/Mtoken", "Change", "Device-hours", "Run costs"),
)

ONE_RATE = "changes are those of throughput alone; prices=NAME has a price of each"
GIVE_RATE = "give rate=DOLLARS per GPU-hour"


class Throughput(NamedTuple):
    """Tokens/s of one device, by one method, over all repeats of a variant on a workload."""

    workload: str
    variant: str
    method: str
    tokens_per_s: float
    origin: str
    device: str  # cpu | cuda | simulated, "" where it is not stated
    device_name: str

    @property
    def is_of_a_gpu(self) -> bool:
        """Return whether it was obtained on a GPU or for one, and not on a CPU or in an emulation."""
        return self.device == "cuda" and self.origin != Origin.EMULATED


def throughputs(records: Iterable[Record]) -> tuple[list[Throughput], int]:
    """Return the throughput of each variant on each workload by each method, workloads in their order.

    And how many variants on a workload have a throughput and no time of a training step: of loading alone.
    """
    right = [one for one in without_wrong(records) if one.status == Status.OK]
    cells: dict[tuple[str, str], list[Record]] = {}
    for one in right:
        cells.setdefault((one.cell.workload, one.cell.optimization), []).append(one)
    medians: dict[tuple[str, str], list[Value]] = {}
    for value in (Value(*row) for row in summarize(right).itertuples(index=False, name=None)):
        if value.method != BAND and value.median > 0:
            medians.setdefault(value[:2], []).append(value)
    found = []
    for place, repeats in cells.items():
        of = repeats[0].conditions
        device = of.get("device", ""), of.get("device_name", "")
        values = medians.get(place, [])
        metric, per_s = tokens_per_s(repeats[0], {value.metric for value in values})
        for value in values:
            if value.metric == metric:
                found.append(Throughput(*place, value.method, per_s(value.median), value.origin, *device))
    loading = sum(any(of_loading(one) for one in repeats) for repeats in cells.values())
    first = list(dict.fromkeys(one.workload for one in found))
    return sorted(found, key=lambda one: first.index(one.workload)), loading


def tokens_per_s(record: Record, metrics: Collection[str]) -> tuple[str, Callable[[float], float]]:
    """Return which of a record's metrics has its tokens/s of one device, and how; "" for none."""
    count = devices(record.conditions)
    of_all, of_one = (measurement(record, metric) for metric in ("tokens_per_step", "tokens_per_gpu"))
    if TOKENS in metrics:
        return TOKENS, lambda value: value
    if "time" in metrics and (of_one or of_all):
        tokens = of_one.samples[0] if of_one else of_all.samples[0] / count if of_all else 0.0
        return "time", lambda seconds: tokens / seconds
    return "" if of_loading(record) else "throughput", lambda value: value / count


def of_loading(record: Record) -> bool:
    """Return whether a record has a throughput and no time of a training step."""
    return bool(measurement(record, "throughput")) and not any(
        measurement(record, metric) for metric in STEP_TIMES
    )


def block_lines(prices: PriceList | None, rates: Mapping[Throughput, float], tokens: float) -> Iterator[str]:
    """Yield a heading, throughputs at the prices of a list, or at the user's rate, and an empty line.

    `rates`: dollars per hour of one GPU.
    """
    if prices is None:
        rate, names = next(iter(rates.values())), list(dict.fromkeys(one.device_name for one in rates))
        yield f"At your rate of {number(rate)} $ per GPU-hour, a run of {tokens:.3g} tokens."
        if len(names) > 1:
            yield f"One rate for {' and '.join(name or 'unnamed devices' for name in names)}: {ONE_RATE}."
        if others := sum(not one.is_of_a_gpu for one in rates):
            yield (
                f"{counted(others, 'throughput is', 'throughputs are')} of a CPU or of an emulation: "
                "priced at your rate, they say nothing about the cost on a GPU."
            )
    else:
        yield f"{prices.name}: {KINDS[prices.kind]}, {prices.date}, a run of {tokens:.3g} tokens."
        yield f"Source: {prices.source}."
        for machine, why in prices.second_hand.items():
            if prices.usd_per_h[machine] in rates.values():
                yield f"Second-hand price of {machine}: {why}."
    usd_per_token = {one: rate / HOUR_S / one.tokens_per_s for one, rate in rates.items()}
    base = {(one.workload, one.method): usd for one, usd in usd_per_token.items() if one.variant == BASELINE}
    rows, changes = [HEADS], False
    for one, usd in usd_per_token.items():
        other = None if one.variant == BASELINE else base.get((one.workload, one.method))
        changes |= other is not None
        rows.append((
            one.workload,
            f"{one.variant}, {one.method}".removesuffix(", "),
            marked(number(one.tokens_per_s), one.origin),
            number(rates[one]),
            number(usd * 1e6),
            f"{100 * (usd / other - 1):+.1f} %".replace("-", "−") if other is not None else "",
            number(tokens / one.tokens_per_s / HOUR_S),
            human(usd * tokens, "USD"),
        ))  # fmt: skip
    yield from table(rows, texts=2)
    if changes:
        yield "Change: dollars per token over those of the workload's baseline by the same method."
    yield legend(one.origin for one in rates)
    yield ""


def no_throughput(loading: int) -> str:
    """Return why nothing can be priced."""
    if loading:
        return f"no throughput of training; {_of_loading(loading)}"
    return "no record has a throughput; expected tokens/s, or tokens_per_step and time"


def _of_loading(count: int) -> str:
    which = counted(count, "throughput is", "throughputs are")
    return f"{which} of loading data without training, which is not what a token costs"


def not_priced(left_out: Sequence[Throughput], machines: Mapping[str, str], loading: int = 0) -> str:
    """Return which throughputs have no price and what would give them one; "" for none."""
    others = sum(not one.is_of_a_gpu for one in left_out)
    names = {one.device_name for one in left_out if one.is_of_a_gpu}
    unknown = sorted(name or "unnamed GPU" for name in names if name not in machines)
    unlisted = sorted({machines[name] for name in names if name in machines})
    parts = [
        f"{counted(others, 'throughput')} of a CPU or of an emulation; {GIVE_RATE}" if others else "",
        f"{', '.join(unknown)} is not in conf/hardware; {GIVE_RATE}" if unknown else "",
        f"no list has a price of {', '.join(unlisted)}; {GIVE_RATE}" if unlisted else "",
        _of_loading(loading) if loading else "",
    ]
    return "; ".join(filter(None, parts))
