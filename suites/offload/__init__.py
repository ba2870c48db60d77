"""The offload suite (the paper's Table II): what each strategy saves of device memory, and what it costs.

The baseline is torch's DDP. Each cell has ranks of its own, on this machine. A workload either trains one
model, or with a budget seeks the largest that trains in it. Without a GPU the hierarchy is emulated one floor
down: private memory stands for the device, files mapped into memory for the host, a disk for NVMe.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from harness.records import Json, Note, Origin, Reading, Unavailable
from suites.offload.correctness import SCALE_STEPS, TOLERANCES, check_losses, for_scale
from suites.offload.managed_memory import UNCOUNTED
from suites.offload.memory_estimates import METHODS, foretold_B, largest
from suites.offload.on_rank import COPIED_B
from suites.offload.ranks import Ranks
from suites.offload.search import tries
from suites.offload.subject import DISK, Plan, Subject, Workload

CHECKED_LAYERS = 2
"""Of a model that one plain process could not hold."""

UNTIMED = 2
"""Steps before those that are timed: states are made, caches and allocators fill."""


def build(workload: Json, seed: int) -> Subject:
    """The baseline: DDP with AdamW, everything on the device."""
    given = Workload(**workload)
    if given.gpu and not torch.cuda.is_available():
        raise Unavailable("this workload's size is chosen for a GPU, and there is none here")
    if (given.hidden_size // given.num_attention_heads) % 2:
        raise Unavailable(
            f"rotary halves a head: {given.hidden_size // given.num_attention_heads} elements are odd"
        )
    if given.folder and not (Path(given.folder).is_dir() and os.access(given.folder, os.W_OK | os.X_OK)):
        raise Unavailable(f"folder={given.folder} is no folder that can be written")
    plan = Plan(activations="recomputed" if given.recompute else "kept")
    return Subject(given, seed, plan, TOLERANCES[given.precision])


def check(subject: Subject) -> None:
    """Start the ranks; where one model is trained, train it and hold its losses against plain PyTorch's."""
    workload = subject.workload
    sought = workload.budget_B is not None
    subject.held["ranks"] = Ranks(workload, subject.seed, exact=sought)
    if sought:
        return
    shallow = subject
    if workload.gpu:  # too large for one plain process to hold it
        shallow = replace(subject, workload=replace(workload, num_hidden_layers=CHECKED_LAYERS))
        check_losses(shallow, losses_of(course(shallow, workload.loss_steps)))
        subject.held["max_error"] = None
    scaled = for_scale(shallow)
    if scaled.plan.delay == 0 or scaled.plan.delay_after >= SCALE_STEPS:
        check_losses(scaled, losses_of(course(scaled, SCALE_STEPS)))
    told = course(subject, workload.loss_steps)
    losses = losses_of(told)
    if not workload.gpu:
        subject.held["max_error"] = check_losses(subject, losses)
    subject.held["losses"] = losses
    subject.held["counted"] = told[0]["counted"][UNTIMED:]
    subject.held["times_s"] = [max(each) for each in zip(*(one["seconds"] for one in told), strict=True)]


def course(subject: Subject, steps: int) -> list[Any]:
    """What each rank tells of so many steps."""
    ranks: Ranks = subject.held["ranks"]
    return ranks.call("course", subject.workload, subject.plan, steps=steps)


def losses_of(told: Sequence[Mapping[str, Any]]) -> list[float]:
    """The mean over ranks, step by step."""
    return [sum(each) / len(each) for each in zip(*(one["loss"] for one in told), strict=True)]


def conditions(subject: Subject) -> Mapping[str, str]:
    """What a claim may ask after."""
    workload, plan = subject.workload, subject.plan
    cuda = torch.cuda.is_available()
    return {
        "device": "cuda" if cuda else "cpu",
        "device_name": torch.cuda.get_device_name(0) if cuda else "CPU",
        "hierarchy": "real" if cuda else "emulated",
        "precision": workload.precision,
        "ranks": str(workload.ranks),
        "engine": plan.engine,
        "stage": str(plan.stage),
        "optimizer_on": plan.optimizer,
        "parameters_on": plan.parameters,
        "activations": plan.activations,
    }


def origin() -> Origin:
    """Of what is read on ranks: on a GPU the hierarchy is real."""
    return Origin.MEASURED if torch.cuda.is_available() else Origin.EMULATED


def sample(subject: Subject) -> Iterator[Reading | Note]:
    """One model's bytes and seconds a step; or the largest model in a budget."""
    if subject.workload.budget_B is not None:
        yield from sample_largest(subject)
        return
    yield from sample_step(subject)


