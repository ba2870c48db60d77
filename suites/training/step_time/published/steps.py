"""Published training steps, of the files of this folder: a question each, with the published answer.

`nearest` yields those that are nearest to a layout, and what the model predicts for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from harness.answer import NearestStep
from harness.instruments.transformer import model_flop_per_token
from suites.training.layouts.layout import Layouts
from suites.training.step_time.prediction import PlannedSteps, predicted
from suites.training.step_time.published.rows import PublishedRun, published_runs, question
from suites.training.step_time.questions import steps_of_rows
from suites.training.step_time.setting import StepSetting

FOLDER = Path(__file__).parent

FILES = ("published_steps.jsonl", "dgxc_steps.jsonl")
"""Steps that constants of the model were fitted to, and steps that none was fitted to: the tables of
NVIDIA/dgxc-benchmarking, whose READMEs state sizes and layouts. Llama's sizes are those of its config.json;
Nemotron's MLP is not gated (NVIDIA/NeMo, nemo/collections/llm/gpt/model/nemotron.py)."""

ATTENTION_FILE = "attention_steps.jsonl"
"""Steps with and without FlashAttention: 1.3 B and 2.7 B on 8 A100, arXiv 2307.08691, table 1. Seconds follow
from its TFLOP/s by its formula, 6 per parameter and token and 12 × layers × hidden size × tokens; sizes,
batches and ZeRO-1 are those of Dao-AILab/flash-attention, commit 0251105a, training/configs/experiment/pile.
Micro-batches are not published; one sequence is taken. No constant was fitted to these
steps, and `published` leaves them out."""


def published() -> tuple[PublishedRun, ...]:
    """Return every published step."""
    return tuple(run for name in FILES for run in published_runs(FOLDER / name))


def with_and_without_attention() -> tuple[PublishedRun, ...]:
    """Return the steps of `ATTENTION_FILE`."""
    return published_runs(FOLDER / ATTENTION_FILE)


SHOWN = 2

ANOTHER_PROGRAM, ANOTHER_PRECISION = 2.0, 1.0
"""How far apart these are, in factors of two of a size: chosen."""


class KnownStep(NamedTuple):
    """A published step that ran, as its row and as the model takes it."""

    run: PublishedRun
    steps: PlannedSteps


@cache
def known_steps() -> tuple[KnownStep, ...]:
    """Return the published steps that ran."""
    return tuple(KnownStep(run, steps_of_rows([question(run)])) for run in published() if run.step_s)


def nearest(setting: StepSetting, layout: Layouts) -> Iterator[NearestStep]:
    """Yield the nearest published steps of the same kind, with published and predicted seconds."""
    alike = (step for step in known_steps() if kind_of(step.steps.setting) == kind_of(setting))
    for step in sorted(alike, key=lambda step: distance(step, setting, layout))[:SHOWN]:
        yield NearestStep(
            title=title_of(step),
            published_s=step.run.step_s or math.nan,
            predicted_s=float(predicted(step.steps).seconds[0]),
            FLOP_per_device=flop_per_gpu(step),
        )


def kind_of(setting: StepSetting) -> tuple[object, ...]:
    """Return what a published step must share: mixers, experts, adapters, or none of each, the GPU's age."""
    shape, run = setting.shape, setting.run
    return shape.mixer is not None, shape.num_experts > 0, run.adapters_alone, setting.gpu.architecture


def distance(step: KnownStep, setting: StepSetting, layout: Layouts) -> float:
    """Return how far a published step is: factors of two of parameters, GPUs and tokens, and what differs."""
    its = step.steps.setting
    sizes = (
        (its.shape.active_parameters, setting.shape.active_parameters),
        (step.run.gpus, float(layout.gpus[0])),
        (its.training.seq_len, setting.training.seq_len),
    )
    far = sum(abs(math.log2(one / other)) for one, other in sizes)
    if its.training.program != setting.training.program:
        far += ANOTHER_PROGRAM
    if its.precision != setting.precision:
        far += ANOTHER_PRECISION
    return far


def flop_per_gpu(step: KnownStep) -> float:
    """Return a published step's model FLOP per GPU, as `transformer.flop` counts them."""
    run, shape, length = step.run, step.steps.setting.shape, step.run.seq_len or 0
    return model_flop_per_token(shape, length) * (run.sequences or 0) * length / run.gpus


def title_of(step: KnownStep) -> str:
    """Return `Llama 3.1 70B on 64 × h100_80gb, FP8, tp 4 × pp 4 × cp 2 (dgxc-benchmarking)`."""
    run = step.run
    ranks = {key: getattr(run, key) or 1 for key in ("dp", "tp", "pp", "cp")}
    layout = " × ".join(f"{key} {size}" for key, size in ranks.items() if size > 1) or "one rank"
    precision = run.precision or "precision not stated"
    return (
        f"{run.model} on {run.gpus:,} × {run.device}, {run.seq_len:,} tokens, {precision}, {layout}, "
        f"micro-batch {run.micro_batch_size} ({run.source})"
    )
