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
from harness.claims.paper import PublicRecord, load_answers
from harness.claims.values import HALVES, half_of
from harness.records import Record
from harness.report.index.answers_page import Answers, index_markdown
from harness.report.index.answers_text import evidence_text, public_text, shares_text
from harness.report.index.suite_index import findings
from harness.report.report_data import ReportData
from harness.report.spec import load_spec


def of(held: Claim, records: list[Record]) -> Findings:
    return Findings({"invented/claim": (held, judge([held], records))}, {})


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([public(values={"a": 2.0, "b": 2.1, "c": 1.9})], "confirmed"),
        ([public(values={"a": 2.0, "b": 2.3, "c": 1.9})], "partly"),
        ([public(values={"a": 1.0, "b": 2.3, "c": 3})], "contradicted"),
        ([public(values={"a": 2.0, "b": 2.1})], "undecided"),  # two say nothing, whichever side they are on
        ([public(values={"a": 1.0, "b": 3})], "undecided"),
        ([public(values=shares(3, 0)), public(values={"a": 3})], "partly"),  # one stands against it
        ([public(values=shares(0, 3)), public(values={"a": 2.0})], "partly"),
        ([public(values=shares(3, 0)), public(False, values={"a": 3}, own=True)], "confirmed"),
        ([public(False, values={"a": 1.0, "b": 3.0, "c": 3})], "implausible"),
        ([public(False, values={"a": 2.0, "b": 2.1, "c": 3})], "plausible"),
        ([public(False, values={"a": 2.0, "b": 3.1, "c": 3})], "undecided"),
        ([public(values=shares(95, 5))], "confirmed"),
        ([public(values=shares(50, 50))], "partly"),
        ([public(values=shares(5, 95))], "contradicted"),
        ([public(values=shares(9, 0)), public(values=shares(0, 100))], "partly"),
        ([public(False)], "no evidence"),
        ([public(values={"a": 2.19, "b": 2.21, "c": 1.79})], "undecided"),  # each within 1 % of an edge
    ],
)
def test_published_values_decide_where_they_have_the_claims_metric(
    records: list[PublicRecord], expected: str
) -> None:
    assert answered(paper_claim(public=tuple(records))).answer == expected


def test_often_is_met_by_half() -> None:
    half = public(values=shares(56, 44))
    assert answered(paper_claim(public=(half,))).answer == "partly"
    assert answered(paper_claim(public=(half,), often=True)).answer == "confirmed"
    assert answered(paper_claim(public=(public(values=shares(4, 6)),), often=True)).answer == "partly"


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
        ((2.0, 3.0), "measured", "cpu", "undecided"),
        ((2.0, 2.1, 1.9, (1.9, 2.5)), "measured", "cuda", "confirmed"),  # of those that are decided
        ((2.0, 2.1, 1.9), "measured", "cpu", "plausible"),
        ((3.0, 3.1, 1.0), "measured", "cpu", "implausible"),
        *(
            ((2.0, 2.1, 1.9), origin, "cuda", "plausible")
            for origin in ("emulated", "simulated", "calculated")
        ),
        *(
            ((3.0, 3.1, 1.0), origin, "cuda", "implausible")
            for origin in ("emulated", "simulated", "calculated")
        ),
    ],
)
def test_only_what_was_measured_on_the_claims_device_decides(
    values: tuple[float, ...], origin: str, device: str, expected: str
) -> None:
    assert answered(paper_claim(), *values, origin=origin, device=device).answer == expected


def test_a_misquotation_is_the_answer_whatever_was_measured_and_says_why() -> None:
    found = answered(paper_claim(misquoted="It left half out."), 2.0, 2.1, 1.9, device="cuda")
    assert (found.answer, found.why) == ("misquoted", "It left half out.")


def test_what_is_misquoted_and_not_built_is_misquoted_and_says_both() -> None:
    found = answered(paper_claim(misquoted="It left half out.", not_built="there is no suite yet"))
    assert (found.answer, found.why) == ("misquoted", "It left half out. Not built: there is no suite yet.")


def test_context_says_how_many_of_its_values_agree() -> None:
    inside = answered(paper_claim(), 2.0, 2.1, 1.9, origin="simulated")
    assert (inside.answer, inside.why) == ("plausible", "3 of 3 values in the accepted band (simulated)")
    few = answered(paper_claim(), 2.0, 2.1, origin="simulated")
    assert (few.answer, few.why) == ("undecided", "2 of 2 values in the accepted band (simulated)")
    close = answered(paper_claim(), 1.801, 1.802, 1.803, origin="simulated")  # by a hair: neither side
    assert (close.answer, close.why) == ("undecided", "0 of 3 values in the accepted band (simulated)")
    assert answered(paper_claim(), (1.9, 2.5), origin="simulated").answer == "undecided"
    direction = answered(paper_claim(band=None), 2.0, 2.1, 3.0, origin="simulated")
    assert (direction.answer, direction.why[:36]) == ("plausible", "2 of 3 values in the accepted band (")


