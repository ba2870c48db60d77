"""Predicted seconds and memory of layouts in one setting, with 90 % intervals by kind of step."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suites.training.layouts.account import worst_peak
from suites.training.layouts.chance import (
    EIGHT_RANKS,
    QUANTILES,
    REPLAYED,
    PeakError,
    chance_to_run,
    chance_without_retries,
    errors_of,
    spared,
)
from suites.training.layouts.layout import Floats, Layouts
from suites.training.layouts.room import room_B
from suites.training.layouts.search import needed_B
from suites.training.step_time.constants import intervals
from suites.training.step_time.seconds import StepSeconds, ddp_in_pipeline, step_s
from suites.training.step_time.setting import StepSetting

NEAR_THE_LIMIT = 0.8
"""Share of what the allocator can have above which it may have to free its cache."""

SMALL_BATCH = 2
"""Micro-batches per rank and step up to which what happens once per step outweighs the rest."""


class PlannedSteps(NamedTuple):
    """Layouts to predict in one setting."""

    setting: StepSetting
    layouts: Layouts
    batches: Floats  # steps of a layout that make the batch
    recompute_known: bool = True  # else nothing was published of it
    error: PeakError = REPLAYED  # of their bytes


class PredictedSteps(NamedTuple):
    """What the model predicts for layouts, as arrays."""

    seconds: Floats  # for the batch, retries of the allocator included
    parts: StepSeconds
    memory_B: Floats
    filled: Floats  # of what the allocator can have
    fits: NDArray[np.bool_]
    chance: Floats  # to run
    rate: Floats  # batches per second that are to be expected: none where it does not run


def planned(
    setting: StepSetting, layouts: Layouts, batch: int | None, error: PeakError = REPLAYED
) -> PlannedSteps:
    """Return layouts to predict; a batch of so many sequences may take several steps."""
    of_step = layouts.dp * layouts.micro_batch_size * layouts.micro_batches
    batches = np.ones(len(of_step)) if batch is None else batch / of_step
    return PlannedSteps(setting, layouts, batches, error=error)


def memory_B(setting: StepSetting, layouts: Layouts) -> Floats:
    """Return the peak bytes per GPU, of the pipeline rank that needs the most."""
    architecture: Any = setting.gpu.architecture
    peak: Floats = worst_peak(setting.shape, layouts, setting.training, architecture).total_B
    return peak


def predicted(steps: PlannedSteps) -> PredictedSteps:
    """Return the seconds and the memory of layouts.

    Where nothing was published of recompute, a layout fits if full recompute makes it. Seconds are with it
    then, but for Megatron's recipes, which may recompute part of the layers or keep activations on the host.
    """
    setting, layouts = steps.setting, steps.layouts
    used_B = memory_B(setting, layouts)
    room = room_B(layouts, setting.gpu.usable_memory_B)
    least_B = used_B
    if not steps.recompute_known:
        again, least_B = _recomputed_to_fit(setting, layouts, used_B)
        if setting.training.program != "megatron":
            layouts, used_B = again, least_B
    filled = used_B / room
    parts = step_s(setting, layouts)
    seconds = parts.total + allocator_retries_s(setting, layouts, filled)
    possible = accepted(setting, layouts)
    fits = (least_B / room < setting.constants["allocator.fits_below"]) & possible
    needed = needed_B(least_B, setting.training) / room
    chance, rate = expected(steps._replace(layouts=layouts), parts.total, needed)
    return PredictedSteps(
        seconds * steps.batches,
        parts,
        used_B,
        filled,
        fits,
        chance * possible,
        rate * possible / steps.batches,
    )


RETRIES_COST = 1.05
"""How many times as long a step takes whose allocator retries, where nobody published it: chosen."""


def expected(steps: PlannedSteps, step_s: Floats, needed: Floats) -> tuple[Floats, Floats]:
    """Return the chance that layouts run, and the steps per second to expect; none of one that does not.

    `needed`: likely bytes, with fragmentation, over the room. nanotron's rate is the mean over the error of
    its memory, since a full one makes steps many times as long.
    """
    setting, layouts, program = steps.setting, steps.layouts, steps.setting.training.program
    chance = chance_to_run(program, layouts, needed, steps.error)
    if program != "nanotron":
        smooth = chance_without_retries(program, layouts, needed, steps.error)
        return chance, (smooth + (chance - smooth) / RETRIES_COST) / step_s
    errors = errors_of(program, layouts)
    rate = np.zeros_like(step_s)
    for each in QUANTILES:
        full = needed * np.exp(errors.at(each))
        rate += (full <= 1) / (step_s + retries_s(setting, layouts, full))
    return chance, spared(program, layouts) * rate / len(QUANTILES)


def _recomputed_to_fit(setting: StepSetting, layouts: Layouts, used_B: Floats) -> tuple[Layouts, Floats]:
    """Return layouts with full recompute where nothing was published of it and nothing else fits."""
    limit_B = room_B(layouts, setting.gpu.usable_memory_B) * setting.constants["allocator.fits_below"]
    again = layouts._replace(recompute=np.where(used_B > limit_B, 2, layouts.recompute))
    return again, np.where(used_B > limit_B, memory_B(setting, again), used_B)


def allocator_retries_s(setting: StepSetting, layouts: Layouts, filled: Floats) -> Floats:
    """Return the seconds in which the allocator frees its cache and allocates anew, near the limit of memory.

    Each micro-batch pays once. Only nanotron's runs near the limit are published.
    """
    if setting.training.program != "nanotron":
        return np.zeros_like(filled)
    bias = np.where(layouts.tp >= 8, np.exp(EIGHT_RANKS.mean), 1.0)
    return retries_s(setting, layouts, filled * bias)


def retries_s(setting: StepSetting, layouts: Layouts, filled: Floats) -> Floats:
    """Return the seconds that nanotron's allocator takes to free its cache, by what is truly filled."""
    cal = setting.constants
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


