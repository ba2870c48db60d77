"""The ratio of two times, its interval, and what is said of it: laws that must hold, and known answers."""

import math
import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from harness.statistics import Ratio, break_even, effect, is_steady, more_repeats, ratio

Times = list[list[float]]

times_s = st.floats(1e-6, 1e3)
few = settings(max_examples=60, deadline=None)


@st.composite
def pairs(draw: st.DrawFn, processes: int = 1) -> tuple[Times, Times]:
    sizes = draw(st.lists(st.integers(4, 12), min_size=processes, max_size=6))
    ours, base = ([[draw(times_s) for _ in range(n)] for n in sizes] for _ in range(2))
    return ours, base


def near(left: Ratio, right: Ratio) -> bool:
    assert left.basis == right.basis
    numbers = zip(left[:5], right[:5], strict=True)
    return all(math.isclose(x, y, rel_tol=1e-9) or x == y for x, y in numbers)


def noisy(processes: int, rounds: int, seed: int, factor: float = 1.0, spread: float = 0.02) -> Times:
    draw = random.Random(seed)
    return [[factor * math.exp(draw.gauss(0, spread)) for _ in range(rounds)] for _ in range(processes)]


@few
@given(pairs(), st.floats(1e-3, 1e3), st.randoms())
def test_ratio_does_not_depend_on_the_unit_or_the_order_and_inverts_when_variants_are_swapped(
    both, factor, shuffle
):
    ours, base = both
    found, scaled = ratio(ours, base), [[[factor * x for x in one] for one in side] for side in both]
    assert near(ratio(*scaled), found)
    assert math.isclose(ratio(scaled[0], base).value, factor * found.value, rel_tol=1e-9)
    together = [list(zip(a, b, strict=True)) for a, b in zip(*both, strict=True)]
    shuffle.shuffle(together)
    for one in together:
        shuffle.shuffle(one)
    assert ratio(*([[pair[side] for pair in one] for one in together] for side in (0, 1))) == found
    assert ratio(ours, ours) == (1, 1, 1, len(ours), sum(map(len, ours)), "pairs", 0)
    back = ratio(base, ours)
    if math.isfinite(found.high) and found.low > 0:
        assert near(found, Ratio(1 / back.value, 1 / back.high, 1 / back.low, back.processes, back.rounds))


def test_ratio_of_processes_is_the_t_interval_of_their_interquartile_means():
    ours, base = noisy(5, 12, 1, 1.05), noisy(5, 12, 2)
    logs = np.log(np.array(ours) / np.array(base))
    locations = stats.trim_mean(logs, 0.25, axis=1)
    expected = stats.t.interval(0.95, 4, locations.mean(), stats.sem(locations))
    found = ratio(ours, base)
    assert [found.value, found.low, found.high] == pytest.approx(np.exp([locations.mean(), *expected]))


def test_ratio_of_one_process_is_the_interval_of_a_trimmed_mean():
    ours, base = noisy(1, 20, 1, 1.05), noisy(1, 20, 2)
    logs = np.log(np.array(ours[0]) / np.array(base[0]))
    centre, error = stats.trim_mean(logs, 0.25), stats.mstats.trimmed_stde(logs, (0.25, 0.25))
    expected = stats.t.interval(0.95, 9, centre, error)
    found = ratio(ours, base)
    assert [found.value, found.low, found.high] == pytest.approx(np.exp([centre, *expected]))
    assert found.processes == 1
    assert ratio([[2.0]], [[1.0]]) == (2.0, 0.0, math.inf, 1, 1, "pairs", 0), "one round is no interval"


def test_ratio_of_draws_is_the_t_interval_of_their_mean():
    """A third of the draws gains nothing: none of them is left out."""
    base = noisy(1, 21, 2)
    ours = [[x / (1 if draw % 3 == 0 else 2) for draw, x in enumerate(noisy(1, 21, 1)[0])]]
    logs = np.log(np.array(ours[0]) / np.array(base[0]))
    expected = stats.t.interval(0.95, 20, logs.mean(), stats.sem(logs))
    found = ratio(ours, base, draws=True)
    assert [found.value, found.low, found.high] == pytest.approx(np.exp([logs.mean(), *expected]))
    assert found.value > 1.1 * ratio(ours, base).value
    several = [ours[0][:7], ours[0][7:14], ours[0][14:]], [base[0][:7], base[0][7:14], base[0][14:]]
    locations = logs.reshape(3, 7).mean(axis=1)
    apart = stats.t.interval(0.95, 2, locations.mean(), stats.sem(locations))
    assert list(ratio(*several, draws=True)[1:3]) == pytest.approx(np.exp(apart))
    assert ratio([[2.0]], [[1.0]], draws=True) == (2.0, 0.0, math.inf, 1, 1, "pairs", 0)


def test_ratio_ignores_a_shared_drift_and_rounds_that_took_ten_times_as_long():
    draw = random.Random(0)
    base = noisy(5, 20, 1)
    ours = [[1.05 * x for x in one] for one in noisy(5, 20, 2)]
    drifting = [[[x * (1 + 0.1 * i) for i, x in enumerate(one)] for one in side] for side in (ours, base)]
    assert near(ratio(*drifting), ratio(ours, base))
    for one in ours:
        one[draw.randrange(20)] *= 10
    assert 1.03 < ratio(ours, base).value < 1.07


def of(value: float, low: float, high: float) -> Ratio:
    return Ratio(value, low, high, 5, 50)


