"""Where a step begins to fit: ranks that really suffice, and the tokens that take 40 B per parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from math import gcd, lcm
from typing import Protocol

from harness.records import Note, Origin, Reading, Unavailable
from suites.memory.formulas import estimates
from suites.memory.outside_allocator import outside_allocator_B
from suites.memory.search import fewest_of, tokens_at
from suites.memory.subject import Subject
from suites.training.dry_run import DryRun, is_sharded
from suites.training.estimates import ModelCounts
from suites.training.step import TrainingStep

MOST_RANKS = 4096
RULE_B_PER_PARAMETER = 40.0
"""The paper's rule, Table I: "~40x parameter count"."""


class PeakOf(Protocol):
    """Returns the dry run of one rank; `reserved`: with what the allocator reserves."""

    def __call__(self, subject: Subject, reserved: bool = True) -> DryRun:
        """Return it."""


def thresholds(subject: Subject, counts: ModelCounts, peak_of: PeakOf) -> Iterator[Reading | Note]:
    """Run both searches where they apply; `peak_of` returns the peak of one rank of a step.

    Ranks are searched by `fake_step`; a step that fake tensors cannot show, by Korthikanti's formula.
    """
    try:
        if is_sharded(subject.step) and subject.step.no_dry_run is None:
            yield from ranks_that_suffice(
                subject,
                lambda one: used_B(one, peak_of(one)),
                subject.usable_B,
                lower=lambda one: peak_of(one, reserved=one == subject).peak_B,
            )
        elif is_sharded(subject.step):
            by_formula = partial(korthikanti_bytes, counts=counts)
            yield from ranks_that_suffice(
                subject, by_formula, subject.device_memory_B, Origin.CALCULATED, "korthikanti"
            )
        elif is_under_the_rule(subject.step):
            yield from tokens_under_the_rule(subject, counts.parameters, peak_of)
    except Unavailable as reason:
        yield Note(f"thresholds: {reason}")


def is_under_the_rule(step: TrainingStep) -> bool:
    """Return whether the rule is about such a step: one rank, mixed precision, a batch taken at once.

    Compiled steps are left out: their code is generated anew for each number of tokens, which takes minutes.
    """
    at_once = step.workload.gradient_accumulation_steps == 1
    eager = step.settings_of("compile") is None
    return step.ranks == 1 and step.features.precision == "autocast" and at_once and eager


def korthikanti_bytes(subject: Subject, counts: ModelCounts) -> float:
    """Return the formula's peak of one rank; raises Unavailable where it has none."""
    estimate = next(one for one in estimates(subject, counts) if one.method == "korthikanti")
    if estimate.peak_B is None:
        raise Unavailable(estimate.reason)
    return estimate.peak_B


def used_B(subject: Subject, run: DryRun) -> float:
    """Return the device bytes of one rank: on CUDA those reserved, and those outside of the allocator."""
    if run.reserved_B is None:
        return run.peak_B
    return run.reserved_B + sum(outside_allocator_B(subject.step).values())


