"""The optimizations of the limits suite as functions of their settings."""

from __future__ import annotations

from typing import Annotated

from harness.bounds import Bounds, PositiveInt
from suites.seconds.limits import Subject, changed


def combined(
    subject: Subject,
    overlap: Annotated[float, Bounds(at_least=0, at_most=1)] | None,
    batch_exponent: Annotated[float, Bounds(at_least=0, at_most=1)] | None,
    depth_exponent: Annotated[float, Bounds(at_least=0, at_most=1)] | None,
) -> Subject:
    """Several of the others at once: hidden communication, a batch that grows, and models that are no deeper.

    The settings of `overlap`, of `larger_batch` and of `wider`; null leaves an input as it is.
    """
    given = {"overlap": overlap, "batch_exponent": batch_exponent, "depth_exponent": depth_exponent}
    return changed(subject, **{name: value for name, value in given.items() if value is not None})


def faster_network(subject: Subject, network_B_per_s: Annotated[float, Bounds(at_least=1e8)]) -> Subject:
    """The network between nodes is faster.

    `network_B_per_s`: of one GPU, in each direction.
    """
    return changed(subject, network_B_per_s=network_B_per_s)


def larger_batch(
    subject: Subject, batch_exponent: Annotated[float, Bounds(at_least=0, at_most=1)]
) -> Subject:
    """The batch grows with the data of the run.

    `batch_exponent`: the batch grows with this power of the tokens.
    """
    return changed(subject, batch_exponent=batch_exponent)


def larger_node(subject: Subject, node_size: PositiveInt) -> Subject:
    """More GPUs share the fast link.

    `node_size`: GPUs of a node.
    """
    return changed(subject, node_size=node_size)


def longer_run(subject: Subject, run_s: Annotated[float, Bounds(at_least=3600)]) -> Subject:
    """The run takes longer, on fewer GPUs.

    `run_s`: seconds of the run.
    """
    return changed(subject, run_s=run_s)


def overlap(subject: Subject, overlap: Annotated[float, Bounds(at_least=0, at_most=1)]) -> Subject:
    """Overlap communication with computation, as much of the shorter of both as `overlap` says.

    `overlap`: share of the shorter of both that is hidden.
    """
    return changed(subject, overlap=overlap)


def sparse(subject: Subject, experts: PositiveInt, experts_per_token: PositiveInt) -> Subject:
    """A mixture of experts, of which each token uses some: expert parallelism becomes possible.

    `experts`: of each layer; `experts_per_token`: those that one token uses, which the FLOP count.
    """
    return changed(subject, experts=experts, experts_per_token=experts_per_token)


def wider(subject: Subject, depth_exponent: Annotated[float, Bounds(at_least=0, at_most=1)]) -> Subject:
    """Larger models are wider and no deeper.

    `depth_exponent`: layers grow with this power of the parameters.
    """
    return changed(subject, depth_exponent=depth_exponent)
