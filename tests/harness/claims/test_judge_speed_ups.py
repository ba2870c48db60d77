"""Speed-ups: from records of one machine to ratios, factors and verdicts."""

import json
import math
from itertools import permutations

import pytest
from factorial_records import FACTORS, factorial_records, independent, overlapping
from judged import one
from scipy import stats
from synthetic import claim, made

from harness.claims.judge import factorial_of
from harness.claims.values import NoPairsError, compare, inverse, of_one_machine
from harness.records import Limits
from harness.report.results import summarize
from harness.sweep.environment import describe
from harness.sweep.store import Store, read_records

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


HERE = describe()
OTHER_CPU = HERE._replace(cpu="another")
OTHER_TORCH = HERE._replace(versions={**HERE.versions, "torch": "0.1"})
ALIKE = HERE._replace(system="Linux 9.9", commit="0" * 40, dirty=not HERE.dirty)


def record_of(variant, samples, repeat, host):
    return record(variant, samples, repeat)._replace(host=host)


def pair(repeat, host, share):
    return [
        record_of("baseline", (1.0, 1.5, 1.2), repeat, host),
        record_of("fast", (share, 1.5 * share, 1.2 * share), repeat, host),
    ]


def test_the_same_repeat_of_two_machines_is_no_pair():
    ours = [record_of("fast", (0.5, 0.6, 0.7), 0, "a")]
    base = [record_of("baseline", (1.0, 1.1, 1.2), 0, "b")]
    with pytest.raises(NoPairsError, match="the two variants ran on unlike machines or libraries"):
        compare(ours, base, "time", "warm")


def test_a_workload_counts_on_the_machine_with_most_values_and_the_rest_is_named():
    records = [*pair(0, "a", 0.5), *pair(1, "b", 0.5), *pair(2, "b", 0.6)]
    failed = made("small", "slow", status="crashed")._replace(host="a")
    kept, sentences = of_one_machine([*records, failed])
    assert [(one.cell.repeat, one.machine) for one in kept] == [*[(1, "b")] * 2, *[(2, "b")] * 2, (0, "a")]
    table = summarize([record_of("fast", (1.0, 2.0), 0, "a"), record_of("fast", (9.0, 9.0), 1, "b")])
    assert list(table[["min", "max"]].iloc[0]) == [1.0, 2.0]
    assert [one.partition(" of other machines")[0] for one in sentences] == ["small: left out 2 cells"]
    assert of_one_machine(kept) == (kept, ())


@pytest.mark.parametrize(("other", "alike"), [(OTHER_CPU, False), (OTHER_TORCH, False), (ALIKE, True)])
def test_machines_are_alike_by_hardware_and_libraries_as_the_folder_keeps_them(tmp_path, other, alike):
    with Store(tmp_path) as store:
        for repeat, environment in enumerate((HERE, other)):
            store.write_environment(environment)
            one = made(repeat=repeat)._replace(environment=environment.digest, limits=Limits(1.0))
            store.append(one)
        kept = list(store.records.values())
    first, second = read_records(tmp_path)
    assert [first, second] == kept
    assert first.environment != second.environment
    assert (first.machine == second.machine) == alike
    lines = (tmp_path / "records.jsonl").read_text().splitlines()
    assert all("host" not in json.loads(line) for line in lines)


def of(records):
    found = factorial_of(records, FACTORS, "all", "baseline", "time", "warm")
    assert found is not None
    return found


def mean_over_orders(gain, factor):
    """Return the geometric mean of what the factor adds in each order of all factors."""
    added = []
    for order in permutations(FACTORS):
        before = frozenset(order[: order.index(factor)])
        added.append(math.log(gain(before | {factor}) / gain(before)))
    return math.exp(sum(added) / len(added))


@pytest.mark.parametrize("gain", [independent, overlapping])
def test_a_shapley_value_is_the_mean_over_every_order_and_all_multiply_to_the_whole(gain):
    found = of(factorial_records(gain))
    values = {factor: found.shapley(factor).value for factor in FACTORS}
    assert values == pytest.approx({factor: mean_over_orders(gain, factor) for factor in FACTORS})
    whole = pytest.approx(gain(frozenset(FACTORS)))
    assert math.prod(values.values()) == whole
    assert found.whole().value == whole


def test_independent_gains_do_not_interact_and_overlapping_ones_do():
    found = of(factorial_records(independent))
    assert found.pair("a", "b").value == pytest.approx(1)
    assert found.whole_over_product().value == pytest.approx(1)
    found = of(factorial_records(overlapping))
    assert (found.alone("a").value, found.added_last("a").value) == pytest.approx((2, 2 * 0.7 * 1.4))
    assert found.pair("a", "b").value == pytest.approx(0.7)
    assert found.pair("a", "c").value == pytest.approx(1.4)
    assert found.product_of_singles().value == pytest.approx(2 * 1.5 * 0.9)
    assert found.whole_over_product().value == pytest.approx(0.7 * 1.4)


def test_factors_without_every_combination_are_left_out():
    found = of(factorial_records(independent, without=["all.a_c"]))
    assert (found.factors, found.left_out) == (("a", "b"), ("c",))
    nothing = factorial_records(independent, without=["all.a_b", "all.a_c", "all.b_c"])
    assert factorial_of(nothing, FACTORS, "all", "baseline", "time", "warm") is None
