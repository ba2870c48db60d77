"""conf/answers.yaml: each claim of the paper and the article, its page, and mistakes in it."""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from dataclasses import replace

import pytest
import yaml
from answered import paper_claim
from refusals import mistaken

from harness.claims.answers import ANSWERS, answer_claims, refuse_conflicts
from harness.claims.evidence import Findings
from harness.claims.load import load_claims
from harness.claims.model import Difference
from harness.claims.paper import is_quoted, load_answers
from harness.commands.suites import judged
from harness.config.code_fingerprint import ROOT
from harness.config.run import names
from harness.report.index.answers_page import Answers, index_page
from harness.report.index.answers_text import accepted_text, unbroken
from harness.report.index.suite_index import judged_claims
from harness.report.write import answers_csv

ASKED = load_answers()
CLAIMS = ASKED.claims
QUOTATIONS, ANSWERED = (
    yaml.load((ROOT / "conf" / name).read_text(), yaml.CSafeLoader)
    for name in ("quotations.yaml", "answers.yaml")
)

OF_THE_PAPER, OF_THE_ARTICLE = 36, 15
"""How many claims each has, counted in their text."""

NOTHING = Findings({}, {})


def test_each_claim_of_the_paper_and_the_article_has_one_row():
    assert Counter(one.by for one in CLAIMS) == {"paper": OF_THE_PAPER, "article": OF_THE_ARTICLE}
    assert len({one.id for one in CLAIMS}) == OF_THE_PAPER + OF_THE_ARTICLE


def test_words_marked_verbatim_are_those_of_the_paper_or_the_article():
    for suite in names("suite"):
        for claim in load_claims(suite):
            if claim.verbatim:
                quoted = any(is_quoted(claim.quoted, of) for of in QUOTATIONS.values())
                assert quoted, f"{suite}/{claim.id}: {claim.quoted}"


ZERO = {1: lambda n: 16 / (4 + 12 / n), 2: lambda n: 16 / (2 + 14 / n), 3: lambda n: n}
"""States without ZeRO over states of a stage on N ranks, by arXiv 1910.02054."""


def test_values_of_zeros_formula_are_those_of_the_formula():
    by_id = {one.id: one for one in CLAIMS}
    (record,) = by_id["zero_larger_models"].public
    for name, value in record.values.items():
        stage, ranks = (int(number) for number in re.findall(r"\d+", name))
        assert value == pytest.approx(ZERO[stage](ranks), rel=2e-3)
    for stage in (1, 2):
        (record,) = by_id[f"zero_stage_{stage}"].public
        for name, value in record.values.items():
            assert value == pytest.approx(ZERO[stage](int(name.removeprefix("N = "))), rel=2e-3)


def test_the_page_has_each_claim_with_its_band_source_and_answer():
    rows = answer_claims(CLAIMS, NOTHING)
    page = index_page(Answers(ASKED, rows, None, []))
    table = list(csv.DictReader(io.StringIO(answers_csv(rows))))
    assert [line["id"] for line in table] == [one.id for one in CLAIMS]
    assert set(ANSWERS) > {row.answer for row in rows} > {"misquoted", "partly", "no evidence"}
    for row in rows:
        assert f'id="{row.claim.id}"' in page
        assert row.answer in ("misquoted", "no evidence") or unbroken(accepted_text(row)) in page
        assert row.claim.do
    assert [line["accepted"] for line in table if line["id"] == "mixed_precision"] == ["1.5× … 3×"]


def conf_with(folder, change, part="article_table", by="article"):
    first = (
        next(one for one in ANSWERED["claims"]["article_table"] if one["id"] == "mixed_precision") | change
    )
    parts = ANSWERED["parts"] | {"article_table": ANSWERED["parts"]["article_table"] | {"by": by}}
    data = ANSWERED | {"parts": parts, "claims": {part: [first]}, "sentences": [], "tables": []}
    (folder / "answers.yaml").write_text(yaml.safe_dump(data, sort_keys=False))
    (folder / "quotations.yaml").write_text((ROOT / "conf/quotations.yaml").read_text())
    (folder / "sources.yaml").write_text("{}")
    (folder / "published").symlink_to(ROOT / "conf/published")
    return folder


