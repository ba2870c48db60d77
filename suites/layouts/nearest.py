"""The published steps that are nearest to a layout, and what the model predicts for them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from harness.instruments.transformer.flop import model_flop_per_token
from harness.records import Origin, Reading
from suites.training.layouts.layout import Layouts
from suites.training.step_time.published.steps import PublishedStep, published, ran
from suites.training.step_time.questions.answers import answer
from suites.training.step_time.questions.words import precision_of, program_of, shape_of_question
from suites.training.step_time.rates.constants import StepConstants
from suites.training.step_time.rates.gpu import gpu_of
from suites.training.step_time.whole_step.setting import StepSetting

SHOWN = 2

ANOTHER_GPU, ANOTHER_PROGRAM, ANOTHER_PRECISION = 3.0, 2.0, 1.0
"""How far apart these are, in factors of two of a size: chosen."""


def nearest(setting: StepSetting, layout: Layouts) -> Iterator[Reading]:
    """Return the published and the predicted seconds of the nearest steps, whose words are the method."""
    ran_ = [one for one in published() if ran(one)]
    found = sorted(ran_, key=lambda one: distance(one, setting, layout))[:SHOWN]
    for one in found:
        said = answer(one, StepConstants.read())
        if said["step_s"] is None:
            continue
        words = words_of(one)
        yield Reading("nearest/published", "s", one["published"]["step_s"], Origin.PUBLISHED, words)
        yield Reading("nearest/predicted", "s", said["step_s"], Origin.CALCULATED, words)
        yield Reading("nearest/flop_per_gpu", "1", flop_per_gpu(one), Origin.CALCULATED, words)


def distance(step: PublishedStep, setting: StepSetting, layout: Layouts) -> float:
    """Return how far a published step is: factors of two of parameters, GPUs and tokens, and what differs."""
    gpu = gpu_of(str(step["device"]))
    sizes = (
        (shape_of_question(step["model"]).active_parameters, setting.shape.active_parameters),
        (step["gpus"], float(layout.gpus[0])),
        (step["seq_len"], setting.training.seq_len),
    )
    far = sum(abs(math.log2(one / other)) for one, other in sizes)
    if gpu is None or gpu.architecture != setting.gpu.architecture:
        far += ANOTHER_GPU
    if program_of(str(step["framework"])) != setting.training.program:
        far += ANOTHER_PROGRAM
    if gpu is not None and precision_of(step, gpu.architecture) != setting.precision:
        far += ANOTHER_PRECISION
    return far


def flop_per_gpu(step: PublishedStep) -> float:
    """Return a published step's model FLOP per GPU, as `transformer.flop` counts them."""
    tokens = float(step["global_batch_size"] * step["seq_len"])
    flop = model_flop_per_token(shape_of_question(step["model"]), step["seq_len"]) * tokens
    return flop / float(step["gpus"])


def words_of(step: PublishedStep) -> str:
    """Return `Llama 3.1 70B on 64 × h100_80gb, FP8, tp 4 × pp 4 × cp 2 (dgxc-benchmarking)`."""
    sizes = shape_of_question(step["model"])
    name = step["model"].get("name") or f"{sizes.parameters / 1e9:.3g} B"
    ranks = {key: step["layout"].get(key, 1) for key in ("dp", "tp", "pp", "cp")}
    layout = " × ".join(f"{key} {size}" for key, size in ranks.items() if size > 1) or "one rank"
    precision = step["precision"] or "precision not stated"
    return (
        f"{name} on {step['gpus']:,} × {step['device']}, {step['seq_len']:,} tokens, {precision}, {layout}, "
        f"micro-batch {step['layout'].get('micro_batch_size', 1)} ({step['source']})"
    )
