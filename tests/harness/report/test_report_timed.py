"""The report of a timed suite and its first sentences, on records whose speed-ups and bounds are known."""

import statistics

import pytest
from synthetic import made
from synthetic import made as made_record
from timed import BASE_S, BYTES, DRIFT, FLOPS, PROCESSES, timed_findings, timed_records

from harness.records import Measurement
from harness.report.comparison import OTHERS
from harness.report.findings import answer
from harness.report.tables import failure_table
from suites.kernels import report

PAIRED = "metric: time, method: warm, baseline: baseline, noise: baseline_again"
EFFECTS = f"""  - {{effects: pays, title: "On {{workload}}", workload: small, {PAIRED}, unit: auto,
     conditions: {{precision: Precision}}, extra_metrics: {{peak_memory: Peak}}}}
"""
SPEEDUPS = f"  - {{speedups: all, title: All, {PAIRED}}}\n"
ROOFLINE = "  - {own_table: bounds, title: Bound}\n"


@pytest.fixture(autouse=True)
def _own_workloads(monkeypatch):
    """Let the kernels suite's own tables and figures speak of the invented workloads."""
    monkeypatch.setattr(report, "COPYING", ("not_run", "copying"))
    monkeypatch.setattr(report, "MULTIPLYING", {"fp32": ("multiplying",), "bf16": ("not_run",)})


def made_table(folder, blocks, records=None):
    findings = timed_findings(folder, blocks, records, suite="kernels")
    made = findings.table(findings.blocks[0])
    assert made is not None
    return made


def row_of_cells(made, name):
    row = next(row for row in made.rows if name in (cell.text for cell in row[:2]))
    return dict(zip(made.header, row, strict=True))


def row_of(made, name):
    return {head: cell.text for head, cell in row_of_cells(made, name).items()}


def test_what_was_not_timed_or_cannot_run_has_its_reason_and_no_value(tmp_path):
    made = made_table(tmp_path, EFFECTS)
    for variant, told in (("untimed", "never timed here"), ("absent", "needs a GPU")):
        assert row_of(made, variant)["Effect"] == "unavailable"
        assert told in " ".join(row_of_cells(made, variant)["Time"].notes)


def test_the_bound_is_the_longer_of_copying_and_multiplying_at_the_rates_measured(tmp_path):
    made = made_table(tmp_path, ROOFLINE)
    median = statistics.median([(1 + 0.1 * r) * d for r in range(PROCESSES) for d in DRIFT])
    bandwidth = BYTES["copying"] / (BASE_S["copying"] * median)
    rate = FLOPS["multiplying"] / (BASE_S["multiplying"] * median)
    for workload in ("small", "large"):
        row = next(r for r in made.rows if (r[0].text, r[1].text) == (workload, "baseline"))
        shown = dict(zip(made.header, (cell.text for cell in row), strict=True))
        moving_s, computing_s = BYTES[workload] / bandwidth, FLOPS[workload] / rate
        assert shown["Limited by"] == ("memory" if moving_s > computing_s else "compute")
        share = max(moving_s, computing_s) / (BASE_S[workload] * median)
        assert float(shown["% of roofline"].split()[0]) == pytest.approx(100 * share, rel=0.006)
        assert shown["Min. bytes"] == f"{BYTES[workload] / 1e6:g} MB ᶜ"
    fast = next(r for r in made.rows if (r[0].text, r[1].text) == ("small", "fast"))
    assert fast[5].text == "unknown"
    assert made.notes[0] == "the matmul rate in bf16 was not measured in this run"
    assert f"{bandwidth / 1e9:.1f} GB/s copied" in made.text


def test_repeats_that_failed_alike_and_workloads_a_variant_cannot_run_are_one_row(tmp_path):
    records = timed_records(("small", "step"))
    told = "not tried: slow ran out of memory on small, which is smaller (seq_len 512)"
    ends = [("out_of_memory", told), ("out_of_memory", told), ("crashed", "signal 11")]
    records += [
        made_record("large", "slow", status=status, reason=reason, repeat=repeat)
        for repeat, (status, reason) in enumerate(ends)
    ]
    findings = timed_findings(tmp_path, SPEEDUPS, records)
    rows = failure_table(findings.spec, findings.index).rows
    assert [tuple(cell.text for cell in row) for row in rows] == [
        ("large", "slow", "out of memory", f"{told} (2 repeats)"),
        ("large", "slow", "crashed", "signal 11"),
        ("small; step", "absent", "unavailable", "needs a GPU"),
    ]
    made = made_table(tmp_path, SPEEDUPS, records)
    assert row_of(made, "large")["slow"] == "out of memory"


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


def test_a_busy_machine_is_named_whatever_the_effect(tmp_path):
    told = []
    for share in (0.02, 0.3):
        one = Measurement(OTHERS, "1", "measured", "", (share,))
        records = [r._replace(measurements=(*r.measurements, one)) for r in only("baseline_again", "fast")]
        told.append(answer(timed_findings(tmp_path, EFFECTS, records)))
    assert told == [[PAYS], [PAYS, "The machine was busy: other processes took up to 30 % of its time."]]
