"""conf/answers.yaml: each claim of the paper and the article, its page, and mistakes in it."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from answered import paper_claim

from harness.claims.answers import ANSWERS, answer_claims, refuse_conflicts
from harness.claims.evidence import Findings
from harness.claims.load import load_claims
from harness.claims.model import Difference
from harness.claims.paper import PaperClaim, is_quoted, load_answers
from harness.config.code_fingerprint import ROOT
from harness.config.run import names
from harness.config.validation import ConfigError
from harness.report.index.answers_page import Answers, index_page
from harness.report.index.answers_text import accepted_text, public_text, unbroken
from harness.report.index.suite_index import judged_claims
from harness.report.write import answers_csv

ASKED = load_answers()
CLAIMS = ASKED.claims
QUOTATIONS = yaml.safe_load((ROOT / "conf/quotations.yaml").read_text())

OF_THE_PAPER = {
    "overlord_throughput", "overlord_memory", "gb200_tco", "movement_limit", "latency_wall", "rule_of_40",
    "seven_billion", "more_than_one_accelerator", "table_1_1b", "table_1_7b", "table_1_13b", "table_1_70b",
    "table_1_175b", "zero_stage_1", "zero_stage_2", "zero_stage_3", "zero_offload", "activation_offload",
    "unified_memory", "triton_distributed", "swizzle", "dcqcn", "e_ecmp", "infiniband", "infiniband_rate",
    "chopper_dvfs", "chopper_clocks", "uniorch", "beyond_capacity", "run_cost", "portability_tradeoff",
    "zero_stage_3_traffic", "zero_overheads", "latency_lags", "fsdp2_copies", "loading_stall",
}  # fmt: skip

OF_THE_ARTICLE = {
    "utilization", "zero_larger_models", "fusion", "compilers_double", "flash_attention", "mixed_precision",
    "per_layer", "layered", "async_loading", "no_order_of_magnitude", "trillions", "activation_fusion",
    "utilization_lost", "zero_reduces_communication", "xla_tpu",
}  # fmt: skip

NOTHING = Findings({}, {})


def test_each_claim_of_the_paper_and_the_article_has_one_row() -> None:
    assert {one.id for one in CLAIMS if one.by == "paper"} == OF_THE_PAPER
    assert {one.id for one in CLAIMS if one.by == "article"} == OF_THE_ARTICLE


def test_words_marked_verbatim_are_those_of_the_paper_or_the_article() -> None:
    sentences = [*QUOTATIONS["paper"], *QUOTATIONS["article"]]
    for suite in names("suite"):
        for claim in load_claims(suite):
            if claim.verbatim:
                assert is_quoted(claim.quoted, sentences), f"{suite}/{claim.id}: {claim.quoted}"


ZERO = {1: lambda n: 16 / (4 + 12 / n), 2: lambda n: 16 / (2 + 14 / n), 3: lambda n: n}
"""States without ZeRO over states of a stage on N ranks, by arXiv 1910.02054."""


def test_values_of_zeros_formula_are_those_of_the_formula() -> None:
    by_id = {one.id: one for one in CLAIMS}
    (record,) = by_id["zero_larger_models"].public
    for name, value in record.values.items():
        stage, ranks = (int(number) for number in re.findall(r"\d+", name))
        assert value == pytest.approx(ZERO[stage](ranks), rel=2e-3)
    for stage in (1, 2):
        (record,) = by_id[f"zero_stage_{stage}"].public
        for name, value in record.values.items():
            assert value == pytest.approx(ZERO[stage](int(name.removeprefix("N = "))), rel=2e-3)


def test_a_formula_says_where_it_lies_in_the_band() -> None:
    (row,) = answer_claims([one for one in CLAIMS if one.id == "zero_larger_models"], NOTHING)
    low, high = (
        {stage: end([n for n in range(2, 99) if 2 <= ZERO[stage](n) <= 4]) for stage in (2, 3)}
        for end in (min, max)
    )
    each = "; ".join(f"ZeRO-{stage}, N = {low[stage]} to {high[stage]}" for stage in (2, 3))
    assert row.answer == "partly"
    assert row.why.startswith(f"where {each} (")
    assert "ZeRO-2, N = 3 to 7; ZeRO-3, N = 2 to 4" in row.why


def test_the_page_has_each_claim_with_its_band_source_and_answer() -> None:
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


def conf_with(folder: Path, change: dict[str, object]) -> Path:
    data = yaml.safe_load((ROOT / "conf/answers.yaml").read_text())
    first = next(one for one in data["claims"] if one["id"] == "mixed_precision")
    first.update(change)
    data |= {"claims": [first], "sentences": [], "tables": []}
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
        ({"by": "newspaper"}, "allowed: paper, article"),
        ({"part": "appendix"}, "part: expected one of abstract, table_1"),
        ({"band": [3.0, 1.5]}, "the lower number first"),
        ({"source": "elsewhere/first"}, "source=elsewhere/first: no such name"),
        ({"source_says": "It is known."}, "source_says: no such name"),
        ({"misquoted": "Half is left out."}, "misquoted: no such name"),
        ({"band": None}, "decides: needs the claim's band"),
        ({"claim": ""}, "empty; expected the claim in plain words"),
        ({"quoted": "9x"}, "is nowhere"),
        ({"judged": ["kernels/a", "kernels/a"]}, "'kernels/a' is given twice"),
        (
            {"public": [{"of": "x", "source": "y", "median": 2.66, "n": 355}]},
            "public[0].median: no such name",
        ),
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
        (
            {"public": [{"of": "x", "source": "y", "rows": "mixed_precision", "where": {"from": "fp31"}}]},
            "no row has",
        ),
    ],
)
def test_a_mistake_in_the_claims_is_one_line(change: dict[str, object], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load_answers(conf_with(tmp_path, change))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_what_the_claims_own_source_measured_is_shown_and_never_counted(tmp_path: Path) -> None:
    change = {"source": "flash_2/steps", "judged": [], "public": [OWN]}
    statement = {
        "cite": "FlashAttention-2, arXiv 2307.08691",
        "provenance": "stated",
        "says": {"steps": {"text": "Yes."}},
    }

    def load(own: bool) -> PaperClaim:
        folder = tmp_path / str(own)
        folder.mkdir()
        conf_with(folder, {**change, "public": [{**OWN, "own": own}]})
        (folder / "sources.yaml").write_text(yaml.safe_dump({"flash_2": statement}))
        (claim,) = load_answers(folder).claims
        return claim

    assert load(True).public[0].own
    with pytest.raises(ConfigError, match=r"public\[0\]: of 2307.08691, the claim's source; expected own"):
        load(False)


JUDGED = {f"{suite}/{one.id}": one for suite in names("suite") for one in load_claims(suite)}


def test_a_judged_claim_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="'invented/claim' is no claim of conf/claims"):
        refuse_conflicts([paper_claim()], JUDGED)
    refuse_conflicts(CLAIMS, JUDGED)


def test_the_band_that_is_printed_is_the_one_that_is_judged() -> None:
    """All techniques together once had a printed band of 5 to 10 times, and at least 5 as the judged one."""
    layered = next(one for one in CLAIMS if one.id == "layered")
    assert layered.band == (5, 10)
    at_least = replace(layered, band=(5.0, math.inf), judged=("stack_published/layered",))
    with pytest.raises(ConfigError, match=r"stack_published/layered is judged by \[5, 10\]") as error:
        refuse_conflicts([at_least], JUDGED)
    assert "\n" not in str(error.value)
    related = replace(at_least, judged=(), related=("stack_published/layered",))
    refuse_conflicts([related], JUDGED)  # what is on another quantity has a band of its own


def test_published_numbers_come_from_committed_rows() -> None:
    """The summary of a row's published values is numpy's of its file; one row more or less changes it."""
    (row,) = answer_claims([one for one in CLAIMS if one.id == "mixed_precision"], NOTHING)
    record = row.claim.public[0]
    lines = [json.loads(line) for line in (ROOT / "conf/published/mixed_precision.jsonl").open()]
    values = [
        one["value"]
        for one in lines
        if (one["device_class"], one["from"]) == ("V100", "fp32")
        and "batch_to" in one
        and one["batch_to"] <= one["batch_from"]
    ]
    assert list(record.values.values()) == values
    text = public_text(record, row.claim)
    assert f"n = {len(values)}" in text
    assert f"50 %: {np.median(values):.4g}×" in text
    fewer = replace(record, values=dict(list(record.values.items())[1:]))
    assert public_text(fewer, row.claim) != text


def test_results_of_two_folders_or_machines_are_refused() -> None:
    from harness.commands.suites import judged

    data = judged(ROOT / "results/reference/host_optimizer")
    with pytest.raises(ConfigError, match="a, b: all have results of suite host_optimizer"):
        judged_claims([(data, "a"), (data, "b")])
    assert judged_claims([(data, "a"), (data, "x/host_optimizer")])
    none = replace(data, verdicts=[replace(one, ours=None) for one in data.verdicts])
    elsewhere = judged_claims([(none, "x/host_optimizer"), (data, "b")])
    assert elsewhere == judged_claims([(data, "x/host_optimizer"), (none, "b")])
    assert any(one.ours is not None for _, verdicts in elsewhere.values() for one in verdicts)
    near, far = (
        replace(data, verdicts=[replace(one, where=where) for one in data.verdicts])
        for where in ("as stated", "elsewhere")
    )
    of_conditions = judged_claims([(far, "x/host_optimizer"), (near, "b")])
    assert of_conditions == judged_claims([(near, "b")])
    assert judged_claims([(far, "x/host_optimizer"), (far, "b")]) == judged_claims(
        [(far, "x/host_optimizer")]
    )
    differing = [replace(one, differs=(*one.differs, Difference("c", "x", "y"))) for one in far.verdicts]
    further = replace(far, verdicts=differing)
    assert judged_claims([(further, "a"), (far, "b")]) == judged_claims([(far, "b")])
    (known,) = data.environment.values()
    two = replace(data, environment={"one": known, "two": {**known, "cpu": "another"}})
    with pytest.raises(ConfigError, match="has results of several machines"):
        judged_claims([(two, "a")])
