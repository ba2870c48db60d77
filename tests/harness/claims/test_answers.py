"""The answers on made-up claims: what decides, what is context, and what the answer says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from answered import answered, paper_claim, public, shares
from synthetic import claim as judged_claim
from synthetic import made

from harness.claims.answers import answer_claims
from harness.claims.evidence import Findings, MethodError
from harness.claims.judge import judge
from harness.claims.model import Claim
from harness.claims.paper import load_answers
from harness.claims.values import HALVES, half_of
from harness.records import Record
from harness.report.index.answers_page import Answers, index_markdown
from harness.report.index.answers_text import evidence_text


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
        ([public(values=shares(0, 3)), public(values={"a": 2.0})], "partly"),
        ([public(values=shares(3, 0)), public(False, values={"a": 3}, own=True)], "confirmed"),
        ([public(False, values={"a": 1.0, "b": 3.0, "c": 3})], "implausible"),
        ([public(False, values={"a": 2.0, "b": 2.1, "c": 3})], "plausible"),
        ([public(False, values={"a": 2.0, "b": 3.1, "c": 3})], "undecided"),
        ([public(values=shares(9, 0)), public(values=shares(0, 100))], "partly"),
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
        ((2.0, 2.1), "measured", "cuda", "undecided"),
        (((1.9, 2.5), (1.9, 2.6), (1.5, 2.1)), "measured", "cuda", "undecided"),
        ((2.0, 2.1, 1.9, (1.9, 2.5)), "measured", "cuda", "confirmed"),  # of those that are decided
        ((2.0, 2.1, 1.9), "measured", "cpu", "plausible"),
        ((3.0, 3.1, 1.0), "measured", "cpu", "implausible"),
        ((2.0, 2.1, 1.9), "emulated", "cuda", "plausible"),
        ((2.0, 2.1, 1.9), "calculated", "cuda", "plausible"),
        ((3.0, 3.1, 1.0), "simulated", "cuda", "implausible"),
    ],
)
def test_only_what_was_measured_on_the_claims_device_decides(values, origin, device, expected):
    assert answered(paper_claim(), *values, origin=origin, device=device).answer == expected


def test_context_says_how_many_of_its_values_agree():
    inside = answered(paper_claim(), 2.0, 2.1, 1.9, origin="simulated")
    assert (inside.answer, inside.why) == ("plausible", "3 of 3 values in the accepted band (simulated)")
    few = answered(paper_claim(), 2.0, 2.1, origin="simulated")
    assert (few.answer, few.why) == ("undecided", "2 of 2 values in the accepted band (simulated)")
    close = answered(paper_claim(), 1.801, 1.802, 1.803, origin="simulated")  # by a hair: neither side
    assert (close.answer, close.why) == ("undecided", "0 of 3 values in the accepted band (simulated)")
    assert answered(paper_claim(), (1.9, 2.5), origin="simulated").answer == "undecided"
    direction = answered(paper_claim(band=None), 2.0, 2.1, 3.0, origin="simulated")
    assert (direction.answer, direction.why[:36]) == ("plausible", "2 of 3 values in the accepted band (")


def test_context_counts_under_the_claims_own_conditions_alone():
    values, stated = (2.0, 2.1, 1.9), {"parallelism": "fsdp2"}
    own = answered(paper_claim(), *values, origin="emulated", stated=stated, parallelism="fsdp2")
    assert own.answer == "plausible"
    other = answered(paper_claim(), *values, origin="emulated", stated=stated, parallelism="ddp")
    assert (other.answer, other.why) == ("undecided", "no value was found under the claim's own conditions")


def test_values_on_another_quantity_are_shown_and_never_counted():
    beside = replace(paper_claim(), judged=(), related=("invented/claim",))
    found = answered(beside, 2.0, 2.1, 1.9, device="cuda")
    assert (found.answer, len(found.evidence)) == ("no evidence", 1)
    assert answered(replace(beside, exists=True), 2.0, device="cuda").answer == "no evidence"


def over(*names: str, **changes: object) -> Claim:
    """Return the judged claim of about 2 s, with an interpretation per workload."""
    held = judged_claim(2.0, tolerance=0.1, unit="s", metric="time", method="")
    first = held.interpretations[0]._replace(**changes)
    return replace(held, interpretations=tuple(first._replace(name=one, workload=one) for one in names))


def timed(*samples):
    return {("time", ""): ("s", "measured", samples)}


def test_a_word_that_one_half_of_the_processes_turns_is_no_answer():
    held = over("a", "b", "c")

    def row(*per_process: float):
        records = [
            made(name, figures=timed(value), repeat=repeat)
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


def test_one_process_is_halved_by_its_rounds_and_what_no_second_run_changes_is_whole():
    others = {("bytes", ""): ("B", "calculated", (7.0, 8.0)), ("once", ""): ("s", "measured", (9.0,))}
    records = [made(figures=timed(1, 2, 3, 4, 5) | others), made("w", "fast", timed(1, 2, 3, 4))]
    kept = [
        {one.metric: one.samples for one in record.measurements}
        for which in HALVES
        for record in half_of(records, which)
    ]
    assert kept[0] == {"time": (1, 2), "bytes": (7, 8), "once": (9,)}
    assert kept[2] == {"time": (3, 4, 5), "bytes": (7, 8), "once": (9,)}
    assert [kept[1]["time"], kept[3]["time"]] == [(1, 2), (3, 4)]


def test_unlike_values_have_a_range_each_and_count_by_themselves():
    groups = {"a": "alone", "b": "alone", "c": "alone", "d": "steps"}
    held = over(*groups)
    each = (one._replace(group=groups[one.name]) for one in held.interpretations)
    held = replace(held, interpretations=tuple(each))
    values = zip(groups, (2.0, 2.1, 1.9, 9.0), strict=True)
    records = [made(name, figures=timed(value)) for name, value in values]
    (row,) = answer_claims([paper_claim(unit="s")], of(held, records))
    assert [evidence_text(one, row.claim) for one in row.evidence] == [
        "alone: 1.90 … 2.10 s ᵐ (n = 3)",
        "steps: 9 s ᵐ (n = 1)",
    ]
    # One value decides nothing, and what it says is not passed over.
    assert (row.answer, row.why) == ("partly", "3 of 3 (measured, alone); 0 of 1 (measured, steps)")


def test_what_is_missing_is_named():
    assert answered(paper_claim(not_built="no suite yet")).why == "no suite yet"
    outside = answered(paper_claim(not_built="no suite yet"), 9.0, 9.1, 9.2, origin="simulated")
    assert (outside.answer, outside.strength) == ("implausible", "C")
    assert answered(paper_claim(untestable="needs prices")).why == "needs prices"
    nothing = answered(paper_claim())
    assert (nothing.missing, nothing.lacking) == (("invented/claim",), "no results of suite invented")
    page = index_markdown(Answers(load_answers(), [nothing], None, []))
    assert "Without results of: invented." in page
    assert answered(paper_claim(), 2.0).lacking == ""
    (answer,) = answer_claims([paper_claim()], of(over("large", "larger", variant="fast"), []))
    assert answer.lacking == "no record of fast on large, and 1 more reason"
    ratio = replace(over("w", variant="fast", relative_to="baseline"), unit="1")
    once = [made("w", name, timed(1.0)) for name in ("baseline", "fast")]
    (answer,) = answer_claims([paper_claim()], of(ratio, once))
    assert (answer.answer, answer.strength) == ("no evidence", "D")
    assert answer.why == "the values of this run have no interval: it needs more repeats"


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


@pytest.mark.parametrize(
    ("method", "device", "expected", "strength"),
    [
        ({}, "cpu", "implausible", "C"),
        ({"errors": [0.5]}, "cuda", "undecided", "C"),
        ({"origin": "calculated"}, "cuda", "implausible", "C"),
        ({"predicts": ["invented/claim"]}, "cuda", "contradicted", "B"),
        ({"predicts": ["invented/another"]}, "cuda", "implausible", "C"),
    ],
)
def test_a_prediction_of_other_conditions_or_of_a_worse_method_decides_nothing(
    method, device, expected, strength
):
    methods = (DRY_RUN._replace(**method),)
    found = answered(paper_claim(), 1.0, 1.1, 3.0, origin="simulated", methods=methods, device=device)
    assert (found.answer, found.strength) == (expected, strength)
    said = "; too close to the edge to count: the dry run, at most 50 % off on 1 published peaks"
    assert evidence_text(found.evidence[0], found.claim).endswith(said) == ("errors" in method)


def test_a_prediction_whose_error_is_not_on_record_decides_nothing_and_its_row_says_so():
    unknown = DRY_RUN._replace(errors=[], known_from="two published steps differ in it alone")
    found = answered(paper_claim(), 1.0, 1.1, 3.0, origin="simulated", methods=(unknown,), device="cuda")
    assert (found.answer, found.strength, found.why) == ("undecided", "C", str(unknown))
    said = "; the dry run, whose error is not known: no two published steps differ in it alone"
    assert evidence_text(found.evidence[0], found.claim).endswith(said)


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


def test_that_no_example_is_known_contradicts_nothing():
    possible = paper_claim(exists=True)
    found = answered(possible, 3.0, 3.1, 9.0, device="cuda")
    assert (found.answer, found.why) == ("undecided", "no example in 3 (measured)")
    assert answered(possible, 3.0, 3.1, 9.0, device="cpu").answer == "undecided"
    assert answered(replace(possible, public=(public(values=shares(0, 99)),))).answer == "undecided"
