"""Replace an operation's function, alone or in the training step; shared by several variants."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from harness.records import Unavailable
from suites.kernels.step.training_step import PARTS
from suites.kernels.subject import Subject

STEP = "training_step"

BF16_TOLERANCE = 2e-2
"""Tolerance relative to the largest value: a bf16 rounding is 2^-9, and a result passes several."""


def replace_operation(
    subject: Subject, functions: Mapping[str, Callable[..., Any]], variant: str, **changes: Any
) -> Subject:
    """Return the subject with `functions`, by operation, in place of eager ones; in a step those of its part.

    Raises `Unavailable` where none of them applies.
    """
    name, part = subject.workload.operation, subject.workload.part
    if name != STEP:
        if name not in functions:
            raise Unavailable(f"{variant} has no {name}; it has {', '.join(functions)}")
        return replace(subject, function=functions[name], **changes)
    if subject.workload.hf_config is not None:
        raise Unavailable(f"{variant} replaces operations of this project's model, and this is transformers'")
    operations = PARTS if part == "all" else (part,)
    chosen = {one: functions[one] for one in operations if one in functions}
    if not chosen:
        raise Unavailable(f"{variant} has no {part} to replace in the step; it has {', '.join(functions)}")
    return replace(subject, replace={**subject.replace, **chosen}, **changes)


def require_full_step(subject: Subject, variant: str) -> None:
    """Raise `Unavailable` for a step of which only one part is replaced."""
    if subject.workload.operation == STEP and subject.workload.part != "all":
        raise Unavailable(
            f"{variant} changes the full step, and here {subject.workload.part} alone is to change"
        )


def missing(module: str, extra: str) -> str | None:
    """Return why a variant that needs a package of an extra cannot run; None where it is installed."""
    if importlib.util.find_spec(module) is not None:
        return None
    return f"needs the extra {extra}: pip install 'throughput-harness[{extra}]'"
