"""90 % intervals of predicted seconds by kind of question, from residuals where such steps were fitted."""

from __future__ import annotations

from typing import NamedTuple

from suites.training.step_time.questions.reader import AskedStep
from suites.training.step_time.rates.constants import intervals
from suites.training.step_time.whole_step.seconds import ddp_in_pipeline

NEAR_THE_LIMIT = 0.8
"""Share of what the allocator can have above which it may have to free its cache."""

SMALL_BATCH = 2
"""Micro-batches per rank and step up to which what happens once per step outweighs the rest."""


class StepInterval(NamedTuple):
    """Ends of a 90 % interval over the predicted seconds, and what they rest on."""

    kind: str
    low: float
    high: float
    fitted: bool  # steps of the kind were fitted

    def words(self) -> str:
        """Return what the interval rests on."""
        if self.fitted:
            return f"the residuals of published steps of the kind “{self.kind}”"
        return f"set by hand: no published step of the kind “{self.kind}” was fitted"


def interval_of(asked: AskedStep, filled: float, index: int = 0) -> StepInterval:
    """Return the interval of one of a question's layouts, of which memory is filled by so much."""
    kind = kind_of(asked, filled, index)
    entry = intervals()[kind]
    return StepInterval(kind, float(entry["low"]), float(entry["high"]), "in_sample" in entry)


def kind_of(asked: AskedStep, filled: float, index: int = 0) -> str:
    """Return which kind a question is of."""
    setting, program = asked.setting, asked.setting.training.program
    if setting.training.attention == "unfused":
        return "explicit attention"
    if setting.shape.num_experts:
        return "mixture of experts"
    if setting.adapters_alone:
        return "adapters"
    if program == "nanotron":
        return _kind_of_nanotron(asked, filled, index)
    if program == "composer":
        return "composer on A100" if setting.gpu.architecture == "ampere" else "composer"
    if program == "megatron":
        return _kind_of_megatron(asked)
    return "other"


def _kind_of_nanotron(asked: AskedStep, filled: float, index: int) -> str:
    layout = asked.layouts.only([index])  # type: ignore[arg-type]
    node = asked.setting.cluster.node_size
    spans = bool(layout.gpus[0] > node)
    if layout.tp[0] > node:
        return "nanotron, tensor parallelism across nodes"
    if ddp_in_pipeline(asked.setting, layout)[0]:
        return "nanotron, whole gradients in a pipeline across nodes"
    if filled > NEAR_THE_LIMIT:
        return "nanotron, near the limit of memory"
    few = layout.micro_batches[0] <= SMALL_BATCH
    return "nanotron, small in many nodes" if spans and few else "nanotron"


def _kind_of_megatron(asked: AskedStep) -> str:
    precision, architecture = asked.setting.precision, asked.setting.gpu.architecture
    if precision == "nvfp4":
        return "megatron in NVFP4"
    if precision in ("fp8", "mxfp8"):
        return f"megatron in FP8 on {'Blackwell' if architecture == 'blackwell' else 'H100'}"
    return "megatron"
