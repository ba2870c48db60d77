"""What `python -m harness.cost` was asked: words of the command to a checked question."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from harness.claims.load import read_yaml
from harness.config.validation import ConfigError, unknown
from harness.config.variants.optimizations import CONF
from harness.instruments.prices import PriceList, price_lists, refuse_confused
from harness.records import Unavailable
from harness.sweep.store import RECORDS

KEYS = ("rate", "gpus_per_node", "prices", "tokens")
RATE = re.compile(r"(\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)(/node)?(/month|/h)?")
RATES = "dollars per GPU-hour above 0, as 2.5, 20/node, 1800/month or 14000/node/month"
HOURS_PER_MONTH = 730.0
DEFAULT_TOKENS = 1e12
LEAST_TOKENS = 1e6


class CostQuestion(NamedTuple):
    """What is asked, checked."""

    folder: Path
    rate: float | None  # dollars per GPU-hour; None: by `lists`
    lists: Sequence[PriceList]
    tokens: float  # of the training run that is priced


def asked(argv: Sequence[str]) -> CostQuestion:
    """Return what the words ask; raises ConfigError."""
    words = [word for word in argv if "=" not in word]
    given = dict(word.split("=", 1) for word in argv if "=" in word)
    for key in given:
        if key not in KEYS:
            raise unknown(key, key, KEYS)
    if len(words) != 1 or len(given) + 1 != len(argv):
        raise ConfigError("expected one FOLDER of results, and each KEY=VALUE once")
    folder = Path(words[0])
    if not (folder / RECORDS).is_file():
        raise ConfigError(f"{folder}: no results; expected a folder with {RECORDS}")
    if "rate" in given and "prices" in given:
        raise ConfigError("rate and prices: give one of the two")
    tokens = _positive("tokens", given["tokens"]) if "tokens" in given else DEFAULT_TOKENS
    if tokens < LEAST_TOKENS:
        raise ConfigError(
            f"tokens={given['tokens']}: expected at least {LEAST_TOKENS:g}, as 15e12 for 15 trillion"
        )
    gpus = given.get("gpus_per_node")
    if gpus is not None and "/node" not in given.get("rate", ""):
        raise ConfigError(f"gpus_per_node={gpus}: read only with a rate per node, as rate=20/node")
    if "rate" in given:
        return CostQuestion(folder, rate_of(given["rate"], gpus), (), tokens)
    return CostQuestion(folder, None, lists_of(given.get("prices", "")), tokens)


def rate_of(text: str, gpus_per_node: str | None = None) -> float:
    """Return dollars per GPU-hour; raises ConfigError."""
    found = RATE.fullmatch(text)
    if found is None or not 0 < float(found[1]) < float("inf"):
        raise ConfigError(f"rate={text}: expected {RATES}")
    gpus = 1.0
    if found[2]:
        if gpus_per_node is None:
            raise ConfigError(f"rate={text}: a rate per node needs gpus_per_node=NUMBER")
        gpus = _positive("gpus_per_node", gpus_per_node)
        if not gpus.is_integer():
            raise ConfigError(f"gpus_per_node={gpus_per_node}: expected a whole number of at least 1")
    hours = HOURS_PER_MONTH if found[3] == "/month" else 1.0
    try:
        return refuse_confused(float(found[1]) / gpus / hours, f"rate={text}", "/node and gpus_per_node")
    except Unavailable as fault:
        raise ConfigError(str(fault)) from None


def lists_of(text: str) -> tuple[PriceList, ...]:
    """Return the lists of conf/prices.yaml, one by its name, or those of a file; raises ConfigError."""
    own = text.endswith((".yaml", ".yml"))
    try:
        lists = price_lists(read_yaml(Path(text) if own else CONF / "prices.yaml"))
    except Unavailable as fault:
        raise ConfigError(str(fault)) from None
    names = [one.name for one in lists]
    if text and not own and text not in names:
        raise unknown(f"prices={text}", text, names)
    return tuple(one for one in lists if own or text in ("", one.name))


def _positive(key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ConfigError(f"{key}={text}: expected a number above 0")
    return value
