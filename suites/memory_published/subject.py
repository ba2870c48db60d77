"""The memory_published suite's types: a published peak, and the training step that had it.

Host memory that offloading by DeepSpeed was reported to take: the account of its buffers, per node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from harness.records import Note, Origin, Reading, Unavailable
from suites.memory_published.workload import Workload
from suites.training import techniques
from suites.training.dry_run.estimates import estimator
from suites.training.layouts.states import deepspeed_host_B
from suites.training.step import TrainingStep


@dataclass(frozen=True, slots=True)
class Subject:
    """A published peak and its step. `missing`: why there is none, where torch has one."""

    workload: Workload
    step: TrainingStep | None
    missing: str = ""


def subject_of(workload: Workload, seed: int) -> Subject:
    """Return the step of a published peak, or the first technique of its list that is not built."""
    if workload.program != "torch":
        return Subject(workload, None)
    if reason := not_built(workload.techniques):
        return Subject(workload, None, reason)
    try:
        return Subject(workload, techniques.build_step(asdict(workload), workload.techniques, seed))
    except Unavailable as reason_of_step:
        return Subject(workload, None, str(reason_of_step))


def not_built(listed: Sequence[Any]) -> str:
    """Return which technique or setting of a list does not exist yet; "" where all do."""
    for name, settings in techniques.named(listed):
        if name not in techniques.names():
            return f"the technique {name} is not built"
        try:
            techniques.settings_of(name, settings)
        except ValueError as error:
            return f"not built: {error}"
    return ""


METRIC, ERROR = "host_memory", "host_memory/relative_error"
"""Apart from those of GPUs, since reports of host memory also have the process and its libraries."""

AFTER_PARAMETERS_B = 16
"""Per parameter of what stage 3 makes from creating fp32 partitions to initializing optimizer states: fp32
weights and gradients, and Adam's moments (deepspeed/runtime/zero/stage3.py, _setup_for_real_optimizer)."""


def node_B(workload: Workload) -> float:
    """Return the bytes that all ranks of one node have on their host, or made in the reported part of it."""
    assert workload.parameters is not None
    ranks = workload.dp_size * workload.tp_size
    part = np.array([workload.parameters / ranks])
    if workload.host_part == "after_parameters":
        return float(AFTER_PARAMETERS_B * part[0] * ranks / workload.nodes)
    found = deepspeed_host_B(part, np.array([workload.zero_stage]), workload.offload == "parameters")
    of_rank = found.reserved if workload.pinned else found.asked
    return float(of_rank[0] * ranks / workload.nodes)


def estimated_node_B(workload: Workload) -> float:
    """Return what deepspeed's own estimator says for a node; raises ImportError without deepspeed."""
    ranks = workload.dp_size * workload.tp_size // workload.nodes
    if workload.zero_stage == 2:
        return float(estimator(2)(workload.parameters, ranks, workload.nodes, cpu_offload=True)[0])
    with_parameters = workload.offload == "parameters"
    of_node = estimator(3)(
        workload.parameters, 0, ranks, workload.nodes, cpu_offload=True, cpu_offload_params=with_parameters
    )
    return float(of_node[0])


def readings(workload: Workload) -> Iterator[Reading | Note]:
    """Return a node's host memory as reported, by the account, and by deepspeed's estimator."""
    published_B = workload.published_B
    if published_B is not None:
        yield Reading(METRIC, "B", published_B, Origin.PUBLISHED, "published")
    predicted = {"account": node_B(workload)}
    if workload.host_part == "all":
        try:
            predicted["deepspeed_estimator"] = estimated_node_B(workload)
        except ImportError:
            yield Note("deepspeed_estimator: deepspeed is not installed")
    for method, size_B in predicted.items():
        yield Reading(METRIC, "B", size_B, Origin.CALCULATED, method)
        if published_B is not None:
            yield Reading(ERROR, "1", size_B / published_B - 1, Origin.CALCULATED, method)
