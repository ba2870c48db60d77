"""Price lists: dollars per GPU-hour by machine, as others published them; see conf/prices.yaml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from harness.records import Unavailable

KINDS = ("owned", "reserved", "on_demand")  # what a machine costs its owner without a margin, or rent
KEYS = ("kind", "date", "source", "USD_per_h", "gpus_per_node", "second_hand")  # the first four are needed

MOST_USD_PER_H = 100.0  # dollars per GPU-hour above which a price is taken to be per node or per month
DATE = re.compile(r"\d{4}(-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?)?")
"""A year, a month or a day: 2025, 2025-08, 2025-08-20."""

DATES = "a date as 2025, 2025-08 or 2025-08-20"


class PriceList(NamedTuple):
    """The prices of one source at one date."""

    name: str
    kind: str  # one of `KINDS`
    date: str
    source: str
    usd_per_h: Mapping[str, float]  # of one GPU, by the names of conf/hardware
    second_hand: Mapping[str, str] = {}  # machine to why its price is not the source's own


def price_lists(prices: Mapping[str, Any]) -> list[PriceList]:
    """Return the lists in their order; raises `Unavailable`, one line that names the list and the key."""
    return [_list(f"prices.{name}", name, data) for name, data in prices.items()]


def _list(where: str, name: str, data: Any) -> PriceList:
    if not isinstance(data, dict):
        raise Unavailable(f"{where}={data}: expected kind, date, source and USD_per_h")
    for key in data:
        if key not in KEYS:
            raise Unavailable(f"{where}.{key}: no such key; allowed: {', '.join(KEYS)}")
    if missing := [key for key in KEYS[:4] if not data.get(key)]:
        needed = "a price list has a kind, a date, a source and USD_per_h"
        raise Unavailable(f"{where}.{missing[0]}: missing; {needed}")
    if data["kind"] not in KINDS:
        raise Unavailable(f"{where}.kind={data['kind']}: expected one of {', '.join(KINDS)}")
    if not DATE.fullmatch(str(data["date"])):
        raise Unavailable(f"{where}.date={data['date']}: expected {DATES}")
    rates, gpus = data["USD_per_h"], data.get("gpus_per_node") or {}
    if not isinstance(rates, dict) or not isinstance(gpus, dict):
        raise Unavailable(f"{where}: expected USD_per_h and gpus_per_node by machine")
    per_gpu = {name: _of_one_gpu(where, name, rate, gpus.get(name, 1)) for name, rate in rates.items()}
    second_hand = data.get("second_hand") or {}
    if not isinstance(second_hand, dict) or not set(second_hand) <= set(per_gpu):
        raise Unavailable(f"{where}.second_hand={second_hand}: expected a machine of USD_per_h to the reason")
    return PriceList(name, data["kind"], str(data["date"]), str(data["source"]), per_gpu, second_hand)


def _of_one_gpu(where: str, machine: str, rate: Any, gpus: Any) -> float:
    place = f"{where}.USD_per_h.{machine}={rate}"
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < float("inf"):
        raise Unavailable(f"{place}: expected dollars per hour, a number above 0")
    if isinstance(gpus, bool) or not isinstance(gpus, int) or gpus < 1:
        raise Unavailable(f"{where}.gpus_per_node.{machine}={gpus}: expected a whole number of at least 1")
    return refuse_confused(rate / gpus, place, f"gpus_per_node.{machine}")


def refuse_confused(usd_per_h: float, place: str, of_node: str) -> float:
    """Return dollars per GPU-hour; raises `Unavailable` where they are probably of a node or of a month."""
    if usd_per_h > MOST_USD_PER_H:
        most = f"${usd_per_h:,.0f} per GPU-hour, expected at most {MOST_USD_PER_H:g}"
        raise Unavailable(f"{place}: {most}; a node's price needs {of_node}, a month's is divided by 730 h")
    return usd_per_h
