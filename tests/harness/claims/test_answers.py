"""The answers on made-up claims: what decides, what is context, and what the answer says."""

from dataclasses import replace

import pytest
from answered import answered, paper_claim, public, shares
from synthetic import claim as judged_claim
from synthetic import made

from harness.claims.answers import answer_claims
from harness.claims.evidence import Findings, MethodError
from harness.claims.judge import judge
from harness.claims.model import Claim
from harness.claims.values import HALVES, half_of
from harness.records import Record


def of(held: Claim, records: list[Record]) -> Findings:
    return Findings({"invented/claim": (held, judge([held], records))}, {})


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([public(values={"a": 2.0, "b": 2.1, "c": 1.9})], "confirmed"),
        ([public(values={"a": 2.0, "b": 2.3, "c": 1.9})], "partly"),
        ([public(values={"a": 1.0, "b": 2.3, "c": 3})], "contradicted"),
        ([public(values={"a": 2.0, "b": 2.1})], "undecided"),  # two say nothing, whichever side they are on
        ([public(values=shares(3, 0)), public(values={"a": 3})], "partly"),  # one stands against it
        ([public(values=shares(3, 0)), public(False, values={"a": 3}, own=True)], "confirmed"),
        ([public(False, values={"a": 1.0, "b": 3.0, "c": 3})], "implausible"),
        ([public(False, values={"a": 2.0, "b": 2.1, "c": 3})], "plausible"),
        ([public(False, values={"a": 2.0, "b": 3.1, "c": 3})], "undecided"),
        ([public(False)], "no evidence"),
        ([public(values={"a": 2.19, "b": 2.21, "c": 1.79})], "undecided"),  # each within 1 % of an edge
    ],
)
def test_published_values_decide_where_they_have_the_claims_metric(records, expected):
    assert answered(paper_claim(public=tuple(records))).answer == expected


@pytest.mark.parametrize(
    ("values", "origin", "device", "expected"),
    [
        ((2.0, 2.1, 1.9), "measured", "cuda", "confirmed"),
        ((3.0, 3.1, 1.0), "measured", "cuda", "contradicted"),
        ((2.0, 3.1, 1.0), "measured", "cuda", "partly"),
        ((2.0, 2.1, 1.9), "published", "cuda", "confirmed"),
        ((2.0, 2.1, (1.9, 2.5)), "measured", "cuda", "plausible"),  # two lie on a side: context
        (((1.9, 2.5), (1.9, 2.6), (1.5, 2.1)), "measured", "cuda", "undecided"),
        ((2.0, 2.1, 1.9, (1.9, 2.5)), "measured", "cuda", "confirmed"),  # of those that are decided
        ((2.0, 2.1, 1.9), "measured", "cpu", "plausible"),
        ((3.0, 3.1, 1.0), "measured", "cpu", "implausible"),
        ((2.0, 2.1, 1.9), "emulated", "cuda", "plausible"),
        ((3.0, 3.1, 1.0), "simulated", "cuda", "implausible"),
    ],
)
def test_only_what_was_measured_on_the_claims_device_decides(values, origin, device, expected):
    assert answered(paper_claim(), *values, origin=origin, device=device).answer == expected


def test_a_word_that_one_half_of_the_processes_turns_is_no_answer():
    held = judged_claim(2.0, tolerance=0.1, unit="s", metric="time", method="")
    first = held.interpretations[0]
    held = replace(held, interpretations=tuple(first._replace(name=one, workload=one) for one in "abc"))

    def row(*per_process: float):
        records = [
            made(name, figures={("time", ""): ("s", "measured", (value,))}, repeat=repeat)
            for repeat, value in enumerate(per_process)
            for name in "abc"
        ]
        parts = [half_of(records, which) for which in HALVES]
        assert {one.cell.repeat for part in parts for one in part} == set(range(len(per_process)))
        return answer_claims([paper_claim()], of(held, records), [of(held, part) for part in parts])[0]

    assert row(2.0, 2.05, 2.01, 1.99).answer == "confirmed"
    turned = row(2.0, 3.0, 2.0, 3.0)
    assert (turned.answer, turned.strength) == ("undecided", "C")
    said = "all processes give undecided, the halves of them confirmed and contradicted: "
    assert turned.why.startswith(said)


DRY_RUN = MethodError("the dry run", ["invented"], "simulated", "published peaks", [0.01, -0.02])


@pytest.mark.parametrize(
    ("values", "expected", "strength"),
    [
        ((1.0, 1.1, 3.0), "contradicted", "B"),
        ((2.0, 2.0, 1.95), "confirmed", "B"),
        ((2.0, 1.95), "undecided", "C"),
        ((2.0, 1.95, 1.0), "partly", "B"),
        ((1.0, 1.1, 1.79), "undecided", "C"),  # one is too close to the edge, so that two are left
        ((1.0, 1.1, 1.79, 3.0), "contradicted", "B"),
    ],
)
def test_a_prediction_decides_where_it_is_farther_from_the_edge_than_thrice_its_error(
    values, expected, strength
):
    found = answered(paper_claim(), *values, origin="simulated", methods=(DRY_RUN,), device="cuda")
    assert (found.answer, found.strength) == (expected, strength)
    assert ("the dry run, at most 2 % off on 2 published peaks" in found.why) == (strength == "B")


def test_one_counterexample_contradicts_what_is_always_so_and_one_example_confirms_what_can_be():
    always, possible = paper_claim(universal=True), paper_claim(exists=True)
    found = answered(always, 2.0, 3.0, device="cuda")
    assert (found.answer, found.strength, found.why) == ("contradicted", "A", "3 s, measured")
    assert answered(always, 2.0, 2.1, device="cuda").answer == "undecided"
    none = answered(always, 2.0, 2.1, 1.9, device="cuda")
    assert (none.answer, none.why) == ("plausible", "no counterexample in 3 (measured)")
    assert answered(always, 2.0, 2.1, 1.9, device="cpu").answer == "plausible"
    assert answered(always, 2.0, 2.1, 1.9, 3.0, device="cpu").answer == "undecided"
    predicted = answered(always, 2.0, 3.0, origin="simulated", methods=(DRY_RUN,), device="cuda")
    assert (predicted.answer, predicted.strength) == ("contradicted", "B")
    found = answered(possible, 2.0, 3.0, device="cuda")
    assert (found.answer, found.strength, found.why) == ("confirmed", "A", "2 s, measured")
    outside = public(values={"a": 9.0})
    assert answered(replace(always, public=(outside,))).answer == "contradicted"
    assert answered(replace(always, public=(replace(outside, decides=False),))).answer == "undecided"
    most = answered(replace(always, public=(public(values=shares(95, 5)),)))
    assert (most.answer, most.why) == ("contradicted", "3.00×, published, r95")
    inside = public(values={"a": 2.0})
    assert answered(replace(possible, public=(inside,))).answer == "confirmed"
