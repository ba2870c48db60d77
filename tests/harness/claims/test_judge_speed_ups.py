"""Speed-ups before the judge: one variant against another, round by round."""

from __future__ import annotations

import math

import pytest
from judged import one
from synthetic import claim, made

from harness.claims.model import Claim, Difference
from harness.records import Record

DRIFT = (1.0, 1.3, 1.1, 1.7, 0.9, 1.2, 1.4, 1.0)  # what the machine does to both variants of a round


def times(variant: str, factors: tuple[float, ...], **more: object) -> list[Record]:
    """Return one record per process: the drift, shifted per process, times its factor."""
    records = []
    for repeat, factor in enumerate(factors):
        samples = tuple(1e-3 * (repeat + 1) * drift * factor for drift in DRIFT)
        figures = {("time", "warm"): ("s", "measured", samples)}
        records.append(made("small", variant, figures, repeat=repeat, **more))  # type: ignore[arg-type]
    return records


def speed_up(value: float = 2.0, upper: float | None = 3.0, **more: object) -> Claim:
    relation = "about" if upper is None else "range"
    return claim(value, relation=relation, tolerance=0.0, upper=upper, unit="1", metric="time", method="warm",
                 variant="fast", relative_to="baseline", **more)  # type: ignore[arg-type]  # fmt: skip


BASE = times("baseline", (1.0,) * 4)


def test_a_speed_up_is_the_other_variants_time_over_the_own_whatever_drifts() -> None:
    verdict = one(speed_up(), *BASE, *times("fast", (0.4,) * 4))
    assert verdict.outcome == "holds"
    assert (verdict.ours, verdict.low, verdict.high) == pytest.approx((2.5, 2.5, 2.5))
    assert verdict.cell == "invented-small-fast-0"
    assert (verdict.basis, verdict.processes, verdict.samples) == ("pairs", 4, 32)


def test_the_interval_of_a_speed_up_against_a_t_test_of_its_processes() -> None:
    """Every round of a process has the same ratio, so the processes' log ratios are all there is."""
    from scipy import stats

    factors = (0.38, 0.42, 0.40, 0.41)
    verdict = one(speed_up(), *BASE, *times("fast", factors))
    logs = [-math.log(factor) for factor in factors]
    low, high = stats.t.interval(0.95, 3, loc=sum(logs) / 4, scale=stats.sem(logs))
    assert verdict.low == pytest.approx(math.exp(low))
    assert verdict.high == pytest.approx(math.exp(high))
    assert verdict.ours == pytest.approx(math.exp(sum(logs) / 4))


def test_a_mean_speed_up_has_every_round_in_it() -> None:
    """Of eight draws two gain nothing, which a middle leaves out; against a t test of all."""
    from scipy import stats

    factors = (0.5,) * 6 + (1.0,) * 2
    fast = {("time", "warm"): ("s", "measured", tuple(x * f for x, f in zip(DRIFT, factors, strict=True)))}
    base = {("time", "warm"): ("s", "measured", DRIFT)}
    records = [made("small", "fast", fast), made("small", "baseline", base)]
    verdict = one(speed_up(stat="mean"), *records)
    logs = [-math.log(factor) for factor in factors]
    low, high = stats.t.interval(0.95, 7, loc=sum(logs) / 8, scale=stats.sem(logs))
    assert (verdict.low, verdict.high) == pytest.approx((math.exp(low), math.exp(high)))
    assert verdict.ours == pytest.approx(2 ** (6 / 8))
    assert one(speed_up(), *records).ours == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("factors", "expected"),
    [((0.3, 0.3, 0.3), "exceeds"), ((0.6, 0.6, 0.6), "falls short"), ((0.45, 0.5, 0.55), "undecided")],
)
def test_where_the_interval_of_a_speed_up_lies(factors: tuple[float, ...], expected: str) -> None:
    assert one(speed_up(), *BASE, *times("fast", factors)).outcome == expected


def test_a_speed_up_within_the_noise_is_reported_as_such() -> None:
    again = times("baseline_again", (1.03, 0.97, 1.04, 0.98))
    inside = one(speed_up(1.0, 1.1), *BASE, *again, *times("fast", (0.99,) * 4))
    assert inside.outcome == "holds"
    assert inside.noise is not None
    low, high = inside.noise
    assert 0.9 < low < 1 < high < 1.1
    outside = one(speed_up(1.0, 1.5), *BASE, *again, *times("fast", (0.8,) * 4))
    assert outside.noise is None
    unknown = one(speed_up(1.0, 1.5), *BASE, *times("fast", (0.99,) * 4))
    assert unknown.noise is None
    own = times("fast_again", (1.03, 0.97, 1.04, 0.98))
    turned = one(speed_up(1.0, 1.1), *BASE, *own, *times("fast", (1.0,) * 4))
    assert turned.noise == pytest.approx(inside.noise)


def test_only_repeats_in_which_both_variants_ended_well_are_pairs() -> None:
    fast = times("fast", (0.4, 0.4, 0.4, 9.0))
    fast[3] = fast[3]._replace(status="crashed", reason="signal 11")
    verdict = one(speed_up(), *BASE[1:], *fast)
    assert verdict.ours == pytest.approx(2.5)
    assert (verdict.processes, verdict.samples) == (2, 16)
    assert verdict.differs == (Difference("status", "crashed", "ok"),)


@pytest.mark.parametrize(
    ("base", "fast", "told"),
    [
        ([], times("fast", (0.4,)), "no record of baseline on small"),
        (BASE, [], "no record of fast on small"),
        (
            BASE[:1],
            times("fast", (0.4, 0.4))[1:],
            "too few repeats in which both variants have as many rounds of time",
        ),
        (BASE, [made("small", "fast", status="unavailable", reason="no GPU")], "unavailable (no GPU)"),
        (
            BASE,
            [made("small", "fast", notes=("time: not timed here",))],
            "has no time by warm (time: not timed",
        ),
    ],
)
def test_a_speed_up_without_pairs_is_unavailable(base: list[Record], fast: list[Record], told: str) -> None:
    verdict = one(speed_up(), *base, *fast)
    assert (verdict.outcome, verdict.ours) == ("unavailable", None)
    assert told in verdict.reason


@pytest.mark.parametrize("samples", [(1.0, 2.0), (0.0,) * 8, (math.nan,) * 8, (-1.0,) * 8])
def test_samples_that_do_not_pair_give_no_value(samples: tuple[float, ...]) -> None:
    figures = {("time", "warm"): ("s", "measured", samples)}
    assert one(speed_up(), *BASE, made("small", "fast", figures)).outcome == "unavailable"


def test_a_single_pair_has_no_interval_and_settles_nothing() -> None:
    figures = {("time", "warm"): ("s", "measured", (1.0,))}
    verdict = one(speed_up(), made("small", "baseline", figures), made("small", "fast", figures))
    assert verdict.outcome == "unavailable"
    assert "more repeats" in verdict.reason


def test_the_conditions_of_the_other_variant_count_too() -> None:
    base = times("baseline", (1.0,) * 4, conditions={"precision": "tf32"})
    fast = times("fast", (0.4,) * 4, conditions={"precision": "bf16"})
    held = speed_up(conditions={"precision": "bf16", "reference precision": "fp32"})
    assert one(held, *base, *fast).differs == (Difference("reference precision", "tf32", "fp32"),)
