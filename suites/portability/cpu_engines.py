"""Compilers that take torch's own graph and run it here: Inductor, ONNX Runtime, OpenVINO, TVM by LLVM."""

from __future__ import annotations

import io
import logging
import os
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._dynamo import mark_dynamic

from harness.instruments.process import kept_code
from harness.instruments.torch_internals import compilations_from_cache
from harness.records import Unavailable
from suites.portability.graph import Capture
from suites.portability.packages import as_tried
from suites.portability.subject import Compiled, compiled_on


def array_of(tensor: Tensor) -> Any:
    """Return a tensor as an array on the same memory; bf16 in ml_dtypes' type, which JAX's packages bring."""
    plain = tensor.detach().contiguous()
    if plain.dtype != torch.bfloat16:
        return plain.numpy()
    import ml_dtypes

    return plain.view(torch.int16).numpy().view(ml_dtypes.bfloat16)


def tensor_of(value: Any) -> Tensor:
    """Return an engine's result as a tensor of its own type."""
    array = np.asarray(value)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def tensors_of(values: Sequence[Any]) -> list[Tensor]:
    """Return an engine's results as tensors."""
    return [tensor_of(one) for one in values]


NO_POOL = ("TORCH_WARM_POOL", "0")
"""Variable and value without which torch starts processes for Triton's compiler, of which a CPU's code has no
use (torch/_inductor/async_compile.py, maybe_warm_pool). They import torch while other engines compile."""


def inductor_compiled(capture: Capture) -> Compiled:
    """Return the graph compiled for its shapes, or for any size of those dimensions that it leaves open.

    Calling it with sizes for which it would compile again raises torch's error.
    """
    os.environ.setdefault(*NO_POOL)
    torch.compiler.reset()
    hits = compilations_from_cache()
    function = torch.compile(capture.graph, dynamic=None if capture.dynamic else False, fullgraph=True)
    inputs = _marked(capture.inputs, capture.dynamic)

    def call() -> object:
        with torch.no_grad():
            return function(*inputs)

    def call_with(others: Sequence[Tensor]) -> object:
        with torch.no_grad(), torch.compiler.set_stance("fail_on_recompile"):
            return function(*_marked(others, capture.dynamic))

    call()
    method = "cached" if compilations_from_cache() > hits else "cold"
    return Compiled(call, compile_method=method, call_with=call_with)


def _marked(inputs: Sequence[Tensor], dynamic: Sequence[Sequence[int]]) -> Sequence[Tensor]:
    """Return the inputs, those with open sizes as copies that are marked so."""
    marked = list(inputs)
    for index, dims in enumerate(dynamic):
        if dims:
            marked[index] = inputs[index].clone()
            mark_dynamic(marked[index], list(dims))
    return marked


ONNX_RUNTIME_TRIED = "1.32.0"


def onnx_runtime_compiled(capture: Capture) -> Compiled:
    """Return the session; its threads sleep between calls, since other engines are timed in turn."""
    with as_tried("onnxruntime", ONNX_RUNTIME_TRIED):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    model, method = kept_code(lambda: exported_model(capture), "onnx_runtime", capture.key)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    outputs = [one.name for one in session.get_outputs()]

    def feed_of(inputs: Sequence[Tensor]) -> dict[str, Any]:
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(array_of(one)) for one in inputs]
        return dict(zip(names, values, strict=True))

    def run(feed: dict[str, Any]) -> Any:
        return session.run_with_ort_values(outputs, feed)

    def tensors(result: Any) -> list[Tensor]:
        return tensors_of([one.numpy() for one in result])

    return compiled_on(run, feed_of, capture.inputs, tensors, len(model), method)


def exported_model(capture: Capture) -> bytes:
    """Return the ONNX model; raises what torch's exporter raises."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with redirect_stdout(io.StringIO()):  # the exporter prints its progress
        program = torch.onnx.export(capture.exported, capture.inputs, dynamo=True, verbose=False)
    if program is None:
        raise Unavailable(f"torch {torch.__version__}: torch.onnx.export returned no program")
    return bytes(program.model_proto.SerializeToString())


OPENVINO_TRIED = "2026.4.1"

PRECISIONS = {torch.float32: "f32", torch.bfloat16: "bf16"}
"""Values of INFERENCE_PRECISION_HINT: without it OpenVINO computes fp32 graphs in bf16 where the CPU can."""


def openvino_compiled(capture: Capture) -> Compiled:
    """Return the compiled model; its inputs share memory with torch's."""
    with as_tried("openvino", OPENVINO_TRIED):
        import openvino
    floating = next(one.dtype for one in capture.inputs if one.is_floating_point())
    settings = {
        "INFERENCE_PRECISION_HINT": PRECISIONS[floating],
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "PERFORMANCE_HINT": "LATENCY",
    }
    core, stream = openvino.Core(), io.BytesIO()

    def code_of_graph() -> bytes:
        core.compile_model(openvino.convert_model(capture.exported), "CPU", settings).export_model(stream)
        return stream.getvalue()

    code, method = kept_code(code_of_graph, "openvino", str(settings), capture.key)
    model = core.import_model(io.BytesIO(code), "CPU", settings)
    request = model.create_infer_request()

    def place(inputs: Sequence[Tensor]) -> list[Any]:
        return [_on_device(openvino, one) for one in inputs]

    def run(inputs: list[Any]) -> Any:
        return request.infer(inputs, share_inputs=True, share_outputs=True)

    def tensors(result: Any) -> list[Tensor]:
        bf16 = openvino.Type.bf16
        return [_tensor(result[output], output.element_type == bf16) for output in model.outputs]

    return compiled_on(run, place, capture.inputs, tensors, len(code), method)


def _tensor(value: Any, is_bf16: bool) -> Tensor:
    """Return a result as a tensor; OpenVINO gives the bits of bf16 as NumPy's float16."""
    if not is_bf16:
        return tensor_of(value)
    return torch.from_numpy(value.view("int16").copy()).view(torch.bfloat16)


def _on_device(openvino: Any, tensor: Tensor) -> Any:
    if tensor.dtype != torch.bfloat16:
        return array_of(tensor)
    holder = openvino.Tensor(openvino.Type.bf16, list(tensor.shape))
    holder.data.view("int16")[...] = tensor.contiguous().view(torch.int16).numpy()
    return holder


TVM_TRIED = "0.27.0"


def tvm_compiled(capture: Capture) -> Compiled:
    """Return Relax's virtual machine with the program and its inputs."""
    with as_tried("apache-tvm", TVM_TRIED):
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

    def place(inputs: Sequence[Tensor]) -> list[Any]:
        return [tvm.runtime.tensor(array_of(one)) for one in inputs]

    def tensors(result: Any) -> list[Tensor]:
        return tensors_of([one.numpy() for one in result])

    run = lambda inputs: machine["main"](*inputs)  # noqa: E731
    return compiled_on(run, place, capture.inputs, tensors, len(code), method)
