"""Right first: a variant's outputs and gradients against float64's, at its workload's shape and awkward ones.

Part of `check`. An error is |ours - float64| over the largest |float64| of the same tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from harness.records import WrongResult
from suites.kernels.bound_call import (
    as_torch,
    bind,
    first_call,
    make_inputs,
    make_upstream,
    mapped,
    tensors_of,
    work_of,
)
from suites.kernels.edge_cases import awkward
from suites.kernels.reference import Reference, evaluate, in_float64, reference, reference_of
from suites.kernels.subject import Inputs, Subject, Workload

ROUNDING = 2.0**-24
"""Of fp32. A gradient that comes by cancellation, as a saturated softmax's does, is known no closer than to
this share of what flows into it, and plain PyTorch's is off by as much."""

UPDATES = 5
"""Of AdamW, so that moments that are kept wrong show."""


def check(subject: Subject) -> None:
    """Raises WrongResult where a tensor is off by more than `subject.tolerance`, or not finite.

    Leaves in `held`: `max_error`, the worst of all that was compared; `compared`, in words; `first_s`, what
    the first call at the own shape took.
    """
    worst, shapes = 0.0, []
    if subject.shapes != "awkward":
        worst = own_shape(subject)
        shapes.append("the workload's own shape" + _heads(subject))
    if "awkward" in subject.shapes:
        for name, workload, inputs in awkward(subject):
            worst = max(worst, at(replace(subject, workload=workload, held={}), inputs, f" ({name})"))
            shapes.append(name)
    subject.held["max_error"] = worst
    subject.held["compared"] = "; ".join(shapes)


def _heads(subject: Subject) -> str:
    num_attention_heads = subject.held.get("num_attention_heads")
    return "" if num_attention_heads is None else f", {num_attention_heads} of its heads"


def own_shape(subject: Subject) -> float:
    """The worst error at the workload's own shape, with the very work that is timed afterwards."""
    workload = subject.workload
    if workload.operation == "adamw":
        inputs = make_inputs(subject.operation, workload, subject.seed, subject.device)
        return updates(subject, inputs, "")
    expected = reference_of(subject.operation, workload, subject.seed, subject.device)
    result = first_call(subject, work_of(subject))
    if (
        expected.num_attention_heads is not None
        and len(expected.num_attention_heads) < workload.micro_batch_size * workload.num_attention_heads
    ):
        subject.held["num_attention_heads"] = len(expected.num_attention_heads)
    return compared(subject, as_torch(subject, result), expected, "")


def at(subject: Subject, inputs: Inputs, where: str) -> float:
    """The worst error on `inputs`."""
    if subject.workload.operation == "adamw":
        return updates(subject, inputs, where)
    upstream = make_upstream(subject.operation, inputs, subject.seed)
    expected = reference(subject.operation, inputs, upstream)
    known = ROUNDING * flows_in(subject.workload.operation, inputs, upstream)
    return compared(subject, as_torch(subject, bind(subject, inputs, upstream)()), expected, where, known)


def flows_in(operation: str, inputs: Inputs, upstream: Sequence[Tensor]) -> float:
    """The largest term of the sums in which an operation's gradients cancel, at most.

    A softmax's: its upstream gradient. Inside attention that is a product with V over the head size, and on
    the way to Q and K it is multiplied by K and Q and divided by the root of the head size K:
    sqrt(K) max|dO| max|V| max(|Q|, |K|); of one token the whole of it cancels.
    """
    largest = max((float(one.abs().max()) for one in upstream if one.numel()), default=0.0)
    if operation != "attention":
        return largest
    q, k, v = (float(one.detach().abs().max()) for one in inputs[:3])
    return largest * v * max(q, k) * math.sqrt(inputs[0].shape[-1])


def updates(subject: Subject, inputs: Inputs, where: str) -> float:
    """AdamW updates in place: all tensors after several updates, the same gradients each time."""
    ours, theirs = mapped(torch.clone, inputs), in_float64(inputs)
    work = bind(subject, ours, [])
    for index in range(UPDATES):
        result = work() if index else first_call(subject, work)
        evaluate(subject.operation, theirs, [])
        ours[-1].add_(1)
        theirs[-1].add_(1)
        if index == 0:
            returned = list(tensors_of(as_torch(subject, result)[0]))
            if len(returned) != subject.workload.tensors:
                raise WrongResult(f"adamw returned {len(returned)} tensors, not its parameters{where}")
    names = ("parameter", "gradient", "first moment", "second moment")
    changed = {
        f"{name} {index}": (one, other)
        for name, group, wide in zip(names, ours[:-1], theirs[:-1], strict=True)
        for index, (one, other) in enumerate(zip(group, wide, strict=True))
    }
    return max(
        error_of(subject, name, one, other, f" after {UPDATES} updates{where}")
        for name, (one, other) in changed.items()
    )


def compared(
    subject: Subject,
    result: tuple[Sequence[Tensor], Sequence[Tensor]],
    expected: Reference,
    where: str,
    known: float = 0.0,
) -> float:
    """The worst error of all tensors; raises WrongResult. Gradients are known to `known`, no closer."""
    worst = 0.0
    for kind, ours, theirs in zip(("output", "gradient"), result, expected[:2], strict=True):
        if len(ours) != len(theirs):
            raise WrongResult(f"{len(ours)} {kind}s instead of {len(theirs)}{where}{_of(subject.workload)}")
        for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            if expected.num_attention_heads is not None:
                one = torch.stack([one[b, h] for b, h in expected.num_attention_heads])
            rounding = known if kind == "gradient" else 0.0
            worst = max(worst, error_of(subject, f"{kind} {index}", one, other, where, rounding))
    return worst


def error_of(
    subject: Subject, name: str, ours: Tensor, expected: Tensor, where: str, known: float = 0.0
) -> float:
    """The error of one tensor; raises WrongResult with the worst element's place."""
    said, ours = where + _of(subject.workload), ours.detach().to(expected.device)
    if ours.shape != expected.shape:
        raise WrongResult(f"{name} has shape {tuple(ours.shape)}, not {tuple(expected.shape)}{said}")
    if not expected.numel():
        return 0.0
    off = (ours.double() - expected).abs_()
    largest = max(expected.abs().max().item(), known / subject.tolerance)
    at = int(off.nan_to_num(nan=torch.inf).argmax())
    error = off.flatten()[at].item() / (largest or 1.0)
    if not error <= subject.tolerance:
        place = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), expected.shape))
        value, wanted = ours.flatten()[at].item(), expected.flatten()[at].item()
        raise WrongResult(
            f"{name} is {value:.6g} and in float64 {wanted:.6g} at {list(place)} of {list(expected.shape)}: "
            f"off by {error:.2e} of the largest, allowed {subject.tolerance:.0e}{said}"
        )
    return float(error)


def _of(workload: Workload) -> str:
    return f"; {workload.operation}, {workload.dtype}"
