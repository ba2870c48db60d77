"""A figure of when each lane was busy, on records whose spans are known."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from reporting import SVG, texts, tip, tips
from synthetic import made
from timed import timed_findings

from harness.records import Record

BLOCK = "  - {own_figure: timeline, title: C}\n"
LANES = {"rank 0, computation": ((0.1, 0.2), (0.2, 0.4)), "rank 0, arrivals": ((0.05, 0.3),)}

SAID = ("computation: 100 ms to 200 ms", "computation: 200 ms to 400 ms", "arrivals: 50 ms to 300 ms")


def record(variant: str, lanes: dict[str, tuple[tuple[float, float], ...]]) -> Record:
    measured = {}
    for lane, spans in lanes.items():
        for metric, samples in zip(("span_begin", "span_end"), zip(*spans, strict=True), strict=True):
            measured[metric, lane] = ("s", "emulated", samples)
    return made("small", variant, measured)


def drawn(folder: Path, records: list[Record]) -> ElementTree.Element | None:
    findings = timed_findings(folder, BLOCK, records, suite="overlap")
    figure = findings.figure(findings.blocks[0])
    return None if figure is None else ElementTree.fromstring(figure.svg)


def bars(tree: ElementTree.Element) -> dict[str, tuple[float, float, float]]:
    """Return left end, right end and middle height of each bar by its tip."""
    found = {}
    for path in tree.iter(f"{SVG}path"):
        if said := tip(path):
            places = [float(one) for one in path.attrib["d"].translate(str.maketrans("MLz", "   ")).split()]
            xs, ys = places[::2], places[1::2]
            found[said] = (min(xs), max(xs), (min(ys) + max(ys)) / 2)
    return found


def test_a_variant_that_was_wrong_in_one_process_has_no_bar(tmp_path: Path) -> None:
    wrong = made("small", "fast", {}, status="wrong_result", reason="batches are off")
    tree = drawn(tmp_path, [record("baseline", LANES), record("fast", LANES), wrong])
    assert tree is not None
    assert len(bars(tree)) == 3
    assert not any("fast" in said for said in bars(tree))


def test_every_span_is_a_bar_at_its_time_on_one_axis_for_all_variants(tmp_path: Path) -> None:
    tree = drawn(tmp_path, [record("baseline", LANES), record("fast", LANES)])
    assert tree is not None
    placed = bars(tree)
    assert len(placed) == 6
    for variant in ("baseline", "fast"):
        first, second, arrived = (placed[f"{variant} · rank 0, {said}"] for said in SAID)
        per_s = (second[1] - arrived[0]) / 0.35
        assert first[:2] == pytest.approx((arrived[0] + 0.05 * per_s, arrived[0] + 0.15 * per_s), abs=0.1)
        assert arrived[1] - arrived[0] == pytest.approx(0.25 * per_s, abs=0.1)
        assert first[2] == second[2] < arrived[2]  # a row per lane, in the order recorded
    starts = {round(left) for said, (left, _, _) in placed.items() if "arrivals" in said}
    assert len(starts) == 1
    assert max(y for said, (_, _, y) in placed.items() if "baseline" in said) < min(
        y for said, (_, _, y) in placed.items() if "fast" in said
    )
    words = texts(tree)
    assert {"baseline: 400 ms", "fast: 400 ms"} <= set(words)
    assert [words.count(lane) for lane in LANES] == [2, 2]
    assert any("emulated" in one for one in words)
    assert all("#r-" in str(link.attrib) for link in tree.iter(f"{SVG}a"))
    assert len(tips(tree)) == len(placed)


def test_one_run_is_drawn_and_not_several_at_once(tmp_path: Path) -> None:
    later = {lane: tuple((a + 1, b + 1) for a, b in spans) for lane, spans in LANES.items()}
    tree = drawn(tmp_path, [record("baseline", LANES), record("baseline", later)._replace(notes=("later",))])
    assert tree is not None
    assert len(bars(tree)) == 3


def test_a_lane_with_an_end_too_few_is_left_out(tmp_path: Path) -> None:
    cut = record("baseline", LANES)
    kept = [
        one._replace(samples=one.samples[:1]) if one.metric == "span_end" and "comp" in one.method else one
        for one in cut.measurements
    ]
    tree = drawn(tmp_path, [cut._replace(measurements=tuple(kept))])
    assert tree is not None
    assert list(bars(tree)) == ["baseline · rank 0, arrivals: 50 ms to 300 ms"]


def test_without_spans_there_is_no_figure(tmp_path: Path) -> None:
    assert drawn(tmp_path, [made("small", "baseline", {("time", ""): ("s", "measured", (1.0,))})]) is None
