"""Sample the largest model that trains in a budget of device memory; `suites.offload.search` finds it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace

from harness.records import Note, Origin, Reading, Unavailable
from suites.offload.memory_estimates import METHODS, largest, with_activations_B
from suites.offload.on_rank import FOOTPRINT_STEPS
from suites.offload.origin import origin
from suites.offload.ranks import Ranks
from suites.offload.search import ATTEMPTS, SHALLOW, STEPS, attempts
from suites.offload.subject import Subject
from suites.offload.workload import Workload


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
        raise MemoryError(
            f"{budget_B:g} B per rank do not hold the training of one layer "
            f"({parameters(workload, 1)} parameters)"
        )
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
