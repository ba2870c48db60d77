"""The optimizations of the suites limits and step_gains as functions of their settings."""

from __future__ import annotations

from typing import Annotated, Literal

from harness.bounds import Bounds, PositiveInt
from harness.records import Unavailable
from suites.seconds.limits import Subject as Limited
from suites.seconds.limits import changed as with_inputs
from suites.seconds.step_gains import Subject, changed


def combined(
    subject: Limited,
    overlap: Annotated[float, Bounds(at_least=0, at_most=1)] | None,
    batch_exponent: Annotated[float, Bounds(at_least=0, at_most=1)] | None,
    depth_exponent: Annotated[float, Bounds(at_least=0, at_most=1)] | None,
) -> Limited:
    """Several of the others at once: hidden communication, a batch that grows, and models that are no deeper.

    The settings of `overlap`, of `larger_batch` and of `wider`; null leaves an input as it is.
    """
    given = {"overlap": overlap, "batch_exponent": batch_exponent, "depth_exponent": depth_exponent}
    return with_inputs(subject, **{name: value for name, value in given.items() if value is not None})


def faster_network(subject: Limited, network_B_per_s: Annotated[float, Bounds(at_least=1e8)]) -> Limited:
    """The network between nodes is faster.

    `network_B_per_s`: of one GPU, in each direction.
    """
    return with_inputs(subject, network_B_per_s=network_B_per_s)


def larger_batch(
    subject: Limited, batch_exponent: Annotated[float, Bounds(at_least=0, at_most=1)]
) -> Limited:
    """The batch grows with the data of the run.

    `batch_exponent`: the batch grows with this power of the tokens.
    """
    return with_inputs(subject, batch_exponent=batch_exponent)


def larger_node(subject: Limited, node_size: PositiveInt) -> Limited:
    """More GPUs share the fast link.

    `node_size`: GPUs of a node.
    """
    return with_inputs(subject, node_size=node_size)


def longer_run(subject: Limited, run_s: Annotated[float, Bounds(at_least=3600)]) -> Limited:
    """The run takes longer, on fewer GPUs.

    `run_s`: seconds of the run.
    """
    return with_inputs(subject, run_s=run_s)


def overlap(subject: Limited, overlap: Annotated[float, Bounds(at_least=0, at_most=1)]) -> Limited:
    """Overlap communication with computation, as much of the shorter of both as `overlap` says.

    `overlap`: share of the shorter of both that is hidden.
    """
    return with_inputs(subject, overlap=overlap)


def sparse(subject: Limited, experts: PositiveInt, experts_per_token: PositiveInt) -> Limited:
    """A mixture of experts, of which each token uses some: expert parallelism becomes possible.

    `experts`: of each layer; `experts_per_token`: those that one token uses, which the FLOP count.
    """
    return with_inputs(subject, experts=experts, experts_per_token=experts_per_token)


def wider(subject: Limited, depth_exponent: Annotated[float, Bounds(at_least=0, at_most=1)]) -> Limited:
    """Larger models are wider and no deeper.

    `depth_exponent`: layers grow with this power of the parameters.
    """
    return with_inputs(subject, depth_exponent=depth_exponent)


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
