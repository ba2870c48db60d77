"""The judge, on records made by hand: every outcome, and every way in which a figure must not pass."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import claim, conf_workloads, made

from harness.claims import load_claims
from harness.judge import judge, outcome
from harness.records import Claim, Record, Verdict


def figure(*samples: float, origin: str = "measured", unit: str = "B", **more: object) -> Record:
    return made(figures={("bytes", "way"): (unit, origin, samples)}, **more)  # type: ignore[arg-type]


def one(held: Claim, *records: Record) -> Verdict:
    verdicts = judge([held], records)
    assert len(verdicts) == 1
    return verdicts[0]


@pytest.mark.parametrize(
    ("relation", "samples", "expected"),
    [
        ("about", (100.0,), "holds"),
        ("about", (90.0,), "holds"),
        ("about", (110.0,), "holds"),
        ("about", (89.9,), "falls short"),
        ("about", (110.1,), "exceeds"),
        ("about", (89.0, 91.0), "undecided"),
        ("about", (109.0, 111.0), "undecided"),
        ("about", (80.0, 120.0), "undecided"),
        ("at_least", (1000.0,), "holds"),
        ("at_least", (90.0,), "holds"),
        ("at_least", (40.0,), "falls short"),
        ("at_least", (89.0, 500.0), "undecided"),
        ("at_most", (1.0,), "holds"),
        ("at_most", (110.0,), "holds"),
        ("at_most", (111.0,), "exceeds"),
        ("at_most", (50.0, 111.0), "undecided"),
        ("within", (100.0,), "holds"),
        ("within", (90.0, 220.0), "holds"),
        ("within", (89.9,), "falls short"),
        ("within", (220.1,), "exceeds"),
        ("within", (89.0, 150.0), "undecided"),
        ("within", (150.0, 221.0), "undecided"),
        ("within", (50.0, 300.0), "undecided"),
    ],
)
def test_outcome_of_each_relation_at_and_beside_its_edges(
    relation: str, samples: tuple[float, ...], expected: str
) -> None:
    upper = 200.0 if relation == "within" else None
    verdict = one(claim(100.0, relation=relation, tolerance=0.1, upper=upper), figure(*samples))
    assert verdict.outcome == expected
    assert (verdict.low, verdict.high) == (min(samples), max(samples))


@given(
    st.floats(0, 0.9),
    st.floats(1e-3, 1e3),
    st.floats(0, 1e3),
    st.sampled_from(["about", "at_least", "at_most"]),
)
def test_outcome_does_not_depend_on_the_scale_of_the_unit(
    tolerance: float, low: float, more: float, relation: str
) -> None:
    small = claim(1.0, relation=relation, tolerance=tolerance)
    large = claim(2.0**20, relation=relation, tolerance=tolerance)
    high = low * (1 + more)
    assert outcome(small, low, high) == outcome(large, low * 2**20, high * 2**20)


def test_a_wider_interval_never_turns_one_verdict_into_another() -> None:
    held = claim(100.0, tolerance=0.1)
    for low in range(50, 150, 3):
        for high in range(low, 160, 3):
            wide, narrow = outcome(held, low, high), outcome(held, low, low)
            assert wide in (narrow, "undecided")


def test_no_record_is_unavailable_and_never_a_pass() -> None:
    verdict = one(claim(), made(optimization="another"))
    assert verdict.outcome == "unavailable"
    assert verdict.where == ""
    assert (verdict.ours, verdict.low, verdict.high, verdict.ratio) == (None,) * 4
    assert "no record of baseline on small" in verdict.sentence


@pytest.mark.parametrize("status", ["out_of_memory", "timed_out", "crashed", "unavailable", "wrong_result"])
def test_a_cell_that_did_not_end_well_gives_its_reason(status: str) -> None:
    verdict = one(claim(), made(status=status, reason="the reason told"))
    assert verdict.outcome == "unavailable"
    assert status.replace("_", " ") in verdict.sentence
    assert "the reason told" in verdict.sentence


def test_a_wrong_result_settles_nothing_even_with_a_figure() -> None:
    assert one(claim(), figure(100.0, status="wrong_result")).outcome == "unavailable"


def test_a_figure_had_before_the_cell_ran_out_counts_but_not_as_stated() -> None:
    verdict = one(claim(), figure(100.0, status="out_of_memory", reason="later"))
    assert verdict.outcome == "holds"
    assert verdict.where == "elsewhere"
    assert verdict.differs == ("the cell ended as out of memory",)


def test_another_method_of_the_same_metric_is_not_taken_for_it() -> None:
    record = made(figures={("bytes", "other"): ("B", "measured", (100.0,))}, remarks=("way: did not apply",))
    verdict = one(claim(), record)
    assert verdict.outcome == "unavailable"
    assert "way: did not apply" in verdict.sentence


def test_a_figure_in_another_unit_is_refused() -> None:
    verdict = one(claim(), figure(100.0, unit="s"))
    assert verdict.outcome == "unavailable"
    assert "recorded in s, the claim is in B" in verdict.sentence


@pytest.mark.parametrize("samples", [(), (math.nan,), (100.0, math.inf)])
def test_samples_that_are_no_numbers_are_no_figure(samples: tuple[float, ...]) -> None:
    assert one(claim(), figure(*samples)).outcome == "unavailable"


def test_repeats_are_taken_together() -> None:
    verdict = one(claim(), figure(80.0, repeat=1), figure(100.0, repeat=0), figure(120.0, repeat=2))
    assert (verdict.ours, verdict.low, verdict.high) == (100.0, 80.0, 120.0)
    assert verdict.outcome == "undecided"


def test_repeats_of_different_origin_are_not_mixed() -> None:
    assert one(claim(), figure(100.0), figure(100.0, origin="simulated", repeat=1)).outcome == "unavailable"


def test_per_divides_by_the_same_cells_metric() -> None:
    record = made(
        figures={("bytes", "way"): ("B", "measured", (280.0,)), ("things", ""): ("1", "calculated", (7.0,))}
    )
    verdict = one(claim(40.0, per="things"), record)
    assert verdict.ours == pytest.approx(40.0)
    assert verdict.outcome == "holds"
    assert "40 B per thing" in verdict.sentence


@pytest.mark.parametrize("divisor", [None, 0.0, math.nan])
def test_per_with_nothing_to_divide_by_is_no_figure(divisor: float | None) -> None:
    figures = {("bytes", "way"): ("B", "measured", (280.0,))}
    if divisor is not None:
        figures["things", ""] = ("1", "calculated", (divisor,))
    assert one(claim(40.0, per="things"), made(figures=figures)).outcome == "unavailable"


GPU = {"device": "cuda", "optimizer": "adam | adamw"}


def test_as_stated_needs_every_condition_met() -> None:
    held = claim(conditions=GPU)
    stated = one(held, figure(100.0, conditions={"device": "cuda", "optimizer": "adamw", "batch": "4"}))
    assert (stated.where, stated.differs) == ("as stated", ())


@pytest.mark.parametrize(
    ("origin", "conditions", "told"),
    [
        ("measured", {"device": "cpu", "optimizer": "adam"}, "device cpu, the claim has cuda"),
        ("measured", {"optimizer": "adam"}, "device not recorded, the claim has cuda"),
        ("measured", {"device": "cuda", "optimizer": "sgd"}, "optimizer sgd, the claim has adam or adamw"),
        ("simulated", {"device": "cuda", "optimizer": "adam"}, "simulated, not measured"),
        ("calculated", {"device": "cuda", "optimizer": "adam"}, "calculated, not measured"),
        ("emulated", {"device": "cuda", "optimizer": "adam"}, "emulated, not measured"),
    ],
)
def test_what_differs_is_listed_and_is_elsewhere(origin: str, conditions: dict[str, str], told: str) -> None:
    verdict = one(claim(conditions=GPU), figure(100.0, origin=origin, conditions=conditions))
    assert verdict.outcome == "holds"
    assert verdict.where == "elsewhere"
    assert verdict.differs == (told,)


def test_no_cpu_record_settles_a_gpu_claim_as_stated_whatever_it_says() -> None:
    for origin in ("measured", "emulated", "simulated", "calculated"):
        verdict = one(
            claim(conditions=GPU), figure(100.0, origin=origin, conditions={**GPU, "device": "cpu"})
        )
        assert verdict.where == "elsewhere"


def test_a_claim_about_no_hardware_can_be_settled_by_calculation() -> None:
    assert one(claim(), figure(100.0, origin="calculated")).where == "as stated"


def test_one_verdict_a_reading_in_order_and_other_suites_records_ignored() -> None:
    held = claim()
    second = held.readings[0]._replace(name="second", optimization="faster")
    held = replace(held, readings=(*held.readings, second))
    foreign = figure(100.0, suite="foreign")
    assert [v.outcome for v in judge([held], [foreign])] == ["unavailable", "unavailable"]
    verdicts = judge([held], [figure(100.0), figure(50.0, optimization="faster"), foreign])
    assert [(v.reading, v.outcome) for v in verdicts] == [("reading", "holds"), ("second", "falls short")]


def test_the_order_of_records_does_not_matter() -> None:
    records = [figure(80.0 + i, repeat=i) for i in range(4)]
    assert judge([claim()], records) == judge([claim()], records[::-1])


def test_the_sentence_names_figure_origin_ratio_and_outcome() -> None:
    held = claim(280e9, relation="at_least")
    sentence = one(held, figure(112e9, origin="simulated")).sentence
    assert sentence == (
        "It takes 112 GB (simulated), 0.40 of the at least 280 GB quoted: the claim does not hold."
    )


@pytest.mark.parametrize(
    ("relation", "sample", "end"),
    [
        ("about", 40.0, "the claim overstates it."),
        ("about", 200.0, "the claim understates it."),
        ("at_least", 40.0, "the claim does not hold."),
        ("at_most", 200.0, "the claim does not hold."),
        ("at_least", 200.0, "the claim holds."),
    ],
)
def test_the_sentence_ends_as_the_relation_has_it(relation: str, sample: float, end: str) -> None:
    assert one(claim(100.0, relation=relation), figure(sample)).sentence.endswith(f": {end}")


# Speed-ups: one arm against another, round by round

DRIFT = (1.0, 1.3, 1.1, 1.7, 0.9, 1.2, 1.4, 1.0)  # what the machine does to both arms of a round


def times(arm: str, factors: tuple[float, ...], **more: object) -> list[Record]:
    """One record a process: the drift, shifted from process to process, times that process's factor."""
    records = []
    for repeat, factor in enumerate(factors):
        samples = tuple(1e-3 * (repeat + 1) * drift * factor for drift in DRIFT)
        figures = {("time", "warm"): ("s", "measured", samples)}
        records.append(made("small", arm, figures, repeat=repeat, **more))  # type: ignore[arg-type]
    return records


