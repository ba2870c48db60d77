"""What there is to run, one line each: `python -m harness list [WHAT] [suite=NAME]`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap

from harness.config.code_fingerprint import ROOT, parsed
from harness.config.protocols import SuiteCode, function_of, optimization_file
from harness.config.run import Run, load_suite, names
from harness.config.validation import ConfigError, describe, shown, unknown
from harness.config.variants import techniques
from harness.config.variants.optimizations import CONF, code_of, question_of, read_yaml
from harness.config.words import by_key
from harness.units import human

WHAT = ("suites", "workloads", "variants", "techniques", "hardware", "executors")

WIDTH = 110
"""Columns where there is no terminal. Longer lines are cut, those of techniques wrapped."""


def list_lines(words: Sequence[str]) -> Iterator[str]:
    """Yield a line per listed item: all suites without a word, the content of a suite with one."""
    what = [word for word in words if "=" not in word]
    given = dict(by_key(words))
    suite = given.pop("suite", "")
    for word in what:
        if word not in WHAT:
            raise unknown(f"list {word}", word, WHAT)
    if given:
        raise ConfigError(f"{next(iter(given))}: list takes suite=NAME alone")
    if suite and suite not in names("suite"):
        raise unknown(f"suite={suite}", suite, names("suite"))
    columns = get_terminal_size((WIDTH, 24)).columns
    kinds = what or (["workloads", "variants"] if suite else ["suites", "hardware", "executors"])
    for number, kind in enumerate(kinds):
        if len(kinds) > 1:
            yield from ["", f"{kind}:"] if number else [f"{kind}:"]
        rows = list(_rows(kind, [suite] if suite else names("suite")))
        width = max((len(name) for name, _ in rows), default=0)
        for name, text in rows:
            parts = wrap(text, max(columns - width - 2, 20)) if kind == "techniques" else [text]
            for part, label in zip_longest(parts, [name], fillvalue=""):
                yield _cut(f"{label:{width}}  {part}".rstrip(), columns)


def _rows(kind: str, suites: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield names with a description of each."""
    if kind in ("hardware", "executors"):
        group = kind.removesuffix("s")
        describe_file = _device if kind == "hardware" else _first_comment
        for name in names(group):
            yield name, describe_file(CONF / group / f"{name}.yaml")
        return
    if kind == "techniques":
        for name in techniques.names():
            yield from technique_lines(name)
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
    code = code_of(run.suite)
    for one in run.variants:
        yield one.name, one.title or _about_optimization(code, one.module)


def _about_optimization(code: SuiteCode, name: str) -> str:
    if (function := function_of(code, name)) is not None:
        return function.about
    source = optimization_file(code, name)
    return _about(source) if source is not None else ""


def technique_lines(name: str) -> Iterator[tuple[str, str]]:
    """Yield a technique, then each of its settings with the default and what is allowed."""
    yield name, techniques.declared()[name].about
    for setting, allowed in techniques.settings_of(name).items():
        default = allowed.get("default", "...")
        value = default if isinstance(default, str) else shown(default)
        stated = allowed.keys() & {"type", "one_of"}
        see = techniques.file_of(name).relative_to(ROOT)
        yield f"  {setting}={value}", describe(allowed) if stated else f"see {see}"


def _about(file: Path) -> str:
    """Return the first line of a module's docstring."""
    return (ast.get_docstring(parsed(file)) or "").partition("\n")[0]


def _device(file: Path) -> str:
    """Return a device's name and what conf/hardware/ has of it."""
    sheet = read_yaml(file)
    memory_B = float(sheet["memory_B"])
    usable_B = float(sheet.get("usable_memory_B") or memory_B)
    parts = [f"{memory_B / 1e9:g} GB ({usable_B / 2**30:.1f} GiB usable)"]
    if rate := sheet.get("matmul_FLOP_per_s", {}).get("bf16"):
        parts.append(f"bf16 {human(float(rate), 'FLOP/s')}")
    if bandwidth := sheet.get("memory_bandwidth_B_per_s"):
        parts.append(f"{human(float(bandwidth), 'B/s')}")
    if link := sheet.get("link_B_per_s"):
        parts.append(f"link {human(float(link), 'B/s')}")
    return f"{sheet['name']}: {', '.join(parts)}"


def _first_comment(file: Path) -> str:
    """Return a YAML file's first comment, which says what it is."""
    return file.read_text().removeprefix("# ").partition("\n")[0]


def _cut(line: str, columns: int) -> str:
    return line if len(line) <= columns else line[: columns - 1] + "…"
