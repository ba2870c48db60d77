"""Every engine and target on a tiny step, where the extra `portability` is installed."""

import dataclasses

import pytest
import torch

from harness.instruments.process import COMPILED_FOLDER
from harness.instruments.triton_kernels.targets import KernelUsage
from harness.records import Note, Reading, Unavailable
from suites.portability import optimizations, stablehlo_engines
from suites.portability import session as sessions
from suites.portability.graph import Problem
from suites.portability.packages import as_tried, require
from suites.portability.problem import problem_of
from suites.portability.suite import build, check, prepare, read_once

ENGINES = ("xla", "iree", "openvino", "onnx_runtime", "tvm", "triton_cpu")
"""But Inductor, whose compiler takes long: tests/project/test_every_optimization.py runs it."""
TINY = {
    "operation": "training_step", "passes": "update", "seq_len": 16, "hidden_size": 64, "vocab_size": 128,
    "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 96, "num_hidden_layers": 1,
}  # fmt: skip


MATMUL = {"operation": "matmul", "seq_len": 32, "hidden_size": 64, "intermediate_size": 16}
SWIGLU = {"operation": "swiglu", "seq_len": 4, "hidden_size": 64}


def applied(name, subject, **settings):
    try:
        return getattr(optimizations, name)(subject, **settings)
    except Unavailable as reason:
        pytest.skip(str(reason))


KEPT = ("iree", "openvino", "onnx_runtime", "tvm")
"""Those whose code a process keeps for a later one."""


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_computes_a_training_step_as_float64_does(name, monkeypatch, tmp_path):
    """Also by code that an earlier process kept, with other values."""
    monkeypatch.setenv(COMPILED_FOLDER, str(tmp_path))
    for seed, method in ((4, "cold"), (5, "cached")) if name in KEPT else ((4, None),):
        session = prepare(applied(name, build(TINY, seed)))
        check(session)
        assert session.failure == ""
        assert 0 < session.errors.largest < 1e-4
        assert method in (None, session.compiled.compile_method)


def test_one_compilation_serves_any_length():
    subject = build(TINY, 4)
    session = prepare(applied("any_length", subject, engine="onnx_runtime"))
    check(session)
    assert session.failure == ""
    assert 0 < session.errors.largest < 1e-4
    shorter = problem_of(dataclasses.replace(subject.workload, seq_len=5), 4)
    ours = session.compiled.tensors(session.compiled.call_with(shorter.inputs))
    for one, other in zip(ours, shorter.function(*shorter.inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_code_that_fixes_the_length_is_refused_in_one_line(monkeypatch):
    def of_eight(workload, seed):
        def function(x_ND):
            return (x_ND * 2 if x_ND.shape[0] == workload.seq_len else x_ND,)

        x_ND = torch.ones(workload.seq_len, 3)
        return Problem(function, (x_ND,), ("output",), 0, lambda: lambda: function(x_ND), None)

    monkeypatch.setattr(sessions, "problem_of", of_eight)
    workload = build({"operation": "softmax", "seq_len": 8, "hidden_size": 3}, 0).workload
    with pytest.raises(Unavailable, match="fixes the length"):
        sessions.captured_for_any_length(workload, 0)
    with pytest.raises(Unavailable, match="one token"):
        sessions.captured_for_any_length(dataclasses.replace(workload, seq_len=1), 0)


@pytest.mark.parametrize("name", ["xla", "iree", "openvino"])
def test_an_engine_computes_bf16_in_bf16(name):
    session = prepare(applied(name, build({**MATMUL, "dtype": "bf16"}, 4)))
    check(session)
    assert 1e-4 < session.errors.largest < 5e-2  # fp32 would be closer


@pytest.mark.parametrize(
    ("name", "target"),
    [("iree_targets", "cuda_sm_80"), ("iree_targets", "rocm_gfx942"), ("xla_targets", "tpu_v5e")],
)
def test_an_engine_compiles_for_a_device_that_is_not_here(name, target):
    session = prepare(applied(name, build(SWIGLU, 0), target=target))
    check(session)
    assert session.failure == ""
    readings = [one for one in read_once(session) if isinstance(one, Reading)]
    (size_B,) = (one.value for one in readings if one.metric == "program_size")
    assert size_B > 100
    assert not session.runs


def test_without_the_extra_or_its_version_the_reason_names_it():
    with pytest.raises(Unavailable, match=r"is not installed; .*pip install 'throughput-harness\["):
        require("no_such_package")
    reason = r"torch .*: its interface is not that of 0.1, the one tried[^\n]*\Z"
    with pytest.raises(Unavailable, match=reason), as_tried("torch", "0.1"):
        torch.no_such_function  # noqa: B018


def test_registers_of_a_program_are_the_most_of_its_kernels_and_what_cannot_be_read_is_a_note(monkeypatch):
    """test_code_objects.py compares what a code object has with what assemblers print."""
    kernels = [KernelUsage("a", 40, 0), KernelUsage("b", 32, 7)]
    monkeypatch.setattr(stablehlo_engines, "of_ptx", lambda text, target: kernels)
    objects = {"a.ptx": b"", "b.ptx": b"", "c.spv": b""}
    readings = list(stablehlo_engines.usage_readings(objects, "cuda_sm_80"))
    values = {one.metric: one.value for one in readings}
    assert values == {"registers": 40, "spilled_registers": 7, "kernels": 4}
    (note,) = stablehlo_engines.usage_readings({"a.hsaco": b"no ELF"}, "rocm_gfx942")
    assert isinstance(note, Note)
    assert note.text.startswith("registers: not read, ")
    assert list(stablehlo_engines.usage_readings({"a.spv": b"x"}, "vulkan")) == []