def speed_up(value: float = 2.0, upper: float | None = 3.0, **more: object) -> Claim:
    relation = "about" if upper is None else "within"
    return claim(value, relation=relation, tolerance=0.0, upper=upper, unit="1", metric="time", method="warm",
                 optimization="fast", against="baseline", **more)  # type: ignore[arg-type]  # fmt: skip


BASE = times("baseline", (1.0,) * 4)


def test_a_speed_up_is_the_other_arms_time_over_the_own_whatever_drifts() -> None:
    verdict = one(speed_up(), *BASE, *times("fast", (0.4,) * 4))
    assert verdict.outcome == "holds"
    assert (verdict.ours, verdict.low, verdict.high) == pytest.approx((2.5, 2.5, 2.5))
    assert verdict.ratio == pytest.approx(1.25)
    assert verdict.cell == "invented-small-fast-0"
    assert "2.50×" in verdict.sentence
    assert "(measured, 4 processes, 32 rounds)" in verdict.sentence
    assert "1.25 of the lower end of 2.00× to 3.00× quoted: the claim holds" in verdict.sentence


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


@pytest.mark.parametrize(
    ("factors", "expected", "end"),
    [
        ((0.3, 0.3, 0.3), "exceeds", "the claim understates it."),
        ((0.6, 0.6, 0.6), "falls short", "the claim overstates it."),
        (
            (0.45, 0.5, 0.55),
            "undecided",
            "the interval lies on both sides of what counts as the same figure.",
        ),
    ],
)
def test_where_the_interval_of_a_speed_up_lies(factors: tuple[float, ...], expected: str, end: str) -> None:
    verdict = one(speed_up(), *BASE, *times("fast", factors))
    assert verdict.outcome == expected
    assert verdict.sentence.endswith(end)


