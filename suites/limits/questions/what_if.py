"""The walls for every combination of a few inputs, for the page on which a reader chooses among them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

from suites.limits.questions.uncertainty import with_input
from suites.limits.subject import Workload

CHOICES: Mapping[str, tuple[float, ...]] = {
    "batch_exponent": (0.0, 0.25, 0.5),
    "depth_exponent": (0.0, 0.1667, 0.3333),
    "overlap": (0.0, 0.5, 1.0),
    "network_B_per_s": (50e9, 100e9, 200e9),
    "node_size": (8, 64, 512),
    "run_s": (7.884e6, 1.5768e7),
}
"""Values of each input; the others are the workload's."""


def combinations() -> Iterator[dict[str, float]]:
    """Yield every combination."""
    for values in product(*CHOICES.values()):
        yield dict(zip(CHOICES, values, strict=True))


def method_of(values: Mapping[str, float]) -> str:
    """Return the name of a combination, which the report reads back: `overlap=0, node_size=8`."""
    return ", ".join(f"{name}={value:g}" for name, value in values.items())


def chosen(given: Workload) -> Iterator[tuple[str, Workload]]:
    """Yield every combination's name and its workload."""
    for values in combinations():
        one = given
        for name, value in values.items():
            one = with_input(one, name, int(value) if name == "node_size" else value)
        yield method_of(values), one
