"""What there is to run, one line each: `python -m harness list [WHAT] [suite=NAME]`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from harness.config import Run, load_suite, names
from harness.optimizations import CONF, SUITES
from harness.validation import ConfigError, unknown

WHAT = ("suites", "workloads", "variants", "hardware", "executors")

WIDTH = 110
"""Longer lines are cut."""


def list_lines(words: Sequence[str]) -> Iterator[str]:
    """Yield a line per listed item: all suites without a word, the content of a suite with one."""
    what = [word for word in words if "=" not in word]
    given = dict(word.split("=", 1) for word in words if "=" in word)
    suite = given.pop("suite", "")
    for word in what:
        if word not in WHAT:
            raise unknown(f"list {word}", word, WHAT)
    if given:
        raise ConfigError(f"{next(iter(given))}: list takes suite=NAME alone")
    if suite and suite not in names("suite"):
        raise unknown(f"suite={suite}", suite, names("suite"))
    kinds = what or (["workloads", "variants"] if suite else ["suites", "hardware", "executors"])
    for number, kind in enumerate(kinds):
        if len(kinds) > 1:
            yield from ["", f"{kind}:"] if number else [f"{kind}:"]
        rows = list(_rows(kind, [suite] if suite else names("suite")))
        width = max((len(name) for name, _ in rows), default=0)
        yield from (_cut(f"{name:{width}}  {text}".rstrip()) for name, text in rows)


def _rows(kind: str, suites: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield names with a description of each."""
    if kind in ("hardware", "executors"):
        group = kind.removesuffix("s")
        for name in names(group):
            yield name, _first_comment(CONF / group / f"{name}.yaml")
        return
    if kind == "suites":
        yield from ((suite, _question(CONF / "suite" / f"{suite}.yaml")) for suite in suites)
        return
    for suite in suites:
        run = load_suite(suite, {}, ())
        prefix = f"{suite} " if len(suites) > 1 else ""
        if kind == "workloads":
            yield from (
                (f"{prefix}{name}", str(one.get("source", ""))) for name, one in run.workloads.items()
            )
        else:
            yield from ((f"{prefix}{name}", text) for name, text in _variants(run))


def _variants(run: Run) -> Iterator[tuple[str, str]]:
    for one in run.variants:
        source = SUITES / run.suite / f"{one.module}.py"
        doc = ast.get_docstring(ast.parse(source.read_text())) if source.is_file() else None
        about = (doc or "").partition("\n")[0]
        yield one.name, one.title or about


def _question(file: Path) -> str:
    """Return the suite's question, read as text: composing every suite would take seconds."""
    lines = file.read_text().splitlines()
    return next((line.removeprefix("question: ") for line in lines if line.startswith("question: ")), "")


def _first_comment(file: Path) -> str:
    """Return a YAML file's first comment, or the name and memory of a device's."""
    text = file.read_text()
    if text.startswith("# "):
        return text.removeprefix("# ").partition("\n")[0]
    return str((yaml.safe_load(text) or {}).get("name", ""))


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"