def test_a_speed_up_within_the_noise_is_told_so() -> None:
    again = times("baseline_again", (1.03, 0.97, 1.04, 0.98))
    inside = one(speed_up(1.0, 1.1), *BASE, *again, *times("fast", (0.99,) * 4))
    assert inside.outcome == "holds"
    assert re.search(r"it lies within this run's noise \(0\.9\d\d× to 1\.0\d\d×\)\.$", inside.sentence)
    assert "from" not in inside.sentence
    outside = one(speed_up(1.0, 1.5), *BASE, *again, *times("fast", (0.8,) * 4))
    assert "noise" not in outside.sentence
    unknown = one(speed_up(1.0, 1.5), *BASE, *times("fast", (0.99,) * 4))
    assert "noise" not in unknown.sentence


def test_only_repeats_in_which_both_arms_ended_well_are_pairs() -> None:
    fast = times("fast", (0.4, 0.4, 0.4, 9.0))
    fast[3] = fast[3]._replace(status="crashed", reason="signal 11")
    verdict = one(speed_up(), *BASE[1:], *fast)
    assert verdict.ours == pytest.approx(2.5)
    assert "2 processes, 16 rounds" in verdict.sentence
    assert verdict.differs == ("the cell ended as crashed",)


@pytest.mark.parametrize(
    ("base", "fast", "told"),
    [
        ([], times("fast", (0.4,)), "no record of baseline on small"),
        (BASE, [], "no record of fast on small"),
        (BASE[:1], times("fast", (0.4, 0.4))[1:], "no repeat in which both arms have time by warm"),
        (BASE, [made("small", "fast", status="unavailable", reason="no GPU")], "unavailable (no GPU)"),
        (
            BASE,
            [made("small", "fast", remarks=("time: not timed here",))],
            "has no time by warm (time: not timed",
        ),
    ],
)
def test_a_speed_up_without_pairs_is_unavailable(base: list[Record], fast: list[Record], told: str) -> None:
    verdict = one(speed_up(), *base, *fast)
    assert (verdict.outcome, verdict.ours) == ("unavailable", None)
    assert told in verdict.sentence


