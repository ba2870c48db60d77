"""The limits suite: how far can a training run be scaled before moving data limits it? Calculated.

The same formulas first predict steps that others measured on up to 16,384 GPUs; nothing is fitted to them.
Then they search the best layout of ever larger runs, after Erdil and Schneider-Joseph (arXiv 2411.01137) as
far as their model is public.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from harness.records import Json, Origin, Reading, WrongResult
from suites.seconds.formula import (
    StepTime,
    layout_of,
    model_of,
    published_time,
    refuse_binary_units,
    step_time,
    tokens_of,
    utilization,
)
from suites.seconds.search import BestRun, best_run, latency_flop, stacked
from suites.seconds.walls import (
    PER_DECADE,
    QUANTILES,
    Walls,
    chosen,
    computes,
    curves,
    drawn,
    drawn_workloads,
    one_at_a_time,
    rank_correlation,
    walls_of,
)
from suites.seconds.workload import LimitsWorkload
from suites.training.step_time.collectives import Amount


@dataclass(frozen=True, slots=True)
class Subject:
    """A workload with the inputs that a variant gives it, and the seed of its draws."""

    workload: LimitsWorkload
    seed: int
    is_baseline: bool = True  # its walls get a band; those of variants are single values


def changed(subject: Subject, **inputs: Any) -> Subject:
    """Return the variant with other inputs."""
    return replace(subject, workload=replace(subject.workload, **inputs), is_baseline=False)


FINE_PER_DECADE = 4
"""Points of the drawn curve per factor of ten."""


def calculated(metric: str, unit: str, value: Amount, method: str = "") -> Reading:
    """Return a reading of a value that a formula gave."""
    return Reading(metric, unit, float(value), Origin.CALCULATED, method)


def overlap_method(given: LimitsWorkload) -> str:
    """Return the name of the assumption about overlap."""
    return {0.0: "exposed", 1.0: "hidden"}.get(given.overlap, f"overlap {given.overlap:g}")


def published_readings(given: LimitsWorkload) -> Iterator[Reading]:
    """Yield the calculated step next to the published one, its speed-up over the smaller one, its parts."""
    method, time = overlap_method(given), published_time(given)
    step_s = float(time.total_s[0])
    yield calculated("time", "s", step_s, "calculated")
    yield calculated("utilization", "1", utilization(given, step_s), "calculated")
    yield calculated("gpus", "1", given.gpus)
    yield from part_readings(time)
    if given.published_step_s is None:
        return
    theirs_s = given.published_step_s
    yield Reading("sequences", "1", float(given.sequences), Origin.PUBLISHED, "published")
    yield Reading("time", "s", theirs_s, Origin.PUBLISHED, "published")
    yield Reading("utilization", "1", utilization(given, theirs_s), Origin.PUBLISHED, "published")
    in_run = model_of(given).flop(tokens_of(given)) / theirs_s * given.run_s
    yield Reading("training_compute", "1", in_run, Origin.PUBLISHED, "published")
    yield calculated("relative_error", "1", step_s / theirs_s - 1, method)
    yield from scaling_readings(given, step_s, method)


def scaling_readings(given: LimitsWorkload, step_s: float, method: str) -> Iterator[Reading]:
    """Yield sequences per second over those of the same model on fewer GPUs, calculated and published."""
    if given.from_step_s is None or given.from_dp_size is None or given.from_sequences is None:
        return
    assert given.published_step_s is not None
    smaller = replace(given, dp_size=given.from_dp_size, sequences=given.from_sequences)
    smaller_s = float(published_time(smaller).total_s[0])
    more = given.sequences / given.from_sequences
    ours, theirs = more * smaller_s / step_s, more * given.from_step_s / given.published_step_s
    yield calculated("speedup", "1", ours, "calculated")
    yield Reading("speedup", "1", theirs, Origin.PUBLISHED, "published")
    yield calculated("gpu_ratio", "1", given.gpus / smaller.gpus)
    yield calculated("scaling_error", "1", ours / theirs - 1, method)


def part_readings(time: StepTime) -> Iterator[Reading]:
    """Yield the parts of one step, as if nothing hid them."""
    for name in StepTime._fields[:-1]:
        yield calculated(f"part/{name.removesuffix('_s')}", "s", getattr(time, name)[0])


def run_readings(given: LimitsWorkload) -> Iterator[Reading]:
    """Yield the best layout of one run, its utilization, and what it consists of."""
    best = best_run(given, given.training_flop)
    shape = best.shape
    yield calculated("training_compute", "1", shape.training_flop)
    for metric, value in (
        ("utilization", best.utilization),
        ("parameters", shape.parameters),
        ("tokens", shape.tokens),
        ("layers", shape.model.layers),
        ("hidden_size", shape.model.hidden),
        ("steps", shape.steps),
        ("batch_tokens", shape.batch_tokens),
    ):
        yield calculated(metric, "1", value)
    yield calculated("step_budget", "s", shape.step_budget_s(given))
    if best.layout is None or best.time is None:
        return
    yield calculated("time", "s", best.step_s, "calculated")
    yield calculated("run_time", "s", best.step_s * shape.steps)
    yield calculated("gpus", "1", best.gpus)
    for name in ("columns", "rows", "dp", "pp", "ep", "micro_batches", "virtual_stages"):
        yield calculated(f"layout/{name}", "1", getattr(best.layout, name)[0])
    yield from part_readings(best.time)


def curve_readings(subject: Subject) -> Iterator[Reading]:
    """Yield utilization by training compute and the walls; of the baseline also band and sensitivity."""
    given = subject.workload
    flop = computes(FINE_PER_DECADE)
    used = curves(given, 1, flop)
    for one, value in zip(flop, used[0], strict=True):
        if value:
            yield calculated("training_compute", "1", one, "curve")
            yield calculated("utilization", "1", value, "curve")
    walls = walls_of(given, flop, used)
    yield from wall_readings(walls, 0, "")
    yield calculated("latency_wall", "1", latency_flop(given))
    at_wall = best_run(given, float(walls.begins[0]))
    yield calculated("gpus_at_wall", "1", at_wall.gpus)
    if subject.is_baseline:
        yield from band_readings(given, subject.seed)
        yield from sensitivity_readings(given)


def wall_readings(walls: Walls, run: int, method: str) -> Iterator[Reading]:
    """Yield both walls of one run, and its utilization before them."""
    yield calculated("wall_begins", "1", walls.begins[run], method)
    yield calculated("wall_ends", "1", walls.ends[run], method)
    yield calculated("best_utilization", "1", walls.best[run], method)


def band_readings(given: LimitsWorkload, seed: int) -> Iterator[Reading]:
    """Yield quantiles of utilization and walls over draws of all uncertain inputs, and each draw's walls."""
    flop, draws = computes(PER_DECADE), drawn(given.draws, seed)
    stack = stacked(list(drawn_workloads(given, draws)))
    used = curves(stack, given.draws, flop)
    for quantile in QUANTILES:
        for one, value in zip(flop, np.percentile(used, quantile, axis=0), strict=True):
            if value:
                yield calculated("training_compute", "1", one, f"{quantile} %")
                yield calculated("utilization", "1", value, f"{quantile} %")
    walls = walls_of(stack, flop, used)
    for metric, values in (("wall_begins", walls.begins), ("wall_ends", walls.ends)):
        for value in values:
            yield calculated(metric, "1", value, "draws")
        for quantile in QUANTILES:
            yield calculated(metric, "1", np.percentile(values, quantile), f"{quantile} %")
        for quantile in (QUANTILES[0], QUANTILES[-1]):
            yield calculated(metric, "1", np.percentile(values, quantile), "band")
        for name, drawn_values in draws.items():
            yield calculated(f"{metric}/rank_correlation", "1", rank_correlation(drawn_values, values), name)
    yield calculated("draws", "1", given.draws)


