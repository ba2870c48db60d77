"""conf/sources.yaml: what a source says is stated once, and claims and answers cannot disagree on it."""

import shutil

import pytest
import yaml
from refusals import mistaken

from harness.claims.load import load_claims
from harness.claims.paper import load_answers
from harness.claims.published import NO_SOURCE, SourceStatement, same_words, source_of
from harness.config.code_fingerprint import ROOT
from harness.config.run import names

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


def test_the_same_words_are_known_by_part_case_and_quotation_marks():
    row = "Activation offload | Move activations to CPU RAM | Reduced peak VRAM | Sync overhead"
    assert same_words(row, "Activation offload … Sync overhead")
    assert same_words("“Sync  Overhead”", row)
    assert not same_words(row, "Activation offload … no overhead")


def test_an_answer_and_a_claim_of_the_same_row_say_the_same():
    """GB200's cost was once the source's words in one file and a misquotation in the other."""
    claims = {f"{suite}/{one.id}": one for suite in names("suite") for one in load_claims(suite)}
    compared = []
    for answer in load_answers().claims:
        for claim in (claims[name] for name in answer.judged):
            if same_words(answer.quoted, claim.quoted):
                assert claim.misquoted == answer.misquoted, answer.id
                compared.append(answer.id)
    assert {"gb200_tco", "e_ecmp", "zero_stage_3", "overlord_memory", "swizzle"} <= set(compared)


EDITED = ("sources.yaml", "answers.yaml", "claims/cost.yaml")


def edited(folder, edit):
    """Return a copy of conf whose statements, answers, or claims of suite cost were edited."""
    shutil.copytree(ROOT / "conf/claims", folder / "claims")
    shutil.copy(ROOT / "conf/quotations.yaml", folder)
    (folder / "published").symlink_to(ROOT / "conf/published")
    made = [yaml.load((ROOT / "conf" / name).read_text(), yaml.CSafeLoader) for name in EDITED]
    answers = [one for of_part in made[1]["claims"].values() for one in of_part]
    edit(made[0], *({one["id"]: one for one in claims} for claims in (answers, made[2]["claims"])))
    for name, data in zip(EDITED, made, strict=True):
        (folder / name).write_text(yaml.dump(data, Dumper=yaml.CSafeDumper, sort_keys=False))
    return folder


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda s, a, c: s["zhu"].update(citation="x"), "zhu.citation: no such name"),
        (lambda s, a, c: s["zhu"]["says"].update(rate=1), "zhu.says.rate: 1; expected KEY: VALUE"),
        (lambda s, a, c: s["zhu"]["says"].update(new={"text": "x"}), "refers to zhu/new"),
        (lambda s, a, c: s["zhu"].update(cite=f"“{s['zero']['cite']}” "), "zhu.cite: the same as of zero"),
        (
            lambda s, a, c: s["zhu"]["says"].update(new=s["zero"]["says"]["states"]),
            "zhu/new.text: the same as of zero/states",
        ),
        (
            lambda s, a, c: c["tco_ratio"].update(source="semianalysis/pays_off"),
            "quotes the words of cost/tco_ratio, but refers to another statement of semianalysis",
        ),
        (lambda s, a, c: a["gb200_tco"].update(source="none"), "one of them says that no source is given"),
        (
            lambda s, a, c: s["semianalysis"]["says"].update(gb200_hour={"text": "x", "misquoted": "More."}),
            "(gb200_tco).source: quotes the words of cost/tco_ratio, but only one of them is misquoted",
        ),
        (lambda s, a, c: c["tco_ratio"].update(source="semianalysis/tko"), "did you mean semianalysis/tco"),
    ],
)  # fmt: skip
def test_each_contradiction_is_refused_in_one_line(edit, said, tmp_path):
    mistaken(lambda: load_answers(edited(tmp_path, edit)), said)
