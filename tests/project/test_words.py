"""Words that the project's style replaces stay out of what people read."""

import ast
import re
from pathlib import Path

import pytest

from harness.config.code_fingerprint import ROOT

INSTEAD = {
    "foretell": "predict, estimate",
    "foretells": "predicts, estimates",
    "foretold": "predicted, estimated",
    "tells": "reports, shows",
    "told": "reported, returned",
    "arm": "variant",
    "arms": "variants",
    "beside": "next to, alongside",
    "presumably": "say what was tried, or that it was not investigated",
    "held against": "compared with",
    "holds against": "compares with",
    "walked": "traced, run on fake tensors",
}
PATTERN = re.compile(rf"\b({'|'.join(map(re.escape, INSTEAD))})\b", re.IGNORECASE)
QUANTITY = (
    r"bytes|seconds|rounds|steps|cells|ranks|GPUs|nodes|tokens|elements|samples|packets|operations|repetitions|"
    r"times|FLOPs?|[kMGT]?i?B|[kMGT]?B/s|ms|s"
)
PER = (
    "parameter|rank|step|cell|zone|round|node|layer|second|token|GPU|rack|sweep|call|element|thread|sequence|"
    "process|core|batch|row|column|link|device|variant|workload"
)
INSTEAD_OF_PER = re.compile(
    rf"(?:\b(?:{QUANTITY})|%)\s+(?:an?|each)\s+(?P<per>{PER})\b(?!')|"
    r"\b(?:once|twice)\s+(?:an?|each)\s+(?P<often>step|round|second|sweep|call)\b(?!')"
)
"""Rates without their "per". Case counts in units: a GB, but not "as a step"."""
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def replaced(text: str) -> list[str]:
    """Return each replaced word and rate without "per", with what to write instead; code is left out."""
    prose = CODE.sub(lambda code: "\n" * code.group().count("\n"), text)
    found = [(at, INSTEAD[at.group().lower()]) for at in PATTERN.finditer(prose)]
    found += [(at, f"per {at['per'] or at['often']}") for at in INSTEAD_OF_PER.finditer(prose)]
    return [
        f"line {1 + prose.count(chr(10), 0, at.start())}: '{' '.join(at.group().split())}' -> {better}"
        for at, better in found
    ]


def test_a_replaced_word_and_a_rate_without_per_are_found():
    assert replaced("```\ncode\n```\nIt was foretold.") == ["line 4: 'foretold' -> predicted, estimated"]
    assert replaced("400 GB/s a\nnode") == ["line 1: 'GB/s a node' -> per node"]
    assert not replaced("alarmed, besides; `arm` was a key; once a cell has ended; 4 bytes per parameter")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_uses_a_replaced_word(page):
    assert not replaced(page.read_text())


def prose(path: Path) -> str:
    """Return the docstrings, comments and texts of a module, each on its own lines; all of a YAML."""
    source = path.read_text()
    if path.suffix == ".yaml":
        return source
    texts = (one.value for one in ast.walk(ast.parse(source)) if isinstance(one, ast.Constant))
    comments = re.findall(r"(?:^|\s)#.*", source)
    return "\n".join([*(one for one in texts if isinstance(one, str) and " " in one), *comments])


@pytest.mark.parametrize("top", ["harness", "suites", "conf"])
def test_no_docstring_comment_text_or_configuration_uses_a_replaced_word(top):
    below = sorted(path for path in (ROOT / top).rglob("*.*") if path.suffix in (".py", ".yaml"))
    found = [f"{path.relative_to(ROOT)}: {word}" for path in below for word in replaced(prose(path))]
    assert not found
