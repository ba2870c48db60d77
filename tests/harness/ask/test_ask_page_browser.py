"""The page of `harness.advise serve=` in a headless browser: figures change with an input."""

from __future__ import annotations

import html
import json
import re
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from browser import BROWSER, FLAGS, needs_a_browser

from harness.ask.page.server import HOST, listener, server_of

pytest.importorskip("dash", reason="the extra `serve` brings it")
pytestmark = needs_a_browser

WORDS = [
    "model=tests/data/configs/llama-3.1-8b.json",
    "gpus=64",
    "seq_len=8192",
    "global_batch_size=128",
    "layout=tp:2,pp:4",
]
VISITOR = (Path(__file__).parents[2] / "support" / "records" / "page_visitor.html").read_text()


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what a visitor sees who changes tp to 4, then to 7, in a wide and in a narrow window."""
    folder = tmp_path_factory.mktemp("page")
    with listener(0, "serve=0") as opened:
        server = server_of(WORDS, folder, opened)
        whole = server.app

        def with_visitor(environ: dict[str, Any], start_response: Any) -> Any:
            if environ["PATH_INFO"] != "/visitor":
                return whole(environ, start_response)
            start_response("200 OK", [("Content-Type", "text/html; charset=utf-8")])
            return [VISITOR.encode()]

        server.app = with_visitor
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://{HOST}:{server.port}/visitor"
        command = [str(BROWSER), *FLAGS, "--disable-quic", f"--user-data-dir={folder / 'profile'}", url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
        server.shutdown()
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    assert found[1], "the page did not show what was waited for"
    reports: dict[str, Any] = json.loads(html.unescape(found[1]))
    return reports


def test_a_changed_input_changes_the_figures(seen: dict[str, Any]):
    first, changed = seen["first"], seen["changed"]
    assert first["step"] != changed["step"]
    assert first["memory"] != changed["memory"]
    assert first["timeline"] != changed["timeline"]
    assert "tp 4" in changed["layout"]
    assert first["bars"] > 100


def test_what_does_not_divide_is_one_line_and_the_figures_stay(seen: dict[str, Any]):
    assert "tp × pp × cp = 7 × 4 × 1 = 28 does not divide the 64 GPUs" in seen["refused"]["message"]
    assert seen["refused"]["step"] == seen["changed"]["step"]


def test_the_page_is_never_wider_than_its_window(seen: dict[str, Any]):
    assert [one for one in seen["widths"] if one["page"] > one["window"]] == []
    assert len(seen["widths"]) == 2
