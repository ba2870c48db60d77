"""Prices as any command has them: `rate=` in dollars per GPU-hour, `prices=` a list of conf/prices.yaml."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.ask.words import mistake
from harness.claims.load import read_yaml
from harness.commands.grammar import CommandWords
from harness.config.optimizations import CONF
from harness.config.validation import ConfigError, unknown
from harness.instruments.prices import PriceList, price_lists, refuse_confused

KEYS = ("rate", "gpus_per_node", "prices")
RATE = re.compile(r"(\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)(/node)?(/month|/h)?")
RATES = "dollars per GPU-hour above 0, as 2.5, 20/node, 1800/month or 14000/node/month"
HOURS_PER_MONTH, HOUR_S = 730.0, 3600.0

KINDS = {"owned": "what it costs an owner", "reserved": "rented by contract", "on_demand": "rented on demand"}
"""Of price lists, in words."""


def prices_of(words: CommandWords) -> tuple[float | None, Sequence[PriceList]]:
    """Return the rate in dollars per GPU-hour, or None and the price lists; raises ConfigError."""
    if "rate" in words and "prices" in words:
        raise ConfigError("rate and prices: give one of the two")
    if "gpus_per_node" in words and "/node" not in words.text("rate", ""):
        raise ConfigError(f"{words.typed['gpus_per_node']}: read only with a rate per node, as rate=20/node")
    return (rate_of(words), ()) if "rate" in words else (None, lists_of(words.text("prices", "")))


def rates_asked(words: CommandWords) -> tuple[float | None, Sequence[PriceList]]:
    """Return the rate or the price lists of a predicted run; `gpus_per_node` is its cluster's, too."""
    values = dict(words.values)
    if "/node" not in values.get("rate", ""):
        values.pop("gpus_per_node", None)
    else:
        values.setdefault("gpus_per_node", "8")
    return prices_of(replace(words, values=values))


def rate_of(words: CommandWords) -> float:
    """Return dollars per GPU-hour; raises ConfigError."""
    typed = words.typed["rate"]
    found = RATE.fullmatch(words.values["rate"])
    if found is None or not 0 < float(found[1]) < float("inf"):
        raise ConfigError(f"{typed}: expected {RATES}")
    if found[2] and "gpus_per_node" not in words:
        raise ConfigError(f"{typed}: a rate per node needs gpus_per_node=NUMBER")
    gpus = words.whole("gpus_per_node", 1)
    hours = HOURS_PER_MONTH if found[3] == "/month" else 1.0
    with mistake():
        return refuse_confused(float(found[1]) / gpus / hours, typed, "/node and gpus_per_node")


def lists_of(text: str) -> tuple[PriceList, ...]:
    """Return the lists of conf/prices.yaml, one by its name, or those of a file; raises ConfigError."""
    own = text.endswith((".yaml", ".yml"))
    with mistake():
        lists = price_lists(read_yaml(Path(text) if own else CONF / "prices.yaml"))
    names = [one.name for one in lists]
    if text and not own and text not in names:
        raise unknown(f"prices={text}", text, names)
    return tuple(one for one in lists if own or text in ("", one.name))
