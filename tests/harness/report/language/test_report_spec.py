"""The language of conf/report/: read whole, refused in one line where wrong."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from harness.config.optimizations import titles, workloads_of
from harness.config.run import load, names
from harness.config.validation import ConfigError
from harness.report.report_data import own_report
from harness.report.spec import KINDS, REPORTS, OwnBlock, load_spec


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "title: t\nquestion: q\nblocks: [{pie: a, title: b}]",
            "blocks[0]: pie, title; expected one of table",
        ),
        (
            "title: t\nquestion: q\nblocks: [{table: a}]",
            "blocks[0] (a): Object missing required field `title`",
        ),
        (
            "title: t\nquestion: q\nblocks: [{speedups: a, title: b, c: 1}]",
            "(a): Object contains unknown field `c`",
        ),
        ("title: t\nquestion: q\nblocks: [a]", "Expected `object`, got `str` - at `$.blocks[0]`"),
        ("title: t\nquestion: q\nblock: []", "s.yaml: Object contains unknown field `block`"),
        (
            "title: t\nquestion: q\nblocks:\n"
            "  - {table: a, title: b, rows: {workload: W}, columns: [{title: c}]}",
            "expected one of metric, claim and condition - at `$.columns[0]`",
        ),
        (
            "title: t\nquestion: q\nblocks:\n  - {table: a, title: b, rows: {hue: W}, columns: []}",
            "Invalid enum value 'hue' - at `key` in `$.rows`",
        ),
        (
            "title: t\nquestion: q\nblocks:\n  - {speedups: a, title: b}\n  - {speedups: a, title: b}",
            "'a' is used twice",
        ),
        ("title: t\nquestion: q\nshown: [a]\nblocks: []", "no block has the id 'a'"),
    ],
)
def test_a_mistake_in_a_report_is_one_line_that_names_its_place(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(ConfigError) as error:
        load_spec("s", folder=tmp_path)
    assert "\n" not in str(error.value)
    assert told in str(error.value)


@pytest.mark.parametrize("suite", sorted(path.stem for path in REPORTS.glob("*.yaml")))
def test_every_report_in_conf_is_whole_and_the_suite_has_what_it_names(suite: str) -> None:
    own = [one for one in load_spec(suite).blocks if isinstance(one, OwnBlock)]
    assert all(callable(getattr(own_report(suite), one.function)) for one in own)


def test_the_reference_names_every_kind_and_every_field() -> None:
    page = (REPORTS.parent.parent / "docs/extend/report-language.md").read_text()
    for kind, of_kind in KINDS.items():
        assert f"`{kind}`" in page
        assert all(f"`{name}`" in page for name in of_kind.__struct_fields__ if name != "function"), kind


@pytest.mark.parametrize("suite", sorted(path.stem for path in REPORTS.glob("*.yaml")))
def test_titles_of_workloads_are_those_of_the_suite(suite: str) -> None:
    workloads = set(load([f"suite={suite}"])[0].workloads)
    assert set(load_spec(suite).names["workload"]) == workloads


@pytest.mark.parametrize("suite", names("suite"))
def test_a_report_names_workloads_and_variants_that_its_suite_has(suite: str) -> None:
    """Patterns included: one that meets nothing is left from a workload that was renamed."""
    spec, has = load_spec(suite), {"workload": {*workloads_of(suite)}, "optimization": {*titles(suite)}}
    named = set(spec.names.get("workload", {})) | {block.workload for block in spec.blocks if block.workload}
    assert named <= has["workload"]
    assert set(spec.order["optimization"]) <= has["optimization"]
    wheres = [block.where for block in spec.blocks]
    for key, every in has.items():
        for where in wheres:
            wanted = where.get(key, [])
            for pattern in [wanted] if isinstance(wanted, str) else wanted:
                assert any(fnmatchcase(one, pattern.removeprefix("!")) for one in every), pattern
