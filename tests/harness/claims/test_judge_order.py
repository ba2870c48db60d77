"""Orders before the judge: a value that increases from variant to variant."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judged import one
from synthetic import claim, made

from harness.claims.judge import failing_steps, judge, order_outcome, undecided_steps
from harness.claims.model import AdjacentRatio, Claim, Difference, Verdict
from harness.records import Record
from harness.report.spec import Heading, Spec
from harness.report.verdicts import orders, ours, quoted, verdict_table
from harness.report.write import verdicts_json

SPEC = Spec("invented", "", "", {"optimization": {"zero_2": "ZeRO-2"}}, ())
ARMS = ("a", "b", "c", "d", "e")
DRIFT = (1.0, 1.3, 1.1, 1.7, 0.9, 1.2, 1.4, 1.0)  # what the machine does to all variants of a round

POSITIVE = st.floats(1e-6, 1e12)
FEW = st.lists(st.integers(1, 12).map(float), min_size=1, max_size=4)  # small whole numbers: ties are common


def increasing(*order: str, value: float = 1.0, **more: object) -> Claim:
    held = claim(value, relation="increasing", tolerance=0.0, unit="1", **more)  # type: ignore[arg-type]
    only = held.interpretations[0]._replace(variant="", order=order, text="Peak device memory")
    return replace(held, interpretations=(only,))


def size(variant: str, *samples: float, origin: str = "measured", unit: str = "B", **more: object) -> Record:
    return made("small", variant, {("bytes", "way"): (unit, origin, samples)}, **more)  # type: ignore[arg-type]


def sizes(figures: Sequence[Sequence[float]]) -> list[Record]:
    """Return one record per variant, of one process."""
    return [size(variant, *samples) for variant, samples in zip(ARMS, figures, strict=False)]


def sampled(variant: str, factors: Sequence[float], **more: object) -> list[Record]:
    """Return one record per process: the drift, shifted per process, times its factor."""
    return [
        size(variant, *(1e-3 * (repeat + 1) * drift * factor for drift in DRIFT), repeat=repeat, **more)  # type: ignore[arg-type]
        for repeat, factor in enumerate(factors)
    ]


def judged_in_order(figures: Sequence[Sequence[float]]) -> Verdict:
    return one(increasing(*ARMS[: len(figures)]), *sizes(figures))


def test_every_step_is_reported_in_order() -> None:
    held = increasing("zero_3", "zero_2", "zero_1")
    records = [size("zero_3", 1000.0), size("zero_2", 1210.0), size("zero_1", 1633.5)]
    verdict = one(held, *records)
    assert [(step.before, step.after) for step in verdict.steps] == [
        ("zero_3", "zero_2"),
        ("zero_2", "zero_1"),
    ]
    assert [step.ratio for step in verdict.steps] == pytest.approx([1.21, 1.35])
    assert (verdict.outcome, verdict.where, verdict.unit) == ("holds", "as stated", "1")
    assert (verdict.ours, verdict.low, verdict.high, verdict.ratio) == pytest.approx((1.21,) * 4)
    assert verdict.cell == "invented-small-zero_2-0"


@pytest.mark.parametrize(
    ("figures", "expected", "deciding"),
    [
        ([[4], [2], [8]], "falls short", "ab"),
        ([[4], [4], [8]], "falls short", "ab"),
        ([[4], [8], [8]], "falls short", "bc"),
        ([[4], [3], [2]], "falls short", "ab bc"),
        ([[1, 3], [2, 4], [8]], "undecided", "ab"),
        ([[1, 2], [2, 4], [8]], "undecided", "ab"),
        ([[1, 3], [2, 4], [1]], "falls short", "bc"),
        ([[1, 2], [3, 4], [5, 6]], "holds", ""),
    ],
)
def test_which_step_decides(figures: list[list[float]], expected: str, deciding: str) -> None:
    verdict = judged_in_order(figures)
    assert verdict.outcome == expected
    held = increasing(*ARMS[: len(figures)])
    steps = failing_steps(held, verdict.steps) or undecided_steps(held, verdict.steps)
    assert " ".join(step.before + step.after for step in steps) == deciding


def test_the_value_is_the_smallest_step_with_its_own_ends() -> None:
    verdict = judged_in_order([[1, 2], [10, 20], [30, 40]])
    assert (verdict.ours, verdict.low, verdict.high) == pytest.approx((35 / 15, 30 / 20, 40 / 10))
    assert verdict.cell == "invented-small-c-0"
    assert verdict.steps[0][2:5] == pytest.approx((10.0, 5.0, 20.0))
    assert {step.basis for step in verdict.steps} == {"ranges"}


def test_a_step_that_is_not_the_smallest_may_leave_it_undecided() -> None:
    """From a to b surely 1.5 times; from b to c likely more, and perhaps less."""
    verdict = judged_in_order([[2], [3], [2, 6, 7]])
    assert (verdict.ours, verdict.low, verdict.outcome) == (1.5, 1.5, "undecided")
    assert verdict.steps[1][2:5] == pytest.approx((2.0, 2 / 3, 7 / 3))  # the ratio of medians


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ([[10], [12], [15]], "holds"),  # the edge itself counts
        ([[10], [11.9], [15]], "falls short"),
        ([[10], [15], [15]], "falls short"),
        ([[10], [11, 13], [16]], "undecided"),
        ([[10], [11, 12], [16]], "undecided"),
        ([[10], [12, 13], [16]], "holds"),
    ],
)
def test_a_claim_may_ask_for_more_than_merely_more(figures: list[list[float]], expected: str) -> None:
    verdict = one(increasing("a", "b", "c", value=1.2), *sizes(figures))
    assert verdict.outcome == expected
    assert verdict.ratio == pytest.approx((verdict.ours or 0) / 1.2)


def test_a_tolerance_lowers_what_is_asked_for_and_never_below_an_increase() -> None:
    asked = replace(increasing("a", "b", value=1.2), tolerance=0.1)
    assert one(asked, *sizes([[100], [109]])).outcome == "holds"
    assert one(asked, *sizes([[100], [107]])).outcome == "falls short"
    assert one(replace(asked, tolerance=0.5), *sizes([[100], [100]])).outcome == "falls short"


@given(st.lists(POSITIVE, min_size=2, max_size=5))
def test_exact_values_hold_where_sorting_leaves_them_as_they_are(figures: list[float]) -> None:
    verdict = judged_in_order([[value] for value in figures])
    strictly = figures == sorted(set(figures))
    assert verdict.outcome == ("holds" if strictly else "falls short")
    assert verdict.ours == min(after / before for before, after in pairwise(figures))


@given(st.lists(FEW, min_size=2, max_size=5))
def test_samples_of_one_process_are_compared_one_by_one(figures: list[list[float]]) -> None:
    """Every sample of a variant against every one of the next: the independent way to its outcome."""
    sides = [[after > before for before in one for after in two] for one, two in pairwise(figures)]
    verdict = judged_in_order(figures)
    if not all(any(side) for side in sides):
        assert verdict.outcome == "falls short"
    else:
        assert verdict.outcome == ("holds" if all(all(side) for side in sides) else "undecided")


@given(st.lists(FEW, min_size=2, max_size=5), st.integers(-20, 20))
def test_the_outcome_does_not_depend_on_the_scale_of_the_unit(figures: list[list[float]], power: int) -> None:
    scaled = judged_in_order([[value * 2.0**power for value in samples] for samples in figures])
    verdict = judged_in_order(figures)
    assert (scaled.outcome, scaled.ours) == (verdict.outcome, verdict.ours)


FACTORS = st.lists(st.integers(50, 200).map(lambda percent: percent / 100), min_size=3, max_size=3)


@given(st.lists(FACTORS, min_size=2, max_size=4))
def test_what_rises_one_way_falls_the_other(figures: list[list[float]]) -> None:
    variants = ARMS[: len(figures)]
    records = [
        record
        for variant, factors in zip(variants, figures, strict=True)
        for record in sampled(variant, factors)
    ]
    there, back = one(increasing(*variants), *records), one(increasing(*variants[::-1]), *records)
    if there.outcome == "holds":
        assert back.outcome == "falls short"
    assert {there.outcome, back.outcome} != {"holds"}
    if len(variants) == 2:
        assert (there.outcome == "undecided") == (back.outcome == "undecided")
        assert there.ours == pytest.approx(1 / (back.ours or 0))


@given(st.lists(FEW, min_size=3, max_size=5), st.data())
def test_an_order_that_holds_does_so_with_a_variant_left_out(
    figures: list[list[float]], data: st.DataObject
) -> None:
    figures = [[value + 13 * i for value in samples] for i, samples in enumerate(figures)]
    assert judged_in_order(figures).outcome == "holds"
    left_out = data.draw(st.integers(0, len(figures) - 1))
    assert judged_in_order([one for i, one in enumerate(figures) if i != left_out]).outcome == "holds"


ENDS = st.tuples(st.floats(0.5, 2.0), st.floats(0.5, 2.0)).map(sorted)


@given(st.lists(ENDS, min_size=1, max_size=4), st.floats(0, 1), st.floats(0, 1), st.sampled_from([1.0, 1.2]))
def test_a_wider_interval_never_turns_one_verdict_into_another(
    ends: list[list[float]], less: float, more: float, value: float
) -> None:
    def outcome_of(ends: Sequence[Sequence[float]]) -> str:
        steps = [
            AdjacentRatio("a", "b", math.sqrt(low * high), low, high, "pairs", 2, 2) for low, high in ends
        ]
        return order_outcome(increasing("a", "b", value=value), steps)

    (low, high), *others = ends
    wide, narrow = outcome_of([(low * (1 - less / 2), high + more), *others]), outcome_of(ends)
    assert wide in (narrow, "undecided")


@given(st.permutations(range(9)))
def test_the_order_of_records_does_not_matter(permutation: list[int]) -> None:
    records = [*sampled("a", (1.0,) * 3), *sampled("b", (1.1, 1.2, 1.3)), *sampled("c", (1.5, 1.6, 1.7))]
    held = increasing("a", "b", "c")
    assert judge([held], [records[i] for i in permutation]) == judge([held], records)


def test_a_rise_smaller_than_the_drift_is_seen_by_pairs_and_not_by_ranges() -> None:
    held = increasing("a", "b")
    verdict = one(held, *sampled("a", (1.0,) * 4), *sampled("b", (1.02, 1.03, 1.025, 1.03)))
    assert verdict.outcome == "holds"
    assert (verdict.basis, verdict.processes, verdict.samples) == ("pairs", 4, 32)
    alone = one(held, *sampled("a", (1.0,)), *sampled("b", (1.02,)))
    assert alone.outcome == "undecided"
    assert alone.basis == "ranges"


def test_the_interval_of_a_step_against_a_t_test_of_its_processes() -> None:
    """Every round of a process has the same ratio, so the processes' log ratios are all there is."""
    from scipy import stats

    small, large = (1.06, 1.10, 1.08, 1.07), (1.9, 2.1, 2.0, 2.05)
    both = [one * two for one, two in zip(small, large, strict=True)]
    verdict = one(
        increasing("a", "b", "c"), *sampled("a", (1.0,) * 4), *sampled("b", large), *sampled("c", both)
    )
    logs = [math.log(factor) for factor in small]
    low, high = stats.t.interval(0.95, 3, loc=sum(logs) / 4, scale=stats.sem(logs))
    assert (verdict.low, verdict.high) == pytest.approx((math.exp(low), math.exp(high)))
    assert verdict.ours == pytest.approx(math.exp(sum(logs) / 4))
    assert (verdict.outcome, verdict.cell) == ("holds", "invented-small-c-0")


