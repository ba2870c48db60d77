"""Change one thing in the code, run the tests that reach its line, and see whether one of them notices.

    mutants.py draw COVERAGE TIMES OUT [--seed N] [--count N]    which changes, and which tests reach each
    mutants.py again EARLIER COVERAGE TIMES OUT                  earlier changes whose lines still stand
    mutants.py run CHANGES OUT [--part 0/2]                      try each in this checkout, which is put back
    mutants.py show OUT…                                         the share that is noticed; what is not

COVERAGE: the data file of a whole run with a context per test (README.md beside this file has the command).
TIMES: the JUnit file of the same run. The checkout should be a git worktree of its own: its files change.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import sqlite3
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from scipy.stats import binomtest

ROOT = Path(__file__).parents[2]
PACKAGES = ("harness", "suites")
KINDS = ("comparison", "constant", "operator", "early return")
LONGEST_S = 60.0
"""Tests of one change take no more than that in all, by their earlier times."""
MOST_TESTS = 60

PHASES = ("|setup", "|run", "|teardown")
"""What pytest-cov adds to a test's name in a context."""

OPPOSITES = ((ast.Eq, ast.NotEq), (ast.In, ast.NotIn), (ast.Is, ast.IsNot))
NEIGHBOURS = ((ast.Lt, ast.LtE), (ast.Gt, ast.GtE))
COMPARISONS = {one: other for pair in OPPOSITES + NEIGHBOURS for one, other in (pair, pair[::-1])}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    **dict.fromkeys((ast.Div, ast.FloorDiv, ast.Mod, ast.Pow), ast.Mult),
}


class Site(NamedTuple):
    """One change: a node's source and what stands in its place. Lines from 1, columns in bytes from 0."""

    kind: str
    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    becomes: str
    statement: tuple[int, int]  # first and last line of the statement around it
    in_function: bool


