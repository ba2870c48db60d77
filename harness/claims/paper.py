"""Read conf/answers.yaml: each claim of the paper and the article, with its source and the public record.

`harness.claims.answers` answers them. Quoted words are looked up in conf/quotations.yaml, so that none is
invented, and what a source says in conf/sources.yaml, so that answers and claims cannot disagree on it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from harness.claims.load import load_sources, read_yaml
from harness.claims.published import (
    ClaimSource,
    PublishedRow,
    Sources,
    refuse_disagreement,
    refuse_unused,
    rows,
    same_words,
    source_of,
)
from harness.config.optimizations import CONF
from harness.config.validation import ConfigError, Fields, as_mapping, check_fields, refuse_doubles

_TEXT = {"type": "str"}
_OPTIONAL = {"type": "str", "default": ""}
FILE: Fields = {
    "texts": {"type": "dict"},
    "parts": {"type": "dict"},
    "methods": {"type": "list"},
    "sentences": {"type": "list"},
    "series": {"type": "list", "default": []},
    "tables": {"type": "list"},
    "claims": {"type": "dict"},
    "statements": {"type": "list"},
}
TABLE: Fields = {
    "title": _TEXT,
    "by": _TEXT,
    "named_by": {"type": "int", "default": 1, "at_least": 1},
    "rows": {"type": "dict"},
}
PART: Fields = {"by": _TEXT, "title": _TEXT}
CLAIM: Fields = {
    "id": _TEXT,
    "section": _TEXT,
    "quoted": _TEXT,
    "claim": _TEXT,
    "do": _TEXT,
    "band": {"type": "list", "default": None},
    "unit": {"type": "str", "default": "x"},
    "per": _OPTIONAL,
    "often": {"type": "bool", "default": False},
    "universal": {"type": "bool", "default": False},
    "exists": {"type": "bool", "default": False},
    "source": {},
    "note": _OPTIONAL,
    "public": {"type": "list", "default": []},
    "judged": {"type": "list", "default": []},
    "related": {"type": "list", "default": []},
    "would_decide": _OPTIONAL,
    "not_built": _OPTIONAL,
    "untestable": _OPTIONAL,
}
PUBLIC: Fields = {
    "of": _TEXT,
    "origin": {"type": "str", "default": "published", "one_of": ["published", "calculated"]},
    "source": _TEXT,
    "values": {"type": "dict", "default": {}},
    "rows": _OPTIONAL,
    "where": {"type": "dict", "default": {}},
    "note": _OPTIONAL,
    "decides": {"type": "bool", "default": False},
    "own": {"type": "bool", "default": False},
}

METHOD: Fields = {
    "name": _TEXT,
    "predicts": {"type": "list"},
    "metrics": {"type": "list", "default": []},
    "origin": _TEXT,
    "suite": _TEXT,
    "workload": _OPTIONAL,
    "conditions": {"type": "dict", "default": {}},
    "metric": _TEXT,
    "method": _TEXT,
    "known_from": _TEXT,
}
SENTENCE: Fields = {
    "text": _TEXT,
    "answers": {"type": "dict"},
    "values": {"type": "list", "default": []},
}
STATEMENT: Fields = {"by": _TEXT, "section": _TEXT, "quoted": _TEXT, "why": _TEXT}

SHORTEST = 10
"""Characters of a quotation, and of each of its parts."""


UNIT_OF = {"x": "1", "%": "1", "GPUs": "1", "parameters": "1"}
"""Base units of the units in which claims are printed; any other is its own."""


@dataclass(frozen=True, slots=True)
class PublicRecord:
    """What others published on a claim, each value by its name; of committed rows, or a few named here."""

    of: str
    origin: str  # published, or calculated by the source's formula
    source: str  # repository and path, or the paper
    values: Mapping[str, float]
    rows: str  # the file of conf/published whose rows these are; "" where the values stand in answers.yaml
    note: str
    decides: bool  # the claim's own metric, on the claim's class of device
    own: bool = False  # by the claim's own source: shown, never counted


@dataclass(frozen=True, slots=True)
class PaperClaim:
    """A claim of the paper or the article. `band`: what it accepts; None where it states no number."""

    id: str
    by: str  # paper | article
    section: str
    quoted: str
    claim: str
    band: tuple[float, float] | None
    unit: str
    per: str  # what a value is of, where it is no total: "parameter"
    often: bool  # it says "often" or "common": one half of what is known suffices
    misquoted: str
    source_says: str
    source: str
    public: tuple[PublicRecord, ...]
    judged: tuple[str, ...]  # <suite>/<claim> of conf/claims
    not_built: str
    untestable: str
    part: str = ""  # of the paper, a name of `PaperClaims.parts`
    do: str = ""  # what a reader should do
    universal: bool = False  # "requires", "mandates": one counterexample contradicts it
    exists: bool = False  # "can", "enables": one example confirms it
    related: tuple[str, ...] = ()  # <suite>/<claim> on another quantity: shown next to it, never counted
    would_decide: str = ""  # of one that is not decided; "" where the judged claims' conditions say it


class Method(NamedTuple):
    """A way of predicting, and where its error on measurements of others is recorded."""

    name: str
    predicts: Sequence[str]  # suites whose values of `origin` it predicts, or claims of them
    origin: str
    suite: str  # whose records have its relative errors
    metric: str
    method: str
    known_from: str  # what it was compared with
    workload: str = ""  # a pattern of those whose records count; "" for all
    conditions: Mapping[str, str] = {}  # of the records that count: those out of sample
    metrics: Sequence[str] = ()  # that it predicts; () for all


class Sentence(NamedTuple):
    """A sentence that a reader can repeat: shown while these claims have these answers."""

    text: str  # with {0}, {1} … for the values
    answers: Mapping[str, str]  # claim -> answer
    values: Sequence[str]  # "<suite>/<claim> | group | origin"


class Statement(NamedTuple):
    """A sentence of the seeds that states nothing that can be tested, and why."""

    by: str
    section: str
    quoted: str
    why: str


class PaperRow(NamedTuple):
    """A row of a table of the paper: the cells that name it, those that claim something, and its claims."""

    name: str
    claimed: str
    claims: Sequence[str]


class PaperTable(NamedTuple):
    """A table of the paper or the article, row by row."""

    title: str
    rows: Sequence[PaperRow]


@dataclass(frozen=True, slots=True)
class PaperClaims:
    """conf/answers.yaml: what is claimed, in the order of the paper, and by what it is answered."""

    parts: Mapping[str, str]  # name -> title, in order
    claims: tuple[PaperClaim, ...]
    methods: tuple[Method, ...]
    sentences: tuple[Sentence, ...]
    statements: tuple[Statement, ...]
    tables: tuple[PaperTable, ...] = ()


def load_answers(conf: Path = CONF) -> PaperClaims:
    """Return the file's content; raises ConfigError naming the claim and the field."""
    path = conf / "answers.yaml"
    data = check_fields(path.name, read_yaml(path), FILE)
    quotations = read_yaml(conf / "quotations.yaml")
    sources = load_sources(conf)
    parts = {
        name: check_fields(f"{path.name}.parts.{name}", as_mapping(f"{path.name}.parts.{name}", one), PART)
        for name, one in data["parts"].items()
    }
    if unknown := data["claims"].keys() - parts:
        raise ConfigError(f"{path.name}.claims: {', '.join(unknown)}: expected one of {', '.join(parts)}")
    if unknown := {one["by"] for one in parts.values()} - data["texts"].keys():
        raise ConfigError(f"{path.name}.parts: {', '.join(unknown)}; allowed: {', '.join(data['texts'])}")
    listed = [(name, one) for name in parts for one in data["claims"].get(name, ())]
    claims = tuple(
        _claim(f"{path.name}.claims.{name}", one, name, parts[name]["by"], quotations, sources, conf)
        for name, one in listed
    )
    _refuse_other_sources(path.name, conf, [one for _, one in listed], sources)
    refuse_doubles(f"{path.name}.claims", [one.id for one in claims])
    statements = tuple(
        Statement(**fields) for fields in _all(f"{path.name}.statements", data["statements"], STATEMENT)
    )
    for one in statements:
        if not is_quoted(one.quoted, quotations.get(one.by, {})):
            raise ConfigError(f"{path.name}.statements: {one.quoted!r} is nowhere in conf/quotations.yaml")
    methods = tuple(Method(**fields) for fields in _all(f"{path.name}.methods", data["methods"], METHOD))
    sentences = tuple(
        Sentence(**fields) for fields in _all(f"{path.name}.sentences", data["sentences"], SENTENCE)
    )
    known = {one.id for one in claims}
    for sentence in sentences:
        if unknown := set(sentence.answers) - known:
            raise ConfigError(f"{path.name}.sentences: {', '.join(unknown)} is no claim of the file")
    tables = tuple(
        _table(f"{path.name}.tables ({fields['title']})", fields, known, quotations)
        for fields in _all(f"{path.name}.tables", data["tables"], TABLE)
    )
    return PaperClaims(
        {name: one["title"] for name, one in parts.items()}, claims, methods, sentences, statements, tables
    )


