"""The report of a timed suite, on records whose speed-ups, noise and bounds are known."""

from __future__ import annotations

import io
import math
import re
import statistics
from pathlib import Path

import pandas
import pytest
from reporting import MARKS, SVG, drawn, points, read_page, texts
from scipy import stats
from synthetic import claim
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

from harness.config.validation import ConfigError
from harness.records import Measurement, Record
from harness.report import write_report
from harness.report.comparison import compared, compile_cost
from harness.report.results import ResultIndex
from harness.report.spec import Pairing, load_spec
from harness.report.summary import summary
from harness.report.tables import Table, TableCell, failure_table
from harness.report.verdicts import verdict_table
from harness.report.write import effects_csv
from suites.kernels import report

PAIRED = "metric: time, method: warm, baseline: baseline, noise: baseline_again"
EFFECTS = f"""  - {{effects: pays, title: "On {{workload}}", workload: small, {PAIRED}, unit: auto,
     conditions: {{precision: Precision}}, extra_metrics: {{peak_memory: Peak}}}}
"""
SPEEDUPS = f"  - {{speedups: all, title: All, {PAIRED}}}\n"
BESIDE = """  - {own_table: alone_and_in_the_step, title: Both,
     where: {optimization: [baseline, fast, baseline_again]}}
"""
ROOFLINE = "  - {own_table: bounds, title: Bound}\n"
ROOFS = "  - {own_figure: roofs, title: Bound}\n"
LINES = """  - {lines: curve, title: Curve, where: {workload: [small, large]},
     x: {field: seq_len, title: Tokens}, y: {metric: time, method: warm, against: baseline, title: Speed-up}}
"""


@pytest.fixture(autouse=True)
def _own_workloads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernels suite's own tables and figures speak of the invented workloads."""
    alone = {"Softmax": ("small", "step"), "Other": ("small", "not_run")}
    monkeypatch.setattr(report, "ALONE_AND_IN_THE_STEP", alone)
    monkeypatch.setattr(report, "COPYING", ("not_run", "copying"))
    monkeypatch.setattr(report, "MULTIPLYING", {"fp32": ("multiplying",), "bf16": ("not_run",)})


def made_table(folder: Path, blocks: str, records: list[Record] | None = None) -> Table:
    findings = timed_findings(folder, blocks, records, suite="kernels")
    made = findings.table(findings.blocks[0])
    assert made is not None
    return made


def row_of_cells(made: Table, name: str) -> dict[str, TableCell]:
    row = next(row for row in made.rows if name in (cell.text for cell in row[:2]))
    return dict(zip(made.header, row, strict=True))


def row_of(made: Table, name: str) -> dict[str, str]:
    return {head: cell.text for head, cell in row_of_cells(made, name).items()}


def noise_text() -> str:
    """Return the interval of the baseline against itself: Student's t over equal processes."""
    logs = [-math.log(one) for one in LUCK]
    low, high = stats.t.interval(0.95, PROCESSES - 1, loc=statistics.mean(logs), scale=stats.sem(logs))
    return f"{math.exp(statistics.mean(logs)):.3f}× ({math.exp(low):.3f} … {math.exp(high):.3f}) ᵐ"


def test_each_variant_has_its_time_its_speed_up_and_what_it_does(tmp_path: Path) -> None:
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


def with_metric(records: list[Record], variant: str, metric: str, unit: str, value: float) -> None:
    """Add a measurement to every record of a variant on the small workload, in place."""
    method = "cold" if metric == "compile_time" else ""
    one = Measurement(metric, unit, "measured", method, (value,))
    for at, record in enumerate(records):
        if (record.cell.workload, record.cell.optimization) == ("small", variant):
            records[at] = record._replace(measurements=(*record.measurements, one))


def test_compile_time_has_its_break_even_where_a_variant_pays(tmp_path: Path) -> None:
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


def test_undecided_says_how_many_repeats_would_decide_and_that_the_machine_was_busy(tmp_path: Path) -> None:
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


