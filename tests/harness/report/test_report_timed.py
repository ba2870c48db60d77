"""The report of a timed suite, on records whose speed-ups, noise and bounds are known."""

import io
import math
import re
import statistics

import pandas
import pytest
from scipy import stats
from synthetic import made as made_record
from timed import (
    BASE_S,
    BYTES,
    DRIFT,
    FLOPS,
    LUCK,
    PROCESSES,
    SHARES,
    timed_findings,
    timed_record,
    timed_records,
)

from harness.records import Measurement
from harness.report.comparison import compile_cost
from harness.report.tables import failure_table
from harness.report.write import effects_csv
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


def noise_text():
    """Return the interval of the baseline against itself: Student's t over equal processes."""
    logs = [-math.log(one) for one in LUCK]
    low, high = stats.t.interval(0.95, PROCESSES - 1, loc=statistics.mean(logs), scale=stats.sem(logs))
    return f"{math.exp(statistics.mean(logs)):.3f}× ({math.exp(low):.3f} … {math.exp(high):.3f}) ᵐ"


def test_each_variant_has_its_time_its_speed_up_and_what_it_does(tmp_path):
    made = made_table(tmp_path, EFFECTS)
    assert made.title == "On small"
    assert made.header[:3] == ("Optimization", "Precision", "Time")
    assert made.header[-1] == "Peak"
    fast = row_of(made, "fast")
    samples = [BASE_S["small"] * (1 + 0.1 * r) * d * 0.5 for r in range(PROCESSES) for d in DRIFT]
    assert fast["Time"] == f"{1e6 * statistics.median(samples):.0f} µs ᵐ"
    assert fast["Speed-up (95 % interval)"] == "2.00× (2.00 … 2.00) ᵐ"
    assert (fast["Effect"], fast["Precision"], fast["Peak"]) == ("pays", "bf16", "256 MB ᵐ")
    assert row_of(made, "slow")["Speed-up (95 % interval)"].startswith("0.800×")
    assert row_of(made, "slow")["Effect"] == "costs"
    assert row_of(made, "same")["Effect"] == "no difference"
    assert row_of(made, "baseline")["Effect"] == "baseline"
    assert row_of(made, "baseline_again")["Effect"] == "noise"
    assert row_of(made, "baseline_again")["Speed-up (95 % interval)"] == noise_text()


def with_metric(records, variant, metric, unit, value):
    """Add a measurement to every record of a variant on the small workload, in place."""
    method = "cold" if metric == "compile_time" else ""
    one = Measurement(metric, unit, "measured", method, (value,))
    for at, record in enumerate(records):
        if (record.cell.workload, record.cell.optimization) == ("small", variant):
            records[at] = record._replace(measurements=(*record.measurements, one))


def test_compile_time_has_its_break_even_where_a_variant_pays(tmp_path):
    blocks = EFFECTS.replace("peak_memory: Peak", "compile_time: Compile time, break_even: Paid after")
    records = timed_records()
    for variant in ("fast", "slow", "same"):
        with_metric(records, variant, "compile_time", "s", 0.3)
    made = made_table(tmp_path, blocks, records)
    base_s = statistics.median(BASE_S["small"] * (1 + 0.1 * r) * d for r in range(PROCESSES) for d in DRIFT)
    steps = next(n for n in range(1, 10_000) if 0.3 + n * 0.5 * base_s < n * base_s)
    paid = row_of(made, "fast")["Paid after"]
    assert abs(float(paid.removesuffix(" steps")) - steps) <= 0.05 * steps
    findings = timed_findings(tmp_path, blocks, records)
    cost = compile_cost(findings.index, "small", "fast", findings.blocks[0].pairing)
    assert cost == f"compiling took 300 ms, so it has paid after {paid}"
    assert compile_cost(findings.index, "small", "slow", findings.blocks[0].pairing) == ""
    assert {row_of(made, name)["Paid after"] for name in ("slow", "same", "baseline")} == {"–"}