def _table(where: str, data: Mapping[str, Any], known: set[str], quotations: Mapping[str, Any]) -> PaperTable:
    """Return a table; raises ConfigError for words that are nowhere in it, and for a claim that is none."""
    rows = []
    for words, ids in data["rows"].items():
        if not is_quoted(words, quotations.get(data["by"], {})):
            raise ConfigError(f"{where}.rows: {words!r} is nowhere in conf/quotations.yaml")
        if unknown := set(ids) - known:
            raise ConfigError(f"{where}.rows: {', '.join(sorted(unknown))} is no claim of the file")
        cells = [one.strip() for one in words.split(" | ")]
        named = data["named_by"]
        rows.append(PaperRow(": ".join(cells[:named]), "; ".join(cells[named:]), tuple(ids)))
    return PaperTable(data["title"], rows)


def _all(where: str, entries: Sequence[Any], fields: Fields) -> list[dict[str, Any]]:
    return [check_fields(f"{where}[{i}]", as_mapping(where, one), fields) for i, one in enumerate(entries)]


def is_quoted(words: str, sections: Mapping[str, Sequence[str]]) -> bool:
    """Return whether the words occur in any section; what is between ` … ` is looked up by itself."""
    parts = words.split(" … ")
    sentences = [one for section in sections.values() for one in section]
    long = all(len(part) >= SHORTEST for part in parts)
    return long and all(any(part in one for one in sentences) for part in parts)


