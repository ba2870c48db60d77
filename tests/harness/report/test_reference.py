"""The committed reports come out of the committed records.

Text, tables and data are compared byte for byte. So are figures, where matplotlib is the version that drew
the committed ones; under another, each point has to say the same and lead to the same record.
"""

import re
from xml.etree import ElementTree

import matplotlib
import pytest

from harness.commands.main import judged, report
from harness.config.code_fingerprint import ROOT
from harness.report.index.suite_index import index_markdown, index_page, index_rows

FOLDERS = sorted(path.parent for path in (ROOT / "results/reference").rglob("records.jsonl"))
SVG = "{http://www.w3.org/2000/svg}"
FIGURE = re.compile(r"<figure.*?</figure>", re.DOTALL)
ID = re.compile(r"[mp][0-9a-f]{10}(?![0-9a-f])")


def points(svg: str) -> list[tuple[str, str]]:
    """Return what each point of a figure says and leads to, in the order drawn."""
    tree = ElementTree.fromstring(svg)
    return [("".join(a.itertext()).strip(), a.get("href", "")) for a in tree.iter(f"{SVG}a")]


def with_numbered_ids(text: str) -> str:
    """Return `text` with matplotlib's ids numbered: they hash coordinates, whose last bits differ by CPU."""
    numbers: dict[str, int] = {}
    return ID.sub(lambda found: f"id{numbers.setdefault(found[0], len(numbers))}", text)


def same(made: str, kept: str, name: str) -> bool:
    drawn_by = set(re.findall(r'data-matplotlib="([^"]+)"', kept)) or {matplotlib.__version__}
    if drawn_by == {matplotlib.__version__}:
        return with_numbered_ids(made) == with_numbered_ids(kept)
    if name.endswith(".svg"):
        return points(made) == points(kept)
    return FIGURE.sub("", made) == FIGURE.sub("", kept)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_the_committed_report_comes_out_of_the_committed_records(folder, tmp_path):
    report(folder, tmp_path)
    made = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    kept = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert made == kept
    for name in kept:
        assert same((tmp_path / name).read_text(), (folder / name).read_text(), name), f"{name} differs"


def test_the_committed_index_lists_every_committed_result():
    rows = index_rows([(judged(folder), folder.name) for folder in FOLDERS])
    for name, made in (("index.html", index_page(rows)), ("index.md", index_markdown(rows))):
        assert (ROOT / "results/reference" / name).read_text() == made, (
            "python -m harness from_results=results/reference"
        )


def test_a_figure_of_another_version_is_compared_by_its_points():
    one, other = (
        f'<svg xmlns="http://www.w3.org/2000/svg" data-matplotlib="0.{minor}"><a href="#r-1">'
        f'<use x="{minor}"/><title>fast: 2×</title></a></svg>'
        for minor in (1, 2)
    )
    assert same(one, other, "a.svg")
    assert not same(one, other.replace("2×", "3×"), "a.svg")
    assert not same(one, other.replace("#r-1", "#r-2"), "a.svg")
    assert not same("text", "other", "report.md")


def test_there_is_a_reference():
    assert FOLDERS
