"""An answer's first sentence says over what: the baseline by its title, and what the set-up imposes."""

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from test_answer import only
from test_report_timed import EFFECTS
from timed import timed_findings

from harness.commands.suites import judged
from harness.config.code_fingerprint import ROOT
from harness.config.validation import ConfigError
from harness.report.comparison import compared
from harness.report.findings import answer_block, finding, set_up, what_pays
from harness.report.spec import load_spec

FOLDERS = sorted(path.parent for path in (ROOT / "results").glob("*/*/plan.json"))
BASELINES = ("baseline", "baseline_again")


def lacking(data, sentence: str) -> str:
    """Return what a sentence at the top has to name and does not; "" for nothing.

    A sentence that compares variants names the baseline, or what the set-up imposes, where conf/report/
    declares that; what is declared is named wherever its values were recorded.
    """
    said, block = data.spec.answer, answer_block(data)
    baseline = data.spec.name("optimization", "baseline")
    workload = variants = ()
    if block:
        workload = data.index.names("workload", block.where, block.metric)[0]
        variants = [
            one
            for one in data.index.names("optimization", block.where)
            if one not in BASELINES and not any(fnmatchcase(one, left) for left in said.leave_out)
        ]
    compares = any(compared(data.index, workload, one, block.pairing) for one in variants)
    stated = not compares and any(
        picked.optimization not in BASELINES for one in said.states[:1] for picked in one.values
    )
    clauses = [one for one in said.set_up if fnmatchcase(workload or "", one.workload)]
    patterns = [re.escape(one.text).replace(r"\{\}", ".+") for one in clauses]
    fixed = all(picked.optimization for one in clauses for picked in one.values)
    text = set_up(data, workload or "", "") if fixed else ""  # the same clause for each variant
    imposed = text in sentence if text else any(re.search(pattern, sentence) for pattern in patterns)
    if compares and baseline not in sentence:
        return f"the baseline, {baseline}"
    if stated and baseline not in sentence and not imposed:
        return f"the baseline, {baseline}, or what the set-up imposes"
    recorded = clauses and set_up(data, workload or "", "baseline")
    return f"what the set-up imposes: {recorded}" if (compares or stated) and recorded and not imposed else ""


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda one: f"{one.parent.name}/{one.name}")
def test_the_first_sentence_says_over_what(folder: Path) -> None:
    data = judged(folder)
    for first in what_pays(data)[:1]:
        assert not lacking(data, first), first
    if not data.spec.answer.finding and what_pays(data)[:1]:
        base = data.spec.name("optimization", "baseline")
        assert (" as fast" in finding(data)) <= (base in finding(data)), finding(data)


STATES = """answer:
  leave_out: ["*"]
  states:
    - text: It takes {}.
      values: [{workload: small, optimization: fast, metric: time, method: warm}]
"""
SET_UP = """  set_up:
    - text: of which {} times is chosen
      values: [{optimization: baseline, metric: time, method: warm, per: time}]
"""


def test_a_sentence_without_its_baseline_or_factor_is_found(tmp_path: Path) -> None:
    ran = only("baseline_again", "fast")
    bare = timed_findings(tmp_path, EFFECTS + STATES, ran)
    assert "or what the set-up imposes" in lacking(bare, what_pays(bare)[0])
    told = timed_findings(tmp_path, EFFECTS + STATES + SET_UP, ran)
    assert what_pays(told)[0].endswith(", of which 1.000× ᵐ times is chosen.")
    assert not lacking(told, what_pays(told)[0])
    plain = timed_findings(tmp_path, EFFECTS, ran)
    assert not lacking(plain, what_pays(plain)[0])
    assert lacking(plain, "On small, fast pays most: 2.00×.") == "the baseline, baseline"
    declared = timed_findings(tmp_path, EFFECTS + "answer:\n" + SET_UP, ran)
    assert not lacking(declared, what_pays(declared)[0])
    assert "set-up imposes" in lacking(declared, what_pays(plain)[0])
    told_wrong = what_pays(declared)[0].replace("1.000× ᵐ times", "2.000× ᵐ times")
    assert "set-up imposes" in lacking(declared, told_wrong)