def _claim(
    where: str,
    data: Any,
    part: str,
    by: str,
    quotations: Mapping[str, Any],
    sources: Sources,
    conf: Path,
) -> PaperClaim:
    data = as_mapping(where, data)
    where = f"{where} ({data.get('id', 'no id')})"
    fields = check_fields(where, data, CLAIM)
    if not is_quoted(fields["quoted"], quotations.get(by, {})):
        raise ConfigError(f"{where}.quoted: {fields['quoted']!r} is nowhere in conf/quotations.yaml")
    if not fields["claim"]:
        raise ConfigError(f"{where}.claim: empty; expected the claim in plain words")
    refuse_doubles(f"{where}.judged", [*fields["judged"], *fields["related"]])
    band = _band(f"{where}.band", fields["band"])
    public = tuple(_public(f"{where}.public[{i}]", one, band, conf) for i, one in enumerate(fields["public"]))
    lists = {name: tuple(fields[name]) for name in ("judged", "related")}
    source = source_of(where, fields.pop("source"), sources, fields.pop("note"))
    of_source = {name: getattr(source, name) for name in ("source", "source_says", "misquoted")}
    _refuse_own(where, source, public)
    own = {"by": by, "part": part, "band": band, "public": public}
    return PaperClaim(**{**fields, **lists, **of_source, **own})


ADDRESS = re.compile(r"\b\d{4}\.\d{5}\b|\b[A-Za-z][\w-]+/[A-Za-z][\w.-]+\b")
"""An arXiv identifier, or the name of a repository."""


