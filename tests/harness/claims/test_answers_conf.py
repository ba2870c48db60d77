"""conf/answers.yaml and conf/sources.yaml: each claim once, what its source says once, and mistakes in it."""

import math
import re
from collections import Counter
from copy import deepcopy
from dataclasses import replace

import pytest
from refusals import mistaken

from harness.claims.load import load_claims, load_sources, read_yaml
from harness.claims.paper import UNIT_OF, load_answers
from harness.claims.published import source_of
from harness.commands.suites import judged
from harness.config.code_fingerprint import ROOT
from harness.config.optimizations import CONF
from harness.config.run import names
from harness.report.index.suite_index import judged_claims

ASKED = load_answers()
CLAIMS = ASKED.claims
ANSWERED = read_yaml(CONF / "answers.yaml")
QUOTATIONS = {
    by: [one for section in sections.values() for one in section]
    for by, sections in read_yaml(CONF / "quotations.yaml").items()
}
JUDGED = {f"{suite}/{one.id}": one for suite in names("suite") for one in load_claims(suite)}

OF_THE_PAPER, OF_THE_ARTICLE = 36, 15  # how many claims each has, counted in their text
ADDRESS = re.compile(r"\b\d{4}\.\d{5}\b|\b[A-Za-z][\w-]+/[A-Za-z][\w.-]+\b")
"""An arXiv identifier, or the name of a repository."""


def is_quoted(words: str, *texts: str) -> bool:
    """Return whether the words are in one of the texts; what is between ` … ` is looked up by itself."""
    sentences = [one for by in texts for one in QUOTATIONS[by]]
    return all(len(part) >= 10 and any(part in one for one in sentences) for part in words.split(" … "))


def test_each_claim_of_the_paper_and_the_article_has_one_row_and_nothing_quoted_is_invented() -> None:
    assert Counter(one.by for one in CLAIMS) == {"paper": OF_THE_PAPER, "article": OF_THE_ARTICLE}
    for one in (*CLAIMS, *ASKED.statements):
        assert is_quoted(one.quoted, one.by), one
    for table in ASKED.tables:
        assert [words for words in table.rows if not is_quoted(words, table.by)] == []
    verbatim = [one.quoted for one in JUDGED.values() if one.verbatim]
    assert [words for words in verbatim if not is_quoted(words, *QUOTATIONS)] == []


def test_what_counts_is_given_once_and_not_by_the_claims_own_source() -> None:
    assert not [
        one["id"] for one in ANSWERS for of in one.get("public", ()) if {"values", "rows"} <= of.keys()
    ]
    for claim in CLAIMS:
        assert claim.claim
        assert max(Counter((*claim.judged, *claim.related, "")).values()) == 1, claim.id
        for record in claim.public:
            assert all(map(math.isfinite, record.values.values())), claim.id
            assert not (record.own and record.decides), claim.id
            assert bool(record.rows) >= bool(record.where), claim.id
            same = {*ADDRESS.findall(claim.source)} & {*ADDRESS.findall(record.source)}
            assert not same or record.own or record.origin == "calculated", (claim.id, same)


def test_the_band_that_is_printed_is_the_one_that_is_judged() -> None:
    """All techniques together once had a printed band of 5 to 10 times, and at least 5 as the judged one."""
    assert {name for claim in CLAIMS for name in claim.related} <= JUDGED.keys()
    for claim in CLAIMS:
        for name in claim.judged:
            one = JUDGED[name]
            if claim.band and (one.unit, one.per) == (UNIT_OF.get(claim.unit, claim.unit), claim.per):
                low, high = one.accepted
                assert claim.band == pytest.approx((max(low, 0.0), high), rel=1e-6), (claim.id, name)


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


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda d, c: c.update(band=[3.0, 1.5]), "the lower number first"),
        (lambda d, c: c.update(band=None), "decides: needs the claim's band"),
        (lambda d, c: d["tables"][0]["rows"].update(row=["tabel"]), "tabel is no claim"),
        (lambda d, c: d["claims"]["article_table"].append(c), "'mixed_precision' is given twice"),
    ],
)
def test_a_mistake_in_the_claims_is_one_line(edit, said, monkeypatch):
    data = deepcopy(ANSWERED)
    edit(data, next(one for one in data["claims"]["article_table"] if one["id"] == "mixed_precision"))
    monkeypatch.setattr("harness.claims.paper.read_yaml", lambda path: data)
    mistaken(load_answers, said)


def test_results_of_two_folders_or_machines_are_refused():
    data = judged(ROOT / "results/reference/host_optimizer")
    mistaken(
        lambda: judged_claims([(data, "a"), (data, "b")]), "a, b: all have results of suite host_optimizer"
    )
    (known,) = data.environment.values()
    two = replace(data, environment={"one": known, "two": {**known, "cpu": "another"}})
    mistaken(lambda: judged_claims([(two, "a")]), "has results of several machines")


SOURCES = load_sources()
OF_SUITES = {
    f"{path.stem}/{one['id']}": one
    for path in sorted((CONF / "claims").glob("*.yaml"))
    for one in read_yaml(path)["claims"]
}
ANSWERS = [one for part in ANSWERED["claims"].values() for one in part]


def words(text):
    return " ".join(re.sub(r"[\"“”'’‘*]", "", text).lower().split())


def same_words(one, other):
    shorter, longer = sorted((words(one), words(other)), key=len)
    return all(part in longer for part in shorter.split(" … "))


def source(of):
    return source_of(of["id"], of["source"], SOURCES)


def test_an_answer_and_a_claim_of_the_same_row_say_the_same():
    """One may refer to more than the other, but not each to what the other lacks of one document."""
    compared = set()
    for answer in ANSWERS:
        for name in (*answer.get("judged", ()), *answer.get("related", ())):
            claim = OF_SUITES[name]
            if same_words(answer["quoted"], claim["quoted"]):
                ours, theirs = source(answer), source(claim)
                assert ours.misquoted == theirs.misquoted, name
                assert ("none" in ours.keys) == ("none" in theirs.keys), name
                more = [{key.partition("/")[0] for key in one} for one in (
                    set(ours.keys) - set(theirs.keys), set(theirs.keys) - set(ours.keys)
                )]  # fmt: skip
                assert not more[0] & more[1], name
                compared.add(answer["id"])
    assert compared >= {"gb200_tco", "e_ecmp", "zero_stage_3", "overlord_memory", "swizzle"}
