"""Every engine and target on a tiny step, where the extra `portability` is installed."""

import dataclasses

import pytest
import torch

from harness.instruments.process import COMPILED_FOLDER
from harness.instruments.triton_kernels import targets
from harness.instruments.triton_kernels.launch import (
    compiled_on_cpu,
    is_compiling_on_cpu,
    kind_of,
    over_a_range,
    upgraded,
    with_linalg_copies,
)
from harness.instruments.triton_kernels.targets import CompilationFailed
from harness.records import Reading, Unavailable
from suites.portability import dynamic, optimizations
from suites.portability.graph import Problem
from suites.portability.packages import as_tried, missing, without_other_dialects
from suites.portability.problem import problem_of
from suites.portability.suite import build, check, prepare, read_once

ENGINES = ("inductor", "xla", "iree", "openvino", "onnx_runtime", "tvm", "triton_cpu")
TINY = {
    "operation": "training_step", "passes": "update", "seq_len": 16, "hidden_size": 64, "vocab_size": 128,
    "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 96, "num_hidden_layers": 1,
}  # fmt: skip


def applied(name, subject, **settings):
    try:
        return getattr(optimizations, name)(subject, **settings)
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_computes_a_training_step_as_float64_does(name):
    session = prepare(applied(name, build(TINY, 4)))
    check(session)
    assert session.failure == ""
    assert 0 < session.errors.largest < 1e-4


@pytest.mark.parametrize("name", ["iree", "openvino", "onnx_runtime", "tvm"])
def test_code_that_a_process_kept_serves_a_later_one_with_other_values(name, monkeypatch, tmp_path):
    monkeypatch.setenv(COMPILED_FOLDER, str(tmp_path))
    for seed, method in ((4, "cold"), (5, "cached")):
        session = prepare(applied(name, build(TINY, seed)))
        check(session)
        assert session.failure == ""
        assert session.compiled.compile_method == method
        assert 0 < session.errors.largest < 1e-4


