"""What predicts published steps: the model, rules of thumb, and predictions of others that are on file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from suites.step_time import rules
from suites.step_time.pairs import Predictions
from suites.step_time.published import read_lines
from suites.training.step_time.published.steps import PublishedStep
from suites.training.step_time.questions.answers import answers

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
    "forty_percent": rules.forty_percent,
    "guides": rules.guides,
    "calculon": from_file("calculon.jsonl"),
    "llm_analysis": from_file("llm_analysis.jsonl"),
}
"""By the method of their readings."""
