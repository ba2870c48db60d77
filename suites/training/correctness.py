"""The correctness check of every suite: a step's losses and gradients against plain PyTorch's.

Plain PyTorch takes, in one process, every sequence that all ranks take in all micro-batches of an update. The
step's contract states how close it must be; one that changes the mathematics must learn, see
`require_learning`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from statistics import fmean
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from harness.records import WrongResult
from suites.training import data
from suites.training.step import EXACT, TrainingStep
from suites.training.techniques import Techniques, build_step, named
from suites.training.trainer import CPU, Batch, Trainer
from suites.training.workload import Workload

UPDATES = 10
"""Updates on one batch: the loss falls by far more than bf16 rounding, and every gradient affects it."""

LEARNT = 0.8
"""Share of the first loss below which losses are not compared: memorization multiplies rounding."""

SEQUENCES = 4
"""Sequences of an update at least: with one, plain PyTorch's loss rises in between, and rounding decides by
how much."""

UPDATES_ON_RANKS = 3
"""Updates on ranks: the first tests the model, the others the optimizer."""

RANKS = 10.0 * EXACT.relative
"""Over several ranks a loss may be off by this share of the first loss where the contract is exact: sums are
taken in another order, and the first steps of Adam follow the signs of gradients near zero."""

GRADIENT_FACTOR = 10.0
"""A gradient passes every layer twice: the tolerance of its norm is this multiple of a loss's."""

LEAST_GRADIENT = 1e-3
"""Share of the norm of all gradients below which a parameter's gradient is not compared with itself alone."""

FEWEST = 6
"""Least number of losses that show whether they fall."""

AGREE = 1e-5
"""Tolerance of differences between ranks, relative to the largest parameter: sums in another order."""

ONE_RANK: dict[str, Any] = dict.fromkeys(
    ("ranks", "tensor_ranks", "context_ranks", "expert_ranks", "pipeline_ranks"), 1
)
ONE_OF_EACH: dict[str, Any] = dict.fromkeys(("dp_size", "tp_size", "cp_size", "pp_size", "ep_size"), 1)

PROBES: Mapping[str, Mapping[str, Any]] = {
    "the optimizer": {"learning_rate": None, "adam_epsilon": 1e-8},
    "the scale of gradients": {"learning_rate": 0.3, "adam_epsilon": 1.0},
}
"""Adam divides a gradient's scale away. With an epsilon far above every gradient it is momentum, which
follows the scale; SGD with momentum follows it as it is."""


