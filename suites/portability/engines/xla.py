"""XLA: StableHLO by torch-mlir, compiled and run by the CPU client of JAX's package."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from harness.instruments.process import only_threads
from harness.records import HostInfo
from suites.portability import stablehlo
from suites.portability.arrays import array_of, tensors_of
from suites.portability.capture.graph import Capture
from suites.portability.extra import as_tried, installed, missing
from suites.portability.subject import Compiled, Engine, Subject

TRIED = "0.10.2"


def unavailable(host: HostInfo) -> str | None:
    """Return why it cannot run here; None where it can."""
    return missing("jax") or stablehlo.unavailable()


def apply(subject: Subject) -> Subject:
    """Return the subject compiled by XLA for this CPU, with as many threads as torch."""
    return replace(subject, engine=Engine("xla", compiled, version=installed("jaxlib")))


def compiled(capture: Capture) -> Compiled:
    """Return the executable with its inputs on XLA's device. Reaches JAX's client, which is not public."""
    text = capture.stablehlo
    with as_tried("jaxlib", TRIED), only_threads(torch.get_num_threads()):
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
