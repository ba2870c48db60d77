"""Compare a variant's outputs and gradients with float64's, at its workload's shape and at edge cases.

An error is |ours - float64| over the largest |float64| of the same tensor. The reference has an operation's
eager function on the same inputs. Attention is computed in blocks of queries, each head alone, so that long
sequences fit; of many heads a few. Edge cases are small shapes at which hand-written kernels fail.

A training step is compared with plain PyTorch's in fp32, at the workload's own size: every parameter's
gradient of the first step, by the norm of the difference; then the losses of `STEPS` steps on one batch,
which check the optimizer. How close they must be is the step's contract, and they are compared as everywhere
(`suites.training.correctness`). A step that changes the mathematics must learn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from harness.records import Unavailable, WrongResult
from suites.kernels.bound_call import (
    Session,
    as_torch,
    bind,
    leaves_of,
    make_inputs,
    make_upstream,
    mapped,
    seconds_of,
    tensors_of,
)
from suites.kernels.subject import Inputs, Operation, Result, Subject
from suites.kernels.training_step import FixedBatchTrainer, contract_of, has_experts, step_of
from suites.kernels.workload import Workload
from suites.training import correctness as step_check
from suites.training.optimizers import share_states

HEADS_COMPARED = 2
"""Number of (batch, head) pairs that are computed above FEW_PAIRS scores: the first and the last."""

FEW_PAIRS = 2**24
"""Number of scores up to which all pairs are computed."""

QUERIES_AT_ONCE = 1024


class Reference(NamedTuple):
    """Float64's results, and for which (batch, head) pairs (None: all)."""

    outputs: Sequence[Tensor]
    gradients: Sequence[Tensor]
    num_attention_heads: tuple[tuple[int, int], ...] | None


def in_float64(values: Inputs) -> Inputs:
    """Return float64 copies of floating-point tensors; leaves stay leaves."""
    return tuple(mapped(_wide, value) for value in values)


