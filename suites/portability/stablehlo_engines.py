"""Compilers of StableHLO: IREE and XLA, for this CPU and for devices that need not be here.

For those nothing is run: the record has whether it compiles, the bytes and seconds, and for CUDA and ROCm the
registers and spills of the kernel that needs most. For TPUs libtpu compiles for a topology that it describes.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness.instruments.process import kept_code, only_threads
from harness.instruments.triton_kernels.targets import KernelUsage, of_hsaco, of_ptx
from harness.records import Note, Origin, Reading, Unavailable
from suites.portability.cpu_engines import array_of, tensors_of
from suites.portability.graph import Capture
from suites.portability.packages import as_tried, without_other_dialects
from suites.portability.subject import Compiled, compiled_on

IREE_TRIED = "3.13.0"


def compile_text(text: str, backend: str, flags: Sequence[str]) -> bytes:
    """Return IREE's program for one backend; raises the compiler's error."""
    with as_tried("iree-base-compiler", IREE_TRIED):
        from iree.compiler import compile_str
    return bytes(compile_str(text, target_backends=[backend], input_type="stablehlo", extra_args=list(flags)))


def iree_compiled(capture: Capture) -> Compiled:
    """Return the program, loaded, with its inputs on IREE's device."""
    flags = ["--iree-llvmcpu-target-cpu=host"]
    program, method = kept_code(
        lambda: compile_text(capture.stablehlo, "llvm-cpu", flags), "iree", *flags, capture.key
    )
    with as_tried("iree-base-runtime", IREE_TRIED):
        from iree import runtime

        runtime.flags.parse_flags(f"--task_topology_max_group_count={torch.get_num_threads()}")
        config = runtime.Config("local-task")
        context = runtime.SystemContext(config=config)
        context.add_vm_module(runtime.VmModule.copy_buffer(context.instance, program))
    main = context.modules.module["main"]

    def on_device(given: Sequence[Tensor]) -> list[Any]:
        return [runtime.asdevicearray(config.device, array_of(one)) for one in given]

    def computed(given: Sequence[Any]) -> Any:
        result = main(*given)
        return result if isinstance(result, tuple | list) else (result,)

    def tensors(result: Any) -> list[Tensor]:
        return tensors_of([one.to_host() for one in result])

    return compiled_on(computed, on_device, capture.inputs, tensors, len(program), method)


BACKENDS = {
    "cuda_sm_80": ("cuda", ["--iree-cuda-target=sm_80"]),
    "cuda_sm_90": ("cuda", ["--iree-cuda-target=sm_90"]),
    "cuda_sm_100": ("cuda", ["--iree-cuda-target=sm_100"]),
    "rocm_gfx90a": ("rocm", ["--iree-rocm-target=gfx90a"]),
    "rocm_gfx942": ("rocm", ["--iree-rocm-target=gfx942"]),
    "vulkan": ("vulkan-spirv", []),
    "metal": ("metal-spirv", []),
}
"""Targets: IREE's backend and its flags."""


def iree_compiled_for(capture: Capture, target: str) -> Compiled:
    """Return the size of the target's program and what its kernels need; raises the compiler's error."""
    backend, flags = BACKENDS[target]
    with tempfile.TemporaryDirectory() as folder:
        dump = f"--iree-hal-dump-executable-binaries-to={folder}"
        program = compile_text(capture.stablehlo, backend, [*flags, dump])
        objects = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    return Compiled(None, size_B=len(program), readings=usage_readings(objects, target))


def usage_readings(objects: Mapping[str, bytes], target: str) -> Iterator[Reading | Note]:
    """Yield the most registers and spills of any kernel in a program's code objects, by their files' names.

    SPIR-V, for Vulkan and Metal, has no registers.
    """
    try:
        kernels: list[KernelUsage] = []
        for name, code in objects.items():
            if name.endswith(".hsaco"):
                kernels += of_hsaco(code)
            elif name.endswith(".ptx"):
                kernels += of_ptx(code.decode(), target.removeprefix("cuda_"))
    except Unavailable as reason:
        yield Note(f"registers: not read, {reason}")
        return
    if kernels:
        largest = {
            "registers": max(one.registers for one in kernels),
            "spilled_registers": max(one.spilled_registers for one in kernels),
            "kernels": len(kernels),
        }
        yield from (Reading(name, "1", value, Origin.CALCULATED) for name, value in largest.items())


XLA_TRIED = "0.10.2"


def xla_compiled(capture: Capture) -> Compiled:
    """Return the executable with its inputs on XLA's device. Reaches JAX's client, which is not public."""
    text = capture.stablehlo
    with as_tried("jaxlib", XLA_TRIED), only_threads(torch.get_num_threads()):
        import jax
        from jax._src.lib import xla_client

        (device,) = jax.devices("cpu")[:1]
        client: Any = device.client
        module, devices = parsed(text), xla_client.DeviceList((device,))
        executable = client.compile_and_load(module, devices, xla_client.CompileOptions())
        with jax.enable_x64(True):  # else JAX makes int32 of tokens
            inputs = [jax.device_put(array_of(one), device) for one in capture.inputs]

    def call() -> Any:
        return jax.block_until_ready(executable.execute(inputs))

    return Compiled(call, tensors_of, _size_B(executable))


def parsed(text: str) -> Any:
    """Return StableHLO's text as a module of JAX's package."""
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir

    with mlir.make_ir_context():
        return ir.Module.parse(text)


def _size_B(executable: Any) -> int | None:
    """Return the bytes of the machine code, where the client gives them."""
    try:
        size_B = int(executable.size_of_generated_code_in_bytes())
    except Exception:  # not every client has it
        return None
    return size_B if size_B > 0 else None


TOPOLOGIES = {"tpu_v5e": "v5e:2x2", "tpu_v6e": "v6e:2x2"}
"""Targets: the topology that libtpu describes; one of its chips is compiled for."""

SETTINGS = {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
"""Variables that libtpu reads: it asks no cloud's server what machine this is, and takes no lock on a TPU."""


def xla_compiled_for(capture: Capture, target: str) -> Compiled:
    """Return the size of the target's program; raises the compiler's error."""
    text = without_other_dialects(capture.stablehlo)
    os.environ.update(SETTINGS)
    with as_tried("jaxlib", XLA_TRIED):
        from jax._src.lib import xla_client
        from jax.experimental import topologies

        topology = topologies.get_topology_desc(TOPOLOGIES[target], platform="tpu")
        device: Any = topology.devices[0]
        module, options = parsed(text), xla_client.CompileOptions()
    executable = device.client.compile(module, xla_client.DeviceList((device,)), options)
    return Compiled(None, size_B=int(executable.get_compiled_memory_stats().generated_code_size_in_bytes))
