"""The memory_published suite: how far off is what a user gets for peaks that others published?

Each workload is a row of peaks.jsonl, a published peak with the words of `harness.fit` that ask for its step.
They are asked as a user asks them. Megatron-LM's peaks are those of the rank that was logged. Of offloading
by DeepSpeed, what is published is host memory per node, which the account of its buffers predicts.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from harness.ask.batch import answers_of
from harness.records import Json, Note, Origin, Reading, Unavailable
from suites.published.workload import MemoryPublishedWorkload
from suites.training.dry_run.estimates import estimator
from suites.training.layouts.states import deepspeed_host_B
from suites.training.step_time.published.rows import PublishedRun, question

METHODS = {"dry run": ("fake_step", Origin.SIMULATED), "account": ("megatron", Origin.CALCULATED)}
"""Of the engine that answers: the method of its readings, and their origin."""

HOST, HOST_ERROR = "host_memory", "host_memory/relative_error"
"""Apart from those of GPUs, since reports of host memory also have the process and its libraries."""

AFTER_PARAMETERS_B = 16
"""Per parameter of what stage 3 makes from creating fp32 partitions to initializing optimizer states: fp32
weights and gradients, and Adam's moments (deepspeed/runtime/zero/stage3.py, _setup_for_real_optimizer)."""


def build(workload: Json, seed: int) -> PublishedRun:
    """Return the published peak of a workload; raises ValueError for one without source, unit or outcome."""
    return msgspec.convert(MemoryPublishedWorkload(**workload).row, PublishedRun)


def check(run: PublishedRun) -> None:
    """Do nothing: what is compared are predictions."""


def close(run: PublishedRun) -> None:
    """Do nothing: a question allocates nothing."""


def command_of(run: PublishedRun) -> str:
    """Return the command that asks for the step, in one line for a shell; "" of host memory alone."""
    if not run.words:
        return ""
    words = (
        f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in run.words.items()
    )
    return shlex.join(["python", "-m", "harness.fit", *words])


def conditions(run: PublishedRun) -> Mapping[str, str]:
    """Return who published the peak, of what, on which GPU, and the command that asks for it."""
    return {
        "published_by": run.source,
        "kind": run.outcome.peak_kind or "host",
        "gpu": run.device,
        "source": f"{run.page} ({run.place})",
        "command": command_of(run),
        "model_code": str(run.words.get("model_code", "")),
    }


def sample(run: PublishedRun) -> Iterator[Reading | Note]:
    """Yield the published peak, the predicted one with its parts, and the relative error.

    Active bytes are compared with allocated ones; they also count freed blocks that another stream uses.
    Raises `Unavailable` where the question is refused.
    """
    if run.outcome.host_GB is not None:
        yield from host_readings(run)
        return
    assert run.outcome.peak_GB is not None
    published_B = run.outcome.peak_GB * 1e9
    yield Reading("peak_memory", "B", published_B, Origin.PUBLISHED, "published")
    (answer,) = answers_of([question(run)], seconds=False)
    if answer["verdict"] == "refused":
        raise Unavailable(answer["reason"])
    method, origin = METHODS[answer["engine"]]
    if method == "fake_step":
        yield from of_all_ranks(run, answer["parameters"])
    peak_B = peak_of_rank_B(run, answer)
    yield Reading("peak_memory", "B", peak_B, origin, method)
    yield Reading("relative_error", "1", peak_B / published_B - 1, Origin.CALCULATED, method)
    for part, size_B in answer["memory"].get("parts_B", {}).items():
        yield Reading(f"peak_memory/{part}", "B", size_B, origin, method)


def peak_of_rank_B(run: PublishedRun, answer: Mapping[str, Any]) -> float:
    """Return the predicted peak of the kind and of the rank that was published."""
    if run.rank == "last":
        return float(answer["memory"]["last_stage_B"])
    kind = "reserved" if run.outcome.peak_kind == "reserved" else "allocated"
    return float(answer[f"peak_{kind}_GB"] * 1e9)


def of_all_ranks(run: PublishedRun, parameters: float) -> Iterator[Reading]:
    """Yield the published peak of one rank times the ranks, in total and per parameter of the model."""
    total_B = (run.outcome.peak_GB or 0.0) * 1e9 * run.gpus
    yield Reading("parameters", "1", parameters, Origin.CALCULATED)
    yield Reading("peak_memory/all_ranks", "B", total_B, Origin.PUBLISHED, "published")
    yield Reading("bytes_per_parameter", "B", total_B / parameters, Origin.PUBLISHED, "published")


def host_readings(run: PublishedRun) -> Iterator[Reading | Note]:
    """Yield a node's host memory as reported, by the account, and by deepspeed's estimator."""
    assert run.outcome.host_GB is not None
    published_B = run.outcome.host_GB * 1e9
    yield Reading(HOST, "B", published_B, Origin.PUBLISHED, "published")
    predicted = {"account": node_B(run)}
    if "part" not in run.other:
        try:
            predicted["deepspeed_estimator"] = estimated_node_B(run)
        except ImportError:
            yield Note("deepspeed_estimator: deepspeed is not installed")
    for method, size_B in predicted.items():
        yield Reading(HOST, "B", size_B, Origin.CALCULATED, method)
        yield Reading(HOST_ERROR, "1", size_B / published_B - 1, Origin.CALCULATED, method)


def node_B(run: PublishedRun) -> float:
    """Return the bytes that all ranks of one node have on their host, or made in the reported part of it."""
    part, ranks = np.array([parameters_of(run) / run.gpus]), ranks_of_node(run)
    if run.other.get("part") == "after_parameters":
        return float(AFTER_PARAMETERS_B * part[0] * ranks)
    of_rank = deepspeed_host_B(part, np.array([stage_of(run)]), "parameters" in run.offload)
    return float((of_rank.reserved if run.other.get("pinned") else of_rank.asked)[0] * ranks)


def estimated_node_B(run: PublishedRun) -> float:
    """Return what deepspeed's own estimator says for a node; raises ImportError without deepspeed."""
    ranks, stage = ranks_of_node(run), stage_of(run)
    of_model: tuple[int, ...] = (parameters_of(run), *((0,) if stage == 3 else ()))  # of the largest layer
    options = {"cpu_offload_params": "parameters" in run.offload} if stage == 3 else {}
    return float(estimator(stage)(*of_model, ranks, run.gpus // ranks, cpu_offload=True, **options)[0])


def parameters_of(run: PublishedRun) -> int:
    """Return the model's parameters."""
    return round((run.parameters_B or 0.0) * 1e9)


def ranks_of_node(run: PublishedRun) -> int:
    """Return the ranks that share a host."""
    return min(run.gpus, run.gpus_per_node or run.gpus)


def stage_of(run: PublishedRun) -> int:
    """Return DeepSpeed's stage."""
    return int(run.sharding.removeprefix("zero-"))
