"""The step_time suite: does the model predict seconds of training steps that others published?

Each workload is one or several sources of published steps. What the model, rules and other programs predict
for them is compared with what was published. Nothing is timed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harness.records import Json, Note, Reading
from suites.step_time import scores
from suites.step_time.predictors import PREDICTORS
from suites.step_time.published import Subject, Workload, conditions_of, steps_of


def build(workload: Json, seed: int) -> Subject:
    """Return the published steps of the workload's sources."""
    given = Workload(**workload)
    return Subject(given, steps_of(given.sources))


def check(subject: Subject) -> None:
    """Do nothing: what is compared are predictions, and tests compare the model with its parts."""


def conditions(subject: Subject) -> Mapping[str, str]:
    """Return how many steps were published, of which GPUs, and where."""
    return conditions_of(subject)


def sample(subject: Subject) -> Iterator[Reading | Note]:
    """Return how far off each predictor is: of seconds, of memory, of layouts that fit, of choices."""
    for name, predictor in PREDICTORS.items():
        yield from scores.readings(name, subject.steps, predictor(subject.steps))


def close(subject: Subject) -> None:
    """Do nothing: nothing was allocated."""
