"""Predict published steps with constants that were fitted without them.

    python -m suites.published.leave_out

writes left_out.jsonl of this folder, in a quarter of an hour.

Steps are left out in groups: of NeMo, Megatron Bridge and MLPerf a source at a time, of LLM Foundry a third
of the models, of the playbook a fifth of the tensor and pipeline parallelism that was tried. The constants
that were fitted to whole steps of the kind are then fitted anew to the other groups, by a search that begins
15 % off the ones in use, for the playbook 3 %. Constants of kernels and links stay, as no step was used.
dgxc-benchmarking's steps, to which nothing was fitted, are predicted without NeMo's, which are the most like
them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from suites.published.step_time import FOLDER
from suites.training.layouts.layout import Layouts
from suites.training.step_time.constants import StepConstants, entries, fitted_to_whole_steps
from suites.training.step_time.prediction import PlannedSteps, predicted
from suites.training.step_time.published.rows import PublishedRun, question
from suites.training.step_time.published.steps import published
from suites.training.step_time.questions import answers, steps_of_rows

Values = NDArray[np.float64]

FIFTHS = 5
THIRDS = 3


class Family(NamedTuple):
    """Steps that share constants, and by what they are left out."""

    words: tuple[str, ...]  # what `fitted_to` of its constants names, one of them
    group: Callable[[PublishedRun], str]
    evaluations: int  # of the search per group
    start: float  # times the constants in use, or their inverse, by turns: where the search begins


def _fifth(step: PublishedRun) -> str:
    every = sorted({(one.gpus, one.tp or 1, one.pp or 1) for one in published() if _of(one, "playbook")})
    return str(every.index((step.gpus, step.tp or 1, step.pp or 1)) % FIFTHS)


def _third(step: PublishedRun) -> str:
    every = sorted({one.model for one in published() if _of(one, "llm-foundry")})
    return str(every.index(step.model) % THIRDS)


def _of(step: PublishedRun, *sources: str) -> bool:
    return step.source.startswith(sources)


FAMILIES: Mapping[str, Family] = {
    "megatron": Family(("megatron-bridge", "nemo", "mlperf"), lambda step: step.source, 100, 1.15),
    "playbook": Family(("playbook",), _fifth, 700, 1.03),
    "llm-foundry": Family(("llm-foundry",), _third, 100, 1.15),
}


ALIKE: Mapping[str, str] = {"dgxc-benchmarking": "nemo 24.07 (first)"}
"""Sources to which nothing was fitted, and the group whose steps are the most like theirs."""


def constants_of(family: Family) -> list[str]:
    """Return the names of the constants that were fitted to steps of a family."""
    named = ((name, str(entries()[name]["fitted_to"])) for name in fitted_to_whole_steps())
    return [name for name, text in named if any(word in text for word in family.words)]


class StepBatch(NamedTuple):
    """Steps of one setting, whose layouts are predicted at once."""

    steps: PlannedSteps
    seconds: Values  # published


def batches_of(steps: Sequence[PublishedRun]) -> list[StepBatch]:
    """Return steps by setting; raises ValueError for one that the model does not know."""
    found: list[StepBatch] = []
    for one in steps:
        own = steps_of_rows([question(one)])
        seconds = np.array([one.step_s])
        same = [at for at, other in enumerate(found) if _alike(other.steps, own)]
        if same:
            found[same[0]] = _together(found[same[0]], own, seconds)
        else:
            found.append(StepBatch(own, seconds))
    return found


def _alike(one: PlannedSteps, other: PlannedSteps) -> bool:
    return (one.setting, one.recompute_known) == (other.setting, other.recompute_known)


def _together(batch: StepBatch, steps: PlannedSteps, seconds: Values) -> StepBatch:
    pairs = zip(batch.steps.layouts, steps.layouts, strict=True)
    layouts = Layouts(*(np.concatenate(each) for each in pairs))
    batches = np.concatenate([batch.steps.batches, steps.batches])
    both = batch.steps._replace(layouts=layouts, batches=batches)
    return StepBatch(both, np.concatenate([batch.seconds, seconds]))


def error(batches: Sequence[StepBatch], constants: StepConstants) -> float:
    """Return the mean size of the logarithm of predicted over published seconds."""
    found = []
    for one in batches:
        setting = replace(one.steps.setting, constants=constants)
        ours = predicted(one.steps._replace(setting=setting)).seconds
        found.append(np.abs(np.log(ours / one.seconds)))
    return float(np.mean(np.concatenate(found)))


def fitted_to(batches: Sequence[StepBatch], names: Sequence[str], family: Family) -> StepConstants:
    """Return the constants, those of `names` fitted to some steps, from a start that is off."""
    used = StepConstants.read()
    start = np.array([used[name] for name in names])

    def with_(scale: Values) -> StepConstants:
        return StepConstants.read(**dict(zip(names, (start * np.exp(scale)).tolist(), strict=True)))

    begin = np.log(family.start) * (1 - 2 * (np.arange(len(names)) % 2))
    options = {"maxfev": family.evaluations, "ftol": 1e-4, "xtol": 1e-3}
    found = minimize(lambda scale: error(batches, with_(scale)), begin, method="Powell", options=options)
    return with_(found.x)


def left_out(family: Family) -> list[dict[str, Any]]:
    """Return the predictions for a family's steps, each with constants fitted without its group."""
    steps = [one for one in published() if one.step_s and _of(one, *family.words)]
    names = constants_of(family)
    said: list[dict[str, Any]] = []
    for group in sorted({family.group(one) for one in steps}):
        fitting = batches_of([one for one in steps if family.group(one) != group])
        constants = fitted_to(fitting, names, family)
        own = [one for one in steps if family.group(one) == group]
        own += [one for one in published() if one.step_s and ALIKE.get(one.source) == group]
        of_group = answers([question(one) for one in own], constants)
        said += [
            {"id": one["id"], "step_s": float(f"{one['step_s']:.5g}"), "group": group} for one in of_group
        ]
        off, rest = error(batches_of(own), constants), error(fitting, constants)
        sys.stderr.write(f"{group}: {len(own)} steps, {off:.1%} off; fitted {rest:.1%}\n")
    return said


def main() -> None:
    """Write the predictions, after a line that says how they were made."""
    how = {"how": (__doc__ or "").split("\n\n")[3].strip().replace("\n", " ")}
    said: list[dict[str, Any]] = [how]
    for family in FAMILIES.values():
        said += left_out(family)
        (FOLDER / "left_out.jsonl").write_text("".join(json.dumps(one) + "\n" for one in said))


if __name__ == "__main__":
    main()
