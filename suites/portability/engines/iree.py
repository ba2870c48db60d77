"""IREE (iree.dev): StableHLO by torch-mlir, compiled by LLVM for this CPU and run by IREE's runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from harness.instruments.process import kept_code
from harness.records import HostInfo
from suites.portability import stablehlo
from suites.portability.arrays import array_of, tensors_of
from suites.portability.capture.graph import Capture
from suites.portability.extra import as_tried, installed, missing
from suites.portability.subject import Compiled, Engine, Subject

TRIED = "3.13.0"


def unavailable(host: HostInfo) -> str | None:
    """Return why it cannot run here; None where it can."""
    return missing("iree.compiler", "iree.runtime") or stablehlo.unavailable()


def apply(subject: Subject) -> Subject:
    """Return the subject compiled by IREE for this CPU."""
    return replace(subject, engine=Engine("iree", compiled, version=installed("iree-base-compiler")))


def compile_text(text: str, backend: str, flags: Sequence[str]) -> bytes:
    """Return IREE's program for one backend; raises the compiler's error."""
    with as_tried("iree-base-compiler", TRIED):
        from iree.compiler import compile_str
    return bytes(compile_str(text, target_backends=[backend], input_type="stablehlo", extra_args=list(flags)))


def compiled(capture: Capture) -> Compiled:
    """Return the program, loaded, with its inputs on IREE's device."""
    flags = ["--iree-llvmcpu-target-cpu=host"]
    program, method = kept_code(
        lambda: compile_text(capture.stablehlo, "llvm-cpu", flags), "iree", *flags, capture.key
    )
    with as_tried("iree-base-runtime", TRIED):
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

    inputs = on_device(capture.inputs)
    call_with = lambda others: computed(on_device(others))  # noqa: E731
    return Compiled(
        lambda: computed(inputs), tensors, len(program), compile_method=method, call_with=call_with
    )
