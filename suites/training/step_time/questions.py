"""Answers to a file of published steps: seconds with an interval, memory, the fastest layout that fits.

    python -m suites.training.step_time.questions questions=FILE out=FILE

reads and writes one JSON object per line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from suites.training.of_question import published_steps
from suites.training.step_time.prediction import PredictedSteps, interval_of, predicted
from suites.training.step_time.published.typed import Row, typed_step
from suites.training.step_time.rates.constants import StepConstants


def answer(row: Row, constants: StepConstants | None = None) -> dict[str, Any]:
    """Return the prediction for a row; without seconds where the model does not know."""
    try:
        step = typed_step(row)
    except ValueError:
        return {"id": row["id"], "step_s": None}
    steps = published_steps(step, constants)
    found = predicted(steps)
    if step.choose:
        return {"id": row["id"], "index": step.indices[fastest(found)]}
    seconds = float(found.seconds[0])
    interval = interval_of(steps, float(found.filled[0]))
    return {
        "id": row["id"],
        "step_s": seconds,
        "step_s_low": seconds * interval.low,
        "step_s_high": seconds * interval.high,
        "memory_GB": float(found.memory_B[0]) / 1e9,
        "fits": bool(found.fits[0]),
    }


def fastest(steps: PredictedSteps) -> int:
    """Return which layout fits and takes the fewest seconds, or needs the least memory where none fits."""
    if not steps.fits.any():
        return int(np.argmin(steps.memory_B))
    return int(np.argmin(np.where(steps.fits, steps.seconds, np.inf)))


def answers(rows: Sequence[Row], constants: StepConstants | None = None) -> list[dict[str, Any]]:
    """Return a prediction for each row."""
    known = constants or StepConstants.read()
    return [answer(row, known) for row in rows]


def main(words: list[str]) -> None:
    """Answer the questions of a file, a JSON object a line."""
    paths = dict(word.split("=", 1) for word in words)
    lines = Path(paths["questions"]).read_text().splitlines()
    said = answers([json.loads(line) for line in lines if line.strip()])
    Path(paths["out"]).write_text("".join(json.dumps(one) + "\n" for one in said))


if __name__ == "__main__":
    main(sys.argv[1:])
