"""OpenVINO (docs.openvino.ai): torch.export's program, converted and compiled for this CPU."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from harness.instruments.process import kept_code
from harness.records import HostInfo
from suites.portability.arrays import array_of, tensor_of
from suites.portability.capture.graph import Capture
from suites.portability.extra import as_tried, installed, missing
from suites.portability.subject import Compiled, Engine, Subject

TRIED = "2026.4.1"

PRECISIONS = {torch.float32: "f32", torch.bfloat16: "bf16"}
"""Values of INFERENCE_PRECISION_HINT: without it OpenVINO computes fp32 graphs in bf16 where the CPU can."""


def unavailable(host: HostInfo) -> str | None:
    """Return why it cannot run here; None where it can."""
    return missing("openvino")


def apply(subject: Subject) -> Subject:
    """Return the subject compiled by OpenVINO, in the precision of its inputs."""
    return replace(subject, engine=Engine("openvino", compiled, version=installed("openvino")))


def compiled(capture: Capture) -> Compiled:
    """Return the compiled model; its inputs share memory with torch's."""
    with as_tried("openvino", TRIED):
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
    inputs = [_on_device(openvino, one) for one in capture.inputs]

    def call() -> Any:
        return request.infer(inputs, share_inputs=True, share_outputs=True)

    def call_with(others: Sequence[torch.Tensor]) -> Any:
        given = [_on_device(openvino, one) for one in others]
        return request.infer(given, share_inputs=True, share_outputs=True)

    def tensors(result: Any) -> list[torch.Tensor]:
        return [
            _tensor(result[output], output.element_type == openvino.Type.bf16) for output in model.outputs
        ]

    return Compiled(call, tensors, len(code), compile_method=method, call_with=call_with)


def _tensor(value: Any, is_bf16: bool) -> torch.Tensor:
    """Return a result as a tensor; OpenVINO gives the bits of bf16 as NumPy's float16."""
    if not is_bf16:
        return tensor_of(value)
    return torch.from_numpy(value.view("int16").copy()).view(torch.bfloat16)


def _on_device(openvino: Any, tensor: torch.Tensor) -> Any:
    if tensor.dtype != torch.bfloat16:
        return array_of(tensor)
    holder = openvino.Tensor(openvino.Type.bf16, list(tensor.shape))
    holder.data.view("int16")[...] = tensor.contiguous().view(torch.int16).numpy()
    return holder
