"""conf/sources.yaml: what a source says is stated once, and claims and answers cannot disagree on it."""

import re

from refusals import mistaken

from harness.claims.load import load_sources, read_yaml
from harness.claims.published import NO_SOURCE, SourceStatement, source_of
from harness.config.optimizations import CONF

STATEMENTS = {
    "a/one": SourceStatement("It is so.", "Half is left out.", "A", "secondary"),
    "a/two": SourceStatement("It is more.", "", "A", "secondary"),
    "b/one": SourceStatement("It is less.", "", "B", "stated"),
}


def test_statements_are_joined_and_the_first_says_how_the_number_is_known():
    source = source_of("x", ["a/two", "a/one", "b/one"], STATEMENTS)
    assert source.source_says == "It is more. It is so. It is less."
    assert (source.source, source.provenance, source.misquoted) == ("A; B", "secondary", "Half is left out.")
    assert source_of("x", "none", {}) == (("none",), NO_SOURCE, "", "", "")
    assert source_of("x", "none", {}, "We looked.").source_says == f"{NO_SOURCE} We looked."
    assert source_of("x", ["none", "b/one"], STATEMENTS).source_says == f"{NO_SOURCE} It is less."
    mistaken(lambda: source_of("x", "b/one", STATEMENTS, "We looked."), "note: only with source: none")


SOURCES = load_sources()
CLAIMS = {
    f"{path.stem}/{one['id']}": one
    for path in sorted((CONF / "claims").glob("*.yaml"))
    for one in read_yaml(path)["claims"]
}
ANSWERS = [one for part in read_yaml(CONF / "answers.yaml")["claims"].values() for one in part]


def words(text):
    """Return a text whatever its case, spaces and quotation marks."""
    return " ".join(re.sub(r"[\"“”'’‘*]", "", text).lower().split())


def same_words(one, other):
    """Return whether a quotation is contained in another."""
    shorter, longer = sorted((words(one), words(other)), key=len)
    return all(part in longer for part in shorter.split(" … "))


def source(of):
    return source_of(of["id"], of["source"], SOURCES)


def test_an_answer_and_a_claim_of_the_same_row_say_the_same():
    """One may refer to more than the other, not each to a statement of one document that the other lacks.

    GB200's cost was once the source's words in one file and a misquotation in the other.
    """
    compared = set()
    for answer in ANSWERS:
        for name in (*answer.get("judged", ()), *answer.get("related", ())):
            claim = CLAIMS[name]
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