COMPARED_CHIPS = ("a100", "a800", "h100", "h800", "b200", "gb200", "gb300")
"""Chips on which predicted steps were compared with published ones, by which constants were fitted."""


class StepInterval(NamedTuple):
    """Ends of a 90 % interval over the predicted seconds, and what they rest on."""

    kind: str
    low: float
    high: float
    fitted: bool  # steps of the kind were fitted
    constants: str = ""  # that steps of the kind were fitted to, where ends are set all the same

    def words(self) -> str:
        """Return what the interval rests on."""
        if self.fitted:
            return f"the residuals of published steps of the kind “{self.kind}”"
        if self.constants:
            return f"set by hand; published steps of the kind “{self.kind}” gave {self.constants}"
        return f"set by hand: no published step of the kind “{self.kind}” was fitted"


ANOTHER_DEVICE = "another device"


class AsRun(NamedTuple):
    """How public runs of a kind, asked as a user asks, came out: published over predicted seconds.

    Runs of other kinds count with a kind's own, see suites/published/ends.py.
    """

    low: float  # 90 % are between the ends
    likely: float
    high: float
    n: int  # runs of the kind itself
    sources: int

    @property
    def of(self) -> str:
        """Return what it rests on, in words."""
        if self.n < FEWEST_RUNS or self.sources < FEWEST_SOURCES:
            return f"public runs of other kinds, since only {self.n} of {self.sources} sources are of its own"
        return f"{self.n} public runs of {self.sources} sources, and less by those of other kinds"


FEWEST_RUNS, FEWEST_SOURCES = 10, 3
"""Runs and sources below which a kind's own do not decide."""


TUNED = "tuned submission"
"""Kind of runs that come out as tuned."""

HYBRID, SERVED = "hybrid", "answers served by an engine"
"""Kinds of runs, and of steps, that nothing was fitted to."""


def run_kind(setting: StepSetting) -> str:
    """Return the kind of a run, by whose code trains what."""
    if setting.run.tuned:
        return TUNED
    if setting.run.rollout == "vllm":
        return SERVED
    if setting.shape.mixer:
        return HYBRID
    megatron, eager = setting.training.program == "megatron", setting.run.eager
    name = "Megatron" if megatron else "transformers" if eager else "sharded states"
    if setting.run.adapters_alone:
        return f"{name} with adapters"
    if eager and not megatron:
        return name
    if setting.shape.num_experts:
        return f"{name} with experts"
    return f"{name} in 8 bits" if setting.precision != "bf16" else name


def as_run(kind: str) -> AsRun | None:
    """Return how runs of a kind came out; None of tuned submissions and where nothing is known."""
    entry = intervals("as_run").get(kind)
    return None if entry is None else AsRun(*(entry[name] for name in AsRun._fields))


def interval_of(steps: PlannedSteps, filled: float, index: int = 0) -> StepInterval:
    """Return the interval of one of the layouts, of which memory is filled by so much."""
    kind = kind_of(steps, filled, index)
    entry, other = intervals()[kind], intervals()[ANOTHER_DEVICE]
    low, high, fitted = float(entry["low"]), float(entry["high"]), "in_sample" in entry
    if steps.setting.gpu.name.split("_")[0] in COMPARED_CHIPS:
        return StepInterval(kind, low, high, fitted, entry.get("fitted", ""))
    return StepInterval(ANOTHER_DEVICE, min(low, other["low"]), max(high, other["high"]), fitted=False)


def kind_of(steps: PlannedSteps, filled: float, index: int = 0) -> str:
    """Return which kind of steps a layout is of."""
    setting, program = steps.setting, steps.setting.training.program
    if setting.run.rollout == "vllm":
        return SERVED
    if setting.shape.mixer:
        return HYBRID
    if setting.training.attention == "unfused":
        return "explicit attention"
    if setting.shape.num_experts:
        return "mixture of experts"
    if setting.run.adapters_alone:
        return "adapters"
    if program == "nanotron":
        return _kind_of_nanotron(steps, filled, index)
    if program == "composer":
        return "composer on A100" if setting.gpu.architecture == "ampere" else "composer"
    if program == "megatron":
        return _kind_of_megatron(steps)
    return "other"


def _kind_of_nanotron(steps: PlannedSteps, filled: float, index: int) -> str:
    layout = steps.layouts.only([index])  # type: ignore[arg-type]
    node = steps.setting.cluster.node_size
    spans = bool(layout.gpus[0] > node)
    if layout.tp[0] > node:
        return "nanotron, tensor parallelism across nodes"
    if ddp_in_pipeline(steps.setting, layout)[0]:
        return "nanotron, whole gradients in a pipeline across nodes"
    if filled > NEAR_THE_LIMIT:
        return "nanotron, near the limit of memory"
    few = layout.micro_batches[0] <= SMALL_BATCH
    return "nanotron, small in many nodes" if spans and few else "nanotron"


def _kind_of_megatron(steps: PlannedSteps) -> str:
    precision, architecture = steps.setting.precision, steps.setting.gpu.architecture
    if precision == "nvfp4":
        return "megatron in NVFP4"
    if precision in ("fp8", "mxfp8"):
        return f"megatron in FP8 on {'Blackwell' if architecture == 'blackwell' else 'H100'}"
    return "megatron"
