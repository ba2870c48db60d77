"""bf16 products that go through fp32: the allocator's events stay what they are, on every kind of CPU."""

import json
import os
import platform
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path

import pytest
import torch

from harness.instruments.memory import bf16_products

SCRIPT = Path(__file__).parents[3] / "support" / "steps" / "bf16_events.py"

AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
X86 = platform.machine() in ("x86_64", "AMD64")
KINDS = {
    "without AVX-512": AVX2,
    "without AVX2": {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default"},
    "of this machine": {},
}
"""What makes torch and its libraries use the instructions of an older CPU."""

if torch.backends.cpu.get_cpu_capability() == "AVX2":
    del KINDS["of this machine"]  # which is without AVX-512


WITH_STEPS = "without AVX-512"
"""What products are replaced for; on other CPUs, steps consist of the same products."""


@cache
def run_script(kind):
    parts = ["products", "steps"] if kind == WITH_STEPS else ["products"]
    output = subprocess.run(
        [sys.executable, SCRIPT, *parts],
        env={**os.environ, **KINDS[kind], "OMP_NUM_THREADS": "1"},
        cwd=SCRIPT.parent.parent,
        capture_output=True,
        text=True,
    )
    assert output.returncode == 0, output.stderr[-2000:]
    return json.loads(output.stdout.splitlines()[-1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_product_allocates_the_same_in_every_layout(kind):
    found = run_script(kind)
    assert found["own_products"] or not found["active"]
    if X86 and kind == "without AVX-512":
        assert found["active"]
    assert len(found["products"]) > 90
    for name, product in found["products"].items():
        assert product["replaced"] == product["plain"], name
        assert product["off"] < 0.01, name


def test_every_bf16_step_allocates_the_same_and_leaves_no_product_slow():
    report = run_script(WITH_STEPS)["steps"]
    assert len(report) >= 11
    for name, step in report.items():
        assert step["replaced"] == step["plain"], name
        assert step["count"]["mm"] > 10, name
        assert not step["slow"], name


def test_a_product_in_another_thread_leaves_the_one_under_way_as_it_is():
    """Let a thread multiply between the moment when another has read its operands and its product."""
    products = bf16_products.Bf16Products()
    read, other_done = threading.Event(), threading.Event()
    widen = products._widen

    def widen_and_wait(number, block):
        found = widen(number, block)
        if threading.current_thread() is slow and number == 2:
            read.set()
            other_done.wait(60)
        return found

    products._widen = widen_and_wait
    ones, threes = (torch.full((8, 8), value, dtype=torch.bfloat16) for value in (1.0, 3.0))
    results = []
    slow = threading.Thread(target=lambda: results.append(products.product(ones, ones)))
    slow.start()
    assert read.wait(60)
    assert products.product(threes, threes).unique().tolist() == [72.0]
    other_done.set()
    slow.join()
    assert results[0].unique().tolist() == [8.0]