def ranks_that_suffice(
    subject: Subject,
    peak_of: Callable[[Subject], float],
    capacity_B: float,
    origin: Origin = Origin.SIMULATED,
    method: str = "fake_step",
    lower: Callable[[Subject], float] | None = None,
) -> Iterator[Reading | Note]:
    """Return the fewest ranks, and the smallest power of two, for which one rank's peak fits `capacity_B`.

    Assumed, as in the search: where N ranks fit, so do more. The power of two is tried too. On a mesh the
    number of data-parallel ranks varies, and each layer or sequence is shared by as many as before.
    `lower`: bytes that are never more than the peak, in less time: fewer ranks than they need are not tried.
    """

    def on(ranks: int) -> Subject:
        step, alone = subject.step, subject.step.features.sharding
        tensor_ranks = ranks if alone == "tensor" else step.tensor_ranks
        context_ranks = ranks if alone == "context" else step.context_ranks
        pipeline_ranks = ranks if alone == "pipeline" else step.pipeline_ranks
        changed = replace(
            step,
            ranks=ranks,
            tensor_ranks=tensor_ranks,
            context_ranks=context_ranks,
            pipeline_ranks=pipeline_ranks,
        )
        return replace(subject, step=changed)

    @cache
    def peak_at(ranks: int) -> float:
        return peak_of(on(ranks))

    allowed = allowed_ranks(subject)
    powers = [ranks for ranks in allowed if ranks & (ranks - 1) == 0]
    if lower is None:
        fewest = fewest_of(peak_at, capacity_B, allowed, evaluated=subject.step.ranks)
    else:
        least = fewest_of(lambda n: lower(on(n)), capacity_B, allowed, evaluated=subject.step.ranks)
        fewest = None if least is None else fewest_from(peak_at, capacity_B, allowed[allowed.index(least) :])
    enough = [ranks for ranks in powers if fewest is not None and ranks >= fewest]
    power = fewest_of(peak_at, capacity_B, enough[:1]) if enough else None
    for metric, count in (("ranks_needed", fewest), ("ranks_needed_power_of_two", power)):
        if count is None:
            least_GB = peak_at(allowed[-1]) / 1e9
            yield Note(f"{metric}: none was found; one of {allowed[-1]} ranks takes {least_GB:.1f} GB")
        else:
            yield Reading(metric, "1", count, origin, method)


def fewest_from(peak_at: Callable[[int], float], capacity_B: float, candidates: Sequence[int]) -> int | None:
    """Return the fewest ranks among `candidates` that fit, where the first candidates are the likeliest."""
    tried = 1
    while tried < len(candidates) and peak_at(candidates[tried - 1]) > capacity_B:
        tried *= 2
    return fewest_of(peak_at, capacity_B, candidates[:tried])


def allowed_ranks(subject: Subject) -> Sequence[int]:
    """Return every number of ranks that this sharding can have, in increasing order."""
    step, workload = subject.step, subject.step.workload
    if step.features.sharding == "pipeline":
        most = workload.num_hidden_layers // step.stages_per_rank
        count = workload.gradient_accumulation_steps
        enough = range(1, min(most, count) + 1)
        return [n for n in enough if most % n == 0 and (step.stages_per_rank == 1 or count % n == 0)]
    if step.features.sharding not in ("tensor", "context"):
        neighbours = lcm(step.same_data_ranks, step.ranks_multiple_of)
        return range(neighbours, MOST_RANKS + 1, neighbours)
    most = gcd(workload.num_attention_heads, workload.num_key_value_heads, workload.intermediate_size)
    if step.features.sharding == "context":
        most = workload.seq_len // 2
    return [ranks for ranks in range(1, most + 1) if most % ranks == 0]


def tokens_under_the_rule(subject: Subject, parameters: int, peak_of: PeakOf) -> Iterator[Reading | Note]:
    """Return the tokens per batch at which a full step takes 40 B per parameter, in full sequences.

    Where one sequence takes more, it is shortened.
    """

    @cache
    def peak_with(batch: int, seq_len: int) -> float:
        workload = replace(subject.step.workload, micro_batch_size=batch, seq_len=seq_len)
        return peak_of(replace(subject, step=replace(subject.step, workload=workload)), reserved=False).peak_B

    seq_len = subject.step.workload.seq_len
    answer = tokens_at(
        lambda batch: peak_with(batch, seq_len),
        RULE_B_PER_PARAMETER * parameters,
        seq_len,
        peak_at_length=lambda length: peak_with(1, length),
    )
    if answer.tokens is not None:
        yield Reading("tokens_at_40_B_per_parameter", "1", answer.tokens, Origin.SIMULATED, "fake_step")
    yield Note(f"tokens at 40 B per parameter: {answer.how}")