def test_context_counts_under_the_claims_own_conditions_alone() -> None:
    values, stated = (2.0, 2.1, 1.9), {"parallelism": "fsdp2"}
    own = answered(paper_claim(), *values, origin="emulated", stated=stated, parallelism="fsdp2")
    assert own.answer == "plausible"
    other = answered(paper_claim(), *values, origin="emulated", stated=stated, parallelism="ddp")
    assert (other.answer, other.why) == ("undecided", "no value was found under the claim's own conditions")


def test_what_is_not_decided_says_what_would_decide() -> None:
    gpu = {"device_name": "*MI300X*"}
    assert answered(paper_claim(), 2.0, stated=gpu).would_decide == "suite=invented on MI300X"
    assert answered(paper_claim(), 2.0).would_decide == "suite=invented on GPUs"
    assert answered(paper_claim(would_decide="another post"), 2.0).would_decide == "another post"
    assert answered(paper_claim(), 2.0, 2.1, 1.9, device="cuda").would_decide == ""


def test_values_on_another_quantity_are_shown_and_never_counted() -> None:
    beside = replace(paper_claim(), judged=(), related=("invented/claim",))
    found = answered(beside, 2.0, 2.1, 1.9, device="cuda")
    assert (found.answer, len(found.evidence)) == ("no evidence", 1)
    assert answered(replace(beside, exists=True), 2.0, device="cuda").answer == "no evidence"


def test_a_word_that_one_half_of_the_processes_turns_is_no_answer() -> None:
    held = judged_claim(2.0, tolerance=0.1, unit="s", metric="time", method="")
    first, names_ = held.interpretations[0], ("a", "b", "c")
    held = replace(held, interpretations=tuple(first._replace(name=one, workload=one) for one in names_))

    def run(*per_process: float) -> tuple[list[Findings], Findings]:
        records = [
            made(name, figures={("time", ""): ("s", "measured", (one,))}, repeat=repeat)
            for repeat, one in enumerate(per_process)
            for name in names_
        ]
        parts = [half_of(records, which) for which in HALVES]
        assert {one.cell.repeat for part in parts for one in part} == set(range(len(per_process)))
        return [of(held, part) for part in parts], of(held, records)

    alike, whole = run(2.0, 2.05, 2.01, 1.99)
    (row,) = answer_claims([paper_claim()], whole, alike)
    assert row.answer == "confirmed"
    unlike, whole = run(2.0, 3.0, 2.0, 3.0)
    (row,) = answer_claims([paper_claim()], whole, unlike)
    assert (row.answer, row.strength) == ("undecided", "C")
    said = "all processes give undecided, the halves of them confirmed and contradicted: "
    assert row.why.startswith(said)


def test_a_variant_with_one_sample_is_in_both_halves_and_others_are_halved_all_the_same() -> None:
    figures = {("time", ""): ("s", "measured", (1.0, 2.0, 3.0, 4.0))}
    once = {("time", ""): ("s", "measured", (9.0,))}
    records = [made("w", "baseline", figures), made("w", "fast", once)]
    kept = [[one.measurements[0].samples for one in half_of(records, which)] for which in HALVES]
    assert kept == [[(1.0, 2.0), (9.0,)], [(3.0, 4.0), (9.0,)]]
    processes = [made("w", "baseline", figures, repeat=repeat) for repeat in (0, 1)] + [
        made("w", "fast", once, repeat=1)
    ]
    names_ = [[one.cell.optimization for one in half_of(processes, which)] for which in HALVES]
    assert names_ == [["baseline", "fast"], ["baseline", "fast"]]