def sensitivity_readings(given: LimitsWorkload) -> Iterator[Reading]:
    """Yield the walls at both ends of each input's range."""
    names, *ends = zip(*one_at_a_time(given), strict=True)
    for end, works in zip(("low", "high"), ends, strict=True):
        walls = searched(works)
        for i, name in enumerate(names):
            yield calculated(f"wall_begins/{end}", "1", walls.begins[i], name)
            yield calculated(f"wall_ends/{end}", "1", walls.ends[i], name)


def what_if_readings(given: LimitsWorkload) -> Iterator[Reading]:
    """Yield the walls of each combination of inputs, by a method that names it."""
    methods, works = zip(*chosen(given), strict=True)
    walls = searched(works)
    for i, method in enumerate(methods):
        yield from wall_readings(walls, i, method)


def searched(works: Sequence[LimitsWorkload]) -> Walls:
    """Return the walls of several workloads."""
    flop, stack = computes(PER_DECADE), stacked(works)
    return walls_of(stack, flop, curves(stack, len(works), flop))


ROUNDING = 1e-9
"""Relative rounding of sums."""


def build(workload: Json, seed: int) -> Subject:
    """Return the baseline; raises `Unavailable` for confused units and layouts that do not divide."""
    subject = Subject(LimitsWorkload(**workload), seed)
    refuse_binary_units(subject.workload)
    if subject.workload.kind == "published":
        layout_of(subject.workload)
    return subject


