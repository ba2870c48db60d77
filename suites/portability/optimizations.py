"""The optimizations of the portability suite: compilers of the captured graph, here and for other targets.

Those whose packages are not installed raise `Unavailable` with the extra that brings them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from harness.records import Unavailable
from suites.portability.packages import installed, require
from suites.portability.subject import Compiled, Engine, Subject


def compiled_by(
    subject: Subject, name: str, compile_graph: Callable[..., Compiled], version: str = "", **more: Any
) -> Subject:
    """Return the subject under an engine."""
    return replace(subject, engine=Engine(name, compile_graph, version=version, **more))


def inductor(subject: Subject) -> Subject:
    """torch.compile's compiler Inductor (ASPLOS 2024, doi 10.1145/3620665.3640366) on the captured graph."""
    import torch

    from suites.portability.cpu_engines import inductor_compiled

    return compiled_by(subject, "inductor", inductor_compiled, torch.__version__)


def onnx_runtime(subject: Subject) -> Subject:
    """ONNX Runtime (onnxruntime.ai): torch.export's program as ONNX, run by the CPU's execution provider."""
    require("onnxruntime", "onnx", "onnxscript")
    from suites.portability.cpu_engines import onnx_runtime_compiled

    return compiled_by(subject, "onnx_runtime", onnx_runtime_compiled, installed("onnxruntime"))


def openvino(subject: Subject) -> Subject:
    """OpenVINO (docs.openvino.ai): torch.export's program, compiled for this CPU in its inputs' precision."""
    require("openvino")
    from suites.portability.cpu_engines import openvino_compiled

    return compiled_by(subject, "openvino", openvino_compiled, installed("openvino"))


def tvm(subject: Subject) -> Subject:
    """Apache TVM (OSDI 2018): torch.export's program as Relax, compiled by LLVM for this CPU, without tuning.

    For it an embedding's gradient is written as a product.
    """
    require("tvm")
    from suites.portability.cpu_engines import tvm_compiled

    rewritten = ("embedding_backward",)
    return compiled_by(subject, "tvm", tvm_compiled, installed("apache-tvm"), rewritten=rewritten)


def iree(subject: Subject) -> Subject:
    """IREE (iree.dev): StableHLO by torch-mlir, compiled by LLVM for this CPU and run by IREE's runtime."""
    require("iree.compiler", "iree.runtime", "torch_mlir")
    from suites.portability.stablehlo_engines import iree_compiled

    return compiled_by(subject, "iree", iree_compiled, installed("iree-base-compiler"))


def iree_targets(subject: Subject, target: str = "cuda_sm_80") -> Subject:
    """IREE's compiler for devices that need not be here: each target gets the same StableHLO as the CPU.

    `target`: a name of `stablehlo_engines.BACKENDS`.
    """
    require("iree.compiler", "torch_mlir")
    from suites.portability.stablehlo_engines import iree_compiled_for

    compile_for = partial(iree_compiled_for, target=target)
    return compiled_by(subject, "iree", compile_for, installed("iree-base-compiler"), target=target)


def xla(subject: Subject) -> Subject:
    """XLA: StableHLO by torch-mlir, run by the CPU client of JAX's package, on torch's threads."""
    require("jax", "torch_mlir")
    from suites.portability.stablehlo_engines import xla_compiled

    return compiled_by(subject, "xla", xla_compiled, installed("jaxlib"))


def xla_targets(subject: Subject, target: str = "tpu_v5e") -> Subject:
    """XLA's compiler for TPUs that need not be here: libtpu compiles for a topology that it describes.

    `target`: a name of `stablehlo_engines.TOPOLOGIES`.
    """
    require("jax", "libtpu", "torch_mlir")
    from suites.portability.stablehlo_engines import xla_compiled_for

    version = f"{installed('jaxlib')}, libtpu {installed('libtpu')}"
    return compiled_by(subject, "xla", partial(xla_compiled_for, target=target), version, target=target)


def any_length(
    subject: Subject, engine: Literal["inductor", "iree", "onnx_runtime", "openvino"] = "inductor"
) -> Subject:
    """Engines that compile once for sequences of any length; half of the workload's is compared, too.

    `engine`: which one compiles.
    """
    engines = {"inductor": inductor, "iree": iree, "onnx_runtime": onnx_runtime, "openvino": openvino}
    chosen = engines[engine](subject).engine
    assert chosen is not None
    return replace(subject, engine=replace(chosen, any_length=True))


def triton(subject: Subject) -> Subject:
    """Our own Triton kernels in the place of the operators that they cover, interpreted at a small shape.

    Raises `Unavailable` where there is none.
    """
    import triton as package

    from suites.portability.triton_engines import interpreted, small

    shrunk = replace(subject, workload=small(subject.workload))
    run, version = interpreted(shrunk.workload, subject.seed), str(package.__version__)
    more = {"target": "interpreter", "takes_graph": False, "timed": False}
    return compiled_by(shrunk, "triton", run, version, **more)


def triton_cpu(subject: Subject) -> Subject:
    """Our own Triton kernels compiled for this CPU: the text that runs on GPUs, from packages alone.

    Raises `Unavailable` where there is none, or no tool.
    """
    import triton as package

    from harness.instruments.triton_kernels import targets
    from suites.portability.triton_engines import compiled_here

    if reason := targets.unavailable():
        raise Unavailable(reason)
    require("torch_mlir")
    run = compiled_here(subject.workload, subject.seed)
    return compiled_by(subject, "triton_cpu", run, str(package.__version__), takes_graph=False)


def triton_targets(subject: Subject, target: str = "sm_80") -> Subject:
    """Triton's compiler for GPUs that need not be here: what every kernel of the workload needs of one.

    `target`: a name of `instruments.triton_kernels.targets.TARGETS`. Raises `Unavailable` without kernels.
    """
    import triton as package

    from suites.portability.triton_engines import compiled_for, kernels_of

    kernels_of(subject.workload)
    compile_for = partial(compiled_for, workload=subject.workload, target=target)
    version = str(package.__version__)
    return compiled_by(subject, "triton", compile_for, version, target=target, takes_graph=False)


def triton_ascend(subject: Subject) -> Subject:
    """Triton's IR lowered towards Huawei's Ascend by triton-ascend's tool: every kernel to linalg.

    Raises `Unavailable` where there are no kernels, or no tool.
    """
    from harness.instruments.triton_kernels import targets
    from suites.portability.triton_engines import kernels_of, lowered_for_ascend

    if reason := targets.unavailable():
        raise Unavailable(reason)
    kernels_of(subject.workload)
    lower = partial(lowered_for_ascend, workload=subject.workload)
    return compiled_by(subject, "triton_ascend", lower, target="ascend", takes_graph=False)
