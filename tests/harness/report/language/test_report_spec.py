"""The language of conf/report/: read whole, refused in one line where wrong."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from harness.claims.load import load_claims
from harness.config.optimizations import titles, workloads_of
from harness.config.run import load, names
from harness.config.validation import ConfigError
from harness.report.language.kinds import KIND_DOCS, KINDS, reference
from harness.report.language.spec import REPORTS, load_spec


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "suite: s\ntitle: t\nquestion: q\nblocks: [{kind: pie, id: a, title: b}]",
            "allowed: verdicts, table",
        ),
        ("suite: s\ntitle: t\nquestion: q\nblocks: [{kind: failures, id: a}]", "(a).title: missing"),
        ("suite: s\ntitle: t\nquestion: q\nblocks: [{kind: failures, id: a, title: b, c: 1}]", "(a).c"),
        ("suite: s\ntitle: t\nquestion: q\nblocks: [a]", "blocks[0]: 'a'; expected KEY: VALUE"),
        ("suite: other\ntitle: t\nquestion: q\nblocks: []", "'other'; expected 's'"),
        (
            "suite: s\ntitle: t\nquestion: q\nblocks:\n"
            "  - {kind: table, id: a, title: b, rows: workload, columns: [{title: c}]}",
            "columns[0]: expected one of metric, claim and condition",
        ),
        (
            "suite: s\ntitle: t\nquestion: q\nblocks: [{kind: spans, id: a, title: b, begin: c}]",
            "(a).end: missing",
        ),
        (
            "suite: s\ntitle: t\nquestion: q\nblocks:\n"
            "  - {kind: failures, id: a, title: b}\n  - {kind: verdicts, id: a, title: b}",
            "'a' is used twice",
        ),
    ],
)
def test_a_mistake_in_a_report_is_one_line_that_names_its_place(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(ConfigError) as error:
        load_spec("s", folder=tmp_path)
    assert "\n" not in str(error.value)
    assert told in str(error.value)


@pytest.mark.parametrize("suite", sorted(path.stem for path in REPORTS.glob("*.yaml")))
def test_every_report_in_conf_is_whole(suite: str) -> None:
    spec = load_spec(suite)
    kinds = {one.kind for one in spec.blocks}
    needed = {"failures", *(["verdicts"] if load_claims(suite) else [])}
    assert needed <= kinds <= set(KINDS)


def test_the_reference_of_the_language_is_its_schema() -> None:
    page = (REPORTS.parent.parent / "docs/extend/report-language.md").read_text()
    assert page == reference(), "python -m harness.report.language.kinds > docs/extend/report-language.md"
    assert set(KINDS) == set(KIND_DOCS)


@pytest.mark.parametrize("suite", sorted(path.stem for path in REPORTS.glob("*.yaml")))
def test_titles_of_workloads_are_those_of_the_suite(suite: str) -> None:
    workloads = set(load([f"suite={suite}"])[0].workloads)
    assert set(load_spec(suite).names["workload"]) == workloads


@pytest.mark.parametrize("suite", names("suite"))
def test_a_report_names_workloads_and_variants_that_its_suite_has(suite: str) -> None:
    """Patterns included: one that meets nothing is left from a workload that was renamed."""
    spec, has = load_spec(suite), {"workload": {*workloads_of(suite)}, "optimization": {*titles(suite)}}
    named = set(spec.names.get("workload", {})) | {
        block.fields["workload"] for block in spec.blocks if block.fields.get("workload")
    }
    assert named <= has["workload"]
    assert set(spec.order["optimization"]) <= has["optimization"]
    wheres = [block.fields["where"] for block in spec.blocks if "where" in block.fields]
    for key, every in has.items():
        for where in wheres:
            wanted = where.get(key, [])
            for pattern in [wanted] if isinstance(wanted, str) else wanted:
                assert any(fnmatchcase(one, pattern.removeprefix("!")) for one in every), pattern
