"""Throughputs at a price: what a token costs, next to the baseline of the same workload. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from harness.commands.cost.throughput import Throughput
from harness.config.variants.optimizations import BASELINE
from harness.instruments.prices import PriceList

SECONDS_PER_HOUR = 3600.0


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
