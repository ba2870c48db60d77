"""Open pages in a headless browser, at three widths, and say what does not fit."""

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

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--window-size=1600,1200",
    "--virtual-time-budget=60000", "--dump-dom",
)  # fmt: skip
CHECK = (Path(__file__).parent / "layout_check.js").read_text()
WIDTHS = (400, 800, 1400)
COLLECT = """<script>const seen = []; addEventListener("message", (e) => { seen.push(e.data);
document.getElementById("seen").textContent = JSON.stringify(seen) })</script><pre id="seen"></pre>"""

needs_a_browser = pytest.mark.skipif(BROWSER is None, reason="needs a browser: no chromium is on PATH")


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
