"""Where a step begins to fit: ranks that suffice, the largest micro-batch, tokens at 40 B per parameter.

Where a peak crosses a limit is found in few evaluations, each of which costs seconds. Every answer is
verified on both sides. Where the peak is not monotone there may be other crossings: the one found is correct,
but need not be the first. Callers that search twice should cache their function.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from math import ceil, gcd, inf, isfinite, lcm
from typing import Any, NamedTuple

from harness.records import Note, Origin, Reading, Unavailable
from suites.memory.formulas import estimates
from suites.memory.subject import Subject, room_B
from suites.training.dry_run import largest_batch
from suites.training.dry_run.dry_run import DryRun, is_sharded
from suites.training.dry_run.estimates import ModelCounts, rule_40x_bytes
from suites.training.dry_run.live_tensors import live_tensors
from suites.training.step import TrainingStep

PATIENCE = 3
"""Guesses that may fail to halve the bracket before one is taken from its middle."""


class Crossing(NamedTuple):
    """Where a batch takes the requested bytes. `tokens`: None where not found; `how`: why not, or where."""

    tokens: float | None
    how: str


def fewest_of(
    peak_at: Callable[[int], float],
    capacity_B: float,
    candidates: Sequence[int],
    evaluated: int | None = None,
) -> int | None:
    """Return the fewest ranks that fit among increasing `candidates`, such as divisors of a number of heads.

    `evaluated`: one whose peak costs nothing, because `peak_at` has it; the search starts there.
    """
    peak_at = cache(peak_at)
    if evaluated in candidates:
        at = candidates.index(evaluated)
        fits = peak_at(evaluated) <= capacity_B
        candidates = candidates[: at + 1] if fits else candidates[at:]
    if peak_at(candidates[0]) <= capacity_B:
        return candidates[0]
    if peak_at(candidates[-1]) > capacity_B:
        return None
    return _cross(peak_at, capacity_B, candidates, lambda ranks: 1 / ranks)[1]


def tokens_at(
    peak_at_batch: Callable[[int], float],
    target_B: float,
    seq_len: int,
    upper: int,
    peak_at_length: Callable[[int], float] | None = None,
) -> Crossing:
    """Return how many tokens in a batch make the peak `target_B`; a larger batch must never take less.

    `peak_at_batch(batch)`: bytes with `batch` sequences of `seq_len` tokens, for `batch` from 1 to `upper`,
    interpolated linearly between the last that takes no more and the first that does. Where one sequence
    takes more, it is shortened: `peak_at_length(length)`; without that nothing is found.
    """
    peak_at_batch = cache(peak_at_batch)
    if peak_at_batch(1) <= target_B:
        if peak_at_batch(upper) <= target_B:
            return Crossing(None, f"{upper} sequences of {seq_len} tokens still take no more")
        low, high, at = _between(peak_at_batch, target_B, upper)
        return Crossing(at * seq_len, f"between {low} and {high} sequences of {seq_len} tokens")
    if peak_at_length is None:
        return Crossing(None, f"one sequence of {seq_len} tokens already takes more")
    peak_at_length = cache(peak_at_length)
    if peak_at_length(1) > target_B:
        return Crossing(None, "one token already takes more")
    low, high, at = _between(peak_at_length, target_B, seq_len)
    return Crossing(at, f"one sequence, shortened to between {low} and {high} tokens")


def _between(peak_at: Callable[[int], float], target_B: float, upper: int) -> tuple[int, int, float]:
    """Return the neighbours of `target_B`, up to `upper`, and where the line through their peaks meets it."""
    low, high = _cross(peak_at, target_B, range(1, upper + 1), float)
    low_B, high_B = peak_at(low), peak_at(high)
    return low, high, low + (target_B - low_B) / (high_B - low_B) * (high - low)


def _cross(
    peak_at: Callable[[int], float],
    limit_B: float,
    candidates: Sequence[int],
    coordinate: Callable[[float], float],
) -> tuple[int, int]:
    """Return neighbours among `candidates` with the limit between them, as between the first and the last.

    Guesses use a line through both ends of the bracket, the peak over `coordinate` (its own inverse); an end
    that stays twice has its distance halved (the Illinois method).
    """
    left, right = 0, len(candidates) - 1
    left_B, right_B = (peak_at(candidates[end]) - limit_B for end in (left, right))
    first_is_over = left_B > 0
    widths = [right - left]
    moved = ""
    while right - left > 1:
        index = _guess(candidates, left, right, left_B, right_B, coordinate)
        if len(widths) > PATIENCE and widths[-1] * 2 > widths[-1 - PATIENCE]:
            index = (left + right) // 2
        distance_B = peak_at(candidates[index]) - limit_B
        if (distance_B > 0) == first_is_over:
            left, left_B, right_B = index, distance_B, right_B / (2 if moved == "left" else 1)
            moved = "left"
        else:
            right, right_B, left_B = index, distance_B, left_B / (2 if moved == "right" else 1)
            moved = "right"
        widths.append(right - left)
    return candidates[left], candidates[right]


def _guess(
    candidates: Sequence[int],
    left: int,
    right: int,
    left_B: float,
    right_B: float,
    coordinate: Callable[[float], float],
) -> int:
    """Return an index strictly between `left` and `right`, where the line through both meets the limit."""
    low, high = coordinate(candidates[left]), coordinate(candidates[right])
    share = left_B / (left_B - right_B) if isfinite(left_B - right_B) and left_B != right_B else 0.5
    meets = coordinate(low + share * (high - low))
    return min(max(bisect_left(candidates, meets), left + 1), right - 1)


MOST_RANKS = 4096

SHARED_ALONE = ("tensor", "context", "expert", "pipeline")
"""What ranks share where they are no mesh with data-parallel ones: a step has its number as `..._ranks`."""
MOST_PARAMETERS_OF_ENGINE = 500_000_000
"""Largest model whose ranks are searched by dry runs of deepspeed's engine, where that shards the model."""

