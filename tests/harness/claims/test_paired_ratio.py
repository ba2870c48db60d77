"""The one way from records to a ratio: what it rests on, and what it refuses."""

from __future__ import annotations

import math

import pytest
from scipy import stats
from synthetic import made

from harness.claims.values import NoPairsError, compare, inverse
from harness.records import Record
from harness.report.comparison import Comparison

DRIFT = (1.0, 1.3, 1.1, 1.7, 0.9, 1.2, 1.4, 1.0)


def record(variant: str, samples: tuple[float, ...], repeat: int = 0, status: str = "ok") -> Record:
    figures = {("time", "warm"): ("s", "measured", samples)}
    return made("small", variant, figures, repeat=repeat, status=status)


def of(shares: tuple[float, ...], variant: str = "fast") -> list[Record]:
    return [record(variant, tuple(x * share for x in DRIFT), i) for i, share in enumerate(shares)]


def test_rounds_of_several_processes_are_pairs_with_an_interval_of_the_processes() -> None:
    shares = (0.5, 0.52, 0.49, 0.51)
    found = compare(of(shares), of((1.0,) * 4, "baseline"), "time", "warm")
    logs = [math.log(share) for share in shares]
    low, high = stats.t.interval(0.95, 3, loc=sum(logs) / 4, scale=stats.sem(logs))
    assert found.basis == "pairs"
    assert (found.processes, found.rounds) == (4, 4 * len(DRIFT))
    assert (found.low, found.value, found.high) == pytest.approx(
        (math.exp(low), math.exp(sum(logs) / 4), math.exp(high))
    )


def test_one_process_is_compared_by_its_ranges_where_more_are_asked_for() -> None:
    ours, base = of((0.5,)), of((1.0,), "baseline")
    assert compare(ours, base, "time", "warm").basis == "pairs"
    found = compare(ours, base, "time", "warm", least_processes=2)
    assert found.basis == "ranges"
    assert found.value == pytest.approx(0.5)
    assert (found.low, found.high) == pytest.approx((0.5 * 0.9 / 1.7, 0.5 * 1.7 / 0.9))


def test_what_never_differs_is_exact_and_one_sample_is_single() -> None:
    once = compare([record("fast", (3.0,))], [record("baseline", (4.0,))], "time", "warm")
    assert once == (0.75, 0.75, 0.75, 1, 1, "single", 0)
    twice = compare([record("fast", (3.0, 3.0))], [record("baseline", (4.0, 4.0, 4.0))], "time", "warm")
    assert twice == (0.75, 0.75, 0.75, 1, 2, "exact", 0)


@pytest.mark.parametrize(
    ("ours", "base"),
    [
        ([record("fast", (1.0, 2.0, 3.0))], [record("baseline", (2.0, 2.0, 4.0, 4.0))]),  # other rounds
        (
            [record("fast", (1.0, 2.0, 3.0), 1)],
            [record("baseline", (2.0, 2.0, 4.0, 4.0), 0)],
        ),  # repeats
    ],
)
def test_samples_that_do_not_pair_are_compared_by_medians_and_ends(
    ours: list[Record], base: list[Record]
) -> None:
    assert compare(ours, base, "time", "warm") == (2 / 3, 1 / 4, 3 / 2, 1, 3, "ranges", 0)


def test_a_repeat_with_more_samples_on_one_side_keeps_the_pairs_that_it_has() -> None:
    """ln 4 = (ln 2 + ln 8)/2 and ln 16: mean ln 8, standard error (ln 16 - ln 4)/2 = ln 2; t(1) = 12.706."""
    ours = [record("fast", (2.0, 8.0), 0), record("fast", (32.0, 48.0, 99.0), 1)]
    base = [record("baseline", (1.0, 1.0), 0), record("baseline", (2.0, 3.0), 1)]
    found = compare(ours, base, "time", "warm")
    assert found.value == pytest.approx(8.0)
    assert (found.low, found.high) == pytest.approx((8 / 2**12.7062047, 8 * 2**12.7062047))
    assert found[3:] == (2, 4, "pairs", 1)
    assert compare(base, ours, "time", "warm").left_out == 1


def test_the_footnote_of_a_comparison_counts_samples_without_a_partner() -> None:
    ratio = compare(
        of((0.5, 0.6)), [*of((1.0,), "baseline"), record("baseline", DRIFT[:6], 1)], "time", "warm"
    )
    found = Comparison(ratio, "pays", "s", "measured", "cell")
    assert found.footnote == "left out: 2 samples without a counterpart in the other variant"
    assert found._replace(ratio=ratio._replace(left_out=0)).footnote == ""


def test_a_repeat_that_did_not_end_well_is_in_no_ratio() -> None:
    ours = of((0.5, 0.5, 9.0))
    ours[2] = ours[2]._replace(status="crashed")
    found = compare(ours, of((1.0,) * 3, "baseline"), "time", "warm")
    assert found.processes == 2
    assert found.high < 1


@pytest.mark.parametrize("other_way", [False, True])
def test_what_was_wrong_in_one_process_has_no_ratio(other_way: bool) -> None:
    wrong, right = of((0.5, 0.5, 0.5)), of((1.0,) * 3, "baseline")
    wrong[2] = wrong[2]._replace(status="wrong_result")
    ours, base = (right, wrong) if other_way else (wrong, right)
    with pytest.raises(NoPairsError, match="fast gave a wrong result"):
        compare(ours, base, "time", "warm")


@pytest.mark.parametrize("bad", [(0.0,), (math.nan,), (-1.0, 1.0), (math.inf,)])
def test_a_sample_that_is_no_number_above_0_is_refused(bad: tuple[float, ...]) -> None:
    with pytest.raises(NoPairsError, match="not a positive number"):
        compare([record("fast", bad)], of((1.0,), "baseline"), "time", "warm")
    with pytest.raises(NoPairsError, match="no repeat in which both variants have time by cold"):
        compare(of((1.0,)), of((1.0,), "baseline"), "time", "cold")


def test_the_inverse_of_a_ratio_is_the_ratio_the_other_way_round() -> None:
    ours, base = of((0.5, 0.52, 0.49)), of((1.0, 1.01, 0.99), "baseline")
    there = inverse(compare(ours, base, "time", "warm"))
    back = compare(base, ours, "time", "warm")
    assert there[:3] == pytest.approx(back[:3])