def _wide(tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    return tensor.detach().to(torch.float64, copy=True).requires_grad_(tensor.requires_grad)


def evaluate(operation: Operation, inputs: Inputs, upstream: Sequence[Tensor]) -> Result:
    """Return outputs, and gradients of the leaves, of the eager function on `inputs` as they are."""
    outputs = list(tensors_of(operation.eager(*inputs)))
    leaves = leaves_of(inputs)
    if not leaves:
        return [one.detach() for one in outputs], []
    wide = [one.to(output.dtype) for one, output in zip(upstream, outputs, strict=True)]
    gradients = torch.autograd.grad(outputs, leaves, wide)
    return [one.detach() for one in outputs], gradients


def reference(operation: Operation, inputs: Inputs, upstream: Sequence[Tensor]) -> Reference:
    """Return float64's outputs and gradients; `inputs` are not changed."""
    if operation.name == "attention":
        return attention_reference(operation, inputs, upstream)
    return Reference(*evaluate(operation, in_float64(inputs), upstream), None)


@lru_cache(maxsize=1)
def reference_of(operation: Operation, workload: Workload, seed: int, device: torch.device) -> Reference:
    """Return the reference at a workload's own shape, computed once for all variants of one process."""
    inputs = make_inputs(operation, workload, seed, device)
    return reference(operation, inputs, make_upstream(operation, inputs, seed))


def attention_reference(operation: Operation, inputs: Inputs, upstream: Sequence[Tensor]) -> Reference:
    """Compute each head alone, its queries in blocks; of long sequences the first and the last head."""
    q_BHTK, k_BHTK, v_BHTK, causal = inputs
    batch, num_attention_heads, length, _ = q_BHTK.shape
    pairs = tuple((b, h) for b in range(batch) for h in range(num_attention_heads))
    if len(pairs) * length**2 > FEW_PAIRS:
        pairs = tuple(dict.fromkeys((pairs[0], pairs[-1])))[:HEADS_COMPARED]
    heads = []
    for b, h in pairs:
        g_TK = upstream[0][b, h] if upstream else None
        heads.append(one_head(q_BHTK[b, h], k_BHTK[b, h], v_BHTK[b, h], causal, g_TK))
    columns = [torch.stack(column) for column in zip(*heads, strict=True)]
    return Reference(columns[:1], columns[1:], pairs)


def one_head(
    q_TK: Tensor, k_TK: Tensor, v_TK: Tensor, causal: bool, g_TK: Tensor | None
) -> tuple[Tensor, ...]:
    """Return softmax(q k^T / sqrt(K)) v in float64, and with an upstream gradient those of q, k and v."""
    q_TK, k_TK, v_TK = (one.detach().double() for one in (q_TK, k_TK, v_TK))
    scale, length = q_TK.shape[-1] ** -0.5, q_TK.shape[0]
    out_TK, gq_TK, gk_TK, gv_TK = (torch.zeros_like(q_TK) for _ in range(4))
    for begin in range(0, length, QUERIES_AT_ONCE):
        rows = slice(begin, min(begin + QUERIES_AT_ONCE, length))
        scores = q_TK[rows] @ k_TK.T * scale
        if causal:
            places = torch.arange(length, device=q_TK.device)
            scores.masked_fill_(places > places[rows].unsqueeze(1), float("-inf"))
        weights = scores.softmax(-1)
        out_TK[rows] = weights @ v_TK
        if g_TK is None:
            continue
        g = g_TK[rows].double()
        gv_TK += weights.T @ g
        g_weights = g @ v_TK.T
        g_scores = weights * (g_weights - (weights * g_weights).sum(-1, keepdim=True)) * scale
        gq_TK[rows] = g_scores @ k_TK
        gk_TK += g_scores.T @ q_TK[rows]
    return (out_TK,) if g_TK is None else (out_TK, gq_TK, gk_TK, gv_TK)


Case = tuple[str, Workload, Inputs]

LARGE = {"attention": 4.0, "linear_cross_entropy": 4.0, "linear_gelu": 4.0}
"""Factor of large inputs to functions that take exponentials of products: those grow with its square."""

LARGE_OTHERWISE = 100.0

ODD = {
    "seq_len": 37,
    "hidden_size": 131,
    "num_attention_heads": 3,
    "intermediate_size": 77,
    "vocab_size": 77,
}
"""Sizes that no block divides."""


def small(workload: Workload, **changes: Any) -> Workload:
    """Return the workload at a size that is fast even interpreted, with its head size, type and passes."""
    size: dict[str, Any] = {
        "micro_batch_size": 2,
        "seq_len": 9,
        "hidden_size": 40,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "intermediate_size": 50,
        "vocab_size": 50,
        "tensors": 3,
    }
    return replace(workload, **{**size, **changes})


def edge_cases(subject: Subject) -> Iterator[Case]:
    """Yield each case with its name in words, its workload and its inputs."""
    workload = subject.workload
    shapes = {
        "a small shape": small(workload),
        "one row": small(workload, micro_batch_size=1, seq_len=1),
        "odd sizes": small(workload, micro_batch_size=1, **ODD),
        "three columns": small(workload, hidden_size=3, num_attention_heads=1, num_key_value_heads=1),
    }
    for name, changed in shapes.items():
        yield name, changed, inputs_of(subject, changed)
    plain = small(workload)
    yield "not contiguous", plain, mapped(strided, inputs_of(subject, plain))
    factor = LARGE.get(workload.operation, LARGE_OTHERWISE)
    large = mapped(lambda one: scaled(one, factor), inputs_of(subject, plain))
    if workload.operation != "adamw":
        yield "large magnitudes", plain, large


def inputs_of(subject: Subject, workload: Workload) -> Inputs:
    """Return the operation's inputs at another shape."""
    return make_inputs(subject.operation, workload, subject.seed, subject.device)


def strided(tensor: Tensor) -> Tensor:
    """Return the same values with a stride of two in the last dimension; a leaf stays a leaf."""
    if tensor.dim() < 2 or not tensor.is_floating_point():
        return tensor
    wide = torch.empty(*tensor.shape, 2, dtype=tensor.dtype, device=tensor.device)
    apart = wide[..., 0]
    return apart.copy_(tensor.detach()).detach().requires_grad_(tensor.requires_grad)


def scaled(tensor: Tensor, factor: float) -> Tensor:
    """Return the tensor times `factor` if it has at least two dimensions; a leaf stays a leaf."""
    if tensor.dim() < 2 or not tensor.is_floating_point() or not tensor.requires_grad:
        return tensor
    return (tensor.detach() * factor).requires_grad_(True)


ROUNDING = 2.0**-24
"""Rounding in fp32: a gradient that results from cancellation, as a saturated softmax's, is known only to
this share of what flows into it, and plain PyTorch's is off by as much."""

ADAMW_UPDATES = 5
"""Updates of AdamW, so that wrongly kept moments show."""


def check(session: Session) -> None:
    """Raise `WrongResult` where a tensor is off by more than `subject.tolerance`, or not finite.

    Keeps the largest error of all comparisons, and what was compared, in words.
    """
    subject, worst, shapes = session.subject, 0.0, list[str]()
    if subject.shapes != "edge cases":
        worst, heads = check_workload_shape(session)
        shapes.append("the workload's own shape" + ("" if heads is None else f", {heads} of its heads"))
    if "edge cases" in subject.shapes:
        for name, workload, inputs in edge_cases(subject):
            small = replace(subject, workload=workload)
            worst = max(worst, check_inputs(small, inputs, f" ({name})"))
            shapes.append(name)
    session.max_error, session.compared = worst, "; ".join(shapes)


def check_workload_shape(session: Session) -> tuple[float, int | None]:
    """Return the largest error of the work that is timed, and how many heads were compared; None: all."""
    subject, workload = session.subject, session.subject.workload
    if workload.operation == "adamw":
        inputs = make_inputs(subject.operation, workload, subject.seed, subject.device)
        return check_updates(subject, inputs, "", session), None
    expected = reference_of(subject.operation, workload, subject.seed, subject.device)
    result = session.first_call(session.work)
    compared = None if expected.num_attention_heads is None else len(expected.num_attention_heads)
    if compared == workload.micro_batch_size * workload.num_attention_heads:
        compared = None
    return compare_tensors(subject, as_torch(subject, result), expected, ""), compared


def check_inputs(subject: Subject, inputs: Inputs, where: str) -> float:
    """Return the largest error on `inputs`."""
    if subject.workload.operation == "adamw":
        return check_updates(subject, inputs, where)
    upstream = make_upstream(subject.operation, inputs, subject.seed)
    expected = reference(subject.operation, inputs, upstream)
    known = ROUNDING * flows_in(subject.workload.operation, inputs, upstream)
    return compare_tensors(
        subject, as_torch(subject, bind(subject, inputs, upstream)()), expected, where, known
    )


def flows_in(operation: str, inputs: Inputs, upstream: Sequence[Tensor]) -> float:
    """Return a bound of the largest term of the sums in which an operation's gradients cancel.

    A softmax's: its upstream gradient. Inside attention that is a product with V over the head size, and on
    the way to Q and K it is multiplied by K and Q and divided by the root of the head size K:
    sqrt(K) max|dO| max|V| max(|Q|, |K|); for one token all of it cancels.
    """
    largest = max((float(one.abs().max()) for one in upstream if one.numel()), default=0.0)
    if operation != "attention":
        return largest
    q, k, v = (float(one.detach().abs().max()) for one in inputs[:3])
    return largest * v * max(q, k) * math.sqrt(inputs[0].shape[-1])


def check_updates(subject: Subject, inputs: Inputs, where: str, session: Session | None = None) -> float:
    """Return the largest error after several AdamW updates; a `session` gets the first call's time."""
    ours, theirs = mapped(torch.clone, inputs), in_float64(inputs)
    work = bind(subject, ours, [])
    for index in range(ADAMW_UPDATES):
        result = work() if index or session is None else session.first_call(work)
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
        tensor_error(subject, name, one, other, f" after {ADAMW_UPDATES} updates{where}")
        for name, (one, other) in changed.items()
    )


