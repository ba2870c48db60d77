"""The kernels suite on tiny shapes: its variants against float64, and what is refused before it begins."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small_kernels import ARMS, HOSTS_OWN, applied, subject_of, workload_of

from harness.config.optimizations import applies
from harness.instruments.memory.allocator import free_bytes
from harness.instruments.triton_kernels.targets import TARGETS, Usage, usage
from harness.records import Reading, Unavailable
from suites.kernels import suite as kernels
from suites.kernels import triton
from suites.kernels.operations import OPERATIONS

COMPILERS = ("torch_compile", "compile_gemm_template")
ELSEWHERE = {"softmax", "linear_cross_entropy", "linear_gelu", "adamw"}
"""Tried by tests/project/test_every_optimization.py."""


def is_planned(variant, operation):
    """Whether the variant's YAML has the operation on a CPU."""
    fields = {"device": "any", "part": "all", **workload_of(operation, dtype="fp32")}
    return applies(ARMS[variant].applies_to, fields, False)


def cases():
    """Variants on operations; reference workloads (copy, matmul) are for the baseline alone."""
    for operation in sorted(set(OPERATIONS) - ELSEWHERE):
        for variant in ARMS:
            compiles = variant in COMPILERS and operation != "swiglu"  # each takes seconds
            measured = operation not in HOSTS_OWN or variant == "baseline"
            if measured and not compiles and is_planned(variant, operation):
                yield variant, operation


@pytest.fixture
def compiled_elsewhere(monkeypatch):
    """Do not compile kernels for GPUs: tests/test_triton_*.py do."""
    monkeypatch.setattr(triton, "usage", lambda kernel, target: Usage(target, len(kernel.name), 0, 0))


@pytest.mark.usefixtures("compiled_elsewhere")
@pytest.mark.parametrize(("variant", "operation"), list(cases()))
def test_a_variant_gives_what_float64_gives(variant, operation):
    session = applied(variant, subject_of(operation))
    readings = [one for one in kernels.read_once(session) if isinstance(one, Reading)]
    found = {one.metric: one.value for one in readings}
    assert 0 <= found["max_error"] <= session.subject.tolerance
    assert found["bytes_moved"] > 0
    targets = {one.method for one in readings if one.metric == "registers"}
    assert targets == (set(TARGETS) if session.subject.once is triton.resources else set())
    compiled = [one.method for one in readings if one.metric == "compile_time"]
    assert bool(compiled) == session.subject.compiles
    assert set(compiled) <= ({"cold", "cached"} if session.subject.compiler_cache else {""})
    if kernels.timed(session):
        assert next(iter(kernels.sample(session))).value > 0
    kernels.close(session)


def test_what_our_kernels_take_of_each_gpu_is_the_most_that_one_of_them_takes():
    session = applied("triton", subject_of("softmax"))
    readings = [one for one in kernels.read_once(session) if isinstance(one, Reading)]
    told = {(one.metric, one.method): one.value for one in readings}
    for target in TARGETS:
        taken = [usage(kernel, target) for kernel in triton.MODULES["softmax"].kernels("fp32")]
        assert len(taken) > 1
        assert told["registers", target] == max(one.registers for one in taken) > 0
        assert told["shared_memory", target] == max(one.shared_memory_B for one in taken)
        assert told["spilled_registers", target] == max(one.spilled_registers for one in taken)


@pytest.mark.parametrize("operation", ["softmax", "linear_cross_entropy"])
def test_bf16_inputs_have_bf16s_tolerance(operation):
    assert 1e-4 < applied("baseline", subject_of(operation, dtype="bf16")).max_error < 2e-2


def test_fp32_products_of_a_gpu_that_may_be_tf32_are_reported(monkeypatch):
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    monkeypatch.setattr("torch.get_float32_matmul_precision", lambda: "highest")
    assert kernels.precision_of("fp32", gpu) == "fp32"
    monkeypatch.setattr("torch.get_float32_matmul_precision", lambda: "high")
    assert kernels.precision_of("fp32", gpu) == "tf32"
    assert kernels.precision_of("bf16", gpu) == "bf16"
    assert kernels.precision_of("fp32", cpu) == "fp32"


def test_what_torchs_allocator_keeps_empty_is_free(monkeypatch):
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (5, 80))
    monkeypatch.setattr("torch.cuda.memory_reserved", lambda device: 40)
    monkeypatch.setattr("torch.cuda.memory_allocated", lambda device: 30)
    assert free_bytes(torch.device("cuda")) == 15


def test_attention_that_cannot_fit_is_not_begun(monkeypatch):
    subject = subject_of("attention", seq_len=64)
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"available": 1000})())
    with pytest.raises(MemoryError, match="takes about"):
        kernels.prepare(subject)
    kernels.require_memory(replace(subject, attention="sdpa"))


def test_peak_memory_of_explicit_attention_is_its_scores():
    plain = applied("baseline", subject_of("attention", micro_batch_size=1, seq_len=512, head_size=8))
    sdpa = applied("sdpa", subject_of("attention", micro_batch_size=1, seq_len=512, head_size=8))
    found = [
        next(one.value for one in kernels.read_once(each) if one[0] == "peak_memory")
        for each in (plain, sdpa)
    ]
    scores_B = 2 * 512 * 512 * 4
    assert 3 * scores_B < found[0] <= kernels.OPERATIONS["attention"].eager_B(plain.subject.workload)
    assert found[1] < scores_B


WITHOUT_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")


@pytest.mark.parametrize(
    ("operation", "changes", "said"),
    [
        ("attention", {"num_attention_heads": 4, "num_key_value_heads": 2}, "num_key_value_heads=2"),
        ("training_step", {"hidden_size": 14}, "must be even, not 7"),
        ("training_step", {"backward": False}, "backward must be true"),
        pytest.param("softmax", {"device": "cuda"}, "chosen for a GPU", marks=WITHOUT_GPU),
    ],
)
def test_a_workload_that_cannot_run_is_refused(operation, changes, said):
    with pytest.raises(Unavailable, match=said):
        subject_of(operation, **changes)
