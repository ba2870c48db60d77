"""What an answer assumes of a step and could turn it: dry runs under the other choice, and the host's bytes.

Where nothing is said, the optimizer is fused, though torch's default on CUDA is foreach, which allocates
temporaries as large as the parameters; and the logits are released after the loss, though a script may keep
them in a variable, as transformers' Trainer does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from harness.records import Origin, Reading, Unavailable
from suites.memory.largest_batch import MOST_SEQUENCES, fit_of, predicted_largest, with_micro_batch
from suites.memory.subject import Subject
from suites.training.dry_run.dry_run import DryRun
from suites.training.dry_run.estimates import ModelCounts
from suites.training.techniques import build_step

WITH_IMPLEMENTATIONS = ("adamw", "sgd_momentum")
"""Optimizers of which torch has several implementations that differ in their temporaries."""

MOMENTS = {"adamw": 2, "sgd_momentum": 1}
"""Tensors of an optimizer's state per parameter."""


def readings(subject: Subject, largest: int, run_of: Callable[[Subject], DryRun]) -> Iterator[Reading]:
    """Yield, under each other choice, whether the asked micro-batch fits and the largest that does.

    `largest`: that of the subject. `run_of`: dry-runs a subject.
    """
    asked = subject.step.workload.micro_batch_size
    no_change = ""
    for name, other in others(subject):
        if no_change and name.startswith(no_change):
            continue  # foreach has the largest temporaries
        at = largest or asked
        changed = with_micro_batch(other, at)
        try:
            run = run_of(changed)
            found = at
            if not fit_of(changed, run).fits:
                found = predicted_largest(changed, run, at, 0, MOST_SEQUENCES + 1)
            fits = found >= asked
            if at != asked and found < at:
                fits = fit_of(other, run_of(other)).fits
                found = max(found, asked) if fits else min(found, asked - 1)
        except Unavailable:
            continue
        if found == at:
            no_change = name.partition("=")[0]
        yield Reading(f"assumption/{name}/fits", "1", int(fits), Origin.SIMULATED, "fake_step")
        if largest:
            metric = f"assumption/{name}/largest_micro_batch"
            yield Reading(metric, "1", found, Origin.SIMULATED, "fake_step")


def others(subject: Subject) -> Iterator[tuple[str, Subject]]:
    """Yield each other choice that the recipe leaves open, by name, with its subject."""
    step = subject.step
    techniques = dict(step.techniques)
    if step.workload.optimizer in WITH_IMPLEMENTATIONS and step.workload.optimizer_impl == "fused":
        own: Mapping[str, Any] = techniques.get("optimizer", {})
        for impl in ("default", "for_loop") if "impl" not in own else ():
            with suppress(Unavailable):
                changed = _rebuilt(subject, techniques | {"optimizer": {**own, "impl": impl}})
                yield f"optimizer_impl={impl}", changed
    if "loss" not in techniques:
        with suppress(Unavailable):
            yield "keep_logits=model", _rebuilt(subject, techniques | {"loss": {"keep_logits": "model"}})


def _rebuilt(subject: Subject, techniques: Mapping[str, Mapping[str, Any]]) -> Subject:
    step = subject.step
    return replace(subject, step=build_step(step.given, tuple(techniques.items()), step.seed))


def host_B(subject: Subject, counts: ModelCounts) -> float:
    """Return the bytes that one rank keeps in its host's memory: weights, gradients, moments.

    0 where nothing is there, and where it is not known: with adapters, whose frozen weights have no states,
    with other optimizers, and where a part stays on the device.
    """
    step = subject.step
    on_host = step.features.optimizer_on == step.features.parameters_on == "host"
    if not on_host or step.settings_of("lora") is not None or step.workload.optimizer not in MOMENTS:
        return 0.0
    tensors = 2 + MOMENTS[step.workload.optimizer]
    return tensors * step.model_dtype.itemsize * counts.parameters / step.shard_ranks
