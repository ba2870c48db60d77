"""ONNX Runtime (onnxruntime.ai): torch.export's program as ONNX, run by the CPU's execution provider."""

from __future__ import annotations

import io
import logging
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from harness.instruments.process import kept_code
from harness.records import HostInfo, Unavailable
from suites.portability.arrays import array_of, tensors_of
from suites.portability.capture.graph import Capture
from suites.portability.extra import as_tried, installed, missing
from suites.portability.subject import Compiled, Engine, Subject

TRIED = "1.32.0"


def unavailable(host: HostInfo) -> str | None:
    """Return why it cannot run here; None where it can."""
    return missing("onnxruntime", "onnx", "onnxscript")


def apply(subject: Subject) -> Subject:
    """Return the subject run by ONNX Runtime on the CPU."""
    return replace(subject, engine=Engine("onnx_runtime", compiled, version=installed("onnxruntime")))


def compiled(capture: Capture) -> Compiled:
    """Return the session; its threads sleep between calls, since other engines are timed in turn."""
    with as_tried("onnxruntime", TRIED):
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

    feed = feed_of(capture.inputs)

    def call() -> Any:
        return session.run_with_ort_values(outputs, feed)

    def call_with(inputs: Sequence[Tensor]) -> Any:
        return session.run_with_ort_values(outputs, feed_of(inputs))

    def tensors(result: Any) -> list[Tensor]:
        return tensors_of([one.numpy() for one in result])

    return Compiled(call, tensors, len(model), compile_method=method, call_with=call_with)


def exported_model(capture: Capture) -> bytes:
    """Return the ONNX model; raises what torch's exporter raises."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with redirect_stdout(io.StringIO()):  # the exporter prints its progress
        program = torch.onnx.export(capture.exported, capture.inputs, dynamo=True, verbose=False)
    if program is None:
        raise Unavailable(f"torch {torch.__version__}: torch.onnx.export returned no program")
    return bytes(program.model_proto.SerializeToString())
