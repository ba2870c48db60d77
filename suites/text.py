"""Text that suites train on: a Markov chain's, made from a seed; its entropy is the floor of a loss."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

FOLLOWERS = 4
"""How many words may follow one word."""


@lru_cache(maxsize=1)
def chain(vocab_size: int, seed: int) -> Tensor:
    """(vocab, FOLLOWERS) int64: the words that may follow each word, all as likely."""
    generator = torch.Generator().manual_seed(seed)
    return torch.stack(
        [torch.randperm(vocab_size, generator=generator)[:FOLLOWERS].clone() for _ in range(vocab_size)]
    )


def batch(vocab_size: int, size: tuple[int, int], seed: int, number: int) -> tuple[Tensor, Tensor]:
    """Tokens and those that follow them, int64, each (B, T); the same for the same seed and number.

    The entropy of a word after its predecessor is ln(FOLLOWERS) = 1.386 nats: no loss can stay below it.
    """
    follow = chain(vocab_size, seed)
    generator = torch.Generator().manual_seed((seed << 32) + 1 + number)
    words = torch.empty(size[0], size[1] + 1, dtype=torch.int64)
    words[:, 0] = torch.randint(vocab_size, (size[0],), generator=generator)
    choices = torch.randint(FOLLOWERS, (size[0], size[1]), generator=generator)
    for place in range(size[1]):
        words[:, place + 1] = follow[words[:, place], choices[:, place]]
    return words[:, :-1].contiguous(), words[:, 1:].contiguous()
