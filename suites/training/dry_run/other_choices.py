"""What a recipe leaves open and could turn its answer: dry runs under the other choice.

Where nothing is said, the optimizer is fused, though torch's default on CUDA is foreach, which allocates
temporaries as large as the parameters; and the logits are released after the loss, though a script may keep
them in a variable, as transformers' Trainer does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from harness.answer import OtherChoice
from harness.records import Unavailable
from suites.training.dry_run.dry_run import DryRun
from suites.training.dry_run.largest_batch import Target, fit_of, predicted_largest, with_micro_batch
from suites.training.step import TrainingStep
from suites.training.techniques import build_step

WITH_IMPLEMENTATIONS = ("adamw", "sgd_momentum")
"""Optimizers of which torch has several implementations that differ in their temporaries."""


def under_other_choices(
    step: TrainingStep, target: Target, largest: int, run_of: Callable[[TrainingStep], DryRun]
) -> Iterator[OtherChoice]:
    """Yield the answer under each other choice.

    `largest`: that of the step. `run_of`: dry-runs a step. The largest micro-batch of a choice is predicted
    where that of the step does not fit.
    """
    requested = step.workload.micro_batch_size
    no_change = ""
    for name, other in other_choices(step):
        if no_change and name.startswith(no_change):
            continue  # foreach has the largest temporaries
        at = largest or requested
        changed = with_micro_batch(other, at)
        try:
            run = run_of(changed)
            found = at
            if not fit_of(changed, run, target).fits:
                found = predicted_largest(changed, target, run, at)
            fits = found >= requested
            if at != requested and found < at:
                fits = fit_of(other, run_of(other), target).fits
                found = max(found, requested) if fits else min(found, requested - 1)
        except Unavailable:
            continue
        if found == at:
            no_change = name.partition("=")[0]
        yield OtherChoice(choice=name, fits=fits, largest_micro_batch=found)


def other_choices(step: TrainingStep) -> Iterator[tuple[str, TrainingStep]]:
    """Yield each other choice that the recipe leaves open, by name, with its step."""
    techniques = dict(step.techniques)
    if step.workload.optimizer in WITH_IMPLEMENTATIONS and step.workload.optimizer_impl == "fused":
        own: Mapping[str, Any] = techniques.get("optimizer", {})
        for impl in ("default", "for_loop") if "impl" not in own else ():
            with suppress(Unavailable):
                changed = {**techniques, "optimizer": {**own, "impl": impl}}
                yield f"optimizer_impl={impl}", build_step(step.given, tuple(changed.items()), step.seed)
    if "loss" not in techniques:
        with suppress(Unavailable):
            changed = {**techniques, "loss": {"keep_logits": "model"}}
            yield "keep_logits=model", build_step(step.given, tuple(changed.items()), step.seed)
