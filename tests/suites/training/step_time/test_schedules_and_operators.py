"""Overlap, a pipeline's bubble and a roofline, each against a second way to get it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suites.training.step_time.collectives import bubble_s, overlapped_s, roofline_s, training_flop

SECONDS = st.floats(1e-6, 1e3)


def two_stages_s(first_s: float, second_s: float, chunks: int) -> float:
    """Return when the last chunk leaves the second of two stages, stepped chunk by chunk."""
    first_free = second_free = 0.0
    for _ in range(chunks):
        first_free += first_s / chunks
        second_free = max(first_free, second_free) + second_s / chunks
    return second_free


@given(SECONDS, SECONDS, st.integers(1, 40))
def test_overlap_in_chunks_is_a_pipeline_of_two_stages(one_s, other_s, chunks):
    assert overlapped_s(one_s, other_s, 1 / chunks) == pytest.approx(two_stages_s(one_s, other_s, chunks))


def pipeline_s(stages: int, micro_batches: int, forward_s: float, backward_s: float) -> float:
    """Return the seconds of a step of 1F1B, stage by stage: each does what is ready, backward first."""
    forward = {(-1, m): 0.0 for m in range(micro_batches)}
    backward: dict[tuple[int, int], float] = {}
    free, done_f, done_b = [0.0] * stages, [0] * stages, [0] * stages
    while done_b[0] < micro_batches:
        for stage in reversed(range(stages)):
            warm = min(stages - stage, micro_batches)
            ahead = done_f[stage] - done_b[stage]
            m_b, m_f = done_b[stage], done_f[stage]
            ready_b = forward.get((stage, m_b)) if stage == stages - 1 else backward.get((stage + 1, m_b))
            if m_b < micro_batches and ready_b is not None and (ahead >= warm or m_f == micro_batches):
                free[stage] = max(free[stage], ready_b) + backward_s
                backward[stage, m_b] = free[stage]
                done_b[stage] += 1
            elif m_f < micro_batches and ahead < warm and (stage - 1, m_f) in forward:
                free[stage] = max(free[stage], forward[stage - 1, m_f]) + forward_s
                forward[stage, m_f] = free[stage]
                done_f[stage] += 1
    return max(free)


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 3), (2, 2), (4, 4), (4, 9), (8, 16)])
def test_the_bubble_is_that_of_1f1b_stepped_through(stages, micro_batches):
    stepped_s = pipeline_s(stages, micro_batches, 1.0, 2.0)
    assert stepped_s == pytest.approx(micro_batches * 3.0 + bubble_s(stages, 1, np.array(3.0)))


def test_a_roofline_is_the_longer_of_both_over_the_share_that_is_reached():
    assert roofline_s(1e12, 1e14, 0.5) == pytest.approx(0.02)
    assert roofline_s(1e12, 1e14, 0.5, 3e10, 3e12) == pytest.approx(0.02)  # 10 ms of FLOP and of bytes
    assert roofline_s(1e12, 1e14, 1.0, 6e10, 3e12) == pytest.approx(0.02)  # bytes decide


def test_the_flop_of_a_step_are_those_of_its_matmuls():
    """A matrix of 3 x 5 and 7 tokens: 105 multiplications and additions forward, twice that backward."""
    assert training_flop(15, 7) == 3 * 2 * 7 * 3 * 5
