"""The sentences at the top of a report, and the end of a sweep on a terminal."""

import re

import pytest
from synthetic import made
from test_report_timed import EFFECTS
from timed import timed_findings, timed_records

from harness.records import Measurement
from harness.report.comparison import OTHERS
from harness.report.findings import answer, finding, what_pays


def only(*variants):
    return [one for one in timed_records(("small",)) if one.cell.optimization in ("baseline", *variants)]


PAYS = "On small, fast pays most: 2.00× (2.00 … 2.00) ᵐ the speed of baseline."
NONE = "On small, none of %d variant%s lowers time against baseline."


@pytest.mark.parametrize(
    ("variants", "expected"),
    [
        (["baseline_again", "fast", "slow"], [PAYS]),
        (["baseline_again", "slow", "same"], [NONE % (2, "s")]),
        (["baseline_again", "slow", "absent"], [NONE % (1, ""), "Not compared: absent: needs a GPU."]),
        (
            ["baseline_again", "absent"],
            ["On small, no variant could be compared with the baseline (absent: needs a GPU)."],
        ),
        ([], ["On small, only the baseline was run."]),
    ],
)
def test_what_pays_is_named_and_what_was_not_decided_or_compared_is_no_verdict(variants, expected, tmp_path):
    assert answer(timed_findings(tmp_path, EFFECTS, only(*variants))) == expected


def test_a_wrong_result_comes_first(tmp_path):
    wrong = made("small", "slow", status="wrong_result", reason="off by 2")
    said = answer(timed_findings(tmp_path, EFFECTS, [*only("baseline_again", "fast"), wrong]))
    assert said[0] == "Wrong results: slow on 1 workload. They count as no value."


SET_UP = """answer:
  set_up:
    - text: of which {} times is chosen
      values: [{optimization: baseline, metric: time, method: warm, per: time}]
"""


def test_what_is_undecided_is_the_finding_and_not_what_was_not_compared(tmp_path):
    """Over the baseline and with what the set-up imposes; no record shows the noise."""
    data = timed_findings(tmp_path, EFFECTS + SET_UP, only("slow", "same", "absent"))
    first, *rest = what_pays(data)
    over = "On small, undecided over baseline, of which 1.000× ᵐ times is chosen: same 1.000×"
    assert first.startswith(over)
    assert any(one.startswith("Not compared: ") for one in rest)
    assert finding(data).startswith(over)


def test_a_fairer_baseline_leads_where_it_was_run(tmp_path):
    over = EFFECTS + 'answer: {over: {"sm*": [absent, slow]}}\n'
    data = timed_findings(tmp_path, over, only("baseline_again", "fast", "slow"))
    (said,) = what_pays(data)
    assert re.match(r"On small, fast pays most: 2.50×.* the speed of slow, 2.00×.* ᵐ that of baseline", said)
    assert re.fullmatch(r".* as fast as slow, 2.00× as fast as baseline", finding(data))
    (without,) = what_pays(timed_findings(tmp_path, over, only("baseline_again", "fast")))
    assert without == PAYS


def test_a_busy_machine_is_named_whatever_the_effect(tmp_path):
    told = []
    for share in (0.02, 0.3):
        one = Measurement(OTHERS, "1", "measured", "", (share,))
        records = [r._replace(measurements=(*r.measurements, one)) for r in only("baseline_again", "fast")]
        told.append(answer(timed_findings(tmp_path, EFFECTS, records)))
    assert told == [[PAYS], [PAYS, "The machine was busy: other processes took up to 30 % of its time."]]
