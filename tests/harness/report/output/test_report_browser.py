"""A page in a browser: never wider than its window, and no text over another text."""

from pathlib import Path

from browser import WIDTHS, complaints, needs_a_browser, opened
from reporting import found
from timed import timed_findings

from harness.report import write_index, write_report

pytestmark = needs_a_browser


def test_the_check_finds_what_is_too_wide_and_what_overlaps(tmp_path: Path) -> None:
    wide = "<head></head><h2 style='white-space:nowrap'>" + "wide " * 200 + "</h2>"
    over = "<head></head><nav>one<span style='margin-left:-3em'>other</span></nav>"
    found_ = list(complaints(opened(tmp_path, {"wide": wide, "over": over})))
    assert sum("px wide" in one for one in found_) == 2 * len(WIDTHS)
    assert sum("one | other" in one for one in found_) == len(WIDTHS)


def test_pages_of_invented_runs_fit_every_window(tmp_path: Path) -> None:
    memory = found()
    page = write_report(tmp_path / "memory", memory)
    timed = "  - {every_metric: m, title: M}\n"
    pages = {
        "memory": page.read_text(),
        "timed": write_report(tmp_path / "timed", timed_findings(tmp_path, timed)).read_text(),
        "answers": write_index(tmp_path, [(memory, "memory")]).read_text(),
        "index": write_index(tmp_path, [(memory, "memory")], without_answers=True).read_text(),
    }
    assert list(complaints(opened(tmp_path, pages))) == []
