"""Orders before the judge: a value that increases from variant to variant."""

import math
from dataclasses import replace

import pytest
from judged import one
from synthetic import claim, made

from harness.claims.judge import judge
from harness.claims.model import Difference
from harness.claims.values import compare
from harness.report.spec import Heading, Spec
from harness.report.verdicts import orders, quoted, verdict_table

SPEC = Spec("invented", "", "", {"optimization": {"zero_2": "ZeRO-2"}}, ())
DRIFT = (1.0, 1.3, 1.1, 1.7, 0.9, 1.2, 1.4, 1.0)  # what the machine does to all variants of a round


def increasing(*order, value=1.0, tolerance=0.0, **more):
    held = claim(value, relation="increasing", tolerance=tolerance, unit="1", **more)
    only = held.interpretations[0]._replace(variant="", order=order, text="Peak device memory")
    return replace(held, interpretations=(only,))


def size(variant, *samples, origin="measured", unit="B", **more):
    return made("small", variant, {("bytes", "way"): (unit, origin, samples)}, **more)


def sampled(variant, *factors, **more):
    return [
        size(variant, *(1e-3 * (repeat + 1) * drift * factor for drift in DRIFT), repeat=repeat, **more)
        for repeat, factor in enumerate(factors)
    ]


def test_every_step_is_reported_in_order_and_the_smallest_decides():
    held = increasing("zero_3", "zero_2", "zero_1")
    verdict = one(held, size("zero_3", 4.0), size("zero_2", 5.0), size("zero_1", 7.0))
    steps = [(step.before, step.after, step.ratio) for step in verdict.steps]
    assert steps == [("zero_3", "zero_2", 1.25), ("zero_2", "zero_1", pytest.approx(1.4))]
    assert (verdict.outcome, verdict.where, verdict.unit) == ("holds", "as stated", "1")
    assert (verdict.ours, verdict.low, verdict.high, verdict.ratio) == (1.25,) * 4
    assert verdict.cell == "invented-small-zero_2-0"
    (row,) = verdict_table(Heading(title="Claims"), [held], [verdict]).rows
    assert [cell.text for cell in row][1:] == ["increases", "only", "1.25× ᵐ", "1.25×", "holds"]
    again = held.interpretations[0]._replace(order=("a", "b"))
    two = replace(held, interpretations=(*held.interpretations * 2, again))
    assert quoted(increasing("a", "b", value=1.2)) == "increases by ≥ 1.20×"
    assert orders(two, SPEC) == ["Increases: zero_3 → ZeRO-2 → zero_1", "Increases: a → b"]


def test_of_several_steps_the_smallest_has_the_interval_of_its_processes():
    small = sampled("b", 1.06, 1.10, 1.08, 1.07)
    records = [*sampled("a", *(1.0,) * 4), *small, *sampled("c", *(2.0,) * 4)]
    held = increasing("a", "b", "c")
    verdict = one(held, *records)
    ratio = compare(small, records[:4], "bytes", "way")
    assert (verdict.ours, verdict.low, verdict.high) == ratio[:3]
    assert (verdict.outcome, verdict.cell) == ("holds", "invented-small-b-0")
    assert judge([held], records[::-1]) == [verdict]


A, A_TWICE, B_TWICE = sampled("a", *(1.0,) * 4), size("a", 1.0, 2.0), size("b", 3.0, 4.0, repeat=1)


@pytest.mark.parametrize(
    ("records", "outcome", "basis", "processes", "ends"),
    [
        # a rise smaller than the drift is seen by pairs, and not by ranges
        ([*A, *sampled("b", 1.02, 1.03, 1.025, 1.03)], "holds", "pairs", 4, None),
        ([*A[:1], *sampled("b", 1.02)], "undecided", "ranges", 1, None),
        ([*A[:3], *sampled("b", 0.9, 1.0, 1.2)], "undecided", "pairs", 3, None),
        # variants of other repeats, or of other rounds
        ([A_TWICE, B_TWICE], "holds", "ranges", 1, (1.5, 4.0)),
    ],
)
def test_what_a_step_rests_on(records, outcome, basis, processes, ends):
    verdict = one(increasing("a", "b"), *records)
    assert (verdict.outcome, verdict.basis, verdict.processes) == (outcome, basis, processes)
    assert ends in (None, (verdict.low, verdict.high))


BAD = [
    ([], "no record of b on small"),
    ([size("b", 2.0, status="wrong_result", reason="off")], "ended as wrong result (off)"),
    *(([size("b", *bad)], "b: not every bytes by way is above 0") for bad in ((), (2.0, 0.0), (math.inf,))),
    ([size("b", 2.0, origin="simulated")], "different origins (a measured, b simulated"),
    ([size("b", 2.0, unit="s")], "different units (a B, b s"),
    ([size("b", 2.0, fields={"layers": 4})], "b: small was run with layers 4; this claim is about layers 32"),
]


@pytest.mark.parametrize(("records", "told"), BAD, ids=lambda value: value if isinstance(value, str) else "")
def test_a_variant_without_a_value_is_named_and_never_a_pass(records, told):
    held = increasing("a", "b", "c", defaults={"layers": 32})
    verdict = one(held, size("a", 1.0), *records, size("c", 3.0))
    assert (verdict.outcome, verdict.where, verdict.ours) == ("unavailable", "", None)
    assert told in verdict.reason
    assert one(held, size("a", 1.0), size("b", 2.0), size("c", 3.0)).outcome == "holds"


def test_every_variant_must_meet_the_claims_conditions():
    there = {"device": "cuda", "precision": "bf16"}
    held = increasing("a", "b", "c", conditions=there)
    met = [size(variant, i + 1.0, conditions=there) for i, variant in enumerate("abc")]
    assert (one(held, *met).where, one(held, *met).differs) == ("as stated", ())
    for i, variant in enumerate("abc"):
        other = [*met]
        other[i] = met[i]._replace(conditions={**there, "precision": "fp32"})
        verdict = one(held, *other)
        assert (verdict.outcome, verdict.where) == ("holds", "elsewhere")
        assert verdict.differs == (Difference("precision", "fp32", "bf16", (variant,)),)
    elsewhere = one(held, *(r._replace(conditions={**there, "device": "cpu"}) for r in met))
    assert elsewhere.differs == (Difference("device", "cpu", "cuda"),)
