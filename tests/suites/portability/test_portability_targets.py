"""Registers of kernels by IREE for a GPU that is not here, compared with what LLVM and ptxas print."""

import re
import subprocess

import pytest
import triton

from harness.records import Note, Reading, Unavailable
from suites.portability import stablehlo_engines
from suites.portability.optimizations import iree_targets
from suites.portability.suite import build, check, prepare, read_once

FIELDS = {"operation": "attention", "seq_len": 64, "hidden_size": 128, "num_attention_heads": 2,
          "num_key_value_heads": 2}  # fmt: skip


@pytest.fixture
def session(request):
    try:
        return prepare(iree_targets(build(FIELDS, 0), request.param))
    except Unavailable as reason:
        pytest.skip(str(reason))


def readings(session):
    check(session)
    return {one.metric: one.value for one in read_once(session) if isinstance(one, Reading)}


def dumped(session, target, kind, folder):
    """Return the text of IREE's files of one kind."""
    backend, flags = stablehlo_engines.BACKENDS[target]
    dump = f"--iree-hal-dump-executable-{kind}-to={folder}"
    stablehlo_engines.compile_text(session.capture.stablehlo, backend, [*flags, dump])
    return {path.suffix: path.read_text(errors="replace") for path in folder.iterdir()}


@pytest.mark.parametrize("session", ["rocm_gfx90a", "rocm_gfx942"], indirect=True)
def test_rocms_registers_are_those_of_its_assembly(session, tmp_path):
    text = dumped(session, session.subject.engine.target, "intermediates", tmp_path)[".rocmasm"]
    used, spilled = (
        [int(one) for one in re.findall(rf"\.{name}:\s+(\d+)", text)]
        for name in ("vgpr_count", "vgpr_spill_count")
    )
    found = readings(session)
    assert found["registers"] == max(used) > 0
    assert found["spilled_registers"] == max(spilled)
    assert found["kernels"] == len(used) > 1


@pytest.mark.parametrize("session", ["cuda_sm_80"], indirect=True)
def test_cudas_registers_are_those_that_ptxas_prints(session, tmp_path):
    text = dumped(session, "cuda_sm_80", "binaries", tmp_path)[".ptx"]
    path = tmp_path / "again.ptx"
    path.write_text(text)
    command = [triton.knobs.nvidia.ptxas.path, "-v", "-arch", "sm_80", str(path), "-o", str(tmp_path / "c")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    used = [int(one) for one in re.findall(r"Used (\d+) registers", said)]
    stacks = [int(one) for one in re.findall(r"(\d+) bytes stack frame", said)]
    found = readings(session)
    assert found["registers"] == max(used) > 0
    assert found["spilled_registers"] == max(stacks) // 4
    assert found["kernels"] == len(used) > 1


def test_what_cannot_be_read_is_a_note():
    (note,) = stablehlo_engines.usage_readings({"a.hsaco": b"no ELF"}, "rocm_gfx942")
    assert isinstance(note, Note)
    assert note.text.startswith("registers: not read, ")
    assert list(stablehlo_engines.usage_readings({"a.spv": b"x"}, "vulkan")) == []
