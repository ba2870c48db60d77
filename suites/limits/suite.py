"""The limits suite: how far can a training run be scaled before moving data limits it? Calculated.

The same formulas first predict steps that others measured on up to 16,384 GPUs; nothing is fitted to them.
Then they search the best layout of ever larger runs, after Erdil and Schneider-Joseph (arXiv 2411.01137) as
far as their model is public.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from harness.records import Json, Reading, WrongResult
from suites.limits.formula import (
    layout_of,
    model_of,
    published_time,
    refuse_binary_units,
    step_time,
    tokens_of,
)
from suites.limits.readings import (
    Subject,
    curve_readings,
    published_readings,
    run_readings,
    what_if_readings,
)
from suites.limits.search import BestRun, best_run, latency_flop
from suites.limits.workload import Workload

ROUNDING = 1e-9
"""Relative rounding of sums."""


def build(workload: Json, seed: int) -> Subject:
    """Return the baseline; raises `Unavailable` for confused units and layouts that do not divide."""
    subject = Subject(Workload(**workload), seed)
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


def _refuse_impossible_step(given: Workload) -> None:
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


def _refuse_impossible_run(given: Workload, best: BestRun) -> None:
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
