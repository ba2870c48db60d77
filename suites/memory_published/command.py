"""The command by which a user asks the memory suite for the step of a published peak."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from suites.memory_published.workload import Workload
from suites.training import workload as training

NAME = "published"
"""Name of the workload that the command adds."""


def command_of(workload: Workload) -> str:
    """Return one line for a shell; what is not in it has the memory suite's default.

    The accounts of Megatron-LM and DeepSpeed are of this suite, which gets the same layout without a
    published peak.
    """
    if workload.program != "torch":
        layout = {
            one.name: value
            for one in fields(Workload)
            if one.name not in PUBLISHED and (value := getattr(workload, one.name)) not in (one.default, [])
        }
        return (
            f"python -m harness suite=memory_published workloads=[{NAME}] "
            f"'+suite.workloads.{NAME}={word(layout)}'"
        )
    given: dict[str, Any] = {
        one.name: value
        for one in fields(training.Workload)
        if (value := getattr(workload, one.name)) != one.default or one.name in KEPT
    }
    given |= {name: getattr(workload, name) for name in OF_THE_DEVICE}
    given |= {"device_memory_B": "${hardware.memory_B}", "simulated_device": "cuda"}
    listed = f" 'techniques={word(workload.techniques)}'" if workload.techniques else " only=[baseline]"
    return (
        f"python -m harness suite=memory workloads=[{NAME}] '+suite.workloads.{NAME}={word(given)}'{listed}"
    )


PUBLISHED = ("techniques", "published", "unit", "kind", "gpu", "published_by", "source")
"""Fields of a published peak that are no part of a layout."""

KEPT = ("dp_size", "tp_size")
"""Fields whose default in the memory suite is another."""

OF_THE_DEVICE = ("architecture", "expandable_segments", "fsdp2_copies_on_own_stream")
"""Fields that decide what the simulated GPU allocates and reserves."""


def word(value: Any) -> str:
    """Return a value in Hydra's grammar."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {word(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(word, value)) + "]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
