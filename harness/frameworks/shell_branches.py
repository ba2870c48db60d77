"""The branches of a shell script that are taken, as far as its text alone decides them."""

from __future__ import annotations

import glob
import operator
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from harness.frameworks.shell_variables import OF_MACHINE, USED, filled, names_set, with_assigned
from harness.frameworks.sourced import SOURCE

BRACKETS = r"\((?>[^()]|\((?>[^()]|\((?>[^()]|\([^()]*+\))*+\))*+\))*+\)"
LITERAL = re.compile(
    rf"""\\.|(?P<comment>(?<![^\s;&|()])\#[^\n]*)|(?<!<)<<-?[^\S\n]*(?P<mark>["']?)(?P<name>[A-Za-z_]\w*)(?P=mark)"""
    rf"""|'[^']*'|"(?>\\.|\${BRACKETS}|[^"\\])*+"|`[^`]*`|\${BRACKETS}""",
    re.DOTALL,
)
"""Text that has no branches of the script's own, and the begin of a document within it."""

KEYWORD = re.compile(
    r"(?:^|(?<=[;&|{()])|(?<=\bthen)|(?<=\belse)|(?<=\bdo))[^\S\n]*+"
    r"(?:(?P<name>if|then|elif|else|fi|esac)(?![\w=.:-])|case\s++(?P<word>\S++)\s++in\b)"
    r"|(?P<next>;;&?|;&)",
    re.MULTILINE,
)
"""What divides a script into branches, where a command begins."""

PATTERNS = re.compile(r"\s*+\(?([^()\n]++)\)")
"""The patterns of a branch of a `case`."""

TEST = re.compile(r"(!\s++)?(?:\[++\s++)?(!\s++)?(.*?)(?:\s++\]++)?")
WORD = r"""("[^"]*"|'[^']*'|[^\s"']+)"""
OF_ONE = re.compile(rf"(-[znfdes])\s+{WORD}")
OF_TWO = re.compile(rf"{WORD}\s+(==?|!=|-eq|-ne|-gt|-ge|-lt|-le)\s+{WORD}")
"""A test in brackets, and what it compares."""

NUMBERS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-ge": operator.ge,
    "-lt": operator.lt,
    "-le": operator.le,
}

BASENAME = re.compile(r"""\$\(basename\s+(?:"([^"\s]*)"|([^"\s)]+))\)""")
"""The last part of a path."""

OF_SHELL = re.compile(r"activate|bashrc|profile|conda", re.IGNORECASE)
"""Files that set up a shell and none of a script's own variables."""

BARE = re.compile(r"(?<![\w$.-])(?<!\$\{)[A-Za-z_]\w*")
"""Words that may set a variable: as `X=`, `for X in` or `read X`."""


DEEPEST = 100
"""A branch within others; no script comes near it."""

UNKNOWN = "$command_output"
"""The value of a variable that only a run of the script knows."""


@dataclass
class _Part:
    """A branch: where its condition or patterns begin, and its text after them."""

    start: int
    body: int
    condition: str = ""  # "" of an `else`
    end: int = 0
    within: list[_Node] = field(default_factory=list)


@dataclass
class _Node:
    """An `if`, or a `case` of a word, with its branches."""

    start: int
    word: str | None
    parts: list[_Part]
    end: int = 0


def _masked(text: str) -> str:
    """Return a text of the same length without its quoted text, output of commands and documents."""
    at, pieces = 0, []
    unended: set[str] = set()
    while found := LITERAL.search(text, at):
        end, name = found.end(), found["name"]
        if name and name not in unended:
            last = re.compile(rf"\n[^\S\n]*+{name}[^\S\n]*+$", re.MULTILINE).search(text, end)
            end = last.end() if last else end
            unended |= set() if last else {name}
        pieces += [text[at : found.start()], (" " if found["comment"] else "_") * (end - found.start())]
        at = end
    return "".join([*pieces, text[at:]])


def _nodes(text: str, masked: str) -> list[_Node]:
    """Return the outermost branches of a script; those of no known begin or end are text as any other."""
    root = _Node(0, None, [_Part(0, 0)])
    stack = [root]
    condition: re.Match[str] | None = None  # an `if` or `elif` before its `then`

    def dropped() -> None:
        node = stack.pop()
        stack[-1].parts[-1].within += [one for part in node.parts for one in part.within]

    for token in KEYWORD.finditer(masked):
        name, before, condition = token["name"], condition, None
        top = stack[-1]
        if name in ("if", "elif"):
            condition = token
        elif name == "then" and before:
            part = _Part(before.start(), token.end(), text[before.end() : token.start()].strip().rstrip(";"))
            if before["name"] == "if":
                stack.append(_Node(before.start(), None, [part]))
            elif top.word is None and top is not root:
                top.parts[-1].end = before.start()
                top.parts.append(part)
        elif token["word"]:
            part = _Part(token.end(), token.end())
            stack.append(_Node(token.start(), text[slice(*token.span("word"))], [part]))
        elif name == "esac" and any(node.word is not None for node in stack):
            while stack[-1].word is None:
                dropped()
            _close(stack, token)
        elif top is not root and top.word is None and name == "fi":
            _close(stack, token)
        elif top is not root and (name == "else" if top.word is None else token["next"]):
            top.parts[-1].end = token.start()
            top.parts.append(_Part(token.start(), token.end()))
    while len(stack) > 1:
        dropped()
    return root.parts[0].within