PeakOf = Callable[..., DryRun]
"""peak_of(subject, reserved=True): the dry run of one rank, with what the allocator reserves or without."""


def thresholds(subject: Subject, counts: ModelCounts, peak_of: PeakOf) -> Iterator[Reading | Note]:
    """Run both searches where they apply; `peak_of` returns the peak of one rank of a step.

    Ranks are searched by `fake_step`; a step that fake tensors cannot show, by Korthikanti's formula.
    """
    try:
        if is_sharded(subject.step) and is_quickly_run(subject.step):
            yield from ranks_that_suffice(subject, lambda one: used_B(one, peak_of(one)), subject.usable_B)
        elif is_sharded(subject.step):
            by_formula = partial(korthikanti_bytes, counts=counts)
            yield from ranks_that_suffice(
                subject, by_formula, subject.device_memory_B, Origin.CALCULATED, "korthikanti"
            )
        elif is_under_the_rule(subject.step):
            yield from tokens_under_the_rule(subject, counts.parameters, peak_of)
    except Unavailable as reason:
        yield Note(f"thresholds: {reason}")


def is_quickly_run(step: TrainingStep) -> bool:
    """Return whether a search by dry runs is quick; deepspeed's engine runs every layer."""
    small = step.workload.shape.parameters <= MOST_PARAMETERS_OF_ENGINE
    return step.no_dry_run is None and (small or step.settings_of("zero") is None)


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
    return run.reserved_B + sum(largest_batch.outside_allocator_B(subject.step).values())


def ranks_that_suffice(
    subject: Subject,
    peak_of: Callable[[Subject], float],
    capacity_B: float,
    origin: Origin = Origin.SIMULATED,
    method: str = "fake_step",
) -> Iterator[Reading | Note]:
    """Return the fewest ranks, and the smallest power of two, for which one rank's peak fits `capacity_B`.

    Assumed, as in the search: where N ranks fit, so do more. The power of two is tried too. On a mesh the
    number of data-parallel ranks varies, and each layer or sequence is shared by as many as before.
    """

    def on(ranks: int) -> Subject:
        sharding = subject.step.features.sharding
        alone: dict[str, Any] = {f"{sharding}_ranks": ranks} if sharding in SHARED_ALONE else {}
        return replace(subject, step=replace(subject.step, ranks=ranks, **alone))

    @cache
    def peak_at(ranks: int) -> float:
        return peak_of(on(ranks))

    allowed = allowed_ranks(subject)
    powers = [ranks for ranks in allowed if ranks & (ranks - 1) == 0]
    fewest = fewest_of(peak_at, capacity_B, allowed, evaluated=subject.step.ranks)
    enough = [ranks for ranks in powers if fewest is not None and ranks >= fewest]
    power = fewest_of(peak_at, capacity_B, enough[:1]) if enough else None
    for metric, count in (("ranks_needed", fewest), ("ranks_needed_power_of_two", power)):
        if count is None:
            least_GB = peak_at(allowed[-1]) / 1e9
            yield Note(f"{metric}: none was found; one of {allowed[-1]} ranks takes {least_GB:.1f} GB")
        else:
            yield Reading(metric, "1", count, origin, method)


def allowed_ranks(subject: Subject) -> Sequence[int]:
    """Return every number of ranks that this sharding can have, in increasing order."""
    step, workload = subject.step, subject.step.workload
    if step.features.sharding == "pipeline":
        most = workload.num_hidden_layers // step.stages_per_rank
        count = workload.gradient_accumulation_steps
        enough = range(1, min(most, count) + 1)
        return [n for n in enough if most % n == 0 and (step.stages_per_rank == 1 or count % n == 0)]
    if "," in step.features.sharding and "zero3" not in step.features.sharding:
        return [step.ranks]  # a mesh without data-parallel ranks
    if step.features.sharding == "expert":
        experts = workload.num_experts or 1
        return [ranks for ranks in range(1, experts + 1) if experts % ranks == 0]
    if step.features.sharding not in ("tensor", "context"):
        neighbours = lcm(step.same_data_ranks, step.ranks_multiple_of)
        return range(neighbours, MOST_RANKS + 1, neighbours)
    widths = [workload.intermediate_size]
    if workload.num_experts is not None:
        widths = [workload.shape.expert_width, workload.shared_expert_intermediate_size or 0]
    most = gcd(workload.num_attention_heads, workload.num_key_value_heads, *widths)
    if step.features.sharding == "context":
        most = workload.seq_len // 2
    return [ranks for ranks in range(1, most + 1) if most % ranks == 0]