def _refuse_own(where: str, source: ClaimSource, public: Sequence[PublicRecord]) -> None:
    """Raise ConfigError where what the claim's own source measured is counted: it cannot decide on itself."""
    of_source = set(ADDRESS.findall(source.source))
    for i, record in enumerate(public):
        same = of_source & set(ADDRESS.findall(record.source))
        if record.own and record.decides:
            raise ConfigError(f"{where}.public[{i}]: own and decides are both given; keep one")
        if same and not record.own and record.origin != "calculated":
            raise ConfigError(
                f"{where}.public[{i}]: of {', '.join(sorted(same))}, the claim's source; expected own: true"
            )


def _refuse_other_sources(where: str, conf: Path, answers: Sequence[Any], sources: Sources) -> None:
    """Raise ConfigError where an answer and a claim it judges by quote the same words of different sources.

    Also for a statement that neither the answers nor conf/claims refer to.
    """
    claims: dict[str, tuple[str, ClaimSource]] = {}
    for path in sorted((conf / "claims").glob("*.yaml")):
        for one in read_yaml(path).get("claims", ()):
            claim = as_mapping(path.name, one)
            name = f"{path.stem}/{claim.get('id', 'no id')}"
            source = source_of(f"{path.name} ({claim.get('id', 'no id')})", claim.get("source"), sources)
            claims[name] = str(claim.get("quoted", "")), source
    used = [source for _, source in claims.values()]
    for answer in answers:
        at = f"{where} ({answer['id']})"
        source = source_of(at, answer["source"], sources, answer.get("note", ""))
        used.append(source)
        for name in (*answer.get("judged", ()), *answer.get("related", ())):
            if name in claims and same_words(answer["quoted"], claims[name][0]):
                refuse_disagreement(at, source, name, claims[name][1])
    refuse_unused("sources.yaml", sources, used)


def _band(where: str, ends: Sequence[Any] | None) -> tuple[float, float] | None:
    if ends is None:
        return None
    if len(ends) != 2 or not all(isinstance(end, int | float) for end in ends) or not ends[0] < ends[1]:
        raise ConfigError(f"{where}: {ends!r}; expected [LOW, HIGH], the lower number first")
    return float(ends[0]), float(ends[1])


def _public(where: str, data: Any, band: tuple[float, float] | None, conf: Path) -> PublicRecord:
    fields = check_fields(where, as_mapping(where, data), PUBLIC)
    if fields["values"] and fields["rows"]:
        raise ConfigError(f"{where}: values and rows are both given; keep one")
    if fields["where"] and not fields["rows"]:
        raise ConfigError(f"{where}.where: selects rows; rows is missing")
    values = {str(name): float(value) for name, value in fields["values"].items()}
    if not all(math.isfinite(value) for value in values.values()):
        raise ConfigError(f"{where}.values: expected finite numbers")
    if fields["rows"]:
        values = _named(rows(fields["rows"], fields["where"], conf=conf))
    if fields["decides"] and (band is None or not values):
        raise ConfigError(f"{where}.decides: needs the claim's band, and values or rows")
    return PublicRecord(**{**{k: v for k, v in fields.items() if k != "where"}, "values": values})


def _named(rows_: Sequence[PublishedRow]) -> dict[str, float]:
    """Return the rows' values by what distinguishes them; rows that read alike by their lines, too."""
    labels = [_label(row) for row in rows_]
    return {
        label if labels.count(label) == 1 else f"{label}, line {row.line}": row.value
        for label, row in zip(labels, rows_, strict=True)
    }


def _label(row: PublishedRow) -> str:
    """Return `Llama 3 8B, 8,192 tokens, 64 H100` of the fields that a row has."""
    known = row.fields
    tokens = f"{known['tokens']:,} tokens" if "tokens" in known else ""
    device = " ".join(str(known[key]) for key in ("gpus", "device") if key in known)
    return ", ".join(
        filter(None, [known.get("model"), known.get("setting"), tokens, device, known.get("statistic")])
    )