def test_a_users_own_model_is_named_where_it_is_the_only_workload(tmp_path: Path) -> None:
    stated = {"source": "config.json of qwen2, given by the user", "hf_config": {"model_type": "qwen2"}}
    own = []
    for record in timed_records(("small",)):
        fields = {**record.cell.config["workload"], **stated}
        cell = record.cell._replace(config={**record.cell.config, "workload": fields})
        conditions = {**record.conditions, "model_code": "transformers 5: Qwen2ForCausalLM"}
        own.append(record._replace(cell=cell, conditions=conditions))
    text = made_table(tmp_path, EFFECTS, own).text
    assert text == f"The model is that of {stated['source']}, built by transformers 5: Qwen2ForCausalLM."
    assert "model" not in made_table(tmp_path, EFFECTS).text


def test_what_was_not_timed_or_cannot_run_has_its_reason_and_no_value(tmp_path: Path) -> None:
    made = made_table(tmp_path, EFFECTS)
    for variant, told in (("untimed", "never timed here"), ("absent", "needs a GPU")):
        row = row_of(made, variant)
        assert row["Effect"] == "unavailable"
        cell = row_of_cells(made, variant)["Time"]
        assert told in " ".join(cell.notes)


@pytest.mark.parametrize(
    ("blocks", "expected"), [(EFFECTS, 1), (SPEEDUPS, 5), (ROOFLINE, 5)], ids=["pays", "all", "bound"]
)
def test_slow_bf16_has_a_footnote_at_each_of_its_values(tmp_path: Path, blocks: str, expected: int) -> None:
    note = "matrix products run 50 times slower than in fp32 on this CPU"
    records = [
        r._replace(notes=(*r.notes, f"bf16: {note}")) if r.cell.optimization == "fast" else r
        for r in timed_records()
    ]
    assert note not in made_table(tmp_path, blocks).notes
    table = made_table(tmp_path, blocks, records)
    marked = [cell for row in table.rows for cell in row if note in cell.notes]
    assert len(marked) == expected
    assert {one.cell.split("-")[2] for one in marked} == {"fast"}


def test_warm_up_samples_are_in_no_value(tmp_path: Path) -> None:
    records = timed_records()
    quiet = [
        r._replace(measurements=tuple(m for m in r.measurements if "warm_up" not in m.metric))
        for r in records
    ]
    for blocks in (EFFECTS, SPEEDUPS, ROOFLINE):
        assert made_table(tmp_path, blocks, records) == made_table(tmp_path, blocks, quiet)


def test_without_the_baseline_again_nothing_is_called_a_difference(tmp_path: Path) -> None:
    records = [r for r in timed_records() if r.cell.optimization != "baseline_again"]
    made = made_table(tmp_path, EFFECTS, records)
    assert {row_of(made, variant)["Effect"] for variant in ("fast", "slow", "same")} == {"undecided"}
    findings = timed_findings(tmp_path, EFFECTS, records)
    answers = {card.question: card.answer for card in summary(findings)}
    assert answers["What pays, and by how much?"].startswith("On small, undecided over baseline: fast 2.00×")
    assert "not timed against itself" in answers["Can the numbers be trusted?"]


def test_a_table_of_speed_ups_has_a_row_per_workload_and_a_column_per_variant(tmp_path: Path) -> None:
    made = made_table(tmp_path, SPEEDUPS)
    assert [row[0].text for row in made.rows] == sorted(BASE_S)
    large = row_of(made, "large")
    assert large["fast"] == "▲ 2.00× (2.00 … 2.00) ᵐ"
    assert large["slow"] == "▼ 0.800× (0.800 … 0.800) ᵐ"
    assert large["same"] == "= 1.000× (1.000 … 1.000) ᵐ"
    assert large["baseline_again"] == noise_text()
    assert not {"absent", "untimed"} & set(made.header)
    assert made.text.endswith("Not timed on any of these: absent, untimed.")
    looks = {head: cell.look for head, cell in zip(made.header, made.rows[0], strict=True)}
    assert (looks["fast"], looks["slow"], looks["same"]) == ("good", "bad", "muted")
    assert "▲ pays" in made.text


def test_a_variant_without_a_time_on_one_workload_has_its_reason_there(tmp_path: Path) -> None:
    records = [r for r in timed_records() if (r.cell.workload, r.cell.optimization) != ("large", "slow")]
    records += [made_record("large", "slow", status="unavailable", reason="no such kernel", repeat=0)]
    made = made_table(tmp_path, SPEEDUPS, records)
    assert row_of(made, "large")["slow"] == "unavailable"
    assert made.notes == ("no such kernel",)


