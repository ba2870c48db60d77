"""Records made by hand for the tests of judge and report: plainly invented, of no machine."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from harness.claims.model import Claim, Interpretation
from harness.config.run import load
from harness.records import Cell, Limits, Measurement, Record

B = "B"


def made(
    workload: str = "small",
    optimization: str = "baseline",
    figures: Mapping[tuple[str, str], tuple[str, str, tuple[float, ...]]] | None = None,
    *,
    status: str = "ok",
    reason: str = "",
    repeat: int = 0,
    conditions: Mapping[str, str] | None = None,
    notes: tuple[str, ...] = (),
    fields: Mapping[str, object] | None = None,
    suite: str = "invented",
) -> Record:
    """Return a record; `figures`: (metric, method) -> (unit, origin, samples)."""
    name = f"{suite}-{workload}-{optimization}-{repeat}"
    cell = Cell(
        id=name,
        suite=suite,
        workload=workload,
        optimization=optimization,
        module=optimization.partition(".")[0],
        repeat=repeat,
        seed=0,
        config={"workload": dict(fields or {}), "settings": {}},
    )
    measurements = tuple(
        Measurement(metric, unit, origin, method, samples)
        for (metric, method), (unit, origin, samples) in (figures or {}).items()
    )
    return Record(
        cell, status, reason, measurements, notes, dict(conditions or {}), "synthetic", Limits(1.0), "", 0.0
    )


def claim(
    value: float = 100.0,
    *,
    relation: str = "about",
    tolerance: float = 0.1,
    unit: str = B,
    divide_by: str = "",
    conditions: Mapping[str, str] | None = None,
    metric: str = "bytes",
    method: str = "way",
    workload: str = "small",
    variant: str = "baseline",
    id: str = "claimed",
    requires: Mapping[str, object] | None = None,
    defaults: Mapping[str, object] | None = None,
    relative_to: str = "",
    upper: float | None = None,
    stat: str = "median",
) -> Claim:
    only = Interpretation(
        name="only", metric=metric, workload=workload, variant=variant, method=method, text="It takes",
        divide_by=divide_by, relative_to=relative_to, stat=stat,
        requires=dict(requires or {}), defaults=dict(defaults or {}),
    )  # fmt: skip
    return Claim(
        id, "invented", "it takes 100 B", "Table 0", value, unit, relation, tolerance, (only,),
        dict(conditions or {}), "nothing", "invented", "derived", upper=upper,
    )  # fmt: skip


ONE_RANK = (
    "baseline",
    "flash_attention",
    "activation_checkpointing.full",
    "mixed_precision.autocast",
    "mixed_flash",
    "mixed_checkpointed",
)
SHARDED = ("fsdp2", "fsdp2_mixed_checkpointed")
SIZES = {"llama_1b": 1.1e9, "llama_7b": 6.7e9, "gpt3_175b": 174.6e9, "gpt_5m": 5e6, "gpt_60m_wide": 6e7}


@cache
def conf_workloads() -> Mapping[str, Mapping[str, object]]:
    """Return the memory suite's own workloads: their fields alone are not invented."""
    return load(["suite=memory"])[0].workloads


def memory_records() -> list[Record]:
    """Return a memory run with every metric that its report asks for; the figures are invented."""
    return [_memory_record(w, p, a) for w, p in SIZES.items() for a in (*ONE_RANK, *SHARDED)]


def _memory_record(workload: str, parameters: float, variant: str) -> Record:
    train = parameters < 1e9
    share = 0.25 if variant in SHARDED else 1.0
    activations_B = parameters * {"baseline": 30, "mixed_precision.autocast": 15}.get(variant, 3)
    kinds = {"parameters": 4 * parameters * share, "gradients": 4 * parameters * share}
    kinds |= {"optimizer_states": 8 * parameters * share, "activations": activations_B}
    kinds |= {"temporaries": 0.01 * activations_B, "communication": 1e6 if share < 1 else 0.0}
    peaks = {"fake_step": sum(kinds.values()), "rule_40x": 40 * parameters, "states_16": 16 * parameters}
    figures: dict[tuple[str, str], tuple[str, str, tuple[float, ...]]] = {}
    figures["parameters", ""] = ("1", "calculated", (parameters,))
    for kind, size_B in kinds.items():
        figures[f"peak_memory/{kind}", "fake_step"] = (B, "simulated", (size_B,))
    for method, peak_B in peaks.items():
        origin = "simulated" if method == "fake_step" else "calculated"
        figures["peak_memory", method] = (B, origin, (peak_B,))
        figures["gpus", method] = ("1", origin, (float(-(-peak_B // 80e9)),))
        if train:
            truth_B = peaks["fake_step"] * (1.0001 if variant == "baseline" else 0.9998)
            figures["peak_memory", "measured"] = (B, "measured", (truth_B, truth_B))
            figures["relative_error", method] = ("1", origin, ((peak_B - truth_B) / truth_B,))
    if not train and variant in SHARDED:
        figures["ranks_needed", "fake_step"] = ("1", "simulated", (float(3 + parameters // 4e9),))
        figures["ranks_needed_power_of_two", "fake_step"] = ("1", "simulated", (64.0,))
    if not train and variant in ONE_RANK[3:]:
        for metric, tokens in (("", parameters / 1e5), ("reserved_", parameters / 2e5)):
            figures[f"{metric}tokens_at_40_B_per_parameter", "fake_step"] = ("1", "simulated", (tokens,))
    conditions = {"device": "cpu" if train else "cuda", "optimizer": "adamw", "precision": "autocast"}
    fields = {**conf_workloads()[workload], "measurable": train}
    if (workload, variant) == ("gpt3_175b", "fsdp2"):
        reason = "no end within 600 s <script>alert('@ink | 1')</script>"
        return made(workload, variant, status="timed_out", reason=reason, fields=fields, suite="memory")
    return made(workload, variant, figures, conditions=conditions, fields=fields, suite="memory")
