"""The branches of a shell script that are taken, as far as its text alone decides them."""

from __future__ import annotations

import glob
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from harness.frameworks.shell_variables import OF_MACHINE, USED, filled, with_assigned

TOKEN = re.compile(
    r"(?:^|(?<=[;&|{])|(?<=\bthen)|(?<=\belse)|(?<=\bdo))[^\S\n]*"
    r"(?:(?P<test>if|elif)\s+(?P<condition>[^\n]*?)[^\S\n]*(?:;|\n)\s*then\b"
    r"|(?P<else>else)\b(?!\s*:)|(?P<end>fi)\b)"
    r"|\bcase\s+(?P<word>\S+)\s+in\b",
    re.MULTILINE,
)
"""What divides a script into branches; an `else:` is one of Python within."""

ESAC = re.compile(r"\besac\b")
BRANCH = re.compile(r"\s*\(?([^()\n]+)\)(.*?)(?:;;|\Z)", re.DOTALL)
PATTERN = re.compile(r"^\s*(?:-[\w-]+[^\S\n]*\|[^\S\n]*)*--?\w[\w-]*[^\S\n]*\)", re.MULTILINE)
"""The end of a shell's `case`, its branches, and patterns of theirs that look like options."""

TEST = re.compile(r"(!\s+)?(?:\[+\s+)?(!\s+)?(.*?)(?:\s+\]+)?")
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

BARE = re.compile(r"(?<![\w$.-])(?<!\$\{)[A-Za-z_]\w*")
"""Words that may set a variable: as `X=`, `for X in` or `read X`."""


DEEPEST = 100
"""An `if` within others; no script comes near it."""

UNKNOWN = "$command_output"
"""The value of a variable that only a run of the script knows."""


@dataclass
class _If:
    """An `if` that is read."""

    live: bool = True  # its branch at hand may be taken
    taken: bool = False  # one surely is
    sure: bool = True  # which one is known


def _tokens(text: str) -> Iterator[tuple[re.Match[str], str, int]]:
    """Yield what divides a script, with the branches of a `case`, and where it ends."""
    at, closed = 0, True
    while token := TOKEN.search(text, at):
        at, branches = token.end(), ""
        if token["word"] is not None:
            end = ESAC.search(text, at) if closed else None
            closed = end is not None
            if end is None:
                continue
            branches, at = text[at : end.start()], end.end()
        yield token, branches, at


class _BranchReader:
    """What is kept of a script, and the variables that it sets."""

    def __init__(self, text: str) -> None:
        self.settable = set(BARE.findall(text))
        self.variables: dict[str, str] = {}
        self.kept: list[str] = []

    def read(self, text: str, sure: bool = True) -> None:
        """Keep what may be taken of a text; raises ValueError where an `if` has no end.

        `sure`: the text itself is taken.
        """
        at, ifs = 0, [_If(sure=sure)]
        for token, branches, end in _tokens(text):
            live = all(one.live for one in ifs)
            if live:
                self.keep(text[at : token.start()], all(one.sure for one in ifs))
            at = end
            if token["word"] is not None:
                if live:
                    self.case(token["word"], branches, all(one.sure for one in ifs))
            elif token["test"] == "if":
                if len(ifs) == DEEPEST:
                    raise ValueError("ifs within ifs, deeper than any script's")
                ifs.append(_If())
                self.test(ifs[-1], token, live)
            elif len(ifs) == 1:
                raise ValueError(f"{token[0]} is of no if")
            elif token["end"]:
                ifs.pop()
            elif token["else"]:
                ifs[-1].live = not ifs[-1].taken
            else:
                self.test(ifs[-1], token, all(one.live for one in ifs[:-1]))
        if len(ifs) > 1:
            raise ValueError("an if has no end")
        self.keep(text[at:], sure)

    def keep(self, text: str, sure: bool) -> None:
        """Keep a text; `sure`: it is taken, so that its variables have their values after it."""
        self.kept.append(text)
        was = {**self.variables} if not sure else {}
        with_assigned(text, self.variables)
        if not sure:
            changed = {name for name, value in self.variables.items() if was.get(name) != value}
            self.variables |= dict.fromkeys(changed, UNKNOWN)

    def test(self, one: _If, token: re.Match[str], live: bool) -> None:
        """Enter the branch of a condition, of which `live` says whether it is reached."""
        holds = self.holds(token["condition"]) if live and not one.taken else False
        one.live, one.taken = holds is not False, one.taken or holds is True
        if holds is None:
            one.sure = False
            self.kept.append(f"{token[0]}\n")

    def case(self, word: str, branches: str, sure: bool) -> None:
        """Read the branch of a `case` whose pattern its word matches."""
        word = filled(word.strip("\"'"), self.variables)
        if "$" in word:
            self.kept.append(f"\ncase {word} in")
            return self.read(PATTERN.sub("", branches), sure=False)
        for names, body in BRANCH.findall(branches):
            if any(fnmatchcase(word, one.strip().strip("\"'")) for one in names.split("|")):
                return self.read(body, sure)
        return None

    def holds(self, condition: str) -> bool | None:
        """Return whether a condition in brackets holds; None where only a run of the script knows."""
        condition = condition.strip()
        if not (condition.startswith(("[", "! [")) and condition.endswith("]")):
            return None
        parts = re.split(r"\s+(&&|\|\|)\s+", BASENAME.sub(self._basename, condition))
        every = [self._holds(part) for part in parts[::2]]
        match set(parts[1::2]):
            case joins if len(joins) > 1:
                return None
            case joins if "||" in joins:
                return True if True in every else None if None in every else False
        return False if False in every else None if None in every else True

    def _basename(self, found: re.Match[str]) -> str:
        path = self.value(found[1] or found[2] or "")
        return found[0] if path is None else Path(path).name

    def _holds(self, part: str) -> bool | None:
        outer, inner, test = TEST.fullmatch(part).groups()  # type: ignore[union-attr]
        holds = self._compared(test)
        return None if holds is None else holds != (bool(outer) != bool(inner))

    def _compared(self, test: str) -> bool | None:
        if one := OF_ONE.fullmatch(test):
            value = self.value(one[2])
            if one[1] in ("-z", "-n"):
                return None if value is None else (value == "") == (one[1] == "-z")
            return False if value == "" else None
        if not (two := OF_TWO.fullmatch(test)):
            return None
        left, right = self.value(two[1]), self.value(two[3])
        if left is None or right is None:
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
        known = self.settable | {UNKNOWN[1:]}
        if any(name in known or OF_MACHINE.fullmatch(name) for name in names):
            return None
        text = USED.sub("", text)
        return None if "$" in text else text


def with_branches(text: str) -> str:
    """Return a script with the branches of each `if` and `case` that its text decides; of others with all."""
    reader = _BranchReader(text)
    try:
        reader.read(text)
    except ValueError:
        return text
    return "".join(reader.kept)