def compare_tensors(
    subject: Subject,
    result: tuple[Sequence[Tensor], Sequence[Tensor]],
    expected: Reference,
    where: str,
    known: float = 0.0,
) -> float:
    """Return the largest error; raises `WrongResult`. Gradients are known to `known`, no closer."""
    worst = 0.0
    for kind, ours, theirs in zip(("output", "gradient"), result, expected[:2], strict=True):
        if len(ours) != len(theirs):
            raise WrongResult(f"{len(ours)} {kind}s instead of {len(theirs)}{where}{_of(subject.workload)}")
        for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            if expected.num_attention_heads is not None:
                one = torch.stack([one[b, h] for b, h in expected.num_attention_heads])
            rounding = known if kind == "gradient" else 0.0
            worst = max(worst, tensor_error(subject, f"{kind} {index}", one, other, where, rounding))
    return worst


def tensor_error(
    subject: Subject, name: str, ours: Tensor, expected: Tensor, where: str, known: float = 0.0
) -> float:
    """Return the error of one tensor; raises `WrongResult` with the position of the worst element."""
    context, ours = where + _of(subject.workload), ours.detach().to(expected.device)
    if ours.shape != expected.shape:
        raise WrongResult(f"{name} has shape {tuple(ours.shape)}, not {tuple(expected.shape)}{context}")
    if not expected.numel():
        return 0.0
    off = (ours.double() - expected).abs_()
    largest = max(expected.abs().max().item(), known / subject.tolerance)
    at = int(off.nan_to_num(nan=torch.inf).argmax())
    error = off.flatten()[at].item() / (largest or 1.0)
    if not error <= subject.tolerance:
        place = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), expected.shape))
        value, float64 = ours.flatten()[at].item(), expected.flatten()[at].item()
        raise WrongResult(
            f"{name} is {value:.6g} and in float64 {float64:.6g} at {list(place)} of {list(expected.shape)}: "
            f"off by {error:.2e} of the largest, allowed {subject.tolerance:.0e}{context}"
        )
    return float(error)