QUIET, LOUD = of(1.0, 0.999, 1.001), of(1.01, 0.98, 1.04)


@pytest.mark.parametrize(
    ("found", "noise", "expected"),
    [
        (of(0.90, 0.88, 0.92), QUIET, "pays"),
        (of(1.10, 1.08, 1.12), QUIET, "costs"),
        (of(0.90, 0.88, 0.92), LOUD, "pays"),
        (of(1.03, 1.01, 1.05), LOUD, "undecided"),  # excludes 1, inside the band, reaches out of it
        (of(1.03, 1.02, 1.039), LOUD, "no difference"),
        (of(0.97, 0.96, 0.98), LOUD, "undecided"),
        (of(1.1, 0.9, 1.3), QUIET, "undecided"),
        (of(1.0, 0.995, 1.005), QUIET, "no difference"),  # the band is at least 1 %
        (of(0.995, 0.993, 0.997), QUIET, "pays"),  # small, and known
        (of(0.9, 0.5, 1.6), of(1.0, 0.4, 2.5), "undecided"),  # such noise says nothing
        (of(1.0, 0.96, 1.04), of(1.0, 0.4, 2.5), "no difference"),
        (of(0.90, 0.88, 0.92), None, "undecided"),
        (of(0.90, 0.88, 0.92), of(1.0, 0.0, math.inf), "undecided"),
        (of(0.90, 0.0, math.inf), QUIET, "undecided"),
    ],
)
def test_effect(found, noise, expected):
    assert effect(found, noise) == expected


def settles_after(times: list[float]) -> int:
    """Return how many samples were taken when they were first called steady; one more than all, if never."""
    return next((n for n in range(1, len(times) + 1) if is_steady(times[:n])), len(times) + 1)


def with_noise(shape: Callable[[int], float], spread: float, seed: int, count: int = 60) -> list[float]:
    draw = random.Random(seed)
    return [shape(i) * math.exp(draw.gauss(0, spread)) for i in range(count)]


def processes_like(centre: float, spread: float, count: int) -> Ratio:
    """Return the ratio of processes whose logarithms have exactly this mean and standard deviation."""
    drawn = np.random.default_rng(count).normal(size=count)
    logs = centre + spread * (drawn - drawn.mean()) / drawn.std(ddof=1)
    return ratio([[math.exp(one)] for one in logs], [[1.0]] * count)


@pytest.mark.parametrize(
    ("centre", "spread", "decided"),
    [(-0.05, 0.06, "pays"), (0.03, 0.05, "costs"), (0.004, 0.03, "no difference")],
)
def test_so_many_more_repeats_decide_and_one_less_does_not(centre, spread, decided):
    noise = processes_like(-0.006, 0.004, 5)
    more = more_repeats(processes_like(centre, spread, 5), noise)
    assert more is not None
    counts = (5 + more - 1, 5 + more)
    found = [effect(processes_like(centre, spread, n), processes_like(-0.006, 0.004, n)) for n in counts]
    assert found == ["undecided", decided]


def test_break_even_is_the_step_at_which_the_totals_meet():
    compile_s, step_s, found = 10.0, 0.5, of(0.9, 0.8, 0.95)
    steps = break_even(compile_s, step_s, found)
    for share, after in zip((0.9, 0.8, 0.95), steps, strict=True):
        totals = [(compile_s + n * step_s * share, n * step_s) for n in (after * 0.99, after * 1.01)]
        assert [compiled > plain for compiled, plain in totals] == [True, False]
    assert break_even(compile_s, step_s, of(0.99, 0.97, 1.01)).high == math.inf
    assert break_even(compile_s, step_s, of(1.2, 1.1, 1.3)) == (math.inf, math.inf, math.inf)


@pytest.mark.parametrize("rounds", [1.5, 6.0])
def test_steady_after_an_exponential_decay_or_a_step_only(rounds):
    seen = settles_after([1 + 9 * math.exp(-i / rounds) for i in range(200)])
    assert seen <= 200
    assert 9 * math.exp(-seen / rounds) < 0.01
    for at in (1, 3, 7):
        assert at < settles_after([2.0] * at + [1.0] * 60) <= at + 12
    assert settles_after([2.0] * 8 + [1.0] * 60) == 8  # two flat windows were seen before the step came
    assert not is_steady([2.0] * 8 + [1.0])
    assert not is_steady([2.0] * 8 + [1.0] * 4)


@pytest.mark.parametrize("spread", [0.01, 0.3])
def test_noise_alone_seldom_delays(spread: float):
    seen = [settles_after(with_noise(lambda i: 1.0, spread, seed)) for seed in range(200)]
    assert sum(n == 8 for n in seen) >= 150
    assert max(seen) <= 20


@pytest.mark.parametrize(
    ("found", "noise"),
    [
        (of(0.90, 0.88, 0.92), QUIET),  # decided
        (of(1.1, 0.9, 1.3), None),
        (of(1.1, 0.9, 1.3)._replace(processes=1), QUIET),
        (of(1.1, 0.9, 1.3)._replace(basis="ranges"), QUIET),
        (of(0.9, 0.0, math.inf), QUIET),
        (of(1.0102, 0.2, 5.1), QUIET._replace(value=1.01, low=1.005, high=1.015)),  # too many
    ],
)
def test_no_number_of_repeats_is_suggested_where_none_is_known(found, noise):
    assert more_repeats(found, noise) is None
