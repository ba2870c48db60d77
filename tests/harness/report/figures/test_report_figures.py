"""Figures: drawn to scale, of the values recorded, readable in light and dark, each point with its record."""

import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reporting import SVG, drawn, found, points, read_page, recorded, texts, tip, tips
from synthetic import made, memory_records
from timed import timed_findings

from harness.report import write_report
from harness.report.axes import (
    LETTER,
    SMALL,
    linear_ticks,
    log_ticks,
)
from harness.report.figure import spaced


def test_bars_are_as_long_as_their_values_and_the_shortest_comes_first():
    records = memory_records()
    scale, totals = set(), []
    for path in drawn(found(records), "by_kind").iter(f"{SVG}path"):
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
    ends = {}
    for y, x in totals:
        ends[round(y)] = max(x, ends.get(round(y), 0.0))
    assert [ends[y] for y in sorted(ends)] == sorted(ends.values())


def test_a_name_in_a_figure_is_text_and_never_markup(tmp_path):
    name = 'a <b>&"@ink $x^2$'
    records = [
        r._replace(cell=r.cell._replace(optimization=name)) if r.cell.optimization == "fsdp2" else r
        for r in memory_records()
    ]
    assert name in texts(drawn(found(records), "by_kind"))
    assert read_page(write_report(tmp_path, found(records)).read_text()).open == []


def test_nothing_recorded_draws_nothing_and_the_report_states_it(tmp_path):
    records = [r._replace(status="crashed", reason="all of them", measurements=()) for r in memory_records()]
    findings = found(records)
    write_report(tmp_path, findings)
    text = (tmp_path / "report.md").read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("Without a value in this run: "))
    for one in findings.blocks:
        if findings.table(one) is None:
            assert one.title in line
            assert f"# {one.title}" not in text
    assert not list((tmp_path / "figures").iterdir())


@given(st.floats(1e-3, 1e9), st.floats(1.05, 1e12))
def test_ticks_are_few_and_within_and_never_alone(low, span):
    for ticks_of, most, wide in ((linear_ticks, 9, min(span, 1e3)), (log_ticks, 12, span)):
        ticks = ticks_of(low, low * wide)
        assert 2 <= len(ticks) <= most
        assert all(low * (1 - 1e-6) <= tick <= low * wide * (1 + 1e-6) for tick in ticks)


@given(st.lists(st.floats(0, 300), min_size=1, max_size=12))
def test_labels_are_apart_and_in_their_order(wanted):
    assert spaced([10, 100, 250], 15, 0, 300) == [10, 100, 250]
    placed = spaced(sorted(wanted), 15, 0, 300)
    assert all(right - left >= 15 - 1e-6 for left, right in pairwise(placed))
    if len(wanted) * 15 <= 300:
        assert -1e-6 <= placed[0] <= placed[-1] <= 300 + 15 * len(wanted)


def figure(folder, suite, block, *records):
    findings = timed_findings(folder, f"  - {{{block}}}\n", list(records) or None, suite=suite)
    return findings.figure(findings.blocks[0])


def tree_of(*arguments):
    made_of = figure(*arguments)
    assert made_of is not None
    return ElementTree.fromstring(made_of.svg)


EFFECTS = (
    "effect_plot: e, title: E, metric: time, method: warm, baseline: baseline, noise: baseline_again, "
    "where: {workload: small}"
)


def test_ratios_are_sorted_with_the_best_at_the_top_and_to_the_right(tmp_path):
    tree = tree_of(tmp_path, "invented", EFFECTS)
    places = {said.partition(":")[0]: place for said, place in points(tree).items()}
    assert sorted(places, key=lambda name: places[name][1]) == ["fast", "same", "slow"]
    (fast, _), (same, _), (slow, _) = (places[name] for name in ("fast", "same", "slow"))
    assert (fast - same) / (same - slow) == pytest.approx(math.log(2) / math.log(1.25), rel=0.02)
    assert any("noise of the baseline" in text for text in texts(tree))
    assert "fast: 2.00× (2.00 … 2.00) ᵐ pays" in tips(tree)


RATES = {f"the_link_{i:02}": 0.4e9 * 2**i for i in range(10)} | {"the_link_10 (the fastest)": 0.45e9 * 2**9}
"""Bytes per second; the last two stand close together."""

MOVED_B = {"big": 8e9, "small": 1e9}
CURVE = "lines: c, title: C, line: workload, x: {metric: rate, title: L}, y: {metric: time, title: S}"


def seconds(workload, rate):
    return MOVED_B[workload] * (1e-10 + 1 / rate)


def test_a_line_per_workload_has_a_point_per_variant_to_scale_and_labels_that_do_not_touch(tmp_path):
    links = []
    for workload in MOVED_B:
        for variant, rate in RATES.items():
            values = {"rate": ("B/s", rate), "time": ("s", seconds(workload, rate))}
            figures = {(name, ""): (unit, "calculated", (one,)) for name, (unit, one) in values.items()}
            links.append(made(workload, variant, figures))
    tree = tree_of(tmp_path, "invented", CURVE, *links)
    places = _values_at({name.partition(":")[0]: place for name, place in points(tree).items()})
    assert len(places) == 2 * len(RATES)
    for workload in MOVED_B:
        for variant, rate in RATES.items():
            at = places[f"{workload}, {variant.partition(' (')[0]}"]
            assert at == pytest.approx((rate, seconds(workload, rate)), rel=0.02)
    labels = {tip(one): float(one.attrib["x"]) for one in tree.iter(f"{SVG}text") if "link_" in tip(one)}
    assert {"the_link_00", "the_link_10"} < set(labels)
    assert 4 <= len(labels) < len(RATES) - 1
    for left, right in pairwise(sorted(labels.values())):
        assert right - left >= LETTER * SMALL * 0.9 * len("the_link_00")


def _values_at(places):
    """Return positions as values: axes are logarithmic, and two dots fix each."""
    (x0, y0), (x1, y1) = places["big, the_link_00"], places["small, the_link_05"]
    ends = (RATES["the_link_00"], seconds("big", RATES["the_link_00"]))
    others = (RATES["the_link_05"], seconds("small", RATES["the_link_05"]))
    return {
        name: (
            ends[0] * (others[0] / ends[0]) ** ((x - x0) / (x1 - x0)),
            ends[1] * (others[1] / ends[1]) ** ((y - y0) / (y1 - y0)),
        )
        for name, (x, y) in places.items()
    }


TIMELINE = ("overlap", "own_figure: timeline, title: C")
LOSSES = ("offload", "own_figure: losses, title: C, workload: small")
SPAN = {("span_begin", "a"): ("s", "emulated", (0.1,)), ("span_end", "a"): ("s", "emulated", (0.2,))}
LOSS = {("loss_by_step", ""): ("1", "measured", (2.0, 1.0))}


@pytest.mark.parametrize(("kind", "figures"), [(TIMELINE, SPAN), (LOSSES, LOSS)])
def test_what_was_wrong_in_one_process_or_has_no_samples_is_not_drawn(kind, figures, tmp_path):
    wrong = made("small", "fast", {}, status="wrong_result", reason="batches are off")
    tree = tree_of(tmp_path, *kind, made("small", "baseline", figures), made("small", "fast", figures), wrong)
    assert tips(tree)
    assert not [said for said in tips(tree) if "fast" in said]
    assert figure(tmp_path, *kind, made("small", "baseline")) is None
