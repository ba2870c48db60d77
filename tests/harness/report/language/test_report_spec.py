"""The language of conf/report/: read whole, refused in one line where wrong."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from refusals import mistaken

from harness.claims.load import titles_of
from harness.config.optimizations import titles, workloads_of
from harness.config.run import names
from harness.report.report_data import own_report
from harness.report.spec import KINDS, REPORTS, OwnBlock, load_spec

TABLE = "{table: a, title: b, rows: {workload: W}"
LINES = "{lines: a, title: b, x: {metric: r, title: L}, y: {metric: t, title: S}"


@pytest.mark.parametrize(
    ("blocks", "told"),
    [
        ("{pie: a, title: b}", "blocks[0]: pie, title; expected one of table"),
        ("{table: a}", "blocks[0] (a): Object missing required field `title`"),
        ("{speedups: a, title: b, c: 1}", "(a): Object contains unknown field `c`"),
        ("a", "Expected `object`, got `str` - at `$.blocks[0]`"),
        (TABLE + ", columns: [{title: c}]}", "one of metric, claim and condition - at `$.columns[0]`"),
        (
            "{table: a, title: b, rows: {hue: W}, columns: []}",
            "Invalid enum value 'hue' - at `key` in `$.rows`",
        ),
        ("{speedups: a, title: b}, {speedups: a, title: b}", "'a' is used twice"),
        (LINES + ", line: method}", "Invalid enum value 'method' - at `$.line`"),
        (LINES + ", series: [{where: {}}]}", "missing required field `title` - at `$.series[0]`"),
        (LINES + ", mark: {method: best}}", "missing required field `metric` - at `$.mark`"),
        (LINES.replace("metric: r", "field: f") + ", line: workload}", "(a): x: a workload's field"),
        (LINES.replace("metric: r, ", "") + "}", "(a): expected either metric or field - at `$.x`"),
        (LINES.replace("r,", "r, field: f,") + "}", "(a): expected either metric or field - at `$.x`"),
        (
            "{what_if: a, title: b, metrics: {}, controls: {k: {title: t}}}",
            "missing required field `start` - at `$.controls[...]`",
        ),
        (
            "{what_if: a, title: b, metrics: {m: {}}, controls: {}}",
            "missing required field `title` - at `$.metrics[...]`",
        ),
    ],
)
def test_a_mistake_in_a_report_is_one_line_that_names_its_place(
    blocks: str, told: str, tmp_path: Path
) -> None:
    (tmp_path / "s.yaml").write_text(f"title: t\nquestion: q\nblocks: [{blocks}]\n")
    mistaken(lambda: load_spec("s", folder=tmp_path), told)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("title: t\nquestion: q\nblock: []", "s.yaml: Object contains unknown field `block`"),
        ("title: t\nquestion: q\nshown: [a]\nblocks: []", "no block has the id 'a'"),
    ],
)
def test_a_mistake_beside_the_blocks_is_one_line(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(text)
    mistaken(lambda: load_spec("s", folder=tmp_path), told)


def test_a_title_of_a_pattern_is_that_of_all_names_that_fit() -> None:
    listed = {"ranks_9": "Nine", "ranks_*": "Ranks: {}", "ranks_*_*": "{} of {}", "ranks_b_*": "b: {}"}
    found = titles_of(
        "s.yaml.names.workload", listed, ["ranks_1024", "ranks_9", "ranks_b_c", "ranks_a_b", "other_1"]
    )
    assert list(found) == ["ranks_9", "ranks_1024", "ranks_a_b", "ranks_b_c"]
    assert list(found.values()) == ["Nine", "Ranks: 1,024", "a of b", "b: c"]


@pytest.mark.parametrize("title", ["{} of {}", "{1}", "{name}", "{", 5])
def test_a_title_that_does_not_suit_its_pattern_is_refused_with_file_and_key(title: object) -> None:
    listed = {"ranks_*": title}
    mistaken(lambda: titles_of("s.yaml.names.workload", listed, []), "s.yaml.names.workload.ranks_*: ")


def test_a_block_has_the_fields_of_its_kind_unless_it_gives_another(tmp_path: Path) -> None:
    first, second = (
        "{table: a, title: b, columns: []}",
        TABLE.replace("table: a", "table: c") + ", columns: []}",
    )
    kinds = "{table: {rows: {method: M}, text: t}}"
    (tmp_path / "s.yaml").write_text(f"title: t\nquestion: q\neach: {kinds}\nblocks: [{first}, {second}]\n")
    blocks = load_spec("s", folder=tmp_path).blocks
    assert [(getattr(one, "rows", None), one.text) for one in blocks] == [
        ({"method": "M"}, "t"),
        ({"workload": "W"}, "t"),
    ]


def test_the_reference_names_every_kind_and_every_field() -> None:
    page = (REPORTS.parent.parent / "docs/extend/report-language.md").read_text()
    for kind, of_kind in KINDS.items():
        assert f"`{kind}`" in page
        assert all(f"`{name}`" in page for name in of_kind.__struct_fields__ if name != "function"), kind


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
