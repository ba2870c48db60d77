"""The sentences at the top of a report, and the end of a sweep on a terminal."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from synthetic import made
from test_report_timed import EFFECTS
from timed import timed_findings, timed_records

from harness.claims.judge import judge
from harness.claims.load import load_claims
from harness.config.code_fingerprint import ROOT
from harness.config.validation import ConfigError
from harness.records import Measurement, Record
from harness.report import gather
from harness.report.comparison import OTHERS
from harness.report.findings import answer, finding, instead_of
from harness.report.results import Value
from harness.report.spec import EffectsBlock, load_spec
from harness.report.tables import Table, TableCell
from harness.report.tables import show as shown_value
from harness.report.terminal import LINES, WIDTH, fitting, show
from harness.sweep.plan import read_plan
from harness.sweep.store import read_records

REFERENCES = sorted(path.parent for path in (ROOT / "results/reference").glob("*/plan.json"))


def only(*variants: str) -> list[Record]:
    return [one for one in timed_records(("small",)) if one.cell.optimization in ("baseline", *variants)]


def test_what_pays_is_named_with_its_interval(tmp_path: Path) -> None:
    (said,) = answer(timed_findings(tmp_path, EFFECTS, only("baseline_again", "fast", "slow")))
    assert said == "On small, fast pays most: 2.00× (2.00 … 2.00) ᵐ the speed of baseline."


def test_nothing_pays_only_where_all_was_decided(tmp_path: Path) -> None:
    (said,) = answer(timed_findings(tmp_path, EFFECTS, only("baseline_again", "slow", "same")))
    assert said == "On small, none of 2 variants lowers time against baseline."
    undecided = answer(timed_findings(tmp_path, EFFECTS, only("slow", "same")))
    assert undecided[0].startswith("On small, undecided over baseline: same 1.000×")
    assert not any("none of" in sentence for sentence in undecided)


def test_what_could_not_be_compared_is_no_verdict(tmp_path: Path) -> None:
    (said,) = answer(timed_findings(tmp_path, EFFECTS, only("baseline_again", "absent")))
    assert said == ("On small, no variant could be compared with the baseline (absent: needs a GPU).")
    some = answer(timed_findings(tmp_path, EFFECTS, only("baseline_again", "absent", "slow")))
    assert some == [
        "On small, none of 1 variant lowers time against baseline.",
        "Not compared: absent: needs a GPU.",
    ]
    (alone,) = answer(timed_findings(tmp_path, EFFECTS, only()))
    assert alone == "On small, only the baseline was run."


def test_variants_that_the_answer_leaves_out_were_run_all_the_same(tmp_path: Path) -> None:
    blocks = EFFECTS + 'answer: {leave_out: ["*"]}\n'
    assert answer(timed_findings(tmp_path, blocks, only("baseline_again", "fast"))) == []
    for without in (only("baseline_again"), only("absent")):
        (said,) = answer(timed_findings(tmp_path, blocks, without))
        assert said == "On small, only the baseline was run."


def test_without_a_baseline_the_answer_has_the_values(tmp_path: Path) -> None:
    alone = [one for one in timed_records(("small",)) if one.cell.optimization == "fast"]
    (said,) = answer(timed_findings(tmp_path, EFFECTS, alone))
    assert re.match(r"On small, time is [\d.]+ \S+ ᵐ with fast; no variant could be compared with the", said)
    assert "baseline on small: no record" in said


def test_the_finding_of_a_list_says_what_is_faster_or_less(tmp_path: Path) -> None:
    assert finding(timed_findings(tmp_path, EFFECTS, only("baseline_again", "fast"))) == (
        "On small, fast is 2.00× as fast as baseline"
    )
    said = {folder.name: finding(reported(folder)) for folder in REFERENCES}
    assert said["memory"] == (
        "On 7B (Llama-2), Mixed + flash + checkpointing: peak memory −44.4 % against Baseline (fp32, "
        "explicit attention)"
    )


def test_a_wrong_result_comes_first(tmp_path: Path) -> None:
    records = [
        *only("baseline_again", "fast"),
        made("small", "slow", status="wrong_result", reason="off by 2"),
    ]
    said = answer(timed_findings(tmp_path, EFFECTS, records))
    assert said[0] == "Wrong results: slow on 1 workload. They count as no value."


def test_what_is_nothing_to_turn_on_is_not_in_the_answer(tmp_path: Path) -> None:
    blocks = EFFECTS + "answer: {leave_out: [fast]}\n"
    assert not any(
        "fast" in one for one in answer(timed_findings(tmp_path, blocks, only("baseline_again", "fast")))
    )
    (tmp_path / "invented.yaml").write_text(
        "title: T\nquestion: q\nblocks: []\nanswer: {also: [{metric: x}]}\n"
    )
    with pytest.raises(ConfigError, match=r"missing required field `title` - at `\$.answer.also\[0\]`"):
        load_spec("invented", folder=tmp_path)


def test_another_link_is_no_answer_and_a_control_at_the_same_speed_is_one() -> None:
    said = {folder.name: " ".join(answer(reported(folder))) for folder in REFERENCES}
    assert "bit/s pays" not in said["interconnect"].replace("the speed of 10 Gbit/s", "")
    queue = "Admission 1 × 128 KiB has a maximum queue of 1.47 MB ˢ instead of 5.40 MB ˢ"
    assert queue in said["congestion"]


def reported(folder: Path):
    plan = read_plan(folder)
    kept = {one.cell.id: one for one in read_records(folder)}
    records = [kept[cell] for cell in plan.cells if cell in kept]
    verdicts = judge(load_claims(plan.suite), records)
    return gather(plan.suite, records, verdicts, folder, plan.titles, plan.left_out)


@pytest.mark.parametrize("folder", REFERENCES, ids=lambda folder: folder.name)
def test_the_end_of_a_sweep_fits_a_screen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # of the process that runs the tests
    out = io.StringIO()
    show(reported(folder), Path("results/here/report.html"), out)
    lines = out.getvalue().splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= WIDTH
    assert "results/here/report.html" in out.getvalue()
    assert "\x1b" not in out.getvalue()
    whole = io.StringIO()
    show(reported(folder), Path("page"), whole, everything=True)
    assert set(lines[: lines.index(next(one for one in lines if "─" in one))]) <= set(
        whole.getvalue().splitlines()
    )


def test_columns_that_do_not_fit_are_left_out_from_the_least_important() -> None:
    header = ("Optimization", "Precision", "Time", "Speed-up", "Effect", "Tokens/s", "MFU")
    row = tuple(TableCell(text) for text in ("fast", "bf16", "1 s", "2.00×", "pays", "823", "40 %"))
    made_of = Table("t", "T", "", header, (row,), optional=2)
    assert fitting(made_of, 200).header == header
    assert fitting(made_of, 62).header == header[:5]
    assert fitting(made_of, 50).header == ("Optimization", "Time", "Speed-up", "Effect")
    assert fitting(made_of, 50).rows[0] == (row[0], *row[2:5])


def test_columns_that_name_a_row_are_never_left_out() -> None:
    header = ("Workload", "Optimization", "Precision", "Time", "Speed-up", "Effect")
    words = [TableCell(text, look="word") for text in ("small model", "fast")]
    row = (*words, *(TableCell(text, cell="c") for text in ("bf16", "1 s", "2.00×", "pays")))
    made_of = Table("t", "T", "", header, (row,), optional=0)
    assert fitting(made_of, 58).header == ("Workload", "Optimization", "Time", "Speed-up", "Effect")


def test_each_workload_of_the_users_own_has_a_table_and_a_sentence() -> None:
    kept = [one for one in read_records(ROOT / "results/reference/congestion") if one.status == "ok"]
    mine = [
        one._replace(cell=one.cell._replace(workload=name))
        for one in kept
        for name, of in (("mine_a", "incast_16"), ("mine_b", "incast_64"))
        if one.cell.workload == of
    ]
    data = gather("congestion", mine, [], ROOT / "results/reference/congestion")
    tables = [data.table(block) for block in data.blocks if isinstance(block, EffectsBlock)]
    assert [one.title.rpartition(": ")[2] for one in tables if one] == ["mine_a", "mine_b"]
    assert all(one.header[0] == "Optimization" and len(one.rows) == 7 for one in tables if one)
    said = answer(data)
    assert said[0].startswith("On mine_a, ")
    assert any(one.startswith("On mine_b, ") for one in said[1:])


def test_what_a_formula_assumes_is_in_the_answer() -> None:
    (said,) = [one for one in answer(reported(ROOT / "results/reference/interconnect_formula_own"))
               if one.startswith("Assumes")]  # fmt: skip
    assert said == (
        "Assumes 2 nodes of 8 GPUs (NVIDIA H100 SXM), 25 Gbit/s per node, 2,048 tokens per micro-batch and "
        "GPU, computing at 396 TFLOP/s per GPU, 40 % of the peak."
    )


def test_a_busy_machine_is_named_whatever_the_effect(tmp_path: Path) -> None:
    def busy(one: Record, share: float) -> Record:
        return one._replace(
            measurements=(*one.measurements, Measurement(OTHERS, "1", "measured", "", (share,)))
        )

    records = only("baseline_again", "fast")
    quiet = answer(timed_findings(tmp_path, EFFECTS, [busy(one, 0.02) for one in records]))
    assert not any("busy" in one for one in quiet)
    loud = answer(timed_findings(tmp_path, EFFECTS, [busy(one, 0.3) for one in records]))
    assert loud == [*quiet, "The machine was busy: other processes took up to 30 % of its time."]


def test_bytes_that_are_compared_have_one_unit() -> None:
    large, small = (Value("w", "v", "m", "", "B", "simulated", "c", one) for one in (1.1 * 2**30, 9e8))
    assert instead_of(small, large, "GiB") == "0.838 GiB ˢ instead of 1.10 GiB ˢ"
    assert instead_of(small, small, "GiB") == "900 MB ˢ instead of 900 MB ˢ"
    assert shown_value(small._replace(median=4.0), "GiB") == "<\u00a00.001 ˢ"