def test_an_isolated_operation_is_next_to_the_full_step(tmp_path: Path) -> None:
    records = timed_records(("small",))
    records += [timed_record("step", "baseline", repeat, 1.0) for repeat in range(PROCESSES)]
    records += [timed_record("step", "baseline_again", repeat, LUCK[repeat]) for repeat in range(PROCESSES)]
    records += [timed_record("step", "fast", repeat, 0.8) for repeat in range(PROCESSES)]
    made = made_table(tmp_path, BESIDE, records)
    assert made.header == ("Operation", "Optimization", "Isolated", "End to end")
    shown = {tuple(cell.text for cell in row[:2]): [cell.text for cell in row[2:]] for row in made.rows}
    assert shown["Softmax", "fast"] == ["▲ 2.00× (2.00 … 2.00) ᵐ", "▲ 1.25× (1.25 … 1.25) ᵐ"]
    assert shown["Other", "fast"][1] == "not run"
    assert "fast on not_run: no record" in made.notes
    assert {variant for _, variant in shown} == {"fast", "baseline_again"}


def test_the_bound_is_the_longer_of_copying_and_multiplying_at_the_rates_measured(tmp_path: Path) -> None:
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


def test_every_point_of_the_roofline_is_where_its_time_puts_it(tmp_path: Path) -> None:
    findings = timed_findings(tmp_path, ROOFS, suite="kernels")
    tree = drawn(findings, "roofs")
    places = {said.partition(":")[0]: place for said, place in points(tree).items()}
    assert len(places) == len(BASE_S) * (len(SHARES) + 1)
    rate_of = {w: FLOPS[w] / BASE_S[w] for w in BASE_S}
    scale = [
        (places["baseline, small"][1] - places[f"baseline, {w}"][1]) / math.log(rate_of[w] / rate_of["small"])
        for w in ("large", "step", "copying")
    ]
    assert scale == pytest.approx([scale[0]] * 3, rel=0.01)
    assert scale[0] > 0
    over = places["fast, small"][1] - places["baseline, small"][1]
    assert over == pytest.approx(-scale[0] * math.log(2), rel=0.02)
    words = texts(tree)
    assert any(word.startswith("fp32: ") for word in words)
    assert any(word.startswith("copy: ") for word in words)
    assert not any(word.startswith("bf16") for word in words)  # its rate was not measured


def test_a_slope_left_of_every_point_is_not_named(tmp_path: Path) -> None:
    """The workloads have 1,000 and 4,000 FLOP per byte; the roof bends at 50."""
    where = "where: {workload: [small, multiplying]}, title: Bound"
    blocks = ROOFS.replace("title: Bound", where)
    words = texts(drawn(timed_findings(tmp_path, blocks, suite="kernels"), "roofs"))
    assert any(word.startswith("fp32: ") for word in words)
    assert not any(word.startswith("copy: ") for word in words)


def test_without_a_measured_copy_no_bound_is_known(tmp_path: Path) -> None:
    made = made_table(tmp_path, ROOFLINE, timed_records(("small",)))
    assert all(row[5].text == "unknown" for row in made.rows)
    assert "the copy bandwidth was not measured in this run" in made.notes
    assert made.text == "No rate of this host was measured."


def test_a_curve_has_a_point_per_length_and_its_interval_as_a_whisker(tmp_path: Path) -> None:
    records = [r for r in timed_records() if r.cell.optimization in ("baseline", "baseline_again")]
    tree = drawn(timed_findings(tmp_path, LINES, records), "curve")
    places = points(tree)
    assert [said.partition(":")[0] for said in places] == ["baseline_again, 512", "baseline_again, 4,096"]
    paths = [one.attrib["d"] for one in tree.iter(f"{SVG}path") if one.attrib.get("stroke-width") == "2.2"]
    whiskers = [tuple(map(float, re.sub("[ML]", " ", path).split())) for path in paths]
    assert len(whiskers) == 2
    for (x1, y1, x2, y2), (x, y) in zip(whiskers, places.values(), strict=True):
        assert x1 == x2 == pytest.approx(x, abs=0.02)
        assert y1 > y > y2


