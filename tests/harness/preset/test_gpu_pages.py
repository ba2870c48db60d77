"""What the pages state of an H100 is what its records have, and its trace is read as its events say."""

from __future__ import annotations

import csv
import gzip
import json
from collections import defaultdict

import pytest

from harness.config.code_fingerprint import ROOT
from harness.instruments.traces.breakdown import breakdown
from harness.instruments.traces.kineto import read_traces
from harness.instruments.traces.segments import State
from harness.sweep.store import read_records

REFERENCE = ROOT / "results/reference"
STEP, ATTENTION_128, ATTENTION_64 = (
    "step_300m_2k_gpu",
    "attention_causal_128_4k_gpu",
    "attention_causal_64_4k_gpu",
)
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


def words(page: str) -> str:
    return " ".join((ROOT / "docs" / page).read_text().split())


def speed_up(ratio: float, low: float, high: float, digits: int) -> str:
    """Return the speed-up and its interval, of ratios of times, with so many decimals."""
    return f"{1 / ratio:.{digits}f}× ({1 / high:.{digits}f} … {1 / low:.{digits}f})"


def test_the_speed_ups_are_those_of_the_run() -> None:
    with (REFERENCE / "kernels_h100/effects.csv").open() as file:
        effects = {
            (one["workload"], one["variant"]): (float(one["ratio"]), float(one["low"]), float(one["high"]))
            for one in csv.DictReader(file)
            if one["metric"] == "time" and one["method"] == "warm"
        }
    page = words("suites/kernels.md")
    for title, variant in ROWS.items():
        cells = [speed_up(*effects[STEP, variant], digits=2)]
        for workload in (ATTENTION_128, ATTENTION_64):
            effect = effects.get((workload, variant))
            large = effect is not None and effect[0] < 0.2
            cells.append("" if effect is None else speed_up(*effect, digits=1 if large else 2))
        row = " ".join(f"| {title} | {' | '.join(cells)} |".split())
        assert row in page
    short = "attention_causal_128_2k_gpu"
    assert f"SDPA gains {speed_up(*effects[short, 'sdpa'], digits=1)}" in page
    assert f"our Triton kernels {speed_up(*effects[short, 'triton'], digits=1)}" in page


def test_the_rates_of_attention_are_those_of_the_run() -> None:
    """FLOPs by formula over the median time of all processes."""
    with (REFERENCE / "kernels_h100/effects.csv").open() as file:
        seconds = {
            (one["workload"], one["variant"]): (float(one["value"]), float(one["baseline_value"]))
            for one in csv.DictReader(file)
            if one["metric"] == "time" and one["method"] == "warm"
        }
    flops = {
        record.cell.workload: one.samples[0]
        for record in read_records(REFERENCE / "kernels_h100")
        for one in record.measurements
        if one.metric == "flops"
    }

    def rate(workload: str, variant: str, side: int = 0) -> float:
        return flops[workload] / seconds[workload, variant][side] / 1e12

    page = words("suites/kernels.md")
    short = "attention_causal_128_2k_gpu"
    assert f"{rate(short, 'triton') / rate(short, 'sdpa'):.0%} of SDPA's rate".replace("%", " %") in page
    triton = [rate(one, "triton") for one in (ATTENTION_128, ATTENTION_64)]
    shares = [rate(one, "triton") / rate(one, "sdpa") for one in (ATTENTION_128, ATTENTION_64)]
    assert f"SDPA reaches {rate(ATTENTION_128, 'sdpa'):.0f} TFLOP/s" in page
    assert f"our explicit attention {rate(ATTENTION_128, 'sdpa', 1):.0f}," in page
    assert f"reaches {triton[0]:.0f} and {triton[1]:.0f} TFLOP/s" in page
    assert f"{shares[0]:.0%}, {shares[1]:.0%}".replace("%", " %").replace(", ", " and ") in page


def signed(percent: float) -> str:
    text = f"{percent:+.2f}".replace("-", "−")
    return f"{'0.00' if text in ('+0.00', '−0.00') else text} %"


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
    blocks, reserved, tensors, sizes = (defaultdict[str, list[float]](list) for _ in range(4))
    for (workload, variant), there in measured.items():
        if ("peak_memory", "measured") not in there:
            continue
        here = simulated[workload, variant]
        peak_B = there["peak_memory", "measured"]
        sizes[workload].append(peak_B / 1e6)
        blocks[workload].append(100 * (here["allocated_memory", "fake_step"] / peak_B - 1))
        tensors[workload].append(100 * (1 - here["peak_memory", "fake_step"] / peak_B))
        reserved_B = there["reserved_memory", "measured"]
        reserved[workload].append(100 * (here["reserved_memory", "fake_step"] / reserved_B - 1))
    page = words("suites/memory.md")
    for title, workload in (
        ("Llama 12M", "llama_12m"),
        ("GPT 5M", "gpt_5m"),
        ("GPT 25M, SGD", "gpt_25m_sgd"),
        ("7B (Llama-2), on an H200", "llama_7b"),
    ):
        cells = [str(len(sizes[workload])), f"{min(sizes[workload]):,.0f} … {max(sizes[workload]):,.0f}"]
        for found in (blocks[workload], reserved[workload]):
            ends = [signed(end).removesuffix(" %") for end in (min(found), max(found))]
            cells.append(f"{' … '.join(ends)} %")
        assert f"| {title} | {' | '.join(cells)} |" in page
    for title, variant in (
        ("one rank, full checkpointing", "mixed_checkpointed"),
        ("FSDP2 over 4, full checkpointing", "fsdp2_mixed_checkpointed"),
        ("FSDP2 over 4", "fsdp2_mixed_flash"),
        ("tensor parallel over 8, full checkpointing", "tensor_parallel_mixed_checkpointed"),
    ):
        there, here = measured["llama_7b", variant], simulated["llama_7b", variant]
        peak_B, reserved_B = there["peak_memory", "measured"], there["reserved_memory", "measured"]
        cells = [
            f"{peak_B / 1e9:.2f}",
            signed(100 * (here["allocated_memory", "fake_step"] / peak_B - 1)),
            f"{reserved_B / 1e9:.2f}",
            signed(100 * (here["reserved_memory", "fake_step"] / reserved_B - 1)),
        ]
        assert f"| {title} | {' | '.join(cells)} |" in page
    del blocks["llama_7b"], reserved["llama_7b"], tensors["llama_7b"]
    every = [one for found in tensors.values() for one in found]
    assert f"up to {max(every):.1f} % below it" in page
    off = [abs(one) for found in blocks.values() for one in found]
    assert f"{sum(one < 0.15 for one in off)} of the {len(off)} are within 0.15 %" in page
    same = sum(one == 0 for found in reserved.values() for one in found)
    assert f"reserved bytes are the same in {same}" in page


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
