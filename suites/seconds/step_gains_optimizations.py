"""The optimizations of the step_gains suite as functions of their settings."""

from __future__ import annotations

from typing import Annotated, Literal

from harness.bounds import Bounds, PositiveInt
from harness.records import Unavailable
from suites.seconds.step_gains import Subject, changed


def attention(subject: Subject, recompute: Literal["none", "selective"]) -> Subject:
    """The same step without FlashAttention: attention from a score matrix in memory.

    `recompute`: none keeps the scores of all layers, selective computes them again. Raises `Unavailable`
    with context parallelism.
    """
    layout = {**subject.workload.layout, "recompute": recompute}
    return changed(subject, attention="explicit", layout=layout)


def exposed(subject: Subject) -> Subject:
    """The same step without the overlap of tensor-parallel collectives and matmuls.

    Raises `Unavailable` without any.
    """
    if int(subject.workload.layout.get("tp", 1)) == 1:
        raise Unavailable("tp 1: there are no tensor-parallel collectives to overlap")
    return changed(subject, tensor_overlap=False)


def gpu(
    subject: Subject,
    device: str,
    gpus_per_node: PositiveInt,
    network_B_per_s: Annotated[float, Bounds(above=0)],
    gpu_hour_USD: Annotated[float, Bounds(above=0)],
    tp: PositiveInt,
) -> Subject:
    """The same step on as many GPUs of another kind, with the layout and the price that go with them.

    `device`: a name of conf/hardware. `tp`: most tensor-parallel ranks, since its memory is larger.
    """
    layout = subject.workload.layout
    fewer = {**layout, "tp": min(int(layout.get("tp", 1)), tp)}
    return changed(
        subject,
        device=device,
        gpus_per_node=gpus_per_node,
        network_B_per_s=network_B_per_s,
        gpu_hour_USD=gpu_hour_USD,
        layout=fewer,
    )


def link(subject: Subject, network_B_per_s: Annotated[float, Bounds(at_least=1e7)]) -> Subject:
    """The same step over another network between nodes.

    `network_B_per_s`: of one GPU, in each direction.
    """
    return changed(subject, network_B_per_s=network_B_per_s)


def precision(subject: Subject, precision: Literal["fp8", "mxfp8", "nvfp4"]) -> Subject:
    """The same step with narrower matmuls.

    `precision`: of matmuls, fp8, mxfp8 or nvfp4.
    """
    return changed(subject, precision=precision)


def zero_3(subject: Subject) -> Subject:
    """The same step with its parameters sharded over all GPUs (ZeRO-3), without tensor and pipeline ranks."""
    layout = {"zero": 3, "micro_batch_size": 1, "recompute": "full"}
    return changed(subject, layout=layout)