def check(step: TrainingStep) -> None:
    """Raise `WrongResult` where the step, at a small size in this process, breaks its contract.

    A sharded step runs as the only rank of a real process group: nothing is sent, but all that sharding does
    to the model is done. What several ranks exchange is checked on real ranks alone, see `check_on_ranks`.
    `model.Transformer` represents a user's own model.
    """
    times = -(-SEQUENCES // step.given.sequences)
    for probed, changes in PROBES.items():
        workload = small(step.workload, changes if step.contract.compared else {}, times)
        workload = replace(workload, **changed_by_techniques(step))
        ours = replace(
            step,
            workload=workload,
            make_model=None,
            **ONE_RANK,
        )
        with one_rank(step.features.sharding != "none"):
            losses = losses_on_one_batch(ours)
        if not step.contract.compared:
            require_learning(losses)
            return
        update = replace(step.given, micro_batch_size=step.given.micro_batch_size * step.batches_per_update)
        theirs = plain_on_one_batch(small(update, changes, times), step.seed)
        compare(losses, theirs, step.contract.relative, f"probing {probed}")


def check_as_traced(step: TrainingStep) -> None:
    """Check a step of which bytes alone are simulated: compiled graphs run in eager, no kernel is built."""
    if step.settings_of("compile") is None:
        check(step)
        return
    with torch.compiler.set_stance(force_backend="aot_eager"):
        check(step)


PROBED = ("max_grad_norm", "learning_rate", "adam_epsilon", "dropout")
"""Fields that a check sets for itself."""


def changed_by_techniques(step: TrainingStep) -> dict[str, Any]:
    """Return the fields that a check would set, where a technique changed them: they stay, and show."""
    pairs = ((name, getattr(step.workload, name), getattr(step.given, name)) for name in PROBED)
    return {name: ours for name, ours, given in pairs if ours != given}


def small(workload: Workload, changes: Mapping[str, Any], times: int = 1) -> Workload:
    """Return the same architecture and set-up at a size that trains in milliseconds, without dropout.

    Grouped queries stay grouped, a mixture of experts stays one, and an update has `times` as many sequences.
    """
    queries = min(4, workload.num_attention_heads // workload.num_key_value_heads)
    kv_heads = 4 if queries == 1 else 2
    return replace(
        workload,
        micro_batch_size=workload.micro_batch_size * times,
        num_hidden_layers=2,
        num_attention_heads=kv_heads * queries,
        num_key_value_heads=kv_heads,
        hidden_size=8 * kv_heads * queries,
        intermediate_size=16 * kv_heads * queries,
        num_experts=None if workload.num_experts is None else min(4, workload.num_experts),
        num_experts_per_tok=min(2, workload.num_experts_per_tok),
        moe_intermediate_size=None,
        shared_expert_intermediate_size=None if workload.shared_expert_intermediate_size is None else 24,
        vocab_size=128,
        max_position_embeddings=32,
        seq_len=24,
        dropout=0.0,
        max_grad_norm=None,
        **ONE_OF_EACH,
        hf_config=None,
        model=None,
        **(changes if workload.optimizer == "adamw" else {}),
    )


def losses_on_one_batch(step: TrainingStep) -> tuple[float, ...]:
    """Return the losses of `UPDATES` updates on the same sequences."""
    trainer = Trainer(step)
    losses = []
    for _ in range(UPDATES):
        trainer.restart_data()
        losses.append(float(trainer.train_step()))
    trainer.close()
    return tuple(losses)


@cache
def plain_on_one_batch(workload: Workload, seed: int) -> tuple[float, ...]:
    """Return what plain PyTorch gives there, with torch's default implementation of the optimizer."""
    return losses_on_one_batch(build_step(replace(workload, optimizer_impl="default"), (), seed))


def compare(ours: Sequence[float], theirs: Sequence[float], relative: float, where: str = "") -> float:
    """Return the largest difference, as a share of the first loss; raises `WrongResult` above `relative`."""
    worst = 0.0
    for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        if other < LEARNT * theirs[0]:
            break
        off = abs(one - other) / theirs[0]
        if not off <= relative:
            raise WrongResult(
                f"loss of update {index} is {one:.6f}, plain PyTorch's {other:.6f}: off by {off:.1e} of the "
                f"first loss, allowed {relative:.0e}{f' ({where})' if where else ''}"
            )
        worst = max(worst, off)
    return worst


def learns(losses: Sequence[float]) -> bool:
    """Return whether a straight line through the losses falls, at the 1 % level.

    Raises `WrongResult` where one is not finite, and ValueError for fewer than `FEWEST`, which show nothing.
    """
    from scipy.stats import linregress  # imported here: ranks do not need it, and it takes a second

    if len(losses) < FEWEST:
        raise ValueError(f"{len(losses)} losses do not show whether a step learns; {FEWEST} do")
    if not all(map(math.isfinite, losses)):
        raise WrongResult(f"losses of {len(losses)} updates: {', '.join(f'{one:.4g}' for one in losses)}")
    return bool(linregress(range(len(losses)), losses, alternative="less").pvalue < 0.01)


def require_learning(losses: Sequence[float]) -> None:
    """Raise `WrongResult` unless the losses fall; raises as `learns` does."""
    if not learns(losses):
        raise WrongResult(
            f"it does not learn: loss {losses[0]:.4g} first, {losses[-1]:.4g} after {len(losses)} updates"
        )


CallOnRanks = Callable[..., list[Any]]
"""call(function, **arguments): runs a function of `on_rank.py` and returns each rank's result."""


def check_on_ranks(
    step: TrainingStep, call: CallOnRanks, key: str, shared: Techniques = (), device: torch.device = CPU
) -> float | None:
    """Check the trainers named `key` on real ranks; return the largest loss error, None if none was compared.

    Ranks must hold the same parameters after a few updates, and their losses and first gradients be plain
    PyTorch's with the techniques `shared` by both. Raises `WrongResult`.
    """
    syncs = step.updates_between_syncs
    count = -(-UPDATES_ON_RANKS // syncs) * syncs
    ours = mean_over_ranks(call("updates", key=key, count=count))
    if not all(map(math.isfinite, ours)):
        raise WrongResult(f"losses of {count} updates: {', '.join(f'{one:.4g}' for one in ours)}")
    apart = max(call("spread", key=key))
    if not apart <= AGREE:
        raise WrongResult(
            f"after {count} updates parameters differ between ranks by {apart:.1e} of the largest"
        )
    if not step.contract.compared:
        return None
    call("make", key="gradients", step=step.described)
    each = call("worst_gradient", key="gradients", shared=[list(one) for one in named(shared)])
    call("drop", key="gradients")
    off, name = max(each, key=lambda one: badness(one[0]))
    compare_gradients(off, name, step.contract.relative)
    theirs = plain_losses(step, text_updates(step, count), shared, device)
    return compare(ours, theirs, max(RANKS, step.contract.relative))


def mean_over_ranks(answers: Sequence[Mapping[str, Sequence[float]]]) -> list[float]:
    """Return the loss of each update, averaged over ranks, of what `on_rank.updates` returned."""
    return [fmean(losses) for losses in zip(*(one["loss"] for one in answers), strict=True)]


def text_updates(step: TrainingStep, count: int) -> Iterator[list[Batch]]:
    """Return, for each of `count` updates, the batches of text that all of the step's ranks take."""
    per_update = step.workload.gradient_accumulation_steps * step.data_ranks
    for update in range(count):
        numbers = range(update * per_update, (update + 1) * per_update)
        yield [data.batch_of(step.workload, step.seed, number) for number in numbers]


def plain_losses(
    step: TrainingStep,
    updates: Iterable[Sequence[Batch]],
    techniques: Techniques = (),
    device: torch.device = CPU,
) -> list[float]:
    """Return the losses of plain PyTorch, with `techniques` of one process, in one process."""
    trainer = Trainer(build_step(step.given, techniques, step.seed), device)
    losses = []
    for batches in updates:
        losses.append(accumulate(trainer, batches))
        trainer.update()
    return losses


def plain_gradients(
    step: TrainingStep, batches: Sequence[Batch], techniques: Techniques = (), device: torch.device = CPU
) -> dict[str, Tensor]:
    """Return the gradients of plain PyTorch's first update, by name."""
    trainer = Trainer(build_step(step.given, techniques, step.seed), device)
    accumulate(trainer, batches)
    return trainer.gradients()


def accumulate(trainer: Trainer, batches: Sequence[Batch]) -> float:
    """Run the forward and backward pass of all of an update's batches; return their mean loss."""
    there = ((tokens.to(trainer.device), targets.to(trainer.device)) for tokens, targets in batches)
    return float(trainer.accumulate(there, len(batches)))


def worst_gradient(ours: Mapping[str, Tensor], plain: Mapping[str, Tensor]) -> tuple[float, str]:
    """Return the largest |ours - plain| / |plain| of a parameter, by Euclidean norms, and its name.

    It is infinite for a parameter without a gradient. One below `LEAST_GRADIENT` of the norm of all is
    compared with that: the bias of a key, which softmax ignores, and the router of a single expert per token,
    whose weight is always 1, have no gradient but rounding errors.
    """
    norms = {name: one.norm() for name, one in plain.items()}
    least = LEAST_GRADIENT * math.hypot(*map(float, norms.values()))
    errors = [
        (
            float((ours[name].float() - one).norm() / norms[name].clamp_min(least))
            if name in ours
            else math.inf,
            name,
        )
        for name, one in plain.items()
    ]
    return max(errors, key=lambda one: badness(one[0]))


def compare_gradients(off: float, name: str, relative: float) -> float:
    """Return how far the gradient that is off the most is off; raises `WrongResult` where it is too far.

    `relative` is the tolerance of a loss, see `GRADIENT_FACTOR`.
    """
    allowed = GRADIENT_FACTOR * relative
    if not off <= allowed:
        off_by = f"is off by {off:.1e} of its norm, allowed {allowed:.0e}"
        raise WrongResult(f"gradient of {name} {'is missing or infinite' if math.isinf(off) else off_by}")
    return off


def badness(error: float) -> float:
    """Return a sort key that puts NaN last, as the worst."""
    return math.inf if math.isnan(error) else error


@contextmanager
def one_rank(needed: bool) -> Iterator[None]:
    """Enter a real process group of this process alone, where one is needed."""
    if not needed:
        yield
        return
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        dist.destroy_process_group()
