"""What the pages state of an H100 is what its records have, and its trace is read as its events say."""

from __future__ import annotations

import csv
import gzip
import json
from collections import defaultdict
from functools import cache

import pytest

from harness.config.code_fingerprint import ROOT
from harness.instruments.traces.breakdown import breakdown
from harness.instruments.traces.kineto import read_traces
from harness.instruments.traces.segments import State
from harness.sweep.store import read_records

REFERENCE = ROOT / "results/reference"
STEP, LARGE, SMALL = "step_300m_2k_gpu", "attention_causal_128_4k_gpu", "attention_causal_64_4k_gpu"
SHORT = "attention_causal_128_2k_gpu"
ROWS = {
    "torch.compile": "torch_compile",
    "flash attention (SDPA)": "sdpa",
    "our Triton kernels": "triton",
    "liger-kernel": "liger",
    "fused AdamW": "fused_optimizer",
    "autocast, bf16": "autocast_bf16",
    "autocast + SDPA": "autocast_sdpa",
    "compile + SDPA + autocast": "compile_sdpa_autocast",
}


@cache
def words(page: str) -> str:
    return " ".join((ROOT / "docs/suites" / page).read_text().split())


@cache
def effects() -> dict[tuple[str, str], dict[str, float]]:
    """Return the values of each workload and variant: medians over all processes, and their ratio."""
    names = ("ratio", "low", "high", "value", "baseline_value")
    with (REFERENCE / "kernels_h100/effects.csv").open() as file:
        return {
            (one["workload"], one["variant"]): {name: float(one[name]) for name in names}
            for one in csv.DictReader(file)
            if (one["metric"], one["method"]) == ("time", "warm")
        }


def speed_up(workload: str, variant: str, large_digits: int = 2) -> str:
    """Return the speed-up and its interval, "" where it was not measured; of large ones fewer decimals."""
    if (workload, variant) not in effects():
        return ""
    one = effects()[workload, variant]
    digits = large_digits if one["ratio"] < 0.2 else 2
    ends = f"({1 / one['high']:.{digits}f} … {1 / one['low']:.{digits}f})"
    return f"{1 / one['ratio']:.{digits}f}× {ends}"


def test_the_speed_ups_are_those_of_the_run() -> None:
    page = words("kernels.md")
    for title, variant in ROWS.items():
        cells = [speed_up(STEP, variant), *(speed_up(one, variant, 1) for one in (LARGE, SMALL))]
        assert " ".join(f"| {title} | {' | '.join(cells)} |".split()) in page
    assert f"SDPA gains {speed_up(SHORT, 'sdpa', 1)}" in page
    assert f"our Triton kernels {speed_up(SHORT, 'triton', 1)}" in page


def test_the_rates_of_attention_are_those_of_the_run() -> None:
    """FLOPs by formula over the median time of all processes."""
    flops = {
        record.cell.workload: one.samples[0]
        for record in read_records(REFERENCE / "kernels_h100")
        for one in record.measurements
        if one.metric == "flops"
    }

    def rate(workload: str, variant: str, side: str = "value") -> float:
        return flops[workload] / effects()[workload, variant][side] / 1e12

    page = words("kernels.md").replace(" %", "%")
    assert f"{rate(SHORT, 'triton') / rate(SHORT, 'sdpa'):.0%} of SDPA's rate" in page
    triton = [rate(one, "triton") for one in (LARGE, SMALL)]
    shares = [rate(one, "triton") / rate(one, "sdpa") for one in (LARGE, SMALL)]
    assert f"SDPA reaches {rate(LARGE, 'sdpa'):.0f} TFLOP/s" in page
    assert f"our explicit attention {rate(LARGE, 'sdpa', 'baseline_value'):.0f}," in page
    assert f"reaches {triton[0]:.0f} and {triton[1]:.0f} TFLOP/s" in page
    assert f"{shares[0]:.0%} and {shares[1]:.0%}" in page


def signed(percent: float) -> str:
    text = f"{percent:+.2f}".replace("-", "−")
    return "0.00" if text in ("+0.00", "−0.00") else text


