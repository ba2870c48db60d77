"""Speed-ups: the one way from records to a ratio, what it rests on, and what the judge makes of it."""

import math

import pytest
from judged import one
from scipy import stats
from synthetic import claim, made

from harness.claims.values import NoPairsError, compare, inverse

DRIFT = (1.0, 1.3, 1.1, 1.7, 0.9, 1.2, 1.4, 1.0)  # what the machine does to both variants of a round


def record(variant, samples, repeat=0, **more):
    figures = {("time", "warm"): ("s", "measured", samples)}
    return made("small", variant, figures, repeat=repeat, **more)


def times(variant, factors, **more):
    """Return one record per process: the drift, shifted per process, times its factor."""
    return [
        record(variant, tuple(1e-3 * (repeat + 1) * drift * factor for drift in DRIFT), repeat, **more)
        for repeat, factor in enumerate(factors)
    ]


def ratio_of(ours, base, **more):
    return compare(ours, base, "time", "warm", **more)


BASE = times("baseline", (1.0,) * 4)


def test_rounds_of_several_processes_are_pairs_with_an_interval_of_the_processes():
    """Every round of a process has the same ratio, so the processes' log ratios are all there is."""
    shares = (0.5, 0.52, 0.49, 0.51)
    found = ratio_of(times("fast", shares), BASE)
    logs = [math.log(share) for share in shares]
    low, high = stats.t.interval(0.95, 3, loc=sum(logs) / 4, scale=stats.sem(logs))
    expected = (math.exp(sum(logs) / 4), math.exp(low), math.exp(high), 4, 4 * len(DRIFT))
    assert found[:5] == pytest.approx(expected)
    assert (found.basis, found.left_out) == ("pairs", 0)
    assert inverse(found)[:3] == pytest.approx(ratio_of(BASE, times("fast", shares))[:3])


def test_what_was_wrong_in_one_process_has_no_ratio():
    wrong = times("fast", (0.5, 0.5, 0.5))
    wrong[2] = wrong[2]._replace(status="wrong_result")
    for ours, base in ((wrong, BASE), (BASE, wrong)):
        with pytest.raises(NoPairsError, match="fast gave a wrong result"):
            ratio_of(ours, base)


@pytest.mark.parametrize("bad", [(0.0,), (math.nan,), (-1.0, 1.0), (math.inf,)])
def test_a_sample_that_is_no_number_above_0_is_refused(bad):
    with pytest.raises(NoPairsError, match="not a positive number"):
        ratio_of([record("fast", bad)], BASE)
    assert one(speed_up(), *BASE, record("fast", bad)).outcome == "unavailable"
    with pytest.raises(NoPairsError, match="no repeat in which both variants have time by cold"):
        compare(BASE, BASE, "time", "cold")


def speed_up(value=2.0, upper=3.0, **more):
    return claim(value, relation="range", tolerance=0.0, upper=upper, unit="1", metric="time", method="warm",
                 variant="fast", relative_to="baseline", **more)  # fmt: skip


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        ((0.4, 0.4, 0.4, 0.4), "holds"),
        ((0.3, 0.3, 0.3), "exceeds"),
        ((0.6, 0.6, 0.6), "falls short"),
        ((0.45, 0.5, 0.55), "undecided"),
    ],
)
def test_a_speed_up_is_the_other_variants_time_over_the_own_whatever_drifts(factors, expected):
    fast = times("fast", factors)
    verdict = one(speed_up(), *BASE, *fast)
    assert verdict.outcome == expected
    value, low, high, processes, rounds, basis, _ = inverse(ratio_of(fast, BASE))
    assert (verdict.ours, verdict.low, verdict.high) == (value, low, high)
    assert verdict.cell == "invented-small-fast-0"
    assert (verdict.basis, verdict.processes, verdict.samples) == (basis, processes, rounds)
    assert verdict.ours == pytest.approx(math.exp(-sum(map(math.log, factors)) / len(factors)))


def test_a_mean_speed_up_has_every_round_in_it():
    """Of eight draws two gain nothing, which a middle leaves out; against a t test of all."""
    factors = (0.5,) * 6 + (1.0,) * 2
    fast = record("fast", tuple(x * factor for x, factor in zip(DRIFT, factors, strict=True)))
    verdict = one(speed_up(stat="mean"), fast, record("baseline", DRIFT))
    logs = [-math.log(factor) for factor in factors]
    low, high = stats.t.interval(0.95, 7, loc=sum(logs) / 8, scale=stats.sem(logs))
    assert (verdict.low, verdict.high) == pytest.approx((math.exp(low), math.exp(high)))
    assert verdict.ours == pytest.approx(2 ** (6 / 8))
    assert one(speed_up(), fast, record("baseline", DRIFT)).ours == pytest.approx(2.0)


def test_a_speed_up_within_the_noise_is_reported_as_such():
    again = times("baseline_again", (1.03, 0.97, 1.04, 0.98))
    inside = one(speed_up(1.0, 1.1), *BASE, *again, *times("fast", (0.99,) * 4))
    assert inside.outcome == "holds"
    assert inside.noise is not None
    low, high = inside.noise
    assert 0.9 < low < 1 < high < 1.1
    assert one(speed_up(), *BASE, *again, *times("fast", (0.8,) * 4)).noise is None
    assert one(speed_up(), *BASE, *times("fast", (0.99,) * 4)).noise is None
    own = times("fast_again", (1.03, 0.97, 1.04, 0.98))
    turned = one(speed_up(), *BASE, *own, *times("fast", (1.0,) * 4))
    assert turned.noise == pytest.approx(inside.noise)


@pytest.mark.parametrize(
    ("base", "fast", "told"),
    [
        ([], times("fast", (0.4,)), "no record of baseline on small"),
        (
            BASE[:1],
            times("fast", (0.4, 0.4))[1:],
            "too few repeats in which both variants have as many rounds",
        ),
        (BASE, [made("small", "fast", status="unavailable", reason="no GPU")], "unavailable (no GPU)"),
        ([record("baseline", (1.0,))], [record("fast", (1.0,))], "more repeats"),
    ],
)
def test_a_speed_up_without_pairs_is_unavailable(base, fast, told):
    verdict = one(speed_up(), *base, *fast)
    assert (verdict.outcome, verdict.ours) == ("unavailable", None)
    assert told in verdict.reason
