"""What suites train on: text of a Markov chain, whose entropy is the least loss, or random tokens."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from suites.training.workload import Workload

FOLLOWERS = 4
"""Number of words that may follow one word."""


@lru_cache(maxsize=1)
def chain(vocab_size: int, seed: int) -> Tensor:
    """Return (vocab, FOLLOWERS) int64: the words that may follow each word, with equal probability."""
    generator = torch.Generator().manual_seed(seed)
    return torch.stack(
        [torch.randperm(vocab_size, generator=generator)[:FOLLOWERS].clone() for _ in range(vocab_size)]
    )


def batch(vocab_size: int, size: tuple[int, int], seed: int, number: int) -> tuple[Tensor, Tensor]:
    """Return tokens and their successors, int64, each (B, T); the same for the same seed and number.

    The entropy of a word after its predecessor is ln(FOLLOWERS) = 1.386 nats: no loss can remain below it.
    """
    follow = chain(vocab_size, seed)
    generator = torch.Generator().manual_seed((seed << 32) + 1 + number)
    words = torch.empty(size[0], size[1] + 1, dtype=torch.int64)
    words[:, 0] = torch.randint(vocab_size, (size[0],), generator=generator)
    choices = torch.randint(FOLLOWERS, (size[0], size[1]), generator=generator)
    for place in range(size[1]):
        words[:, place + 1] = follow[words[:, place], choices[:, place]]
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
