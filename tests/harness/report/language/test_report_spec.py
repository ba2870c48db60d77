"""The language of conf/report/: read whole, refused in one line where wrong."""

from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from refusals import mistaken

from harness.claims.load import titles_of
from harness.config.optimizations import titles, workloads_of
from harness.config.run import names
from harness.report.report_data import own_report
from harness.report.spec import REPORTS, OwnBlock, load_spec

TABLE = "blocks: [{table: a, title: b, rows: {workload: W}, columns: [%s]}]"
LINES = "blocks: [{lines: a, title: b, y: {metric: t}, %s}]"
STATED = "blocks: [], answer: {states: [{text: 'a {}', values: [%s]}]}"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("shown: [a], blocks: []", "no block has the id 'a'"),
        ("blocks: [{pie: a, title: b}]", "blocks[0]: pie, title; expected one of table"),
        ("blocks: [{speedups: a, title: b, c: 1}]", "(a): Object contains unknown field `c`"),
        ("blocks: [{speedups: a, title: b}, {speedups: a, title: b}]", "'a' is used twice"),
        (TABLE % "{title: c}", "one of metric, condition, field and claim - at `$.columns[0]`"),
        (LINES % "x: {field: f}, line: workload", "(a): x: a workload's field"),
        (STATED % "", "as many {} as values"),
        (STATED % "{metric: t}", "expected workload and optimization"),
    ],
)
def test_a_mistake_in_a_report_is_one_line_that_names_its_place(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(f"{{title: t, question: q, {text}}}")
    mistaken(lambda: load_spec("s", folder=tmp_path), told)


def test_a_title_of_a_pattern_is_that_of_all_names_that_fit() -> None:
    listed = {"ranks_9": "Nine", "ranks_*": "Ranks: {}", "ranks_*_*": "{} of {}", "ranks_b_*": "b: {}"}
    found = titles_of(
        "s.yaml.names.workload", listed, ["ranks_1024", "ranks_9", "ranks_b_c", "ranks_a_b", "other_1"]
    )
    assert list(found) == ["ranks_9", "ranks_1024", "ranks_a_b", "ranks_b_c"]
    assert list(found.values()) == ["Nine", "Ranks: 1,024", "a of b", "b: c"]


@pytest.mark.parametrize("suite", names("suite"))
def test_a_report_names_workloads_and_variants_that_its_suite_has(suite: str) -> None:
    """Patterns included: one that meets nothing is left from a workload that was renamed."""
    spec, has = load_spec(suite), {"workload": {*workloads_of(suite)}, "optimization": {*titles(suite)}}
    own = [one for one in spec.blocks if isinstance(one, OwnBlock)]
    assert all(callable(getattr(own_report(suite), one.function)) for one in own)
    if (REPORTS / f"{suite}.yaml").exists():
        assert set(spec.names["workload"]) == has["workload"]
    assert {block.workload for block in spec.blocks if block.workload} <= has["workload"]
    assert set(spec.order["optimization"]) <= has["optimization"]
    wheres = [block.where for block in spec.blocks]
    for key, every in has.items():
        for where in wheres:
            wanted = where.get(key, [])
            for pattern in [wanted] if isinstance(wanted, str) else wanted:
                assert any(fnmatchcase(one, pattern.removeprefix("!")) for one in every), pattern
