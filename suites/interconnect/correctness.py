"""Right first: a variant's gradients and losses against plain PyTorch's on all ranks' batches, in one
process.

A variant that changes the mathematics only has to keep its ranks alike, and to learn.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch

from harness.records import WrongResult
from suites.interconnect.subject import Subject, Workload
from suites.interconnect.trainers import Trainers
from suites.training import data as text
from suites.training.model import Transformer

UPDATES = 3
"""The first sees the model, the others the optimizer's work."""

AGREE = 1e-5
"""Ranks hold the same parameters, or the sum of the same shares in another order."""

GRADIENT_FACTOR = 10.0
"""A gradient passes every layer twice: it may be off by so many times what a loss may. Losses alone would not
do: AdamW hides a gradient of the wrong scale."""


def check_losses(subject: Subject, cluster: Trainers) -> float | None:
    """The worst relative error of a loss; None where none was compared. Raises `WrongResult`."""
    count = -(-UPDATES // subject.updates_together) * subject.updates_together
    key = subject.held["key"]
    told = cluster.call("updates", key=key, count=count)
    ours = [sum(ranks) / len(ranks) for ranks in zip(*(one["loss"] for one in told), strict=True)]
    if not all(map(math.isfinite, ours)):
        raise WrongResult(f"losses of {count} updates: {', '.join(f'{one:.4g}' for one in ours)}")
    apart = max(cluster.call("spread", key=key))
    if not apart <= AGREE:
        raise WrongResult(
            f"after {count} updates parameters differ between ranks by {apart:.1e} of the largest"
        )
    if subject.tolerance is None:
        return None
    check_gradients(subject, cluster, subject.tolerance)
    theirs = plain_losses(subject.workload, subject.plan.accumulate, len(cluster.pool), subject.seed, count)
    worst = 0.0
    for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        off = abs(one / other - 1)
        if not off <= subject.tolerance:
            raise WrongResult(
                f"loss of update {index} is {one:.6f}, plain PyTorch's {other:.6f}: off by {off:.1e}, "
                f"allowed {subject.tolerance:.0e}"
            )
        worst = max(worst, off)
    return worst


def check_gradients(subject: Subject, cluster: Trainers, tolerance: float) -> None:
    """The first gradients of a trainer of its own. Raises `WrongResult`."""
    with cluster.trainer("gradients", subject.workload, subject.plan, subject.seed):
        off = max(cluster.call("gradient_error", key="gradients"))
    if not off <= GRADIENT_FACTOR * tolerance:
        raise WrongResult(
            f"a gradient is off by {off:.1e} of its norm, allowed {GRADIENT_FACTOR * tolerance:.0e}"
        )


@lru_cache(maxsize=4)
def plain_losses(workload: Workload, accumulate: int, ranks: int, seed: int, count: int) -> tuple[float, ...]:
    """What one process gives that takes every rank's batches as one."""
    torch.manual_seed(seed)
    model = Transformer(workload.shape, attention="sdpa")
    optimizer = torch.optim.AdamW(model.parameters(), lr=workload.learning_rate)
    losses, size = [], (workload.micro_batch_size, workload.seq_len)
    for update in range(count):
        numbers = range(update * accumulate * ranks, (update + 1) * accumulate * ranks)
        batches = [text.batch(workload.vocab_size, size, seed, number) for number in numbers]
        loss = torch.zeros(())
        for tokens_BT, targets_BT in batches:
            part = model(tokens_BT, targets_BT) / len(batches)
            part.backward()
            loss += part.detach()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
    return tuple(losses)