@pytest.mark.parametrize("samples", [(1.0, 2.0), (0.0,) * 8, (math.nan,) * 8, (-1.0,) * 8])
def test_samples_that_do_not_pair_are_no_figure(samples: tuple[float, ...]) -> None:
    figures = {("time", "warm"): ("s", "measured", samples)}
    assert one(speed_up(), *BASE, made("small", "fast", figures)).outcome == "unavailable"


def test_a_single_pair_has_no_interval_and_settles_nothing() -> None:
    figures = {("time", "warm"): ("s", "measured", (1.0,))}
    verdict = one(speed_up(), made("small", "baseline", figures), made("small", "fast", figures))
    assert verdict.outcome == "unavailable"
    assert "more repeats" in verdict.sentence


def test_what_the_other_arm_stands_under_is_a_condition_too() -> None:
    base = times("baseline", (1.0,) * 4, conditions={"precision": "tf32"})
    fast = times("fast", (0.4,) * 4, conditions={"precision": "bf16"})
    held = speed_up(conditions={"precision": "bf16", "against precision": "fp32"})
    assert one(held, *base, *fast).differs == ("against precision tf32, the claim has fp32",)


@pytest.mark.parametrize(
    ("name", "where"), [("NVIDIA A100-SXM4-80GB", "as stated"), ("NVIDIA H100", "elsewhere")]
)
def test_a_condition_may_be_a_pattern(name: str, where: str) -> None:
    verdict = one(
        claim(conditions={"device_name": "*A100*"}), figure(100.0, conditions={"device_name": name})
    )
    assert verdict.where == where
    assert verdict.differs == (
        () if where == "as stated" else ("device_name NVIDIA H100, the claim has A100",)
    )


