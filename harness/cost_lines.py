"""The lines that `python -m harness.cost` prints: a table per price list, and what was not priced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from harness.units import counted, human, legend, marked, number

if TYPE_CHECKING:
    from harness.priced import PricedBlock, PricedThroughput
    from harness.throughput import Throughput

HEADER = ("Workload", "Variant", "Tokens/s per device", "$/h", "$/Mtoken", "Change", "Device-hours", "Run")
KINDS = {"owned": "what it costs an owner", "reserved": "rented by contract", "on_demand": "rented on demand"}


def block_lines(block: PricedBlock, tokens: float) -> Iterator[str]:
    """Yield the heading of a block, its table, and an empty line."""
    if block.prices is None:
        others = sum(not row.of.is_of_a_gpu for row in block.rows)
        rate = number(block.rows[0].usd_per_hour)
        yield f"At your rate of {rate} $ per GPU-hour, a run of {tokens:.3g} tokens."
        if others:
            yield (
                f"{counted(others, 'throughput is', 'throughputs are')} of a CPU or of an emulation: "
                "priced at your rate, they say nothing about the cost on a GPU."
            )
    else:
        prices = block.prices
        yield f"{prices.name}: {KINDS[prices.kind]}, {prices.date}, a run of {tokens:.3g} tokens."
        yield f"Source: {prices.source}."
    yield from _aligned([HEADER, *(_row(row, tokens) for row in block.rows)])
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


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [
            text.ljust(w) if i < 2 else text.rjust(w)
            for i, (text, w) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def not_priced(left_out: Sequence[Throughput], machines: Mapping[str, str]) -> str:
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
    return "; ".join(parts)