def sites_of(file: Path) -> Iterator[Site]:
    """Yield every change of a file; annotations and docstrings have none."""
    text = file.read_text()
    tree = ast.parse(text)
    name = str(file.relative_to(ROOT))

    def site(kind: str, node: Any, becomes: str, statement: ast.stmt, inside: bool) -> Site:
        place = (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
        last = statement.lineno if hasattr(statement, "body") else statement.end_lineno or statement.lineno
        first = min(statement.lineno, node.lineno)
        return Site(kind, name, *place, becomes, (first, max(last, node.end_lineno)), inside)

    def visit(node: ast.AST, statement: ast.stmt | None, inside: bool) -> Iterator[Site]:
        if isinstance(node, ast.stmt):
            statement = node
        if statement is not None:
            for kind, becomes in changes_of(node):
                yield site(kind, node, becomes, statement, inside)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for one in node.body[1:]:
                if not isinstance(one, (ast.Return, ast.Raise, ast.FunctionDef, ast.ClassDef, ast.Pass)):
                    end = site("early return", one, "return None", one, True)
                    yield end._replace(end_line=end.line, end_column=end.column)
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            deeper = inside or (field == "body" and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from visit(child, statement, deeper)

    return visit(tree, None, False)


def changes_of(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield kind and source of what may take a node's place."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        ops = [COMPARISONS[type(node.ops[0])](), *node.ops[1:]]
        yield "comparison", f"({ast.unparse(ast.Compare(node.left, ops, node.comparators))})"
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS and not has_text(node):
        yield "operator", f"({ast.unparse(ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right))})"
    elif isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield "operator", f"({ast.unparse(ast.BoolOp(other, node.values))})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "operator", f"({ast.unparse(node.operand)})"
    elif isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        value = node.value
        other_value = not value if isinstance(value, bool) else value + 1 if value < 100 else value * 2
        yield "constant", repr(other_value)


def has_text(node: ast.BinOp) -> bool:
    """Return whether a text or a list is joined, which has no other operator."""
    kinds = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp)
    parts = (node.left, node.right)
    return any(isinstance(one, kinds) or isinstance(getattr(one, "value", None), str) for one in parts)


def changed(text: str, site: Site) -> str:
    """Return a file's text with the change; an early return stands before the statement."""
    lines = text.encode().splitlines(keepends=True)
    head = b"".join(lines[: site.line - 1]) + lines[site.line - 1][: site.column]
    rest = lines[site.end_line - 1][site.end_column :] + b"".join(lines[site.end_line :])
    becomes = site.becomes.encode()
    if site.kind == "early return":
        becomes += b"\n" + b" " * site.column
    return (head + becomes + rest).decode()


def source_files() -> list[Path]:
    return sorted(chain.from_iterable((ROOT / one).rglob("*.py") for one in PACKAGES))


def draw(count: int, seed: int) -> list[Site]:
    """Return as many changes of each kind, at random; each leaves code that compiles."""
    by_kind: dict[str, list[Site]] = defaultdict(list)
    for site in chain.from_iterable(map(sites_of, source_files())):
        by_kind[site.kind].append(site)
    chosen: list[Site] = []
    generator = random.Random(seed)
    for kind in KINDS:
        generator.shuffle(by_kind[kind])
        found = (site for site in by_kind[kind] if compiles(site))
        chosen += [site for site, _ in zip(found, range(count // len(KINDS)), strict=False)]
    return chosen


def compiles(site: Site) -> bool:
    """Return whether a change leaves code that Python takes, and that is another."""
    text = (ROOT / site.file).read_text()
    try:
        return ast.dump(ast.parse(changed(text, site))) != ast.dump(ast.parse(text))
    except SyntaxError:
        return False


class Reached:
    """Which tests reach which lines, and how long each takes."""

    def __init__(self, coverage: Path, times: Path) -> None:
        self._data = sqlite3.connect(coverage)
        self._files = {path: number for number, path in self._data.execute("select id, path from file")}
        self._prefix = os.path.commonpath([*self._files]) if self._files else ""
        self.times_s: dict[str, float] = defaultdict(float)
        for case in ElementTree.parse(times).iter("testcase"):
            self.times_s[name_of(case)] += float(case.get("time", 0))

    def tests(self, site: Site) -> list[str]:
        """Return the tests that reach a statement; where it runs on import, those that reach its file."""
        number = next((n for path, n in self._files.items() if path.endswith(f"/{site.file}")), None)
        if number is None:
            return []
        query = "select distinct context from arc join context on context_id = context.id where file_id = ?"
        lines = " and (abs(fromno) between ? and ? or abs(tono) between ? and ?)"
        first, last = site.statement
        found = self._data.execute(query + lines, (number, first, last, first, last)).fetchall()
        if not site.in_function:
            found = self._data.execute(query, (number,)).fetchall()
        names = (name.lstrip("|") for (name,) in found if "::" in name)
        return sorted({name.rpartition("|")[0] if name.endswith(PHASES) else name for name in names})

    def chosen(self, tests: Sequence[str]) -> list[str]:
        """Return quick ones, of one test file after the other, for as long as a change may take."""
        of_file: dict[str, list[str]] = defaultdict(list)
        for test in sorted(tests, key=self.time_s):
            of_file[test.split("::")[0]].append(test)
        files = sorted(of_file.values(), key=lambda ones: self.time_s(ones[0]))
        chosen, spent_s = [], 0.0
        for test in chain.from_iterable(zip_longest(*files)):
            if test is None or len(chosen) == MOST_TESTS:
                continue
            if chosen and spent_s + self.time_s(test) > LONGEST_S:
                continue
            chosen.append(test)
            spent_s += self.time_s(test)
        return chosen

    def time_s(self, test: str) -> float:
        return self.times_s.get(test, 1.0)


def name_of(case: ElementTree.Element) -> str:
    """Return a test's name as pytest takes it, from a JUnit case."""
    file = case.get("file") or f"{str(case.get('classname')).replace('.', '/')}.py"
    return f"{file}::{case.get('name')}"


def run(site: Site, tests: Sequence[str]) -> tuple[str, str]:
    if not tests:
        return "not reached", ""
    path = ROOT / site.file
    text = path.read_text()
    try:
        path.write_text(changed(text, site))
        code, failed = tried(tests)
    finally:
        path.write_text(text)
    if code in (PASSED, NONE_COLLECTED):
        return "survived" if code == PASSED else "not reached", ""
    if code not in (FAILED, HANGS, NOT_IMPORTED):
        return f"pytest ended with {code}", failed
    name = failed.removeprefix("FAILED ").removeprefix("ERROR ").partition(" - ")[0]
    known = [test for test in tests if test == name]
    if known and tried(known)[0] != PASSED:
        return "fails without it", name
    return "noticed", failed


PASSED, FAILED, NOT_IMPORTED, NONE_COLLECTED, HANGS = 0, 1, 2, 5, -1
"""Statuses of pytest, and one for a run that does not end."""


def tried(tests: Sequence[str]) -> tuple[int, str]:
    """Return pytest's status after some tests, and the line of the first that failed."""
    options = ["-x", "-p", "no:cacheprovider", "--timeout=120", "--tb=no", "-rfE"]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(ROOT)}
    try:
        command = [sys.executable, "-m", "pytest", *options, *tests]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    except subprocess.TimeoutExpired:
        return HANGS, "a hang"
    marks = ("FAILED ", "ERROR ")
    lines = done.stdout.splitlines()
    return done.returncode, next((line for line in lines if line.startswith(marks)), "")[:300]


def shown(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield lines: the share that was noticed, with its 95 % interval (Wilson's), then what was not."""
    for kind in (*KINDS, "all"):
        of = [row for row in rows if kind in ("all", row["kind"])]
        if of:
            counts = Counter(row["outcome"] for row in of)
            low, high = binomtest(counts["noticed"], len(of)).proportion_ci(method="wilson")
            share = counts["noticed"] / len(of)
            yield f"{kind:14} {len(of):4} noticed {share:.1%} ({low:.1%} to {high:.1%})  {dict(counts)}"
    for row in sorted(rows, key=lambda row: (row["file"], row["line"])):
        if row["outcome"] != "noticed":
            yield f"{row['outcome']:11} {row['file']}:{row['line']}  {row['was']}  ->  {row['becomes']}"


def places_now(earlier: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], Site]]:
    """Yield earlier changes whose line still stands, and where: in its own file, or in the only other."""
    now: dict[tuple[str, str, str], list[Site]] = defaultdict(list)
    for file in source_files():
        lines = file.read_text().splitlines()
        for site in sites_of(file):
            now[site.kind, site.becomes, lines[site.line - 1].strip()].append(site)
    for row in earlier:
        same = now[row["kind"], row["becomes"], row["was"]]
        own = [site for site in same if site.file == row["file"]]
        named = [site for site in same if Path(site.file).name == Path(row["file"]).name]
        chosen = next((ones for ones in (own, named, same) if ones), [])
        if chosen and (own or len(chosen) == 1):
            yield row, min(chosen, key=lambda site: abs(site.line - row["line"]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for command in ("draw", "again"):
        one = commands.add_parser(command)
        names = ("coverage", "times", "out") if command == "draw" else ("earlier", "coverage", "times", "out")
        for name in names:
            one.add_argument(name, type=Path)
    commands.choices["draw"].add_argument("--seed", type=int, default=55)
    commands.choices["draw"].add_argument("--count", type=int, default=300)
    one = commands.add_parser("run")
    for name in ("changes", "out"):
        one.add_argument(name, type=Path)
    one.add_argument("--part", default="0/1")
    commands.add_parser("show").add_argument("out", type=Path, nargs="+")
    words = parser.parse_args()
    if words.command == "draw":
        write((({}, site) for site in draw(words.count, words.seed)), words)
    elif words.command == "again":
        write(places_now(read(words.earlier)), words)
    elif words.command == "run":
        part, parts = map(int, words.part.split("/"))
        rows = read(words.changes)[part::parts]
        done = len(read(words.out)) if words.out.exists() else 0
        with words.out.open("a") as file:
            for row in rows[done:]:
                site = Site(**{name: row[name] for name in Site._fields})
                outcome, by = run(site._replace(statement=tuple(row["statement"])), row["tests"])
                file.write(json.dumps(row | {"outcome": outcome, "by": by}) + "\n")
                file.flush()
    else:
        print(*shown([row for path in words.out for row in read(path)]), sep="\n")


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(sites: Iterable[tuple[dict[str, Any], Site]], words: argparse.Namespace) -> None:
    """Write changes with the tests that reach them, and with what became of them earlier."""
    reached = Reached(words.coverage, words.times)
    with words.out.open("w") as file:
        for earlier, site in sites:
            lines = (ROOT / site.file).read_text().splitlines()
            tests = reached.tests(site)
            row = site._asdict() | {"was": lines[site.line - 1].strip(), "reach": len(tests)}
            row |= {"earlier": earlier["outcome"]} if earlier else {}
            file.write(json.dumps(row | {"tests": reached.chosen(tests)}) + "\n")


if __name__ == "__main__":
    main()
