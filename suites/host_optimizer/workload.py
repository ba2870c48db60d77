"""A workload of the host_optimizer suite: one update of AdamW."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from harness.bounds import Bounds, PositiveInt


@dataclass(frozen=True, slots=True)
class Workload:
    """One update."""

    # In fp32, as are gradients and states: 16 B each.
    parameters: Annotated[int, Bounds(at_least=1, multiple_of="tensors")]
    tensors: PositiveInt = 1  # number of tensors of equal size; ZeRO keeps the parameters as one flat tensor
    source: str = ""
