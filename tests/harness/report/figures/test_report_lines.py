"""Lines of a figure: one a variant or one a workload, labels with room, a ring where the metric says."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from reporting import tip, tips
from synthetic import made
from timed import timed_findings

from harness.config.validation import ConfigError
from harness.records import Record
from harness.report.axes import LETTER, LIGHT, MOST_LINES, SERIES, SMALL
from harness.report.spec import load_spec

SVG = "{http://www.w3.org/2000/svg}"
RATES = {f"the_link_{i:02}": 0.4e9 * 2**i for i in range(10)} | {"the_link_10 (the fastest)": 0.45e9 * 2**9}
"""Bytes per second; the last two stand close together."""

MOVED_B = {"big": 8e9, "small": 1e9}
ENOUGH = {"big": 9e9, "small": 3e9}
AXES = "x: {metric: rate, method: paper, title: L}, y: {metric: time, method: best, title: S}"
MARK = ", mark: {metric: enough, method: best, title: suffices}"


def seconds(workload: str, rate: float) -> float:
    return MOVED_B[workload] * max(1 / rate, 1 / ENOUGH[workload])


def linked_records(enough: bool = True) -> list[Record]:
    records = []
    for workload in MOVED_B:
        for variant, rate in RATES.items():
            figures = {
                ("rate", "paper"): ("B/s", "calculated", (rate,)),
                ("time", "best"): ("s", "calculated", (seconds(workload, rate),)),
            }
            if enough:
                figures["enough", "best"] = ("B/s", "calculated", (ENOUGH[workload],))
            records.append(made(workload, variant, figures))
    return records


def with_another_x() -> list[Record]:
    """Return the records and one more of the first variant, on a third workload with a rate of its own."""
    figures = {
        ("rate", "paper"): ("B/s", "calculated", (0.6e9,)),
        ("time", "best"): ("s", "calculated", (seconds("big", 0.6e9),)),
    }
    return [*linked_records(), made("third", "the_link_00", figures)]


def drawn(folder: Path, fields: str, records: list[Record] | None = None) -> ElementTree.Element:
    block = f"  - {{lines: curve, title: Curve, {AXES}{fields}}}\n"
    findings = timed_findings(folder, block, records or linked_records())
    made = findings.figure(findings.blocks[0])
    assert made is not None
    return ElementTree.fromstring(made.svg)


def places(tree: ElementTree.Element, hollow: bool) -> dict[str, tuple[float, float]]:
    """Return the name of each point with its position; hollow ones are rings."""
    return {
        tip(one).partition(":")[0]: (float(one.attrib["x"]), float(one.attrib["y"]))
        for one in tree.iter(f"{SVG}use")
        if one.find(f"{SVG}title") is not None and (one.attrib["fill"] == LIGHT["ground"]) == hollow
    }


def corners(tree: ElementTree.Element) -> list[int]:
    """Return how many corners each line in the colour of a series has."""
    lines = (one for one in tree.iter(f"{SVG}path") if one.attrib.get("stroke") in SERIES)
    return [one.attrib["d"].count("L") + 1 for one in lines if one.attrib.get("fill", "none") == "none"]


def test_a_line_per_workload_has_a_point_per_variant_at_its_rate_and_time(tmp_path: Path) -> None:
    tree = drawn(tmp_path, ", line: workload")
    assert corners(tree) == [len(RATES)] * 2
    dots = places(tree, hollow=False)
    assert len(dots) == 2 * len(RATES)
    (x0, y0), (x1, y1) = dots["big, the_link_00"], dots["small, the_link_05"]
    wide = (x1 - x0) / math.log(RATES["the_link_05"] / RATES["the_link_00"])
    high = (y1 - y0) / math.log(seconds("small", RATES["the_link_05"]) / seconds("big", RATES["the_link_00"]))
    for workload in MOVED_B:
        for variant, rate in RATES.items():
            x, y = dots[f"{workload}, {variant.partition(' (')[0]}"]
            assert x == pytest.approx(x0 + wide * math.log(rate / RATES["the_link_00"]), abs=0.3)
            time = seconds(workload, rate) / seconds("big", RATES["the_link_00"])
            assert y == pytest.approx(y0 + high * math.log(time), abs=0.3)


def test_labels_along_x_never_overlap_and_both_ends_are_named(tmp_path: Path) -> None:
    tree = drawn(tmp_path, ", line: workload")
    labels = {tip(one): float(one.attrib["x"]) for one in tree.iter(f"{SVG}text") if "link_" in tip(one)}
    assert {"the_link_00", "the_link_10"} < set(labels)
    assert 4 <= len(labels) < len(RATES) - 1
    for left, right in pairwise(sorted(labels.values())):
        assert right - left >= LETTER * SMALL * 0.9 * len("the_link_00")


def test_the_ring_of_a_workload_stands_on_its_line_at_the_rate_of_its_metric(tmp_path: Path) -> None:
    tree = drawn(tmp_path, ", line: workload" + MARK)
    dots, rings = places(tree, hollow=False), places(tree, hollow=True)
    assert set(rings) == set(MOVED_B)
    for workload, (x, y) in rings.items():
        below = max(variant for variant, rate in RATES.items() if rate <= ENOUGH[workload])
        above = min(variant for variant, rate in RATES.items() if rate > ENOUGH[workload])
        (x1, y1), (x2, y2) = dots[f"{workload}, {below}"], dots[f"{workload}, {above}"]
        share = math.log(ENOUGH[workload] / RATES[below]) / math.log(RATES[above] / RATES[below])
        assert x == pytest.approx(x1 + share * (x2 - x1), abs=0.2)
        assert y == pytest.approx(y1 + share * (y2 - y1), abs=0.2)
    said = [one for one in tips(tree) if "suffices" in one]
    assert said == ["big: 9 GB/s suffices", "small: 3 GB/s suffices"]


@pytest.mark.parametrize("enough", [None, 1e3, 1e15])
def test_without_the_metric_or_beyond_the_line_there_is_no_ring(enough: float | None, tmp_path: Path) -> None:
    records = linked_records(enough=False)
    if enough is not None:
        far = made("big", "the_link_00", {("enough", "best"): ("B/s", "calculated", (enough,))}).measurements
        records = [r._replace(measurements=r.measurements + far) for r in records]
    assert not places(drawn(tmp_path, ", line: workload" + MARK, records), hollow=True)


def test_unless_it_says_otherwise_a_line_is_a_variant_over_its_workloads(tmp_path: Path) -> None:
    (tree, same) = (drawn(tmp_path, one, with_another_x()) for one in ("", ", line: optimization"))
    assert ElementTree.tostring(tree) == ElementTree.tostring(same)
    assert len(places(tree, hollow=False)) == MOST_LINES + 1
    assert not places(tree, hollow=True)


def test_a_series_is_a_line_of_the_cells_that_it_chooses(tmp_path: Path) -> None:
    chosen = (
        "{title: First, where: {optimization: [the_link_00], workload: [big, third]}}, "
        "{title: Small, where: {workload: [small], optimization: ['the_link_0*']}}"
    )
    tree = drawn(tmp_path, f", series: [{chosen}]", with_another_x())
    assert corners(tree) == [2, 10]
    assert {*places(tree, hollow=False)} == {"First, big", "First, third", "Small, small"}


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (f"{AXES}, line: method", "Invalid enum value 'method' - at `$.line`"),
        (f"{AXES}, series: [{{where: {{}}}}]", "missing required field `title` - at `$.series[0]`"),
        (f"{AXES}, mark: {{method: best}}", "missing required field `metric` - at `$.mark`"),
        ("line: workload, x: {field: f, title: t}, y: {metric: m, title: t}", "(a): x: a workload's field"),
    ],
)
def test_a_mistake_in_lines_is_one_line(fields: str, told: str, tmp_path: Path) -> None:
    text = f"title: t\nquestion: q\nblocks:\n  - {{lines: a, title: b, {fields}}}\n"
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(ConfigError) as error:
        load_spec("s", folder=tmp_path)
    assert "\n" not in str(error.value)
    assert told in str(error.value)


def test_lines_of_one_point_each_are_no_figure(tmp_path: Path) -> None:
    findings = timed_findings(tmp_path, f"  - {{lines: c, title: C, {AXES}}}\n", linked_records())
    assert findings.figure(findings.blocks[0]) is None


def test_of_two_points_of_a_line_at_one_x_the_first_is_drawn_and_the_other_named(tmp_path: Path) -> None:
    findings = timed_findings(tmp_path, f"  - {{lines: c, title: C, {AXES}}}\n", with_another_x())
    figure = findings.figure(findings.blocks[0])
    assert figure is not None
    assert {said.partition(": ")[0] for said in tips(ElementTree.fromstring(figure.svg))} == {
        *(f"{variant}, big" for variant in list(RATES)[:MOST_LINES]),
        "the_link_00, third",
    }
    assert figure.text == (
        "Not drawn, as another point is at the same place: small. "
        f"Not drawn, as six lines are the most: {', '.join(list(RATES)[MOST_LINES:])}."
    )
