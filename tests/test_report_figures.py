"""Figures: drawn to scale, of the figures recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reporting import found, read_page, recorded, shapes, tip
from synthetic import memory_records

from harness.report import write_report
from harness.report.svg import COLOURS, log_ticks, round_ticks, symmetric


def test_bars_are_as_long_as_their_figures() -> None:
    records = memory_records()
    rects = [r for r in shapes(found(records), "by_kind", "rect") if " · " in tip(r)]
    scale = set()
    for rect in rects:
        variant, _, rest = tip(rect).partition(" · ")
        if variant == "FSDP2":
            kind = rest.partition(":")[0].lower().replace(" ", "_")
            size_B = recorded(records, "llama_7b", "fsdp2", f"peak_memory/{kind}", "fake_step")
            if size_B > 1e9:
                scale.add(round(float(rect.attrib["width"]) / size_B * 1e9, 1))
    assert len(scale) == 1


def test_an_arm_without_one_of_the_kinds_says_so_in_the_figure() -> None:
    records = [
        r._replace(measurements=tuple(m for m in r.measurements if m.metric != "peak_memory/temporaries"))
        for r in memory_records()
    ]
    sums = [tip(text) for text in shapes(found(records), "by_kind", "text") if tip(text).endswith("+ ?")]
    assert len(sums) == 8


def test_lines_rise_where_their_figures_rise() -> None:
    findings = found()
    for line in shapes(findings, "tokens_by_size", "polyline"):
        points = [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
        assert len(points) == 3
        assert points == sorted(points)
        assert [y for _, y in points] == sorted((y for _, y in points), reverse=True)


def test_points_of_the_spread_lie_on_the_side_of_their_sign() -> None:
    drawn = shapes(found(), "accuracy_spread", "line")
    zero = next(float(line.attrib["x1"]) for line in drawn if line.attrib["stroke"] == COLOURS["ink"])
    dots = shapes(found(), "accuracy_spread", "circle")
    assert len(dots) == 2 * 8 * 3
    for dot in dots:
        assert (float(dot.attrib["cx"]) > zero) == (": +" in tip(dot))


@given(st.floats(1e-3, 1e12))
def test_ticks_are_few_and_within(high: float) -> None:
    ticks = round_ticks(high)
    assert 2 <= len(ticks) <= 8
    assert ticks[0] == 0
    assert ticks[-1] <= high * 1.00001


@given(st.floats(1e-3, 1e9), st.floats(2.0, 1e5))
def test_logarithmic_ticks_are_few_and_within(low: float, span: float) -> None:
    ticks = log_ticks(low, low * span)
    assert 1 <= len(ticks) <= 12
    assert all(low <= tick <= low * span for tick in ticks)


@given(st.floats(0.01, 100), st.floats(-1, 1), st.floats(-1, 1))
def test_the_symmetric_axis_keeps_order_and_zero(reach: float, a: float, b: float) -> None:
    place = symmetric(reach, 0.001, 0, 100)
    low, high = sorted((a * reach, b * reach))
    assert place(low) <= place(high) + 1e-9
    assert place(0.0) == pytest.approx(50)
    assert -1e-6 <= place(low) <= 100 + 1e-6


def test_nothing_recorded_draws_nothing_and_says_so(tmp_path: Path) -> None:
    records = [r._replace(status="crashed", reason="all of them", measurements=()) for r in memory_records()]
    write_report(tmp_path, found(records))
    text = (tmp_path / "report.md").read_text()
    assert "Nothing was recorded for this figure." in text
    assert "Nothing was recorded for this table." in text
    assert not list((tmp_path / "figures").iterdir())


def test_a_name_in_a_figure_is_text_and_never_markup(tmp_path: Path) -> None:
    name = 'a <b>&"@ink'
    records = [
        r._replace(cell=r.cell._replace(optimization=name)) if r.cell.optimization == "fsdp2" else r
        for r in memory_records()
    ]
    assert name in [tip(text) for text in shapes(found(records), "by_kind", "text")]
    assert read_page(write_report(tmp_path, found(records)).read_text()).open == []
