"""Functions of one argument are called once before a cell's or a rank's threads call them."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from harness.config.code_fingerprint import ROOT
from harness.instruments.distributed import rank_worker
from harness.instruments.process import UNARY_FUNCTIONS
from harness.sweep import worker

FIRST_CALLS = """
import torch
from harness.instruments.process import UNARY_FUNCTIONS, call_unary_functions
torch.set_num_threads(2)
call_unary_functions()
x = torch.linspace(0.01, 0.99, 1 << 17)
for name in set(UNARY_FUNCTIONS) - {"trunc"}:
    function = getattr(torch, name)
    error = (function(x) - function(x.double())).abs().max() / function(x.double()).abs().max()
    assert error < 1e-6, f"{name}: {error:.1e}"
"""
WITHOUT_TORCH = """
import sys
from harness.instruments.process import call_unary_functions
call_unary_functions()
assert "torch" not in sys.modules
"""


@pytest.fixture
def called(monkeypatch):
    """Return the names of what is called, in order."""
    names = []
    for module in (worker, rank_worker):
        monkeypatch.setattr(module, "call_unary_functions", lambda: names.append("call_each"))
    return names


@pytest.mark.parametrize("code", [FIRST_CALLS, WITHOUT_TORCH], ids=["two threads", "without torch"])
def test_of_a_new_process(code):
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_they_are_those_that_torch_leaves_to_mkl():
    header = Path(torch.__file__).parent / "include/ATen/cpu/vml.h"
    left = re.findall(r"^IMPLEMENT_VML_MKL\((\w+), \w+\)", header.read_text(), re.MULTILINE)
    assert sorted(left) == sorted(UNARY_FUNCTIONS)


def test_a_cell_calls_each_before_its_suite_computes(called, monkeypatch):
    def build(workload, seed):
        called.append("build")
        raise KeyError

    monkeypatch.setattr(worker, "_load", lambda cell, package: (SimpleNamespace(build=build), None))
    with pytest.raises(KeyError):
        worker._set_up(SimpleNamespace(config={"workload": {}}, seed=0), "suites", print)
    assert called == ["call_each", "build"]


def test_a_rank_calls_each_before_it_joins(called, monkeypatch):
    def meet(*_, **__):
        called.append("meet")

    monkeypatch.setattr(torch.distributed, "init_process_group", meet)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.delenv(rank_worker.POOL, raising=False)
    assert rank_worker.join({"store": None}, "gloo", 0, 1.0) == [0, 1]
    assert called == ["call_each", "meet"]
