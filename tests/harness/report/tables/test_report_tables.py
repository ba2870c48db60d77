"""Tables: every figure as recorded and marked, none where there is none."""

from __future__ import annotations

import json
import re

import pytest
from reporting import MARKS, block, drawn, found, made_table, recorded, tips
from synthetic import made, memory_records

from harness.records import Measurement, Record, Status
from harness.report.block_tables import error_rows
from harness.report.comparison import compared
from harness.report.results import ResultIndex
from harness.report.spec import Pairing
from harness.report.summary import summary, wrong_results
from harness.report.tables import Table, failure_table
from harness.report.write import benchmark_json


def row_of(made: Table, row: int) -> dict[str, str]:
    return dict(zip(made.header, (cell.text for cell in made.rows[row]), strict=True))


def test_table_1_shows_the_papers_figures_next_to_the_records() -> None:
    records = memory_records()
    made = made_table("table_1", records)
    row = next(row for row in made.rows if row[0].text.startswith("7B"))
    shown = dict(zip(made.header, (cell.text for cell in row), strict=True))
    assert shown["The paper"] == "280 (4)"
    peak_B = recorded(records, "llama_7b", "mixed_flash", "peak_memory", "fake_step")
    assert shown["Full step, flash"] == f"{peak_B / 1e9:.0f} ˢ"
    assert shown["40 B/param"].endswith("(4) ᶜ")
    assert [row[0].text for row in made.rows] == ["1B (TinyLlama)", "7B (Llama-2)", "175B (GPT-3)"]


def test_every_value_from_a_record_carries_its_origin() -> None:
    findings = found()
    for one in findings.blocks:
        made = findings.table(one)
        for row in made.rows if made else ():
            for cell in row:
                if cell.cell and not cell.look and made:
                    assert cell.text[-1] in MARKS, (made.id, cell)


def test_a_method_that_was_not_recorded_is_a_footnote_and_no_number() -> None:
    made = made_table("table_1")
    at = made.header.index("DeepSpeed, ZeRO-2")
    for row in made.rows:
        assert row[at].text == "–"
        assert len(row[at].notes) == 1
        assert row[at].cell == ""
    assert "DeepSpeed, ZeRO-2: no value was recorded" in made.notes
    assert len(set(made.notes)) == len(made.notes) < len(made.header)


def test_a_column_that_one_row_lacks_has_one_footnote_with_its_heading() -> None:
    records = [
        r._replace(measurements=tuple(m for m in r.measurements if m.method != "fake_step"))
        if r.cell.workload in ("llama_7b", "gpt3_175b")
        else r
        for r in memory_records()
    ]
    made = made_table("table_1", records)
    at = made.header.index("Full step, flash")
    absent, recorded_too = [row[at].text for row in made.rows[1:]], made.rows[0][at].text
    assert absent[0] == absent[1]
    assert recorded_too.endswith(" ˢ")
    assert sum(note == "Full step, flash: no value was recorded" for note in made.notes) == 1
    assert not any("fake_step" in note or "mixed_flash" in note for note in made.notes)


def test_a_remark_of_the_suite_is_the_reason_in_the_footnote() -> None:
    told = "its estimator does not speak of this"
    records = [r._replace(notes=(f"deepspeed_zero2: {told}",)) for r in memory_records()]
    assert told in made_table("table_1", records).notes


@pytest.mark.parametrize("status", [status for status in Status if status != Status.OK])
def test_a_cell_that_did_not_end_well_is_named_with_its_reason_wherever_it_is_missing(status: Status) -> None:
    records = memory_records()
    at = next(i for i, r in enumerate(records) if r.cell.id == "memory-llama_7b-fsdp2-0")
    records[at] = records[at]._replace(status=str(status), reason="this is why", measurements=())
    for id in ("ranks", "pays", "kinds"):
        made = made_table(id, records)
        words = [cell.text for row in made.rows for cell in row if str(status).replace("_", " ") in cell.text]
        assert words, id
        assert all(re.fullmatch(r"[a-z ]+", word) for word in words)
        assert any("this is why" in note for note in made.notes)
    findings = found(records)
    failures = failure_table(findings.spec, findings.index)
    assert len(failures.rows) == sum(record.status != "ok" for record in records)
    assert any("this is why" in cell.text for row in failures.rows for cell in row)