def test_undecided_says_how_many_repeats_would_decide_and_that_the_machine_was_busy(tmp_path):
    records = [one for one in timed_records(("small",)) if one.cell.optimization != "same"]
    shares = (0.90, 1.01, 0.93, 0.99)
    records += [timed_record("small", "same", repeat, share) for repeat, share in enumerate(shares)]
    quiet = made_table(tmp_path, EFFECTS, records)
    (note,) = (one for one in quiet.notes if "would decide" in one)
    assert row_of(quiet, "same")["Effect"] == "undecided"
    found = re.fullmatch(r"about (\d+) more repeats? would decide: repeats=(\d+)", note)
    assert found
    assert int(found[2]) == PROCESSES + int(found[1])
    with_metric(records, "same", "others_cpu_share", "1", 0.31)
    with_metric(records, "fast", "others_cpu_share", "1", 0.31)
    busy = [one for one in made_table(tmp_path, EFFECTS, records).notes if "busy" in one]
    assert busy == [f"{note}; the machine was busy: other processes took 31 % of its time"]


def test_a_users_own_model_is_named_where_it_is_the_only_workload(tmp_path):
    fields = {"source": "config.json of qwen2, given by the user", "hf_config": {"model_type": "qwen2"}}
    own = [
        record._replace(
            cell=record.cell._replace(config={"workload": {**record.cell.config["workload"], **fields}}),
            conditions={**record.conditions, "model_code": "transformers 5: Qwen2ForCausalLM"},
        )
        for record in timed_records(("small",))
    ]
    text = made_table(tmp_path, EFFECTS, own).text
    assert text == f"The model is that of {fields['source']}, built by transformers 5: Qwen2ForCausalLM."
    assert "model" not in made_table(tmp_path, EFFECTS).text


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


def test_without_a_measured_copy_no_bound_is_known(tmp_path):
    made = made_table(tmp_path, ROOFLINE, timed_records(("small",)))
    assert {row[5].text for row in made.rows} == {"unknown"}
    assert "the copy bandwidth was not measured in this run" in made.notes


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


def test_every_comparison_is_a_row_of_effects_csv(tmp_path):
    table = pandas.read_csv(io.StringIO(effects_csv(timed_findings(tmp_path, EFFECTS + SPEEDUPS))))
    rows = {(row.workload, row.variant): row for row in table.itertuples()}
    assert len(rows) == len(table) == len(BASE_S) * (len(SHARES) - 1 + len(["baseline_again"]))
    for (_, variant), row in rows.items():
        if variant != "baseline_again":
            assert row.ratio == pytest.approx(SHARES[variant])
            assert row.value / row.baseline_value == pytest.approx(SHARES[variant])
    assert rows["large", "fast"].effect == "pays"
    assert rows["large", "slow"].effect == "costs"


def columns_of(rows, *columns):
    return f"  - {{table: t, title: T, {rows}, columns: [{', '.join(columns)}]}}\n"


def test_a_range_is_that_of_the_statistic_of_single_repeats_and_a_column_compares_any_variant(tmp_path):
    """By hand: two repeats with medians of 2 and 4 ms, least 1 and 3 ms, and a metric that never differs."""
    same = {("same", ""): ("s", "measured", (1e-3,))}
    records = [
        made_record("small", "fast", {("time", ""): ("s", "measured", values)} | same, repeat=repeat)
        for repeat, values in enumerate(((1e-3, 2e-3, 3e-3), (3e-3, 4e-3, 5e-3)))
    ]
    columns = [
        f"{{title: {title}, metric: {metric}, unit: ms, statistic: {statistic}, range: true}}"
        for title, metric, statistic in (("A", "time", "median"), ("B", "time", "min"), ("C", "same", "max"))
    ]
    block = columns_of("rows: {optimization: Variant}, workload: small", *columns)
    row = made_table(tmp_path, block, records).rows[0]
    assert [cell.text for cell in row[1:]] == ["3 (2 … 4) ᵐ", "1 (1 … 3) ᵐ", "1 ᵐ"]
    column = "{title: A, optimization: fast, metric: time, method: warm, "
    block = columns_of("rows: {workload: W}", f"{column}over: slow}}", f"{column}relative_to: baseline}}")
    row = made_table(tmp_path, block, timed_records(("small",))).rows[0]
    assert [cell.text for cell in row[1:]] == ["2.50× (2.50 … 2.50) ᵐ", "−50 % ᵐ"]
