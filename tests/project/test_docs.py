"""Every path and link that the documentation names exists, and its commands are accepted."""

import re
import shlex

import pytest

from harness.commands.command_line import read
from harness.commands.main import shown
from harness.config.code_fingerprint import ROOT
from harness.config.run import load
from harness.preset.programme import load_preset, requested

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
PATH = re.compile(r"(?<![\w./-])((?:harness|suites|conf|docs|tests|results/reference)/[\w./-]+)")
CONFIG = ROOT / "tests/data/configs/llama-3.1-8b.json"
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_path_and_link_of_a_page_leads_somewhere(page):
    text = page.read_text()
    named = {found.rstrip(".") for found in PATH.findall(LINK.sub("]", text))}
    assert not [path for path in named if not (ROOT / path).exists()]
    for link in LINK.findall(text):
        path, _, anchor = link.partition("#")
        if "://" not in link:
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target.read_text()), link


def commands() -> list[tuple[str, str]]:
    """Return each `python -m harness` command of a page's code, its continuation lines joined."""
    found = []
    for page in PAGES:
        for block in re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            lines = block.replace("\\\n", " ").splitlines()
            found += [(page.name, line.split("-m harness", 1)[1]) for line in lines if "-m harness " in line]
    return found


@pytest.mark.parametrize(("page", "command"), commands())
def test_each_command_of_a_page_is_accepted(page, command, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests/examples/your_own_model"))
    words = [word for word in shlex.split(command, comments=True) if word != "..."]
    words = [re.sub(r"=(path/config|llama-3\.1-8b)\.json$", f"={CONFIG}", word) for word in words]
    asked = read(words)
    preset = any(word.startswith("preset=") for word in asked.words)
    if asked.shown:
        assert list(shown(asked))
    elif preset or any(word.startswith("budget_min=") for word in asked.words):
        words = [word for word in asked.words if word != "suite=all"]
        assert load_preset(requested([*([] if preset else ["preset=host"]), *words]).preset).suites
    elif asked.words and not any(word.startswith("from_results=") for word in asked.words):
        assert load(asked.words)
