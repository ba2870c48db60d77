"""The lines that `python -m harness.cost` prints: a table per price list, and what was not priced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from harness.ask.lines import table
from harness.ask.throughput import Throughput
from harness.config.variants.optimizations import BASELINE
from harness.instruments.prices import PriceList
from harness.units import counted, human, legend, marked, number

SECONDS_PER_HOUR = 3600.0

HEADER = (
    "Workload",
    "Variant",
    "Tokens/s per device",
    "$/h",
    "$/Mtoken",
    "Change",
    "Device-hours",
    "Run costs",
)
KINDS = {"owned": "what it costs an owner", "reserved": "rented by contract", "on_demand": "rented on demand"}

ONE_RATE = "changes are those of throughput alone; prices=NAME has a price of each"
CHANGE = "Change: dollars per token over those of the workload's baseline by the same method."


class PricedThroughput(NamedTuple):
    """A throughput at a price: dollars per token, and their change against the baseline's of its workload."""

    of: Throughput
    usd_per_hour: float  # of one GPU
    usd_per_token: float
    change: float | None


class PricedBlock(NamedTuple):
    """Throughputs at the prices of one list, or at the user's rate (None)."""

    prices: PriceList | None
    rows: Sequence[PricedThroughput]


def priced(rates: Mapping[Throughput, float]) -> list[PricedThroughput]:
    """Return what a token costs at each throughput and its dollars per hour."""
    cost = {one: rate / SECONDS_PER_HOUR / one.tokens_per_s for one, rate in rates.items()}
    base = {(one.workload, one.method): usd for one, usd in cost.items() if one.variant == BASELINE}

    def change(one: Throughput) -> float | None:
        other = base.get((one.workload, one.method))
        return None if other is None or one.variant == BASELINE else cost[one] / other - 1

    return [PricedThroughput(one, rates[one], usd, change(one)) for one, usd in cost.items()]


def block_lines(block: PricedBlock, tokens: float) -> Iterator[str]:
    """Yield the heading of a block, its table, and an empty line."""
    if block.prices is None:
        others = sum(not row.of.is_of_a_gpu for row in block.rows)
        rate = number(block.rows[0].usd_per_hour)
        yield f"At your rate of {rate} $ per GPU-hour, a run of {tokens:.3g} tokens."
        names = list(dict.fromkeys(row.of.device_name for row in block.rows))
        if len(names) > 1:
            yield f"One rate for {' and '.join(name or 'unnamed devices' for name in names)}: {ONE_RATE}."
        if others:
            yield (
                f"{counted(others, 'throughput is', 'throughputs are')} of a CPU or of an emulation: "
                "priced at your rate, they say nothing about the cost on a GPU."
            )
    else:
        prices = block.prices
        yield f"{prices.name}: {KINDS[prices.kind]}, {prices.date}, a run of {tokens:.3g} tokens."
        yield f"Source: {prices.source}."
        for machine, why in prices.second_hand.items():
            if any(row.usd_per_hour == prices.usd_per_h[machine] for row in block.rows):
                yield f"Second-hand price of {machine}: {why}."
    yield from table([HEADER, *(_row(row, tokens) for row in block.rows)], texts=2)
    if any(row.change is not None for row in block.rows):
        yield CHANGE
    yield legend(row.of.origin for row in block.rows)
    yield ""


def _row(row: PricedThroughput, tokens: float) -> tuple[str, ...]:
    name = f"{row.of.variant}, {row.of.method}" if row.of.method else row.of.variant
    return (
        row.of.workload,
        name,
        marked(number(row.of.tokens_per_s), row.of.origin),
        number(row.usd_per_hour),
        number(row.usd_per_token * 1e6),
        "" if row.change is None else f"{100 * row.change:+.1f} %".replace("-", "−"),
        number(tokens / row.of.tokens_per_s / 3600),
        human(row.usd_per_token * tokens, "USD"),
    )


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
    unknown = {
        one.device_name or "unnamed GPU"
        for one in left_out
        if one.is_of_a_gpu and one.device_name not in machines
    }
    unlisted = {
        machines[one.device_name] for one in left_out if one.is_of_a_gpu and one.device_name in machines
    }
    parts = []
    if others:
        parts.append(
            f"{counted(others, 'throughput')} of a CPU or of an emulation; give rate=DOLLARS per GPU-hour"
        )
    if unknown:
        parts.append(f"{', '.join(sorted(unknown))} is not in conf/hardware; give rate=DOLLARS per GPU-hour")
    if unlisted:
        parts.append(f"no list has a price of {', '.join(sorted(unlisted))}; give rate=DOLLARS per GPU-hour")
    if loading:
        parts.append(_of_loading(loading))
    return "; ".join(parts)
