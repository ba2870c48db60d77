"""What deepspeed's compiled operators need is named where it is missing; no lock of the dead stops them."""

from __future__ import annotations

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
from harness.instruments.distributed.deepspeed_engine import (
    BUILDERS,
    choose_accelerator,
    main,
    missing,
    programs,
)


@pytest.fixture(autouse=True)
def _all_is_there(monkeypatch):
    """Make every requirement present, whatever this machine has."""
    monkeypatch.setattr(shutil, "which", lambda name, path=None: f"/bin/{name}")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: f"lib{name}.so")
    monkeypatch.setattr(deepspeed_engine, "HEADERS", (__file__,))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.parametrize("operator", BUILDERS)
def test_where_all_is_there_nothing_is_missing(operator):
    assert missing(operator) is None


@pytest.mark.parametrize(
    ("place", "name", "value", "said"),
    [
        (
            shutil,
            "which",
            lambda name, path=None: None,
            "needs a C++ compiler (g++), ninja: DeepSpeed compiles its",
        ),
        (shutil, "which", lambda name, path=None: name if name == "c++" else None, "needs ninja: DeepSpeed"),
        (importlib.util, "find_spec", lambda name: None, "needs deepspeed: DeepSpeed compiles"),
    ],
)
@pytest.mark.parametrize("operator", BUILDERS)
def test_what_every_operator_needs_is_named(monkeypatch, operator, place, name, value, said):
    monkeypatch.setattr(place, name, value)
    told = missing(operator)
    assert told is not None
    assert told.startswith(said)
    assert told.endswith(f"compiles its {operator} at first use")


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        (ctypes.util, "find_library", lambda name: None),
        (deepspeed_engine, "HEADERS", ("/nowhere/libaio.h",)),
    ],
)
def test_files_need_libaio_and_the_host_optimizer_does_not(monkeypatch, place, name, value):
    monkeypatch.setattr(place, name, value)
    assert "needs libaio with its header (libaio-dev)" in (missing("async_io") or "")
    assert missing("cpu_adam") is None


@pytest.mark.parametrize(
    ("home", "said"), [(None, "needs the CUDA toolkit (CUDA_HOME)"), ("/usr/local/cuda", "")]
)
@pytest.mark.parametrize("operator", BUILDERS)
def test_with_a_gpu_it_is_compiled_for_cuda(monkeypatch, operator, home, said):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", home)
    assert (missing(operator) or "").startswith(said)
    assert bool(missing(operator)) == bool(said)


def test_ahead_of_time_what_can_be_had_is_compiled_and_the_rest_named(monkeypatch, capsys):
    compiled = []
    monkeypatch.setattr(deepspeed_engine, "load", compiled.append)
    monkeypatch.setattr(deepspeed_engine, "HEADERS", ())
    main()
    assert compiled == ["cpu_adam"]
    assert capsys.readouterr().out.startswith("async_io: needs libaio")


def test_ninja_is_found_next_to_python(monkeypatch, tmp_path):
    monkeypatch.undo()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "")
    (tmp_path / "ninja").write_text("")
    (tmp_path / "ninja").chmod(0o755)
    assert shutil.which("ninja", path=programs()) == str(tmp_path / "ninja")


def test_the_lock_of_a_killed_compilation_is_removed_and_a_held_one_is_not(tmp_path):
    dead, held = (tmp_path / name / "cpu_adam" / "lock" for name in ("py311_cpu", "py312_cpu"))
    for lock in (dead, held):
        lock.parent.mkdir(parents=True)
        lock.touch()
    with held.open():
        deepspeed_engine.clear_lock("cpu_adam", tmp_path)
        assert (dead.exists(), held.exists()) == (False, True)


def test_before_loading_dead_locks_go_and_no_debug_information_is_made(monkeypatch, tmp_path):
    locks = [tmp_path / "py311_cpu" / name / "lock" for name in ("async_io", "pin_memory")]
    for lock in locks:
        lock.parent.mkdir(parents=True)
        lock.touch()
    left, flags = [], []
    builder = SimpleNamespace(cxx_args=lambda: ["-O3", "-g"])
    builder.load = lambda verbose: (
        left.append([lock.exists() for lock in locks]),
        flags.append(builder.cxx_args()),
    )
    builders = SimpleNamespace(AsyncIOBuilder=lambda: builder)
    monkeypatch.setitem(sys.modules, "deepspeed.ops.op_builder", builders)
    monkeypatch.setattr(deepspeed_engine, "choose_accelerator", lambda: None)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", os.environ["PATH"])  # load() adds to it
    deepspeed_engine.load("async_io")
    assert left == [[False, False]]
    assert flags == [["-O3", "-g", "-g0"]]


def test_deepspeed_takes_the_device_that_a_model_is_on(monkeypatch):
    """By itself it keeps the GPU that it saw first."""
    from deepspeed.accelerator import get_accelerator, set_accelerator
    from deepspeed.accelerator.cuda_accelerator import CUDA_Accelerator

    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    before = get_accelerator()
    try:
        set_accelerator(CUDA_Accelerator())
        choose_accelerator("cpu")
        assert (get_accelerator().device_name(), os.environ["DS_ACCELERATOR"]) == ("cpu", "cpu")
    finally:
        set_accelerator(before)