def tokens_under_the_rule(subject: Subject, parameters: int, peak_of: PeakOf) -> Iterator[Reading | Note]:
    """Return the tokens per batch at which a full step takes 40 B per parameter, in full sequences.

    Where one sequence takes more, it is shortened. On CUDA also the tokens at which so much is reserved: no
    more than those.
    """

    def with_batch(batch: int, seq_len: int) -> Subject:
        workload = replace(subject.step.workload, micro_batch_size=batch, seq_len=seq_len)
        return replace(subject, step=replace(subject.step, workload=workload))

    def allocated_B(batch: int, seq_len: int) -> float:
        return peak_of(with_batch(batch, seq_len), reserved=False).peak_B

    def reserved_B(batch: int, seq_len: int) -> float:
        return peak_of(with_batch(batch, seq_len)).reserved_B or inf

    upper = largest_batch.MOST_SEQUENCES
    searched = {"tokens_at_40_B_per_parameter": allocated_B}
    if subject.simulated_device == "cuda":
        searched["reserved_tokens_at_40_B_per_parameter"] = reserved_B
    for metric, size_B in searched.items():
        target_B, seq_len = rule_40x_bytes(parameters), subject.step.workload.seq_len
        at_batch, at_length = partial(size_B, seq_len=seq_len), partial(size_B, 1)
        answer = tokens_at(at_batch, target_B, seq_len, upper, at_length)
        yield Note(f"{metric}: {answer.how}")
        if answer.tokens is None:
            return
        yield Reading(metric, "1", answer.tokens, Origin.SIMULATED, "fake_step")
        upper = max(1, ceil(answer.tokens / seq_len))


def largest_batch_readings(
    subject: Subject,
    run_of: Callable[[Subject], DryRun],
    assumed: Callable[[int], Iterator[Reading]] = lambda largest: iter(()),
) -> Iterator[Reading | Note]:
    """Return whether the subject fits and, where it asks for it, the largest micro-batch that does.

    `assumed`: what could turn the answer, given the largest micro-batch.
    """
    room, step = room_B(subject), subject.step
    requested = step.workload.micro_batch_size
    yield Reading("room_for_allocator", "B", room, Origin.CALCULATED, "fake_step")
    yield Reading("usable_memory", "B", subject.usable_B, Origin.CALCULATED, "fake_step")

    @cache
    def run_at(count: int) -> DryRun:
        changed = largest_batch.with_micro_batch(step, count)
        return run_of(subject if changed is step else replace(subject, step=changed))

    if subject.search == "fits":
        predicted = largest_batch.refined_prediction(step, subject.target, run_at)
    else:
        predicted = largest_batch.predicted_largest(step, subject.target, run_at(requested), requested)
    yield Reading("largest_micro_batch_predicted", "1", predicted, Origin.SIMULATED, "fake_step")
    tried = [requested]
    if subject.search == "largest_micro_batch":
        largest, tried = largest_batch.search(step, subject.target, run_at)
        yield Reading("largest_micro_batch", "1", largest, Origin.SIMULATED, "fake_step")
        yield from assumed(largest)
        if largest == largest_batch.MOST_SEQUENCES:
            yield Note(
                f"largest_micro_batch: {largest_batch.MOST_SEQUENCES} sequences still fit; no more were tried"
            )
    for count in sorted({requested, *tried}):
        yield from at_micro_batch(subject, count, run_at(count))


def at_micro_batch(subject: Subject, count: int, run: DryRun) -> Iterator[Reading | Note]:
    """Return what one dry run shows: whether it fits, its peak, and what is alive then."""
    target = subject.target
    fit = largest_batch.fit_of(subject.step, run, target)
    expandable = replace(target.allocator, expandable_segments=True)
    better = largest_batch.fit_of(subject.step, run, target._replace(allocator=expandable))

    def reading(metric: str, unit: str, value: float) -> Reading:
        return Reading(f"at_micro_batch/{count}/{metric}", unit, value, Origin.SIMULATED, "fake_step")

    yield reading("fits", "1", int(fit.fits))
    yield reading("fits_with_expandable_segments", "1", int(better.fits))
    yield reading("allocator_retries", "1", fit.retries)
    yield reading("peak_memory", "B", run.peak_B)
    if run.reserved_B is not None:
        yield reading("reserved_memory", "B", run.reserved_B)
    for kind, size_B in run.by_kind_B.items():
        yield reading(f"peak_memory/{kind}", "B", size_B)
    if run.timeline is not None:
        workload = subject.step.workload
        for label, size_B in live_tensors(run.timeline, workload.vocab_size, workload.seq_len).items():
            yield reading(f"live_at_peak/{label}", "B", size_B)
