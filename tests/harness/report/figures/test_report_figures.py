"""Figures: drawn to scale, of the values recorded, readable in light and dark, each point with its record."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reporting import SVG, drawn, found, points, read_page, recorded, texts, tip, tips
from synthetic import made, memory_records
from timed import timed_findings

from harness.records import Record
from harness.report import write_report
from harness.report.axes import PALETTE, linear_ticks, log_ticks, tick_text
from harness.report.figure import spaced

IDS = ("by_kind", "effects", "tokens_by_size", "bytes_per_parameter", "accuracy_spread")


def test_bars_are_as_long_as_their_values_and_the_shortest_comes_first() -> None:
    records = memory_records()
    tree = drawn(found(records), "by_kind")
    scale, totals = set(), []
    for path in tree.iter(f"{SVG}path"):
        name, _, rest = tip(path).partition(" · ")
        if not rest:
            continue
        places = [float(one) for one in re.sub("[MLz]", " ", path.attrib["d"]).split()]
        kind = rest.partition(":")[0].lower().replace(" ", "_")
        if name == "FSDP2":
            size_B = recorded(records, "llama_7b", "fsdp2", f"peak_memory/{kind}", "fake_step")
            if size_B > 1e9:
                scale.add(round((max(places[::2]) - min(places[::2])) / size_B * 1e10, 1))
        totals.append((sum(places[1::2]), max(places[::2])))
    assert len(scale) == 1
    ends: dict[float, float] = {}
    for y, x in totals:
        ends[round(y)] = max(x, ends.get(round(y), 0.0))
    assert [ends[y] for y in sorted(ends)] == sorted(ends.values())


def test_a_variant_without_one_of_the_kinds_is_marked_in_the_figure() -> None:
    records = [
        r._replace(measurements=tuple(m for m in r.measurements if m.metric != "peak_memory/temporaries"))
        for r in memory_records()
    ]
    assert sum(text.endswith("+ ?") for text in texts(drawn(found(records), "by_kind"))) == 8


def test_lines_rise_where_their_values_rise() -> None:
    places = points(drawn(found(), "tokens_by_size"))
    assert len(places) == 9
    for name in ("Mixed + flash, ", "Mixed precision (autocast), "):
        line = [place for said, place in places.items() if said.startswith(name)]
        assert line == sorted(line)
        assert [y for _, y in line] == sorted((y for _, y in line), reverse=True)


def test_points_of_the_error_strip_are_on_the_side_of_their_sign() -> None:
    tree = drawn(found(), "accuracy_spread")
    shapes = [use for use in tree.iter(f"{SVG}use") if use.find(f"{SVG}title") is not None]
    assert len(shapes) == 2 * 8 * 3
    above = [float(one.attrib["x"]) for one in shapes if ": +" in tip(one)]
    below = [float(one.attrib["x"]) for one in shapes if ": −" in tip(one)]
    assert min(above) > max(below)


@pytest.mark.parametrize("id", IDS)
def test_every_point_names_its_record_and_leads_to_it(id: str) -> None:
    findings = found()
    tree = drawn(findings, id)
    links = [link.attrib["href"] for link in tree.iter(f"{SVG}a")]
    assert len(links) == len(tips(tree)) > 0
    assert {link.removeprefix("#r-") for link in links} <= {record.cell.id for record in findings.records}


@pytest.mark.parametrize("id", IDS)
def test_every_colour_of_a_figure_has_its_counterpart_in_the_dark(id: str) -> None:
    findings = found()
    tree = drawn(findings, id)
    colours = {one.attrib[name] for one in tree.iter() for name in ("fill", "stroke") if name in one.attrib}
    assert colours - {"none"} <= {light for light, _ in PALETTE.values()}
    figure = findings.figure(next(one for one in findings.blocks if one.id == id))
    assert figure is not None
    assert all(f'[fill="{light}"]{{fill:{dark}}}' in figure.file() for light, dark in PALETTE.values())
    assert 'href="../report.html#r-' in figure.file()


@pytest.mark.parametrize("id", IDS)
def test_the_names_in_a_figure_are_text_and_its_ids_are_its_own(id: str) -> None:
    tree = drawn(found(), id)
    assert len(texts(tree)) > 5
    ids = [one.attrib["id"] for one in tree.iter() if "id" in one.attrib]
    assert len(ids) == len(set(ids))
    referred = {one.attrib["href"][1:] for one in tree.iter(f"{SVG}use")}
    assert referred <= set(ids)


def test_two_figures_of_a_page_share_no_id_unless_it_is_the_same_shape(tmp_path: Path) -> None:
    page = read_page(write_report(tmp_path, found()).read_text())
    assert len(page.ids) == len(set(page.ids))


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (48e6, "B", "48 MB"),
        (0.25, "s", "250 ms"),
        (100.0, "s", "100 s"),
        (1.5, "x", "1.5×"),
        (0.01, "%", "+1 %"),
        (-0.1, "%", "−10 %"),
        (0.0, "B", "0"),
        (4096.0, "1", "4,096"),
        (7e9, "1", "7B"),
        (20e6, "1", "20M"),
        (0.5, "1", "0.5"),
        (3e11, "FLOP/s", "300 GFLOP/s"),
    ],
)
def test_a_tick_is_written_as_engineers_write_it(value: float, unit: str, expected: str) -> None:
    assert tick_text(value, unit) == expected


@given(st.floats(1e-3, 1e12), st.floats(0.01, 1e3))
def test_linear_ticks_are_few_and_within(low: float, span: float) -> None:
    ticks = linear_ticks(low, low * (1 + span))
    assert 2 <= len(ticks) <= 9
    assert all(low * (1 - 1e-6) <= tick <= low * (1 + span) * (1 + 1e-6) for tick in ticks)


@given(st.floats(1e-3, 1e9), st.floats(1.05, 1e6))
def test_logarithmic_ticks_are_never_alone(low: float, span: float) -> None:
    ticks = log_ticks(low, low * span)
    assert 2 <= len(ticks) <= 12
    assert all(low * (1 - 1e-6) <= tick <= low * span * (1 + 1e-6) for tick in ticks)


@given(st.lists(st.floats(0, 300), min_size=1, max_size=12))
def test_labels_are_apart_and_in_their_order(wanted: list[float]) -> None:
    placed = spaced(sorted(wanted), 15, 0, 300)
    assert all(right - left >= 15 - 1e-6 for left, right in pairwise(placed))
    if len(wanted) * 15 <= 300:
        assert -1e-6 <= placed[0] <= placed[-1] <= 300 + 15 * len(wanted)


def test_a_label_with_room_stays_where_its_line_ends() -> None:
    assert spaced([10, 100, 250], 15, 0, 300) == [10, 100, 250]


EFFECTS = (
    "  - {effect_plot: e, title: E, metric: time, method: warm, baseline: baseline, "
    "noise: baseline_again, where: {workload: small}}\n"
)


def test_ratios_are_sorted_with_the_best_at_the_top_and_to_the_right(tmp_path: Path) -> None:
    tree = drawn(timed_findings(tmp_path, EFFECTS), "e")
    places = {said.partition(":")[0]: place for said, place in points(tree).items()}
    assert sorted(places, key=lambda name: places[name][1]) == ["fast", "same", "slow"]
    (fast, _), (same, _), (slow, _) = (places[name] for name in ("fast", "same", "slow"))
    assert (fast - same) / (same - slow) == pytest.approx(math.log(2) / math.log(1.25), rel=0.02)
    assert any("noise of the baseline" in text for text in texts(tree))
    assert "fast: 2.00× (2.00 … 2.00) ᵐ pays" in tips(tree)


def test_rows_of_one_variant_are_named_by_their_workload_alone(tmp_path: Path) -> None:
    """Where all rows are of one variant, its name before each says nothing."""

    def record(workload: str, variant: str, time_s: float) -> Record:
        return made(workload, variant, {("time", "warm"): ("s", "measured", (time_s,))})

    pairs = [(name, variant) for name in ("small", "large") for variant in ("baseline", "fast")]
    block = EFFECTS.replace("where: {workload: small}", 'where: {workload: ["small", "large"]}')
    for name in ("one", "both"):
        (tmp_path / name).mkdir()
    one = timed_findings(tmp_path / "one", block, [record(*pair, 1.0 + len(pair[1])) for pair in pairs])
    assert {said.partition(":")[0] for said in points(drawn(one, "e"))} == {"small", "large"}
    more = [*pairs, ("small", "slow"), ("large", "slow")]
    both = timed_findings(tmp_path / "both", block, [record(*pair, 1.0 + len(pair[1])) for pair in more])
    assert {said.partition(":")[0] for said in points(drawn(both, "e"))} == {
        f"{variant}, {name}" for name in ("small", "large") for variant in ("fast", "slow")
    }


def test_nothing_recorded_draws_nothing_and_the_report_states_it(tmp_path: Path) -> None:
    records = [r._replace(status="crashed", reason="all of them", measurements=()) for r in memory_records()]
    write_report(tmp_path, found(records))
    text = (tmp_path / "report.md").read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("Without a value in this run: "))
    findings = found(records)
    for one in findings.blocks:
        if findings.table(one) is None:
            assert one.title in line
            assert f"# {one.title}" not in text
    assert not list((tmp_path / "figures").iterdir())


def test_a_name_in_a_figure_is_text_and_never_markup(tmp_path: Path) -> None:
    name = 'a <b>&"@ink $x^2$'
    records = [
        r._replace(cell=r.cell._replace(optimization=name)) if r.cell.optimization == "fsdp2" else r
        for r in memory_records()
    ]
    assert name in texts(drawn(found(records), "by_kind"))
    assert read_page(write_report(tmp_path, found(records)).read_text()).open == []
