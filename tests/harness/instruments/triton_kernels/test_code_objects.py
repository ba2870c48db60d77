"""Registers read from code objects, compared with what assemblers print of the same code."""

import re
import subprocess

import pytest

from harness.instruments.triton_kernels.targets import of_ptx

triton = pytest.importorskip("triton")

LIVE = 40  # values that a kernel keeps at once
HEAD = ".version 7.6\n.target sm_80\n.address_size 64\n"


def ptx_of(name, most_registers):
    """Return a kernel that loads LIVE values, then stores them in the opposite order."""
    numbers = range(LIVE)
    loads = "\n".join(f"ld.volatile.global.f32 %f{i}, [%rd1+{4 * i}];" for i in numbers)
    stores = "\n".join(f"st.volatile.global.f32 [%rd1+{4 * i}], %f{i};" for i in reversed(numbers))
    return f"""
.visible .entry {name}(.param .u64 p) .maxntid 32 .maxnreg {most_registers}
{{
.reg .b64 %rd<3>;
.reg .f32 %f<{LIVE}>;
ld.param.u64 %rd2, [p];
cvta.to.global.u64 %rd1, %rd2;
{loads}
{stores}
ret;
}}"""


def as_ptxas_says(text, folder):
    """Return registers, bytes of stack and spilled bytes by kernel, as `ptxas -v` prints them."""
    path = folder / "kernels.ptx"
    path.write_text(text)
    command = [triton.knobs.nvidia.ptxas.path, "-v", "-arch", "sm_80", str(path), "-o", str(folder / "c")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    pattern = (
        r"function '(\w+)' for.*?(\d+) bytes stack frame, (\d+) bytes spill stores.*?Used (\d+) registers"
    )
    found = re.findall(pattern, said, re.S)
    return {name: (int(used), int(stack), int(spilled)) for name, stack, spilled, used in found}


def test_a_kernel_without_enough_registers_spills_and_its_neighbour_does_not(tmp_path):
    text = HEAD + ptx_of("roomy", 255) + ptx_of("tight", 24)
    found = {one.name: one for one in of_ptx(text, "sm_80")}
    assert set(found) == {"roomy", "tight"}
    for name, (used, stack_B, spilled_B) in as_ptxas_says(text, tmp_path).items():
        assert found[name].registers == used
        assert found[name].spilled_registers * 4 == stack_B
        assert 0 <= stack_B - spilled_B < 8  # frames are multiples of 8 B
    assert found["roomy"].registers > LIVE
    assert found["roomy"].spilled_registers == 0
    assert found["tight"].spilled_registers >= LIVE - 24
