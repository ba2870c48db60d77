"""A figure of what a metric did from step to step, on records whose samples are known."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from xml.etree import ElementTree

import pytest
from reporting import tips
from synthetic import made
from timed import timed_findings

from harness.records import Record
from harness.report.axes import SERIES

SVG = "{http://www.w3.org/2000/svg}"
FALLING = (4.0, 3.0, 2.5, 2.25, 2.125)
LATER = (4.0, 3.5, 3.0, 2.5)


def record(workload: str, variant: str, samples: tuple[float, ...]) -> Record:
    return made(workload, variant, {("loss_by_step", ""): ("1", "measured", samples)})


def drawn(folder: Path, records: list[Record]) -> ElementTree.Element | None:
    block = "  - {own_figure: losses, title: C, workload: small}\n"
    findings = timed_findings(folder, block, records, suite="offload")
    found = findings.figure(findings.blocks[0])
    return None if found is None else ElementTree.fromstring(found.svg)


def lines(tree: ElementTree.Element) -> list[list[tuple[float, float]]]:
    """Return the corners of the lines in the colours of series."""
    drawn = [
        one.attrib["d"].replace("M", " ").replace("L", " ").split()
        for one in tree.iter(f"{SVG}path")
        if one.attrib.get("stroke") in SERIES and one.attrib.get("fill", "none") == "none"
    ]
    return [list(zip(map(float, one[::2]), map(float, one[1::2]), strict=True)) for one in drawn]


def test_a_line_per_variant_has_each_sample_in_its_place(tmp_path: Path) -> None:
    tree = drawn(tmp_path, [record("small", "baseline", FALLING), record("small", "fast", LATER)])
    assert tree is not None
    both = lines(tree)
    assert sorted(map(len, both)) == sorted([len(FALLING), len(LATER)])
    first = next(line for line in both if len(line) == len(FALLING))
    other = next(line for line in both if len(line) == len(LATER))
    steps = [x for x, _ in first]
    assert steps == pytest.approx(
        [steps[0] + i * (steps[1] - steps[0]) for i in range(len(FALLING))], abs=0.2
    )
    high = (first[1][1] - first[0][1]) / (FALLING[1] - FALLING[0])
    for line, values in ((first, FALLING), (other, LATER)):
        assert line[0][0] == steps[0]
        for (_, y), value in zip(line, values, strict=True):
            assert y == pytest.approx(first[0][1] + high * (value - FALLING[0]), abs=0.3)
    assert high < 0  # upwards is more
    said = sorted(float(said.rpartition(" ")[2]) for said in tips(tree))
    assert said == pytest.approx([FALLING[-1], LATER[-1]], rel=5e-3)


def test_repeats_are_averaged_step_by_step(tmp_path: Path) -> None:
    higher = tuple(value + 1 for value in FALLING)
    tree = drawn(tmp_path, [record("small", "baseline", FALLING), record("small", "baseline", higher)])
    assert tree is not None
    (line,) = lines(tree)
    assert len(line) == len(FALLING)
    (text,) = tips(tree)
    assert float(text.rpartition(" ")[2]) == pytest.approx(fmean([FALLING[-1], higher[-1]]), rel=5e-3)


def test_a_variant_that_was_wrong_in_one_process_has_no_line(tmp_path: Path) -> None:
    wrong = made("small", "fast", {}, status="wrong_result", reason="loss is off")
    right = [record("small", "baseline", FALLING), record("small", "fast", LATER)]
    tree = drawn(tmp_path, [*right, wrong])
    assert tree is not None
    (text,) = tips(tree)
    assert "fast" not in text


def test_what_does_not_change_is_a_level_line(tmp_path: Path) -> None:
    tree = drawn(tmp_path, [record("small", "baseline", (2.0, 2.0))])
    assert tree is not None
    ((_, one), (_, other)) = lines(tree)[0]
    assert one == other


def test_without_samples_there_is_no_figure(tmp_path: Path) -> None:
    assert drawn(tmp_path, [made("small", "baseline", {("time", ""): ("s", "measured", (1.0,))})]) is None
