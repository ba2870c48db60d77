"""A shell script's variables, as far as its text alone decides them."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

LARGEST_FILE_B = 10_000_000
"""No configuration comes near this size."""

IN_BRACKETS = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
QUOTED = rf'"(?>\${IN_BRACKETS}|[^"])*+"'
ASSIGNED = re.compile(
    r"""^[^\S\n]*+(?:(?:export|readonly|local|declare(?: -\w+)*)\s++)?"""
    rf"""(\w+\+?)=(\$?{IN_BRACKETS}|{QUOTED}(?:[^\s"';#]+{QUOTED})*|'[^']*'"""
    rf"""|(?>\$\{{(?:[^{{}}\n]|\{{[^{{}}\n]*\}})*\}}|\${IN_BRACKETS}|`[^`\n]*`|[^\s#;])*+)""",
    re.MULTILINE,
)
"""A shell's assignment of a word, a quoted text, an array or a command's output, which may have spaces."""

POSITIONAL = re.compile(r"\$(?:\d|\{(?:\d+|\w+#[^{}]*=)\}|@|\*)\Z")
"""What the script's own caller gives; a value that the script set before is its default."""

USED_SO = r"(?:\[[@*]\])?(?::?[-=]((?:[^{}]|\{[^{}]*\})*))?"
USED = re.compile(r"\$\{(\w+)" + USED_SO + r"\}|\$(\w+)")
"""A use of a shell's variable, with the value it has when it is not set."""

DEFAULTED = re.compile(r"\$\{(\w+):?=((?:[^{}\n]|\{[^{}\n]*\})*)\}")
"""A use of a variable that sets it where it is not set."""

ARITHMETIC = re.compile(r"\$\(\(([^()]*(?:\([^()]*\)[^()]*)*)\)\)|\$\(expr ([^()]*)\)|`expr ([^`]*)`")
"""A shell's sums and products of whole numbers."""

OUTPUT = re.compile(rf"\${IN_BRACKETS}|`[^`\n]*`")
"""A command whose output only a run of the script knows."""

OF_MACHINE = re.compile(
    r"(?:SLURM|CUDA|MASTER|BASH|NCCL|HF)_\w+|HOME|USER|PWD|PATH|RANK|WORLD_SIZE|HOSTNAME|\d+|\w"
)
"""Variables that a machine or the script's caller sets."""

SUM = re.compile(r"[\d\s+*/%()-]+")
"""What of them is calculated here."""


def assigned(text: str) -> Iterator[tuple[str, str]]:
    """Yield a script's variables with their values; a name ends in + where the value is added."""
    for found in ASSIGNED.finditer(text):
        name, value = found.group(1), found.group(2)
        if value[:1] in "\"'" or (value.startswith("(") and value.endswith(")")):
            value = value[1:-1].replace('"', "") if value[0] == '"' else value[1:-1]
        yield name, " ".join(line.partition(" #")[0] for line in value.splitlines())


def _set(text: str) -> Iterator[tuple[str, str]]:
    """Yield the variables that a use sets where they are not set, and then those that are assigned."""
    defaults = [(found[1], f"${{{found[1]}:-{found[2]}}}") for found in DEFAULTED.finditer(text)]
    yield from (*defaults, *assigned(text)) if defaults else assigned(text)


def names_set(text: str) -> set[str]:
    """Return the names of a text's variables."""
    return {name.rstrip("+") for name, _ in _set(text)}


def with_assigned(text: str, variables: dict[str, str]) -> None:
    """Add to the variables what a script's text assigns, in which earlier values are filled in."""
    for name, value in _set(text):
        added = name.endswith("+")
        name = name.rstrip("+")
        if POSITIONAL.match(value) and name in variables:
            continue
        value = USED.sub(partial(_own, name, variables.get(name)), value)
        variables[name] = f"{variables.get(name, '')} {value}" if added else value


def _own(name: str, before: str | None, found: re.Match[str]) -> str:
    """Return what a use of a variable in its own value stands for; of another's, its default may use it."""
    if name != (found[1] or found[3]):
        default = found[2] or ""
        within = USED.sub(partial(_own, name, before), default) if default else ""
        return found[0].replace(default, within) if within != default else found[0]
    return _default(found[2]) if before is None else before


def _default(value: str | None) -> str:
    """Return a variable's value where it is not set, without its quotes."""
    return (value or "").strip("\"'")


def filled(text: str, variables: dict[str, str]) -> str:
    """Return a text with its variables and sums; a command's output is $command_output."""

    def value(found: re.Match[str]) -> str:
        name = found.group(1) or found.group(3)
        return variables.get(name, _default(found.group(2)) or found.group())

    def calculated(found: re.Match[str]) -> str:
        words = next(one for one in found.groups() if one is not None).replace("\\*", "*")
        for _ in range(10):  # variables that are sums themselves, or another's value
            words = USED.sub(value, words)
            words = re.sub(r"[A-Za-z_]\w*", lambda one: variables.get(one.group(), one.group()), words)
            words = words.replace("$((", "((")[:LARGEST_FILE_B]
        if SUM.fullmatch(words) and len(words) <= 200:
            with suppress(ValueError):
                return str(evaluated(words))
        return found.group()

    for _ in range(5):  # variables of variables
        whole = ARITHMETIC.sub(calculated, USED.sub(value, text))
        if whole == text:
            break
        text = whole[:LARGEST_FILE_B]
    return OUTPUT.sub("$command_output", text)


OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}
"""A shell divides whole numbers."""


LONGEST = 10_000
"""Elements of a list that is repeated."""


def evaluated(text: str) -> list[int] | int:
    """Return the value of a sum or product of whole numbers, or of lists of such as in ([0]*3+[1]*58).

    Raises ValueError for anything else.
    """

    def value(node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=int() as number):
                return number
            case ast.UnaryOp(op=ast.USub(), operand=operand) if isinstance(number := value(operand), int):
                return -number
            case ast.List() | ast.Tuple():
                return [one for one in map(value, node.elts) if isinstance(one, int)]
            case ast.BinOp():
                left, right, apply = value(node.left), value(node.right), OPERATORS.get(type(node.op))
                if isinstance(left, list) and isinstance(right, int) and isinstance(node.op, ast.Mult):
                    return left * min(right, LONGEST)
                added = isinstance(node.op, ast.Add) or isinstance(left, int)
                if apply and added and type(left) is type(right):
                    return apply(left, right)
        raise ValueError(text)

    try:
        return value(ast.parse(text.strip().strip("\"'"), mode="eval").body)  # type: ignore[no-any-return]
    except (SyntaxError, ZeroDivisionError, RecursionError) as error:
        raise ValueError(text) from error