def test_an_interval_on_both_sides_of_one_is_undecided() -> None:
    verdict = one(increasing("a", "b"), *sampled("a", (1.0,) * 3), *sampled("b", (0.9, 1.0, 1.2)))
    assert verdict.outcome == "undecided"
    assert verdict.basis == "pairs"


def test_bytes_that_never_differ_need_no_interval() -> None:
    """Exactly twice, in each of three processes: no logarithm comes between it and its edge."""
    records = [
        size(variant, value, repeat=i) for variant, value in (("a", 3.0), ("b", 6.0)) for i in range(3)
    ]
    verdict = one(increasing("a", "b", value=2.0), *records)
    assert (verdict.outcome, verdict.ours, verdict.low, verdict.high) == ("holds", 2.0, 2.0, 2.0)


def test_variants_of_other_repeats_or_of_other_rounds_are_compared_by_their_ranges() -> None:
    apart = [size("a", 1.0, 2.0, repeat=0), size("b", 3.0, 4.0, repeat=1)]
    uneven = [*(size("a", 1.0, 2.0, repeat=i) for i in (0, 1)), *(size("b", 3.0, repeat=i) for i in (0, 1))]
    for records, ends in ((apart, (1.5, 4.0)), (uneven, (1.5, 3.0))):
        verdict = one(increasing("a", "b"), *records)
        assert (verdict.outcome, verdict.low, verdict.high) == ("holds", *ends)
        assert verdict.basis == "ranges"


