"""Kernels on symmetric memory, compiled for five GPUs: memory order in the assembly, and no spills."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import triton.language as tl
from compiled_for import EVERY_TARGET
from symmetric_on_rank import CASES

from harness.config.code_fingerprint import ROOT
from harness.instruments.triton_kernels import targets
from harness.instruments.triton_kernels.targets import (
    NVIDIA,
    TARGETS,
    Compilation,
    CompilationFailed,
    assembly,
    usage,
)

pytestmark = pytest.mark.skipif(not hasattr(tl, "atomic_poll"), reason="Triton before 3.9 has no atomic_poll")

MANY_RANKS = 64
"""So many that no compiler unrolls a loop over ranks whole; NVIDIA's leave it as it is."""

ACQUIRE = {"sm_80": r"fence\.acq_rel\.sys", "gfx90a": r"buffer_invl2", "gfx942": r"buffer_inv sc0 sc1"}
ANY_ACQUIRE = r"fence\.(?:acquire|acq_rel)\.sys"
RELEASE = {"gfx90a": r"buffer_wbl2\n", "gfx942": r"buffer_wbl2 sc0 sc1\n"}
ANY_RELEASE = r"(?:atom|red)\.global\.sys\.release\.|(?:atom|red)\.global\.release\.sys\."
POLL = {"gfx90a": r"global_load_dword v.* glc", "gfx942": r"global_load_dword v.* sc0 sc1"}
ANY_POLL = r"ld\.relaxed\.sys\.global\.b32"
SIGNAL = r"global_atomic_(?:swap|add)\b"

SEND_WORD = {"gfx90a": r"global_store_dwordx2 v", "gfx942": r"global_store_dwordx2 v.* sc0 sc1"}
READ_WORD = {"gfx90a": r"global_load_dwordx2 v.* glc", "gfx942": r"global_load_dwordx2 v.* sc0 sc1"}


def kernels(
    name: str, dtype: str = "bf16", package: str = "suites.overlap.symmetric."
) -> Iterator[Compilation]:
    module = importlib.import_module(package + name)
    for one in module.compilations() if name == "low_latency_allgather" else module.compilations(dtype):
        ranks = {"RANKS": MANY_RANKS} if "RANKS" in one.constexprs else {}
        yield one._replace(constexprs={**one.constexprs, **ranks})


def calls(compilation: Compilation, name: str) -> int:
    tree = ast.walk(ast.parse(compilation.function.src))
    return sum(isinstance(node, ast.Call) and getattr(node.func, "id", "") == name for node in tree)


def disorder(compilation: Compilation, target: str) -> list[str]:
    """Return where the assembly does not order memory of the whole system as the kernel's source says."""
    waits, notifies = calls(compilation, "wait"), calls(compilation, "notify")
    text = assembly(compilation, target)
    acquires = len(re.findall(ACQUIRE.get(target, ANY_ACQUIRE), text))
    releases = len(re.findall(RELEASE.get(target, ANY_RELEASE), text))
    polls = len(re.findall(POLL.get(target, ANY_POLL), text))
    found = []
    if acquires != waits:
        found.append(f"{acquires} acquires, {waits} waits")
    if polls < waits:
        found.append(f"{polls} polls, {waits} waits")
    if target in NVIDIA:
        if releases != notifies:
            found.append(f"{releases} releases, {notifies} notifies")
    else:  # its compiler unrolls parts of loops
        signals = len(re.findall(SIGNAL, text))
        if releases != signals or bool(signals) != bool(notifies) or signals < notifies:
            found.append(f"{releases} releases, {signals} atomics, {notifies} notifies")
    return found


@pytest.mark.parametrize(("dtype", "target"), EVERY_TARGET)
@pytest.mark.parametrize("name", CASES)
def test_each_wait_acquires_each_notify_releases_and_nothing_spills(
    name: str, dtype: str, target: str
) -> None:
    for compilation in kernels(name, dtype):
        assert not disorder(compilation, target), compilation.name
        assert usage(compilation, target).spilled_registers == 0, compilation.name


@pytest.mark.parametrize("target", TARGETS)
def test_low_latency_words_are_read_and_written_whole(target: str) -> None:
    (compilation,) = kernels("low_latency_allgather")
    text = assembly(compilation, target)
    assert re.search(SEND_WORD.get(target, r"st\.relaxed\.sys\.global\.b64"), text)
    assert re.search(READ_WORD.get(target, r"ld\.relaxed\.sys\.global(?:\.v2)?\.b64"), text)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ('scope="sys"', 'scope="gpu"'),
        ('semantic: tl.constexpr = "acquire"', 'semantic: tl.constexpr = "relaxed"'),
        ('semantic: tl.constexpr = "release"', 'semantic: tl.constexpr = "relaxed"'),
    ],
    ids=["scope", "acquire", "release"],
)
def test_a_wrong_scope_or_order_is_found(
    right: str, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    texts = {
        one: (ROOT / f"suites/overlap/symmetric/{one}.py").read_text() for one in ("primitives", "gemm_rs")
    }
    assert right in texts["primitives"]
    suffix = request.node.callspec.id
    primitives, kernel = f"primitives_with_wrong_{suffix}", f"gemm_rs_with_wrong_{suffix}"
    (tmp_path / f"{primitives}.py").write_text(texts["primitives"].replace(right, wrong))
    (tmp_path / f"{kernel}.py").write_text(
        texts["gemm_rs"].replace("suites.overlap.symmetric.primitives", primitives)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (compilation,) = kernels(kernel, package="")
    for target in TARGETS:
        assert disorder(compilation, target), target


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("name", CASES)
def test_a_target_without_an_atomic_that_a_kernel_needs_is_named_in_one_line(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P100 has no atomics of a scope and a memory order."""
    monkeypatch.setitem(NVIDIA, "sm_60", 60)
    monkeypatch.setattr(targets, "TARGETS", (*TARGETS, "sm_60"))
    compilation = next(one for one in kernels(name) if "faults" in one.signature)
    with pytest.raises(CompilationFailed) as caught:
        assembly(compilation, "sm_60")
    reason = str(caught.value)
    assert reason.startswith(f"kernel {compilation.name} does not compile for sm_60: ")
    assert re.search(r"Feature '\.(relaxed|release|acquire)' requires \.target sm_70", reason)
    assert "\n" not in reason
