"""The step_time suite: does the model predict seconds of training steps that others published?

Each workload is one or several sources of published steps. What the model, rules and other programs predict
for them is compared with what was published. Nothing is timed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from harness.records import Json, Note, Reading
from suites.published import scores
from suites.published.scores import Predictions
from suites.published.workload import StepTimeWorkload
from suites.training.step_time.published.steps import PublishedStep, published, with_and_without_attention
from suites.training.step_time.questions import answers

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Subject:
    """Published steps of some sources."""

    workload: StepTimeWorkload
    steps: Sequence[PublishedStep]


def read_lines(name: str) -> list[dict[str, Any]]:
    """Return the objects of a file of this folder, one per line."""
    return [json.loads(line) for line in (FOLDER / name).read_text().splitlines()]


def steps_of(sources: Sequence[str]) -> list[PublishedStep]:
    """Return the steps of some sources; raises ValueError for a source that has none."""
    every = (*published(), *with_and_without_attention())
    known = {one["source"] for one in every}
    unknown = [name for name in sources if name not in known]
    if unknown:
        raise ValueError(
            f"sources={unknown[0]!r}: no step was published there; known are {', '.join(sorted(known))}"
        )
    return [one for one in every if one["source"] in sources]


def _place(answer: Mapping[str, Any]) -> str:
    return f"{answer['repo']}, commit {str(answer['commit'])[:9]}" if answer.get("repo") else ""


Predictor = Callable[[Sequence[PublishedStep]], Predictions]


def by_model(steps: Sequence[PublishedStep]) -> Predictions:
    """Return what suites/training/step_time predicts."""
    return {one["id"]: one for one in answers(steps)}


@cache
def on_file(name: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the predictions of a file of this folder by question; its first line says how they were made."""
    _, *lines = read_lines(name)
    return {one["id"]: one for one in lines}


def from_file(name: str) -> Predictor:
    """Return the predictor whose answers a file has."""

    def predict(steps: Sequence[PublishedStep]) -> Predictions:
        return {one["id"]: on_file(name)[one["id"]] for one in steps if one["id"] in on_file(name)}

    return predict


PREDICTORS: Mapping[str, Predictor] = {
    "model": by_model,
    "left_out": from_file("left_out.jsonl"),
    "forty_percent": scores.forty_percent,
    "guides": scores.guides,
    "calculon": from_file("calculon.jsonl"),
    "llm_analysis": from_file("llm_analysis.jsonl"),
}
"""By the method of their readings."""


def build(workload: Json, seed: int) -> Subject:
    """Return the published steps of the workload's sources."""
    given = StepTimeWorkload(**workload)
    return Subject(given, steps_of(given.sources))


def check(subject: Subject) -> None:
    """Do nothing: what is compared are predictions, and tests compare the model with its parts."""


def conditions(subject: Subject) -> Mapping[str, str]:
    """Return what was published: steps that ran, devices, GPUs, repositories with their commits."""
    steps = [one for one in subject.steps if one["kind"] == "step"]
    gpus = sorted({int(one["gpus"]) for one in steps})
    places = sorted({_place(one["published"]) for one in steps} - {""})
    return {
        "layouts": str(len(steps)),
        "devices": ", ".join(sorted({str(one["device"]) for one in steps})),
        "gpus": str(gpus[0]) if len(gpus) == 1 else f"{gpus[0]} to {gpus[-1]:,}",
        "source": subject.workload.source,
        "places": "; ".join(places),
    }


def sample(subject: Subject) -> Iterator[Reading | Note]:
    """Return how far off each predictor is: of seconds, of memory, of layouts that fit, of choices."""
    for name, predictor in PREDICTORS.items():
        yield from scores.readings(name, subject.steps, predictor(subject.steps))


def close(subject: Subject) -> None:
    """Do nothing: nothing was allocated."""
