"""Config to cells; pure. A cell's identity is a hash of its resolved config, the code and the host."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness.config.optimizations import BASELINE, BASELINES, Variant, applies, left_out
from harness.config.run import Run
from harness.config.validation import ConfigError
from harness.records import Cell, Group, Sampling, digest

PLAN = "plan.json"

NEVER = "never"
"""Value of a suite's `isolate_if`: all cells of a workload always share one process."""


def no_code(workload: Mapping[str, Any]) -> str:
    """Return "": the workload has no code of its own."""
    return ""


def plan(
    run: Run,
    environment: str,
    code: Callable[[Variant], str],
    gpu: bool = True,
    own_code: Callable[[Mapping[str, Any]], str] = no_code,
) -> list[Group]:
    """Return the cells of `run` in groups: workload by workload, baseline first.

    Reference workloads are planned once, for the baseline, and a variant only where it applies; `gpu`:
    whether the host has one. `environment` is the digest of the host, `code(variant)` the digest of the
    sources that make a variant's readings, `own_code(workload)` that of the user's model code or trace.
    """
    tails = [
        (variant, digest([variant.name, config_of(variant), code(variant), environment]))
        for variant in run.variants
    ]
    groups: list[Group] = []
    for name, workload in run.workloads.items():
        sampling = run.sampling
        if sampling is not None and run.rounds_field:
            sampling = sampling._replace(rounds=int(workload[run.rounds_field]), budget_s=0.0)
        own = [own_code(workload)] if own_code(workload) else []
        head = digest([run.suite, name, workload, *([] if sampling is None else [sampling]), *own])
        config = [{"workload": workload, **config_of(variant)} for variant in run.variants]
        cells = [
            Cell(
                hashlib.sha256(f"{head}{tail}{repeat}/{run.seed}".encode()).hexdigest()[:16],
                run.suite, name, variant.name, variant.module, repeat, run.seed + repeat, config[column],
            )
            for repeat in range(1 if name in run.reference_workloads else run.repeats)
            for column, (variant, tail) in enumerate(tails)
            if repeat < repeats_of(run, variant) and is_planned(run, variant, name, gpu)
        ]  # fmt: skip
        if sampling is not None:
            groups.extend(by_repeat(cells, sampling))
        else:
            alone = run.isolate_if != NEVER and bool(workload.get(run.isolate_if, True))
            groups.extend(split(cells, alone))
    return groups


def is_planned(run: Run, variant: Variant, workload: str, gpu: bool) -> bool:
    """Return whether the variant has cells of that workload on a host with or without a GPU."""
    fields = run.workloads[workload]
    if (workload in run.reference_workloads or fields.get("trace")) and variant.module != BASELINE:
        return False
    if not is_requested(run, variant, workload):
        return False
    if not (applies(run.applies_to, fields, gpu) and applies(variant.applies_to, fields, gpu)):
        return False
    return not _has_nothing_to_compare(run, variant, workload, gpu)


def repeats_of(run: Run, variant: Variant) -> int:
    """Return how many fresh processes a variant gets; a baseline as many as any other variant."""
    if variant.module in BASELINES:
        others = (repeats_of(run, one) for one in run.variants if one.module not in BASELINES)
        return max(others, default=run.repeats)
    return min(run.repeats, variant.repeats or run.repeats)


def is_requested(run: Run, variant: Variant, workload: str) -> bool:
    """Return whether the variant is among those that the run names for the workload, if it names any."""
    named = run.variants_by_workload.get(workload)
    return named is None or variant.module in BASELINES or variant.name in named


def _has_nothing_to_compare(run: Run, variant: Variant, workload: str, gpu: bool) -> bool:
    """Return whether it is an interleaved baseline on a workload to which no chosen variant applies."""
    others = [one for one in run.variants if one.module not in BASELINES]
    if run.sampling is None or not others or variant.module not in BASELINES:
        return False
    if workload in run.reference_workloads or run.workloads[workload].get("trace"):
        return False
    return not any(applies(one.applies_to, run.workloads[workload], gpu) for one in others)


def not_planned(run: Run, gpu: bool) -> list[str]:
    """Return what the plan leaves out of the suite's own workloads, in sentences."""
    pairs = [
        (is_planned(run, variant, name, gpu), is_planned(run, variant, name, True))
        for name in run.workloads
        for variant in run.variants
        if name not in run.reference_workloads and name not in run.slow_bf16_workloads
        if is_requested(run, variant, name)
        if variant.module not in BASELINES or is_planned(run, variant, name, True)
        for _ in range(repeats_of(run, variant))
    ]
    return left_out(pairs)


def config_of(variant: Variant) -> dict[str, Any]:
    """Return what a variant adds to its cells' config: settings, and techniques where it has any."""
    techniques = [[name, dict(settings)] for name, settings in variant.techniques]
    return {"settings": variant.settings} | ({"techniques": techniques} if techniques else {})


def split(cells: Sequence[Cell], alone: bool) -> list[Group]:
    """Return each cell in its own group, or all in one."""
    if alone:
        return [Group((cell,)) for cell in cells]
    return [Group(tuple(cells))] if cells else []


def by_repeat(cells: Sequence[Cell], sampling: Sampling) -> list[Group]:
    """Return one group per repeat, which one child interleaves, the baseline first."""
    repeats = dict.fromkeys(cell.repeat for cell in cells)
    return [
        Group(tuple(cell for cell in cells if cell.repeat == repeat), sampling=sampling) for repeat in repeats
    ]


def write_plan(
    folder: Path,
    suite: str,
    groups: Sequence[Group],
    titles: Mapping[str, str] | None = None,
    left_out: Sequence[str] = (),
) -> None:
    """Write the cells that the last command requested, in order, next to the records; raises OSError.

    `titles` is how reports show each variant; `left_out`: sentences about what was left out.
    """
    cells = tuple(cell.id for group in groups for cell in group.cells)
    write_cells(folder, Plan(suite, cells, dict(titles or {}), tuple(left_out)))


def write_cells(folder: Path, plan: Plan) -> None:
    """Write plan.json; raises OSError."""
    order = {"suite": plan.suite, "titles": plan.titles, "left_out": plan.left_out, "cells": plan.cells}
    new = folder / ".plan.json.new"
    new.write_text(json.dumps(order, indent=0) + "\n")
    new.replace(folder / PLAN)


class Plan(NamedTuple):
    """What plan.json keeps: the suite, its cells' ids in order, each variant's title, what was left out."""

    suite: str
    cells: tuple[str, ...]
    titles: Mapping[str, str] = {}  # of plans before it was kept: none
    left_out: tuple[str, ...] = ()


def read_plan(folder: Path) -> Plan:
    """Return the plan of a results folder; raises ConfigError."""
    path = folder / PLAN
    try:
        order = json.loads(path.read_text())
        titles = {str(name): str(title) for name, title in order.get("titles", {}).items()}
        left_out = tuple(str(sentence) for sentence in order.get("left_out", []))
        return Plan(str(order["suite"]), tuple(str(cell) for cell in order["cells"]), titles, left_out)
    except FileNotFoundError:
        raise ConfigError(f"from_results={folder}: no such results folder (it has no {PLAN})") from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: not a plan: {error}") from None
