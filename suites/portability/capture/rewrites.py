"""Operators written differently for engines that have no code for them: what a target needs of its own.

`lines_of` counts these lines; a target that needs none shares every line with eager PyTorch.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def embedding_backward_by_one_hot(
    gradient: Tensor, indices: Tensor, rows: int, padding_index: int, scale_by_frequency: bool
) -> Tensor:
    """Return the gradient of an embedding's table as a product, in place of a scatter that adds."""
    gradient_ND, indices_N = gradient.flatten(0, -2), indices.flatten()
    chosen_VN = torch.arange(rows, device=indices.device)[:, None] == indices_N
    return chosen_VN.to(gradient.dtype) @ gradient_ND


REWRITES: dict[str, tuple[Any, Callable[..., Any]]] = {
    "embedding_backward": (torch.ops.aten.embedding_dense_backward.default, embedding_backward_by_one_hot),
}
"""By name: the operator, and what takes its place while the step is captured."""


def decompositions(names: Sequence[str]) -> Mapping[Any, Callable[..., Any]]:
    """Return the named rewrites by operator."""
    return dict(REWRITES[name] for name in names)


def lines_of(function: Callable[..., Any]) -> int:
    """Return the lines of a function's code, without blank lines, comments and its docstring."""
    return len(code_lines(inspect.getsource(function)))


def code_lines(source: str) -> set[int]:
    """Return the numbers of the lines of `source` that hold code; a docstring's are left out."""
    tree = ast.parse(inspect.cleandoc(source) if source[:1].isspace() else source)
    lines: set[int] = set()
    docstrings = set(_docstring_lines(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.expr | ast.stmt | ast.arg | ast.alias):
            lines |= {node.lineno, node.end_lineno or node.lineno}
    return lines - docstrings


def _docstring_lines(tree: ast.AST) -> list[int]:
    found: list[int] = []
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                found += range(body[0].lineno, (body[0].end_lineno or body[0].lineno) + 1)
    return found