def check(subject: Subject) -> None:
    """Compare with bounds that no layout can pass; raises `WrongResult`."""
    given = subject.workload
    if given.kind == "published":
        _refuse_impossible_step(given)
    elif given.kind == "run":
        _refuse_impossible_run(given, best_run(given, given.training_flop))


def _refuse_impossible_step(given: LimitsWorkload) -> None:
    """Raise `WrongResult` for a step that is shorter than its matmuls, or than its traffic, on all GPUs."""
    step_s = float(published_time(given).total_s[0])
    model = model_of(given)
    least_s = (
        6
        * model.matmul_parameters
        * tokens_of(given)
        / (given.gpus * given.peak_FLOP_per_s * given.efficiency)
    )
    sums_B = 2 * given.gradient_B * model.layers * (model.attention_parameters + model.mlp_parameters)
    replicas = given.dp_size * given.cp_size
    traffic_s = sums_B / 2 / (given.tp_size * given.pp_size) * (1 - 1 / replicas) / given.node_link_B_per_s
    if not np.isfinite(step_s) or step_s < max(least_s, traffic_s) * (1 - ROUNDING):
        raise WrongResult(
            f"a step takes {step_s:.4g} s; no layout takes less than {max(least_s, traffic_s):.4g} s"
        )


def _refuse_impossible_run(given: LimitsWorkload, best: BestRun) -> None:
    """Raise `WrongResult` for a run above the efficiency of its kernels, or beyond what latency allows."""
    if best.utilization > given.efficiency * (1 + ROUNDING):
        raise WrongResult(f"utilization {best.utilization:.4g}; kernels reach {given.efficiency:.4g}")
    if best.layout is None:
        return
    most = latency_flop(given)
    if best.shape.training_flop > most * (1 + ROUNDING):
        raise WrongResult(f"{best.shape.training_flop:.4g} FLOP finish in time; latency allows {most:.4g}")
    again = step_time(given, best.shape.model, best.layout, best.shape.batch_tokens).total_s
    if not np.allclose(again, best.step_s, rtol=ROUNDING) or best.step_s > best.shape.step_budget_s(given):
        raise WrongResult(
            f"the best layout takes {float(again[0]):.6g} s per step, not {best.step_s:.6g} s in time"
        )


def conditions(subject: Subject) -> Mapping[str, str]:
    """Return the conditions that a claim may name, and what the values assume."""
    given = subject.workload
    shown = {
        "device": "cuda",
        "device_name": given.device_name,
        "kind": given.kind,
        "overlap": f"{given.overlap:g}",
        "source": given.source,
    }
    if given.kind == "published":
        layout = {
            "TP": given.tp_size,
            "PP": given.pp_size,
            "CP": given.cp_size,
            "DP": given.dp_size,
            "stages per rank": given.virtual_stages,
        }
        return {**shown, "layout": ", ".join(f"{name} {size}" for name, size in layout.items() if size > 1)}
    return {**shown, "run": f"{given.run_s / 86400:.0f} days"}


def sample(subject: Subject) -> Iterator[Reading]:
    """Calculate a published step, a run, the walls, or the walls for combinations of inputs."""
    given = subject.workload
    if given.kind == "published":
        yield from published_readings(given)
    elif given.kind == "run":
        yield from run_readings(given)
    elif given.kind == "curve":
        yield from curve_readings(subject)
    else:
        yield from what_if_readings(given)
