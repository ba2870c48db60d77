"""Read conf/answers.yaml: each claim of the paper and the article, with its source and the public record.

`harness.claims.answers` answers them. What a source says is in conf/sources.yaml, so that answers and claims
cannot disagree on it. Tests look quoted words up in conf/quotations.yaml, so that none is invented.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, TypeVar

from harness.bounds import Bounds
from harness.claims.load import load_sources, read_yaml
from harness.claims.published import PublishedRow, Sources, rows, source_of
from harness.config.optimizations import CONF
from harness.config.validation import ConfigError, Fields, as_mapping, check_fields, fields_of, refuse_doubles

_TEXT = {"type": "str"}
_OPTIONAL = {"type": "str", "default": ""}
_FLAG = {"type": "bool", "default": False}
_LIST: Mapping[str, Any] = {"type": "list", "default": []}
FILE: Fields = {
    "parts": {"type": "dict"},
    "methods": {"type": "list"},
    "sentences": {"type": "list"},
    "series": _LIST,
    "tables": {"type": "list"},
    "claims": {"type": "dict"},
    "statements": {"type": "list"},
}
PART: Fields = {"by": _TEXT, "title": _TEXT}
CLAIM: Fields = {
    **dict.fromkeys(("id", "section", "quoted", "claim", "do"), _TEXT),
    "band": {"type": "list", "default": None},
    "unit": {"type": "str", "default": "x"},
    "per": _OPTIONAL,
    **dict.fromkeys(("often", "universal", "exists"), _FLAG),
    "source": {},
    "note": _OPTIONAL,
    **dict.fromkeys(("public", "judged", "related"), _LIST),
    **dict.fromkeys(("would_decide", "not_built", "untestable"), _OPTIONAL),
}


UNIT_OF = {"x": "1", "%": "1", "GPUs": "1", "parameters": "1"}  # base units of printed ones


@dataclass(frozen=True)
class PublicRecord:
    """What others published on a claim, each value by its name; of committed rows, or a few named here."""

    of: str
    source: str  # repository and path, or the paper
    origin: Literal["published", "calculated"] = "published"  # or by the source's formula
    values: Mapping[str, Any] = field(default_factory=dict)
    rows: str = ""  # the file of conf/published whose rows these are; "" where the values stand here
    where: Mapping[str, Any] = field(default_factory=dict)  # which rows
    note: str = ""
    decides: bool = False  # the claim's own metric, on the claim's class of device
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


@dataclass(frozen=True)
class Method:
    """A way of predicting, and where its error on measurements of others is recorded."""

    name: str
    predicts: list[Any]  # suites whose values of `origin` it predicts, or claims of them
    origin: str
    suite: str  # whose records have its relative errors
    metric: str
    method: str
    known_from: str  # what it was compared with
    workload: str = ""  # a pattern of those whose records count; "" for all
    conditions: Mapping[str, Any] = field(default_factory=dict)  # of the records that count: out of sample
    metrics: list[Any] = field(default_factory=list)  # that it predicts; none: all


@dataclass(frozen=True)
class Sentence:
    """A sentence that a reader can repeat: shown while these claims have these answers."""

    text: str  # with {0}, {1} … for the values
    answers: Mapping[str, Any]  # claim -> answer
    values: list[Any] = field(default_factory=list)  # "<suite>/<claim> | group | origin"


@dataclass(frozen=True)
class Statement:
    """A sentence of the seeds that states nothing that can be tested, and why."""

    by: str
    section: str
    quoted: str
    why: str


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper or the article: the claims that answer each row, by the row's words."""

    title: str
    by: str
    rows: Mapping[str, Any]
    named_by: Annotated[int, Bounds(at_least=1)] = 1  # how many cells name a row; the others are its claim


@dataclass(frozen=True, slots=True)
class PaperClaims:
    """conf/answers.yaml: what is claimed, in the order of the paper, and by what it is answered."""

    parts: Mapping[str, str]  # name -> title, in order
    claims: tuple[PaperClaim, ...]
    methods: tuple[Method, ...]
    sentences: tuple[Sentence, ...]
    statements: tuple[Statement, ...]
    tables: tuple[PaperTable, ...] = ()


Kind = TypeVar("Kind")