def _close(stack: list[_Node], token: re.Match[str]) -> None:
    """End the innermost node at its last word."""
    node = stack.pop()
    node.parts[-1].end, node.end = token.start(), token.end()
    stack[-1].parts[-1].within.append(node)


class _BranchReader:
    """What is kept of a script, and the variables that it sets."""

    def __init__(self, text: str) -> None:
        self.text, self.masked = text, _masked(text)
        self.settable = {*BARE.findall(text), UNKNOWN[1:]}
        self.variables: dict[str, str] = {}
        self.kept: list[str] = []
        self.unread = False  # a file that it sources, which may set any variable

    def read(self, part: _Part, sure: bool = True, depth: int = 0) -> None:
        """Keep what may be taken of a branch; `sure`: the branch itself is taken."""
        at = part.body
        for node in part.within:
            self.keep(self.text[at : node.start], sure)
            at = node.end
            if depth == DEEPEST:
                self.keep(self.text[node.start : at], sure=False)
            elif node.word is None:
                self.test(node, sure, depth + 1)
            else:
                self.case(node, node.word, sure, depth + 1)
        self.keep(self.text[at : part.end], sure)

    def keep(self, text: str, sure: bool) -> None:
        """Keep a text; `sure`: it is taken, so that its variables have their values after it."""
        self.kept.append(f"{text}\n")
        self.unread = self.unread or any(not OF_SHELL.search(found[1]) for found in SOURCE.finditer(text))
        was = {} if sure else {name: self.variables.get(name) for name in names_set(text)}
        with_assigned(text, self.variables)
        for name, value in was.items():
            if self.variables.get(name) != value:
                self.variables[name] = UNKNOWN

    def test(self, node: _Node, sure: bool, depth: int) -> None:
        """Read the branches of an `if` up to the first whose condition holds."""
        for part in node.parts:
            holds = self.holds(part.condition) if part.condition else True
            if holds is None:
                sure = False
                self.kept.append(f"{self.text[part.start : part.body]}\n")
            if holds is not False:
                self.read(part, sure, depth)
            if holds:
                return

    def case(self, node: _Node, word: str, sure: bool, depth: int) -> None:
        """Read the branch of a `case` whose pattern its word matches; all of one that only a run knows."""
        word = filled(word.strip("\"'"), self.variables)
        known = "$" not in word
        if not known:
            self.kept.append(f"\ncase {word} in\n")
        for part in node.parts:
            if not (found := PATTERNS.match(self.masked, part.body, part.end)):
                continue
            part.body = found.end()
            names = self.text[slice(*found.span(1))].split("|")
            if not known:
                self.read(part, sure=False, depth=depth)
            elif any(fnmatchcase(word, one.strip().strip("\"'")) for one in names):
                return self.read(part, sure, depth)
        return None

    def holds(self, condition: str) -> bool | None:
        """Return whether a condition in brackets holds; None where only a run of the script knows."""
        condition = re.sub(r"\s++", " ", condition).strip()
        if not (condition.startswith(("[", "! [")) and condition.endswith("]")):
            return None
        parts = re.split(r"\s+(&&|\|\|)\s+", BASENAME.sub(self._basename, condition))
        every = [self._holds(part, "[[" in condition) for part in parts[::2]]
        match set(parts[1::2]):
            case joins if len(joins) > 1:
                return None
            case joins if "||" in joins:
                return True if True in every else None if None in every else False
        return False if False in every else None if None in every else True

    def _basename(self, found: re.Match[str]) -> str:
        path = self.value(found[1] or found[2] or "")
        return found[0] if path is None else Path(path).name

    def _holds(self, part: str, double: bool) -> bool | None:
        outer, inner, test = TEST.fullmatch(part).groups()  # type: ignore[union-attr]
        holds = self._compared(test, double)
        return None if holds is None else holds != (bool(outer) != bool(inner))

    def _compared(self, test: str, double: bool) -> bool | None:
        """Return what a test says; one in single brackets sees no word where an unquoted one is empty."""

        def lost(word: str, value: str | None) -> bool:
            return value == "" and not double and word[0] not in "\"'"

        if one := OF_ONE.fullmatch(test):
            value = self.value(one[2])
            if one[1] != "-z" and lost(one[2], value):
                return None
            if one[1] in ("-z", "-n"):
                return None if value is None else (value == "") == (one[1] == "-z")
            return False if value == "" else None
        if not (two := OF_TWO.fullmatch(test)):
            return None
        left, right = self.value(two[1]), self.value(two[3])
        if left is None or right is None:
            return None
        if two[2] == "!=" and (lost(two[1], left) or lost(two[3], right)):
            return None
        if two[2] in NUMBERS:
            with suppress(ValueError):
                return NUMBERS[two[2]](int(left), int(right))
            return None
        pattern = glob.escape(right) if two[3][:1] in "\"'" else right
        return fnmatchcase(left, pattern) == (two[2] != "!=")

    def value(self, word: str) -> str | None:
        """Return a word's value, in which a variable that nothing sets is empty; None of any other."""
        text = filled(word.strip("\"'"), self.variables)
        names = {found[1] or found[3] for found in USED.finditer(text)}
        if any(self.unread or name in self.settable or OF_MACHINE.fullmatch(name) for name in names):
            return None
        text = USED.sub("", text)
        return None if "$" in text else text


def with_branches(text: str) -> str:
    """Return a script with the branches of each `if` and `case` that its text decides; of others with all."""
    reader = _BranchReader(text)
    nodes = _nodes(text, reader.masked)
    if not nodes:
        return text
    reader.read(_Part(0, 0, end=len(text), within=nodes))
    return "".join(reader.kept)
