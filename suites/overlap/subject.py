"""What a variant of the overlap suite is: one way to run a workload."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from suites.overlap.workload import Workload


@dataclass(frozen=True, slots=True)
class Subject:
    """One variant.

    `algorithm`: the collective and then computation ("in_sequence"), collectives of chunks ("decomposed"), or
    puts with signals ("symmetric"). `order`: whom puts go to, one peer after another ("ring") or all at once
    ("full_mesh"). `weight_gradient_overlaps`: in sequence, but a weight's gradient is computed during the
    reduce-scatter, as the other algorithms do in any case. `experts_by`: "loop" over experts with masks, or
    "grouped" products. `gather`: "gloo" or "low_latency".
    """

    workload: Workload
    seed: int
    algorithm: Literal["in_sequence", "decomposed", "symmetric"] = "in_sequence"
    order: Literal["ring", "full_mesh"] = "ring"
    weight_gradient_overlaps: bool = False
    experts_by: Literal["loop", "grouped"] = "loop"
    gather: Literal["gloo", "low_latency"] = "gloo"

    def changed(self, **fields: Any) -> Subject:
        """Return the subject with other values of these fields."""
        return replace(self, **fields)

    @property
    def described(self) -> dict[str, Any]:
        """Return it as plain data, for ranks."""
        return asdict(self)
