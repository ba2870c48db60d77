"""What deepspeed's compiled operators need is named where it is missing; no lock of the dead stops them."""

import ctypes.util
import importlib.util
import os
import shutil
import sys
from types import SimpleNamespace

import pytest
import torch
from torch.utils import cpp_extension

from harness.instruments.distributed import deepspeed_engine
from harness.instruments.distributed.deepspeed_engine import missing

THERE = {"g++", "ninja", "deepspeed", "libaio", "header", "cuda"}


@pytest.fixture
def having(monkeypatch):
    """Return what makes only those requirements present, whatever this machine has."""

    def given(names, gpu=False):
        programs = {"c++": "g++", "ninja": "ninja"}
        monkeypatch.setattr(shutil, "which", lambda name, path=None: programs[name] in names)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: name in names)
        monkeypatch.setattr(ctypes.util, "find_library", lambda name: f"lib{name}" in names)
        monkeypatch.setattr(deepspeed_engine, "HEADERS", (__file__,) if "header" in names else ())
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
        monkeypatch.setattr(torch.version, "cuda", "12.8")
        monkeypatch.setattr(cpp_extension, "CUDA_HOME", "cuda" if "cuda" in names else None)

    monkeypatch.delenv("CXX", raising=False)
    return given


@pytest.mark.parametrize(
    ("operator", "lacking", "gpu", "said"),
    [
        ("async_io", {"cuda"}, False, None),
        ("cpu_adam", {"g++", "ninja"}, False, "a C++ compiler (g++), ninja"),
        ("cpu_adam", {"deepspeed"}, False, "deepspeed"),
        ("cpu_adam", {"libaio", "header"}, True, None),
        ("async_io", {"libaio"}, False, "libaio with its header (libaio-dev)"),
        ("async_io", {"header"}, False, "libaio with its header (libaio-dev)"),
        ("cpu_adam", {"cuda"}, True, "the CUDA toolkit (CUDA_HOME)"),
    ],
)
def test_what_an_operator_needs_is_named(having, operator, lacking, gpu, said):
    having(THERE - lacking, gpu)
    expected = said and f"needs {said}: DeepSpeed compiles its {operator} at first use"
    assert missing(operator) == expected


def test_before_loading_dead_locks_go_and_no_debug_information_is_made(monkeypatch, tmp_path):
    names = [("py311_cpu", "async_io"), ("py311_cpu", "pin_memory"), ("py312_cpu", "async_io")]
    locks = [tmp_path.joinpath(*one, "lock") for one in names]
    for lock in locks:
        lock.parent.mkdir(parents=True)
        lock.touch()
    loaded = []
    builder = SimpleNamespace(cxx_args=lambda: ["-O3", "-g"])
    builder.load = lambda verbose: loaded.append(([lock.exists() for lock in locks], builder.cxx_args()))
    builders = SimpleNamespace(AsyncIOBuilder=lambda: builder)
    monkeypatch.setitem(sys.modules, "deepspeed.ops.op_builder", builders)
    monkeypatch.setattr(deepspeed_engine, "choose_accelerator", lambda: None)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", os.environ["PATH"])  # load() adds to it
    with locks[2].open():  # of a compilation that runs
        deepspeed_engine.load("async_io")
    assert loaded == [([False, False, True], ["-O3", "-g", "-g0"])]
