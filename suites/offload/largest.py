"""The largest model that trains in a budget of device memory: layers are added until a step exceeds it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from harness.instruments.distributed.rank_pool import RankFailed, RankTimeout
from harness.records import Note, Origin, Reading, Unavailable
from suites.offload.memory_estimates import METHODS, largest, with_activations_B
from suites.offload.on_rank import FOOTPRINT_STEPS
from suites.offload.ranks import Ranks
from suites.offload.subject import Subject
from suites.offload.workload import Workload

STEPS = 3
"""Steps of an attempt: the second is the first with all states, and one more for late allocations."""

ATTEMPTS = 4
"""Attempts of a search: the median of those in the committed results."""

FINE = 0.03
"""Relative precision of a depth; shallow models are found to the layer."""

SHALLOW = (2, 4)
"""Layers of the models whose peaks give the first guess."""

BY_TENSORS = 0.9
"""Share of a budget for tensors: the rest is for libraries and Python."""


class Attempt(NamedTuple):
    """One number of layers: whether it trained, and if not, the message."""

    num_hidden_layers: int
    trained: bool
    message: str
    by_budget: bool = True


def first_guess(subject: Subject, ranks: Ranks) -> int:
    """Return the layers that would fit if each took as many bytes as the third and the fourth did."""
    peaks_B = []
    for num_hidden_layers in SHALLOW:
        footprints = ranks.call("footprint", subject.at_depth(num_hidden_layers).immediate)
        peaks_B.append(max(max(one["peaks_B"]) for one in footprints))
    layer_B = max((peaks_B[1] - peaks_B[0]) / (SHALLOW[1] - SHALLOW[0]), 1.0)
    budget_B = subject.workload.device_memory_budget_B or 0.0
    guess = SHALLOW[0] + (BY_TENSORS * budget_B - peaks_B[0]) / layer_B
    return int(min(max(guess, 1), subject.workload.num_hidden_layers))


def search(guess: int, most: int, attempt: Callable[[int], Attempt]) -> Iterator[Attempt]:
    """Yield attempts until one trained and one larger by `FINE` did not, or `most` did, or one layer did not.

    From `guess` on in growing strides, then by bisection. Assumes that more layers take more memory.
    """
    low, high, num_hidden_layers = 0, most + 1, guess
    stride = max(guess // 16, 1)
    while high - low > (max(int(low * FINE), 1) if high <= most else 1):
        tried = attempt(num_hidden_layers)
        yield tried
        low, high = (num_hidden_layers, high) if tried.trained else (low, num_hidden_layers)
        further = low + stride if tried.trained else high - stride
        num_hidden_layers = (low + high) // 2 if low > 0 and high <= most else further
        num_hidden_layers = min(max(num_hidden_layers, low + 1), high - 1)
        stride *= 2


def attempts(subject: Subject, ranks: Ranks) -> Iterator[Attempt]:
    """Run the search on real ranks, each attempt within the budget and in its own processes.

    An attempt that fails for another reason (it fails without a limit too) has `by_budget` false.
    """
    budget_B = int(subject.workload.device_memory_budget_B or 0)

    def attempt(num_hidden_layers: int) -> Attempt:
        try:
            train(subject, ranks, num_hidden_layers, budget_B)
        except MemoryError as error:
            return Attempt(num_hidden_layers, False, str(error))
        except RankFailed as error:  # not every library treats a failed allocation as an error
            by_budget = trains_without_limit(num_hidden_layers)
            return Attempt(num_hidden_layers, False, first_line(error), by_budget)
        except (Unavailable, RankTimeout) as error:
            return Attempt(num_hidden_layers, False, first_line(error), by_budget=False)
        return Attempt(num_hidden_layers, True, "")

    def trains_without_limit(num_hidden_layers: int) -> bool:
        try:
            train(subject, ranks, num_hidden_layers, None)
        except (RankFailed, RankTimeout, MemoryError, Unavailable):
            return False
        return True

    yield from search(first_guess(subject, ranks), subject.workload.num_hidden_layers, attempt)


def train(subject: Subject, ranks: Ranks, num_hidden_layers: int, budget_B: int | None) -> None:
    """Make one attempt on fresh processes; without a limit where `budget_B` is None."""
    ranks.close()
    deep = subject.at_depth(num_hidden_layers).immediate
    ranks.call("train_within_budget", deep, budget_B=budget_B, steps=STEPS)


def first_line(error: Exception) -> str:
    """Return an error's first line."""
    return str(error).partition("\n")[0]


def origin() -> Origin:
    """Return the origin of what is read on ranks: on a GPU the memory hierarchy is real."""
    return Origin.MEASURED if torch.cuda.is_available() else Origin.EMULATED


@dataclass(slots=True)
class DepthSearch:
    """The ranks on which depths are tried."""

    subject: Subject
    ranks: Ranks


def sample_largest(session: DepthSearch) -> Iterator[Reading | Note]:
    """Read the most layers that train within the budget, with a note per attempt, and their estimates."""
    subject = session.subject
    workload = subject.workload
    budget_B = workload.device_memory_budget_B or 0.0
    most, bounded = 0, True
    for attempt in attempts(subject, session.ranks):
        ended = "trained" if attempt.trained else f"died ({attempt.message})"
        count = parameters(workload, attempt.num_hidden_layers)
        yield Note(f"{attempt.num_hidden_layers} layers, {count} parameters: {ended}")
        if attempt.trained:
            most = max(most, attempt.num_hidden_layers)
        bounded = bounded and attempt.by_budget
    if not bounded:
        yield Note("largest: something else than the device's budget bounds it here; it may be larger")
    if not most:
        one_layer = f"one layer ({parameters(workload, 1)} parameters)"
        raise MemoryError(f"{budget_B:g} B per rank do not hold the training of {one_layer}")
    if most == workload.num_hidden_layers:
        yield Note(f"largest: no more than {most} layers were tried; it may be larger")
    count = parameters(workload, most)
    yield Reading("largest_layers", "1", most, origin(), "tried")
    yield Reading("largest_parameters", "1", count, origin(), "tried")
    yield Reading("budget_per_parameter", "B", budget_B / count, origin(), "tried")
    for method, estimate in METHODS.items():
        try:
            estimated = parameters(workload, largest(subject, budget_B, estimate))
        except Unavailable as reason:
            yield Note(f"{method}: {reason}")
            continue
        made = Origin.SIMULATED if method == "fake_step" else Origin.CALCULATED
        yield Reading("largest_parameters", "1", estimated, made, method)
        if bounded and most < workload.num_hidden_layers:
            yield Reading("largest_error", "1", estimated / count - 1, made, method)


def parameters(workload: Workload, num_hidden_layers: int) -> int:
    """Return the parameters of the model with that many layers."""
    return replace(workload, num_hidden_layers=num_hidden_layers).shape.parameters


def trained_parameters(subject: Subject) -> int:
    """Return about how many parameters a search trains, summed over its steps.

    Each attempt trains one layer, and as many as the budget holds by the formula with activations. For the
    first guess the footprints of two shallow models are read.
    """
    workload, placement = subject.workload, subject.placement
    held = bisect_right(
        range(1, workload.num_hidden_layers + 1),
        workload.device_memory_budget_B or 0.0,
        key=lambda depth: with_activations_B(replace(workload, num_hidden_layers=depth), placement),
    )
    per_attempt = STEPS * (parameters(workload, 1) + parameters(workload, max(held, 1)))
    shallow = FOOTPRINT_STEPS * sum(parameters(workload, depth) for depth in SHALLOW)
    return ATTEMPTS * per_attempt + shallow
