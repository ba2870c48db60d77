"""What `python -m harness.cost` was asked: words of the command to a checked question."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from harness.commands import prices
from harness.commands.grammar import CommandWords, read
from harness.commands.results import results_folder
from harness.config.validation import ConfigError
from harness.instruments.prices import PriceList

KEYS = (*prices.KEYS, "tokens")
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
    words = read(argv, KEYS)
    if len(words.paths) != 1:
        raise ConfigError("expected one FOLDER of results, or model= or config= of a run that is predicted")
    folder = results_folder(words.paths[0])
    tokens = run_tokens(words)
    rate, lists = prices.prices_of(words)
    return CostQuestion(folder, rate, lists, tokens)


def run_tokens(words: CommandWords) -> float:
    """Return the tokens of the training run that is priced; raises ConfigError."""
    tokens = words.number("tokens") if "tokens" in words else DEFAULT_TOKENS
    if tokens < LEAST_TOKENS:
        raise ConfigError(
            f"{words.typed['tokens']}: expected at least {LEAST_TOKENS:g}, as 15e12 for 15 trillion"
        )
    return tokens