def _of(workload: Workload) -> str:
    return f"; {workload.operation}, {workload.dtype}"


STEPS = 3
"""Number of steps: one shows the gradients, two the updates; ten would take longer than the timing."""

FURTHER_UPDATES = 10 * step_check.UPDATES
"""Number of updates after which a step that has not learned in `step_check.UPDATES` does not learn."""


class BaselineSteps(NamedTuple):
    """Plain PyTorch's losses, and each parameter's gradient in the first step."""

    losses: tuple[float, ...]
    gradients: dict[str, Tensor]


def check_step(session: Session) -> None:
    """Raise `WrongResult` where a step breaks its contract; keep the largest error."""
    subject, trainer = session.subject, session.trainer
    contract = contract_of(subject)
    expected = baseline_steps(subject.operation, subject.workload, subject.seed, subject.device)
    losses = [session.first_call(trainer.loss_and_gradients).item()]
    worst, gradients = 0.0, "no gradients, as the step changes the mathematics"
    if contract.compared:
        worst, gradients = check_gradients(session, expected, contract.relative)
    assert session.first_call_s is not None
    session.first_call_s += seconds_of(trainer.update, subject.device)[0]
    losses += [trainer.step().item() for _ in range(1, STEPS)]
    session.max_error = max(worst, step_check.compare(losses, expected.losses, contract.relative))
    if not contract.compared:
        losses += [trainer.step().item() for _ in range(STEPS, step_check.UPDATES)]
        if not step_check.learns(losses):  # adapters begin as zeros: in bf16 the first updates change little
            losses += [trainer.step().item() for _ in range(step_check.UPDATES, FURTHER_UPDATES)]
            step_check.require_learning(losses)
    session.compared = f"{STEPS} losses and {gradients}, against plain fp32"
    if subject.workload.hf_config is not None:
        shared = shared_states(subject.workload, subject.seed, subject.device)
        share_states(trainer.model, trainer.optimizer, shared)


def check_gradients(session: Session, expected: BaselineSteps, relative: float) -> tuple[float, str]:
    """Return the largest error of a gradient, and what was compared; raises `WrongResult`.

    If the step releases its gradients, its techniques are checked by the losses of a small model.
    """
    try:
        gradients = session.trainer.gradients()
    except Unavailable:
        step_check.check(step_of(replace(session.subject, replace={})))
        return 0.0, "the losses of a small model, as gradients are released in the backward pass"
    off, name, compared = compared_gradients(session.subject, gradients, expected.gradients)
    return step_check.compare_gradients(off, name, relative), compared


def compared_gradients(
    subject: Subject, ours: Mapping[str, Tensor], plain: Mapping[str, Tensor]
) -> tuple[float, str, str]:
    """Return the largest error of a gradient, of which parameter, and what was compared.

    In bf16 the gradients of a config's model are compared all together: where an activation has a kink, a
    rounding changes small ones by more than their own tolerance. With experts no gradient is compared.
    """
    every = "every gradient of the first step"
    if subject.workload.hf_config is None or subject.precision != "bf16":
        return *step_check.worst_gradient(ours, plain), every
    if has_experts(subject.workload):
        return 0.0, "", "no gradients, as a rounding to bf16 sends tokens to other experts"
    off = math.hypot(*(float((ours[name].float() - one).norm()) for name, one in plain.items()))
    whole = math.hypot(*(float(one.norm()) for one in plain.values()))
    return off / whole, "all parameters together", "all gradients of the first step together"


@lru_cache(maxsize=1)
def shared_states(workload: Workload, seed: int, device: torch.device) -> dict[tuple[str, str], Tensor]:
    """Return the states that variants of one process share after their checks; at first none."""
    return {}


@lru_cache(maxsize=1)
def baseline_steps(
    operation: Operation, workload: Workload, seed: int, device: torch.device
) -> BaselineSteps:
    """Return the baseline's first steps, taken once for all variants of one process."""
    plain = Subject(replace(workload, dtype="fp32"), seed, operation, device, operation.eager)
    trainer = FixedBatchTrainer(plain)
    losses = [trainer.loss_and_gradients().item()]
    gradients = {name: one.clone() for name, one in trainer.gradients().items()}
    trainer.update()
    losses += [trainer.step().item() for _ in range(1, STEPS)]
    return BaselineSteps(tuple(losses), gradients)