OWN = {"of": "x", "source": "FlashAttention-2, arXiv 2307.08691", "values": {"a": 2.0}, "own": True}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"quoted": "words that nobody wrote"}, "is nowhere in conf/quotations.yaml"),
        ({"band": [3.0, 1.5]}, "the lower number first"),
        ({"source": "elsewhere/first"}, "source=elsewhere/first: no such name"),
        ({"misquoted": "Half is left out."}, "misquoted: no such name"),
        ({"band": None}, "decides: needs the claim's band"),
        ({"claim": ""}, "empty; expected the claim in plain words"),
        ({"judged": ["kernels/a", "kernels/a"]}, "'kernels/a' is given twice"),
        ({"public": [{"of": "x"}]}, "public[0].source: missing"),
        ({"public": [{**OWN, "decides": True}]}, "own and decides are both given; keep one"),
        (
            {"public": [{"of": "x", "source": "y", "rows": "mixed_precision", "values": {"a": 2.0}}]},
            "values and rows are both given",
        ),
        (
            {"public": [{"of": "x", "source": "y", "where": {"from": "fp32"}}]},
            "selects rows; rows is missing",
        ),
    ],
)
def test_a_mistake_in_the_claims_is_one_line(change, said, tmp_path):
    mistaken(lambda: load_answers(conf_with(tmp_path, change)), said)


def test_a_part_that_does_not_exist_is_refused(tmp_path):
    mistaken(
        lambda: load_answers(conf_with(tmp_path, {}, part="appendix")), "appendix: expected one of abstract"
    )


def test_a_part_is_of_one_of_the_texts(tmp_path):
    mistaken(lambda: load_answers(conf_with(tmp_path, {}, by="newspaper")), "allowed: paper, article")


def test_what_the_claims_own_source_measured_is_shown_and_never_counted(tmp_path):
    conf_with(tmp_path, {"source": "flash_2/steps", "judged": [], "public": [OWN]})
    statement = {"cite": OWN["source"], "provenance": "stated", "says": {"steps": {"text": "Yes."}}}
    (tmp_path / "sources.yaml").write_text(yaml.safe_dump({"flash_2": statement}))
    (claim,) = load_answers(tmp_path).claims
    assert claim.public[0].own
    answers = tmp_path / "answers.yaml"
    answers.write_text(answers.read_text().replace("own: true", "own: false"))
    mistaken(lambda: load_answers(tmp_path), "public[0]: of 2307.08691, the claim's source; expected own")


JUDGED = {f"{suite}/{one.id}": one for suite in names("suite") for one in load_claims(suite)}


def test_a_judged_claim_that_does_not_exist_is_refused():
    mistaken(lambda: refuse_conflicts([paper_claim()], JUDGED), "'invented/claim' is no claim of conf/claims")
    refuse_conflicts(CLAIMS, JUDGED)


def test_the_band_that_is_printed_is_the_one_that_is_judged():
    """All techniques together once had a printed band of 5 to 10 times, and at least 5 as the judged one."""
    layered = next(one for one in CLAIMS if one.id == "layered")
    assert layered.band == (5, 10)
    at_least = replace(layered, band=(5.0, math.inf), judged=("stack_published/layered",))
    mistaken(lambda: refuse_conflicts([at_least], JUDGED), "stack_published/layered is judged by [5, 10]")
    related = replace(at_least, judged=(), related=("stack_published/layered",))
    refuse_conflicts([related], JUDGED)  # what is on another quantity has a band of its own


def test_results_of_two_folders_or_machines_are_refused_and_the_nearer_ones_are_judged():
    data = judged(ROOT / "results/reference/host_optimizer")
    mistaken(
        lambda: judged_claims([(data, "a"), (data, "b")]), "a, b: all have results of suite host_optimizer"
    )
    (known,) = data.environment.values()
    two = replace(data, environment={"one": known, "two": {**known, "cpu": "another"}})
    mistaken(lambda: judged_claims([(two, "a")]), "has results of several machines")

    def changed(**fields: object):
        return replace(data, verdicts=[replace(one, **fields) for one in data.verdicts])

    none, near, far = changed(ours=None), changed(where="as stated"), changed(where="elsewhere")
    more = [replace(one, differs=(*one.differs, Difference("c", "x", "y"))) for one in far.verdicts]
    farther = replace(far, verdicts=more)
    for kept, left in ((data, none), (near, far)):
        alone = judged_claims([(kept, "b")])
        assert judged_claims([(left, "x/host_optimizer"), (kept, "b")]) == alone
        assert judged_claims([(kept, "x/host_optimizer"), (left, "b")]) == alone
        assert any(one.ours is not None for _, verdicts in alone.values() for one in verdicts)
    assert judged_claims([(farther, "a"), (far, "b")]) == judged_claims([(far, "b")])
    named = [(farther, "x/host_optimizer")]
    assert judged_claims([*named, (far, "b")]) == judged_claims(named)
