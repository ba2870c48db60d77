"""Rounds with a clock of the test's own: interleaved, warmed up as judged, ended by width or by budget."""

from collections import Counter
from itertools import count
from random import Random

import pytest

from harness.records import Sampling
from harness.sweep.interleaved import Rounds


class Machine:
    """Its clock moves only as things are done on it."""

    def __init__(self):
        self.now_s = 0.0

    def clock(self):
        return self.now_s

    def taker(self, times_s, order=None, name=None):
        times_s = iter(times_s)

        def take():
            if order is not None:
                order.append(name)
            time_s = next(times_s)
            self.now_s += time_s
            return time_s

        return take


def noisy(level_s, share, seed):
    random = Random(seed)
    return (level_s * random.lognormvariate(0, share) for _ in count())


def test_each_variant_is_sampled_once_per_round_in_random_order():
    machine, order = Machine(), []
    takers = [machine.taker(noisy(0.01, 0.05, n), order, n) for n in range(3)]
    rounds = Rounds(takers, Sampling(rounds=20, budget_s=2.0), machine.clock, Random(1))
    samples = list(rounds)
    turns = [tuple(order[i : i + 3]) for i in range(0, len(order), 3)]
    assert all(sorted(turn) == [0, 1, 2] for turn in turns)
    assert len(set(turns)) == 6
    assert [s.taker for s in samples] == order
    assert rounds.taken + rounds.warm_ups == len(turns)


def test_a_warm_up_is_judged_and_kept_apart():
    machine = Machine()
    cold = [0.1 * 0.5**n + 0.01 for n in range(8)]
    takers = [machine.taker([*cold, *[0.01] * 200]), machine.taker([0.01] * 300)]
    rounds = Rounds(takers, Sampling(rounds=5, budget_s=5.0), machine.clock, Random(1))
    samples = list(rounds)
    assert rounds.settled
    counted = [s.value for s in samples if s.taker == 0 and not s.warm_up]
    assert max(counted) < 0.0102
    assert rounds.warm_ups >= 8
    assert rounds.narrow
    assert rounds.taken == 5


def test_what_never_settles_is_sampled_all_the_same_and_noted():
    machine = Machine()
    falling = (1.0 * 0.97**n for n in count())
    rounds = Rounds(
        [machine.taker(falling), machine.taker(noisy(0.1, 0.01, 1))],
        Sampling(rounds=4, budget_s=3.0),
        machine.clock,
        Random(1),
    )
    list(rounds)
    assert not rounds.settled
    assert rounds.taken >= 4


@pytest.mark.parametrize(("noise", "target_ci_half_width"), [(0.02, 0.01), (0.05, 0.01), (0.05, 0.03)])
def test_sampling_ends_when_the_ratios_are_known_or_the_budget_is_spent(noise, target_ci_half_width):
    taken = {}
    for budget_s in (0.5, 50.0):
        machine = Machine()
        takers = [machine.taker(noisy(0.01, noise, n)) for n in range(3)]
        sampling = Sampling(rounds=8, target_ci_half_width=target_ci_half_width, budget_s=budget_s)
        rounds = Rounds(takers, sampling, machine.clock, Random(1))
        list(rounds)
        taken[budget_s] = rounds.taken
        assert rounds.narrow or machine.now_s >= budget_s
    assert rounds.narrow
    needed = (noise * 2**0.5 * 1.96 * 1.2 / target_ci_half_width) ** 2
    assert 8 <= taken[50.0] < 4 * needed + 16
    assert taken[0.5] <= taken[50.0]


def test_without_a_budget_the_rounds_are_counted_and_nothing_warms_up():
    machine = Machine()
    takers = [machine.taker(noisy(0.01, 0.2, n)) for n in range(3)]
    rounds = Rounds(
        takers, Sampling(rounds=17, target_ci_half_width=0.5, budget_s=0.0), machine.clock, Random(1)
    )
    assert [sample.warm_up for sample in rounds] == [False] * 17 * 3


def test_one_variant_alone_takes_the_fewest_rounds():
    machine = Machine()
    rounds = Rounds([machine.taker([0.1] * 100)], Sampling(rounds=6, budget_s=5.0), machine.clock, Random(0))
    counted = Counter(sample.warm_up for sample in rounds)
    assert counted[False] == rounds.taken == 6
