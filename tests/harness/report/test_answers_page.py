"""The page of answers on made-up claims: a row's range, the forest, and words in place of ids."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from answered import answered, paper_claim, public
from synthetic import claim as judged_claim
from synthetic import made

from harness.claims.answers import AnsweredClaim, answer_claims
from harness.claims.evidence import Findings
from harness.claims.judge import judge
from harness.claims.paper import PublicRecord, load_answers
from harness.report.index.answers_page import Answers, index_markdown, index_page
from harness.report.index.answers_text import accepted_text, found, in_words
from harness.report.index.forest import NARROW, WIDE, forest
from harness.report.index.suite_index import IndexRow, report_links

SVG = "{http://www.w3.org/2000/svg}"
NEAR = public(values={"a": 2.0, "b": 2.1, "c": 1.9})
LONG = (
    "It is twice as fast on every kind of accelerator that has been sold since there are accelerators at all"
)


def row(*records: PublicRecord, **changes: object) -> AnsweredClaim:
    return answered(paper_claim(public=records, judged=(), **changes))


def texts(svg: str) -> list[str]:
    return ["".join(one.itertext()) for one in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def tips(svg: str) -> str:
    return "\n".join("".join(one.itertext()) for one in ElementTree.fromstring(svg).iter(f"{SVG}title"))


@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_every_range_is_drawn_and_what_lies_far_outside_has_its_value(size) -> None:
    far = public(False, of="far off", values={"x": 500.0})
    low = public(False, of="far below", values={"y": 0.004, "z": 1.0})
    figure = forest([row(NEAR, far, low), row(NEAR)], size)
    assert figure is not None
    for record in ("of a GPU: a: 2×, b: 2.1×, c: 1.9×", "far off: x: 500×", "far below: y: 0.004×, z: 1×"):
        assert record in tips(figure.svg)
    assert {"500×", "0.004×"} <= set(texts(figure.svg))
    within = forest([row(NEAR, replace(far, values={"x": 5.0})), row(NEAR)], size)
    assert within is not None
    assert "500×" not in texts(within.svg)


@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_no_label_is_cut(size) -> None:
    figure = forest([row(NEAR, claim=LONG), row(NEAR)], size)
    assert figure is not None
    assert LONG in " ".join(texts(figure.svg))
    assert not [text for text in texts(figure.svg) if text.endswith("…")]


def test_an_undecided_claim_has_a_dashed_band() -> None:
    def dashes(answer: str) -> int:
        figure = forest([replace(row(NEAR), answer=answer), row(NEAR)])
        assert figure is not None
        return figure.svg.count("stroke-dasharray")

    assert dashes("undecided") == dashes("confirmed") + 1


def test_bytes_per_parameter_have_their_unit_once() -> None:
    held = replace(judged_claim(40.0, tolerance=0.1, unit="B", divide_by="parameters"), per="parameter")
    first = held.interpretations[0]
    held = replace(held, interpretations=tuple(first._replace(name=w, workload=w) for w in ("v", "w")))
    count = ("1", "measured", (1e9,))
    records = [
        made(w, figures={("bytes", "way"): ("B", "measured", (value,)), ("parameters", ""): count})
        for w, value in (("v", 23.4e9), ("w", 52.98e9))
    ]
    claim = paper_claim(band=(36.0, 44.0), unit="B", per="parameter")
    (answer,) = answer_claims([claim], Findings({"invented/claim": (held, judge([held], records))}, {}))
    (best,) = found(answer)
    assert best.range == "23.4 … 53.0 bytes per parameter ᵐ"
    assert best.accepted == accepted_text(answer) == "36 … 44 bytes per parameter"


def test_the_range_of_a_row_is_in_the_claims_own_unit() -> None:
    seconds = answered(paper_claim(), 2.0, 2.1, origin="emulated")
    assert [one.range for one in found(seconds)] == ["2 … 2.10 s ᵉ"]
    alike = answered(paper_claim(unit="s"), 2.0, 2.1, origin="emulated")
    both = replace(alike, claim=paper_claim(), evidence=(*seconds.evidence, *_in_times(alike)))
    assert found(both)[0].range == "2.00× … 2.10× ᵉ"


def _in_times(answer: AnsweredClaim):
    return [one._replace(judged=replace(one.judged, unit="1")) for one in answer.evidence]


def test_an_example_that_was_measured_comes_before_what_was_published() -> None:
    at_least = {"band": (1.5, float("inf")), "unit": "s", "public": (NEAR,)}
    measured = answered(paper_claim(exists=True, **at_least), 2.0, device="cuda")
    assert found(measured)[0].of == "measured, n = 1"
    assert found(answered(paper_claim(**at_least), 2.0, device="cuda"))[0].of.startswith(
        "of a GPU, published"
    )


def test_reasons_have_titles_in_place_of_ids() -> None:
    claim = paper_claim(judged=("offload/anything",))
    text = in_words("no record of zero3_offload_params on gpu_32gb, and 2 more reasons", claim)
    assert text == (
        "“ZeRO-3, optimizer and parameters on host” was not run on “32 GB, one GPU”, and 2 more reasons"
    )
    title = "“What does each memory strategy save and cost, and how large a model trains with it?”"
    assert in_words("suite=offload on GPUs", claim) == f"a run of {title} on GPUs"
    assert in_words("no results of suite offload", claim) == f"no results of {title}"
    assert in_words("the cell has no peak_memory by fake_step", claim) == (
        "the run recorded no “Device peak per rank” by “Dry run”"
    )
    for kept in ("python -m harness suite=offload", "ask harness.fit", "no results of suite invented"):
        assert in_words(kept, claim) == kept.replace("suite invented", "invented")


def test_links_have_the_titles_of_reports_and_the_machine_where_two_are_alike() -> None:
    rows = [
        IndexRow("a", "How fast?", "", "1 Nov 2026", "2 cores X · 25 GB · no GPU", 0),
        IndexRow("b", "How fast?", "", "2 Nov 2026", "16 cores Y · 135 GB · 1 × Z", 0),
    ]
    assert report_links(["a"], rows) == [("a", "How fast?")]
    assert report_links(["a", "b", "c"], rows) == [
        ("a", "How fast? (2 cores X, 1 Nov 2026)"),
        ("b", "How fast? (1 × Z, 2 Nov 2026)"),
        ("c", "report"),
    ]


def test_both_pages_have_the_answer_first_and_how_to_read_it_after_the_tables() -> None:
    asked = load_answers()
    part = next(iter(asked.parts))
    rows = [row(NEAR, part=part), row(NEAR, part=part)]
    answers = Answers(asked, rows, forest(rows), [])
    for page in (index_markdown(answers), index_page(answers)):
        places = [page.index(text) for text in ("2 claims: ", "What 2 claims accept", asked.parts[part])]
        places += [page.rindex("How to read this page"), page.rindex("Sentences that state nothing to test")]
        assert places == sorted(places)
    assert re.search(r"<b>1\.9×.….2\.1×.ᵖ</b>", index_page(answers))