SHAPE = {"layers": 32, "batch": 1, "optimizer": "adamw", "device_memory_B": 80e9}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"layers": 4}, "small was run with layers 4; this claim speaks of layers 32."),
        (
            {"batch": 2, "optimizer": "sgd_momentum"},
            "run with batch 2, optimizer sgd_momentum; this claim speaks of batch 1, optimizer adamw.",
        ),
        (
            {"device_memory_B": 141e9},
            "with device_memory_B 141 GB; this claim speaks of device_memory_B 80 GB.",
        ),
    ],
)
def test_the_same_name_with_another_shape_is_no_figure(changed: dict[str, object], told: str) -> None:
    verdict = one(claim(requires=SHAPE), figure(100.0, fields={**SHAPE, **changed}))
    assert verdict.outcome == "unavailable"
    assert verdict.ours is None
    assert verdict.cell
    assert verdict.sentence.endswith(told)
    assert one(claim(requires=SHAPE), figure(100.0, fields=SHAPE)).outcome == "holds"


def test_a_required_field_that_was_not_recorded_is_not_taken_as_met() -> None:
    verdict = one(claim(requires=SHAPE), figure(100.0, fields={"batch": 1, "optimizer": "adamw"}))
    assert verdict.outcome == "unavailable"
    assert "no layers recorded, no device_memory_B recorded" in verdict.sentence


def test_records_of_another_shape_do_not_mix_with_those_of_the_claims() -> None:
    other = figure(1.0, fields={**SHAPE, "layers": 4})
    verdict = one(claim(requires=SHAPE), other, figure(100.0, fields={**SHAPE, "more": 7}))
    assert (verdict.outcome, verdict.low, verdict.high) == ("holds", 100.0, 100.0)


PAPER_80_GB = 80e9  # Table I's heading


@pytest.mark.parametrize(("memory_B", "expected"), [(PAPER_80_GB, "holds"), (141e9, "unavailable")])
def test_hardware_of_more_memory_changes_no_count_of_the_papers_gpus(memory_B: float, expected: str) -> None:
    """On 141 GB the same step needs fewer devices: no figure about GPUs of 80 GB, while its bytes stand."""
    claims = {one.id: one for one in load_claims("memory")}
    fields = {**conf_workloads()["llama_7b"], "device_memory_B": memory_B}
    figures = {
        ("gpus", "fake_step"): ("1", "simulated", (4.0 if memory_B == PAPER_80_GB else 2.0,)),
        ("peak_memory", "fake_step"): ("B", "simulated", (280e9,)),
    }
    record = made("llama_7b", "mixed_flash", figures, fields=fields, suite="memory")
    for id, due in (
        ("table_1_llama_7b_gpus", expected),
        ("seven_billion_more_than_one_80_GB", expected),
        ("table_1_llama_7b_memory", "holds"),
        ("seven_billion_more_than_one_141_GB", "holds"),
    ):
        verdicts = {v.reading: v for v in judge([claims[id]], [record])}
        assert verdicts["no checkpointing, flash"].outcome == due, id