BAD = {
    "missing": ([], "no record of b on small"),
    "crashed": ([made("small", "b", status="crashed", reason="signal 11")], "ended as crashed (signal 11)"),
    "unavailable": ([made("small", "b", status="unavailable", reason="no GPU")], "b: the cell ended as una"),
    "wrong": ([size("b", 2.0, status="wrong_result", reason="off")], "ended as wrong result (off)"),
    "ran out": ([size("b", 2.0, status="out_of_memory")], "b: the cell ended as out of memory"),
    "without": ([made("small", "b", notes=("bytes: not here",))], "b: the cell has no bytes by way ("),
    "none": ([size("b")], "b: not every bytes by way is above 0"),
    "mixed": ([size("b", 2.0), size("b", 2.0, origin="simulated", repeat=1)], "b: its repeats have"),
}  # fmt: skip


@pytest.mark.parametrize("why", BAD)
def test_a_variant_without_a_value_is_named_and_never_a_pass(why: str) -> None:
    records, told = BAD[why]
    verdict = one(increasing("a", "b", "c"), size("a", 1.0), *records, size("c", 3.0))
    assert (verdict.outcome, verdict.where, verdict.ours) == ("unavailable", "", None)
    assert told in verdict.reason
    assert verdict.cell == ("invented-small-b-0" if records else "")


