"""Right first: an optimization's step against the baseline's, trained for real at a small size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import torch
import torch.distributed as dist

from harness.records import WrongResult
from suites.memory.step import TrainingStep, Workload
from suites.memory.training import set_up, train_once

STEPS = 10
"""Steps on one batch, so that the loss falls by far more than bf16 rounds, and each gradient shows in it."""

LEARNT = 0.8
"""Share of the first loss below which steps are no longer compared: learning by heart multiplies rounding."""

OPTIMIZERS = ("adamw", "sgd_momentum")
"""Both: AdamW does not see gradients of a wrong size, plain momentum does."""


def small(workload: Workload, optimizer: str, sequences: int) -> Workload:
    """The same architecture and set-up at a size that trains in milliseconds, without dropout's chance.

    `sequences`: of the workload as it was given, so that one that trades batch for micro-batches keeps its
    share. Grouped queries stay grouped.
    """
    queries = min(4, workload.num_attention_heads // workload.num_key_value_heads)
    num_key_value_heads = 4 if queries == 1 else 2
    loop = workload.optimizer_impl if optimizer == workload.optimizer else "default"
    return replace(
        workload,
        num_hidden_layers=2,
        num_attention_heads=num_key_value_heads * queries,
        num_key_value_heads=num_key_value_heads,
        hidden_size=8 * num_key_value_heads * queries,
        intermediate_size=16 * num_key_value_heads * queries,
        vocab_size=128,
        max_position_embeddings=32,
        seq_len=24,
        micro_batch_size=max(1, workload.micro_batch_size // max(1, sequences // 2)),
        dropout=0.0,
        max_grad_norm=None,
        optimizer=optimizer,
        optimizer_impl=loop,
        hf_config=None,
    )


def check_losses(step: TrainingStep) -> None:
    """Raises WrongResult where a loss differs from the baseline's by more than `step.tolerance` of the first.

    Runs on the CPU. A sharded step runs as the only rank of a real process group: nothing is sent, but
    all that sharding does to the model is done. A user's own model is stood in for by `Transformer`.
    """
    for optimizer in OPTIMIZERS:
        given = step.given or step.workload
        expected = baseline_losses(small(given, optimizer, given.micro_batch_size), step.seed)
        workload = small(step.workload, optimizer, given.micro_batch_size)
        subject = replace(step, workload=workload, ranks=1, make_model=None)
        with one_rank(step.ranks > 1):
            found = losses_on_one_batch(subject)
        for index, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
            if theirs < LEARNT * expected[0]:
                break
            off = abs(ours - theirs) / expected[0]
            if not off <= step.tolerance:
                raise WrongResult(
                    f"loss of step {index} with {optimizer} is {ours:.6f}, the baseline's {theirs:.6f}: "
                    f"off by {off:.2e} of the first, allowed {step.tolerance:.0e}"
                )


@cache
def baseline_losses(workload: Workload, seed: int) -> tuple[float, ...]:
    """What plain PyTorch gives."""
    return losses_on_one_batch(TrainingStep(workload, seed))


def losses_on_one_batch(step: TrainingStep) -> tuple[float, ...]:
    """The loss of each of `STEPS` real steps on the same tokens."""
    training = set_up(step, torch.device("cpu"))
    found = []
    for _ in range(STEPS):
        training.data.manual_seed(step.seed)
        found.append(train_once(training).item())
    return tuple(found)


@contextmanager
def one_rank(needed: bool) -> Iterator[None]:
    """A real process group of this process alone, where one is needed."""
    if not needed:
        yield
        return
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        dist.destroy_process_group()