def test_a_wrong_result_shows_no_value() -> None:
    records = [r._replace(status="wrong_result", reason="loss differs") for r in memory_records()]
    assert ResultIndex(records, {}).table == {}
    assert row_of(made_table("pays", records), 0)["Effect"] == "unavailable"


def test_what_was_wrong_in_one_process_of_three_shows_no_value_and_says_in_how_many() -> None:
    figures = {("time", "warm"): ("s", "measured", (1.0, 2.0))}
    ways = [("ok", ""), ("wrong_result", "a race"), ("ok", "")]
    records = [
        made("small", "racy", figures, repeat=i, status=status, reason=reason)
        for i, (status, reason) in enumerate(ways)
    ]
    index = ResultIndex([made("small", "baseline", figures), *records], {})
    assert [one.optimization for one in index.table.values()] == ["baseline"]
    told = index.reason("small", "racy", "time", "warm")
    assert told == ("wrong result", "racy on small: wrong result: a race")
    assert [one["name"] for one in json.loads(benchmark_json("made", index, {}))["benchmarks"]] == [
        "small[baseline]"
    ]
    assert wrong_results(records, lambda _, name: name) == ["racy on small (1 of 3 processes): a race"]
    assert wrong_results(records[1:2], lambda _, name: name) == ["racy on small: a race"]
    again = records[2]._replace(status="wrong_result", reason="another")
    assert wrong_results([*records[:2], again], lambda _, name: name) == [
        "racy on small (2 of 3 processes): a race (and 1 other reason)"
    ]


def test_what_is_calculated_of_code_stays_where_another_process_was_wrong() -> None:
    figures = {
        ("registers", "sm_90"): ("1", "calculated", (32.0,)),
        ("time", "warm"): ("s", "measured", (1.0,)),
    }
    records = [
        made("small", "racy", figures, repeat=i, status=status)
        for i, status in enumerate(("ok", "wrong_result"))
    ]
    assert [(one.metric, one.median) for one in ResultIndex(records, {}).table.values()] == [
        ("registers", 32.0)
    ]
    assert ResultIndex(records[1:], {}).table == {}


def test_a_new_variant_is_in_the_tables_without_an_edit_of_the_report() -> None:
    records = memory_records()
    records += [
        r._replace(cell=r.cell._replace(id=f"new-{r.cell.id}", optimization="brand_new"))
        for r in records
        if r.cell.optimization == "fsdp2"
    ]
    assert "brand_new" in [row[0].text for row in made_table("pays", records).rows]
    assert "brand_new" in [row[0].text for row in made_table("kinds", records).rows]
    assert "brand_new" in made_table("ranks", records).header


def test_errors_against_pandas() -> None:
    import pandas

    records = memory_records()
    rows = [
        (one.method, value)
        for r in records
        for one in r.measurements
        if one.metric == "relative_error" and not r.cell.optimization.startswith("fsdp2")
        for value in one.samples
    ]
    frame = pandas.DataFrame(rows, columns=["method", "error"])
    findings = found(records)
    for row in error_rows(block(findings, "accuracy"), findings.index):
        errors = frame[frame.method == row.method].error
        assert row.cells == len(errors)
        assert row.median == pytest.approx(errors.abs().median())
        assert row.worst == errors[errors.abs().idxmax()]
        assert row.under == pytest.approx((errors < 0).mean())
        assert row.lowest == errors.min()


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.5, "pays"), (2.0, "costs"), (1.0, "no difference"), (1.004, "no difference"), (1.006, "costs")],
)
def test_what_an_optimization_does_to_bytes(share: float, expected: str) -> None:
    def of(variant: str, size_B: float) -> Record:
        return made("small", variant, {("peak_memory", ""): ("B", "measured", (size_B,))})

    index = ResultIndex([of("baseline", 1e9), of("other", share * 1e9)], {})
    pairing = Pairing("peak_memory", "", "baseline", equal_within=0.005)
    comparison = compared(index, "small", "other", pairing)
    assert comparison is not None
    assert comparison.effect == expected
    assert comparison.ratio.basis == "single"


@pytest.mark.parametrize(
    ("ours", "base", "expected"),
    [
        ((0.8, 0.9), (1.0, 1.1, 1.2), "pays"),
        ((0.8, 1.3), (1.0, 1.1, 1.2), "undecided"),
        ((1.3, 1.4), (1.0, 1.1, 1.2), "costs"),
    ],
)
def test_samples_that_do_not_pair_are_judged_by_their_ends(
    ours: tuple[float, ...], base: tuple[float, ...], expected: str
) -> None:
    def of(variant: str, samples: tuple[float, ...]) -> Record:
        return made("small", variant, {("peak_memory", ""): ("B", "measured", samples)})

    index = ResultIndex([of("baseline", base), of("other", ours)], {})
    comparison = compared(index, "small", "other", Pairing("peak_memory", "", "baseline"))
    assert comparison is not None
    assert (comparison.effect, comparison.ratio.basis) == (expected, "ranges")