def load_answers() -> PaperClaims:
    """Return the file's content; raises ConfigError naming the claim and the field."""
    path = CONF / "answers.yaml"
    data = check_fields(path.name, read_yaml(path), FILE)
    sources = load_sources()
    parts = {
        name: check_fields(f"{path.name}.parts.{name}", as_mapping(f"{path.name}.parts.{name}", one), PART)
        for name, one in data["parts"].items()
    }
    if unknown := data["claims"].keys() - parts:
        raise ConfigError(f"{path.name}.claims: {', '.join(unknown)}: expected one of {', '.join(parts)}")
    claims = tuple(
        _claim(f"{path.name}.claims.{name}", one, name, parts[name]["by"], sources)
        for name in parts
        for one in data["claims"].get(name, ())
    )
    refuse_doubles(f"{path.name}.claims", [one.id for one in claims])
    sentences = _all(f"{path.name}.sentences", data["sentences"], Sentence)
    tables = _all(f"{path.name}.tables", data["tables"], PaperTable)
    named = {name for one in sentences for name in one.answers}
    named |= {name for one in tables for ids in one.rows.values() for name in ids}
    if unknown := named - {one.id for one in claims}:
        raise ConfigError(f"{path.name}: {', '.join(sorted(unknown))} is no claim of the file")
    return PaperClaims(
        {name: one["title"] for name, one in parts.items()},
        claims,
        _all(f"{path.name}.methods", data["methods"], Method),
        sentences,
        _all(f"{path.name}.statements", data["statements"], Statement),
        tables,
    )


def _all(where: str, entries: Sequence[Any], kind: type[Kind]) -> tuple[Kind, ...]:
    return tuple(_one(f"{where}[{i}]", one, kind) for i, one in enumerate(entries))


def _one(where: str, data: Any, kind: type[Kind]) -> Kind:
    return kind(**check_fields(where, as_mapping(where, data), fields_of(kind)))


def _claim(where: str, data: Any, part: str, by: str, sources: Sources) -> PaperClaim:
    data = as_mapping(where, data)
    where = f"{where} ({data.get('id', 'no id')})"
    fields = check_fields(where, data, CLAIM)
    band = _band(f"{where}.band", fields["band"])
    public = tuple(_public(f"{where}.public[{i}]", one, band) for i, one in enumerate(fields["public"]))
    lists = {name: tuple(fields[name]) for name in ("judged", "related")}
    of_source = source_of(where, fields.pop("source"), sources, fields.pop("note")).words
    del of_source["provenance"]
    own = {"by": by, "part": part, "band": band, "public": public}
    return PaperClaim(**{**fields, **lists, **of_source, **own})


def _band(where: str, ends: Sequence[Any] | None) -> tuple[float, float] | None:
    if ends is None:
        return None
    if len(ends) != 2 or not all(isinstance(end, int | float) for end in ends) or not ends[0] < ends[1]:
        raise ConfigError(f"{where}: {ends!r}; expected [LOW, HIGH], the lower number first")
    return float(ends[0]), float(ends[1])


def _public(where: str, data: Any, band: tuple[float, float] | None) -> PublicRecord:
    record = _one(where, data, PublicRecord)
    values = {str(name): float(value) for name, value in record.values.items()}
    if record.where and not record.rows:
        raise ConfigError(f"{where}.where: chooses among rows, of which there are none; give rows")
    if record.values and record.rows:
        raise ConfigError(f"{where}.values: the rows have them; leave out one of both")
    if record.rows:
        values = _named(rows(record.rows, record.where))
    if record.decides and (band is None or not values):
        raise ConfigError(f"{where}.decides: needs the claim's band, and values or rows")
    return replace(record, values=values)


def _named(rows_: Sequence[PublishedRow]) -> dict[str, float]:
    """Return the rows' values by what distinguishes them; rows that read alike by their lines, too."""
    counts = Counter(map(_label, rows_))
    return {
        label if counts[label := _label(row)] == 1 else f"{label}, line {row.line}": row.value
        for row in rows_
    }


def _label(row: PublishedRow) -> str:
    """Return `Llama 3 8B, 8,192 tokens, 64 H100` of the fields that a row has."""
    known = row.fields
    tokens = f"{known['tokens']:,} tokens" if "tokens" in known else ""
    device = " ".join(str(known[key]) for key in ("gpus", "device") if key in known)
    return ", ".join(
        filter(None, [known.get("model"), known.get("setting"), tokens, device, known.get("statistic")])
    )
