"""Apache TVM (OSDI 2018): torch.export's program as Relax, compiled by LLVM for this CPU, without tuning."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from harness.instruments.process import kept_code
from harness.records import HostInfo
from suites.portability.arrays import array_of, tensors_of
from suites.portability.capture.graph import Capture
from suites.portability.extra import as_tried, installed, missing
from suites.portability.subject import Compiled, Engine, Subject

TRIED = "0.27.0"


def unavailable(host: HostInfo) -> str | None:
    """Return why it cannot run here; None where it can."""
    return missing("tvm")


def apply(subject: Subject) -> Subject:
    """Return the subject compiled by TVM, for which an embedding's gradient is written as a product."""
    engine = Engine("tvm", compiled, rewritten=("embedding_backward",), version=installed("apache-tvm"))
    return replace(subject, engine=engine)


def compiled(capture: Capture) -> Compiled:
    """Return Relax's virtual machine with the program and its inputs."""
    with as_tried("apache-tvm", TRIED):
        import tvm
        from tvm import relax
        from tvm.relax.frontend.torch import from_exported_program

    def library() -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "program.so")
            relax.build(from_exported_program(capture.exported), target="llvm").export_library(str(path))
            return path.read_bytes()

    code, method = kept_code(library, "tvm", capture.key)
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(code)
        file.flush()
        machine = relax.VirtualMachine(tvm.runtime.load_module(file.name), tvm.cpu())
    inputs = [tvm.runtime.tensor(array_of(one)) for one in capture.inputs]

    def call() -> Any:
        return machine["main"](*inputs)

    def tensors(result: Any) -> list[Tensor]:
        return tensors_of([one.numpy() for one in result])

    return Compiled(call, tensors, len(code), compile_method=method)