def test_the_answers_at_the_top(tmp_path: Path) -> None:
    findings = timed_findings(tmp_path, EFFECTS)
    pays, believe = summary(findings)
    assert pays.answer == "On small, fast pays most: 2.00× (2.00 … 2.00) ᵐ the speed of baseline."
    off = statistics.mean(map(math.log, LUCK))
    shown = dict(believe.lines)
    assert shown["judged different"] == f"0 of {len(BASE_S)}"
    assert float(shown["worst"].split()[0]) == pytest.approx(100 * math.expm1(abs(off)), rel=0.06, abs=1e-4)
    assert f"in {PROCESSES} processes each" in believe.remark


def test_where_the_first_table_was_not_run_the_next_answers(tmp_path: Path) -> None:
    not_run = EFFECTS.replace("workload: small", "where: {seq_len: 7}")
    findings = timed_findings(tmp_path, not_run + SPEEDUPS, timed_records(("small", "large")))
    (pays, _) = summary(findings)
    assert pays.answer.startswith("On large, fast pays most: 2.00×")


def test_a_claimed_range_and_a_ratio_as_people_read_them(tmp_path: Path) -> None:
    held = claim(1.3, upper=2.5, relation="range", tolerance=0.0, unit="1", metric="time", method="warm",
                 workload="large", variant="fast", relative_to="baseline")  # fmt: skip
    findings = timed_findings(tmp_path, SPEEDUPS, claims=(held,))
    made = verdict_table(findings.spec.claims, findings.claims, findings.verdicts)
    assert [cell.text for cell in made.rows[0]][1:] == [
        "1.30× … 2.50×", "only", "2.00× ᵐ", "–", "holds",
    ]  # fmt: skip
    page = write_report(tmp_path / "out", findings).read_text()
    assert "1.30× … 2.50×" in page
    assert "2.00× ᵐ" in page


def test_repeats_that_failed_alike_and_workloads_a_variant_cannot_run_are_one_row(tmp_path: Path) -> None:
    records = timed_records(("small", "step"))
    told = "not tried: slow ran out of memory on small, which is smaller (seq_len 512)"
    records += [made_record("large", "slow", status="out_of_memory", reason=told, repeat=i) for i in range(2)]
    records.append(made_record("large", "slow", status="crashed", reason="signal 11", repeat=2))
    findings = timed_findings(tmp_path, SPEEDUPS, records)
    made_of = failure_table(findings.spec, findings.index)
    assert [tuple(cell.text for cell in row) for row in made_of.rows] == [
        ("large", "slow", "out of memory", f"{told} (2 repeats)"),
        ("large", "slow", "crashed", "signal 11"),
        ("small; step", "absent", "unavailable", "needs a GPU"),
    ]


