"""The correctness check: parameters and moments against AdamW in float64, written from its formula.

Part of `check`. An error is |ours - float64| over the largest movement of the same tensor: an update moves a
parameter by a thousandth of its size, so an error relative to its size would accept one that never moved.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.records import WrongResult
from suites.host_optimizer.subject import ADAMW, Session, WorkloadTensors, made, optimizer_of
from suites.host_optimizer.workload import Workload

UPDATES = 3
"""Number of updates; several, so that wrongly kept moments show."""

TOLERANCE = 1e-3
"""Allowed error, relative to the largest movement. In three updates a parameter of 4 to 8, rounded twice per
update to half of 2^-21, may be off by 1.4e-6, and the largest moves by about 3e-3: 5e-4. Moments are closer:
1 - 0.999 taken in fp32 is off by 1.3e-5 of itself."""

AWKWARD = Workload(3 * 10_007, 3)
"""Length of three vectors: a prime, so a multiple of no vector width and no number of threads."""

LOOKED_AT = 2**20
"""Number of elements of a tensor that are compared: all, or this many from its first to its last."""


def adamw(p_N: Tensor, g_N: Tensor, m_N: Tensor, v_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return parameters and moments after `UPDATES` updates with the same gradient, counted from the first.

    arXiv 1711.05101, Algorithm 2, its decay times the learning rate as torch.optim.AdamW has it.
    """
    lr, (beta1, beta2), eps, decay = ADAMW.values()
    for t in range(1, UPDATES + 1):
        m_N = beta1 * m_N + (1 - beta1) * g_N
        v_N = beta2 * v_N + (1 - beta2) * g_N**2
        direction_N = m_N / (1 - beta1**t) / ((v_N / (1 - beta2**t)).sqrt() + eps)
        p_N = p_N - lr * (direction_N + decay * p_N)
    return p_N, m_N, v_N


def check(session: Session) -> float:
    """Return the worst error; raise WrongResult where one is above `TOLERANCE`, or not finite.

    Checks awkward lengths, and the tensors that are timed, with the optimizer that is timed. The latter have
    moments of the variants before it; they start from zero again, since settled moments move too little.
    """
    subject = session.subject
    for _, exp_avg, exp_avg_sq in session.tensors:
        exp_avg.zero_()
        exp_avg_sq.zero_()
    awkward = made(AWKWARD, subject.seed)
    worst = worst_error(optimizer_of(subject, awkward), awkward, "three vectors of 10,007")
    own = worst_error(session.optimizer, session.tensors, f"{subject.workload.parameters:,} parameters")
    return max(worst, own)


def worst_error(optimizer: torch.optim.Optimizer, tensors: WorkloadTensors, where: str) -> float:
    """Return the worst error after `UPDATES` updates; raises WrongResult."""
    before = [wide(tensors, index) for index in range(len(tensors))]
    for _ in range(UPDATES):
        optimizer.step()
    worst = 0.0
    for index, (p_N, g_N, m_N, v_N) in enumerate(before):
        expected = adamw(p_N, g_N, m_N, v_N)
        after = wide(tensors, index)
        ours = after[0], after[2], after[3]
        names = ("parameter", "first moment", "second moment")
        for name, one, expected_one, initial in zip(names, ours, expected, (p_N, m_N, v_N), strict=True):
            worst = max(worst, error_of(one, expected_one, initial, f"{name} {index} of {where}"))
    return worst


def wide(tensors: WorkloadTensors, index: int) -> list[Tensor]:
    """Return parameter, gradient and moments of one tensor in float64, at the compared elements."""
    parameter, exp_avg, exp_avg_sq = tensors[index]
    size = parameter.numel()
    places = torch.linspace(0, size - 1, min(size, LOOKED_AT), dtype=torch.float64).round().long()
    assert parameter.grad is not None
    return [one.detach()[places].double() for one in (parameter, parameter.grad, exp_avg, exp_avg_sq)]


def error_of(ours_N: Tensor, due_N: Tensor, begun_N: Tensor, what: str) -> float:
    """Return the error of one tensor; raises WrongResult with the worst element's index."""
    off_N, moved = (ours_N - due_N).abs(), float((due_N - begun_N).abs().max())
    at = int(off_N.nan_to_num(nan=torch.inf).argmax())
    error = float(off_N[at]) / moved
    if not error <= TOLERANCE:
        raise WrongResult(
            f"{what} is {float(ours_N[at]):.8g} and in float64 {float(due_N[at]):.8g} after {UPDATES} "
            f"updates: off by {error:.1e} of the largest movement, allowed {TOLERANCE:.0e}"
        )
    return error
