"""Changed copies of the kernels on symmetric memory, each without one ordering of memory."""

from __future__ import annotations

import ast
import difflib
import importlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from suites.overlap.symmetric import primitives


def replaced(source: str, node: Any, by: str) -> str:
    """Return the source with a node's text replaced; all lines keep their numbers."""
    lines = source.splitlines(keepends=True)
    begin = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    return source[:begin] + by + "\n" * (node.end_lineno - node.lineno) + source[end:]


def in_kernels(source: str, functions: Sequence[str] = ()) -> Iterator[Any]:
    """Return the statements of all kernels of a module, or of those with these names."""
    for kernel in ast.parse(source).body:
        named = isinstance(kernel, ast.FunctionDef) and (not functions or kernel.name in functions)
        if named and "triton.jit" in map(ast.unparse, kernel.decorator_list):
            yield from (node for node in ast.walk(kernel) if isinstance(node, ast.stmt))


def called(node: Any) -> str:
    """Return the function that a statement calls, if that is all it does, or assigns the result of."""
    is_call = isinstance(node, ast.Expr | ast.Assign) and isinstance(node.value, ast.Call)
    return ast.unparse(node.value.func) if is_call else ""


def dropped(source: str, function: str) -> Iterator[str]:
    for node in in_kernels(source):
        if called(node) == function:
            yield replaced(source, node, "pass")


def relaxed(source: str, function: str) -> Iterator[str]:
    for node in in_kernels(source):
        semantic = ast.keyword("semantic", ast.Constant("relaxed"))
        if called(node) == function and ast.unparse(semantic) not in map(ast.unparse, node.value.keywords):
            kept = [one for one in node.value.keywords if one.arg != "semantic"]
            call = ast.Call(node.value.func, node.value.args, [*kept, semantic])
            yield replaced(source, node, ast.unparse(call))


def with_words(source: str) -> str:
    """Return a module that polls words with the primitives in its own text; any other is empty."""
    (found,) = (
        one
        for one in ast.parse(source).body
        if isinstance(one, ast.ImportFrom) and one.module == primitives.__name__
    )
    if not {"get_words", "put_words"} & {one.name for one in found.names}:
        return ""
    text = Path(str(primitives.__file__)).read_text()
    imports = [one for one in ast.parse(text).body if isinstance(one, ast.Import | ast.ImportFrom)]
    return replaced(source, found, "".join(text.splitlines(keepends=True)[imports[-1].end_lineno :]))


def plain(source: str, function: str) -> Iterator[str]:
    source = with_words(source)
    for node in in_kernels(source, ("get_words", "put_words")):
        if called(node) == f"tl.atomic_{function}":
            kept = [one for one in node.value.keywords if one.arg not in ("sem", "scope")]
            call = ast.Call(ast.parse(f"tl.{function}").body[0].value, node.value.args, kept)
            yield replaced(source, node.value, ast.unparse(call))


def without_loops(source: str, function: str) -> Iterator[str]:
    source = with_words(source)
    for node in in_kernels(source, (function,)):
        if isinstance(node, ast.While):
            yield replaced(source, node, "pass")


class Change(NamedTuple):
    """A way to change each statement of a kind in a kernel, and how it is noticed."""

    mutants: Callable[[str, str], Iterator[str]]
    function: str
    noticed: tuple[str, ...] = ("race",)
    timeout_s: float = 60.0


CHANGES = {
    "dropped wait": Change(dropped, "wait", ("race", "endless wait")),
    "relaxed wait": Change(relaxed, "wait"),
    "relaxed notify": Change(relaxed, "notify"),
    "dropped notify": Change(dropped, "notify", ("endless wait",)),
    "dropped put_words": Change(dropped, "put_words", ("endless wait",), timeout_s=0.3),
    "words loaded once": Change(without_loops, "get_words", ("wrong result",)),
    "words loaded by plain loads": Change(plain, "load"),
    "words stored by plain stores": Change(plain, "store"),
}


def source_of(name: str) -> str:
    return Path(str(importlib.import_module(f"suites.overlap.symmetric.{name}").__file__)).read_text()


def mutants(name: str, change: str) -> list[str]:
    return list(CHANGES[change].mutants(source_of(name), CHANGES[change].function))


def difference(name: str, text: str) -> str:
    before = {source_of(name), with_words(source_of(name))}
    lines = min(
        (list(difflib.unified_diff(one.split("\n"), text.split("\n"), n=0)) for one in before), key=len
    )
    return "\n".join(["not noticed:", *lines])
