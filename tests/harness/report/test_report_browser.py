"""A page in a browser: never wider than its window, and no text over another text."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from reporting import found
from timed import timed_findings

from harness.config.code_fingerprint import ROOT
from harness.report import write_answers, write_index, write_report
from harness.report.index.answer_sources import judged_claims

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--window-size=1600,1200",
    "--virtual-time-budget=60000", "--dump-dom",
)  # fmt: skip
CHECK = (Path(__file__).parent / "layout_check.js").read_text()
WIDTHS = (400, 800, 1400)
PAGES = ("index.html", "answers.html")
FOLDERS = sorted(path.parent for path in (ROOT / "results/reference").glob("*/report.html"))
COLLECT = """<script>const seen = []; addEventListener("message", (e) => { seen.push(e.data);
document.getElementById("seen").textContent = JSON.stringify(seen) })</script><pre id="seen"></pre>"""

pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs a browser: no chromium is on PATH")


def opened(folder: Path, pages: dict[str, str]) -> list[dict[str, Any]]:
    """Open each page at each width, in frames of one window; return what layout_check.js reports."""
    frames = []
    for name, text in pages.items():
        (folder / f"{name}.html").write_text(text.replace("<head>", f"<head><script>{CHECK}</script>", 1))
        frames += [
            f'<iframe name="{name}" src="{name}.html" width="{width}" height="900" style="border:0"></iframe>'
            for width in WIDTHS
        ]
    wrapper = folder / "wrapper.html"
    wrapper.write_text(f"<!doctype html><body>{COLLECT}{''.join(frames)}</body>")
    assert BROWSER is not None
    command = [BROWSER, *FLAGS, f"--user-data-dir={folder / 'profile'}", wrapper.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    seen = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert seen, done.stderr
    reports: list[dict[str, Any]] = json.loads(html.unescape(seen[1]))
    assert len(reports) == len(frames)
    return reports


def complaints(reports: list[dict[str, Any]]) -> Iterator[str]:
    for one in reports:
        place = f"{one['page']} at {one['window']} px"
        for state in ("folded", "open"):
            if one[state] > one["window"]:
                yield f"{place}, {state}: {one[state]} px wide"
        if one["overlaps"]:
            yield f"{place}: {one['overlaps']}"


def test_the_check_finds_what_is_too_wide_and_what_overlaps(tmp_path: Path) -> None:
    wide = "<head></head><h2 style='white-space:nowrap'>" + "wide " * 200 + "</h2>"
    over = "<head></head><nav>one<span style='margin-left:-3em'>other</span></nav>"
    found_ = list(complaints(opened(tmp_path, {"wide": wide, "over": over})))
    assert sum("px wide" in one for one in found_) == 2 * len(WIDTHS)
    assert sum("one | other" in one for one in found_) == len(WIDTHS)


def test_pages_of_invented_runs_fit_every_window(tmp_path: Path) -> None:
    memory = found()
    page = write_report(tmp_path / "memory", memory)
    timed = "  - {kind: every_metric, id: m, title: M}\n  - {kind: failures, id: f, title: F}\n"
    pages = {
        "memory": page.read_text(),
        "timed": write_report(tmp_path / "timed", timed_findings(tmp_path, timed)).read_text(),
        "answers": write_answers(tmp_path, judged_claims([(memory, "memory")])).read_text(),
        "index": write_index(tmp_path, [(memory, "memory")]).read_text(),
    }
    assert list(complaints(opened(tmp_path, pages))) == []


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_the_committed_pages_fit_every_window(folder: Path, tmp_path: Path) -> None:
    assert list(complaints(opened(tmp_path, {folder.name: (folder / "report.html").read_text()}))) == []


@pytest.mark.parametrize("page", PAGES)
def test_the_committed_pages_over_all_results_fit_every_window(page: str, tmp_path: Path) -> None:
    text = (ROOT / "results/reference" / page).read_text()
    assert list(complaints(opened(tmp_path, {page.partition(".")[0]: text}))) == []
