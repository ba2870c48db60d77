"""The largest model that trains in a budget of device memory: layers are added until a step exceeds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from harness.instruments.distributed.rank_pool import RankFailed, RankTimeout
from harness.records import Unavailable
from suites.offload.ranks import Ranks
from suites.offload.subject import Subject

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
    """Yield attempts until the largest model that trains is known.

    The search ends when one trained and one larger by `FINE` did not, or `most` layers did, or one layer did
    not. From `guess` on in growing strides, then by bisection. Assumes that more layers take more memory.
    """
    low, high, num_hidden_layers = 0, most + 1, guess
    stride = max(guess // 16, 1)
    while high - low > (max(int(low * FINE), 1) if high <= most else 1):
        tried = attempt(num_hidden_layers)
        yield tried
        if tried.trained:
            low = num_hidden_layers
        else:
            high = num_hidden_layers
        bounded = low > 0 and high <= most
        num_hidden_layers = (
            (low + high) // 2 if bounded else (low + stride if tried.trained else high - stride)
        )
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
            return Attempt(
                num_hidden_layers, False, first_line(error), dies_without_limit(num_hidden_layers) is None
            )
        except (Unavailable, RankTimeout) as error:
            return Attempt(num_hidden_layers, False, first_line(error), by_budget=False)
        return Attempt(num_hidden_layers, True, "")

    def dies_without_limit(num_hidden_layers: int) -> Exception | None:
        try:
            train(subject, ranks, num_hidden_layers, None)
        except (RankFailed, RankTimeout, MemoryError, Unavailable) as error:
            return error
        return None

    yield from search(first_guess(subject, ranks), subject.workload.num_hidden_layers, attempt)


def train(subject: Subject, ranks: Ranks, num_hidden_layers: int, budget_B: int | None) -> None:
    """Make one attempt on fresh processes; without a limit where `budget_B` is None."""
    ranks.close()
    deep = subject.at_depth(num_hidden_layers).immediate
    ranks.call("train_within_budget", deep, budget_B=budget_B, steps=STEPS)


def first_line(error: Exception) -> str:
    """Return an error's first line."""
    return str(error).partition("\n")[0]
