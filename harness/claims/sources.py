"""What the sources say: conf/sources.yaml, the one home of the statements that claims and answers refer to.

A reference is `document/statement`, a list of them, or `none`. docs/extend/claims-language.md describes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from harness.config.validation import ConfigError, Fields, as_mapping, check_fields, refuse_doubles, unknown

_TEXT = {"type": "str"}
DOCUMENT: Fields = {
    "cite": _TEXT,
    "provenance": {"type": "str", "one_of": ["stated", "secondary", "chart", "derived"]},
    "says": {"type": "dict"},
}
STATEMENT: Fields = {"text": _TEXT, "misquoted": {"type": "str", "default": ""}}

NONE = "none"
"""The reference of a claim whose authors give no source."""

NO_SOURCE = "No source is given."


class SourceStatement(NamedTuple):
    """A statement of a document."""

    text: str
    misquoted: str  # how the words quoted for it depart from it; "" where they do not
    cite: str
    provenance: str  # of the document: stated | secondary | chart | derived


Sources = Mapping[str, SourceStatement]
"""Statements by `document/statement`."""


class ClaimSource(NamedTuple):
    """What the source of a claim says, of one statement or several."""

    keys: tuple[str, ...]
    source_says: str
    misquoted: str
    source: str  # what is cited; "" without a source
    provenance: str  # of the first statement; "" without a source


def read_sources(where: str, data: Mapping[str, Any]) -> Sources:
    """Return the statements of conf/sources.yaml; raises ConfigError, also for what is stated twice."""
    statements: dict[str, SourceStatement] = {}
    documents = {
        name: check_fields(f"{where}.{name}", as_mapping(f"{where}.{name}", one), DOCUMENT)
        for name, one in data.items()
    }
    _refuse_same(where, {name: one["cite"] for name, one in documents.items()}, "cite")
    for name, document in documents.items():
        for key, one in as_mapping(f"{where}.{name}.says", document["says"]).items():
            at = f"{where}.{name}.says.{key}"
            fields = check_fields(at, as_mapping(at, one), STATEMENT)
            statements[f"{name}/{key}"] = SourceStatement(
                **fields, cite=document["cite"], provenance=document["provenance"]
            )
    _refuse_same(where, {key: one.text for key, one in statements.items()}, "text")
    return statements


def source_of(where: str, given: Any, sources: Sources, note: str = "") -> ClaimSource:
    """Return what the source says that a claim refers to; raises ConfigError for a reference that is none."""
    keys = [given] if isinstance(given, str) else given
    if not isinstance(keys, list) or not keys or not all(isinstance(key, str) for key in keys):
        raise ConfigError(
            f"{where}.source: {given!r}; expected DOCUMENT/STATEMENT, a list of them, or {NONE}"
        )
    refuse_doubles(f"{where}.source", keys)
    for key in keys:
        if key != NONE and key not in sources:
            raise unknown(f"{where}.source={key}", key, (NONE, *sources))
    if note and keys != [NONE]:
        raise ConfigError(
            f"{where}.note: only with source: {NONE}; what a source says belongs in conf/sources.yaml"
        )
    statements = [sources[key] for key in keys if key != NONE]
    return ClaimSource(
        keys=tuple(keys),
        source_says=" ".join(
            [NO_SOURCE] * (NONE in keys) + [one.text for one in statements] + [note] * bool(note)
        ),
        misquoted=" ".join(one.misquoted for one in statements if one.misquoted),
        source="; ".join(dict.fromkeys(one.cite for one in statements)),
        provenance=statements[0].provenance if statements else "",
    )


def refuse_unused(where: str, sources: Sources, used: Iterable[ClaimSource]) -> None:
    """Raise ConfigError for a statement that no claim and no answer refers to."""
    if unused := sorted(set(sources) - {key for one in used for key in one.keys}):
        raise ConfigError(f"{where}: no claim and no answer refers to {', '.join(unused)}")


def refuse_disagreement(answer: str, of_answer: ClaimSource, claim: str, of_claim: ClaimSource) -> None:
    """Raise ConfigError where an answer and a claim that quote the same words differ in what a source says.

    One may refer to more than the other, but not each to a statement of one document that the other leaves
    out; nor may one alone have no source, or be misquoted.
    """
    here, there = set(of_answer.keys), set(of_claim.keys)
    documents = {key.partition("/")[0] for key in here - there} & {
        key.partition("/")[0] for key in there - here
    }
    text = f"{answer}.source: quotes the words of {claim}, but "
    if documents:
        raise ConfigError(f"{text}refers to another statement of {', '.join(sorted(documents))}")
    if (NONE in here) != (NONE in there):
        raise ConfigError(f"{text}only one of them says that no source is given")
    if of_answer.misquoted != of_claim.misquoted:
        raise ConfigError(f"{text}only one of them is misquoted, or each in another way")


def same_words(one: str, other: str) -> bool:
    """Return whether a quotation is contained in another, whatever case, spaces and quotation marks."""
    shorter, longer = sorted((_words(one), _words(other)), key=len)
    return all(part in longer for part in shorter.split(" … "))


def _words(text: str) -> str:
    return " ".join(re.sub(r"[\"“”'’‘*]", "", text).lower().split())


def _refuse_same(where: str, texts: Mapping[str, str], what: str) -> None:
    """Raise ConfigError where two have the same text, whatever case, spaces and quotation marks."""
    first: dict[str, str] = {}
    for name, text in texts.items():
        before = first.setdefault(_words(text), name)
        if before != name:
            raise ConfigError(f"{where}.{name}.{what}: the same as of {before}; refer to that one")
