"""Rounds with a clock of the test's own: interleaved, warmed up as judged, ended by width or by budget."""

from itertools import count
from random import Random

import pytest

from harness.records import Sampling
from harness.sweep.interleaved import Rounds


class Machine:
    def __init__(self):
        self.now_s = 0.0
        self.order = []

    def taker(self, times_s):
        times_s = iter(times_s)

        def take():
            self.order.append(take)
            time_s = next(times_s)
            self.now_s += time_s
            return time_s

        return take


def noisy(level_s, share, seed):
    random = Random(seed)
    return (level_s * random.lognormvariate(0, share) for _ in count())


def sampled(*times, **sampling):
    machine = Machine()
    takers = [machine.taker(one) for one in times]
    rounds = Rounds(takers, Sampling(**sampling), lambda: machine.now_s, Random(1))
    samples = list(rounds)
    assert [takers[sample.taker] for sample in samples] == machine.order
    return rounds, samples, machine


def test_each_variant_is_sampled_once_per_round_in_random_order():
    rounds, samples, _ = sampled(*(noisy(0.01, 0.05, n) for n in range(3)), rounds=20, budget_s=2.0)
    order = [sample.taker for sample in samples]
    turns = [tuple(order[i : i + 3]) for i in range(0, len(order), 3)]
    assert all(sorted(turn) == [0, 1, 2] for turn in turns)
    assert len(set(turns)) == 6
    assert rounds.taken + rounds.warm_ups == len(turns)


def test_a_warm_up_is_judged_and_kept_apart():
    cold = [0.1 * 0.5**n + 0.01 for n in range(8)]
    rounds, samples, _ = sampled([*cold, *[0.01] * 200], [0.01] * 300, rounds=5, budget_s=5.0)
    assert rounds.settled
    assert rounds.narrow
    assert max(s.value for s in samples if s.taker == 0 and not s.warm_up) < 0.0102
    assert rounds.warm_ups >= 8
    assert rounds.taken == 5


@pytest.mark.parametrize(("noise", "target_ci_half_width"), [(0.02, 0.01), (0.05, 0.01), (0.05, 0.03)])
def test_sampling_ends_when_the_ratios_are_known_or_the_budget_is_spent(noise, target_ci_half_width):
    taken = {}
    for budget_s in (0.5, 50.0):
        times = [noisy(0.01, noise, n) for n in range(3)]
        width = {"target_ci_half_width": target_ci_half_width}
        rounds, _, machine = sampled(*times, rounds=8, budget_s=budget_s, **width)
        taken[budget_s] = rounds.taken
        assert rounds.narrow or machine.now_s >= budget_s
    assert rounds.narrow
    needed = (noise * 2**0.5 * 1.96 * 1.2 / target_ci_half_width) ** 2
    assert 8 <= taken[50.0] < 4 * needed + 16
    assert taken[0.5] <= taken[50.0]