def test_a_change_without_an_interval_says_why() -> None:
    made_of = made_table("pays")
    assert any("no interval" in note for note in made_of.notes)
    at = made_of.header.index("Effect")
    changed = [row[at - 1] for row in made_of.rows if row[at].text in ("pays", "costs")]
    assert changed
    assert all(len(cell.notes) == 1 for cell in changed)


def test_the_change_against_the_baseline() -> None:
    records = memory_records()
    made = made_table("pays", records)
    base = recorded(records, "llama_7b", "baseline", "peak_memory", "fake_step")
    ours = recorded(records, "llama_7b", "mixed_flash", "peak_memory", "fake_step")
    row = next(row for row in made.rows if row[0].text == "Mixed + flash")
    shown = dict(zip(made.header, (cell.text for cell in row), strict=True))
    assert shown["Change"] == f"−{100 * (1 - ours / base):.1f} % ˢ"
    assert shown["Effect"] == "pays"


def test_kinds_and_the_change_of_their_whole() -> None:
    records = memory_records()
    made = made_table("kinds", records)
    row = next(row for row in made.rows if row[0].text == "Mixed + flash")
    shown = dict(zip(made.header, (cell.text for cell in row), strict=True))
    base = recorded(records, "llama_7b", "baseline", "peak_memory", "fake_step")
    ours = recorded(records, "llama_7b", "mixed_flash", "peak_memory", "fake_step")
    activations = recorded(records, "llama_7b", "mixed_flash", "peak_memory/activations", "fake_step")
    assert shown["Activations"] == f"{activations / 1e9:.1f} ˢ"
    assert shown["Against baseline"] == f"−{100 * (1 - ours / base):.1f} % ˢ"


def test_the_conditions_next_to_each_variant_and_in_the_answer_at_the_top() -> None:
    records = memory_records()
    records = [
        r._replace(conditions={"ranks": "4"}) if r.cell.optimization == "fsdp2_mixed_checkpointed" else r
        for r in records
    ]
    made = made_table("pays", records)
    assert made.header[1] == "Ranks"
    assert [row[1].text for row in made.rows if row[0].text.startswith("FSDP2 +")] == ["4"]
    findings = found(records)
    assert "FSDP2 + mixed + checkpointing on 4 ranks: peak memory" in summary(findings)[0].answer
    assert "FSDP2 + mixed + checkpointing pays most" not in summary(findings)[0].answer


def test_a_run_of_another_model_is_reported_on_that_model() -> None:
    own = [r for r in memory_records() if r.cell.workload == "llama_1b"]
    own = [r._replace(cell=r.cell._replace(workload="my_model")) for r in own]
    made = made_table("pays", own)
    assert made.title.endswith("my_model")
    assert row_of(made, 0)["Peak memory, GiB"][-1] in MARKS
    assert [row[0].text for row in made_table("table_1", own).rows] == ["my_model"]
    assert len(tips(drawn(found(own), "by_kind"))) > 8


def test_a_remark_on_a_value_is_its_footnote() -> None:
    told = "another shape of MLP"
    records = [
        r._replace(
            notes=(f"korthikanti: {told}", "korthikanti_2: of another method"),
            measurements=(
                *r.measurements,
                Measurement("peak_memory", "B", "calculated", "korthikanti", (1e10,)),
            ),
        )
        for r in memory_records()
    ]
    made = made_table("table_1", records)
    cell = made.rows[0][made.header.index("Korthikanti et al.")]
    assert cell.notes == (told,)
    assert not any("korthikanti_2" in note for note in made.notes)


def test_names_in_the_reports_order_then_by_their_numbers() -> None:
    records = memory_records()
    index = ResultIndex(records, {"workload": ["gpt3_175b"]})
    assert index.names("workload", {}) == ["gpt3_175b", "gpt_5m", "gpt_60m_wide", "llama_1b", "llama_7b"]
    assert index.names("workload", {"measurable": True, "workload": ["gpt*", "!*wide"]}) == ["gpt_5m"]