@pytest.mark.parametrize("name", ["inductor", "onnx_runtime", "openvino"])
def test_one_compilation_serves_any_length(name):
    subject = build(TINY, 4)
    try:
        session = prepare(optimizations.any_length(subject, name))
        check(session)
    except Unavailable as reason:
        pytest.skip(str(reason))
    assert session.failure == ""
    assert 0 < session.errors.largest < 1e-4
    shorter = problem_of(dataclasses.replace(subject.workload, seq_len=5), 4)
    ours = session.compiled.tensors(session.compiled.call_with(shorter.inputs))
    for one, other in zip(ours, shorter.function(*shorter.inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_an_engine_without_code_for_any_length_is_a_reading_with_its_message(monkeypatch):
    def no_code(capture):
        raise RuntimeError("failed to legalize operation 'x'")

    subject = optimizations.any_length(build(TINY, 4), "inductor")
    engine = dataclasses.replace(subject.engine, compile=no_code)
    session = prepare(dataclasses.replace(subject, engine=engine))
    check(session)
    readings = {one.metric: one.value for one in read_once(session) if isinstance(one, Reading)}
    assert readings["compiles"] == 0
    assert "coverage" not in readings
    assert "failed to legalize" in session.failure


def test_what_is_compiled_again_for_another_length_is_no_such_code():
    session = prepare(optimizations.inductor(build(TINY, 4)))
    session.compile()
    shorter = problem_of(dataclasses.replace(session.subject.workload, seq_len=8), 4)
    with pytest.raises(RuntimeError, match="recompil"):
        session.compiled.call_with(shorter.inputs)


def test_code_that_fixes_the_length_is_refused_in_one_line(monkeypatch):
    def of_eight(workload, seed):
        def function(x_ND):
            return (x_ND * 2 if x_ND.shape[0] == workload.seq_len else x_ND,)

        x_ND = torch.ones(workload.seq_len, 3)
        return Problem(function, (x_ND,), ("output",), 0, lambda: lambda: function(x_ND), None)

    monkeypatch.setattr(dynamic, "problem_of", of_eight)
    workload = build({"operation": "softmax", "seq_len": 8, "hidden_size": 3}, 0).workload
    with pytest.raises(Unavailable, match="fixes the length"):
        dynamic.captured_for_any_length(workload, 0)
    with pytest.raises(Unavailable, match="one token"):
        dynamic.captured_for_any_length(dataclasses.replace(workload, seq_len=1), 0)


@pytest.mark.parametrize("name", ["xla", "iree", "openvino"])
def test_an_engine_computes_bf16_in_bf16(name):
    fields = {
        "operation": "matmul",
        "seq_len": 32,
        "hidden_size": 64,
        "intermediate_size": 16,
        "dtype": "bf16",
    }
    session = prepare(applied(name, build(fields, 4)))
    check(session)
    assert 1e-4 < session.errors.largest < 5e-2  # fp32 would be closer


@pytest.mark.parametrize("target", ["cuda_sm_80", "rocm_gfx942"])
def test_iree_compiles_for_a_device_that_is_not_here(target):
    fields = {"operation": "swiglu", "seq_len": 4, "hidden_size": 64}
    session = prepare(applied("iree_targets", build(fields, 0), target=target))
    check(session)
    sizes = [
        one.value for one in read_once(session) if isinstance(one, Reading) and one.metric == "program_size"
    ]
    assert sizes
    assert min(sizes) > 100
    assert not session.runs


def test_xla_compiles_for_a_tpu_that_is_not_here():
    fields = {"operation": "swiglu", "seq_len": 4, "hidden_size": 64}
    session = prepare(applied("xla_targets", build(fields, 0), target="tpu_v5e"))
    check(session)
    assert session.failure == ""
    assert session.compiled.size_B > 100


def test_our_kernels_are_interpreted_at_a_small_shape():
    subject = optimizations.triton(build({"operation": "softmax", "seq_len": 4096, "hidden_size": 4096}, 0))
    assert subject.workload.seq_len == 16
    session = prepare(subject)
    check(session)
    assert session.errors.largest < 1e-4


def test_without_the_extra_the_reason_names_it(monkeypatch):
    assert missing("torch") is None
    reason = missing("no_such_package")
    assert reason == (
        "no_such_package is not installed; the extra `portability` brings it: "
        "pip install 'throughput-harness[portability]'"
    )
    assert missing("no_such_package.compiler") is not None
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv(targets.VARIABLE, raising=False)
    assert targets.VARIABLE in (targets.unavailable() or "")
    with pytest.raises(Unavailable):
        targets.lowered("kernel", "module {}")


def test_another_version_is_unavailable_in_one_line():
    with (
        pytest.raises(
            Unavailable, match=r"torch .*: its interface is not that of 0.1, the one tried"
        ) as caught,
        as_tried("torch", "0.1"),
    ):
        torch.no_such_function  # noqa: B018
    assert "\n" not in str(caught.value)


def test_a_failing_tool_is_one_line(monkeypatch, tmp_path):
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\necho 'x:1: error: no such op' >&2\necho more >&2\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setenv(targets.VARIABLE, str(tool))
    with pytest.raises(
        CompilationFailed, match=r"^kernel k does not lower to linalg: x:1: error: no such op$"
    ):
        targets.lowered("k", "module {}")


def test_the_tools_text_is_made_that_of_a_newer_mlir():
    old = (
        '#loc = loc("k.py":1:0)\nfunc.func @k(%arg0: memref<?xf32> {tt.divisibility = 16 : i32}, %arg1: i32) '
        "attributes {a = 1} {\n  %1 = bufferization.to_tensor %0 restrict writable : memref<4xf32> "
        "loc(#loc2)\n"
        "  memref.copy %2, %3 : memref<4xf32, strided<[1], offset: ?>> to memref<4xf32>\n}\n"
    )
    new = with_linalg_copies(upgraded(old))
    assert "loc" not in new.replace("alloc", "")
    assert "tt.div" not in new
    assert "restrict writable : memref<4xf32> to tensor<4xf32>\n" in new
    assert "linalg.copy ins(%2 : memref<4xf32, strided<[1], offset: ?>>) outs(%3 : memref<4xf32>)" in new


def test_a_range_of_programs_is_a_function_of_the_kernels_own_arguments():
    arguments = ", ".join(
        f"%arg{i}: {kind}" for i, kind in enumerate(["memref<?xi8>"] * 2 + ["memref<?xf32>"] + ["i32"] * 7)
    )
    text = over_a_range(
        f"module {{\n  func.func @k({arguments}) attributes {{a = 1}} {{\n    return\n  }}\n}}\n"
    )
    assert (
        "@over_a_range(%a0: memref<?xi8>, %a1: memref<?xi8>, %a2: memref<?xf32>, %a3: i32, %gx: i32" in text
    )
    assert "func.call @k(%a0, %a1, %a2, %a3, %gx, %gy, %gz, %x, %y, %z)" in text
    with pytest.raises(CompilationFailed):
        over_a_range("module {}")


def test_arguments_have_tritons_types():
    assert kind_of(torch.zeros(1, dtype=torch.bfloat16)) == "*bf16"
    assert (kind_of(3), kind_of(0.5)) == ("i32", "fp32")
    with pytest.raises(TypeError, match="not str"):
        kind_of("x")


def test_compiled_kernels_are_active_inside_the_block_alone():
    with compiled_on_cpu():
        assert is_compiling_on_cpu()
    assert not is_compiling_on_cpu()


def test_constants_of_torch_mlir_are_stablehlos():
    assert without_other_dialects("%c = arith.constant dense<1> : tensor<1xi64>") == (
        "%c = stablehlo.constant dense<1> : tensor<1xi64>"
    )


def test_a_subject_of_an_engine_keeps_its_workload():
    subject = build(TINY, 0)
    assert dataclasses.replace(optimizations.inductor(subject), engine=None) == subject
