"""What variants have in common: putting a function in an operation's place, alone or in the training step."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from harness.records import Unavailable
from suites.kernels.subject import Subject
from suites.kernels.training_step import PARTS

STEP = "training_step"

BF16_TOLERANCE = 2e-2
"""Of the largest value: bf16 has 8 bits of significand, 2^-9 a rounding, and a result passes several."""


def replace_operation(
    subject: Subject, functions: Mapping[str, Callable[..., Any]], variant: str, **changes: Any
) -> Subject:
    """The subject with `functions`, by operation, in the place of eager ones; in a step those of its part.

    Raises `Unavailable` where none of them is for it.
    """
    name, part = subject.workload.operation, subject.workload.part
    if name != STEP:
        if name not in functions:
            raise Unavailable(f"{variant} has no {name}; it has {', '.join(functions)}")
        return replace(subject, function=functions[name], **changes)
    wanted = PARTS if part == "all" else (part,)
    chosen = {one: functions[one] for one in wanted if one in functions}
    if not chosen:
        raise Unavailable(f"{variant} has no {part} to put into the step; it has {', '.join(functions)}")
    return replace(subject, replace={**subject.replace, **chosen}, **changes)


def require_full_step(subject: Subject, variant: str) -> None:
    """Raises `Unavailable` for a step of which one part is to be replaced."""
    if subject.workload.operation == STEP and subject.workload.part != "all":
        raise Unavailable(
            f"{variant} changes the whole step, and here {subject.workload.part} alone is to change"
        )


def missing(module: str, extra: str) -> str | None:
    """Why a variant that needs a package of an extra cannot run; None where the package is there."""
    if importlib.util.find_spec(module) is not None:
        return None
    return f"needs the extra {extra}: pip install 'throughput-harness[{extra}]'"
