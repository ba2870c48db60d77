"""What there is to run, one line each: `python -m harness list [WHAT] [suite=NAME]`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from textwrap import wrap

import yaml

from harness import techniques
from harness.code_fingerprint import ROOT, parsed
from harness.config import Run, load_suite, names
from harness.optimizations import CONF, SUITES, question_of
from harness.validation import ConfigError, describe, shown, unknown

WHAT = ("suites", "workloads", "variants", "techniques", "hardware", "executors")

WIDTH = 110
"""Longer lines are cut, those of techniques wrapped."""


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
        for name, text in rows:
            parts = wrap(text, WIDTH - width - 2) if kind == "techniques" else [text]
            for part, label in zip_longest(parts, [name], fillvalue=""):
                yield _cut(f"{label:{width}}  {part}".rstrip())


def _rows(kind: str, suites: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield names with a description of each."""
    if kind in ("hardware", "executors"):
        group = kind.removesuffix("s")
        for name in names(group):
            yield name, _first_comment(CONF / group / f"{name}.yaml")
        return
    if kind == "techniques":
        for name in techniques.names():
            yield from technique_lines(name, techniques.TECHNIQUES / f"{name}.py")
        return
    if kind == "suites":
        yield from ((suite, question_of(suite)) for suite in suites)
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
        yield one.name, one.title or (_about(source) if source.is_file() else "")


def technique_lines(name: str, file: Path) -> Iterator[tuple[str, str]]:
    """Yield a technique, then each of its settings with the default and what is allowed."""
    yield name, _about(file)
    if reason := techniques.literal(file, "NOT_BUILT"):
        yield "  not built", reason
    for setting, allowed in techniques.settings_of(file).items():
        default = allowed.get("default", "...")
        value = default if isinstance(default, str) else shown(default)
        stated = allowed.keys() & {"type", "one_of"}
        yield f"  {setting}={value}", describe(allowed) if stated else f"see {file.relative_to(ROOT)}"


def _about(file: Path) -> str:
    """Return the first line of a module's docstring."""
    return (ast.get_docstring(parsed(file)) or "").partition("\n")[0]


def _first_comment(file: Path) -> str:
    """Return a YAML file's first comment, or the name and memory of a device's."""
    text = file.read_text()
    if text.startswith("# "):
        return text.removeprefix("# ").partition("\n")[0]
    return str((yaml.safe_load(text) or {}).get("name", ""))


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"
