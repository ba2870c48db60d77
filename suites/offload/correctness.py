"""Right first: a variant's losses against plain PyTorch's on all ranks' batches, in one process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from statistics import fmean

import torch

from harness.records import WrongResult
from suites.offload.engines import adamw, autocast
from suites.offload.subject import Subject, Workload
from suites.training import data as text
from suites.training.model import Transformer

TOLERANCES = {"fp32": 1e-4, "bf16": 5e-3}
"""Of each of some twenty losses, relative. Engines round at different places, and Adam's first steps follow
signs of gradients. A wrong gradient, rank or update is off by more in fp32 (tests/test_offload.py)."""

HELD_STEPS = 24
"""Of a longer course in mixed precision the first losses are held: its differences grow from step to step. In
fp32 all are."""

SCALE_STEPS = 4
SCALE_EPSILON, SCALE_RATE = 1.0, 0.3
"""AdamW divides a gradient's scale away: its losses tell nothing of a sum over ranks in place of a mean.
With an epsilon far above every gradient it is momentum, which follows the scale; at a rate to suit."""

SCALE_TOLERANCES = {"fp32": 1e-5, "bf16": 1e-3}
"""Tighter, for no step follows signs: engines are within a tenth of it, a sum over two ranks off by seven."""


def for_scale(subject: Subject) -> Subject:
    """The subject for a few steps that follow the scale of gradients; there no variant may have other
    losses."""
    workload = replace(subject.workload, epsilon=SCALE_EPSILON, learning_rate=SCALE_RATE)
    return replace(subject, workload=workload, tolerance=SCALE_TOLERANCES[workload.precision])


def check_losses(subject: Subject, ours: Sequence[float]) -> float | None:
    """The worst relative error of the first losses; None where the variant changes mathematics.

    Raises `WrongResult`.
    """
    if not all(map(math.isfinite, ours)):
        raise WrongResult(f"losses: {', '.join(f'{one:.4g}' for one in ours)}")
    if subject.tolerance is None:
        refuse_unlearned(ours)
        return None
    held = ours[:HELD_STEPS] if subject.workload.precision == "bf16" else ours
    theirs = plain_losses(subject.workload, subject.seed, len(held))
    errors = [abs(one / other - 1) for one, other in zip(held, theirs, strict=True)]
    worst = max(errors)
    if not worst <= subject.tolerance:
        step = errors.index(worst)
        raise WrongResult(
            f"loss of step {step} is {ours[step]:.6f}, plain PyTorch's {theirs[step]:.6f}: "
            f"off by {worst:.1e}, "
            f"allowed {subject.tolerance:.0e}"
        )
    return worst


def refuse_unlearned(losses: Sequence[float]) -> None:
    """Raises `WrongResult` where the last quarter of the losses is not below the first, on average."""
    quarter = max(len(losses) // 4, 1)
    first, last = fmean(losses[:quarter]), fmean(losses[-quarter:])
    if not last < first:
        raise WrongResult(
            f"it does not learn: loss {first:.4g} at first, {last:.4g} after {len(losses)} steps"
        )


@lru_cache(maxsize=4)
def plain_losses(workload: Workload, seed: int, steps: int) -> tuple[float, ...]:
    """What one process gives that takes every rank's batches, one after the other."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(seed)
    model = Transformer(workload.shape, attention="sdpa").to(device)
    optimizer = adamw(model.parameters(), workload)
    losses, size = [], (workload.micro_batch_size, workload.seq_len)
    for step in range(steps):
        parts = []
        for number in range(step * workload.ranks, (step + 1) * workload.ranks):
            tokens_BT, targets_BT = text.batch(workload.vocab_size, size, seed, number)
            with autocast(device, workload.precision):
                part = model(tokens_BT.to(device), targets_BT.to(device)) / workload.ranks
            part.backward()
            parts.append(float(part.detach()))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(sum(parts))
    del model, optimizer
    if device.type == "cuda":
        torch.cuda.empty_cache()  # the ranks are to have it
    return tuple(losses)