@pytest.mark.parametrize("sample", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("variant", ["a", "b", "c"])
def test_samples_that_are_no_numbers_above_0_give_no_value(variant: str, sample: float) -> None:
    figures: Mapping[str, tuple[float, ...]] = {
        "a": (1.0, 1.0),
        "b": (2.0, 2.0),
        "c": (3.0, 3.0),
        variant: (1.0, sample),
    }
    verdict = one(increasing("a", "b", "c"), *(size(name, *samples) for name, samples in figures.items()))
    assert verdict.outcome == "unavailable"
    assert verdict.reason.startswith(f"{variant}: ")


@pytest.mark.parametrize(
    ("records", "told"),
    [
        ([size("b", 2.0, origin="simulated")], "different origins (a measured, b simulated)"),
        ([size("b", 2.0, unit="s")], "different units (a B, b s)"),
    ],
)
def test_variants_that_cannot_be_compared_are_not(records: list[Record], told: str) -> None:
    verdict = one(increasing("a", "b"), size("a", 1.0), *records)
    assert verdict.outcome == "unavailable"
    assert told in verdict.reason


def test_another_shape_of_one_variant_gives_no_value() -> None:
    held = increasing("a", "b", requires={"num_hidden_layers": 32})
    records = [
        size("a", 1.0, fields={"num_hidden_layers": 32}),
        size("b", 2.0, fields={"num_hidden_layers": 4}),
    ]
    verdict = one(held, *records)
    assert verdict.outcome == "unavailable"
    assert (
        "b: small was run with num_hidden_layers 4; this claim is about num_hidden_layers 32"
        in verdict.reason
    )
    assert one(held, records[0], size("b", 2.0, fields={"num_hidden_layers": 32})).outcome == "holds"


def test_every_variant_must_meet_the_claims_conditions() -> None:
    held = increasing("a", "b", "c", conditions={"device": "cuda", "precision": "bf16"})
    there = {"device": "cuda", "precision": "bf16"}
    met = [size(variant, value, conditions=there) for variant, value in (("a", 1.0), ("b", 2.0), ("c", 3.0))]
    assert (one(held, *met).where, one(held, *met).differs) == ("as stated", ())
    for i, variant in enumerate("abc"):
        other = [
            r._replace(conditions={**there, "precision": "fp32"}) if i == j else r for j, r in enumerate(met)
        ]
        verdict = one(held, *other)
        assert (verdict.outcome, verdict.where) == ("holds", "elsewhere")
        assert verdict.differs == (Difference("precision", "fp32", "bf16", (variant,)),)
    elsewhere = one(held, *(r._replace(conditions={**there, "device": "cpu"}) for r in met))
    assert elsewhere.differs == (Difference("device", "cpu", "cuda"),)
    fake = one(
        held,
        *(size(variant, i + 1.0, origin="simulated", conditions=there) for i, variant in enumerate("abc")),
    )
    assert fake.differs == (Difference("origin", "simulated", "measured"),)


def test_a_repeat_that_failed_is_left_out_and_reported() -> None:
    records = [*sampled("a", (1.0,) * 3), *sampled("b", (1.2, 1.2, 0.1))]
    records[-1] = records[-1]._replace(status="timed_out", reason="late")
    verdict = one(increasing("a", "b"), *records)
    assert verdict.outcome == "holds"
    assert verdict.ours == pytest.approx(1.2)
    assert verdict.processes == 2
    assert verdict.differs == (Difference("status", "timed_out", "ok", ("b",)),)
    exact = [size("a", 1.0), size("b", 2.0), size("b", 0.5, repeat=1, status="crashed")]
    assert one(increasing("a", "b"), *exact).ours == 2.0


@pytest.mark.parametrize("first", ["a", "baseline"])
def test_a_step_within_the_noise_is_reported_as_such(first: str) -> None:
    noise = [*sampled(first, (1.0,) * 4), *sampled(f"{first}_again", (1.03, 0.97, 1.04, 0.98))]
    variants = [*sampled("b", (1.01,) * 4), *sampled("c", (2.0,) * 4)]
    variants += [] if first == "a" else sampled("a", (1.0,) * 4)
    verdict = one(increasing("a", "b", "c"), *noise, *variants)
    assert verdict.outcome == "holds"
    assert verdict.noise is not None
    low, high = verdict.noise
    assert 0.9 < low < 1 < high < 1.1
    assert one(increasing("a", "c"), *noise, *variants).noise is None
    assert one(increasing("b", "c"), *noise, *variants).noise is None


def test_the_report_says_the_relation_in_words() -> None:
    held = increasing("zero_3", "zero_2", "zero_1")
    verdict = one(held, size("zero_3", 4.0), size("zero_2", 5.0), size("zero_1", 7.0))
    assert quoted(held) == "increases"
    assert orders(held, SPEC) == ["Increases: zero_3 → ZeRO-2 → zero_1"]
    assert quoted(increasing("a", "b", value=1.2)) == "increases by ≥ 1.20×"
    two = replace(
        held, interpretations=(*held.interpretations, held.interpretations[0]._replace(order=("a", "b")))
    )
    assert orders(two, SPEC)[1:] == ["Increases: a → b"]
    assert orders(replace(held, interpretations=held.interpretations * 2), SPEC) == orders(held, SPEC)
    assert ours(held, verdict) == "1.25× ᵐ"
    (row,) = verdict_table(Heading(title="Claims"), [held], [verdict]).rows
    assert [cell.text for cell in row][1:] == [
        quoted(held),
        "only",
        "1.25× ᵐ",
        "1.25×",
        "holds",
    ]
    (kept,) = json.loads(verdicts_json([held], [verdict]))["verdicts"]
    assert (kept["relation"], kept["quoted_value"], kept["ours"]) == ("increasing", 1.0, 1.25)