def sample_step(subject: Subject) -> Iterator[Reading | Note]:
    """Seconds, losses, then bytes on each floor and between them."""
    workload, held = subject.workload, subject.held
    tokens = workload.ranks * workload.micro_batch_size * workload.seq_len
    yield Reading("parameters", "1", workload.shape.parameters, Origin.CALCULATED)
    yield Reading("tokens_per_step", "1", tokens, Origin.CALCULATED)
    for time_s in held["times_s"][UNTIMED + subject.plan.delay_after :]:
        yield Reading("time", "s", time_s, origin())
        yield Reading("throughput", "token/s", tokens / time_s, origin())
    if held["max_error"] is not None:
        yield Reading("max_error", "1", held["max_error"], Origin.MEASURED, "plain PyTorch")
    yield Reading("loss", "1", held["losses"][-1], Origin.MEASURED)
    yield from (Reading("loss_by_step", "1", loss, Origin.MEASURED) for loss in held["losses"])
    if subject.plan.resident is not None:
        yield from migrations(held["counted"])
        return
    told = held["ranks"].call("footprint", workload, subject.plan)
    for peaks_B in zip(*(one["peaks_B"] for one in told), strict=True):
        yield Reading("peak_memory", "B", max(peaks_B), origin(), "allocator")
    yield Reading("host_memory", "B", sum(one["host_B"] + one["locked_B"] for one in told), origin())
    yield Reading("build_memory", "B", max(one["build_B"] for one in told), origin(), "allocator")
    flows = FLOWS | (DISK_FLOWS if DISK in (subject.plan.optimizer, subject.plan.parameters) else {})
    for metric, names in flows.items():
        yield Reading(metric, "B", sum(one[name] for one in told for name in names), origin())
    for way in ("up", "down"):
        slowest_s = max(one[f"{way}_s"] for one in told)
        yield Reading("copy_rate", "B/s", len(told) * COPIED_B / slowest_s, origin(), way)
    moved_B = sum(one["up_B"] + one["down_B"] for one in told)
    yield Reading("moved_per_parameter", "B", moved_B / workload.shape.parameters, origin())
    peak_B = max(max(one["peaks_B"]) for one in told)
    yield from foretold(subject, peak_B)


def migrations(counted: Sequence[Mapping[str, int]]) -> Iterator[Reading | Note]:
    """What managed memory moved in each step. Its bytes on the device are what its bound leaves there."""
    for one in counted:
        if not one:
            yield Note(UNCOUNTED)
            return
        yield Reading("migrated", "B", one["migrated_B"], origin())
        yield Reading("major_faults", "1", one["major_faults"], origin())


FLOWS = {
    "moved_down": ("down_B",),
    "moved_up": ("up_B",),
    "moved": ("down_B", "up_B"),
}
"""Bytes a step, of all ranks."""

DISK_FLOWS = {"disk_memory": ("files_B",), "disk_read": ("read_B",), "disk_written": ("written_B",)}
"""Bytes that a variant's own files hold, and what disks read and wrote in a step. Of a variant without such
files
the kernel's account would tell of pages of the emulated host."""


def foretold(subject: Subject, peak_B: float) -> Iterator[Reading | Note]:
    """What formulas, estimators and fake tensors make of the peak, and how far they are off."""
    for method, said_B, why in foretold_B(subject.workload, subject.plan):
        if said_B is not None:
            made = Origin.SIMULATED if method == "fake_step" else Origin.CALCULATED
            yield Reading("peak_memory", "B", said_B, made, method)
            yield Reading("peak_error", "1", said_B / peak_B - 1, made, method)
        if why:
            yield Note(f"{method}: {why}")


def sample_largest(subject: Subject) -> Iterator[Reading | Note]:
    """The most layers that train within the budget, each try told; and what was foretold of them."""
    workload = subject.workload
    budget_B = workload.budget_B or 0.0
    most, bounded = 0, True
    for tried in tries(subject, subject.held["ranks"]):
        ended = "trained" if tried.trained else f"died ({tried.said})"
        yield Note(
            f"{tried.num_hidden_layers} layers, "
            f"{parameters(workload, tried.num_hidden_layers)} parameters: {ended}"
        )
        if tried.trained:
            most = max(most, tried.num_hidden_layers)
        bounded = bounded and tried.by_budget
    if not bounded:
        yield Note("largest: it is not the device's budget that bounds it here; it may be larger")
    if not most:
        raise MemoryError(
            f"{budget_B:g} B a rank do not hold the training of one layer "
            f"({parameters(workload, 1)} parameters)"
        )
    if most == workload.num_hidden_layers:
        yield Note(f"largest: no more than {most} layers were tried; it may be larger")
    count = parameters(workload, most)
    yield Reading("largest_layers", "1", most, origin(), "tried")
    yield Reading("largest_parameters", "1", count, origin(), "tried")
    yield Reading("budget_per_parameter", "B", budget_B / count, origin(), "tried")
    for method, foretell in METHODS.items():
        try:
            num_hidden_layers = largest(workload, subject.plan, budget_B, foretell)
        except Unavailable as reason:
            yield Note(f"{method}: {reason}")
            continue
        made = Origin.SIMULATED if method == "fake_step" else Origin.CALCULATED
        yield Reading("largest_parameters", "1", parameters(workload, num_hidden_layers), made, method)
        if bounded and most < workload.num_hidden_layers:
            yield Reading(
                "largest_error", "1", parameters(workload, num_hidden_layers) / count - 1, made, method
            )


def parameters(workload: Workload, num_hidden_layers: int) -> int:
    """Of the model with so many layers."""
    return replace(workload, num_hidden_layers=num_hidden_layers).shape.parameters


def close(subject: Subject) -> None:
    """End the ranks."""
    if "ranks" in subject.held:
        subject.held.pop("ranks").close()