def test_the_errors_of_the_simulated_allocator_are_those_of_the_runs() -> None:
    """And tensors alone are below what CUDA counts."""

    def recorded(folder: str) -> dict[tuple[str, str], dict[tuple[str, str], float]]:
        return {
            (record.cell.workload, record.cell.optimization): {
                (one.metric, one.method): max(one.samples) for one in record.measurements
            }
            for record in read_records(REFERENCE / folder)
        }

    measured = recorded("memory_h100") | recorded("memory_h200")
    simulated = recorded("memory_h100_dry_runs") | recorded("memory_h200")
    off = defaultdict[str, list[tuple[float, ...]]](list)
    llama_7b = {}
    for cell, there in measured.items():
        if ("peak_memory", "measured") in there:
            here, peak_B = simulated[cell], there["peak_memory", "measured"]
            reserved_B = there["reserved_memory", "measured"]
            blocks = 100 * (here["allocated_memory", "fake_step"] / peak_B - 1)
            reserved = 100 * (here["reserved_memory", "fake_step"] / reserved_B - 1)
            tensors = 100 * (1 - here["peak_memory", "fake_step"] / peak_B)
            off[cell[0]].append((peak_B / 1e6, blocks, reserved, tensors))
            if cell[0] == "llama_7b":
                llama_7b[cell[1]] = peak_B / 1e9, blocks, reserved_B / 1e9, reserved
    page = words("memory.md")
    for title, workload in (
        ("Llama 12M", "llama_12m"),
        ("GPT 5M", "gpt_5m"),
        ("GPT 25M, SGD", "gpt_25m_sgd"),
        ("7B (Llama-2), on an H200", "llama_7b"),
    ):
        sizes, blocks, reserved, _ = zip(*off[workload], strict=True)
        cells = [str(len(sizes)), f"{min(sizes):,.0f} … {max(sizes):,.0f}"]
        cells += [f"{signed(min(one))} … {signed(max(one))} %" for one in (blocks, reserved)]
        assert f"| {title} | {' | '.join(cells)} |" in page
    for title, variant in (
        ("one rank, full checkpointing", "mixed_checkpointed"),
        ("FSDP2 over 4, full checkpointing", "fsdp2_mixed_checkpointed"),
        ("FSDP2 over 4", "fsdp2_mixed_flash"),
        ("tensor parallel over 8, full checkpointing", "tensor_parallel_mixed_checkpointed"),
    ):
        peak, blocks, reserved, of_reserved = llama_7b[variant]
        cells = [f"{peak:.2f}", f"{signed(blocks)} %", f"{reserved:.2f}", f"{signed(of_reserved)} %"]
        assert f"| {title} | {' | '.join(cells)} |" in page
    every = [one for workload, found in off.items() if workload != "llama_7b" for one in found]
    assert f"up to {max(tensors for *_, tensors in every):.1f} % below it" in page
    within = sum(abs(blocks) < 0.15 for _, blocks, _, _ in every)
    assert f"{within} of the {len(every)} are within 0.15 %" in page
    assert f"reserved bytes are the same in {sum(one[2] == 0 for one in every)}" in page


def test_the_time_of_kernels_in_its_trace_is_that_of_their_union() -> None:
    """Counted from the file's own events, to the microsecond; the shares sum to the step."""
    path = REFERENCE / "traces/h100_two_steps.json.gz"
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    kernels = sorted((one["ts"], one["ts"] + one["dur"]) for one in events if one.get("cat") == "kernel")
    union_us, end_us = 0.0, 0.0
    for begin, end in kernels:
        union_us += max(0.0, end - max(begin, end_us))
        end_us = max(end_us, end)
    found = breakdown(read_traces(path))
    computing_ns = sum(sum(one.by_step_ns) for one in found.shares if one.state is State.COMPUTING)
    assert computing_ns / 1e3 == pytest.approx(union_us, abs=1.0)
    every_ns = sum(sum(one.by_step_ns) for one in found.shares)
    assert every_ns / 1e9 / 2 == pytest.approx(found.step_s)
    assert any("cudnn" in one["name"] for one in events if one.get("cat") == "kernel")
