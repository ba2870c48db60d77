"""Lengths of real documents in tokens, as quantiles with their sources: published_lengths.jsonl.

A length is drawn by its inverse distribution: a uniform number between 0 and 1 is a probability, and between
two quantiles the logarithm of the length is linear in it.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FILE = Path(__file__).parent / "published_lengths.jsonl"


class LengthTable:
    """Quantiles of lengths: probabilities (Q,), rising from 0 to 1, and tokens (Q,)."""

    def __init__(self, probability: NDArray[np.float64], tokens: NDArray[np.int64], source: str) -> None:
        self.probability, self.tokens, self.source = probability, tokens, source

    def at(self, probability: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the lengths, at least 1 token each, below which these shares of all documents lie."""
        drawn = np.exp(np.interp(probability, self.probability, np.log(self.tokens)))
        return np.maximum(1, np.rint(drawn)).astype(np.int64)

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the lengths of documents that are drawn independently."""
        return self.at(rng.random(count))


@cache
def published_lengths() -> dict[str, LengthTable]:
    """Return the tables by the name of their documents."""
    tables = {}
    for line in FILE.read_text().splitlines():
        row = json.loads(line)
        probability, tokens = np.array(row["quantiles"]).T
        tables[row["documents_of"]] = LengthTable(probability, tokens.astype(np.int64), row["source"])
    return tables
