"""Efficiencies and their harmonic mean, by hand; the cascade draws those."""

import pytest
from synthetic import made

from harness.report.figure import drawing_style
from harness.report.results import ResultIndex
from harness.report.spec import OwnFigureBlock, OwnTableBlock, Spec, load_spec
from suites.portability.report import (
    application,
    architectural,
    cascade,
    harmonic_mean,
    performance_portability,
)

TIMES = {
    "baseline": {"a": 2.0, "b": 4.0, "c": 1.0},
    "fast": {"a": 1.0, "b": 1.0, "c": 4.0},
    "partial": {"a": 1.5},
    "baseline_again": {"a": 0.1},  # never counts as the best
}


def index():
    records = []
    for variant, times in TIMES.items():
        for workload, time in times.items():
            figures = {("time", "warm"): ("s", "measured", (time,))}
            if variant == "baseline" and workload != "c":
                figures["flops", ""] = ("1", "calculated", (8.0,))
                figures["matmul_rate", ""] = ("FLOP/s", "measured", (16.0,))
            records.append(made(workload, variant, figures))
    records.append(made("b", "partial", {}, status="wrong_result", reason="output is off"))
    return ResultIndex(records, spec().ranking)


def spec() -> Spec:
    return load_spec("portability")


TABLE = OwnTableBlock(id="portable", title="Portable", function="performance_portability")
FIGURE = OwnFigureBlock(id="portable", title="Portable", function="cascade")


@pytest.mark.parametrize(
    ("efficiencies", "mean"), [([1.0], 1), ([0.5, 1.0], 2 / 3), ([1.0, 0.0], 0), ([0.25, 0.25], 0.25)]
)
def test_the_harmonic_mean_is_that_by_hand_and_0_where_one_fails(efficiencies, mean):
    assert harmonic_mean(efficiencies) == pytest.approx(mean)
    with pytest.raises(ValueError, match="at least one platform"):
        harmonic_mean([])


def test_application_efficiency_is_the_best_time_over_ones_own():
    found = application(index(), TABLE)
    assert found == {
        "baseline": {"a": 0.5, "b": 0.25, "c": 1.0},
        "fast": {"a": 1.0, "b": 1.0, "c": 0.25},
        "partial": {"a": pytest.approx(2 / 3), "b": 0.0, "c": 0.0},
    }


def test_architectural_efficiency_is_the_rate_over_the_devices_where_there_are_products():
    found = architectural(index(), TABLE)
    assert found["fast"] == {"a": 0.5, "b": 0.5}
    assert found["baseline"] == {"a": 0.25, "b": 0.125}
    assert found["partial"] == {"a": pytest.approx(1 / 3), "b": 0.0}


def test_the_table_has_both_means_and_how_many_platforms_run():
    made_table = performance_portability(TABLE, spec(), index())
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in made_table.rows}
    assert rows["fast"][0] == "3 of 3"
    assert rows["fast"][1].startswith("50 %")  # 3 / (1 + 1 + 4)
    assert rows["fast"][2].startswith("50 %")
    assert rows["partial"][:2] == ["1 of 3", "0 ᵐ"]
    assert next(iter(rows)) == "fast"


def test_the_cascade_ends_where_support_ends():
    with drawing_style("portable"):
        figure = cascade(FIGURE, spec(), index())
    assert figure is not None
    assert "fast: PP 0.50" in figure.svg
    assert "partial: PP 0.00" in figure.svg
    assert figure.svg.count("of the best") == 3 + 3 + 1