def test_what_is_undecided_is_the_finding_and_not_what_was_not_compared(tmp_path: Path) -> None:
    blocks = EFFECTS + "answer:\n" + SET_UP
    data = timed_findings(tmp_path, blocks, only("slow", "same", "absent"))  # without what shows the noise
    first, *rest = what_pays(data)
    over = "On small, undecided over baseline, of which 1.000× ᵐ times is chosen: same 1.000×"
    assert first.startswith(over)
    assert any(one.startswith("Not compared: ") for one in rest)
    assert finding(data).startswith(over)


def test_a_fairer_baseline_leads_where_it_was_run(tmp_path: Path) -> None:
    over = EFFECTS + 'answer: {over: {"sm*": [absent, slow]}}\n'
    (said,) = what_pays(timed_findings(tmp_path, over, only("baseline_again", "fast", "slow")))
    assert re.match(r"On small, fast pays most: 2.50×.* the speed of slow, 2.00×.* ᵐ that of baseline", said)
    data = timed_findings(tmp_path, over, only("baseline_again", "fast", "slow"))
    assert re.fullmatch(r".* as fast as slow, 2.00× as fast as baseline", finding(data))
    (without,) = what_pays(timed_findings(tmp_path, over, only("baseline_again", "fast")))
    assert without == "On small, fast pays most: 2.00× (2.00 … 2.00) ᵐ the speed of baseline."


def test_a_value_names_a_metric_or_a_condition_and_a_sentence_its_place(tmp_path: Path) -> None:
    for picked, said in (
        ("{metric: time, condition: ranks}", "expected either metric or condition"),
        ("{metric: time, optimization: fast}", "expected workload and optimization"),
    ):
        (tmp_path / "invented.yaml").write_text(
            "title: T\nquestion: q\nblocks: []\n"
            f"answer: {{states: [{{text: 'a {{}}', values: [{picked}]}}]}}\n"
        )
        with pytest.raises(ConfigError, match=said):
            load_spec("invented", folder=tmp_path)


def test_the_link_that_step_gains_names_is_that_of_its_records() -> None:
    data = judged(ROOT / "results/reference/step_gains")
    rate = float(data.index.condition("gemma_12b_16", "baseline", "network_B_per_s"))
    ranks = int(data.index.condition("gemma_12b_16", "baseline", "ranks_per_node"))
    assert f"{8 * rate * ranks / 1e12:g} Tbit/s per node" in what_pays(data)[0]


FIRST = {
    "clock_speed": ("1.15", "which alone makes a step 1.25 times"),
    "congestion": ("at the bound", "which no control can beat"),
    "dataloader": ("13.9 to 14.8", "with the same reader 1.04 GB"),
    "fabric": ("1.60×", "ECMP with one queue pair"),
    "host_optimizer": ("1.28×", "torch's fused AdamW"),
    "interconnect": ("9.0×", "7.6× by construction"),
    "kernels": ("5.0×", "fp32 without TF32"),
    "offload": ("79 %", "than DDP"),
    "overlap": ("2.1×", "overlap alone gains at most 2×"),
    "profiling": ("2.7 %", "under FSDP2 (13 %"),
}
"""Page to a figure of its first paragraph and the words on its baseline or factor: in one sentence."""


@pytest.mark.parametrize("page", FIRST)
def test_what_a_page_says_first_names_over_what_in_the_same_sentence(page: str) -> None:
    paragraph = " ".join((ROOT / "docs/suites" / f"{page}.md").read_text().split("\n\n")[1].split())
    figure, over = FIRST[page]
    assert any(figure in one and over in one for one in re.split(r"\. (?=[A-Z*])", paragraph)), paragraph