def test_the_whole_report_is_written_and_every_value_marked(tmp_path: Path) -> None:
    blocks = EFFECTS + SPEEDUPS + BESIDE + ROOFLINE + LINES
    findings = timed_findings(tmp_path, blocks, suite="kernels")
    page = write_report(tmp_path / "out", findings)
    reader = read_page(page.read_text())
    assert reader.open == []
    inner = {link[1:] for link in reader.links if link.startswith("#")}
    assert inner <= set(reader.ids)
    for one in findings.blocks:
        for row in getattr(findings.table(one), "rows", ()):
            for cell in row:
                assert not cell.cell or cell.look in ("bad",) or cell.text[-1] in MARKS, cell


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ("{speedups: a, method: warm}", "(a): Object missing required field `title`"),
        ("{lines: a, title: b, x: {title: t}, y: {metric: m, title: t}}",
         "(a): expected either metric or field - at `$.x`"),
        ("{lines: a, title: b, x: {field: f, metric: m, title: t}, y: {metric: m, title: t}}",
         "(a): expected either metric or field - at `$.x`"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_timed_block_is_one_line(block: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(f"title: t\nquestion: q\nblocks:\n  - {block}\n")
    with pytest.raises(ConfigError) as error:
        load_spec("s", folder=tmp_path)
    assert "\n" not in str(error.value)
    assert told in str(error.value)


def test_a_speed_up_under_a_held_down_clock_is_marked() -> None:
    records = timed_records(("small",))
    hot = [
        one._replace(
            measurements=(*one.measurements, Measurement("throttled", "1", "measured", "nvml", (0.0, 1.0)))
        )
        if one.cell.optimization == "fast" and one.cell.repeat == 2
        else one
        for one in records
    ]
    pairing = Pairing("time", "warm", "baseline", "baseline_again")
    for given, told in ((records, False), (hot, True)):
        found = compared(ResultIndex(given, {}), "small", "fast", pairing)
        assert found is not None
        assert ("throttled" in found.text) is told


def test_every_comparison_is_a_row_of_effects_csv(tmp_path: Path) -> None:
    table = pandas.read_csv(io.StringIO(effects_csv(timed_findings(tmp_path, EFFECTS + SPEEDUPS))))
    rows = {(row.workload, row.variant): row for row in table.itertuples()}
    assert len(rows) == len(table) == len(BASE_S) * (len(SHARES) - 1 + len(["baseline_again"]))
    for (_, variant), row in rows.items():
        if variant != "baseline_again":
            assert row.ratio == pytest.approx(SHARES[variant])
            assert row.value / row.baseline_value == pytest.approx(SHARES[variant])
    assert rows["large", "fast"].effect == "pays"
    assert rows["large", "slow"].effect == "costs"
    assert effects_csv(timed_findings(tmp_path, LINES)) == ""


def test_a_range_is_that_of_the_statistic_of_single_repeats(tmp_path: Path) -> None:
    """By hand: two repeats with medians of 2 and 4 ms, least 1 and 3 ms, and a metric that never differs."""
    samples = ((1e-3, 2e-3, 3e-3), (3e-3, 4e-3, 5e-3))
    records = [
        made_record(
            "small",
            "fast",
            {("time", ""): ("s", "measured", values), ("same", ""): ("s", "measured", (1e-3,))},
            repeat=repeat,
        )
        for repeat, values in enumerate(samples)
    ]
    column = "{title: %s, metric: %s, unit: ms, statistic: %s, range: true}"
    columns = ", ".join(
        column % one for one in (("A", "time", "median"), ("B", "time", "min"), ("C", "same", "median"))
    )
    rows = "rows: {optimization: Variant}, workload: small"
    blocks = f"  - {{table: t, title: T, {rows}, columns: [{columns}]}}\n"
    findings = timed_findings(tmp_path, blocks, records)
    table = findings.table(findings.blocks[0])
    assert table is not None
    assert [cell.text for cell in table.rows[0][1:]] == [
        "3 (2 … 4) ᵐ",
        "1 (1 … 3) ᵐ",
        "1 ᵐ",
    ]


def test_a_column_shows_the_speed_up_over_any_variant(tmp_path: Path) -> None:
    column = "{title: A, optimization: fast, metric: time, method: warm, relative_to: %s%s}"
    columns = ", ".join(column % one for one in (("slow", ", speed_up: true"), ("baseline", "")))
    blocks = (
        "  - {table: t, title: T, rows: {workload: Workload}, where: {workload: small}, "
        f"columns: [{columns}]}}\n"
    )
    findings = timed_findings(tmp_path, blocks, timed_records(("small",)))
    table = findings.table(findings.blocks[0])
    assert table is not None
    assert [cell.text for cell in table.rows[0][1:]] == ["2.50× (2.50 … 2.50) ᵐ", "−50 % ᵐ"]


def test_the_worst_single_sample_is_shown_where_cells_have_several(tmp_path: Path) -> None:
    def of(variant: str, *errors: float) -> Record:
        return made_record("small", variant, {("error", "model"): ("1", "simulated", errors)})

    blocks = "  - {errors: e, title: E, metric: error}\n"
    several = timed_findings(tmp_path, blocks, [of("fast", 0.01, -0.3, 0.02), of("slow", 0.1)])
    table = several.table(several.blocks[0])
    assert table is not None
    assert dict(zip(table.header, (cell.text for cell in table.rows[0]), strict=True)) == {
        "Method": "model",
        "Cells": "2",
        "Median |error|": "5.5 % ˢ",
        "Worst error": "+10 % ˢ",
        "Worst at": "slow, small",
        "Underestimates in": "0 %",
        "Worst underestimate": "–",
        "Worst single sample": "−30 % ˢ",
    }
    single = timed_findings(tmp_path, blocks, [of("fast", 0.01), of("slow", 0.1)])
    table = single.table(single.blocks[0])
    assert table is not None
    assert table.header[-1] == "Worst underestimate"
