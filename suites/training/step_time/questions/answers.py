"""Answers to questions about published steps: seconds with an interval, memory, the fastest that fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suites.training.layouts.account import worst_peak
from suites.training.layouts.layout import Floats, Layouts
from suites.training.layouts.room import room_B
from suites.training.step_time.questions.intervals import interval_of
from suites.training.step_time.questions.reader import AskedStep, asked_step
from suites.training.step_time.questions.words import Json
from suites.training.step_time.rates.constants import StepConstants
from suites.training.step_time.whole_step.seconds import StepSeconds, step_s
from suites.training.step_time.whole_step.setting import StepSetting


class PredictedSteps(NamedTuple):
    """What the model says of a question's layouts."""

    seconds: Floats  # for the question's batch, retries of the allocator included
    parts: StepSeconds
    memory_B: Floats
    filled: Floats  # of what the allocator can have
    fits: NDArray[np.bool_]


def memory_B(setting: StepSetting, layouts: Layouts) -> Floats:
    """Return the peak bytes per GPU, of the pipeline rank that needs the most."""
    architecture: Any = setting.gpu.architecture
    peak: Floats = worst_peak(setting.shape, layouts, setting.training, architecture).total_B
    return peak


def predicted(asked: AskedStep) -> PredictedSteps:
    """Return the seconds and the memory of a question's layouts.

    Where nothing was published of recompute, a layout fits if full recompute makes it. Seconds are with it
    then, but for Megatron's recipes, which may recompute part of the layers or keep activations on the host.
    """
    setting, layouts = asked.setting, asked.layouts
    used_B = memory_B(setting, layouts)
    room = room_B(layouts, setting.gpu.usable_memory_B)
    least_B = used_B
    if not asked.recompute_known:
        again, least_B = _recomputed_to_fit(setting, layouts, used_B)
        if setting.training.program != "megatron":
            layouts, used_B = again, least_B
    filled = used_B / room
    parts = step_s(setting, layouts)
    seconds = parts.total + allocator_retries_s(setting, layouts, filled)
    fits = (least_B / room < setting.constants["allocator.fits_below"]) & accepted(setting, layouts)
    return PredictedSteps(seconds * asked.batches, parts, used_B, filled, fits)


def _recomputed_to_fit(setting: StepSetting, layouts: Layouts, used_B: Floats) -> tuple[Layouts, Floats]:
    """Return layouts with full recompute where nothing was published of it and nothing else fits."""
    limit_B = room_B(layouts, setting.gpu.usable_memory_B) * setting.constants["allocator.fits_below"]
    again = layouts._replace(recompute=np.where(used_B > limit_B, 2, layouts.recompute))
    return again, np.where(used_B > limit_B, memory_B(setting, again), used_B)


def allocator_retries_s(setting: StepSetting, layouts: Layouts, filled: Floats) -> Floats:
    """Return the seconds in which the allocator frees its cache and allocates anew, near the limit of memory.

    Each micro-batch pays once. Only nanotron's runs near the limit are published.
    """
    cal = setting.constants
    if setting.training.program != "nanotron":
        return np.zeros_like(filled)
    near = (filled - cal["allocator.retries_from"]) / cal["allocator.retries_width"]
    retries: Floats = np.clip(near, 0.0, 1.0) * cal["allocator.retry_s"] * layouts.micro_batches
    return retries


def accepted(setting: StepSetting, layouts: Layouts) -> NDArray[np.bool_]:
    """Return which layouts the program accepts, whatever they need of memory.

    nanotron's 1F1B asserts pp - 1 micro-batches (pipeline_parallel/engine.py), and key-value heads that
    tensor-parallel ranks divide (models/llama.py).
    """
    shape = setting.shape
    divides = (shape.num_attention_heads % layouts.tp == 0) & (shape.num_hidden_layers >= layouts.pp)
    if setting.training.program == "nanotron":
        divides &= layouts.micro_batches >= layouts.pp - 1
        divides &= shape.num_key_value_heads % layouts.tp == 0
    return np.asarray(divides)


def answer(question: Json, constants: StepConstants) -> dict[str, Any]:
    """Return the prediction for one question; without seconds where the model does not know."""
    asked = asked_step(question, constants)
    if asked is None:
        return {"id": question["id"], "step_s": None}
    steps = predicted(asked)
    if question["kind"] == "choose":
        return {"id": question["id"], "index": _fastest(list(question["among"]), steps)}
    seconds = float(steps.seconds[0])
    interval = interval_of(asked, float(steps.filled[0]))
    return {
        "id": question["id"],
        "step_s": seconds,
        "step_s_low": seconds * interval.low,
        "step_s_high": seconds * interval.high,
        "memory_GB": float(steps.memory_B[0]) / 1e9,
        "fits": bool(steps.fits[0]),
    }


def _fastest(rows: Sequence[Json], steps: PredictedSteps) -> int:
    """Return the index of the layout that fits and takes the fewest seconds."""
    if not steps.fits.any():
        at = int(np.argmin(steps.memory_B))
    else:
        at = int(np.argmin(np.where(steps.fits, steps.seconds, np.inf)))
    return int(rows[at].get("index", at))


def answers(questions: Sequence[Json], constants: StepConstants | None = None) -> list[dict[str, Any]]:
    """Return a prediction for each question."""
    known = constants or StepConstants.read()
    return [answer(question, known) for question in questions]
