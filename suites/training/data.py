"""What suites train on: text of a Markov chain, whose entropy is the least loss, or random tokens."""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor

from suites.training.workload import Workload

FOLLOWERS = 4
"""Number of words that may follow one word."""


@lru_cache(maxsize=1)
def chain(vocab_size: int, seed: int) -> Tensor:
    """Return (vocab, FOLLOWERS) int64: the words that may follow each word, with equal probability.

    Raises ValueError for fewer words than followers.
    """
    if vocab_size < FOLLOWERS:
        raise ValueError(f"a vocabulary of {vocab_size}: text needs at least {FOLLOWERS} words")
    generator = torch.Generator().manual_seed(seed)
    follow = torch.randint(vocab_size, (vocab_size, FOLLOWERS), generator=generator)
    while len(again := _with_repeats(follow)):
        follow[again] = torch.randint(vocab_size, (len(again), FOLLOWERS), generator=generator)
    return follow


def _with_repeats(follow: Tensor) -> Tensor:
    """Return the words that have the same follower twice."""
    ordered = follow.sort(dim=1).values
    return (ordered[:, 1:] == ordered[:, :-1]).any(dim=1).nonzero().flatten()


@lru_cache(maxsize=1)
def _chain_lists(vocab_size: int, seed: int) -> list[list[int]]:
    """Return `chain` as lists: a word takes a tenth of the time that indexing a tensor takes."""
    rows: list[list[int]] = chain(vocab_size, seed).tolist()
    return rows


def batch(vocab_size: int, size: tuple[int, int], seed: int, number: int) -> tuple[Tensor, Tensor]:
    """Return tokens and their successors, int64, each (B, T); the same for the same seed and number.

    The entropy of a word after its predecessor is ln(FOLLOWERS) = 1.386 nats: no loss can remain below it.
    """
    follow = _chain_lists(vocab_size, seed)
    generator = torch.Generator().manual_seed((seed << 32) + 1 + number)
    first = torch.randint(vocab_size, (size[0],), generator=generator).tolist()
    choices = torch.randint(FOLLOWERS, (size[0], size[1]), generator=generator).tolist()
    words = torch.tensor(
        [
            list(accumulate(chosen, lambda word, choice: follow[word][choice], initial=word))
            for word, chosen in zip(first, choices, strict=True)
        ]
    )
    return words[:, :-1].contiguous(), words[:, 1:].contiguous()


def batch_of(workload: Workload, seed: int, number: int) -> tuple[Tensor, Tensor]:
    """Return batch `number` of the workload's size, see `batch`."""
    return batch(workload.vocab_size, (workload.micro_batch_size, workload.seq_len), seed, number)


def random_batch(
    workload: Workload, generator: torch.Generator, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return random tokens and their successors, int64, each (micro_batch_size, seq_len).

    Sequences are consecutive: two batches of one sequence equal one batch of two.
    """
    size = (workload.micro_batch_size, workload.seq_len + 1)
    drawn = torch.randint(workload.vocab_size, size, generator=generator).to(device)
    return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()