def test_one_process_is_halved_by_its_rounds_and_what_no_second_run_changes_is_whole() -> None:
    figures = {
        ("time", ""): ("s", "measured", (1.0, 2.0, 3.0, 4.0, 5.0)),
        ("bytes", ""): ("B", "calculated", (7.0, 8.0)),
        ("once", ""): ("s", "measured", (9.0,)),
    }
    other = {("time", ""): ("s", "measured", (1.0, 2.0, 3.0, 4.0))}
    records = [made(figures=figures), made("w", "fast", other)]
    kept = [
        {one.metric: one.samples for one in record.measurements}
        for which in HALVES
        for record in half_of(records, which)
    ]
    assert kept[0] == {"time": (1.0, 2.0), "bytes": (7.0, 8.0), "once": (9.0,)}
    assert kept[2] == {"time": (3.0, 4.0, 5.0), "bytes": (7.0, 8.0), "once": (9.0,)}
    assert [kept[1]["time"], kept[3]["time"]] == [(1.0, 2.0), (3.0, 4.0)]


def test_unlike_values_have_a_range_each_and_count_by_themselves() -> None:
    held = judged_claim(2.0, tolerance=0.1, unit="s", metric="time", method="")
    groups = {"a": "alone", "b": "alone", "c": "alone", "d": "steps"}
    first = held.interpretations[0]
    each = (first._replace(name=name, workload=name, group=group) for name, group in groups.items())
    held = replace(held, interpretations=tuple(each))
    figures = dict(zip(groups, (2.0, 2.1, 1.9, 9.0), strict=True))
    records = [made(name, figures={("time", ""): ("s", "measured", (one,))}) for name, one in figures.items()]
    (row,) = answer_claims([paper_claim(unit="s")], of(held, records))
    assert [evidence_text(one, row.claim) for one in row.evidence] == [
        "alone: 1.90 … 2.10 s ᵐ (n = 3)",
        "steps: 9 s ᵐ (n = 1)",
    ]
    # One value decides nothing, and what it says is not passed over.
    assert (row.answer, row.why) == ("partly", "3 of 3 (measured, alone); 0 of 1 (measured, steps)")


def test_two_names_of_one_interpretation_are_one_value_and_like_values_of_two_workloads_are_two() -> None:
    held = judged_claim(2.0, tolerance=0.1, unit="s", metric="time", method="")
    first = held.interpretations[0]

    def answer(**workload_of: str) -> str:
        each = (first._replace(name=name, workload=workload) for name, workload in workload_of.items())
        records = [made(one, figures={("time", ""): ("s", "measured", (2.0,))}) for one in ("v", "w", "x")]
        claim = replace(held, interpretations=tuple(each))
        (row,) = answer_claims([paper_claim()], of(claim, records))
        return row.answer

    assert answer(a="v", b="w", c="x") == "confirmed"
    assert answer(a="v", b="w", c="w") == "undecided"


def test_a_published_record_says_what_it_is_of() -> None:
    record = public(of="speed on a GPU", values={"a": 2.0, "b": 3.0})
    assert shares_text(record, paper_claim()) == "speed on a GPU: 2× … 3× ᵖ (n = 2)"
    many = replace(record, values={str(i): float(i) for i in range(1, 12)})
    assert shares_text(many, paper_claim()) == "speed on a GPU: 1× … 11× ᵖ (n = 11, median 6×)"
    assert "n = 11, 9 % in the band, least: 1×, 10 %: 2×" in public_text(many, paper_claim())
    assert shares_text(public(of="2× on a GPU, once"), paper_claim()) == "2× on a GPU, once ᵖ"


def test_what_is_missing_is_named() -> None:
    assert answered(paper_claim(not_built="no suite yet")).why == "no suite yet"
    outside = answered(paper_claim(not_built="no suite yet"), 9.0, 9.1, 9.2, origin="simulated")
    assert (outside.answer, outside.strength) == ("implausible", "C")
    assert answered(paper_claim()).missing == ("invented/claim",)
    page = index_markdown(Answers(load_answers(), [answered(paper_claim())], None, []))
    assert "Without results of: invented." in page
    assert answered(paper_claim(untestable="needs prices")).why == "needs prices"
    found = answered(paper_claim(not_built="no suite yet"), 2.0, 2.1, 1.9, origin="simulated", device="cuda")
    assert found.answer == "plausible"


def test_one_value_of_each_side_is_no_evidence_and_says_what_is_missing() -> None:
    held = judged_claim(2.0, tolerance=0.1, unit="1")
    ratio = held.interpretations[0]._replace(
        metric="time", method="", variant="fast", relative_to="baseline", workload="w"
    )
    once = [made("w", name, {("time", ""): ("s", "measured", (1.0,))}) for name in ("baseline", "fast")]
    (found,) = answer_claims([paper_claim()], of(replace(held, interpretations=(ratio,)), once))
    assert (found.answer, found.strength) == ("no evidence", "D")
    assert found.why == "the values of this run have no interval: it needs more repeats"


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
def test_a_prediction_decides_where_it_is_farther_from_the_edge_than_three_times_its_error(
    values: tuple[float, ...], expected: str, strength: str
) -> None:
    found = answered(paper_claim(), *values, origin="simulated", methods=(DRY_RUN,), device="cuda")
    assert (found.answer, found.strength) == (expected, strength)
    assert ("the dry run, at most 2 % off on 2 published peaks" in found.why) == (strength == "B")


