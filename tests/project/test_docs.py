"""Every path and link that the documentation names exists."""

import re
import shlex

import pytest

from harness.commands.command_line import read
from harness.commands.main import shown
from harness.config.code_fingerprint import ROOT
from harness.config.run import load
from harness.preset.programme import load_preset, requested

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
TOPS = ("harness", "suites", "conf", "docs", "tests", "results/reference")
PATH = re.compile(rf"(?<![\w./-])((?:{'|'.join(TOPS)})/[\w./-]+)")
CONFIG = ROOT / "tests/data/configs/llama-3.1-8b.json"
LINK = re.compile(r"\]\(([^)\s]+)\)")


def named_paths(text: str) -> set[str]:
    """Return the paths of this repository in a text, not in links, cut at `<suite>` or `mine`."""
    return {found.rstrip(".") for found in PATH.findall(LINK.sub("]", text)) if "/" in found}


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in headings}


def test_each_page_is_short():
    most = {"architecture.md": 120, "README.md": 110, "CHANGELOG.md": 1000}
    lines = {page.name: len(page.read_text().splitlines()) for page in PAGES}
    assert not {name: n for name, n in lines.items() if n > most.get(name, 150)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_path_that_a_page_names_exists(page):
    missing = [path for path in named_paths(page.read_text()) if not (ROOT / path).exists()]
    assert not missing, f"{page.name} names {missing}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_link_of_a_page_leads_somewhere(page):
    for link in LINK.findall(page.read_text()):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(target.read_text()), f"{page.name}: {link}"


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
    if asked.shown:
        assert list(shown(asked))
    elif any(word.startswith("budget_min=") for word in asked.words):
        words = [word for word in asked.words if word != "suite=all"]
        preset = [] if any(word.startswith("preset=") for word in words) else ["preset=host"]
        assert load_preset(requested([*preset, *words]).preset).suites
    elif any(word.startswith("preset=") for word in asked.words):
        assert load_preset(requested(asked.words).preset).suites
    elif asked.words and not any(word.startswith("from_results=") for word in asked.words):
        assert load(asked.words)


def test_what_the_glossary_names_is_in_the_code():
    files = [path for top in ("harness", "suites", "conf") for path in (ROOT / top).rglob("*.[py]*")]
    code = "\n".join(path.read_text() for path in files if path.suffix in (".py", ".yaml"))
    rows = [line.split("|") for line in (ROOT / "docs/glossary.md").read_text().splitlines() if "|" in line]
    named = [name.split("<")[0] for row in rows for name in re.findall(r"`([^`]+)`", row[-2])]
    assert len(named) > 20
    missing = [name for name in named if not (ROOT / name).exists() and name.split(".")[-1] not in code]
    assert not missing