def test_a_prediction_under_other_conditions_or_of_a_worse_method_decides_nothing() -> None:
    values = (1.0, 1.1, 3.0)
    elsewhere = answered(paper_claim(), *values, origin="simulated", methods=(DRY_RUN,), device="cpu")
    assert (elsewhere.answer, elsewhere.strength) == ("implausible", "C")
    worse = DRY_RUN._replace(errors=[0.5])
    found = answered(paper_claim(), *values, origin="simulated", methods=(worse,), device="cuda")
    assert (found.answer, found.strength) == ("undecided", "C")
    other = DRY_RUN._replace(origin="calculated")
    found = answered(paper_claim(), *values, origin="simulated", methods=(other,), device="cuda")
    assert (found.answer, found.strength) == ("implausible", "C")


def test_a_prediction_whose_error_is_not_on_record_decides_nothing_and_its_row_says_so() -> None:
    unknown = DRY_RUN._replace(errors=[], known_from="two published steps differ in it alone")
    found = answered(paper_claim(), 1.0, 1.1, 3.0, origin="simulated", methods=(unknown,), device="cuda")
    assert (found.answer, found.strength, found.why) == ("undecided", "C", str(unknown))
    said = "; the dry run, whose error is not known: no two published steps differ in it alone"
    assert evidence_text(found.evidence[0], found.claim).endswith(said)


def test_a_method_may_predict_one_claim_of_a_suite_and_says_where_its_error_is_too_large() -> None:
    of_claim = DRY_RUN._replace(predicts=["invented/claim"])
    found = answered(paper_claim(), 1.0, 1.1, 3.0, origin="simulated", methods=(of_claim,), device="cuda")
    assert (found.answer, found.strength) == ("contradicted", "B")
    assert "too close" not in evidence_text(found.evidence[0], found.claim)
    other = DRY_RUN._replace(predicts=["invented/another"])
    found = answered(paper_claim(), 1.0, 1.1, 3.0, origin="simulated", methods=(other,), device="cuda")
    assert (found.answer, found.strength) == ("implausible", "C")
    worse = of_claim._replace(errors=[0.5])
    found = answered(paper_claim(), 1.0, 1.1, 3.0, origin="simulated", methods=(worse,), device="cuda")
    said = "; too close to the edge to count: the dry run, at most 50 % off on 1 published peaks"
    assert evidence_text(found.evidence[0], found.claim).endswith(said)


def test_the_errors_of_one_workload_are_all_its_samples() -> None:
    method = next(one for one in load_answers().methods if one.workload == "every")
    errors = ("1", "calculated", (0.1, -0.3))
    records = [
        made(name, "baseline", {(method.metric, method.method): errors}, suite=method.suite)
        for name in (method.workload, "another")
    ]
    data = ReportData(method.suite, load_spec(method.suite), records, [], {}, [])
    (found,) = findings([(data, method.suite)], [method]).methods
    assert list(found.errors) == [0.1, -0.3]


def test_one_counterexample_contradicts_what_is_always_so_and_one_example_confirms_what_can_be() -> None:
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


def test_that_no_example_is_known_contradicts_nothing() -> None:
    possible = paper_claim(exists=True)
    found = answered(possible, 3.0, 3.1, 9.0, device="cuda")
    assert (found.answer, found.why) == ("undecided", "no example in 3 (measured)")
    assert answered(possible, 3.0, 3.1, 9.0, device="cpu").answer == "undecided"
    assert answered(replace(possible, public=(public(values=shares(0, 99)),))).answer == "undecided"


def test_an_answer_without_values_of_ours_says_which_record_is_lacking() -> None:
    held = judged_claim(2.0, unit="s")
    lacking = replace(
        held,
        interpretations=tuple(
            held.interpretations[0]._replace(metric="time", method="", variant="fast", name=one, workload=one)
            for one in ("large", "larger")
        ),
    )
    (answer,) = answer_claims([paper_claim()], of(lacking, []))
    assert answer.lacking == "no record of fast on large, and 1 more reason"
    assert answered(paper_claim()).lacking == "no results of suite invented"
    assert answered(paper_claim(), 2.0).lacking == ""
